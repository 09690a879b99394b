"""Input lines for messages: one with history, search and completion, and a plain one.

Both are called with the text that the line begins with, and return a message; they raise EOFError for Ctrl-D
and KeyboardInterrupt for Ctrl-C.
"""

import contextlib
import signal
from collections.abc import Callable, Iterator

from platformdirs import user_data_path
from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.enums import DEFAULT_BUFFER, EditingMode
from prompt_toolkit.filters import has_focus
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.shortcuts import CompleteStyle

from mink_local.files import private_file

_PROMPT, _MORE = "> ", "  "
_QUOTES = '"""'


def _is_open(text: str) -> bool:
    """Return if the text is a block that is not ended."""
    stripped = text.strip()
    return stripped.startswith(_QUOTES) and not (len(stripped) >= 6 and stripped.endswith(_QUOTES))


def _unquoted(text: str) -> str:
    stripped = text.strip()
    if stripped.startswith(_QUOTES):
        return stripped.removeprefix(_QUOTES).removesuffix(_QUOTES).strip("\n")
    return text


def read_plain(default: str = "") -> str:
    """Return a message from Python's own input line, with readline if the system has it."""
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401  (gives input() editing and history)
    if default:
        print(f"(to send again: {default})")
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        text = input(_PROMPT)
        while _is_open(text):
            text += "\n" + input(_MORE)
    finally:
        signal.signal(signal.SIGINT, before)
    return _unquoted(text)


class LineInput:
    """The input line of prompt_toolkit, whose `keys` are those of "emacs" or "vi".

    Enter sends the message. Alt-Enter begins a new line, and so does Enter inside a block that begins with
    three double quotes. Pasted lines are one message. `complete` yields the completions of a line, as in
    `mink_local.chat.completion`, and `keep` keeps the history in a file.
    """

    def __init__(self, complete: Callable[[str], Iterator[tuple[str, int]]], keys: str, keep: bool) -> None:
        path = user_data_path("mink-local") / "history"
        history: History = FileHistory(str(private_file(path))) if keep else InMemoryHistory()
        self._session: PromptSession[str] = PromptSession(
            message=_PROMPT,
            multiline=True,
            prompt_continuation=_MORE,
            key_bindings=_key_bindings(),
            editing_mode=EditingMode.VI if keys == "vi" else EditingMode.EMACS,
            history=history,
            enable_history_search=True,
            completer=_LineCompleter(complete),
            complete_while_typing=False,
            complete_style=CompleteStyle.READLINE_LIKE,  # a menu would scroll the screen
            tempfile_suffix=".md",
        )

    def __call__(self, default: str = "") -> str:
        return _unquoted(self._session.prompt(default=default))


def _key_bindings() -> KeyBindings:
    bindings = KeyBindings()

    @bindings.add("enter", filter=has_focus(DEFAULT_BUFFER))  # and not the line of a search
    def send(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if _is_open(buffer.text):
            buffer.newline(copy_margin=False)
        else:
            buffer.validate_and_handle()

    @bindings.add("escape", "enter")
    def new_line(event: KeyPressEvent) -> None:
        event.current_buffer.newline(copy_margin=False)

    return bindings


class _LineCompleter(Completer):
    def __init__(self, complete: Callable[[str], Iterator[tuple[str, int]]]) -> None:
        self._complete = complete

    def get_completions(self, document: Document, _: CompleteEvent) -> Iterator[Completion]:
        for text, length in self._complete(document.text_before_cursor):
            yield Completion(text, start_position=-length)
