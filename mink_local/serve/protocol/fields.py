"""Requests as clients send them: types, ranges and limits, checked while the JSON is decoded.

Fields of OpenAI's that have no use here (`user`, `store`, `metadata`, …) are ignored silently, unsupported
sampling fields are ignored and reported, and unsupported constraints are refused.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Annotated, Any, ClassVar, Literal, TypeVar

import msgspec
from msgspec import Meta, Struct

from mink_local.llama.constants import TEMPLATE_NAMES
from mink_local.samplers import SAMPLERS
from mink_local.sandbox import in_a_line
from mink_local.serve.protocol.responses import ApiError

MAX_TOKENS = 2**31 - 1
MAX_ANSWERS = 128  # of one request: prompts times n
MAX_BIAS = 1024
MAX_SCHEMA_DEPTH = 32
MAX_SCHEMA_NODES = 5_000
MAX_TEXT_CHARACTERS = 1 << 20  # to tokenize

Count = Annotated[int, Meta(ge=0, le=MAX_TOKENS)]
CountOrRest = Annotated[int, Meta(ge=-1, le=MAX_TOKENS)]  # -1: as many as there is room for
TokenId = Annotated[int, Meta(ge=0, le=MAX_TOKENS)]
TokenIds = Annotated[list[TokenId], Meta(max_length=MAX_TOKENS)]
TopLogprobsCount = Annotated[int, Meta(ge=0, le=20)]
StopString = Annotated[str, Meta(max_length=1024)]
Grammar = Annotated[str, Meta(max_length=65_536)]  # GBNF
Pattern = Annotated[str, Meta(max_length=4096)]  # a regular expression
Choices = Annotated[list[StopString], Meta(max_length=1024)]
LongText = Annotated[str, Meta(max_length=MAX_TEXT_CHARACTERS)]
Breaker = Annotated[str, Meta(max_length=40)]  # llama.cpp reads no more
Name = Annotated[str, Meta(min_length=1, max_length=256)]
ToolName = Annotated[str, Meta(pattern="^[a-zA-Z0-9_.-]{1,256}$")]
Schema = dict[str, Any]
SchemaOrText = Schema | Annotated[str, Meta(max_length=65_536)]

ALIASES = {
    "max_tokens": ("max_completion_tokens", "max_output_tokens", "max_tokens", "n_predict"),
    "stop": ("stop_sequences", "stop"),
    "repeat_penalty": ("repeat_penalty", "repetition_penalty"),
    "reasoning_budget": ("reasoning_budget", "thinking_budget_tokens", "thinking.budget_tokens"),
    "reasoning_effort": ("reasoning_effort", "reasoning.effort"),
    "add_special": ("add_special", "add_special_tokens"),
    "json_schema": (
        "response_format", "text.format", "output_config.format", "json_schema", "guided_json",
        "structured_outputs.json", "format",
    ),
    "grammar": ("grammar", "guided_grammar", "structured_outputs.grammar"),
    "choice": ("choice", "guided_choice", "structured_outputs.choice"),
    "regex": ("regex", "guided_regex", "structured_outputs.regex"),
}  # fmt: skip
"""The names that clients have for a field, as paths; the first that is given wins."""

_FORMS = ("json_schema", "grammar", "choice", "regex")  # of an answer: at most one, under one name
_OTHER_NAMES = {path.partition(".")[0] for paths in ALIASES.values() for path in paths} - ALIASES.keys()

_OFF_AT_0 = (
    "diversity_penalty", "early_stopping", "epsilon_cutoff", "eta_cutoff", "min_keep", "no_repeat_ngram_size",
    "penalty_alpha", "sampler_order", "sampler_priority", "smoothing_factor", "temperature_last",
    "use_beam_search", "vllm_xargs",
)  # fmt: skip
_OFF_AT_1 = ("best_of", "length_penalty", "num_beams", "smoothing_curve", "tfs", "tfs_z", "typical")
UNSUPPORTED = dict.fromkeys(_OFF_AT_0, 0) | dict.fromkeys(_OFF_AT_1, 1)
"""Sampling fields of other servers that are ignored here, each with its neutral value.

