"""Turns prompts into token ids: messages, rendered by the model's chat template, texts or token ids."""

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import date as Date
from functools import cached_property, partial
from itertools import islice, pairwise
from typing import Any, cast

from mink_local.checks import check_types, shown
from mink_local.errors import OptionError, PromptError
from mink_local.generation.format.call_styles import (
    HERMES,
    CallStyle,
    as_text,
    one_call_each,
    with_instructions,
    with_written_calls,
)
from mink_local.generation.format.conventions import conventions_of
from mink_local.generation.format.derived import Taken, as_parts, with_reasoning
from mink_local.generation.format.harmony import HARMONY, splitter_of
from mink_local.generation.format.rendering import Renderer
from mink_local.generation.format.text import THINK, Marks, ReasoningSplitter, ReasoningState
from mink_local.generation.request import Message, Prompt, Request, Tool, is_raw, is_token_ids
from mink_local.llama.constants import check_template_kwargs
from mink_local.llama.library import C
from mink_local.llama.weights import Weights

PLAIN_TURNS = (
    "{% for m in messages %}"
    "{% if m.role == 'system' %}{{ 'System: ' ~ m.content ~ '\\n\\n' }}"
    "{% elif m.role == 'assistant' %}{{ 'Assistant: ' ~ m.content ~ '\\n' }}"
    "{% else %}{{ 'User: ' ~ m.content ~ '\\n' }}{% endif %}"
    "{% endfor %}Assistant:"
)
PLAIN_STOP = "\nUser:"


