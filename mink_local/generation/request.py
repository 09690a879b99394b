"""Requests: a prompt, and how its answer is sampled."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypedDict, TypeGuard

import numpy as np
from numpy.typing import NDArray

from mink_local.llama.constants import MAX_SEED, check_range
from mink_local.llama.constraints import Constraints
from mink_local.samplers import SAMPLERS, Greedy, MinK, Sampler

Message = Mapping[str, Any]
"""A dict with "role" (str) and "content": a str, or a list of `{"type": "text", "text": str}` parts.

The assistant's may have "tool_calls" and no content; a message of the role "tool" has the result of one.
"""

Tool = Mapping[str, Any]
"""A tool that the model may call: {"type": "function", "function": {"name", "description", "parameters"}}."""

Prompt = str | Sequence[Message] | Sequence[int]


def is_token_ids(prompt: Sequence[Message] | Sequence[int]) -> TypeGuard[Sequence[int]]:
    """Return whether a prompt that is no text is a list of token ids."""
    return len(prompt) > 0 and isinstance(prompt[0], int)


def is_raw(prompt: Prompt) -> bool:
    """Return whether a prompt is a text or token ids, for which the chat template is not used."""
    return isinstance(prompt, str) or is_token_ids(prompt)


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """Options for the tokens of an answer, and for its end.

    The options of a sampler are its own: `sampler=TopP(p=0.9)` instead of `top_p=0.9`.

    Args:
        sampler: Decides the candidates; None is `MinK()`.
        temperature: Divides the logits of the candidates; 0 takes the largest logit.
        max_tokens: Most tokens of the answer; None leaves it to the context.
        min_tokens: Number of tokens before one that ends the answer (the model's own or one of
            `stop_token_ids`) can be sampled.
        seed: 0 to 2^32 - 2; None is a random one.
        stop: Strings that end the answer and are not part of it.
        stop_token_ids: Tokens that end the answer and are not part of it, besides the model's own.
        ignore_eos: Never sample the tokens with which the model ends its answers.
        logprobs: None for no log-probabilities; 0 for those of the sampled tokens; n for those of the n
            most probable tokens of each step as well. They are those of the model itself: at temperature
            1, before constraints and the cut.
        prompt_logprobs: The same for the tokens of the prompt, which is then evaluated from the start.
        reasoning_budget: Maximum number of tokens of reasoning; None and -1 are no limit, 0 is no reasoning.
            When they are used up, a closing sentence and the closing mark are forced, at the end of the
            current sentence or after 32 more tokens. Forced tokens have k = 0. No effect with a grammar.
        constraints: Penalties, logit bias, a grammar: they change the logits before the cut.

    Raises:
        TypeError: There is no such option; the error says which object has it.
        ValueError: An option is out of range.
    """

    sampler: Sampler | None = None
    temperature: float = 1.0
    max_tokens: int | None = None
    min_tokens: int = 0
    seed: int | None = None
    stop: Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    reasoning_budget: int | None = None
    constraints: Constraints | None = None

    def __new__(cls, **options: object) -> "SamplingParams":
        for name in options:
            if name not in cls.__dataclass_fields__:
                raise TypeError(f"SamplingParams has no option {name}{_owner_of(name)}")
        return super().__new__(cls)

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < float("inf"):
            raise ValueError(f"temperature must be a finite number of at least 0, not {self.temperature}")
        if isinstance(self.stop, str) or not all(self.stop):
            raise ValueError("stop must be a list of strings that are not empty")
        check_range("max_tokens", self.max_tokens, 1)
        check_range("min_tokens", self.min_tokens, 0)
        check_range("seed", self.seed, 0, MAX_SEED)
        check_range("logprobs", self.logprobs, 0)
        check_range("prompt_logprobs", self.prompt_logprobs, 0)
        check_range("reasoning_budget", self.reasoning_budget, -1)

    @property
    def effective_sampler(self) -> Sampler:
        """The sampler in use: greedy at temperature 0."""
        return Greedy() if self.temperature == 0 else self.sampler or MinK()

    @property
    def has_grammar(self) -> bool:
        """True if a grammar or a JSON schema decides the form of the text."""
        constraints = self.constraints
        return constraints is not None and (constraints.grammar or constraints.json_schema) is not None

    @property
    def limits_reasoning(self) -> bool:
        """True if reasoning is to end at a budget, and no grammar decides where it ends."""
        return self.reasoning_budget not in (None, -1) and not self.has_grammar

    @property
    def needs_logits(self) -> bool:
        """True if these parameters read or change the logits, or force tokens."""
        return bool(
            self.constraints
            or self.logprobs is not None
            or self.prompt_logprobs is not None
            or self.ignore_eos
            or self.min_tokens
            or self.limits_reasoning
        )


# `__new__` takes any option, to say where it belongs; help() and editors show the fields.
SamplingParams.__signature__ = inspect.signature(partial(SamplingParams.__init__, SamplingParams()))  # type: ignore[attr-defined]


def _owner_of(option: str) -> str:
    """Return where to pass an option of other programs, as the end of a message; "" for an unknown one."""
    for sampler in SAMPLERS.values():
        if option in sampler.request_fields:
            return f": pass sampler={sampler.__name__}({sampler.request_fields[option]}=…)"
    if option in Constraints.__dataclass_fields__:
        return f": pass constraints=Constraints({option}=…)"
    return ""


class SamplingOptions(TypedDict, total=False):
    """The fields of `SamplingParams` as keyword arguments."""

    sampler: Sampler | None
    temperature: float
    max_tokens: int | None
    min_tokens: int
    seed: int | None
    stop: Sequence[str]
    stop_token_ids: Sequence[int]
    ignore_eos: bool
    logprobs: int | None
    prompt_logprobs: int | None
    reasoning_budget: int | None
    constraints: Constraints | None


@dataclass(frozen=True)
class Request:
    """A prompt and how it is answered.

    Args:
        prompt: Messages, from which the chat template makes the prompt; or a raw text, in which control
            tokens are parsed, or token ids. If the last message is the assistant's, the answer continues it.
        params: How the answer is sampled.
        enable_thinking: Whether the model reasons before it answers, for a chat template with that switch;
            None leaves it to the template.
        prefix: Token ids that the answer begins with; they are not part of `Answer.tokens`.
        tools: Tools that the model may call: the chat template describes them.
        watch: Called in the engine's thread with the raw logits (V,) of every step, before its token is
            sampled. It must not raise, and must copy what it keeps of them.
    """

    prompt: Prompt
    params: SamplingParams = SamplingParams()
    enable_thinking: bool | None = None
    prefix: Sequence[int] = ()
    tools: Sequence[Tool] = ()
    watch: Callable[[NDArray[np.float32]], None] | None = None

    @property
    def needs_logits(self) -> bool:
        """True if something reads or changes the logits, so that tokens are sampled on the host."""
        return self.watch is not None or self.params.needs_logits