Others are reported to the client.
"""

REFUSED = {
    "allowed_token_ids": "use grammar",
    "bad_words": "use logit_bias",
    "bad_words_ids": "use logit_bias",
    "banned_strings": "use logit_bias",
    "banned_tokens": "use logit_bias",
    "chat_template": "the model's own template is used",
    "ebnf": "use grammar",
    "force_words_ids": "use grammar",
    "function_call": "use tool_choice",
    "functions": "use tools",
    "guided_decoding": "use json_schema or grammar",
    "mcp_servers": "offer their tools as functions and call them yourself",
    "structural_tag": "use tools",
    "web_search_options": "offer a function that searches",
}
"""Fields that change what an answer may contain and are not supported, with what to use instead."""

TEXT_ONLY = "this server reads text only, so leave the part out or describe it as text"
NO_TOOLS = "this server has no tools of its own, so switch it off, or offer a function"
TEXT_FORMATS = "use text, json_object or json_schema"

NOT_GIVEN: tuple[Any, ...] = (None, "", [], {})
"""Values of unsupported fields that ask for nothing."""


class Fields(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Base class of what a client sends; a field that is null or absent is None."""

    instead: ClassVar[dict[str, str]] = {}  # by path: what to do about a value that only others have

    def require(self, *names: str) -> None:
        """Raise ValueError, which msgspec reports with the path, for the first of the fields that is None."""
        for name in names:
            if getattr(self, name) is None:
                raise ValueError(f"{name} is missing")


class ContentPart(Fields, frozen=True):
    """A part of a message's content: a text, or an assistant's refusal, which is one too."""

    type: Literal["text", "refusal"]
    text: str | None = None
    refusal: str | None = None

    def __post_init__(self) -> None:
        if self.content is None:
            raise ValueError(f"{self.type} is missing")

    @property
    def content(self) -> str | None:
        """The text."""
        return self.text if self.type == "text" else self.refusal


class CalledFunction(Fields, frozen=True):
    """A function and the arguments with which the model called it, as JSON text or as an object."""

    name: Name
    arguments: str | dict[str, Any]


class ToolCall(Fields, frozen=True, kw_only=True, omit_defaults=False):
    """A call in an assistant's message."""

    id: str | None = None
    type: Literal["function"] = "function"
    function: CalledFunction


class ChatMessage(Fields, frozen=True):
    """A message of a conversation.

    Attributes:
        role: `developer` is the same as `system`.
        content: Required unless the role is `assistant`.
        name: The name of the tool whose result this is.
        tool_calls: The calls that the assistant made.
        tool_call_id: The call whose result this is.
        reasoning_content: The assistant's reasoning.
        reasoning: The same as `reasoning_content`.
    """

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | Annotated[list[ContentPart], Meta(max_length=1024)] | None = None
    name: str | None = None
    tool_calls: Annotated[list[ToolCall], Meta(max_length=128)] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None

    def __post_init__(self) -> None:
        if self.role != "assistant":
            self.require("content")

    def for_template(self) -> dict[str, Any]:
        """Return the message for a chat template: its content is a text."""
        message: dict[str, Any] = msgspec.to_builtins(self)
        if self.role == "developer":
            message["role"] = "system"
        parts = self.content if isinstance(self.content, list) else ()
        message["content"] = self.content or "" if not parts else "".join(str(part.content) for part in parts)
        if reasoning := message.pop("reasoning", None):
            message.setdefault("reasoning_content", reasoning)
        return message


class FunctionDefinition(Fields, frozen=True):
    """A function that the model may call.

    Attributes:
        parameters: A JSON schema of type `object`.
    """

    name: ToolName
    description: str | None = None
    parameters: Schema | None = None


class FunctionTool(Fields, frozen=True, kw_only=True, omit_defaults=False):
    """A tool that the model may call; only functions are supported."""

    type: Literal["function"] = "function"
    function: FunctionDefinition


class NamedFunction(Fields, frozen=True):
    """The name of a function."""

    name: Name


