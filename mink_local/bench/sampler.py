"""Time one step of every sampler, for `mink-bench sampler`."""

import ctypes
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from llama_cpp import llama_cpp as C
from numpy.typing import NDArray

from mink_local.bench.measuring import Row, in_turn, seconds
from mink_local.errors import MinkError
from mink_local.generation.model import Model
from mink_local.llama.token_data import TOKEN_DATA
from mink_local.llama.token_sampler import TokenSampler
from mink_local.samplers import Greedy, MinK, MinP, Sampler, TopK, TopNSigma, TopP, Workspace

PROMPT = "Tell me a long story about a dog named Max who went to the sea."

Logits = NDArray[np.float32]
Timed = Callable[[Logits], float]  # a row of logits (V,) to seconds

FORMS = ("cut_us", "step_us", "llama_cpp_us", "processor_us")

LLAMA_CPP: dict[type[Sampler], Callable[[Any], Any]] = {
    Greedy: lambda _: C.llama_sampler_init_greedy(),
    TopK: lambda sampler: C.llama_sampler_init_top_k(sampler.k),
    TopP: lambda sampler: C.llama_sampler_init_top_p(sampler.p, 1),
    MinP: lambda sampler: C.llama_sampler_init_min_p(sampler.p, 1),
    TopNSigma: lambda sampler: C.llama_sampler_init_top_n_sigma(sampler.n),
}
"""llama.cpp's own sampler of a method, if llama.cpp has one."""


def time_samplers(logits: Logits, samplers: Sequence[Sampler], temperature: float, rounds: int) -> list[Row]:
    """Time samplers on one thread, next to np.max and a full np.sort.

    Args:
        logits: Raw logits (n, V); round i takes row i modulo n.
        samplers: The samplers.
        temperature: Above 0.
        rounds: Rounds, each of which times everything once.

    Returns:
        A row per method with median microseconds of one step, None for a form that a method lacks: `cut`
        alone; `step`, which is cut, temperature and sampling as in generation; `llama_cpp`, its own sampler
        on candidates already in place; `processor`, a logits processor in Python.
    """
    n_vocab = logits.shape[1]
    contestants: dict[tuple[str, str], Timed] = {("np.max", "cut_us"): _timed(np.max)}
    for sampler in samplers:
        name = str(sampler)
        contestants[name, "cut_us"] = _timed(sampler.selector(temperature, Workspace(n_vocab)))
        contestants[name, "step_us"] = _timed(partial(TokenSampler(sampler, temperature, 1, n_vocab), step=1))
        contestants[name, "processor_us"] = _processor(sampler, temperature)
        if type(sampler) in LLAMA_CPP:
            contestants[name, "llama_cpp_us"] = _llama_cpp(sampler, n_vocab)
    contestants["np.sort", "cut_us"] = _timed(np.sort)
    rows = [np.ascontiguousarray(row) for row in logits]
    timed = in_turn({key: _warm(contestant, rows) for key, contestant in contestants.items()}, rounds)
    costs: dict[str, Row] = {}
    for (method, form), times in timed.items():
        empty = {"method": method, "vocabulary": n_vocab, **dict.fromkeys(FORMS)}
        costs.setdefault(method, empty)[form] = 1e6 * median(times)
    return list(costs.values())


def _warm(contestant: Timed, rows: Sequence[Logits]) -> Callable[[int], float]:
    """Return the last of three calls' seconds: the row and the buffers are in the caches then."""
    return lambda i: [contestant(rows[i % len(rows)]) for _ in range(3)][-1]


def _timed(function: Callable[..., object]) -> Timed:
    return lambda row: seconds(partial(function, row))


def _processor(sampler: Sampler, temperature: float) -> Timed:
    """Time a logits processor on the strided view that llama-cpp-python gives it."""
    process = sampler.at(temperature)

    def contestant(row: Logits) -> float:
        scores = np.zeros(row.size, TOKEN_DATA)["logit"]
        scores[:] = row
        return seconds(lambda: process([], scores))

    return contestant


def _llama_cpp(sampler: Sampler, n_vocab: int) -> Timed:
    """Time llama.cpp's sampler on a llama_token_data_array that is filled already."""
    own = LLAMA_CPP[type(sampler)](sampler)
    records = np.zeros(n_vocab, TOKEN_DATA)
    array = C.llama_token_data_array()
    array.data = ctypes.cast(records.ctypes.data, C.llama_token_data_p)

    def contestant(row: Logits) -> float:
        records["id"] = np.arange(n_vocab)
        records["logit"] = row
        array.size, array.selected, array.sorted = n_vocab, -1, False
        return seconds(lambda: C.llama_sampler_apply(own, ctypes.byref(array)))

    weakref.finalize(contestant, C.llama_sampler_free, own)
    return contestant


def logits_of_answer(model: Model, count: int = 32) -> Logits:
    """Return the raw logits (count, V) of the first steps of an answer."""
    messages = [{"role": "user", "content": PROMPT}]
    reply = model.chat(messages, sampler=MinK(), seed=1, max_tokens=count, ignore_eos=True)
    reply.read()
    return np.stack([model.logits(messages, prefix=reply.tokens[:i]) for i in range(count)])


def read_logits(path: Path) -> Logits:
    """Return the logits (n, V) of the array `logits` of an .npz file. Raises MinkError if there is none."""
    try:
        with np.load(path, allow_pickle=False) as file:
            logits = np.asarray(file["logits"], np.float32)
    except (OSError, ValueError, KeyError) as error:
        raise MinkError(f"{path} is not an .npz file with an array named logits: {error}") from None
    if logits.ndim != 2 or logits.size == 0:
        raise MinkError(f"the logits in {path} must have the shape (rows, V), not {logits.shape}")
    return logits
