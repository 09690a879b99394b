"""Input lines for messages: one with history, search and completion, and a plain one.

Both are called with the text that the line begins with, and return a message; they raise EOFError for Ctrl-D
and KeyboardInterrupt for Ctrl-C.
"""

import contextlib
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Iterable, Iterator
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from platformdirs import user_data_path
from prompt_toolkit import PromptSession
from prompt_toolkit.application import get_app
from prompt_toolkit.auto_suggest import AutoSuggestFromHistory
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.enums import DEFAULT_BUFFER, EditingMode
from prompt_toolkit.filters import Condition, has_focus
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.input.typeahead import get_typeahead, store_typeahead
from prompt_toolkit.key_binding import KeyBindings, KeyPress, KeyPressEvent
from prompt_toolkit.keys import Keys
from prompt_toolkit.styles import Style

from mink_local.chat.options import command_line_text
from mink_local.chat.screen import Screen
from mink_local.cli import printable
from mink_local.files import private_file

if TYPE_CHECKING:
    from mink_local.chat.completion import Choice

Background = Callable[[Callable[[str], None]], Awaitable[None]]

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
    prompt, instead = _PROMPT, ""
    if not _begin_line_with(default):
        prompt, instead = f"(Enter sends again: {printable(default)})\n{_PROMPT}", default
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        text = input(prompt) or instead
        while _is_open(text):
            _begin_line_with("")
            text += "\n" + input(_MORE)
    finally:
        signal.signal(signal.SIGINT, before)
    return _unquoted(command_line_text(text))


def read_line(read: Callable[[str], str], screen: Screen, default: str = "") -> str | None:
    """Return a line that begins with a text; "" after Ctrl-C, and None at the end of the input."""
    try:
        return read(default)
    except EOFError:
        screen.show("")
        return None
    except KeyboardInterrupt:
        screen.note("\n(Ctrl-D or /exit leaves)")
        return ""


def _begin_line_with(text: str) -> bool:
    """Have the next line of `input` begin with a text; return if it does."""
    try:
        readline: Any = import_module("readline")  # gives input() editing and history
    except ImportError:
        return not text
    if text and (sys.stdin is not sys.__stdin__ or "\n" in text):
        return False
    readline.set_startup_hook(lambda: readline.insert_text(text))
    return True


class LineInput:
    """The input line of prompt_toolkit, whose `keys` are those of "emacs" or "vi".

    Enter sends the message. Alt-Enter begins a new line, and so does Enter inside a block that begins with
    three double quotes. Pasted lines are one message. `complete` yields the completions of a line, as in
    `mink_local.chat.completion`, and `keep` keeps the history in a file.

    `background` runs while a line is typed, until it is sent; it is given a function that shows a text at the
    bottom of the screen. An error that it raises ends the line and is raised there.
    """

    def __init__(
        self,
        complete: "Callable[[str], Iterator[Choice]]",
        keys: str,
        keep: bool,
        screen: Screen,
        background: Background,
    ) -> None:
        self._screen = screen
        self._background = background
        self._history = _History(user_data_path("mink-local") / "history") if keep else None
        history: History = self._history or InMemoryHistory()
        self._session: PromptSession[str] = PromptSession(
            message=_PROMPT,
            multiline=False,  # Enter sends in any case, and the line of a search takes the place of this one
            prompt_continuation=_MORE,
            key_bindings=_key_bindings(),
            editing_mode=EditingMode.VI if keys == "vi" else EditingMode.EMACS,
            history=history,
            enable_history_search=True,
            # Without colours a suggestion would look like something that was typed.
            auto_suggest=None if screen.is_plain else AutoSuggestFromHistory(),
            completer=_LineCompleter(complete),
            complete_while_typing=False,
            reserve_space_for_menu=6,
            enable_suspend=True,
            enable_open_in_editor=True,
            tempfile_suffix=".md",
            style=Style.from_dict({"bottom-toolbar": "noreverse"}),
        )

    def __call__(self, default: str = "") -> str:
        text = self._session.prompt(default=default, pre_run=self._start_background)
        if self._history and self._history.problem:
            self._screen.note(f"(the history of the input line is not kept: {self._history.problem})")
            self._history.problem = ""
        return _unquoted(command_line_text(text))

    def _start_background(self) -> None:
        app = self._session.app
        self._show("")

        async def work() -> None:
            try:
                await self._background(self._show)
            except Exception as error:
                if not app.is_done:
                    app.exit(exception=error)

        app.create_background_task(work())

    def _show(self, text: str) -> None:
        """Show a text at the bottom of the screen, "" for none."""
        if (text or None) != self._session.bottom_toolbar:
            self._session.bottom_toolbar = text or None
            self._session.app.invalidate()

    def typed_ahead(self) -> str:
        """Return what has been typed since the last message, with which the next input line begins."""
        if os.name == "nt":  # there only what a line reads is typed
            return ""
        keys = [*get_typeahead(self._session.input), *self._session.input.read_keys()]
        store_typeahead(self._session.input, keys)
        return _typed(keys)


def _typed(keys: Iterable[KeyPress]) -> str:
    """Return the text that keys make, as far as they are letters, Enter and Backspace."""
    text = ""
    for press in keys:
        if press.key in (Keys.Enter, Keys.ControlJ):
            text += " ↵ "
        elif press.key == Keys.Backspace:
            text = text[:-1]
        elif press.key == Keys.BracketedPaste or len(press.key) == 1:
            text += press.data
    return text


class _History(FileHistory):
    """Messages of earlier chats in a file; `problem` says why it cannot be read or written, if it cannot."""

    problem = ""
    _is_lost = False

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        try:
            private_file(path)
        except OSError as error:
            self._lose(error)

    def load_history_strings(self) -> Iterable[str]:
        try:
            return super().load_history_strings()
        except OSError as error:
            self._lose(error)
            return []

    def store_string(self, string: str) -> None:
        if self._is_lost:
            return
        try:
            super().store_string(string)
        except OSError as error:
            self._lose(error)

    def _lose(self, error: OSError) -> None:
        self.problem, self._is_lost = error.strerror or str(error), True


def _key_bindings() -> KeyBindings:
    bindings = KeyBindings()

    @bindings.add("enter", filter=has_focus(DEFAULT_BUFFER))  # and not the line of a search
    def send(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if buffer.complete_state and buffer.complete_state.current_completion:
            buffer.complete_state = None  # the row of the menu is taken
        elif _is_open(buffer.text):
            buffer.newline(copy_margin=False)
        else:
            buffer.validate_and_handle()

    @bindings.add(
        "c-c", filter=has_focus(DEFAULT_BUFFER) & Condition(lambda: bool(get_app().current_buffer.text))
    )
    def drop(event: KeyPressEvent) -> None:
        event.app.exit(result="", style="class:aborting")

    @bindings.add("escape", "enter")
    def new_line(event: KeyPressEvent) -> None:
        event.current_buffer.newline(copy_margin=False)

    return bindings


class _LineCompleter(Completer):
    def __init__(self, complete: "Callable[[str], Iterator[Choice]]") -> None:
        self._complete = complete

    def get_completions(self, document: Document, _: CompleteEvent) -> Iterator[Completion]:
        with contextlib.suppress(Exception):  # it would end the chat; the command tells what is wrong
            for choice in self._complete(document.text_before_cursor):
                yield Completion(
                    choice.text, start_position=-choice.replaces, display_meta=choice.about or None
                )
