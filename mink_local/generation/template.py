"""Turns prompts into token ids: messages, rendered by the model's chat template, texts or token ids."""

import json
import re
from array import array
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import date as Date
from functools import cached_property, lru_cache, partial
from typing import Any, cast

from mink_local.errors import MinkError
from mink_local.generation.call_formats import CALL_TEXTS, marks_of
from mink_local.generation.rendering import Renderer, TemplateError
from mink_local.generation.request import Message, Prompt, Request, Tool, is_raw, is_token_ids
from mink_local.generation.text import THINK, ReasoningState
from mink_local.llama.weights import Weights

PLAIN_TURNS = (
    "{% for m in messages %}"
    "{% if m.role == 'system' %}{{ 'System: ' ~ m.content ~ '\\n\\n' }}"
    "{% elif m.role == 'assistant' %}{{ 'Assistant: ' ~ m.content ~ '\\n' }}"
    "{% else %}{{ 'User: ' ~ m.content ~ '\\n' }}{% endif %}"
    "{% endfor %}Assistant:"
)
PLAIN_STOP = "\nUser:"

_LONGEST_REMEMBERED = 1 << 20  # characters of messages and tools


class ChatTemplate:
    """The format in which a model expects conversations.

    A model without a template (`is_plain`) gets plain turns, `System: …`, `User: …`, `Assistant: …`, and its
    answer ends where it would start a user's turn. `date` is what templates get as today's date.
    """

    def __init__(self, weights: Weights, date: Date | None = None) -> None:
        self._weights = weights
        self.is_plain = weights.chat_template is None
        source = weights.chat_template or ""
        self._renderer = Renderer(
            PLAIN_TURNS if self.is_plain else source,
            date,
            bos_token=weights.bos,
            eos_token=weights.eos,
            in_process=weights.trust or self.is_plain,
        )
        self.can_reason = THINK in source
        self.has_thinking_switch = "enable_thinking" in source
        self.supports_tools = "tools" in source
        self.call_marks = marks_of(source)
        self._tokenizer = _MessageTokenizer(weights, self._renderer)
        self._remembered = lru_cache(maxsize=64)(self._tokenizer)

    def stop(self, prompt: Prompt) -> tuple[str, ...]:
        """Return the strings that end an answer, in addition to the model's own end tokens."""
        return (PLAIN_STOP,) if self.is_plain and not is_raw(prompt) else ()

    def tokens(
        self, prompt: Prompt, enable_thinking: bool | None = None, tools: Sequence[Tool] = ()
    ) -> list[int]:
        """Return the token ids of a prompt: messages, a text or token ids, as in `Request`.

        The vocabulary's beginning-of-text token is added to a text that lacks it. Messages that are far too
        long are truncated to slightly more tokens than any context holds. `enable_thinking` sets the
        template's switch; None leaves it alone. Raises ValueError if the prompt is empty or malformed, has
        token ids outside the vocabulary, or has tools that the template does not support; MinkError if the
        template refuses the messages.
        """
        if isinstance(prompt, str):
            has_bos = bool(self._weights.bos) and prompt.startswith(self._weights.bos)
            tokens = self._weights.tokenize(prompt, add_special=not has_bos, parse_special=True)
        elif is_token_ids(prompt):
            tokens = list(prompt)
        else:
            try:
                return self._of_messages(self._input(cast(Sequence[Message], prompt), enable_thinking, tools))
            except RecursionError:
                raise ValueError("the messages or tools are nested too deeply") from None
        if not tokens:
            raise ValueError("the prompt is empty")
        self._weights.require_ids("prompt", tokens)
        return tokens

    def text(
        self, messages: Sequence[Message], enable_thinking: bool | None = None, tools: Sequence[Tool] = ()
    ) -> str:
        """Return the text of a prompt that asks for the next answer.

        In this text, control tokens typed in messages look like the template's own. Errors as for `tokens`.
        """
        return "".join(self._tokenizer.render(self._input(messages, enable_thinking, tools)))

    def opens_reasoning(self, prompt: Sequence[int]) -> bool:
        """Return whether a prompt ends inside reasoning that it opens."""
        end = b"".join(self._weights.piece(token) for token in prompt[-len(THINK) :])
        return end.rstrip().endswith(THINK.encode())

    @cached_property
    def call_texts(self) -> dict[int, bytes]:
        """Texts of the control tokens that are part of calls in the chat template."""
        weights, source = self._weights, self._weights.chat_template or ""
        ids = {text: weights.tokenize(text, add_special=False, parse_special=True) for text in CALL_TEXTS}
        return {
            tokens[0]: text.encode()
            for text, tokens in ids.items()
            if text in source and len(tokens) == 1 and not weights.piece(tokens[0])
        }

    def reasoning_state(self, request: Request, prompt: Sequence[int]) -> ReasoningState:
        """Return where the answer to a request begins, given the prompt's token ids."""
        if self.opens_reasoning(prompt) and not request.params.has_grammar:  # grammars cover whole answers
            return "reasoning"
        return "start" if self.can_reason and not is_raw(request.prompt) else "text"

    def close(self) -> None:
        """End the child process that renders the template, if any."""
        self._renderer.close()

    def _of_messages(self, given: dict[str, Any]) -> list[int]:
        """Return the token ids for a template's input, cached: requests often have the same messages."""
        try:
            question = json.dumps(given, ensure_ascii=False)
        except TypeError as error:
            raise ValueError(f"messages and tools must be JSON values: {error}") from None
        if len(question) > _LONGEST_REMEMBERED:
            return self._tokenizer(question).tolist()
        return self._remembered(question, Date.today()).tolist()  # the prompt may contain the date

    def _input(
        self, messages: Sequence[Message], enable_thinking: bool | None, tools: Sequence[Tool]
    ) -> dict[str, Any]:
        """Return the template's input."""
        if tools and not self.supports_tools:
            raise ValueError("this chat template supports no tools: describe them in a system message")
        switch = {} if enable_thinking is None else {"enable_thinking": enable_thinking}
        return template_input(messages, tools) | switch


