"""Timing cuts beside other things in the same run.

Machines are noisy, so nothing here stands alone: every contestant takes its turn in every round, and
what comes of it are medians, and medians of ratios within a round.
"""

import ctypes
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from llama_cpp import llama_cpp as C
from numpy.typing import NDArray

from mink_local.errors import MinkError
from mink_local.generation.slots import decode
from mink_local.llama.backend_sampler import BackendSampler, has_backend_form
from mink_local.llama.token_data import TOKEN_DATA
from mink_local.llama.token_sampler import TokenSampler
from mink_local.samplers import Greedy, MinK, MinP, Sampler, TopK, TopNSigma, TopP, Workspace

if TYPE_CHECKING:
    from mink_local.generation.model import Model

PROMPT = "Tell me a long story about a dog named Max who went to the sea."

Rows = NDArray[np.float32]
Form = Literal["host", "graph", "llama.cpp"]

# llama.cpp's own sampler for a method, where it has one; its min-p, top-p see the logits they are given.
LLAMA_CPP: dict[type[Sampler], Callable[[Any], Any]] = {
    Greedy: lambda _: C.llama_sampler_init_greedy(),
    TopK: lambda sampler: C.llama_sampler_init_top_k(sampler.k),
    TopP: lambda sampler: C.llama_sampler_init_top_p(sampler.p, 1),
    MinP: lambda sampler: C.llama_sampler_init_min_p(sampler.p, 1),
    TopNSigma: lambda sampler: C.llama_sampler_init_top_n_sigma(sampler.n),
}


@dataclass
class Cost:
    """Median microseconds of one step on rows of `n_vocab` logits; None where there is no such thing.

    select: our cut alone. step: cut, temperature and draw, as generation does it. llama_cpp: llama.cpp's own
    sampler applied to candidates that are already laid out. processor: as a logits processor in Python.
    """

    n_vocab: int
    method: str
    select: float | None = None
    step: float | None = None
    llama_cpp: float | None = None
    processor: float | None = None


def time_samplers(rows: Rows, samplers: Sequence[Sampler], temperature: float, rounds: int) -> list[Cost]:
    """Time every sampler on every row in turn, on one thread, beside np.max and a full np.sort.

    rows: raw logits (n, V).
    """
    contestants: dict[tuple[str, str], Callable[[Rows], float]] = {
        ("np.max", "select"): _timed(np.max),
    }
    for sampler in samplers:
        name = str(sampler)
        contestants[name, "select"] = _select(sampler, temperature, rows.shape[1])
        contestants[name, "step"] = _step(sampler, temperature, rows.shape[1])
        contestants[name, "processor"] = _processor(sampler, temperature)
        if type(sampler) in LLAMA_CPP:
            contestants[name, "llama_cpp"] = _llama_cpp(sampler, rows.shape[1])
    contestants["np.sort", "select"] = _timed(np.sort)
    taken: dict[tuple[str, str], list[float]] = {key: [] for key in contestants}
    for i in range(rounds + 1):
        row = np.ascontiguousarray(rows[i % len(rows)])
        for key, contestant in contestants.items():
            for _ in range(3):  # the last counts: row, buffers and branches are as warm for each contestant
                seconds = contestant(row)
            if i > 0:  # the first round compiles and warms up
                taken[key].append(seconds * 1e6)
    costs: dict[str, Cost] = {}
    for (method, what), times in taken.items():
        cost = costs.setdefault(method, Cost(rows.shape[1], method))
        setattr(cost, what, round(median(times), 2))
    return list(costs.values())


def _timed(function: Callable[..., object]) -> Callable[[Rows], float]:
    def contestant(row: Rows) -> float:
        began = time.perf_counter()
        function(row)
        return time.perf_counter() - began

    return contestant


def _select(sampler: Sampler, temperature: float, n_vocab: int) -> Callable[[Rows], float]:
    return _timed(sampler.selector(temperature, Workspace(n_vocab)))


def _step(sampler: Sampler, temperature: float, n_vocab: int) -> Callable[[Rows], float]:
    draw = TokenSampler(sampler, temperature, 1, n_vocab)
    return _timed(lambda row: draw(row, 1))


def _processor(sampler: Sampler, temperature: float) -> Callable[[Rows], float]:
    """In the strided view that llama-cpp-python hands to a processor."""
    processor = sampler.at(temperature)
    ids: list[int] = []

    def contestant(row: Rows) -> float:
        scores = np.zeros(row.size, TOKEN_DATA)["logit"]
        scores[:] = row
        began = time.perf_counter()
        processor(ids, scores)
        return time.perf_counter() - began

    return contestant


def _chain(sampler: Sampler) -> Any:
    """llama.cpp's own sampler, in a chain of its own; whoever asks for it frees it."""
    chain = C.llama_sampler_chain_init(C.llama_sampler_chain_default_params())
    C.llama_sampler_chain_add(chain, LLAMA_CPP[type(sampler)](sampler))
    return chain


def _llama_cpp(sampler: Sampler, n_vocab: int) -> Callable[[Rows], float]:
    chain = _chain(sampler)
    records = np.zeros(n_vocab, TOKEN_DATA)
    array = C.llama_token_data_array()
    array.data = ctypes.cast(records.ctypes.data, C.llama_token_data_p)

    def contestant(row: Rows) -> float:
        records["id"] = np.arange(n_vocab)
        records["logit"] = row
        array.size, array.selected, array.sorted = n_vocab, -1, False
        began = time.perf_counter()
        C.llama_sampler_apply(chain, ctypes.byref(array))
        return time.perf_counter() - began

    weakref.finalize(contestant, C.llama_sampler_free, chain)
    return contestant


