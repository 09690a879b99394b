"""Requests: a prompt, and how to sample its answer."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field, replace
from inspect import iscoroutinefunction
from typing import Any, Literal, TypedDict, TypeGuard, cast, get_args

import numpy as np
from numpy.typing import NDArray

from mink_local.checks import NO_LISTS, Range, as_ids, as_texts, check_types, plain, shown
from mink_local.errors import OptionError
from mink_local.generation.function_tools import tool_of
from mink_local.llama.constants import MAX_SEED
from mink_local.llama.constraints import Constraints
from mink_local.samplers import SAMPLERS, AnySampler, Greedy, MinK, Sampler, as_sampler

Message = Mapping[str, Any]
"""A dict with "role" (str) and "content": a str, or a list of `{"type": "text", "text": str}` parts.

The assistant's may have "tool_calls" and no content; a message with role "tool" holds the result of a call.
"""

Tool = Mapping[str, Any]
"""A tool that the model may call: {"type": "function", "function": {"name", "description", "parameters"}}."""

AnyTool = Tool | Callable[..., Any]
"""A tool, or a function of whose signature and docstring one is made."""

_MOST_LOGPROBS = 2**31 - 1  # at a step

TokenIds = Sequence[int] | NDArray[np.integer[Any]]

Prompt = str | Sequence[Message] | TokenIds

Edit = Callable[[NDArray[np.float32]], Any]
"""A function that changes a row of logits and returns None, or returns another one."""

EndLoops = Literal["reasoning", "all", "none"]
"""What ends when it repeats itself."""

_RANGES = {
    "temperature": Range(0),
    "max_tokens": Range(0, whole=True),
    "min_tokens": Range(0, whole=True),
    "seed": Range(0, MAX_SEED, whole=True),
    "logprobs": Range(0, _MOST_LOGPROBS, whole=True),
    "prompt_logprobs": Range(0, _MOST_LOGPROBS, whole=True),
    "reasoning_budget": Range(-1, whole=True),
    "reasoning_temperature": Range(0),
}


def read_prompt(prompt: Any) -> Prompt:
    """Return a copy of a prompt, with token ids as ints, NumPy's too. Raises OptionError if it is none."""
    if isinstance(prompt, str):
        return prompt
    found = prompt.tolist() if isinstance(prompt, np.ndarray) else prompt
    if isinstance(found, Sequence) and not isinstance(found, NO_LISTS):
        if all(isinstance(message, Mapping) for message in found):
            return cast(Prompt, plain("prompt", [*found]))
        with suppress(OptionError):
            return as_ids("prompt", found)
    wanted = "must be a text, a list of messages (dicts), or a list of token ids"
    raise OptionError("prompt", f"{wanted}, not {shown(prompt)}")


def is_token_ids(prompt: Any) -> TypeGuard[Sequence[int]]:
    """Return whether a prompt that is not a text is a list of token ids."""
    return len(prompt) > 0 and isinstance(prompt[0], int)


