"""From messages to the text and the tokens of a prompt, by the model's own chat template."""

import re
from collections.abc import Mapping, Sequence
from datetime import date
from functools import cached_property
from typing import Any

from mink_local.errors import MinkError
from mink_local.generation.rendering import Renderer, TemplateError
from mink_local.llama.weights import Weights

Message = Mapping[str, str]

PLAIN_TURNS = {"system": "System: {}\n\n", "user": "User: {}\n", "assistant": "Assistant: {}\n"}
PLAIN_STOP = "\nUser:"
THINK = "<think>"


class ChatTemplate:
    """How a model wants a conversation written.

    A file without a template gets plain turns, `System: …`, `User: …`, `Assistant: …`, and an answer
    ends where it starts a user's turn of its own; `is_plain` says so.

    today: what a template that writes the date is told, by default the truth.
    can_think: the template knows of thoughts, `<think>…</think>` before an answer. has_think_switch: it has a
    switch that has the model answer without.
    """

    def __init__(self, weights: Weights, today: date | None = None) -> None:
        self._weights = weights
        source = weights.chat_template
        self.is_plain = source is None
        self._renderer = (
            None if source is None else Renderer(source, today, bos_token=weights.bos, eos_token=weights.eos)
        )
        self.can_think = source is not None and THINK in source
        self.has_think_switch = source is not None and "enable_thinking" in source

    @property
    def stop(self) -> tuple[str, ...]:
        """Strings that end an answer, besides the model's end-of-generation tokens."""
        return (PLAIN_STOP,) if self.is_plain else ()

    def tokens(self, messages: Sequence[Message], think: bool | None = None) -> list[int]:
        """The tokens of a prompt that asks for the next answer.

        think: what the template's switch is set to, where it has one; None leaves it alone.

        Control tokens that are typed in a message stay text: whoever writes `<|im_end|>` there
        changes nothing about the turns. Raises ValueError for messages that are none, MinkError
        where the template refuses them.
        """
        _check(messages)
        mark = _unused_character(messages)
        safe = [{**message, "content": self._break(message["content"], mark)} for message in messages]
        text = self._render(safe, **({} if think is None else {"enable_thinking": think}))
        # Split where a control token was broken up: no part has a whole one that a message brought.
        first, *rest = text.split(mark)
        tokens = self._weights.tokenize(first, add_special=self.is_plain, parse_special=True)
        for part in rest:
            tokens += self._weights.tokenize(part, add_special=False, parse_special=True)
        return tokens

    def opens_thought(self, prompt: Sequence[int]) -> bool:
        """Whether a prompt ends inside a thought that the template has begun."""
        end = b"".join(self._weights.piece(token) for token in prompt[-len(THINK) :])
        return end.rstrip().endswith(THINK.encode())

    def text(self, messages: Sequence[Message]) -> str:
        """The text of a prompt that asks for the next answer, for those who want no tokens: control tokens in
        messages are not told from the template's own. Raises as `tokens` does."""
        _check(messages)
        return self._render(messages)

    def _render(self, messages: Sequence[Message], **options: Any) -> str:
        if self._renderer is None:
            return _plain(messages)
        try:
            return self._renderer(messages, **options)
        except TemplateError as error:
            raise MinkError(f"the chat template of {self._weights.path} {error}") from None

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