@dataclass
class Speed:
    """What decoding with a method took: medians over rounds, and its slowdown against greedy.

    form: where tokens are drawn, on the "host" or in the "graph", or "llama.cpp" for its own greedy sampler.
    sampling_us: of a token's cut and draw, as far as the host sees them. slowdown: against greedy in the
    same form, in percent of greedy's time for a token, the median over rounds of the ratio within a round,
    with its 95% interval.
    """

    method: str
    form: str
    tokens_per_second: float
    ms_per_token: float
    sampling_us: float
    slowdown: float
    slowdown_low: float
    slowdown_high: float


def time_decoding(
    model: "Model",
    samplers: Sequence[Sampler],
    forms: Sequence[Form],
    temperature: float,
    tokens: int,
    rounds: int,
) -> list[Speed]:
    """Generate `tokens` tokens from one prompt with every sampler in turn, `rounds` times over.

    An answer that ends goes on all the same. Greedy always takes part, and llama.cpp's own greedy too; a
    sampler that has no graph form takes part in the host's only.
    """
    from scipy.stats import quantile_test

    methods: dict[tuple[str, Form], Sampler] = {("greedy", "llama.cpp"): Greedy()}
    methods |= {
        (str(sampler), form): sampler
        for form in forms
        for sampler in [Greedy(), *samplers]
        if form == "host" or has_backend_form(sampler)
    }
    steps: dict[tuple[str, Form], list[NDArray[np.float64]]] = {key: [] for key in methods}
    keys = list(methods)
    for i in range(rounds + 1):
        for key in keys[i % len(keys) :] + keys[: i % len(keys)]:  # no method always follows another
            took = _decode(model, methods[key], key[1], temperature, tokens, seed=i)
            if i > 0:  # the first round warms up
                steps[key].append(np.median(took, axis=0))
    speeds = []
    for (method, form), per_round in steps.items():
        whole, sampling = np.array(per_round).T
        slowdowns = 100 * (whole / np.array(steps["greedy", form])[:, 0] - 1)
        low, high = quantile_test(slowdowns).confidence_interval(0.95)
        speeds.append(
            Speed(
                method=method,
                form=form,
                tokens_per_second=round(1 / float(np.median(whole)), 2),
                ms_per_token=round(1e3 * float(np.median(whole)), 4),
                sampling_us=round(1e6 * float(np.median(sampling)), 2),
                slowdown=round(float(np.median(slowdowns)), 3),
                slowdown_low=round(float(low), 3),
                slowdown_high=round(float(high), 3),
            )
        )
    return speeds


def _decode(
    model: "Model",
    sampler: Sampler,
    form: Form,
    temperature: float,
    tokens: int,
    seed: int,
    keep: Rows | None = None,
) -> NDArray[np.float64]:
    """Seconds of each step of one answer, (tokens, 2): the whole step, and its cut and draw.

    keep: takes a copy of every step's logits, (tokens, V); host only.
    """
    context = model.engine.context
    context.detach()
    prompt = model.tokens([{"role": "user", "content": PROMPT}])
    slot = model.engine.slots[0]
    slot.truncate(0)

    def evaluate() -> None:
        while slot.pending:
            decode(context, [slot])

    draw = TokenSampler(sampler, temperature, seed, model.weights.n_vocab)
    own = _chain(sampler) if form == "llama.cpp" else None
    graph = BackendSampler(sampler, temperature, seed, context) if form == "graph" else None
    if graph and not graph.attach():
        raise MinkError(f"this device lacks an operation of the graph form of {sampler}: time --form host")
    slot.queue(prompt)
    evaluate()
    took = np.empty((tokens, 2))
    for i in range(tokens):
        if keep is not None:
            keep[i] = context.logits()
        began = time.perf_counter()
        drawn = graph.next() if graph else None
        if graph and drawn is None:  # as in a chat: what the graph is not sure of is drawn on the host
            graph.detach()
            graph = None
            slot.evaluate_last_again()
            evaluate()
        if own:
            drawn = C.llama_sampler_sample(own, context.handle, -1)
        token = draw(context.logits(), step=i + 1) if drawn is None else drawn
        done = time.perf_counter()
        slot.push(token)
        evaluate()
        took[i] = time.perf_counter() - began, done - began
    context.detach()
    C.llama_sampler_free(own)
    return took


def real_rows(model: "Model", count: int = 32) -> Rows:
    """The raw logits (count, V) of the first steps of an answer."""
    rows = np.empty((count, model.weights.n_vocab), np.float32)
    _decode(model, MinK(), "host", 1.0, count, seed=1, keep=rows)
    return rows


def read_rows(path: Path) -> Rows:
    """Logits (n, V) from the array `logits` of an .npz file. Raises MinkError where there is none."""
    try:
        with np.load(path, allow_pickle=False) as file:
            rows = np.asarray(file["logits"], np.float32)
    except (OSError, ValueError, KeyError) as error:
        raise MinkError(f"{path} is no .npz file with an array named logits: {error}") from None
    if rows.ndim != 2 or rows.size == 0:
        raise MinkError(f"the logits in {path} are not of shape (rows, V) but {rows.shape}")
    return rows