def is_raw(prompt: Prompt) -> bool:
    """Return whether a prompt is a text or token ids, which bypass the chat template."""
    return isinstance(prompt, str) or is_token_ids(prompt)


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """How an answer is sampled, and when it ends.

    A sampler's options are part of the sampler: `sampler=TopP(p=0.9)` instead of `top_p=0.9`.

    Args:
        sampler: Selects the candidates: an object, or its text, such as "top-p:p=0.9"; or a function of the
            logits, a read-only float32 array (V,), that returns the candidates' ids, in any order, or a mask
            (V,). Of these, tokens with logit -inf are none. None means `MinK()`.
        temperature: Divides the candidates' logits; 0 takes the largest logit.
        max_tokens: Maximum length of the answer in tokens; None for as many as the context holds; 0 only
            evaluates the prompt.
        min_tokens: Minimum number of tokens before an end token (the model's own or one of
            `stop_token_ids`) can be sampled.
        seed: 0 to 2^64 - 1, of which the remainder by 2^32 - 1 counts; None picks one at random.
        stop: Text, or several, or None, that end the answer's content and are not part of it. They do not
            count in reasoning and tool calls, before `min_tokens`, or where constraints let nothing end.
        stop_token_ids: Tokens that end the answer and are not part of it, in addition to the model's own.
        ignore_eos: Never sample the model's end tokens.
        logprobs: None for no log-probabilities, 0 for those of the sampled tokens, n for those of the n most
            probable tokens at each step as well. They are the model's own: at temperature 1, before
            constraints and the cut.
        prompt_logprobs: The same for prompt tokens; the prompt is then evaluated from the start.
        reasoning_budget: Maximum length of the reasoning in tokens; None or -1 for no limit, 0 for none.
            Once used up, a closing sentence and the closing tag are forced, at the end of the current
            sentence or after 32 more tokens. Forced tokens have k = 0.
        reasoning_sampler: Like `sampler`, while the model reasons, up to the end of the closing tag; None for
            the same. Calls are sampled like the answer, and so is the opening tag, if the model writes it.
        reasoning_temperature: Like `temperature`, while the model reasons; None for the same. Neither does
            anything with a model that does not reason (`Model.can_reason`).
        reasoning_message: The closing sentence; None for one that tells the model why it has to end.
        end_loops: What to do about text that repeats itself (`Answer.loops`): "reasoning" ends reasoning as a
            budget does, and the answer follows; "all" also ends an answer, with finish_reason "repetition";
            "none" ends nothing.
        constraints: Penalties, logit bias, a schema or a grammar: applied to the logits before the cut.

    Raises:
        ValueError: An option is out of range.
    """

    sampler: AnySampler | None = None
    temperature: float = 1.0
    max_tokens: int | None = None
    min_tokens: int = 0
    seed: int | None = None
    stop: Sequence[str] = ()
    stop_token_ids: TokenIds = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    reasoning_budget: int | None = None
    reasoning_sampler: AnySampler | None = None
    reasoning_temperature: float | None = None
    reasoning_message: str | None = None
    end_loops: EndLoops = "reasoning"
    constraints: Constraints | None = None

    def __post_init__(self) -> None:
        for name, limits in _RANGES.items():
            value = getattr(self, name)
            if value is not None or getattr(SamplingParams, name) is not None:
                self._set(name, limits.check(name, value, "None for a random one, or " * (name == "seed")))
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise OptionError("min_tokens", f"must be at most max_tokens, {self.max_tokens}")
        for name in ("sampler", "reasoning_sampler"):
            if (given := getattr(self, name)) is not None:
                self._set(name, as_sampler(given, name))
        stop: Any = [self.stop] if isinstance(self.stop, str) else self.stop
        self._set("stop", () if stop is None else as_texts("stop", stop, "a text or a list of texts"))
        self._set("stop_token_ids", tuple(as_ids("stop_token_ids", self.stop_token_ids)))
        if not all(self.stop):
            raise OptionError("stop", "must not contain an empty text, which ends every answer")
        check_types(
            ignore_eos=(self.ignore_eos, bool),
            reasoning_message=(self.reasoning_message, str | None),
            constraints=(self.constraints, Constraints | None),
        )
        if not isinstance(self.end_loops, str) or self.end_loops not in get_args(EndLoops):
            raise OptionError("end_loops", f"must be {' or '.join(get_args(EndLoops))}")

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    @property
    def effective_sampler(self) -> Sampler:
        """The sampler in use: greedy at temperature 0."""
        return Greedy() if self.temperature == 0 else cast(Sampler | None, self.sampler) or MinK()

    @property
    def while_reasoning(self) -> "SamplingParams":
        """These parameters with the sampler and the temperature that are in use while the model reasons."""
        temperature = self.reasoning_temperature
        return replace(
            self,
            sampler=self.reasoning_sampler or self.sampler,
            temperature=self.temperature if temperature is None else temperature,
            reasoning_sampler=None,
            reasoning_temperature=None,
        )

    @property
    def has_phases(self) -> bool:
        """Whether reasoning is sampled otherwise than the answer."""
        if self.reasoning_sampler is None and self.reasoning_temperature is None:
            return False
        other = self.while_reasoning
        return (other.effective_sampler, other.temperature) != (self.effective_sampler, self.temperature)


