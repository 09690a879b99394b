"""What requests of several endpoints have in common: types, ranges and limits of their fields."""

import json
import math
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Annotated, Any, ClassVar, Literal

from msgspec import Meta, Struct

from mink_local.generation.request import EndLoops
from mink_local.samplers import SAMPLERS
from mink_local.serve.bodies import ApiError

MAX_TOKENS = 2**31 - 1
MAX_BIAS = 1024
MAX_TOOLS = 2048

Count = Annotated[int, Meta(ge=0, le=MAX_TOKENS)]
CountOrRest = Annotated[int, Meta(ge=-1, le=MAX_TOKENS)]  # -1: as many as there is room for
TokenId = Annotated[int, Meta(ge=0, le=MAX_TOKENS)]
TokenIds = Annotated[list[TokenId], Meta(max_length=MAX_TOKENS)]
TopLogprobsCount = Annotated[int, Meta(ge=0, le=20)]
StopString = Annotated[str, Meta(max_length=1024)]
Grammar = Annotated[str, Meta(max_length=65_536)]  # GBNF
Pattern = Annotated[str, Meta(max_length=4096)]  # a regular expression
Choices = Annotated[list[StopString], Meta(max_length=1024)]
Breaker = Annotated[str, Meta(max_length=1024)]  # of which llama.cpp reads 40 bytes
Name = Annotated[str, Meta(min_length=1, max_length=256)]
ToolName = Annotated[str, Meta(pattern="^[a-zA-Z0-9_.-]{1,256}$")]
Schema = dict[str, Any]
TemplateVariables = Annotated[dict[Name, Any], Meta(max_length=64)]
TokenIdsText = Annotated[str, Meta(pattern=r"^\s*([0-9]+\s*(,\s*[0-9]+\s*)*)?$", max_length=65_536)]
SchemaOrText = Schema | Annotated[str, Meta(max_length=65_536)]

REFUSED = {
    "allowed_token_ids": "use grammar",
    "bad_words": "use logit_bias",
    "bad_words_ids": "use logit_bias",
    "banned_strings": "phrases cannot be banned yet, single tokens can, with logit_bias",
    "banned_tokens": "use logit_bias",
    "chat_template": "the model's own template is used",
    "ebnf": "use grammar",
    "force_words_ids": "use grammar",
    "format": "use response_format or json_schema",
    "function_call": "use tool_choice",
    "functions": "use tools",
    "guided_choice": "use choice",
    "guided_decoding": "use structured_outputs",
    "guided_grammar": "use grammar",
    "guided_json": "use response_format or json_schema",
    "guided_regex": "use regex",
    "mcp_servers": "declare the server's tools as functions and run them in your client",
    "structural_tag": "use tools",
    "web_search_options": "declare a function that searches",
}
"""Fields that change what an answer may contain and are not supported, with what to use instead."""

ONE_ANSWER = {"n": "send a request for each answer"}
TEXT_ONLY = "this server reads text only, so leave the part out or describe it as text"
NO_TOOLS = "this server has no tools of its own and takes functions only: declare a function, or leave it out"
TOOL_CHOICES = "use none, auto, required or a function; to exclude a tool, leave it out of tools"
TEXT_FORMATS = "use text, json_object or json_schema"


