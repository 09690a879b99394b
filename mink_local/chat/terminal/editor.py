"""The input line, of prompt_toolkit: history, search, completion, several lines, an editor."""

import os
import signal
import sys
from collections.abc import Collection, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from prompt_toolkit import PromptSession
from prompt_toolkit.application import create_app_session, get_app
from prompt_toolkit.auto_suggest import AutoSuggestFromHistory
from prompt_toolkit.completion import Completer
from prompt_toolkit.enums import DEFAULT_BUFFER
from prompt_toolkit.filters import Condition, has_focus
from prompt_toolkit.history import DummyHistory, FileHistory, History, InMemoryHistory
from prompt_toolkit.input.typeahead import get_typeahead, store_typeahead
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.key_binding.key_processor import KeyPress
from prompt_toolkit.keys import Keys
from prompt_toolkit.layout.processors import TabsProcessor
from prompt_toolkit.output import Output, create_output
from prompt_toolkit.output.plain_text import PlainTextOutput
from prompt_toolkit.styles import Style

from mink_local.chat.terminal.input import MORE, PROMPT, QuietTerminal, block, is_open
from mink_local.chat.terminal.screen import Screen
from mink_local.cli import command_line_text
from mink_local.files import private_file, replaced, user_folder


class InputLine:
    """Reads messages from the user, with Emacs keys; on a dumb terminal, without showing what is edited.

    Enter sends the message. Alt-Enter begins a new line, and so does Enter inside a block, between lines of
    three double quotes. Pasted lines are one message, also if they look like a block.

    Args:
        terminal: What has been typed while no line was read.
        screen: Where it is shown.
        keep: Keep the history in a file.

    Attributes:
        screen: Where it is shown from the next line on.
    """

    def __init__(self, terminal: QuietTerminal, screen: Screen, keep: bool) -> None:
        self._terminal = terminal
        self.screen = screen
        self._is_pasted = False  # the beginning of the line that is read
        self._history = _History(user_folder("data") / "history") if keep else None
        history: History = self._history or InMemoryHistory()
        self._session = self._prompt_session(
            multiline=False,  # Enter sends in any case, and the line of a search takes the place of this one
            prompt_continuation=MORE,
            key_bindings=self._key_bindings(),
            history=history,
            enable_history_search=True,
            complete_while_typing=False,
            reserve_space_for_menu=6,
            enable_open_in_editor=True,
            tempfile_suffix=".md",
            input_processors=[TabsProcessor(char1=" ", char2=" ")],
        )

    def _prompt_session(self, **options: Any) -> PromptSession[str]:
        with create_app_session(output=_output(self.screen)):
            return PromptSession(enable_suspend=True, **options)

    def _key_bindings(self) -> KeyBindings:
        bindings = KeyBindings()

        @bindings.add("enter", filter=has_focus(DEFAULT_BUFFER))  # and not the line of a search
        def send(event: KeyPressEvent) -> None:
            buffer = event.current_buffer
            if buffer.complete_state and buffer.complete_state.current_completion:
                buffer.complete_state = None  # the row of the menu is taken
            elif is_open(buffer.text) and not self._is_pasted:
                buffer.newline(copy_margin=False)
            else:
                buffer.validate_and_handle()

        @bindings.add(Keys.BracketedPaste)
        def paste(event: KeyPressEvent) -> None:
            if not event.current_buffer.document.text_before_cursor.strip():
                self._is_pasted = True
            event.current_buffer.insert_text(event.data.replace("\r\n", "\n").replace("\r", "\n"))

        has_text = Condition(lambda: self.can_edit and bool(get_app().current_buffer.text))

        @bindings.add("c-c", filter=has_focus(DEFAULT_BUFFER) & has_text)
        def drop(event: KeyPressEvent) -> None:
            event.app.exit(result="", style="class:aborting")

        @bindings.add("escape", "enter")
        def new_line(event: KeyPressEvent) -> None:
            event.current_buffer.newline(copy_margin=False)

        return bindings

    def complete_with(self, completer: Completer) -> None:
        """Have Tab complete lines."""
        self._session.completer = completer

    def read(self, default: str = "") -> str:
        """Return a line as it was typed; after the prompt, it begins with `default`.

        Raises:
            EOFError: Ctrl-D.
            KeyboardInterrupt: Ctrl-C.
        """
        self._is_pasted = False
        self._session.style = None if self.screen.is_plain else Style([("", self.screen.theme.own)])
        # Without colours a suggestion would look like something that was typed.
        self._session.auto_suggest = None if self.screen.is_plain else AutoSuggestFromHistory()
        with self._terminal.reading():
            text = command_line_text(self._session.prompt(PROMPT, default=default))
        self._repeat_ctrl_c()
        return text

    def _repeat_ctrl_c(self) -> None:
        """Repeat a Ctrl-C that came right behind Enter, when the terminal still had it as a key."""
        if sys.stdin.isatty():
            keys = self._waiting()
            if keys and keys[0].key == Keys.ControlC:
                del keys[0]
                signal.raise_signal(signal.SIGINT)
            store_typeahead(self._session.input, keys)

    def block(self, text: str) -> str | None:
        """Return what the block holds that the last line was, or None if that was none."""
        return None if self._is_pasted else block(text)

    def answer(self) -> str:
        """Return the answer to a question. It is not what was typed before, and is not in the history.

        Raises as `read` does.
        """
        keys, before = self._session.input, self._waiting()
        with self._terminal.reading():
            text = self._prompt_session(history=DummyHistory()).prompt(PROMPT)
        store_typeahead(keys, [*before, *get_typeahead(keys)])
        return text

    def _waiting(self) -> list[KeyPress]:
        """Take the keys that no line has read."""
        return [*get_typeahead(self._session.input), *self._session.input.read_keys()]

    def keys_wait(self) -> bool:
        """Return whether something was typed before, which the next line will read."""
        keys = self._waiting()
        store_typeahead(self._session.input, keys)
        return any(press.key != Keys.CPRResponse for press in keys)  # which the terminal has sent itself

    @property
    def can_edit(self) -> bool:
        """Whether a line can begin with a text: whether it is shown how that is edited."""
        return not self.screen.is_dumb

    def forget(self, messages: Collection[str]) -> None:
        """Remove messages from the history, if one is kept."""
        if self._history:
            self._history.forget(messages)


def _output(screen: Screen) -> Output | None:
    """Return what shows the input line: standard error if standard output is a file; None for the usual."""
    if screen.is_terminal:
        return PlainTextOutput(sys.stdout) if screen.is_dumb else None
    # On Windows, create_output raises an error if standard output is no console.
    return create_output(always_prefer_tty=True) if sys.platform != "win32" else PlainTextOutput(sys.stderr)


class _History(FileHistory):
    """Messages of earlier chats in a file, as far as it can be read and written."""

    def load_history_strings(self) -> Iterable[str]:
        try:
            return super().load_history_strings()
        except OSError:
            return []

    def store_string(self, string: str) -> None:
        with suppress(OSError):
            private_file(Path(os.fsdecode(self.filename)))
            super().store_string(string)

    def forget(self, messages: Collection[str]) -> None:
        """Remove messages, from the file too. Raises OSError."""
        all_texts = list(super().load_history_strings())  # the newest first
        kept = [text for text in all_texts if (block(text) or text).strip() not in messages]
        with replaced(Path(os.fsdecode(self.filename))) as unfinished:
            new = FileHistory(private_file(unfinished))
            for text in reversed(kept):
                new.store_string(text)
        self._loaded_strings = kept
