"""Samples tokens from rows of logits, read in place in llama.cpp's memory.

A `TokenSampler` is one answer's; a `RowSampler` calls those of a step together: one compiled call for each
thread, without the GIL.
"""

import ctypes
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import cached_property, partial
from operator import is_
from random import Random
from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from mink_local.errors import GenerationError, NoTokenLeftError
from mink_local.llama.constraints import Constrainer
from mink_local.llama.guide import Guide, fill_masks
from mink_local.llama.library import C
from mink_local.llama.token_data import (
    APPLY,
    TASK,
    SamplingBuffers,
    address_of_edit,
    choose,
    sample_rows,
)
from mink_local.samplers import AdaptiveP, DynamicTemperature, Mirostat, Sampler, kernels
from mink_local.samplers.compile import announce
from mink_local.samplers.rows import CUT, NO_TOKENS, Masks, Program, address_of, address_of_mask, program_of
from mink_local.threads import run

T = TypeVar("T")

_MOST_THREADS = 8
_WORTHWHILE = 1 << 20  # logits for each thread: reading fewer takes less time than waking one
_COLDEST = 1e-30
_MIROSTAT_M = 100  # tokens from which version 1 estimates Zipf's exponent; llama.cpp's default


class TokenSampler:
    """Samples tokens from rows of logits: constraints, the sampler's cut, temperature, `dist`.

    The kernel reads the logits in llama.cpp's memory; only the candidates are copied, for llama.cpp's own
    `temp` and `dist`, or the sampler that replaces them. With constraints, the
    kernel reads their result instead.

    Args:
        temperature: > 0, except with `Greedy`.
        seed: Seeds llama.cpp's random numbers, of which each token consumes one, and Python's for samplers
            that cut at random.

    Attributes:
        constrainer: The constraints.
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
        self.constrainer = constrainer or Constrainer()
        self._buffers = buffers or SamplingBuffers(n_vocab)
        self._random = Random(seed)
        self._select = sampler.checked_selector(temperature, self._buffers.workspace, self._random)
        self._program = partial(program_of, sampler, temperature)
        self._drawn: list[float] = []  # random numbers for cuts to come
        self._chain = C.llama_sampler_chain_init(C.llama_sampler_chain_default_params())
        # Not at the end of the program: other threads may still be using it then.
        weakref.finalize(self, C.llama_sampler_free, self._chain).atexit = False
        self.address: int = ctypes.cast(self._chain, ctypes.c_void_p).value or 0
        last = sampler.members[-1]
        for handle in (_temperature(last, temperature), _choice(last, seed, n_vocab)):
            C.llama_sampler_chain_add(self._chain, handle)
        self._learns = isinstance(last, AdaptiveP)
        self.banned: NDArray[np.int32] = NO_TOKENS
        self.k = 0

    # What `RowSampler` needs

    @cached_property
    def program(self) -> Program | None:
        """The sampler's cuts, or None if a row is only sampled by calling this object."""
        announce(sample_rows.__name__)
        return self._program()  # waits for Numba, so not before the prompt has been evaluated

    def draw(self) -> NDArray[np.uint64]:
        """Return the kernels of the cuts: `every_finite` for those that are not made this time."""
        cuts, chances = cast(Program, self.program)
        while len(self._drawn) < sum(chance is not None for chance in chances):
            self._drawn.append(self._random.random())
        numbers = iter(self._drawn)
        is_off = [chance is not None and next(numbers) >= chance for chance in chances]
        return np.where(is_off, np.uint64(address_of(kernels.every_finite)), cuts["kernel"])

    def use_up(self, n_cuts: int) -> None:
        """Forget the random numbers of the first cuts; those that were not needed are for the next token."""
        chances = cast(Program, self.program).chances[:n_cuts]
        del self._drawn[: sum(chance is not None for chance in chances)]

    def took(self, token: int, k: int) -> None:
        """Note a token sampled by `RowSampler`."""
        self.k = k
        if self._learns:
            C.llama_sampler_accept(self._chain, token)
        self.constrainer.accept(token)

    # Sampling a row from Python

    def __call__(self, logits: NDArray[np.float32], step: int) -> int:
        """Sample one token from raw logits, contiguous float32 (V,); error messages name `step`.

        Raises:
            GenerationError: A logit is NaN, none is finite, or the constraints leave no token. llama.cpp
                would return some token regardless.
            OptionError: A sampler of others returned candidates that are none.
        """
        row = self.constrainer.apply(logits, self._buffers, self.banned)
        k = self._select(row)
        if k < 0:
            if k == kernels.NO_FINITE_LOGIT and np.isfinite(logits).any():
                raise NoTokenLeftError(f"grammar, logit bias and penalties leave no token at step {step}")
            raise GenerationError(broken(k, step))
        token, k = choose(APPLY, self.address, row, k, self._buffers.arrays)
        self.took(token, k)
        return int(token)


