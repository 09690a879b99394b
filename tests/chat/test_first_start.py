"""The first start in a terminal: which model is offered, and what becomes of the answer."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from platformdirs import user_config_path

from mink_local.models.catalog import EMBEDDED, chosen_model
from mink_local.models.info import LADDER
from tests.chat.conftest import MinkChat
from tests.support.hub import REPOSITORY, Hub, serve
from tests.support.terminal import Terminal

pytestmark = [pytest.mark.terminal, pytest.mark.posix]
LARGEST = LADDER[-1]
Start = Callable[..., tuple[str, int]]


@pytest.fixture
def hub(own_files: Path, tiny_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A Hub with a tiny model under every name that is offered; no choice yet, and empty stores."""
    (user_config_path("mink-local") / "default-model").unlink()
    assert not own_files.exists()
    with serve(Hub()) as hub:
        models = []
        for i, offered in enumerate(LADDER):
            name, _, quantization = offered.partition(":")
            file = f"{name}-{quantization}.gguf"
            hub.files[file] = tiny_path.read_bytes()
            models.append(f"{offered} hf:{REPOSITORY} {file} {(i + 1) / 1000}\n")
        (user_config_path("mink-local") / "models.txt").write_text("".join(models))
        for name, value in {"HF_ENDPOINT": hub.url, "HF_HOME": tmp_path / "hf", "HOME": tmp_path}.items():
            monkeypatch.setenv(name, str(value))
        monkeypatch.delenv("OLLAMA_MODELS", raising=False)
        yield hub


@pytest.fixture
def start(opened: Callable[..., Terminal]) -> Start:
    """`start(answer)` starts a chat, answers the question and leaves; what was shown, and the status.

    Without an answer there must be no question.
    """

    def run(answer: str = "") -> tuple[str, int]:
        chat = opened("--ctx", "256", "--max-tokens", "4", columns=100, waits=False)
        if answer:
            chat.until_shown(r"\[Y/n\]")
            chat.send(answer)
        chat.until_shown(r"(?m)^>$")
        return chat.text, chat.leave()

    return run


def test_the_offered_model_is_downloaded_and_kept(hub: Hub, start: Start) -> None:
    shown, status = start("\r")
    assert LARGEST in shown
    assert "100%" in shown
    assert f"{LARGEST} · CPU" in shown
    assert "is a toy" not in shown
    assert (status, chosen_model()) == (0, LARGEST)
    n_requests = len(hub.requests)
    shown, _ = start()
    assert f"{LARGEST} · CPU" in shown
    assert len(hub.requests) == n_requests


@pytest.mark.parametrize(("answer", "status"), [("n\r", 200), ("y\r", 503)])
def test_without_a_download_it_is_asked_once(answer: str, status: int, hub: Hub, start: Start) -> None:
    """And /help models says how to get a model later."""
    hub.status = status
    shown, left_with = start(answer)
    assert [word for word in ("toy", f"{EMBEDDED} · CPU", "/help models") if word not in shown] == []
    assert ("503" in shown, bool(hub.requests)) == (status == 503, status == 503)
    assert (left_with, chosen_model()) == (0, EMBEDDED)
    shown, _ = start()
    assert "toy" not in shown


@pytest.mark.parametrize("key", ["\x03", "\x04"], ids=["Ctrl-C", "Ctrl-D"])
def test_the_question_can_be_left(key: str, hub: Hub, opened: Callable[..., Terminal]) -> None:
    chat = opened("--ctx", "256", columns=100, waits=False)
    chat.until_shown(r"\[Y/n\]")
    chat.send(key)
    assert chat.ended() == 130
    assert (chosen_model(), hub.requests) == (None, [])


def test_a_model_of_another_program_is_offered_first(
    hub: Hub, start: Start, tiny_path: Path, tmp_path: Path
) -> None:
    folder = tmp_path / ".lmstudio/models/me/parrot-GGUF"
    folder.mkdir(parents=True)
    (folder / "parrot.gguf").symlink_to(tiny_path)
    shown, status = start("y\r")
    assert "lmstudio:me/parrot-GGUF:parrot.gguf" in shown.replace("\n", "")
    assert (status, chosen_model()) == (0, "lmstudio:me/parrot-GGUF:parrot.gguf")
    assert hub.requests == []


def test_nothing_is_asked_without_a_terminal(hub: Hub, mink_chat: MinkChat) -> None:
    assert "toy" in mink_chat("--max-tokens", "1", typed=["Hi"]).stderr
    assert "toy" not in mink_chat("Hi", "--max-tokens", "1").stderr
    assert (chosen_model(), hub.requests) == (None, [])
