"""From messages to the text and the tokens of a prompt, by the model's own chat template."""

import re
from collections.abc import Mapping, Sequence
from functools import cached_property

from llama_cpp.llama_chat_format import Jinja2ChatFormatter

from mink_local.errors import MinkError
from mink_local.llamacpp import Weights

Message = Mapping[str, str]

PLAIN_TURNS = {"system": "System: {}\n\n", "user": "User: {}\n", "assistant": "Assistant: {}\n"}
PLAIN_STOP = "\nUser:"


class ChatTemplate:
    """How a model wants a conversation written.

    A file without a template gets plain turns, `System: …`, `User: …`, `Assistant: …`, and an answer
    ends where it starts a user's turn of its own; `is_plain` says so.
    """

    def __init__(self, weights: Weights) -> None:
        self._weights = weights
        self.is_plain = weights.chat_template is None

    @property
    def stop(self) -> tuple[str, ...]:
        """Strings that end an answer, besides the model's end-of-generation tokens."""
        return (PLAIN_STOP,) if self.is_plain else ()

    def tokens(self, messages: Sequence[Message]) -> list[int]:
        """The tokens of a prompt that asks for the next answer.

        Control tokens that are typed in a message stay text: whoever writes `<|im_end|>` there
        changes nothing about the turns. Raises ValueError for messages that are none, MinkError
        where the template refuses them.
        """
        _check(messages)
        mark = _unused_character(messages)
        safe = [{**message, "content": self._break(message["content"], mark)} for message in messages]
        text = _plain(safe) if self.is_plain else self._render(safe)
        # Split where a control token was broken up: no part has a whole one that a message brought.
        first, *rest = text.split(mark)
        tokens = self._weights.tokenize(first, add_special=self.is_plain, parse_special=True)
        for part in rest:
            tokens += self._weights.tokenize(part, add_special=False, parse_special=True)
        return tokens

    def text(self, messages: Sequence[Message]) -> str:
        """The text of a prompt that asks for the next answer, for those who want no tokens: control tokens in
        messages are not told from the template's own. Raises as `tokens` does."""
        _check(messages)
        return _plain(messages) if self.is_plain else self._render(messages)

    @cached_property
    def _formatter(self) -> Jinja2ChatFormatter:
        weights = self._weights
        try:
            return Jinja2ChatFormatter(weights.chat_template, weights.eos, weights.bos)
        except Exception as error:  # Jinja is a stranger's program here
            raise MinkError(f"the chat template of {weights.path} is broken: {error}") from error

    def _render(self, messages: Sequence[Message]) -> str:
        try:
            return str(self._formatter(messages=list(messages)).prompt)
        except MinkError:
            raise
        except Exception as error:
            raise MinkError(
                f"the chat template of {self._weights.path} refuses this conversation: {error}"
            ) from error

    @cached_property
    def _control(self) -> re.Pattern[str]:
        # A lookahead, so that of overlapping control tokens each is found.
        texts = sorted((t for t in self._weights.control_tokens if len(t) > 1), key=len, reverse=True)
        return re.compile(f"(?=(?:{'|'.join(map(re.escape, texts))}))(.)" if texts else "(?!)", re.S)

    def _break(self, content: str, mark: str) -> str:
        """`content` with `mark` after the first character of every control token in it."""
        as_text, as_tokens = (
            self._weights.tokenize(content, add_special=False, parse_special=parse) for parse in (False, True)
        )
        if as_text == as_tokens:  # nearly always, and then the vocabulary need not be searched
            return content
        return self._control.sub(rf"\1{mark}", content)


def _check(messages: Sequence[Message]) -> None:
    if not messages:
        raise ValueError("there is no message to answer")
    for message in messages:
        if not isinstance(message.get("role"), str) or not isinstance(message.get("content"), str):
            raise ValueError(f"a message has a role and a content, both str: {message!r} does not")


def _unused_character(messages: Sequence[Message]) -> str:
    """A character that no message has: the first free noncharacter or private one of Unicode."""
    used = set().union(*(message["content"] for message in messages))
    return next(c for c in map(chr, range(0xFDD0, 0x110000)) if c not in used)


def _plain(messages: Sequence[Message]) -> str:
    turns = (PLAIN_TURNS.get(m["role"], "User: {}\n").format(m["content"]) for m in messages)
    return "".join(turns) + "Assistant:"
