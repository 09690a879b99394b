"""Samples a token from a row of logits, read in place in llama.cpp's memory."""

import ctypes
import weakref
from functools import cached_property, partial
from random import Random
from typing import Any, cast

import numpy as np
from llama_cpp import llama_cpp as C
from numpy.typing import NDArray

from mink_local.errors import GenerationError, NoTokenLeftError
from mink_local.llama.constraints import NO_TOKENS, Constrainer
from mink_local.llama.guide import Guide
from mink_local.llama.token_data import SamplingBuffers, write_token_data
from mink_local.samplers import AdaptiveP, DynamicTemperature, Mirostat, Sampler, Selector, kernels
from mink_local.samplers.rows import Program, program_of

_MIROSTAT_M = 100  # tokens from which version 1 estimates Zipf's exponent; llama.cpp's default


class TokenSampler:
    """Samples tokens from rows of logits: constraints, the sampler's cut, temperature, `dist`.

    The kernel reads the logits in llama.cpp's memory; only the candidates are copied, for llama.cpp's own
    `temp` and `dist`, or for their replacement if the sampler has one. With constraints, the
    kernel reads their result instead.

    Args:
        temperature: > 0, except with `Greedy`.
        seed: Seeds llama.cpp's random numbers, of which each token consumes one, and Python's for samplers
            that cut at random.

    Attributes:
        banned: Tokens that are not sampled at the next step.
        k: Number of candidates for the last token; with mirostat, the number it kept.
    """

    def __init__(
        self,
        sampler: Sampler,
        temperature: float,
        seed: int,
        n_vocab: int,
        constrainer: Constrainer | None = None,
        buffers: SamplingBuffers | None = None,
    ) -> None:
        self._constrainer = constrainer
        buffers = buffers or SamplingBuffers(n_vocab)
        self._candidates = buffers.workspace.ids
        self._random = Random(seed)
        self._selector = partial(sampler.selector, temperature, buffers.workspace, self._random)
        self._program = partial(program_of, sampler, temperature)
        self._drawn: list[float] = []  # random numbers for cuts to come
        self._records, self._array = buffers.records, buffers.array
        self._array_pointer = ctypes.byref(self._array)
        self._chain = C.llama_sampler_chain_init(C.llama_sampler_chain_default_params())
        weakref.finalize(self, C.llama_sampler_free, self._chain)
        self.address: int = ctypes.cast(self._chain, ctypes.c_void_p).value or 0
        last = sampler.members[-1]
        for handle in (_temperature(last, temperature), _choice(last, seed, n_vocab)):
            C.llama_sampler_chain_add(self._chain, handle)
        self._learns = isinstance(last, AdaptiveP)
        self.is_constrained = constrainer is not None
        self.banned: NDArray[np.int32] = NO_TOKENS
        self.k = 0

    # What `RowSampler` needs

    @cached_property
    def program(self) -> Program | None:
        """The sampler's cuts, or None if a row is only sampled by calling this object."""
        return self._program()

    @property
    def guide(self) -> Guide | None:
        """The guide of the constraints, if they have one."""
        return self._constrainer.guide if self._constrainer is not None else None

    @property
    def penalties(self) -> int:
        """Address of llama.cpp's samplers for bias and penalties; 0 if there are none."""
        return self._constrainer.penalties if self._constrainer is not None else 0

    def edits(self) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Return the tokens to ban, and those whose logits the penalties may change."""
        return self.banned, self._constrainer.changed if self._constrainer is not None else NO_TOKENS

    def draw(self) -> list[bool]:
        """Return which cuts are not made this time."""
        chances = cast(Program, self.program).chances
        while len(self._drawn) < sum(chance is not None for chance in chances):
            self._drawn.append(self._random.random())
        numbers = iter(self._drawn)
        return [chance is not None and next(numbers) >= chance for chance in chances]

    def use_up(self, n_cuts: int) -> None:
        """Forget the random numbers of the first cuts; those that were not needed are for the next token."""
        chances = cast(Program, self.program).chances[:n_cuts]
        del self._drawn[: sum(chance is not None for chance in chances)]

    def took(self, token: int, k: int) -> None:
        """Note a token sampled by `RowSampler`."""
        self.k = k
        if self._learns:
            C.llama_sampler_accept(self._chain, token)
        if self._constrainer is not None:
            self._constrainer.accept(token)

    # Sampling a row from Python

    @cached_property
    def _select(self) -> Selector:
        return self._selector()  # waits for Numba, so not before the prompt has been evaluated

    def __call__(self, logits: NDArray[np.float32], step: int) -> int:
        """Sample one token from raw logits, contiguous float32 (V,); error messages name `step`.

        Raises:
            GenerationError: A logit is NaN, none is finite, or the constraints leave no token. llama.cpp
                would return some token regardless.
        """
        row = logits if self.banned.size == 0 else self._without_banned(logits)
        if self._constrainer is not None:
            row = self._constrainer.apply(row)
        k = self._select(row)
        if k < 0:
            if k == kernels.NO_FINITE_LOGIT and np.isfinite(logits).any():
                raise NoTokenLeftError(f"grammar, logit bias and penalties leave no token at step {step}")
            raise GenerationError(broken(k, step))
        write_token_data(row, self._candidates, k, self._records)
        array = self._array
        array.size, array.selected, array.sorted = k, -1, False
        C.llama_sampler_apply(self._chain, self._array_pointer)
        token = int(self._records["id"][array.selected])
        self.took(token, array.size)
        return token

    def _without_banned(self, logits: NDArray[np.float32]) -> NDArray[np.float32]:
        row = logits.copy()
        row[self.banned[~np.isnan(logits[self.banned])]] = -np.inf  # must not hide a NaN
        return row

    def accept(self, token: int) -> None:
        """Tell the constraints about a token that was forced, not sampled."""
        if self._constrainer is not None:
            self._constrainer.accept(token)

    def forced(self) -> list[int]:
        """Return the tokens that the constraints leave no choice about."""
        return self._constrainer.forced() if self._constrainer is not None else []

    def may_end(self, text: str) -> bool:
        """Return whether the constraints let the answer end with a text, all of it so far."""
        return self._constrainer is None or self._constrainer.may_end(text)

    @property
    def is_over(self) -> bool:
        """Whether the constraints let nothing follow."""
        return self._constrainer is not None and self._constrainer.is_over


def broken(error: int, step: int) -> str:
    """Return the message for a row that a kernel rejected."""
    what = "a NaN logit" if error == kernels.HAS_NAN else "no finite logit"
    return (
        f"the model returned {what} at step {step}: its file is damaged, or its weights overflow on this "
        "device (try n_gpu_layers=0)"
    )


def _temperature(last: Sampler, temperature: float) -> Any:
    """Return llama.cpp's sampler for the temperature; `last` is the last sampler of a chain."""
    if isinstance(last, DynamicTemperature):
        return C.llama_sampler_init_temp_ext(temperature, last.range, last.exponent)
    return C.llama_sampler_init_temp(temperature)


def _choice(last: Sampler, seed: int, n_vocab: int) -> Any:
    """Return the llama.cpp sampler that picks the token: `dist`, unless `last` picks it itself."""
    if isinstance(last, AdaptiveP):
        return C.llama_sampler_init_adaptive_p(last.target, last.decay, seed)
    if not isinstance(last, Mirostat):
        return C.llama_sampler_init_dist(seed)
    if last.version == 1:
        return C.llama_sampler_init_mirostat(n_vocab, seed, last.tau, last.eta, _MIROSTAT_M)
    return C.llama_sampler_init_mirostat_v2(seed, last.tau, last.eta)
