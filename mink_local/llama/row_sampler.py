"""Samples the answers of a step together: one compiled call for each thread, without the GIL."""

import ctypes
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import cast

import numpy as np
from llama_cpp import llama_cpp as C
from numpy.typing import NDArray

from mink_local.llama.guide import fill_masks
from mink_local.llama.token_data import ARRAY, TASK, TOKEN_DATA, sample_rows
from mink_local.llama.token_sampler import TokenSampler
from mink_local.samplers.rows import Program, scratch_arrays

_APPLY = np.uint64(ctypes.cast(C._lib.llama_sampler_apply, ctypes.c_void_p).value or 0)
_MOST_THREADS = 8
_WORTHWHILE = 1 << 20  # logits for each thread: reading fewer takes less time than waking one


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
        self._buffers: list[_Buffers] = []
        self._samplers: list[TokenSampler] = []
        self._edits = np.empty(0, np.int32)
        self._masks = np.zeros((1, -(-n_vocab // 32)), np.uint32)
        self._guided: dict[TokenSampler, int] = {}  # the row of each one's mask
        self._filling: Future[None] | None = None

    def fill_masks(self, samplers: Sequence[TokenSampler]) -> None:
        """Begin to compute the masks of samplers with a guide, for the next call: in other threads."""
        self._wait()  # for those of a batch that was given up
        guides = {sampler: sampler.guide for sampler in samplers if sampler.guide}
        self._guided = {sampler: i for i, sampler in enumerate(guides)}
        if len(guides) > len(self._masks):
            self._masks = np.zeros((len(guides), self._masks.shape[1]), np.uint32)
        if guides:
            self._filling = self._pool.submit(fill_masks, list(guides.values()), self._masks)

    def __call__(
        self, logits: NDArray[np.float32], rows: Sequence[int], samplers: list[TokenSampler]
    ) -> tuple[list[int], list[int]]:
        """Sample a token for each of `samplers`, which have a `program`.

        Args:
            logits: Raw logits, float32 (n, V).
            rows: The row of each sampler.

        Returns:
            The tokens, and the numbers of candidates; where that is not positive, it is a kernel's error.
        """
        self._wait()
        if samplers != self._samplers:
            self._plan(samplers)
        tasks = self._tasks
        tasks["row"] = rows
        if self._edited:
            self._edit()
        for i in self._random:
            self._cuts["is_off"][tasks["cut"][i] : tasks["cut_end"][i]] = samplers[i].draw()
        self._run(logits)
        for i in self._random:
            samplers[i].use_up(int(tasks["n_cuts"][i]))
        return tasks["token"].tolist(), tasks["k"].tolist()

    def _plan(self, samplers: list[TokenSampler]) -> None:
        """Lay out the samplers' cuts; which answers there are changes less often than their rows."""
        self._samplers = samplers
        programs = [cast(Program, sampler.program) for sampler in samplers]
        self._tasks = tasks = np.zeros(len(samplers), TASK)
        tasks["chain"] = [sampler.address for sampler in samplers]
        tasks["penalties"] = [sampler.penalties for sampler in samplers]
        tasks["mask"] = -1
        tasks["cut_end"] = np.cumsum([len(program.cuts) for program in programs])
        tasks["cut"][1:] = tasks["cut_end"][:-1]
        self._cuts = np.concatenate([program.cuts for program in programs])
        self._options = np.concatenate([program.options for program in programs])
        starts = np.cumsum([0, *(program.options.size for program in programs[:-1])])
        shift = np.repeat(starts, [len(program.cuts) for program in programs])
        self._cuts["start"] += shift
        self._cuts["stop"] += shift
        self._edited = [
            i for i, sampler in enumerate(samplers) if sampler.is_constrained or sampler.banned.size
        ]
        self._random = [
            i for i, program in enumerate(programs) if program.chances.count(None) < len(program.chances)
        ]

    def _edit(self) -> None:
        """Tell the tasks about their samplers' bans, penalties and masks."""
        tasks, samplers = self._tasks, [self._samplers[i] for i in self._edited]
        parts = [part for sampler in samplers for part in sampler.edits()]
        ends = np.cumsum([0, *(part.size for part in parts)])
        tasks["ban"][self._edited], tasks["change"][self._edited] = ends[:-1:2], ends[1::2]
        tasks["change_end"][self._edited] = ends[2::2]
        tasks["mask"][self._edited] = [self._guided.get(sampler, -1) for sampler in samplers]
        self._edits = np.concatenate(parts)

    def _run(self, logits: NDArray[np.float32]) -> None:
        n = min(self._n_threads, max(1, len(self._tasks) * self._n_vocab // _WORTHWHILE))
        while len(self._buffers) < n:
            self._buffers.append(_Buffers(self._n_vocab))
        own, *others = zip(np.array_split(self._tasks, n), self._buffers, strict=False)
        running = [self._pool.submit(self._sample, logits, *other) for other in others]
        self._sample(logits, *own)
        for each in running:
            each.result()

    def _sample(self, logits: NDArray[np.float32], tasks: NDArray[np.void], buffers: "_Buffers") -> None:
        sample_rows(
            _APPLY, logits, tasks, self._cuts, self._options, self._edits, self._masks, *buffers.arrays
        )

    def _wait(self) -> None:
        """Wait for the masks."""
        if self._filling is not None:
            self._filling.result()
        self._filling = None


class _Buffers:
    """What `sample_rows` overwrites in a thread."""

    def __init__(self, n_vocab: int) -> None:
        records, array = np.empty(n_vocab, TOKEN_DATA), np.zeros(1, ARRAY)
        array["data"] = records.ctypes.data
        self.arrays = (scratch_arrays(n_vocab), np.zeros(n_vocab, np.bool_), records, array)