class RowSampler:
    """Samples tokens for many answers from rows of logits, each with its own `TokenSampler`.

    The tokens and random numbers are those of calling the samplers one by one.

    Args:
        n_threads: Maximum number of threads.
    """

    def __init__(self, n_vocab: int, n_threads: int) -> None:
        self._n_vocab = n_vocab
        self._n_threads = min(n_threads, _MOST_THREADS)
        self._pool = ThreadPoolExecutor(self._n_threads, "sample")  # without threads until it is used
        self._buffers: list[SamplingBuffers] = []
        self._samplers: list[TokenSampler] = []
        self._edits = np.empty(0, np.int32)
        self._masks = Masks(1, n_vocab)
        self._guides: list[Guide] = []  # in the order of their masks
        self._filling: Future[None] | None = None

    def fill_masks(self, guides: list[Guide]) -> None:
        """Begin to compute the masks of guides, for the next call: in other threads."""
        if self._filling is not None:  # for a batch that was given up
            with suppress(BaseException):
                self.wait()
        if guides != self._guides:
            self._guides, self._samplers = guides, []
        if len(guides) > len(self._masks.bits):
            self._masks = Masks(len(guides), self._n_vocab)
        if guides:
            self._filling = self._begin(partial(self._fill, guides))

    def _fill(self, guides: Sequence[Guide]) -> None:
        fill_masks(guides, self._masks.bits)
        self._masks.list(len(guides))

    def __call__(
        self, logits: NDArray[np.float32], rows: Sequence[int], samplers: list[TokenSampler]
    ) -> tuple[list[int], list[int]]:
        """Sample a token for each of `samplers`, which have a `program`.

        Args:
            logits: Raw logits, float32 (n, V); not changed in the end.
            rows: The row of each sampler.

        Returns:
            The tokens, and the numbers of candidates; where that is not positive, it is a kernel's error.
        """
        self.wait()
        if not samplers:
            return [], []
        if samplers != self._samplers:
            self._plan(samplers)
        tasks = self._tasks
        tasks["row"] = rows
        if self._edited:
            self._edit()
        for i in self._random:
            self._cuts["kernel"][tasks["cut"][i] : tasks["cut_end"][i]] = samplers[i].draw()
        is_shared = len(self._edited) > 0 and len(set(rows)) < len(rows)  # rows are edited in place
        self._run(logits, 1 if is_shared else self._n_threads)
        for i in self._random:
            samplers[i].use_up(int(tasks["n_cuts"][i]))
        return tasks["token"].tolist(), tasks["k"].tolist()

    def _plan(self, samplers: list[TokenSampler]) -> None:
        """Lay out the samplers' cuts; which answers there are changes less often than their rows."""
        self._samplers = [*samplers]  # in the caller's list, they may change
        programs = [cast(Program, sampler.program) for sampler in samplers]
        self._tasks = tasks = np.zeros(len(samplers), TASK)
        tasks["chain"] = [sampler.address for sampler in samplers]
        tasks["penalties"] = [sampler.constrainer.penalties for sampler in samplers]
        numbers = {guide: i for i, guide in enumerate(self._guides)}
        guides = [sampler.constrainer.guide for sampler in samplers]
        tasks["mask"] = [-1 if guide is None else numbers[guide] for guide in guides]
        tasks["cut_end"] = np.cumsum([len(program.cuts) for program in programs])
        tasks["cut"][1:] = tasks["cut_end"][:-1]
        # NumPy takes 5 us to concatenate each array of records.
        self._cuts = np.frombuffer(bytearray().join(program.cuts.tobytes() for program in programs), CUT)
        self._parts: list[NDArray[np.int32]] = []  # of `_edits`
        self._edited = [
            i for i, sampler in enumerate(samplers) if sampler.constrainer.is_on or sampler.banned.size
        ]
        needed = address_of_edit() if self._edited else 0, address_of_mask() if self._guides else 0
        self._addresses = np.array(needed, np.uint64)
        self._random = [
            i for i, program in enumerate(programs) if program.chances.count(None) < len(program.chances)
        ]

    def _edit(self) -> None:
        """Tell the tasks about their samplers' bans and penalties."""
        samplers = [self._samplers[i] for i in self._edited]
        parts = [part for each in samplers for part in (each.banned, each.constrainer.changed)]
        if self._parts and all(map(is_, parts, self._parts)):
            return
        self._parts = parts
        ends = np.cumsum([0, *(part.size for part in parts)])
        for n, field in enumerate(("ban", "change", "change_end")):
            self._tasks[field][self._edited] = ends[n::2][: len(samplers)]
        self._edits = np.concatenate(parts)

    def _run(self, logits: NDArray[np.float32], n_threads: int) -> None:
        n = min(n_threads, max(1, len(self._tasks) * self._n_vocab // _WORTHWHILE))
        while len(self._buffers) < n:
            self._buffers.append(SamplingBuffers(self._n_vocab))
        running = [self._begin(partial(self._sample, logits, i, n)) for i in range(1, n)]
        self._sample(logits, 0, n)
        for each in running:
            each.result()

    def _begin(self, function: Callable[[], T]) -> "Future[T]":
        """Call a function in another thread; at once if there are no more, since the program ends."""
        try:
            return self._pool.submit(function)
        except RuntimeError:
            future: Future[T] = Future()
            run(future, function)
            return future

    def _sample(self, logits: NDArray[np.float32], i: int, n: int) -> None:
        """Do the i-th of n parts of the tasks."""
        tasks = self._tasks[len(self._tasks) * i // n : len(self._tasks) * (i + 1) // n]
        of_masks = self._masks.arrays, self._addresses
        sample_rows(APPLY, logits, tasks, self._cuts, self._edits, *of_masks, self._buffers[i].arrays)

    def wait(self) -> None:
        """Wait for the masks. Raises what has kept them from being computed."""
        filling, self._filling = self._filling, None
        if filling is not None:
            filling.result()


def broken(error: int, step: int) -> str:
    """Return the message for a row that a kernel rejected."""
    what = "a NaN logit" if error == kernels.HAS_NAN else "no finite logit"
    return (
        f"the model returned {what} at step {step}: its file is damaged, or its weights overflow on this "
        "device (try n_gpu_layers=0)"
    )


def _temperature(last: Sampler, temperature: float) -> Any:
    """Return llama.cpp's sampler for the temperature; `last` is the last sampler of a chain.

    Below `_COLDEST`, divided logits overflow there, and the token would be the one with the highest id.
    """
    temperature = temperature if temperature > _COLDEST else 0.0
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