class NamedToolChoice(Fields, frozen=True):
    """The tool that the model must call."""

    function: NamedFunction
    type: Literal["function"] = "function"


class AnswerFormat(Fields, frozen=True):
    """The form of an answer: any text, any JSON object, or JSON that conforms to a schema.

    Attributes:
        schema: The JSON schema; required for `json_schema`.
    """

    type: Literal["text", "json_object", "json_schema"]
    schema: Schema | None = None

    def __post_init__(self) -> None:
        if self.type == "json_schema":
            self.require("schema")

    @property
    def answer_schema(self) -> Schema | None:
        """The JSON schema of the answer; None for text."""
        return None if self.type == "text" else self.schema or {"type": "object"}

    @property
    def place(self) -> str:
        """Where that schema is."""
        return "schema"


class JsonSchemaFormat(Fields, frozen=True):
    """A JSON schema."""

    schema: Schema


class ResponseFormat(AnswerFormat, frozen=True):
    """The form of an answer: any text, any JSON object, or JSON that conforms to a schema.

    Attributes:
        schema: For `json_object`: the object's JSON schema.
        json_schema: Required for `json_schema`.
    """

    json_schema: JsonSchemaFormat | None = None

    def __post_init__(self) -> None:
        if self.type == "json_schema":
            self.require("json_schema")

    @property
    def answer_schema(self) -> Schema | None:
        if self.type == "json_schema" and self.json_schema is not None:
            return self.json_schema.schema
        return super().answer_schema

    @property
    def place(self) -> str:
        return "json_schema.schema" if self.type == "json_schema" else "schema"


class StructuredOutputs(Fields, frozen=True):
    """The form of an answer, as in vLLM; one of these.

    Attributes:
        json: A JSON schema, also as text.
        choice: The possible answers.
        grammar: A grammar in llama.cpp's GBNF.
        regex: A regular expression that the whole answer matches.
    """

    json: SchemaOrText | None = None
    choice: Choices | None = None
    grammar: Grammar | None = None
    regex: Pattern | None = None


class StreamOptions(Fields, frozen=True):
    """Options of a stream.

    Attributes:
        include_usage: Whether a last chunk has `usage` and `timings`.
    """

    include_usage: bool | None = None


class ReasoningOptions(Fields, frozen=True):
    """Options for the reasoning before an answer.

    Attributes:
        effort: `none` switches reasoning off, anything else on.
    """

    effort: str | None = None


