"""Time sampling next to references: one step, an answer, and several answers at a time.

No machine keeps its speed for long, so contestants take turns, and only figures from the same round are
compared.
"""

import ctypes
import itertools
import time
import weakref
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Literal, TypeVar

import numpy as np
from llama_cpp import llama_cpp as C
from numpy.typing import NDArray

from mink_local.errors import MinkError
from mink_local.generation.engine import Engine
from mink_local.generation.loading import make_context
from mink_local.generation.model import Model
from mink_local.generation.request import Request, SamplingParams
from mink_local.generation.template import ChatTemplate
from mink_local.llama.context import Context, Segment
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
Form = Literal["host", "llama.cpp"]
Row = dict[str, Any]
"""A row of a table: a sampler's name and figures, keyed by column heading."""


def seconds(function: Callable[[], object]) -> float:
    """Return how long a call takes."""
    began = time.perf_counter()
    function()
    return time.perf_counter() - began


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


def slowdown(values: Sequence[float], reference: Sequence[float]) -> tuple[float, float, float]:
    """Return how much longer a contestant takes than the reference, in percent, with a 95% interval.

    `values` and `reference` are seconds in the same rounds, at least 6. The result is the median over rounds
    of the slowdown within a round, and the ends of its interval, which is based on order statistics alone.
    """
    from scipy.stats import quantile_test

    percent = 100 * (np.array(values) / np.array(reference) - 1)
    low, high = quantile_test(percent).confidence_interval(0.95)
    return round(float(np.median(percent)), 3), round(float(low), 3), round(float(high), 3)


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


def read_logits(path: Path) -> Logits:
    """Return the array `logits` (n, V) of an .npz file. Raises MinkError if there is none."""
    try:
        with np.load(path, allow_pickle=False) as file:
            logits = np.asarray(file["logits"], np.float32)
    except (OSError, ValueError, KeyError) as error:
        raise MinkError(f"{path} is not an .npz file with an array named logits: {error}") from None
    if logits.ndim != 2 or logits.size == 0:
        raise MinkError(f"the logits in {path} must have shape (rows, V), not {logits.shape}")
    return logits


def time_decoding(
    model: Model,
    samplers: Sequence[Sampler],
    forms: Sequence[Form],
    temperature: float,
    tokens: int,
    rounds: int,
) -> list[Row]:
    """Generate answers to one prompt with each sampler in turn; generation continues past end-of-sequence.

    Each sampler uses the `forms` it has: "host" or "llama.cpp" (its own samplers). Greedy and llama.cpp's
    greedy come first.
    """
    prompt = model.prompt_tokens([{"role": "user", "content": PROMPT}])
    n_ctx = len(prompt) + tokens
    context = make_context(model.weights, n_ctx, 1, n_threads=model.engine.context.n_threads)

    def answer(sampler: Sampler, form: Form, seed: int) -> tuple[float, float]:
        """Return the median seconds of an answer's steps, and of sampling in them."""
        steps = answer_steps(context, prompt, sampler, form, temperature, seed)
        times = [step[1:] for step in itertools.islice(steps, tokens)]
        whole, sampling = np.median(times, axis=0)
        return float(whole), float(sampling)

    contestants = {("greedy", "llama.cpp"): partial(answer, Greedy(), "llama.cpp")}
    for form in forms:
        for sampler in (Greedy(), *samplers):
            if form == "host" or all(type(one) in LLAMA_CPP for one in sampler.members):
                contestants[str(sampler), form] = partial(answer, sampler, form)
    return compare_decoding(in_turn(contestants, rounds))


def compare_decoding(steps: Mapping[tuple[str, str], Sequence[tuple[float, float]]]) -> list[Row]:
    """Return a row per sampler and form: its speed, and how much longer its steps take than greedy's.

    Args:
        steps: Seconds of a step and of its sampling, by sampler and form, one pair per round; each form
            includes greedy.

    Returns:
        Medians over rounds; the slowdown is in percent, with its 95% interval.
    """
    rows = []
    for (method, form), times in steps.items():
        step, sampling = zip(*times, strict=True)
        percent, low, high = slowdown(step, [seconds for seconds, _ in steps["greedy", form]])
        rows.append(
            {
                "method": method,
                "form": form,
                "tokens_per_s": 1 / median(step),
                "ms_per_token": 1e3 * median(step),
                "sampling_us": 1e6 * median(sampling),
                "slowdown_percent": percent,
                "low": low,
                "high": high,
            }
        )
    return rows


