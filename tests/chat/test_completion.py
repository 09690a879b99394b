"""Tab completion of commands and their arguments."""

from collections.abc import Callable
from pathlib import Path

import pytest

from mink_local.chat.loop import COMMANDS, CommandCompleter
from mink_local.chat.settings import BY_KEY
from mink_local.chat.terminal.screen import one_line
from tests.chat.conftest import Typist, converse


@pytest.fixture
def completed(typist: Callable[..., Typist]) -> Callable[[str], list[str]]:
    """`completed(line)` returns the lines that a line can become."""
    chat = typist().chat
    completer = CommandCompleter(chat)
    store = chat.session.store
    converse(store, "Name a fruit.")
    store.rename(1, "fruit")

    def complete(line: str) -> list[str]:
        return [line[: len(line) + one.start_position] + one.text for one in completer.complete(line)]

    return complete


def test_what_completions_mean(typist: Callable[..., Typist]) -> None:
    """Commands, settings, conversations and answers say what they are."""
    typed = typist("--temp", "5", "--seed", "1")
    typed.say("Name three animals.", "/regen")

    def meaning(line: str) -> dict[str, str]:
        return {one.text: one.display_meta_text for one in CommandCompleter(typed.chat).complete(line)}

    assert meaning("/reg") == {"/regen ": COMMANDS["regen"].about}
    assert meaning("/set seed") == {"seed ": BY_KEY["seed"].about}
    assert meaning("/load ") == {"1": "Name three animals."}
    answers = [answer.content for answer in typed.chat.session.alternatives()]
    assert meaning("/pick ") == {"1": one_line(answers[0], 50), "2": one_line(answers[1], 50)}


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("/sam", ["/sampler "]),
        ("/sampler top-n", ["/sampler top-n-sigma"]),
        ("/load f", ["/load fruit"]),
        ("/delete f", ["/delete fruit"]),
        ("/set max", ["/set max-tokens "]),
        ("/set show-r", ["/set show-reasoning "]),
        ("/set status o", ["/set status on", "/set status off"]),
        ("/set sampler eta", ["/set sampler eta"]),
        ("/temp d", ["/temp default"]),
        ("/reasoning li", ["/reasoning line"]),
        ("/model smollm2-1.7", ["/model smollm2-1.7b"]),
        ("/help hea", ["/help heat"]),
        ("/help adv", ["/help advice"]),
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
    assert completed("/file ~nobody-by-name/") == []
    monkeypatch.chdir(tmp_path)
    assert completed("/file note") == ["/file notes.txt"]