class SamplingFields(Fields, frozen=True):
    """The fields that chat and completion requests have in common.

    Attributes:
        model: A model id; by default the model without a preset.
        stream: Whether to send the answer as server-sent events.
        n: Number of answers; their seeds are consecutive.
        seed: 0 to 2^32 - 2, or -1 for a random one. The same seed gives the same answer as long as no other
            requests run meanwhile.
        stop: Strings that end the answer and are not part of it.
        stop_token_ids: Tokens that end the answer and are not part of it.
        ignore_eos: Generate until `max_tokens`, past the tokens that end an answer.
        max_tokens: Maximum length of the answer in tokens; -1 is the rest of the context.
        max_completion_tokens: The same as `max_tokens`, and wins over it.
        n_predict: The same as `max_tokens`.
        min_tokens: Minimum length of the answer in tokens.
        reasoning_budget: Maximum length of the reasoning in tokens, then its end is forced; 0: no reasoning;
            -1: no limit.
        thinking_budget_tokens: The same as `reasoning_budget`.
        return_tokens: Whether choices have `tokens`.
        temperature: Applied to the candidates that the sampler keeps; 0 is greedy. There is no upper bound.
        sampler: A sampler such as `min-k:tau=3`; it wins over the samplers' own fields.
        samplers: The order in which samplers act, as in llama-server: `["top_k", "typ_p", "temperature"]`.
            Cuts that are not listed are left out; Min-k comes first then.
        min_k: Use Min-k, with `min_k_tau` and `min_k_floor`.
        logit_bias: By token id, or a list of pairs of token id or text and bias, as in llama-server; -100 and
            `false` ban a token.
        repeat_penalty: As in llama-server; `repetition_penalty` is the same.
        repeat_last_n: Number of last tokens that penalties look at; -1 is the context size.
        response_format: The form of the answer.
        json_schema: A JSON schema that the answer conforms to.
        grammar: A grammar in llama.cpp's GBNF that the answer conforms to.
        structured_outputs: The form of the answer, as in vLLM.
        guided_json: A JSON schema, as in earlier versions of vLLM.
        choice: The possible answers; `guided_choice` is the same.
        guided_grammar: The same as `grammar`.
        regex: A regular expression that the whole answer matches, as in SGLang; `guided_regex` is the same.
        format: `json` or a JSON schema, as in Ollama.
    """

    instead: ClassVar[dict[str, str]] = {"response_format.type": TEXT_FORMATS}

    model: Name | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Annotated[int, Meta(ge=1, le=64)] | None = None
    seed: int | None = None
    stop: StopString | Annotated[list[StopString], Meta(max_length=16)] | None = None
    stop_token_ids: Annotated[list[TokenId], Meta(max_length=256)] | None = None
    ignore_eos: bool | None = None
    max_tokens: CountOrRest | None = None
    max_completion_tokens: CountOrRest | None = None
    n_predict: CountOrRest | None = None
    min_tokens: Count | None = None
    reasoning_budget: CountOrRest | None = None
    thinking_budget_tokens: CountOrRest | None = None
    return_tokens: bool | None = None

    temperature: Annotated[float, Meta(ge=0)] | None = None
    sampler: Name | None = None
    samplers: Annotated[list[Name], Meta(max_length=64)] | str | None = None
    min_k: bool | None = None

    logit_bias: (
        Annotated[dict[TokenId, float], Meta(max_length=MAX_BIAS)]
        | Annotated[
            list[tuple[TokenId | Annotated[str, Meta(max_length=64)], float | bool]],
            Meta(max_length=MAX_BIAS),
        ]
        | None
    ) = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    repeat_penalty: float | None = None
    repetition_penalty: float | None = None
    repeat_last_n: CountOrRest | None = None
    dry_multiplier: float | None = None
    dry_base: float | None = None
    dry_allowed_length: Count | None = None
    dry_penalty_last_n: CountOrRest | None = None
    dry_sequence_breakers: Annotated[list[Breaker], Meta(max_length=16)] | None = None

    response_format: ResponseFormat | None = None
    json_schema: Schema | None = None
    grammar: Grammar | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: SchemaOrText | None = None
    choice: Choices | None = None
    guided_choice: Choices | None = None
    guided_grammar: Grammar | None = None
    guided_regex: Pattern | None = None
    regex: Pattern | None = None
    format: Schema | Literal["json", ""] | None = None

    def __post_init__(self) -> None:
        for name, instead in REFUSED.items():
            if getattr(self, name, None) not in NOT_GIVEN:
                message = f"{name} is not supported: {instead}"
                raise ApiError(400, message, param=name, code="unsupported_parameter")

    @property
    def form(self) -> dict[str, Any]:
        """What the answer conforms to: an option of `Constraints`, or nothing."""
        return {name: value for name in _FORMS if (value := getattr(self, name)) is not None}

    @property
    def sources(self) -> dict[str, str]:
        """The fields that are to blame for what is wrong with other options of the engine."""
        return {}

    @property
    def sampler_options(self) -> dict[str, float]:
        """The options of samplers by the fields of the request that set them (`Sampler.request_fields`)."""
        given = {name: getattr(self, name, None) for name in sampler_fields()}
        return {
            name: int(value) if isinstance(value, float) and value.is_integer() else value
            for name, value in given.items()
            if value is not None
        }

    @property
    def unsupported(self) -> set[str]:
        """The sampling fields that have no effect in any request."""
        names = UNSUPPORTED.keys() - sampler_fields()
        return {name for name in names if getattr(self, name, None) not in (*NOT_GIVEN, UNSUPPORTED[name])}

    @property
    def n_answers(self) -> int:
        """Number of answers."""
        return self.n or 1

    @property
    def token_limit(self) -> int | None:
        """Maximum length of an answer in tokens; None for the rest of the context."""
        return None if self.max_tokens == -1 else self.max_tokens