class Fields(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Base class of what a client sends; a field that is null or absent is None.

    Attributes:
        names: The names that clients have for a field; the first that is given wins.
        refused: Fields that are refused, with what to do instead.
        instead: By path, what to do about a value that only others have.
    """

    names: ClassVar[dict[str, tuple[str, ...]]] = {}
    refused: ClassVar[dict[str, str]] = {}
    instead: ClassVar[dict[str, str]] = {}

    @classmethod
    def normalise(cls, fields: dict[str, Any]) -> None:
        """Complete the decoded fields of a request before they are converted."""

    def normal(self) -> Any:
        """Return the same request as one to chat completions or completions. Raises ApiError."""
        return self

    @property
    def left_out(self) -> Iterable[str]:
        """The parts of the request that are read and have no effect all the same."""
        return ()

    @property
    def places(self) -> dict[str, str]:
        """Where the client gave what errors call by the names of the engine's request."""
        kwargs = "chat_template_kwargs"
        return {
            "prefix": "prefix_tokens",
            "template_kwargs": kwargs,
            "enable_thinking": f"{kwargs}.enable_thinking",
        }


_LABELS_ALONE = frozenset({"name", "description", "strict"})  # of what has no schema


class AnswerFormat(Fields, frozen=True):
    """What an answer is: any text, any JSON object, or JSON that conforms to a schema.

    Attributes:
        schema: The JSON schema; `json_schema` needs one, here or there.
        json_schema: An object with the JSON schema as its `schema`, or the JSON schema itself.
    """

    missing: ClassVar[str] = "schema"  # where it should be

    type: Literal["text", "json_object", "json_schema"]
    schema: Schema | None = None
    json_schema: Schema | None = None

    def __post_init__(self) -> None:
        schema, place = self.found
        if self.type == "json_schema" and schema is None:
            raise ValueError(f"{place} is missing")
        if self.type == "text" and (self.schema or self.json_schema):
            raise ValueError("a text has no schema: use the type json_schema")

    @property
    def found(self) -> tuple[Schema | None, str]:
        """The JSON schema of the answer, None if it needs none, and where it is, or should be."""
        if self.schema is not None:
            return self.schema, "schema"
        if self.json_schema is not None and (
            "schema" in self.json_schema or self.json_schema.keys() <= _LABELS_ALONE
        ):
            inner = self.json_schema.get("schema")
            return inner if isinstance(inner, dict) else None, "json_schema.schema"
        found = {"type": "object"} if self.type == "json_object" else None
        return self.json_schema or found, "json_schema" if self.json_schema else self.missing


class StructuredOutputs(Fields, frozen=True):
    """What an answer conforms to, as in vLLM; one of these.

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


class ReasoningOptions(Fields, frozen=True):
    """Options for the reasoning before an answer.

    Attributes:
        effort: `none` switches reasoning off, anything else on.
    """

    effort: str | None = None


def sampler_fields() -> tuple[str, ...]:
    """Return the fields that set an option of a sampler, of all samplers that are registered."""
    return tuple(field for sampler in SAMPLERS.values() for field in sampler.request_fields)


class SamplingFields(Fields, frozen=True, kw_only=True):
    """The fields that all requests for answers have in common.

    Attributes:
        model: A model id; by default, and if it is empty, the model without a preset.
        stream: Whether to send the answer as server-sent events.
        seed: A whole number, of which the remainder by 2^32 - 1 counts, or -1 for a random one. The same seed
            gives the same answer as long as no other requests run meanwhile.
        stop: Strings that end the answer and are not part of it; `stop_sequences` is the same, and so is
            `stopping_strings`.
        stop_token_ids: Tokens that end the answer and are not part of it.
        ignore_eos: Generate until `max_tokens`, past the tokens that end an answer.
        max_tokens: Maximum length of the answer in tokens, with its reasoning; -1 is the rest of the context.
            `max_completion_tokens` and `max_output_tokens` are the same and win over it; so are `n_predict`,
            `num_predict`, `max_new_tokens` and `max_length`.
        min_tokens: Minimum length of the answer in tokens; `min_length` is the same.
        reasoning_budget: Maximum length of the reasoning in tokens, then its end is forced; 0: no reasoning;
            -1: no limit. `thinking_budget_tokens` is the same.
        reasoning_message: The sentence with which reasoning is made to end; by default, one that tells the
            model why. `reasoning_budget_message` is the same.
        reasoning_sampler: Like `sampler`, while the model reasons; by default the same.
        reasoning_temperature: Like `temperature`, while the model reasons; by default the same.
        end_loops: What ends when it repeats itself: `reasoning`, so that the answer follows, which is the
            default; `all`, also the answer, with the finish_reason `repetition`; `none`.
        temperature: Applied to the candidates that the sampler keeps; 0 is greedy. There is no upper bound.
        sampler: A sampler such as `min-k:tau=3`; it wins over the samplers' own fields.
        min_k: Use Min-k, with `min_k_tau` and `min_k_floor`.
        logit_bias: By token id or text, also as a list of pairs, as in llama-server; -100 and `false` ban a
            token.
        custom_token_bans: Ids of tokens to ban, also as a text with commas between them.
        frequency_penalty: As in OpenAI's API, of the answer's tokens; with `repeat_last_n`, the last ones.
        presence_penalty: The same.
        repeat_penalty: As in llama-server; `repetition_penalty` is the same.
        repeat_last_n: Number of last tokens, the prompt's too, that these three look at, as in llama-server;
            -1 is the context size. `repeat_penalty` looks at 64 by default.
        json_schema: A JSON schema that the answer conforms to.
        dry_sequence_breakers: Texts that end a repetition, also as a list in JSON; 40 bytes of each count.
        grammar: A grammar in llama.cpp's GBNF that the answer conforms to; `grammar_string` is the same.
            Tokens in it, such as `<[1]>` or `<think>`, are not supported.
        choice: The possible answers.
        regex: A regular expression that the whole answer matches, as in SGLang.
        structured_outputs: One of these four, as in vLLM.
    """

    names = {
        "max_tokens": (
            "max_completion_tokens",
            "max_output_tokens",
            "max_tokens",
            "n_predict",
            "num_predict",
            "max_new_tokens",
            "max_length",
        ),
        "min_tokens": ("min_tokens", "min_length"),
        "seed": ("seed", "sampler_seed"),
        "stop": ("stop_sequences", "stop", "stop_sequence", "stopping_strings"),
        "repeat_penalty": ("repeat_penalty", "repetition_penalty", "rep_pen"),
        "reasoning_budget": ("reasoning_budget", "thinking_budget_tokens"),
        "reasoning_message": ("reasoning_message", "reasoning_budget_message"),
        "grammar": ("grammar", "grammar_string"),
        "top_n_sigma": ("top_n_sigma", "nsigma"),
        "typical_p": ("typical_p", "typical"),
        "mirostat": ("mirostat", "mirostat_mode"),
    }
    refused = REFUSED

    model: Annotated[str, Meta(max_length=256)] | None = None
    stream: bool | None = None
    seed: int | None = None
    stop: StopString | Annotated[list[StopString], Meta(max_length=512)] | None = None
    stop_token_ids: Annotated[list[TokenId], Meta(max_length=256)] | None = None
    ignore_eos: bool | None = None
    max_tokens: CountOrRest | None = None
    min_tokens: Count | None = None
    reasoning_budget: CountOrRest | None = None
    reasoning_message: StopString | None = None
    reasoning_sampler: Name | None = None
    reasoning_temperature: Annotated[float, Meta(ge=0)] | None = None
    end_loops: EndLoops | None = None

    temperature: Annotated[float, Meta(ge=0)] | None = None
    sampler: Name | None = None
    min_k: bool | None = None

    logit_bias: (
        Annotated[dict[Annotated[str, Meta(max_length=64)], float | bool], Meta(max_length=MAX_BIAS)]
        | Annotated[
            list[tuple[TokenId | Annotated[str, Meta(max_length=64)], float | bool]],
            Meta(max_length=MAX_BIAS),
        ]
        | None
    ) = None
    custom_token_bans: TokenIdsText | TokenIds | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    repeat_penalty: float | None = None
    repeat_last_n: CountOrRest | None = None
    dry_multiplier: float | None = None
    dry_base: float | None = None
    dry_allowed_length: Count | None = None
    dry_penalty_last_n: CountOrRest | None = None
    dry_sequence_breakers: Annotated[list[Breaker], Meta(max_length=64)] | None = None

    json_schema: Schema | None = None
    grammar: Grammar | None = None
    choice: Choices | None = None
    regex: Pattern | None = None
    structured_outputs: StructuredOutputs | None = None

    @classmethod
    def normalise(cls, fields: dict[str, Any]) -> None:
        breakers = fields.get("dry_sequence_breakers")
        if isinstance(breakers, str):  # SillyTavern's are JSON; text-generation-webui's without brackets
            text = breakers if breakers[:1] == "[" else f"[{breakers}]"
            with suppress(ValueError):
                fields["dry_sequence_breakers"] = json.loads(text)

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            if isinstance(value := getattr(self, name), float) and not math.isfinite(value):
                raise ApiError(400, f"{name} must be a finite number", param=name)
        constraints = [*self.constraints()]
        if len(constraints) > 1:
            (_, _, first), (_, _, second), *_ = constraints
            raise ApiError(400, f"{second} cannot be combined with {first}: send one", param=second)

    def constraints(self) -> Iterator[tuple[str, Any, str]]:
        """Yield what the answer conforms to: the option of `Constraints`, its value and its place."""
        for group, prefix in ((self, ""), (self.structured_outputs, "structured_outputs.")):
            for option in ("json_schema", "json", "grammar", "choice", "regex"):
                value = getattr(group, option, None)
                if value not in (None, "", []):
                    yield "json_schema" if option == "json" else option, value, prefix + option

    @property
    def places(self) -> dict[str, str]:
        return super().places | {option: place for option, _, place in self.constraints()}

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
    def token_limit(self) -> int | None:
        """Maximum length of an answer in tokens; None for the rest of the context."""
        return None if self.max_tokens == -1 else self.max_tokens
