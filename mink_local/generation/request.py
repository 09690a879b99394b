"""Requests: a prompt, and how its answer is sampled."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict, TypeGuard

import numpy as np
from numpy.typing import NDArray

from mink_local.llama.constraints import Constraints
from mink_local.llama.context import MAX_SEED
from mink_local.samplers import Greedy, MinK, Sampler

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


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """Options for the tokens of an answer, and for its end.

    Args:
        sampler: The method that decides the candidates; None is `MinK()`.
        temperature: Divides the logits of the candidates; 0 takes the largest logit.
        max_tokens: Most tokens of the answer; None leaves it to the context.
        min_tokens: As many tokens come before one that ends the answer (the model's own or one of
            `stop_token_ids`) can be sampled.
        seed: 0 to 2^32 - 2; None is a random one.
        stop: Strings that end the answer and are not part of it.
        stop_token_ids: Tokens that end the answer and are not part of it, besides the model's own.
        ignore_eos: Never sample a token that the model ends its answers with.
        logprobs: None for no log-probabilities; 0 for those of the sampled tokens; n for those of the n
            most probable tokens of each step as well. They are of the model's own distribution:
            temperature 1, before constraints and cut.
        prompt_logprobs: The same for the tokens of the prompt, which is evaluated whole for them.
        constraints: Penalties, logit bias, a grammar: they change the logits before the cut.

    Raises:
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
    constraints: Constraints | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < float("inf"):
            raise ValueError(f"temperature must be a finite number of at least 0, not {self.temperature}")
        if self.max_tokens is not None and self.max_tokens < 1:
            raise ValueError(f"max_tokens must be at least 1, not {self.max_tokens}")
        if self.min_tokens < 0:
            raise ValueError(f"min_tokens must be at least 0, not {self.min_tokens}")
        if self.seed is not None and not 0 <= self.seed <= MAX_SEED:
            raise ValueError(f"seed must be from 0 to {MAX_SEED}, not {self.seed}")
        if isinstance(self.stop, str) or not all(self.stop):
            raise ValueError("stop must be a list of strings that are not empty")
        if self.logprobs is not None and self.logprobs < 0:
            raise ValueError(f"logprobs must be at least 0, not {self.logprobs}")
        if self.prompt_logprobs is not None and self.prompt_logprobs < 0:
            raise ValueError(f"prompt_logprobs must be at least 0, not {self.prompt_logprobs}")

    @property
    def effective_sampler(self) -> Sampler:
        """The sampler in use: greedy at temperature 0."""
        return Greedy() if self.temperature == 0 else self.sampler or MinK()

    @property
    def needs_logits(self) -> bool:
        """True if the logits are looked at or changed for these parameters."""
        return bool(
            self.constraints
            or self.logprobs is not None
            or self.prompt_logprobs is not None
            or self.ignore_eos
            or self.min_tokens
        )


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
    constraints: Constraints | None


@dataclass(frozen=True)
class Request:
    """A prompt and how it is answered.

    Args:
        prompt: Messages, from which the chat template makes the prompt; or a text, whose control tokens are
            read as such, or token ids, which the answer continues. If the last message is the assistant's,
            the answer continues it.
        params: How the answer is sampled.
        enable_thinking: The switch of a chat template that has one: whether the model reasons before it
            answers. None leaves it alone.
        prefix: Token ids that the answer begins with; they are not part of `Answer.tokens`.
        tools: Tools that the chat template describes to the model.
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
        """True if the logits are looked at or changed, so that tokens are sampled on the host."""
        return self.watch is not None or self.params.needs_logits