class SamplingOptions(TypedDict, total=False):
    """The fields of `SamplingParams` as keyword arguments."""

    sampler: AnySampler | None
    temperature: float
    max_tokens: int | None
    min_tokens: int
    seed: int | None
    stop: Sequence[str] | None
    stop_token_ids: TokenIds
    ignore_eos: bool
    logprobs: int | None
    prompt_logprobs: int | None
    reasoning_budget: int | None
    reasoning_sampler: AnySampler | None
    reasoning_temperature: float | None
    reasoning_message: str | None
    end_loops: EndLoops
    constraints: Constraints | None


_COUNTERPARTS = {  # of other libraries' options
    "temp": "temperature=…",
    **dict.fromkeys(("max_new_tokens", "max_completion_tokens", "n_predict", "num_predict"), "max_tokens=…"),
    "repetition_penalty": "constraints=Constraints(repeat_penalty=…)",
    "repeat_last_n": "constraints=Constraints(penalty_last_n=…)",
    **dict.fromkeys(("n", "num_return_sequences", "best_of"), "n=… to generate([messages], …)"),
    **dict.fromkeys(("stream", "streamer"), "nothing: iterate over the reply"),
    **dict.fromkeys(
        ("response_format", "format", "guided_json", "structured_outputs"),
        "constraints=Constraints(json_schema=…)",
    ),
    "echo": "prompt_logprobs=0, and print the prompt",
    **dict.fromkeys(("do_sample", "num_beams"), "temperature=0 for greedy"),
    **dict.fromkeys(("stop_strings", "stop_sequences", "stop_words"), "stop=…"),
    "eos_token_id": "stop_token_ids=…",
    "top_logprobs": "logprobs=…",
    **dict.fromkeys(("logits_processor", "logits_processors"), "edit=…, a function that changes the logits"),
    **dict.fromkeys(("use_tqdm", "progress"), "nothing: tqdm(model.generate(…)) shows the progress"),
    "batch_size": "n_parallel=… to load_model",
    **dict.fromkeys(("random_seed", "generator"), "seed=…"),
}


def owner_of(option: str) -> str:
    """Return where to pass an option known from other programs, to end a message; "" if unknown."""
    if option in _COUNTERPARTS:
        return f": pass {_COUNTERPARTS[option]}"
    for sampler in SAMPLERS.values():
        if option in sampler.request_fields:
            return f": pass sampler={sampler.__name__}({sampler.request_fields[option]}=…)"
    if option in Constraints.__dataclass_fields__:
        return f": pass constraints=Constraints({option}=…)"
    return ""


