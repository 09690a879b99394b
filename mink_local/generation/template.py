"""Token ids of prompts: of messages by the model's own chat template, of texts, of token ids."""

import re
from collections.abc import Mapping, Sequence
from copy import deepcopy
from datetime import date as Date
from functools import cached_property
from typing import Any, cast

from mink_local.errors import MinkError
from mink_local.generation.reasoning import OPEN
from mink_local.generation.rendering import Renderer, TemplateError
from mink_local.generation.request import Message, Prompt, is_token_ids
from mink_local.llama.weights import Weights

PLAIN_TURNS = {"system": "System: {}\n\n", "user": "User: {}\n", "assistant": "Assistant: {}\n"}
PLAIN_STOP = "\nUser:"


class ChatTemplate:
    """The form in which a model wants conversations.

    A model without a template (`is_plain`) gets plain turns, `System: …`, `User: …`, `Assistant: …`, and an
    answer ends before it begins a user's turn of its own. A template that asks for the date is told `date`;
    None is today's.
    """

    def __init__(self, weights: Weights, date: Date | None = None) -> None:
        self._weights = weights
        source = weights.chat_template
        self.is_plain = source is None
        self._last: tuple[object, list[int]] | None = None  # the messages seen last, and their tokens
        self._renderer = (
            None
            if source is None
            else Renderer(
                source, date, in_process=weights.trust, bos_token=weights.bos, eos_token=weights.eos
            )
        )
        self.can_reason = source is not None and OPEN in source
        self.has_thinking_switch = source is not None and "enable_thinking" in source

    def stop(self, prompt: Prompt) -> tuple[str, ...]:
        """Return the strings that end an answer, besides the tokens that the model ends it with."""
        is_continued = isinstance(prompt, str) or is_token_ids(prompt)
        return (PLAIN_STOP,) if self.is_plain and not is_continued else ()

    def tokens(self, prompt: Prompt, enable_thinking: bool | None = None) -> list[int]:
        """Return the token ids of a prompt: messages, a text or token ids, as `Request` has them.

        A text gets the beginning that the vocabulary gives to texts, unless it is there. `enable_thinking` is
        for the template's switch; None leaves it alone. Raises ValueError if the prompt is empty or
        malformed, or has token ids that the vocabulary does not have; MinkError if the template refuses the
        messages.
        """
        if isinstance(prompt, str):
            has_bos = bool(self._weights.bos) and prompt.startswith(self._weights.bos)
            tokens = self._weights.tokenize(prompt, add_special=not has_bos, parse_special=True)
        elif is_token_ids(prompt):
            tokens = list(prompt)
        else:
            return self._of_messages(cast(Sequence[Message], prompt), enable_thinking)
        if not tokens:
            raise ValueError("the prompt is empty")
        if not 0 <= min(tokens) <= max(tokens) < self._weights.n_vocab:
            raise ValueError(f"the prompt's token ids must be from 0 to {self._weights.n_vocab - 1}")
        return tokens

    def _of_messages(self, messages: Sequence[Message], enable_thinking: bool | None) -> list[int]:
        """Return the token ids of messages; requests that follow each other often have the same ones."""
        asked = list(messages), enable_thinking
        if self._last is None or self._last[0] != asked:
            tokens = self._tokenized(messages, enable_thinking)
            self._last = deepcopy(asked), tokens  # a caller may append to its messages
        return list(self._last[1])

    def _tokenized(self, messages: Sequence[Message], enable_thinking: bool | None) -> list[int]:
        """Return the token ids of messages, in which typed control tokens stay text.

        `<|im_end|>` in a message changes nothing about the turns.
        """
        turns, prefill = _split_prefill(_as_text(messages))
        mark = _unused_character(turns)
        safe = [{**turn, "content": self._break(turn["content"], mark)} for turn in turns]
        text = self._render(safe, **({} if enable_thinking is None else {"enable_thinking": enable_thinking}))
        # Split where a control token was broken up: no part has a whole one that a message brought.
        first, *rest = text.split(mark)
        tokens = self._weights.tokenize(first, add_special=self.is_plain, parse_special=True)
        for part in rest:
            tokens += self._weights.tokenize(part, add_special=False, parse_special=True)
        return tokens + self._weights.tokenize(prefill, add_special=False, parse_special=False)

    def text(self, messages: Sequence[Message], enable_thinking: bool | None = None) -> str:
        """Return the text of a prompt that asks for the next answer.

        Control tokens in messages cannot be told from the template's own in it. Raises as `tokens` does.
        """
        turns, prefill = _split_prefill(_as_text(messages))
        options = {} if enable_thinking is None else {"enable_thinking": enable_thinking}
        return self._render(turns, **options) + prefill

    def opens_reasoning(self, prompt: Sequence[int]) -> bool:
        """Return whether a prompt ends with the start of reasoning."""
        end = b"".join(self._weights.piece(token) for token in prompt[-len(OPEN) :])
        return end.rstrip().endswith(OPEN.encode())

    def close(self) -> None:
        """End the child process that renders the template, if there is one."""
        if self._renderer is not None:
            self._renderer.close()

    def _render(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> str:
        if self._renderer is None:
            return _plain(messages)
        try:
            return self._renderer(messages, **options)
        except TemplateError as error:
            raise MinkError(f"the chat template of {self._weights.path} {error}") from None

    @cached_property
    def _control(self) -> re.Pattern[str]:
        return control_pattern(self._weights.control_tokens)

    def _break(self, content: str, mark: str) -> str:
        """Return `content` with `mark` after the first character of every control token in it."""
        as_text, as_tokens = (
            self._weights.tokenize(content, add_special=False, parse_special=parse) for parse in (False, True)
        )
        if as_text == as_tokens:  # nearly always, and then the vocabulary need not be searched
            return content
        return self._control.sub(rf"\1{mark}", content)


def control_pattern(texts: Sequence[str]) -> re.Pattern[str]:
    """Return a pattern that matches the first character of every control token of at least two."""
    # A lookahead, so that of overlapping control tokens each is found.
    longest_first = sorted((text for text in texts if len(text) > 1), key=len, reverse=True)
    if not longest_first:
        return re.compile("(?!)")
    return re.compile(f"(?=(?:{'|'.join(map(re.escape, longest_first))}))(.)", re.DOTALL)


def _as_text(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Return the messages with the text parts of each content joined."""
    if not messages:
        raise ValueError("there is no message to answer")
    return [{**message, "content": _content(message)} for message in messages]


def _content(message: Message) -> str:
    role, content = message.get("role"), message.get("content")
    if isinstance(role, str) and isinstance(content, str):
        return content
    if not isinstance(role, str) or not isinstance(content, list | tuple):
        raise ValueError(f"a message has a role and a content, both str: {message!r} does not")
    for part in content:
        if (
            not isinstance(part, Mapping)
            or part.get("type") != "text"
            or not isinstance(part.get("text"), str)
        ):
            raise ValueError(
                f'a part of a content is {{"type": "text", "text": str}}: {part!r} is not; images and sound '
                "are not supported"
            )
    return "".join(part["text"] for part in content)


def _split_prefill(turns: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], str]:
    """Split off the content of a last message of the assistant, which the answer continues."""
    if turns[-1]["role"] != "assistant":
        return turns, ""
    if len(turns) == 1:
        raise ValueError("there is no message to answer before the assistant's")
    return turns[:-1], turns[-1]["content"]


def _unused_character(messages: Sequence[Mapping[str, Any]]) -> str:
    """Return a character that no message has: the first free noncharacter or private one of Unicode."""
    used = set().union(*(message["content"] for message in messages))
    return next(c for c in map(chr, range(0xFDD0, 0x110000)) if c not in used)


def _plain(messages: Sequence[Mapping[str, Any]]) -> str:
    turns = (PLAIN_TURNS.get(m["role"], "User: {}\n").format(m["content"]) for m in messages)
    return "".join(turns) + "Assistant:"