class ChatRequest(SamplingFields, frozen=True, kw_only=True):
    """Body of `POST /v1/chat/completions`.

    Attributes:
        messages: If the last one is the assistant's, the answer continues it.
        logprobs: Whether to return log-probabilities: the model's own, at temperature 1, before the cut.
        top_logprobs: Number of most probable tokens to return for each token.
        tools: Functions that the model may call.
        tool_choice: With `required` or a named tool, a grammar makes the answer a valid call.
        parallel_tool_calls: Whether an answer may have several calls.
        reasoning_effort: `none` switches reasoning off, anything else on; chat templates get it too.
        reasoning_format: `none` leaves `<think>…</think>` in the content.
        chat_template_kwargs: Variables of the chat template; `enable_thinking` is the switch for reasoning.
        prefix_tokens: Token ids with which the answer begins; it continues from there.
    """

    instead = SamplingFields.instead | {
        "messages.content.type": TEXT_ONLY,
        "messages.role": "use system, developer, user, assistant or tool",
        "messages.tool_calls.type": "write the call and its result as text",
        "tools.type": NO_TOOLS,
        "tool_choice": "use none, auto, required or a function",
        "tool_choice.type": "use none, auto, required or a function, and leave out what is not to be called",
    }

    messages: Annotated[list[ChatMessage], Meta(min_length=1, max_length=2048)]
    logprobs: bool | None = None
    top_logprobs: TopLogprobsCount | None = None
    tools: Annotated[list[FunctionTool], Meta(max_length=128)] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedToolChoice | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: str | None = None
    reasoning: ReasoningOptions | None = None
    reasoning_format: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    prefix_tokens: TokenIds | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        names = [tool.function.name for tool in self.tools or ()]
        for i, tool in enumerate(self.tools or ()):
            parameters, path = tool.function.parameters or {}, f"tools[{i}].function"
            if tool.function.name in names[:i]:
                raise ApiError(400, f"there are two tools {tool.function.name!r}", param=f"{path}.name")
            if parameters.get("type", "object") != "object":
                path = f"{path}.parameters.type"
                raise ApiError(400, f"{path} must be object, for tool {tool.function.name!r}", param=path)
            check_schema(parameters, f"{path}.parameters")
        for name in self.chat_template_kwargs or ():
            if name in TEMPLATE_NAMES:
                path = f"chat_template_kwargs.{name}"
                raise ApiError(400, f"{path} cannot be set: chat templates get it from elsewhere", param=path)
        choice = self.tool_choice
        if isinstance(choice, NamedToolChoice) and choice.function.name not in names:
            raise ApiError(400, f"there is no tool {choice.function.name!r}", param="tool_choice")

    @property
    def usable_tools(self) -> list[FunctionTool]:
        """The tools that the model may call; with the `tool_choice` "none" they are not even shown."""
        return [] if self.tool_choice == "none" else self.tools or []

    @property
    def has_call_grammar(self) -> bool:
        """Whether a grammar makes the answer a call, or a call or what conforms to a schema."""
        return bool(self.usable_tools) and (self.forces_call or self.json_schema is not None)

    @property
    def forces_call(self) -> bool:
        """Whether the answer must be a call of a tool."""
        return bool(self.tools) and self.tool_choice not in (None, "auto", "none")

    @property
    def sources(self) -> dict[str, str]:
        forced = {"grammar": "tools"} if self.has_call_grammar else {}
        return forced | {"prefix": "prefix_tokens"}

    @property
    def enable_thinking(self) -> bool | None:
        """The switch for reasoning, or None if the client leaves it to the model."""
        given = (self.chat_template_kwargs or {}).get("enable_thinking")
        if given is None and self.reasoning_effort:
            return self.reasoning_effort != "none"
        return given if given is None else bool(given)

    @property
    def template_kwargs(self) -> dict[str, Any]:
        """Variables of the chat template, besides that switch."""
        given = dict(self.chat_template_kwargs or {})
        if self.reasoning_effort not in (None, "", "none"):
            given.setdefault("reasoning_effort", self.reasoning_effort)
        return {name: value for name, value in given.items() if name != "enable_thinking"}

    @property
    def logprobs_count(self) -> int | None:
        """Number of most probable tokens to return for each token, or None for no log-probabilities."""
        return (self.top_logprobs or 0) if self.logprobs else None

    def template_messages(self) -> list[dict[str, Any]]:
        """Return the messages for a chat template."""
        return [message.for_template() for message in self.messages]

    def template_tools(self) -> list[dict[str, Any]]:
        """Return the tools for a chat template."""
        tools: list[dict[str, Any]] = msgspec.to_builtins(self.usable_tools)
        return tools


