"""Requests as clients send them, checked on arrival: types, ranges, limits.

OpenAI's fields that this server has no use for (`user`, `store`, `metadata`, …) are ignored. Unknown fields
that seem to ask for a way of sampling are ignored too, and reported to the client.
"""

import re
from collections.abc import Iterator
from typing import Annotated, Any, Literal, TypeVar, get_args

import msgspec
from msgspec import Meta, Struct

from mink_local.serve.api_errors import ApiError, not_supported

MAX_MESSAGES = 2048
MAX_PARTS = 1024  # of a message's content
MAX_N = 64
MAX_ANSWERS = 128  # of one request: prompts times n
MAX_STOP = 16
MAX_STOP_CHARACTERS = 1024
MAX_STOP_TOKENS = 256
MAX_BIAS = 1024
MAX_TOP_LOGPROBS = 20
MAX_TOOLS = 128
MAX_TOOL_CALLS = 128
MAX_SCHEMA_DEPTH = 32
MAX_SCHEMA_NODES = 5_000
MAX_GRAMMAR_CHARACTERS = 65_536
MAX_SAMPLERS = 32
MAX_TEXT_CHARACTERS = 1 << 20  # to tokenize
MAX_BREAKERS = 16
MAX_BREAKER_CHARACTERS = 40  # llama.cpp reads no more; it compares each breaker with the whole vocabulary
MAX_BIASED_CHARACTERS = 64  # of a text whose tokens get a bias
MAX_NAME_CHARACTERS = 256
MAX_TOKENS = 2**31 - 1
MAX_CUTS = 8  # samplers of a request for candidates
MAX_TEMPERATURES = 32
MAX_CANDIDATES = 200

Count = Annotated[int, Meta(ge=0, le=MAX_TOKENS)]
CountOrRest = Annotated[int, Meta(ge=-1, le=MAX_TOKENS)]  # -1: all that there is room for
TokenId = Annotated[int, Meta(ge=0, le=MAX_TOKENS)]
TokenIds = Annotated[list[TokenId], Meta(max_length=MAX_TOKENS)]
NotNegative = Annotated[float, Meta(ge=0)]
Probability = Annotated[float, Meta(ge=0, le=1)]
StopString = Annotated[str, Meta(max_length=MAX_STOP_CHARACTERS)]
LongText = Annotated[str, Meta(max_length=MAX_TEXT_CHARACTERS)]
Breaker = Annotated[str, Meta(max_length=MAX_BREAKER_CHARACTERS)]
BiasedText = Annotated[str, Meta(max_length=MAX_BIASED_CHARACTERS)]
Name = Annotated[str, Meta(min_length=1, max_length=MAX_NAME_CHARACTERS)]
Role = Literal["system", "developer", "user", "assistant", "tool"]
FormatType = Literal["text", "json_object", "json_schema"]
MirostatVersion = Literal[0, 1, 2]
ToolMode = Literal["none", "auto", "required"]
Schema = dict[str, Any]
Grammar = Annotated[str, Meta(max_length=MAX_GRAMMAR_CHARACTERS)]