def answer_steps(
    context: Context, prompt: Sequence[int], sampler: Sampler, form: Form, temperature: float, seed: int
) -> Iterator[tuple[int, float, float]]:
    """Generate an endless answer in sequence 0 of a context.

    "host" samples like `Engine`, "llama.cpp" in llama.cpp's order: the cut, then temperature.

    Yields:
        A token, the seconds of its step, and the seconds of sampling it.
    """
    if form == "llama.cpp":
        sample = _llama_cpp_chain(context, sampler, temperature, seed)
    else:
        host = TokenSampler(sampler, temperature, seed, context.n_vocab)

        def sample() -> int:
            return host(context.logits(), step=1)

    context.clear()
    position = len(prompt)
    _evaluate(context, prompt, 0)
    while True:
        began = time.perf_counter()
        token, sampled = sample(), time.perf_counter()
        _evaluate(context, [token], position)
        position += 1
        yield token, time.perf_counter() - began, sampled - began


def _llama_cpp_chain(context: Context, sampler: Sampler, temperature: float, seed: int) -> Callable[[], int]:
    """Return a function that samples with llama.cpp's own samplers."""
    chain = llama_cpp_chain(sampler)
    if not isinstance(sampler, Greedy):
        C.llama_sampler_chain_add(chain, C.llama_sampler_init_temp(temperature))
        C.llama_sampler_chain_add(chain, C.llama_sampler_init_dist(seed))
    sample = partial(C.llama_sampler_sample, chain, context.handle, -1)
    weakref.finalize(sample, C.llama_sampler_free, chain)
    return sample


def _evaluate(context: Context, tokens: Sequence[int], position: int) -> None:
    """Evaluate tokens and wait for the result: a GPU is still busy when llama.cpp returns."""
    context.decode(Segment(tokens, position))
    C.llama_synchronize(context.handle)


def time_batches(
    model: Model, parallels: Sequence[int], sampler: Sampler, temperature: float, tokens: int, rounds: int
) -> list[Row]:
    """Generate several answers at a time, then repeat the same llama_decode calls with nothing in between."""
    batches = dict(_batch(model, n, sampler, temperature, tokens) for n in parallels)
    return compare_batches(in_turn(batches, rounds))


def compare_batches(speeds: Mapping[int, Sequence[tuple[float, float]]]) -> list[Row]:
    """Return a row per number of answers at a time.

    Args:
        speeds: Tokens per second in generation and in the bare calls, by number of answers, one pair per
            round.

    Returns:
        Medians over rounds. `share_of_bare` is the median of the rounds' ratios, `speedup` the ratio of the
        medians to that of the first number of answers.
    """
    medians = {n_parallel: median(ours for ours, _ in pairs) for n_parallel, pairs in speeds.items()}
    first = next(iter(medians.values()))
    return [
        {
            "answers": n_parallel,
            "tokens_per_s": medians[n_parallel],
            "share_of_bare": median(ours / bare for ours, bare in pairs),
            "speedup": medians[n_parallel] / first,
        }
        for n_parallel, pairs in speeds.items()
    ]


class _Recorder:
    """Forwards calls to a context and records those that change its KV cache."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._calls: list[Callable[[], object]] = []

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._context, name)
        if name not in ("decode", "copy", "clear", "truncate"):
            return attribute

        def record(*arguments: Any) -> Any:
            self._calls.append(partial(attribute, *arguments))
            return attribute(*arguments)

        return record

    def repeat(self) -> None:
        for call in self._calls:
            call()


def _batch(
    model: Model, n_parallel: int, sampler: Sampler, temperature: float, tokens: int
) -> tuple[int, Callable[[int], tuple[float, float]]]:
    """Return the number of answers at a time, fewer if memory is low, and a contestant that generates them.

    The contestant returns tokens per second, for generation and for its llama_decode calls alone.
    """
    # Each answer has its own prompt: what answers have in common would be evaluated only once.
    prompts = [
        model.prompt_tokens([{"role": "user", "content": f"{PROMPT} This is story {i}."}])
        for i in range(100, 100 + n_parallel)
    ]
    n_ctx = max(map(len, prompts)) + tokens
    context = make_context(model.weights, n_ctx, n_parallel, n_threads=model.engine.context.n_threads)
    template = ChatTemplate(model.weights)
    requests = [
        Request(
            prompt, SamplingParams(sampler=sampler, temperature=temperature, max_tokens=tokens, seed=seed)
        )
        for seed, prompt in enumerate(prompts[: context.n_seq])
    ]

    def generate(context: Any) -> int:
        """Generate all answers; return their total number of tokens."""
        engine = Engine(context, model.weights, template)
        answers = [engine.submit(request) for request in requests]
        while not engine.idle:
            engine.step()
        return sum(answer.n_tokens for answer in answers)

    recorder = _Recorder(context)
    n_tokens = generate(recorder)

    def speed(function: Callable[[], object]) -> float:
        for seq_id in range(context.n_seq):
            context.clear(seq_id)
        return n_tokens / seconds(function)

    return context.n_seq, lambda _: (speed(partial(generate, context)), speed(recorder.repeat))