class CandidatesRequest(Fields, frozen=True, kw_only=True):
    """Body of `POST /candidates`: a conversation, and what to return about the next token of its answer.

    Attributes:
        model: A model id.
        messages: The conversation; if the last message is the assistant's, the answer continues it.
        prompt: Token ids, in place of `messages`.
        prefix_tokens: Token ids with which the answer begins.
        tools: Functions that the model may call.
        tool_choice: With `none` the model does not see them.
        reasoning_effort: `none` switches reasoning off, anything else on.
        chat_template_kwargs: Variables of the chat template.
        samplers: Samplers such as `min-k:tau=3`, whose cuts to return.
        temperatures: The temperatures for which to return cuts; by default 1.
        top: Number of candidates to return.
        sampled: Id of a token to describe, whatever its rank.
    """

    model: Name | None = None
    messages: Annotated[list[ChatMessage], Meta(max_length=2048)] = []
    prompt: TokenIds | None = None
    prefix_tokens: TokenIds | None = None
    tools: Annotated[list[FunctionTool], Meta(max_length=128)] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedToolChoice | None = None
    reasoning_effort: str | None = None
    reasoning: ReasoningOptions | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    samplers: Annotated[list[Name], Meta(max_length=8)] = []
    temperatures: Annotated[list[Annotated[float, Meta(gt=0)]], Meta(min_length=1, max_length=32)] | None = (
        None
    )
    top: Annotated[int, Meta(ge=0, le=200)] = 50
    sampled: TokenId | None = None

    def __post_init__(self) -> None:
        if bool(self.messages) == bool(self.prompt):
            raise ApiError(400, "give messages or prompt, not both", param="messages")

    def chat(self) -> ChatRequest:
        """Return the conversation as a request to chat completions. Raises ApiError."""
        return ChatRequest(
            messages=self.messages,
            prefix_tokens=self.prefix_tokens,
            tools=self.tools,
            tool_choice=self.tool_choice,
            reasoning_effort=self.reasoning_effort,
            chat_template_kwargs=self.chat_template_kwargs,
        )