class _MessageTokenizer:
    """Tokenizes messages so that control tokens typed in them stay plain text.

    `<|im_end|>` in a message, a tool's description or a call's arguments does not end a turn.
    """

    def __init__(self, weights: Weights, renderer: Renderer) -> None:
        self._weights, self._renderer = weights, renderer

    def __call__(self, question: str, _: Date | None = None) -> "array[int]":
        """Return the token ids for the template's input, given as JSON."""
        given = json.loads(question)
        # Before rendering, a mark is put inside every control token; afterwards, the text is split at the
        # marks, so that no part contains a whole control token from a message. The mark is a noncharacter or
        # private-use character that no string contains.
        mark = next(c for c in map(chr, range(0xFDD0, 0x110000)) if c not in question)
        text, prefill = self.render(_map_strings(given, partial(self._marked, mark)))
        first, *rest = text.split(mark)
        tokens = self._tokenized(first, add_special=self._weights.chat_template is None)
        for part in rest:
            tokens += self._tokenized(part)
        return array("i", tokens + self._tokenized(prefill.replace(mark, ""), parse_special=False))

    def render(self, given: dict[str, Any]) -> tuple[str, str]:
        """Return the prompt's text, and the beginning of the answer."""
        turns, prefill = _split_prefill(given["messages"])
        try:
            return self._renderer(**{**given, "messages": turns}), prefill
        except TemplateError as error:
            raise MinkError(f"the chat template of {self._weights.path} {error}") from None

    def _tokenized(self, text: str, *, add_special: bool = False, parse_special: bool = True) -> list[int]:
        """Return the token ids of a text, or of its beginning if that alone is too long for any context.

        llama.cpp takes quadratic time for texts that the vocabulary spells as bytes: hours for 10 MB.
        """
        weights = self._weights
        if len(text) > weights.n_ctx_train:
            text = text[: (weights.n_ctx_train + 1) * weights.longest_token]
        return weights.tokenize(text, add_special=add_special, parse_special=parse_special)

    def _marked(self, mark: str, text: str) -> str:
        """Put a mark inside every control token of a text."""
        # To list a vocabulary's control tokens takes longer than to tokenize most messages.
        if any(map(self._weights.is_control, self._tokenized(text))):
            return self._control.sub(rf"\1{mark}", text)
        return text

    @cached_property
    def _control(self) -> re.Pattern[str]:
        return control_pattern(self._weights.control_tokens)


