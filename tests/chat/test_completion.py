"""Tab completion of commands and their arguments."""

from collections.abc import Callable
from pathlib import Path

import pytest

from mink_local.chat.repl import complete
from tests.chat.conftest import Typist


@pytest.fixture
def completed(typist: Callable[..., Typist]) -> Callable[[str], list[str]]:
    """`completed(line)` returns the lines that a line can become."""
    chat = typist().chat
    store = chat.session.store
    store.change(store.begin("model", None), name="fruit")
    return lambda line: [line[: len(line) - one.replaces] + one.text for one in complete(chat, line)]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("/sam", ["/sampler "]),
        ("/sampler top-n", ["/sampler top-n-sigma"]),
        ("/load f", ["/load fruit"]),
        ("/delete f", ["/delete fruit"]),
        ("/set max", ["/set max-tokens "]),
        ("/set sampling ho", ["/set sampling host"]),
        ("/set status o", ["/set status on", "/set status off"]),
        ("/set sampler eta", ["/set sampler eta"]),
        ("/temp d", ["/temp default"]),
        ("/think li", ["/think line"]),
        ("/model smollm2-1.7", ["/model smollm2-1.7b"]),
        ("/help hea", ["/help heat"]),
        ("/undo ", []),
        ("sam", []),
    ],
)
def test_a_line_is_completed(completed: Callable[[str], list[str]], line: str, expected: list[str]) -> None:
    assert completed(line) == expected


def test_paths(
    completed: Callable[[str], list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "notes.txt").touch()
    (tmp_path / "nothing").mkdir()
    (tmp_path / ".hidden").touch()
    assert completed(f"/file {tmp_path}/no") == [f"/file {tmp_path}/notes.txt", f"/file {tmp_path}/nothing/"]
    assert completed(f"/file {tmp_path}/.h") == [f"/file {tmp_path}/.hidden"]
    assert completed(f"/set grammar {tmp_path}/note") == [f"/set grammar {tmp_path}/notes.txt"]
    assert completed(f"/file {tmp_path}/no/such/") == []
    monkeypatch.chdir(tmp_path)
    assert completed("/file note") == ["/file notes.txt"]