class CompletionRequest(SamplingFields, frozen=True, kw_only=True):
    """Body of `POST /v1/completions`.

    Attributes:
        prompt: A text, token ids, or a list of either.
        suffix: The text after the gap that the answer fills, for models trained for that; the prompt is the
            text before it.
        echo: Whether the answer begins with the prompt; with `logprobs`, with the prompt's log-probabilities.
        logprobs: Number of most probable tokens to return for each token.
    """

    prompt: str | list[str | TokenId | TokenIds]
    suffix: str | None = None
    echo: bool | None = None
    logprobs: TopLogprobsCount | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.prompt, list) and len({type(part) for part in self.prompt}) != 1:
            raise ApiError(400, "prompt must be a text, token ids, or a list of either", param="prompt")
        if self.suffix and (self.echo or not all(isinstance(prompt, str) for prompt in self.prompts())):
            raise ApiError(400, "suffix needs a prompt that is text, and no echo", param="suffix")
        if not all(self.prompts()) and not self.suffix:
            raise ApiError(400, "prompt is empty", param="prompt")
        if self.n_answers > MAX_ANSWERS:
            message = f"prompt and n ask for {self.n_answers} answers: ask for at most {MAX_ANSWERS}"
            raise ApiError(400, message, param="prompt")

    @property
    def logprobs_count(self) -> int | None:
        """Number of most probable tokens to return for each token, or None for no log-probabilities."""
        return self.logprobs

    @property
    def n_answers(self) -> int:
        """Number of answers."""
        return len(self.prompts()) * super().n_answers

    @property
    def sources(self) -> dict[str, str]:
        return {"n": "prompt"} if len(self.prompts()) > 1 else {}

    def prompts(self) -> list[str | list[int]]:
        """Return the prompts: texts or lists of token ids."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        if self.prompt and isinstance(self.prompt[0], int):
            return [self.prompt]  # type: ignore[list-item]  # `__post_init__` made sure that all are ints
        return self.prompt  # type: ignore[return-value]


class TokenizeRequest(Fields, frozen=True):
    """Body of `POST /tokenize`, with llama-server's names or vLLM's.

    Attributes:
        content: The text; with this name no token is added at the beginning by default, as in llama-server.
        prompt: The text; with this name one is, as in vLLM.
        add_special: Whether to add the token that begins texts.
        add_special_tokens: The same as `add_special`, which wins over it.
        parse_special: Whether control tokens in the text are read as such.
        with_pieces: Whether to return the text of every token.
    """

    content: LongText | None = None
    prompt: LongText | None = None
    add_special: bool | None = None
    add_special_tokens: bool | None = None
    parse_special: bool = True
    with_pieces: bool = False

    def __post_init__(self) -> None:
        if self.content is None and self.prompt is None:
            raise ApiError(400, "content is missing", param="content")


class DetokenizeRequest(Fields, frozen=True):
    """Body of `POST /detokenize`."""

    tokens: Annotated[list[TokenId], Meta(max_length=MAX_TEXT_CHARACTERS)]


RequestT = TypeVar("RequestT", bound=Fields)


def sampler_fields() -> list[str]:
    """Return the fields that set an option of a sampler, of all samplers that are registered."""
    return [field for sampler in SAMPLERS.values() for field in sampler.request_fields]


def parse(body: bytes, kind: type[RequestT]) -> tuple[RequestT, dict[str, str]]:
    """Decode the JSON body of a request; also return where its client gave fields that have other names.

    Raises:
        ApiError: The body is no JSON object, a field has the wrong type or is out of range, or it asks for a
            constraint that is not supported.
    """
    names = (*sampler_fields(), *UNSUPPORTED, *REFUSED) if issubclass(kind, SamplingFields) else ()
    try:
        return _resolved(msgspec.json.decode(body, type=with_fields(kind, names), strict=False))
    except msgspec.ValidationError as error:
        text, _, place = str(error).partition(" - at ")  # `$.messages[0].role`, or `key` in `$.logit_bias`
        path = place.rpartition("`$")[2].strip(".`").replace("[...]", "")
        text, instead = in_a_line(text), kind.instead.get(re.sub(r"\[\d+\]", "", path))
        if instead and (value := text.partition("Invalid enum value ")[2]):
            message = f"{path}: {value} is not supported: {instead}"
            raise ApiError(400, message, param=path, code="unsupported_value") from None
        raise ApiError(400, f"{path}: {text}" if path else text, param=path or None) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ApiError(400, f"the body is not valid JSON: {error}", code="invalid_json") from None
    except RecursionError:
        raise ApiError(400, "the body is nested too deeply", code="invalid_json") from None


def _resolved(request: RequestT) -> tuple[RequestT, dict[str, str]]:
    """Return a request whose fields have the values of their other names, and those names.

    Raises ApiError if it asks for two forms of the answer.
    """
    given = {
        field: [found for path in paths if (found := _given(request, path))[1] is not None]
        for field, paths in ALIASES.items()
        if field in request.__struct_fields__
    }
    forms = [path for field in _FORMS for path, _ in given.get(field, ())]
    if len(forms) > 1:
        message = f"{forms[1]} cannot be combined with {forms[0]}: send one"
        raise ApiError(400, message, param=forms[1])
    first = {field: found[0] if found else (field, None) for field, found in given.items()}
    changed = {field: value for field, (_, value) in first.items() if value is not getattr(request, field)}
    names = {field: path for field, (path, _) in first.items() if path != field}
    return msgspec.structs.replace(request, **changed) if changed else request, names


def _given(request: Fields, path: str) -> tuple[str, Any]:
    """Return where the value of a path is, and the value; None if it asks for nothing."""
    value: Any = request
    for name in path.split("."):
        value = getattr(value, name, None)
    if isinstance(value, AnswerFormat):
        return f"{path}.{value.place}", value.answer_schema
    if value in ("", []):
        return path, None
    return path, _schema(value, path) if path in ALIASES["json_schema"] else value


def as_chat(request: SamplingFields, fields: Mapping[str, Any]) -> ChatRequest:
    """Return another endpoint's request as one to chat completions: its sampling fields and others.

    Raises ApiError.
    """
    if request.n_answers > 1:
        message = "n is not supported: send a request for each answer"
        raise ApiError(400, message, param="n", code="unsupported_parameter")
    names = with_fields(ChatRequest, (*sampler_fields(), *UNSUPPORTED, *REFUSED)).__struct_fields__
    body = {name: getattr(request, name, None) for name in names if name not in _OTHER_NAMES} | dict(fields)
    given = {name: value for name, value in body.items() if value is not None}
    return parse(msgspec.json.encode(given), ChatRequest)[0]


def tool_names(paths: Sequence[str], parameters: str) -> dict[str, str]:
    """Return patterns of the fields of tools in a chat request, and where an endpoint's clients have them.

    Args:
        paths: Where each tool is.
        parameters: What its parameters are called.
    """
    own = {r"\.name": ".name", r"\.parameters": f".{parameters}", "": ""}
    return {
        rf"tools\[{i}\]\.function{name}": path + own[name] for i, path in enumerate(paths) for name in own
    }


def function_tool(name: str, description: str | None, parameters: Schema | None) -> dict[str, Any]:
    """Return a function as a tool of chat completions."""
    return {
        "type": "function",
        "function": {"name": name, "description": description, "parameters": parameters},
    }


@contextmanager
def naming(names: Mapping[str, str]) -> Iterator[None]:
    """Name the fields in errors as an endpoint's clients do: by patterns of a path's beginning."""
    try:
        yield
    except ApiError as error:
        for old, new in names.items():
            if match := re.match(rf"(?:{old})(?!\w)", error.param or ""):
                raise error.about(new + match.string[match.end() :]) from None
        raise


@cache
def with_fields(kind: type[RequestT], names: tuple[str, ...]) -> type[RequestT]:
    """Return the type of a request with more fields: numbers for the options of samplers, else anything."""
    options = sampler_fields()
    new = [name for name in dict.fromkeys(names) if name not in kind.__struct_fields__]
    fields = [(name, int | float | None if name in options else Any, None) for name in new]
    return msgspec.defstruct(kind.__name__, fields, bases=(kind,), frozen=True, kw_only=True)  # type: ignore[return-value]


def _schema(schema: SchemaOrText | None, field: str) -> Schema | None:
    """Return a JSON schema that may be text, `json` for any object. Raises ApiError if the text is none."""
    if not isinstance(schema, str):
        return schema
    if schema == "json":
        return {"type": "object"}
    try:
        return msgspec.json.decode(schema, type=Schema)
    except msgspec.MsgspecError as error:
        raise ApiError(400, f"the JSON schema cannot be read: {error}", param=field) from None


def check_schema(schema: Schema, path: str) -> None:
    """Raise ApiError if a JSON schema is too large or too deep."""
    values: list[tuple[int, Any]] = [(1, schema)]
    for depth, value in values:  # which grows meanwhile
        if depth > MAX_SCHEMA_DEPTH:
            raise ApiError(400, f"{path} is nested deeper than {MAX_SCHEMA_DEPTH} levels", param=path)
        children = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        values += [(depth + 1, child) for child in children]
        if len(values) > MAX_SCHEMA_NODES:
            raise ApiError(400, f"{path} has more than {MAX_SCHEMA_NODES} values", param=path)