@dataclass(frozen=True)
class Request:
    """A prompt and how to answer it; lists and dicts are copied.

    Args:
        prompt: Messages, which the chat template turns into a prompt; or a raw text, in which control tokens
            are parsed; or token ids. If the last message is the assistant's, the answer continues it.
        params: How to sample the answer.
        enable_thinking: Whether the model reasons before answering, if the chat template has that switch;
            None leaves it to the template.
        prefix: Token ids that the answer begins with; they are not part of `Answer.tokens`.
        tools: Tools that the model may call, described to it by the chat template, or by a system message if
            the template has no tools: dicts as in OpenAI's API, or functions, of whose signature and
            docstring such a dict is made.
        tool_choice: "required" if the answer must be a call; or which one, as in OpenAI's API:
            `{"type": "function", "function": {"name": …}}`. Not with a regex, choice, schema or grammar: with
            "auto", an answer is a call or what the schema describes.
        parallel_tool_calls: Whether an answer may have several calls; None if it may unless one is forced: a
            small model does not find the end.
        watch: Called in the model's thread with a copy of the raw logits (V,) of every step, before its token
            is sampled. It must call nothing that waits for the model. If it raises, the answer ends with this
            error.
        edit: Called like `watch` and after it, to change the logits that this answer's token is sampled from:
            it changes its array, or returns another one (V,). Log-probabilities stay the model's own.
        n_rows: Number of tokens at the end of the prompt whose logits `watch` gets, in order: 1 for those of
            the first step alone. These tokens are evaluated even if they are in the KV cache.
        template_kwargs: Further variables of the chat template, JSON values, such as `reasoning_effort`.
        split_reasoning: Whether reasoning is separated from `Answer.content`, if the model reasons.

    Raises:
        OptionError: One of them is of another kind, or contradicts another.
    """

    prompt: Prompt
    params: SamplingParams = SamplingParams()
    _: KW_ONLY
    enable_thinking: bool | None = None
    prefix: TokenIds = ()
    tools: Sequence[Any] = ()
    watch: Callable[[NDArray[np.float32]], None] | None = None
    edit: Edit | None = None
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    split_reasoning: bool = True
    n_rows: int = 1
    tool_choice: str | Mapping[str, Any] = "auto"
    parallel_tool_calls: bool | None = None

    def __post_init__(self) -> None:
        check_types(
            params=(self.params, SamplingParams),
            enable_thinking=(self.enable_thinking, bool | None),
            tools=(self.tools, list | tuple),
            template_kwargs=(self.template_kwargs, Mapping | None),
            split_reasoning=(self.split_reasoning, bool),
            parallel_tool_calls=(self.parallel_tool_calls, bool | None),
        )
        self._set("prompt", read_prompt(self.prompt))
        self._set("prefix", as_ids("prefix", self.prefix))
        self._set("template_kwargs", plain("template_kwargs", self.template_kwargs or {}))
        self._set("n_rows", Range(1, whole=True).check("n_rows", self.n_rows))
        self._set("tools", [tool_of(each) if callable(each) else plain("tools", each) for each in self.tools])
        for name in ("watch", "edit"):
            function = getattr(self, name)
            if function is not None and (not callable(function) or iscoroutinefunction(function)):
                raise OptionError(name, f"must be a function, not {shown(function)}")
        names = [_name_of(tool) for tool in self.tools]
        if not all(isinstance(name, str) for name in names):
            raise OptionError(
                "tools", "must be functions, or dicts with type and function as in OpenAI's API"
            )
        if names and is_raw(self.prompt):
            raise OptionError("tools", "are described by the chat template: give messages, not a raw prompt")
        self._check_choice(names)

    def _check_choice(self, names: Sequence[Any]) -> None:
        """Raise OptionError unless there are such calls as `tool_choice` wants, and nothing else is asked."""
        choice, constraints = self.tool_choice, self.params.constraints
        if isinstance(choice, Mapping):
            if _name_of(choice) not in names:
                raise OptionError("tool_choice", "names a function that is not in tools")
        elif not isinstance(choice, str) or choice not in ("auto", "required"):
            raise OptionError("tool_choice", "must be auto, required or a function; for none, pass no tools")
        elif choice == "required" and not names:
            raise OptionError("tool_choice", "is required, but there are no tools")
        if choice != "auto" and constraints is not None and constraints.form is not None:
            other = constraints.form[0]
            raise OptionError(
                "tool_choice", f"and {other} exclude each other: an answer that is a call has no {other}"
            )

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)


def _name_of(tool: Any) -> Any:
    """Return the name of the function that a tool, or a choice of one, is; None if it is none."""
    function = tool.get("function") if isinstance(tool, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("parameters"), Mapping | None):
        return None
    return function.get("name")


class RequestOptions(SamplingOptions, total=False):
    """The fields of `Request` and `SamplingParams` as keyword arguments."""

    enable_thinking: bool | None
    prefix: TokenIds
    tools: Sequence[AnyTool]
    watch: Callable[[NDArray[np.float32]], None] | None
    edit: Edit | None
    template_kwargs: Mapping[str, Any] | None
    split_reasoning: bool
    n_rows: int
    tool_choice: str | Mapping[str, Any]
    parallel_tool_calls: bool | None


def requested(prompt: Prompt, params: SamplingParams | None, options: Mapping[str, Any]) -> Request:
    """Return a request with some options: its own, and those that replace ones of `params`.

    Raises OptionError if an option is out of range.
    """
    if not isinstance(params, SamplingParams | None):
        raise TypeError(f"params must be SamplingParams(…), not {shown(params)}: options have names")
    own = {name: value for name, value in options.items() if name in Request.__dataclass_fields__}
    of_sampling = {name: value for name, value in options.items() if name not in own}
    return Request(prompt, replace(params or SamplingParams(), **of_sampling), **own)