class Fields(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Base class of what a client sends; a field that is null or absent is None."""


class ContentPart(Fields, frozen=True):
    """A part of a message's content; only text is supported."""

    type: str
    text: str | None = None


class CalledFunction(Fields, frozen=True):
    """A function and the arguments with which the model called it, as JSON text or as an object."""

    name: Name
    arguments: str | dict[str, Any]


class ToolCall(Fields, frozen=True):
    """A call that an assistant's message made."""

    function: CalledFunction
    id: str | None = None
    type: Literal["function"] = "function"


class ChatMessage(Fields, frozen=True):
    """A message of a conversation."""

    role: Role
    content: str | Annotated[list[ContentPart], Meta(max_length=MAX_PARTS)] | None = None
    name: str | None = None
    tool_calls: Annotated[list[ToolCall], Meta(max_length=MAX_TOOL_CALLS)] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None

    def for_template(self) -> dict[str, Any]:
        """Return the message as a chat template reads it: its content is a text, None beside tool calls."""
        message: dict[str, Any] = {
            "role": "system" if self.role == "developer" else self.role,
            "content": self._text(),
        }
        if self.tool_calls:
            message["tool_calls"] = [
                {"type": "function", **msgspec.to_builtins(call)} for call in self.tool_calls
            ]
            message["content"] = message["content"] or None
        if reasoning := self.reasoning_content or self.reasoning:
            message["reasoning_content"] = reasoning
        for field in ("name", "tool_call_id"):
            if (value := getattr(self, field)) is not None:
                message[field] = value
        return message

    def _text(self) -> str:
        if isinstance(self.content, list):
            return "".join(part.text or "" for part in self.content)
        return self.content or ""

    def check(self, path: str) -> None:
        """Raise ApiError if the message has no content, or one that is no text."""
        if self.content is None and self.role != "assistant":
            raise _refused(f"{path}.content", "is missing: give a text")
        for i, part in enumerate(self.content if isinstance(self.content, list) else ()):
            if part.type != "text" or part.text is None:
                reason = 'is no {"type": "text", "text": str}: images and sound are not supported'
                raise _refused(f"{path}.content[{i}]", reason)


class FunctionDefinition(Fields, frozen=True):
    """A function that the model may call."""

    name: Annotated[str, Meta(pattern="^[a-zA-Z0-9_.-]{1,64}$")]
    description: str | None = None
    parameters: Schema | None = None
    strict: bool | None = None


class FunctionTool(Fields, frozen=True):
    """A tool that the model may call; only functions are supported."""

    function: FunctionDefinition
    type: Literal["function"] = "function"


class NamedFunction(Fields, frozen=True):
    """The name of a function."""

    name: Name


class NamedToolChoice(Fields, frozen=True):
    """The tool that the model must call."""

    function: NamedFunction
    type: Literal["function"] = "function"


class JsonSchemaFormat(Fields, frozen=True):
    """A JSON schema with a name."""

    schema: Schema | None = None
    name: str | None = None
    strict: bool | None = None


class ResponseFormat(Fields, frozen=True):
    """The form of an answer: any text, any JSON object, or JSON after a schema."""

    type: FormatType
    schema: Schema | None = None
    json_schema: JsonSchemaFormat | None = None


class StreamOptions(Fields, frozen=True):
    """Options of a stream."""

    include_usage: bool | None = None


class ReasoningOptions(Fields, frozen=True):
    """Options for the reasoning before an answer."""

    effort: str | None = None


class SamplingFields(Fields, frozen=True):
    """The fields that chat and completion requests share."""

    model: Name | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Annotated[int, Meta(ge=1, le=MAX_N)] | None = None
    seed: int | None = None
    stop: StopString | Annotated[list[StopString], Meta(max_length=MAX_STOP)] | None = None
    stop_token_ids: Annotated[list[TokenId], Meta(max_length=MAX_STOP_TOKENS)] | None = None
    ignore_eos: bool | None = None
    max_tokens: CountOrRest | None = None
    max_completion_tokens: CountOrRest | None = None
    n_predict: CountOrRest | None = None
    min_tokens: Count | None = None
    return_tokens: bool | None = None

    temperature: NotNegative | None = None
    sampler: Name | None = None
    samplers: Annotated[list[Name], Meta(max_length=MAX_SAMPLERS)] | None = None
    min_k: bool | None = None
    min_k_tau: float | None = None
    min_k_floor: float | None = None
    top_k: int | None = None
    top_p: Probability | None = None
    min_p: Probability | None = None
    top_n_sigma: float | None = None
    mirostat: MirostatVersion | None = None
    mirostat_tau: float | None = None
    mirostat_eta: float | None = None
    typical_p: float | None = None
    xtc_probability: float | None = None
    xtc_threshold: float | None = None
    dynatemp_range: float | None = None
    adaptive_target: float | None = None

    logit_bias: (
        dict[BiasedText, float]
        | Annotated[list[tuple[int | BiasedText, float | bool]], Meta(max_length=MAX_BIAS)]
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
    dry_sequence_breakers: Annotated[list[Breaker], Meta(max_length=MAX_BREAKERS)] | None = None

    response_format: ResponseFormat | None = None
    json_schema: Schema | None = None
    grammar: Grammar | None = None
    chat_template: Any = None

    @property
    def include_usage(self) -> bool:
        """True if the stream ends with the usage."""
        return bool(self.stream_options and self.stream_options.include_usage)

    @property
    def token_limit(self) -> int | None:
        """Most tokens of an answer; None for the rest of the context."""
        given = (self.max_completion_tokens, self.max_tokens, self.n_predict)
        limit = next((value for value in given if value is not None), -1)
        return None if limit == -1 else limit

    def check(self) -> None:
        """Raise ApiError for what the types cannot say."""
        if self.stream_options is not None and not self.stream:
            raise _refused("stream_options", "is for streams: send stream: true with it")
        if self.chat_template is not None:
            raise _refused("chat_template", "is not accepted from clients: the model's own is used")
        if isinstance(self.logit_bias, dict) and len(self.logit_bias) > MAX_BIAS:
            raise _refused(
                "logit_bias", f"has {len(self.logit_bias)} entries: at most {MAX_BIAS} are accepted"
            )
        self._check_format()

    def _check_format(self) -> None:
        form = self.response_format
        if (
            form is not None
            and form.type == "json_schema"
            and (form.json_schema is None or form.json_schema.schema is None)
        ):
            raise _refused("response_format.json_schema.schema", "is missing: give a JSON schema")
        asked = {
            "response_format": form is not None and form.type != "text",
            "json_schema": self.json_schema is not None,
            "grammar": bool(self.grammar),
        }
        given = [name for name, is_asked in asked.items() if is_asked]
        if len(given) > 1:
            raise _refused(given[1], f"cannot be combined with {given[0]}: give one of them")
        if (schema := self.answer_schema) is not None:
            check_schema(schema, given[0])

    @property
    def answer_schema(self) -> Schema | None:
        """The JSON schema of the answer, or None if no JSON is asked for."""
        form = self.response_format
        if form is None or form.type == "text":
            return self.json_schema
        if form.type == "json_schema" and form.json_schema is not None:
            return form.json_schema.schema
        return form.schema or {"type": "object"}


class ChatRequest(SamplingFields, frozen=True, kw_only=True):
    """Body of `POST /v1/chat/completions`."""

    messages: Annotated[list[ChatMessage], Meta(min_length=1, max_length=MAX_MESSAGES)]
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    tools: Annotated[list[FunctionTool], Meta(max_length=MAX_TOOLS)] | None = None
    tool_choice: ToolMode | NamedToolChoice | None = None
    parallel_tool_calls: bool | None = None
    functions: Any = None
    function_call: Any = None
    reasoning_effort: str | None = None
    reasoning: ReasoningOptions | None = None
    reasoning_format: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    prefix_tokens: TokenIds | None = None

    @property
    def enable_thinking(self) -> bool | None:
        """The switch for reasoning, or None if the client leaves it to the model."""
        given = (self.chat_template_kwargs or {}).get("enable_thinking")
        effort = self.reasoning_effort or (self.reasoning and self.reasoning.effort)
        if given is None and effort:
            return effort != "none"
        return given if given is None else bool(given)

    @property
    def logprobs_count(self) -> int | None:
        """Number of most probable tokens to report for each token, or None for no log-probabilities."""
        return (self.top_logprobs or 0) if self.logprobs else None

    @property
    def prompt_logprobs_count(self) -> None:
        """None: a chat's prompt is not part of the response."""
        return None

    def template_messages(self) -> list[dict[str, Any]]:
        """Return the messages as a chat template reads them."""
        return [message.for_template() for message in self.messages]

    def template_tools(self) -> list[dict[str, Any]]:
        """Return the tools as a chat template reads them."""
        return [{"type": "function", **msgspec.to_builtins(tool)} for tool in self.tools or ()]

    def check(self) -> None:
        """Raise ApiError for what the types cannot say."""
        super().check()
        if self.functions is not None or self.function_call is not None:
            raise _refused("functions", "and function_call are of the past: use tools and tool_choice")
        if self.top_logprobs is not None and not self.logprobs:
            raise _refused("top_logprobs", "needs logprobs: send logprobs: true with it")
        for i, message in enumerate(self.messages):
            message.check(f"messages[{i}]")
        self._check_tools()

    def _check_tools(self) -> None:
        names = [tool.function.name for tool in self.tools or ()]
        for i, tool in enumerate(self.tools or ()):
            if tool.function.name in names[:i]:
                raise _refused(f"tools[{i}].function.name", "is the name of another tool: give each its own")
            check_schema(tool.function.parameters or {}, f"tools[{i}].function.parameters")
        choice = self.tool_choice
        if choice in (None, "none", "auto"):
            return
        if not names:
            raise _refused("tool_choice", "needs tools: send them with it")
        if isinstance(choice, NamedToolChoice) and choice.function.name not in names:
            raise _refused(
                "tool_choice",
                f"names {choice.function.name!r}, which is none of the tools: {', '.join(names)}",
            )


class CandidatesRequest(ChatRequest, frozen=True, kw_only=True):
    """Body of `POST /candidates`: a conversation, and what to tell of the next token of its answer.

    `samplers` are texts that `mink_local.samplers.parse` reads.
    """

    temperatures: (
        Annotated[list[Annotated[float, Meta(gt=0)]], Meta(min_length=1, max_length=MAX_TEMPERATURES)] | None
    ) = None
    top: Annotated[int, Meta(ge=0, le=MAX_CANDIDATES)] | None = None
    sampled: TokenId | None = None

    def check(self) -> None:
        """Raise ApiError for what the types cannot say."""
        super().check()
        if len(self.samplers or ()) > MAX_CUTS:
            raise _refused("samplers", f"are {len(self.samplers or ())}: at most {MAX_CUTS} are accepted")


class CompletionRequest(SamplingFields, frozen=True, kw_only=True):
    """Body of `POST /v1/completions`."""

    prompt: str | list[str | TokenId | TokenIds]
    echo: bool | None = None
    logprobs: Annotated[int, Meta(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    suffix: str | None = None
    best_of: int | None = None

    @property
    def logprobs_count(self) -> int | None:
        """Number of most probable tokens to report for each token, or None for no log-probabilities."""
        return self.logprobs

    @property
    def prompt_logprobs_count(self) -> int | None:
        """Number of most probable tokens to report for each token of the prompt, if it is echoed."""
        return self.logprobs if self.echo else None

    def prompts(self) -> list[str | list[int]]:
        """Return the prompts: texts or lists of token ids."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        if self.prompt and isinstance(self.prompt[0], int):
            return [self.prompt]  # type: ignore[list-item]  # `check` has seen that all are ints
        return self.prompt  # type: ignore[return-value]

    def check(self) -> None:
        """Raise ApiError for what the types cannot say."""
        super().check()
        if self.suffix:
            raise not_supported("suffix is not supported: leave it out, or put it into the prompt", "suffix")
        if self.best_of is not None and self.best_of != (self.n or 1):
            raise _refused("best_of", "is not supported: leave it out, or give the number of n")
        if isinstance(self.prompt, list) and len({type(part) for part in self.prompt}) != 1:
            raise _refused(
                "prompt", "must be a text, a list of texts, token ids, or a list of lists of token ids"
            )
        if not all(self.prompts()):
            raise _refused("prompt", "is empty: give a text or token ids")
        answers = len(self.prompts()) * (self.n or 1)
        if answers > MAX_ANSWERS:
            raise _refused("prompt", f"and n ask for {answers} answers: at most {MAX_ANSWERS} are accepted")


class TokenizeRequest(Fields, frozen=True):
    """Body of `POST /tokenize`, with llama-server's names or vLLM's."""

    content: LongText | None = None
    prompt: LongText | None = None
    add_special: bool | None = None
    add_special_tokens: bool | None = None
    parse_special: bool = True
    with_pieces: bool = False

    def check(self) -> None:
        """Raise ApiError if there is no text."""
        if self.content is None and self.prompt is None:
            raise _refused("content", "is missing: give a text")


class DetokenizeRequest(Fields, frozen=True):
    """Body of `POST /detokenize`."""

    tokens: Annotated[list[TokenId], Meta(max_length=MAX_TEXT_CHARACTERS)]

    def check(self) -> None:
        """Raise nothing: the types say it all."""


RequestT = TypeVar(
    "RequestT", ChatRequest, CandidatesRequest, CompletionRequest, TokenizeRequest, DetokenizeRequest
)

_LOOKS_LIKE_SAMPLING = re.compile(
    r"(adaptive|allowed_token|bad_words|beam|dry|dyn|epsilon|eta|frequency|guided|length_penalty|logit|max_tok|"
    r"min|miro|p_?less|penalty|presence|regex|repeat|repetition|sampl|smoothing|stop|structured|temp|tfs|top|"
    r"typical|use_beam|vllm_xargs|xtc)",
)


def parse(body: bytes, kind: type[RequestT]) -> tuple[RequestT, list[str]]:
    """Read the JSON body of a request.

    Returns:
        The request, and its unknown fields that seem to ask for a way of sampling.

    Raises:
        ApiError: The body is no JSON object, or a field has a wrong type or is out of range.
    """
    try:
        request = msgspec.json.decode(body, type=kind)
        fields = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    except msgspec.ValidationError as error:
        raise _wrong_field(str(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ApiError(400, f"the body cannot be read as JSON: {error}", code="invalid_json") from None
    except RecursionError:
        raise ApiError(400, "the body is nested too deep: send flatter JSON", code="invalid_json") from None
    request.check()
    unknown = fields.keys() - set(kind.__struct_fields__)
    return request, sorted(name for name in unknown if _LOOKS_LIKE_SAMPLING.match(name))


def check_schema(schema: Schema, path: str) -> None:
    """Raise ApiError if a JSON schema is larger or deeper than is accepted."""
    for nodes, depth in enumerate(_depths(schema), 1):
        if depth > MAX_SCHEMA_DEPTH:
            raise _refused(path, f"is nested deeper than {MAX_SCHEMA_DEPTH} levels: give a flatter schema")
        if nodes > MAX_SCHEMA_NODES:
            raise _refused(path, f"has more than {MAX_SCHEMA_NODES} values: give a smaller schema")


def _depths(value: Any) -> Iterator[int]:
    """Yield the depth of every value in a JSON value."""
    left = [(1, value)]
    while left:
        depth, value = left.pop()
        yield depth
        children = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        left += [(depth + 1, child) for child in children]


_CHOICES = {
    "role": Role,
    "response_format.type": FormatType,
    "type": Literal["function"],
    "tool_choice": ToolMode,
    "mirostat": MirostatVersion,
}
_PATH = re.compile(r" - at `\$\.?(.*)`$")
_WORDS = {
    "int": "a whole number",
    "float": "a number",
    "str": "a text",
    "bool": "true or false",
    "array": "a list",
    "object": "an object",
    "null": "null",
}


def _refused(path: str, reason: str) -> ApiError:
    """Return the error for a field; the reason continues a sentence that begins with the field."""
    return ApiError(400, f"{path} {reason}", param=path)


def _wrong_field(complaint: str) -> ApiError:
    """Return msgspec's complaint about a field in this server's words."""
    found = _PATH.search(complaint)
    path = found[1].replace("[...]", "") if found else ""
    text = _PATH.sub("", complaint)
    if missing := re.match(r"Object missing required field `(.*)`", text):
        return _refused(".".join(filter(None, (path, missing[1]))), "is missing")
    if choices := next((_CHOICES[end] for end in _CHOICES if path.endswith(end)), None):
        return _refused(path, f"must be one of {', '.join(map(str, get_args(choices)))}")
    if text.startswith("Expected "):
        text = text.replace("Expected", "must be").replace(", got", ", not")
        text = re.sub(r"`([a-z |]+)`", lambda types: _in_words(types[1]), text).removesuffix(".0")
    elif text == "Number out of range":
        text = "must be a smaller number"
    else:
        text = f"is wrong: {text[0].lower()}{text[1:]}"
    return ApiError(400, f"{path or 'the body'} {text}", param=path or None)


def _in_words(types: str) -> str:
    names = types.split(" | ")
    return " or ".join(_WORDS.get(name, name) for name in names if name != "null" or names == ["null"])