class ChatTemplate:
    """The format in which a model expects conversations.

    A model without a template (`is_plain`) gets plain turns, `System: …`, `User: …`, `Assistant: …`, and its
    answer ends where it would start a user's turn. `date` is what templates get as today's date, and `kwargs`
    are variables that they get unless a request sets them.
    """

    def __init__(
        self,
        weights: Weights,
        date: Date | None = None,
        kwargs: Mapping[str, Any] | None = None,
        style: CallStyle | None = None,
        marks: Marks | None = None,
        *,
        source: str | None = None,
    ) -> None:
        self.kwargs = dict(kwargs or {})
        self._weights = weights
        self._source = source or weights.chat_template or ""
        self.is_plain = not self._source
        self._renderer = Renderer(
            self._source or PLAIN_TURNS,
            date,
            bos_token=weights.bos,
            eos_token=weights.eos,
            in_process=weights.trust or self.is_plain,
        )
        self.conventions = conventions_of(self._renderer, self._source, style, marks)
        self.marks, self.style = self.conventions.reasoning.marks, self.conventions.style
        self.form = self.conventions.form
        if _WRITES_FENCES.search(weights.path.stem):  # whatever its template teaches
            self.form = self.form._replace(allows_bare=True)
        self._for_tools: ChatTemplate | None = None
        if source is None and weights.tool_template:
            self._for_tools = ChatTemplate(weights, date, kwargs, style, marks, source=weights.tool_template)

    def suiting(self, tools: Sequence[Tool]) -> "ChatTemplate":
        """Return the template for a request: some files have another one for those with tools."""
        return self.for_tools if tools else self

    @property
    def for_tools(self) -> "ChatTemplate":
        """The template for requests with tools."""
        return self._for_tools or self

    @property
    def can_reason(self) -> bool:
        """Whether the template shows that the model reasons."""
        return self.conventions.reasoning.is_known

    @property
    def has_thinking_switch(self) -> bool:
        """Whether the template can turn reasoning on and off."""
        return self.conventions.reasoning.switch is not None

    @property
    def supports_tools(self) -> bool:
        """Whether the template shows tools to the model."""
        return "tools" in self.for_tools._source

    def stop(self, prompt: Prompt) -> tuple[str, ...]:
        """Return the strings that end an answer, in addition to the model's own end tokens."""
        return (PLAIN_STOP,) if self.is_plain and not is_raw(prompt) else ()

    def tokens(
        self,
        prompt: Prompt,
        enable_thinking: bool | None = None,
        tools: Sequence[Tool] = (),
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """Return the token ids of a prompt: messages, a text or token ids, as in `Request`.

        The vocabulary's beginning-of-text token is added to a text that lacks it. Messages that are far too
        long are truncated to slightly more tokens than any context holds. `enable_thinking` sets the
        template's switch; None leaves it alone. Raises ValueError if the prompt is empty or malformed, has
        token ids outside the vocabulary, or for variables that the template gets from elsewhere; MinkError if
        it refuses the messages.
        """
        if isinstance(prompt, str):
            # llama.cpp takes quadratic time for control tokens: so many at a time.
            found = self._markup[1].finditer(prompt) if len(prompt) > _AT_A_TIME else ()
            cuts = [match.start() for match in found][_AT_A_TIME::_AT_A_TIME]
            tokens = self._tokens_of(
                (prompt[begin:end] for begin, end in pairwise([0, *cuts, len(prompt)])),
                add_special=not (self._weights.bos and prompt.startswith(self._weights.bos)),
            )
        elif is_token_ids(prompt):
            tokens = self._weights.ids("prompt", prompt)
        else:
            try:
                messages = cast(Sequence[Message], prompt)
                return self._of_messages(self._input(messages, enable_thinking, tools, template_kwargs))
            except RecursionError:
                raise PromptError("the messages or tools are nested too deeply") from None
        if not tokens:
            raise PromptError("the prompt is empty")
        return tokens

    def text(
        self,
        messages: Sequence[Message],
        enable_thinking: bool | None = None,
        tools: Sequence[Tool] = (),
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> str:
        """Return the text of a prompt that asks for the next answer.

        In this text, markup typed in messages looks like the template's own. Errors as for `tokens`.
        """
        given = self._input(messages, enable_thinking, tools, template_kwargs)
        turns, prefill = _split_prefill(given["messages"])
        rendered = self._rendered({**given, "messages": turns})
        return rendered + "".join(self._prefill(prefill, self._opens(rendered)))

    def opens_reasoning(self, prompt: Sequence[int], answer: str = "") -> bool:
        """Return whether a prompt, before the beginning of an answer in it, ends by opening reasoning."""
        n = len(answer.encode())
        last = prompt[-len(self.marks.start) - n :]
        end = b"".join(self.texts.get(token) or self._weights.piece(token) for token in last)
        return self._opens(end[: len(end) - n].decode(errors="replace"))

    def _opens(self, prompt: str) -> bool:
        return prompt.rstrip().endswith(self.marks.start.rstrip())

    @cached_property
    def texts(self) -> dict[int, bytes]:
        """Texts of the control tokens without any that stand around reasoning and content."""
        marks = self.marks
        written = "".join((marks.start, marks.closing, marks.text, *marks.frame))
        return self._texts_of(text for text in self._weights.control_tokens if text and text in written)

    @cached_property
    def call_texts(self) -> dict[int, bytes]:
        """Texts of the control tokens that are part of calls in the chat template."""
        style = self.style or HERMES
        written = "".join(str(value) for value in vars(style).values())
        return self._texts_of(text for text in self._weights.control_tokens if text and text in written)

    def _texts_of(self, texts: Iterable[str]) -> dict[int, bytes]:
        """Return those of some texts that are each a token without a text, by its id."""
        tokenize, piece = self._weights.tokenize, self._weights.piece
        ids = {text: tokenize(text, add_special=False, parse_special=True) for text in texts}
        return {ids[0]: text.encode() for text, ids in ids.items() if len(ids) == 1 and not piece(ids[0])}

    def reasoning(self, request: Request, prompt: Sequence[int]) -> tuple[ReasoningSplitter, str]:
        """Return what separates the reasoning of an answer to a request, given the prompt's token ids.

        The beginning of an answer that the last message is, is returned too: the splitter reads it first.
        """
        has_messages = not is_raw(request.prompt)
        last = _message(cast(Message, request.prompt[-1])) if has_messages else {"role": "user"}
        message = last if last["role"] == "assistant" else None
        begun = "".join(self._prefill(message, opened=True))
        is_opened = self.opens_reasoning(prompt, begun)
        begun = begun if is_opened else "".join(self._prefill(message, opened=False))
        may_reason = has_messages or begun.lstrip().startswith(THINK)
        state: ReasoningState = "reasoning" if is_opened else "start" if may_reason else "text"
        is_expected = self.can_reason or begun.lstrip().startswith(THINK)
        splitter = splitter_of(self.marks, state, is_expected=is_expected)
        splitter.follows_tag = is_opened and not begun
        return splitter, begun

    def close(self) -> None:
        """End the child process that renders the template, if any."""
        self._renderer.close()
        if self._for_tools:
            self._for_tools.close()

    def _input(
        self,
        messages: Sequence[Message],
        enable_thinking: bool | None,
        tools: Sequence[Tool],
        template_kwargs: Mapping[str, Any] | None,
    ) -> dict[str, Any]:
        """Return the template's input."""
        check_types(enable_thinking=(enable_thinking, bool | None), tools=(tools, list | tuple))
        check_template_kwargs(template_kwargs or {})
        kwargs = {**self.kwargs, **(template_kwargs or {})}
        if enable_thinking and not self.has_thinking_switch:
            raise OptionError("enable_thinking", "cannot be True: the chat template has no such switch")
        on_off = self.conventions.reasoning.switch
        switch = {} if enable_thinking is None or on_off is None else on_off[not enable_thinking]
        given = template_input(messages, tools, self.style, self.conventions.taken)
        return given | kwargs | dict(switch)

    def _of_messages(self, given: dict[str, Any]) -> list[int]:
        """Return the token ids for a template's input, in which markup that others typed stays plain text.

        `<|im_end|>` in a message, a tool's description or a call's arguments does not end a turn.
        """
        given = _map_strings(given, self.beginning)
        try:
            text = json.dumps(given, ensure_ascii=False)
        except TypeError as error:
            raise PromptError(f"messages, tools and template_kwargs must be JSON values: {error}") from None
        # Before rendering, a mark is put inside every token of markup; afterwards, the text is split at the
        # marks, so that no part contains a whole such token from a message. The mark is a noncharacter or
        # private-use character that no string contains.
        mark = next(c for c in map(chr, range(0xFDD0, 0x110000)) if c not in text)
        turns, prefill = _split_prefill(given["messages"])
        typed, own = (partial(pattern.sub, rf"\g<0>{mark}") for pattern in self._markup)
        marked = _map_strings({**given, "messages": turns}, typed)
        for turn, changed in zip(turns, marked["messages"], strict=True):
            if turn["role"] == "assistant":  # templates look for the tags that the model itself wrote
                changed |= {name: own(turn[name]) for name in _OWN if isinstance(turn.get(name), str)}
        rendered = self._rendered(marked)
        tokens = self._tokens_of(map(self.beginning, rendered.split(mark)), add_special=self.is_plain)
        for i, part in enumerate(self._prefill(prefill, self._opens(rendered))):
            tokens += self._weights.tokenize(
                self.beginning(part), add_special=False, parse_special=i % 2 == 1
            )
        return tokens

    def _rendered(self, given: dict[str, Any]) -> str:
        """Return a template's text for an input, whose contents are texts."""
        roles, taken = self.conventions.roles_with_parts, self.conventions.taken
        if roles is None:
            raise OptionError("chat_template", "shows nothing of what users write: use another one")
        if taken and taken.has_parts:
            roles |= {"tool"}
        turns = [
            {**turn, "content": as_parts(turn["content"])}
            if turn["role"] in roles and isinstance(turn["content"], str)
            else turn
            for turn in map(self._with_reasoning, given["messages"])
        ]
        return self._renderer(**{**given, "messages": turns})

    def _with_reasoning(self, message: dict[str, Any]) -> dict[str, Any]:
        """Return a message with its reasoning under the name that the template has for it."""
        found, taken = dict(message), self.conventions.reasoning
        if not (reasoning := found.pop("reasoning_content", "")):
            return message
        if self.marks is HARMONY and found["content"] and "tool_calls" in found:  # it refuses both
            reasoning, found["content"] = f"{reasoning}\n\n{found['content']}", ""
        return with_reasoning(found, taken.field, reasoning)

    def _prefill(self, message: Mapping[str, Any] | None, opened: bool) -> list[str]:
        """Return the beginning of an answer, alternately as a message has it and with marks around it.

        Args:
            message: A final message of the assistant's, if there is one.
            opened: Whether the template has opened the reasoning: it ends where a text begins.
        """
        given, marks = message or {"content": ""}, self.marks
        reasoning, text = given.get("reasoning_content") or "", given["content"]
        start, end = marks.start.strip(), marks.end.strip()
        if reasoning:
            return ["", "" if opened else marks.start, reasoning, marks.closing if text else "", text]
        is_marked = end in text or text.lstrip().startswith((start, THINK))
        if not text.strip() or is_marked:
            return ["", "", text]
        return ["", marks.closing if opened else marks.text, text]

    def _tokens_of(self, parts: Iterable[str], add_special: bool) -> list[int]:
        """Return the token ids of a text in parts; what the vocabulary adds to texts comes with the first."""
        tokens: list[int] = []
        for part in parts:
            tokens += self._weights.tokenize(part, add_special=add_special, parse_special=True)
            add_special = False
        return tokens

    def beginning(self, text: str) -> str:
        """Return a text, or its beginning if that alone is too long for any context.

        llama.cpp takes quadratic time for control tokens, and for texts that the vocabulary spells as bytes:
        hours for 10 MB.
        """
        most = self._weights.n_ctx_train + 1
        if len(text) < most:
            return text
        text = text[: most * self._weights.longest_token]
        beyond = next(islice(self._markup[1].finditer(text), most, None), None)
        return text[: beyond.start()] if beyond else text

    @cached_property
    def _markup(self) -> tuple[re.Pattern[str], re.Pattern[str]]:
        """Patterns for markup that others type, and for that which the model's own text cannot have."""
        weights = self._weights
        source = self._source.replace("</", "<")
        defined = [
            text
            for text in weights.user_defined_tokens
            if text.replace("</", "<") in source or not _ORDINARY.fullmatch(text)
        ]
        return markup_pattern([*weights.control_tokens, *defined]), markup_pattern(weights.control_tokens)


_AT_A_TIME = 1000
_WRITES_FENCES = re.compile(r"(?i)qwen2\.?5.?coder")
_OWN = ("content", "reasoning_content")
# Spaces and HTML are user-defined tokens in some vocabularies, and text like any other.
_ORDINARY = re.compile(r"[\s▁]*|</?\w+>")


def infill(weights: Weights, prefix: str, suffix: str) -> str:
    """Return the prompt, a raw text, for what belongs between two texts.

    Raises:
        ValueError: The vocabulary has no tokens for this.
    """
    find = (C.llama_vocab_fim_pre, C.llama_vocab_fim_suf, C.llama_vocab_fim_mid)
    begin, gap, end = (weights.token_text(token(weights.vocab)) for token in find)
    if not (begin and gap and end):
        raise PromptError(
            "the vocabulary of this model has no fill-in-the-middle tokens: "
            "put the text after the gap into the prompt"
        )
    return f"{begin}{prefix}{gap}{suffix}{end}"


def markup_pattern(texts: Iterable[str]) -> re.Pattern[str]:
    """Return a pattern for the first character of every text of two or more characters."""
    rests: dict[str, list[str]] = {}
    for text in sorted(texts, key=len, reverse=True):
        if len(text) > 1:
            rests.setdefault(text[0], []).append(re.escape(text[1:]))
    # A lookahead, so that overlapping ones are all found.
    starts = [f"{re.escape(first)}(?={'|'.join(others)})" for first, others in rests.items()]
    return re.compile("|".join(starts) or "(?!)")


def template_input(
    messages: Sequence[Message],
    tools: Sequence[Tool],
    style: CallStyle | None = None,
    taken: Taken | None = None,
) -> dict[str, Any]:
    """Return the messages, and the tools if any, under the names that chat templates use.

    Text parts of a message's content are joined, None fields dropped, and tool calls written as the template
    takes them: most want arguments parsed. What it does not take becomes text, in Hermes's style without
    another. Raises ValueError for malformed input.
    """
    if not isinstance(messages, list | tuple) or not all(isinstance(each, Mapping) for each in messages):
        raise PromptError(f"messages must be a text or a list of messages (dicts), not {shown(messages)}")
    if not messages:
        raise PromptError("there is no message to answer")
    found = [_message(message, taken) for message in messages]
    if "tool_calls" in found[-1]:
        raise PromptError("the last message calls tools: append a message with role tool for each call")
    style = style or HERMES
    if taken is None:
        return {"messages": as_text(found, tools, style)}
    if taken.arguments == "no":
        found = [with_written_calls(message, style) for message in found]
    found = [*one_call_each(found)] if style.separator is None else found
    if tools and not taken.shows_tools:
        return {"messages": with_instructions(found, tools, style)}
    return {"messages": found} | ({"tools": [dict(tool) for tool in tools]} if tools else {})


def _split_prefill(messages: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], dict[str, Any] | None]:
    """Split off a final message of the assistant's, which the answer continues."""
    if messages[-1]["role"] != "assistant":
        return messages, None
    if len(messages) == 1:
        raise PromptError("there is no message to answer before the assistant's")
    return messages[:-1], messages[-1]


def _map_strings(value: Any, change: Callable[[str], str]) -> Any:
    """Return a JSON value with every string, keys included, changed."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, list):
        return [_map_strings(item, change) for item in value]
    if isinstance(value, dict):
        return {change(key): _map_strings(item, change) for key, item in value.items()}
    return value


def _message(message: Message, taken: Taken | None = None) -> dict[str, Any]:
    checked = {name: value for name, value in message.items() if value is not None}
    if calls := checked.pop("tool_calls", None):
        checked["tool_calls"] = [_tool_call(call, taken) for call in calls]
        checked.setdefault("content", "")
    if taken and "tool_call_id" in checked:
        checked["tool_call_id"] = taken.id_of(checked["tool_call_id"])
    content = checked.get("content")
    if isinstance(content, list | tuple):
        checked["content"] = content = "".join(map(_text_of, content))
    if not isinstance(checked.get("role"), str) or not isinstance(content, str):
        raise PromptError(f"a message needs role and content, both str, not {message!r}")
    if not isinstance(checked.get("reasoning_content", ""), str):
        raise PromptError(f"a message's reasoning_content must be a str, not {message!r}")
    return checked


def _text_of(part: Any) -> str:
    """Return the text of one part of a message's content."""
    text = part.get("text") if isinstance(part, Mapping) and part.get("type") == "text" else None
    if not isinstance(text, str):
        raise PromptError(
            f'a content part must be {{"type": "text", "text": str}} (no images, no sound), not {part!r}'
        )
    return text


def _arguments(given: Any) -> Mapping[str, Any]:
    """Return the arguments of a call as an object; text that is none is marked as such for the model."""
    if isinstance(given, str):
        with suppress(ValueError, RecursionError):
            found = json.loads(given.strip() or "null")
            if isinstance(found, dict | None):
                return found or {}
        return {"invalid_arguments": given}
    if not isinstance(given, Mapping | None):
        raise PromptError(f"the arguments of a tool call must be an object, or JSON text, not {given!r}")
    return given or {}


def _tool_call(call: Any, taken: Taken | None) -> dict[str, Any]:
    """Return a tool call as the template takes it."""
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise PromptError(
            f'a tool call must have {{"function": {{"name": str, "arguments": …}}}}, not {call!r}'
        )
    arguments: Any = _arguments(function.get("arguments") or {})
    if taken and taken.arguments == "text":
        arguments = json.dumps(arguments, ensure_ascii=False)
    written = {**call, "function": {**function, "arguments": arguments}}
    return {**written, "id": taken.id_of(call["id"])} if taken and "id" in call else written