def control_pattern(texts: Sequence[str]) -> re.Pattern[str]:
    """Return a pattern for the first character of every control token of two or more characters."""
    # A lookahead, so that overlapping control tokens are all found.
    longest_first = sorted((text for text in texts if len(text) > 1), key=len, reverse=True)
    if not longest_first:
        return re.compile("(?!)")
    return re.compile(f"(?=(?:{'|'.join(map(re.escape, longest_first))}))(.)", re.DOTALL)


def template_input(messages: Sequence[Message], tools: Sequence[Tool]) -> dict[str, Any]:
    """Return the messages, and the tools if any, under the names that chat templates use.

    Text parts of a message's content are joined, None fields dropped, and arguments of tool calls parsed.
    Raises ValueError for malformed input.
    """
    if not messages:
        raise ValueError("there is no message to answer")
    if not all(isinstance(tool, Mapping) for tool in tools):
        raise ValueError("tools must be dicts as in OpenAI's API")
    found = {"messages": [_message(message) for message in messages]}
    return found | {"tools": [dict(tool) for tool in tools]} if tools else found


def _split_prefill(messages: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], str]:
    """Split off the content of a final assistant message, which the answer continues."""
    last = messages[-1]
    if last["role"] != "assistant":
        return messages, ""
    if "tool_calls" in last:
        raise ValueError("the last message calls tools: append a message with role tool for each call")
    if len(messages) == 1:
        raise ValueError("there is no message to answer before the assistant's")
    return messages[:-1], last["content"]


def _map_strings(value: Any, change: Callable[[str], str]) -> Any:
    """Return a JSON value with every string, keys included, changed."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, list):
        return [_map_strings(item, change) for item in value]
    if isinstance(value, dict):
        return {change(key): _map_strings(item, change) for key, item in value.items()}
    return value


def _message(message: Message) -> dict[str, Any]:
    checked = {name: value for name, value in message.items() if value is not None}
    if calls := checked.pop("tool_calls", None):
        checked["tool_calls"] = [_tool_call(call) for call in calls]
        checked.setdefault("content", "")
    content = checked.get("content")
    if isinstance(content, list | tuple):
        checked["content"] = content = "".join(map(_text_of, content))
    if not isinstance(checked.get("role"), str) or not isinstance(content, str):
        raise ValueError(f"a message needs role and content, both str, not {message!r}")
    return checked


def _text_of(part: Any) -> str:
    """Return the text of one part of a message's content."""
    text = part.get("text") if isinstance(part, Mapping) and part.get("type") == "text" else None
    if not isinstance(text, str):
        raise ValueError(
            f'a content part must be {{"type": "text", "text": str}} (no images, no sound), not {part!r}'
        )
    return text


def _tool_call(call: Any) -> dict[str, Any]:
    """Return a tool call with its arguments as an object, which templates serialize."""
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise ValueError(
            f'a tool call must have {{"function": {{"name": str, "arguments": …}}}}, not {call!r}'
        )
    arguments = function.get("arguments") or {}
    if isinstance(arguments, str):
        with suppress(ValueError, RecursionError):  # what is not JSON stays text
            arguments = json.loads(arguments)
    return {**call, "function": {**function, "arguments": arguments}}
