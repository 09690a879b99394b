"""The first start in a terminal: which model is offered, and what becomes of the answer."""

from collections.abc import Callable, Iterator
from pathlib import Path

import click
import pytest
from platformdirs import user_config_path

from mink_local.chat.first_start import _answered
from mink_local.models.catalog import EMBEDDED, chosen_model
from mink_local.models.offer import LADDER
from tests.chat.conftest import MinkChat
from tests.support.folders import of_others
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


@pytest.mark.usefixtures("own_files")
def test_a_path_in_a_folder_of_others_is_no_model() -> None:
    with of_others() as others, pytest.raises(click.UsageError):
        _answered(None)(str(others / "x.gguf"))


@pytest.fixture
def start(opened: Callable[..., Terminal]) -> Start:
    """`start(answer)` starts a chat, answers the question and leaves; what was shown, and the status.

    Without an answer there must be no question.
    """

    def run(answer: str = "") -> tuple[str, int]:
        chat = opened("--ctx", "256", "--max-tokens", "4", columns=100, waits=False)
        if answer:
            chat.until_shown(r"\.gguf file:")
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


def test_the_toy_is_asked_for_once_and_named_at_every_start(hub: Hub, start: Start) -> None:
    """With how to get a model later."""
    for answer in ("n\r", ""):
        shown, status = start(answer)
        assert [word for word in ("toy", f"{EMBEDDED} · CPU", "mink-models list") if word not in shown] == []
        assert (status, chosen_model(), hub.requests) == (0, EMBEDDED, [])


def test_a_download_that_fails_chooses_nothing(hub: Hub, start: Start) -> None:
    """The next start asks again, and goes on where the download stopped."""
    hub.status = 503
    shown, status = start("y\r")
    assert [word for word in ("503", "toy", f"{EMBEDDED} · CPU") if word not in shown] == []
    assert (status, chosen_model()) == (0, None)
    hub.status = None
    shown, _ = start("y\r")
    assert f"{LARGEST} · CPU" in shown
    assert chosen_model() == LARGEST


@pytest.mark.usefixtures("hub")
def test_a_download_that_was_begun_is_called_so(opened: Callable[..., Terminal], tmp_path: Path) -> None:
    blobs = tmp_path / "hf/hub" / f"models--{REPOSITORY.replace('/', '--')}" / "blobs"
    blobs.mkdir(parents=True)
    (blobs / f"{'a' * 64}.incomplete").write_text("GG")
    chat = opened("--ctx", "256", columns=100, waits=False)
    chat.until_shown("Go on downloading")


def test_the_question_takes_a_path(hub: Hub, opened: Callable[..., Terminal], tiny_path: Path) -> None:
    """Of a file that can be loaded, also as a shell would write it; anything else is asked again."""
    model = tiny_path.parent / "my 7b.gguf"
    if not model.exists():
        model.hardlink_to(tiny_path)
    chat = opened("--ctx", "256", columns=200, waits=False)
    for answer, complaint in ((__file__, "GGUF"), ("/no/such.gguf", "no file"), ("maybe", "'maybe'")):
        chat.until_shown(r"\.gguf file: $|\.gguf file:$")
        chat.send(f"{answer}\r")
        chat.until_shown(f"Error: .*{complaint}")
    chat.send(str(model).replace(" ", "\\ ") + "\r")
    chat.until_shown("my 7b · CPU")
    assert chosen_model() == str(model)
    assert hub.requests == []


@pytest.mark.linux
@pytest.mark.usefixtures("hub")
def test_a_choice_that_cannot_be_kept_is_a_note(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", "/proc/nowhere")
    shown, status = start("n\r")
    assert [word for word in ("cannot write", f"{EMBEDDED} · CPU") if word not in shown] == []
    assert status == 0


@pytest.mark.parametrize("key", ["\x03", "\x04"], ids=["Ctrl-C", "Ctrl-D"])
def test_the_question_can_be_left(key: str, hub: Hub, opened: Callable[..., Terminal]) -> None:
    chat = opened("--ctx", "256", columns=100, waits=False)
    chat.until_shown(r"\.gguf file:")
    chat.send(key)
    assert chat.ended() == 130
    assert (chosen_model(), hub.requests) == (None, [])


def test_a_model_of_another_program_is_offered_first(
    hub: Hub, start: Start, tiny_path: Path, tmp_path: Path
) -> None:
    folder = tmp_path / ".lmstudio/models/me/parrot-GGUF"
    folder.mkdir(parents=True)
    (folder / "parrot.gguf").hardlink_to(tiny_path)
    shown, status = start("y\r")
    assert "lmstudio:me/parrot-GGUF:parrot.gguf" in shown.replace("\n", "")
    assert (status, chosen_model()) == (0, "lmstudio:me/parrot-GGUF:parrot.gguf")
    assert hub.requests == []


def test_nothing_is_asked_without_a_terminal(hub: Hub, mink_chat: MinkChat) -> None:
    assert "toy" in mink_chat("--max-tokens", "1", typed=["Hi"]).stderr
    assert "toy" not in mink_chat("Hi", "--max-tokens", "1").stderr
    assert (chosen_model(), hub.requests) == (None, [])
