"""Time a step of sampling next to references.

No machine keeps its speed for long, so contestants take turns, and only figures from the same round are
compared.
"""

import ctypes
import time
import weakref
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from statistics import median
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from mink_local.generation.model import Model
from mink_local.llama.library import C
from mink_local.llama.token_data import TOKEN_DATA
from mink_local.llama.token_sampler import TokenSampler
from mink_local.samplers import Greedy, MinK, MinP, Sampler, TopK, TopNSigma, TopP, Typical, Workspace, Xtc

PROMPT = "Tell me a long story about a dog named Max who went to the sea."

LLAMA_CPP: dict[type[Sampler], Callable[[Any], Any]] = {
    Greedy: lambda _: C.llama_sampler_init_greedy(),
    TopK: lambda sampler: C.llama_sampler_init_top_k(sampler.k),
    TopP: lambda sampler: C.llama_sampler_init_top_p(sampler.p, 1),
    MinP: lambda sampler: C.llama_sampler_init_min_p(sampler.p, 1),
    TopNSigma: lambda sampler: C.llama_sampler_init_top_n_sigma(sampler.n),
    Typical: lambda sampler: C.llama_sampler_init_typical(sampler.p, 1),
    Xtc: lambda sampler: C.llama_sampler_init_xtc(sampler.probability, sampler.threshold, 1, 1),
}
"""llama.cpp's own version of a sampler, if there is one."""


def llama_cpp_chain(sampler: Sampler) -> Any:
    """Return a new chain of llama.cpp's own versions of a sampler's members; None if one has none."""
    if not all(type(member) in LLAMA_CPP for member in sampler.members):
        return None
    chain = C.llama_sampler_chain_init(C.llama_sampler_chain_default_params())
    for member in sampler.members:
        C.llama_sampler_chain_add(chain, LLAMA_CPP[type(member)](member))
    return chain


Name = TypeVar("Name", bound=Hashable)
Measured = TypeVar("Measured")
Logits = NDArray[np.float32]
Timed = Callable[[Logits], float]  # a row of logits (V,) to seconds
Row = dict[str, Any]
"""A row of a table: a sampler's name and figures, keyed by column heading."""


def seconds(function: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> float:
    """Return how long a call takes."""
    began = clock()
    function()
    return clock() - began


def in_turn(contestants: Mapping[Name, Callable[[int], Measured]], rounds: int) -> dict[Name, list[Measured]]:
    """Measure every contestant once per round, starting each round with a different one.

    A contestant is a function of the round number; the result lists what each returned. Round 0 is a warm-up
    and is dropped.
    """
    measured: dict[Name, list[Measured]] = {name: [] for name in contestants}
    names = list(contestants)
    for i in range(rounds + 1):
        first = i % len(names)
        for name in names[first:] + names[:first]:
            result = contestants[name](i)
            if i > 0:
                measured[name].append(result)
    return measured


def time_samplers(logits: Logits, samplers: Sequence[Sampler], temperature: float, rounds: int) -> list[Row]:
    """Time one step of each sampler on one thread, next to np.max and a full np.sort.

    Args:
        logits: Raw logits (n, V); round i takes row i modulo n.
        samplers: The samplers.
        temperature: Above 0.
        rounds: Number of rounds, each of which times everything once.

    Returns:
        A row per sampler with the median microseconds of one step, None for a form it lacks: `cut`, the cut
        alone; `step`, cut, temperature and sampling as in generation; `llama.cpp`, its own sampler on
        candidates already in place; `processor`, a logits processor in Python.
    """
    n_vocab = logits.shape[1]
    contestants: dict[tuple[str, str], Timed] = {("np.max", "cut_us"): _timed(np.max)}
    for sampler in samplers:
        name = str(sampler)
        contestants[name, "cut_us"] = _timed(sampler.selector(temperature, Workspace(n_vocab)))
        contestants[name, "step_us"] = _timed(partial(TokenSampler(sampler, temperature, 1, n_vocab), step=1))
        if not sampler.comes_last:
            contestants[name, "processor_us"] = _processor(sampler, temperature)
        if (own := llama_cpp_chain(sampler)) is not None:
            contestants[name, "llama.cpp_us"] = _llama_cpp(own, n_vocab)
    contestants["np.sort", "cut_us"] = _timed(np.sort)
    rows = [np.ascontiguousarray(row) for row in logits]
    timed = in_turn(
        {key: partial(_warm, contestant, rows) for key, contestant in contestants.items()}, rounds
    )
    costs: dict[str, Row] = {}
    for (method, form), times in timed.items():
        empty = dict.fromkeys(("cut_us", "step_us", "llama.cpp_us", "processor_us"))
        cost = costs.setdefault(method, {"method": method, "vocabulary": n_vocab, **empty})
        cost[form] = 1e6 * median(times)
    return list(costs.values())


def _warm(contestant: Timed, rows: Sequence[Logits], i: int) -> float:
    """Return the seconds of the last of three calls, when row and buffers are in the CPU's caches."""
    return [contestant(rows[i % len(rows)]) for _ in range(3)][-1]


def _timed(function: Callable[..., object]) -> Timed:
    return lambda row: seconds(partial(function, row))


def _processor(sampler: Sampler, temperature: float) -> Timed:
    """Time a logits processor on the strided view that llama-cpp-python passes to it."""
    process = sampler.at(temperature)

    def contestant(row: Logits) -> float:
        scores = np.zeros(row.size, TOKEN_DATA)["logit"]
        scores[:] = row
        return seconds(lambda: process([], scores))

    return contestant


def _llama_cpp(own: Any, n_vocab: int) -> Timed:
    """Time one of llama.cpp's chains on a llama_token_data_array that is already filled."""
    records = np.zeros(n_vocab, TOKEN_DATA)
    array = C.llama_token_data_array()

    def contestant(row: Logits) -> float:
        records["id"] = np.arange(n_vocab)
        records["logit"] = row
        array.data = ctypes.cast(records.ctypes.data, C.llama_token_data_p)  # xtc moves it
        array.size, array.selected, array.sorted = n_vocab, -1, False
        return seconds(lambda: C.llama_sampler_apply(own, ctypes.byref(array)))

    weakref.finalize(contestant, C.llama_sampler_free, own)
    return contestant


def logits_of_answer(model: Model, count: int = 32) -> Logits:
    """Return the raw logits (count, V) of an answer's first steps."""
    messages = [{"role": "user", "content": PROMPT}]
    reply = model.chat(messages, sampler=MinK(), seed=1, max_tokens=count, ignore_eos=True)
    reply.read()
    return np.stack([model.logits(messages, prefix=reply.tokens[:i]) for i in range(count)])
