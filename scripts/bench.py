"""Time generation with each sampler, or several answers at a time; print a table or JSON.

\b
.venv/bin/python scripts/bench.py decode --sampler min-k --rounds 21
.venv/bin/python scripts/bench.py batch --parallel 1 --parallel 16
.venv/bin/python scripts/bench.py host --parallel 64
.venv/bin/python scripts/bench.py options -m qwen2.5-coder-0.5b.gguf
"""

import gc
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from statistics import median
from typing import Any

import click
import numpy as np
from scipy.stats import quantile_test

from mink_local.bench.cli import output_options, report, rounds_option, samplers_option, temperature_option
from mink_local.bench.timing import PROMPT, Row, in_turn, logits_of_answer, seconds
from mink_local.cli import WholeNumber, run
from mink_local.generation.engine.decoding import log_probabilities
from mink_local.generation.engine.engine import Engine
from mink_local.generation.format.template import ChatTemplate
from mink_local.generation.loading import load_model, make_context
from mink_local.generation.model import Model
from mink_local.generation.request import Request, SamplingParams
from mink_local.llama.constants import N_SEQ_MAX
from mink_local.llama.constraints import Constrainer, Constraints
from mink_local.llama.context import Context
from mink_local.llama.guide import Guide
from mink_local.llama.library import C
from mink_local.llama.token_sampler import RowSampler, TokenSampler
from mink_local.models.options import (
    SharedOption,
    max_tokens_option,
    model_option,
    placement_options,
    sampler_option,
)
from mink_local.samplers import Greedy, MinK, Sampler

_PERSON = {"name": {"type": "string"}, "age": {"type": "integer"}, "is_animal": {"type": "boolean"}}
_LONG = 600  # tokens of a prompt that is read beside answers

_PERSONS = {  # more than fit into an answer
    "type": "array",
    "items": {"type": "object", "properties": _PERSON, "required": [*_PERSON]},
    "minItems": 200,
}

tokens_option = max_tokens_option.replace(
    "--tokens", "tokens", default=64, show_default=True, help="Tokens per answer."
)

parallels_option = SharedOption(
    "--parallel",
    "parallels",
    multiple=True,
    type=click.IntRange(min=1, max=N_SEQ_MAX),
    metavar="N",
    help="Number of answers at a time; repeatable.",
)


@click.group(help=__doc__, context_settings={"help_option_names": ["-h", "--help"]})
def cli() -> None:
    pass


@cli.command()
@model_option
@samplers_option
@temperature_option
@tokens_option
@rounds_option.replace(type=WholeNumber(min=6), default=11)
@placement_options
@output_options
def decode(
    model: str,
    samplers: Sequence[Sampler],
    temp: float,
    tokens: int,
    rounds: int,
    output: str | None,
    **placement: Any,
) -> None:
    """Time generation with each sampler, and compare it with greedy (the paper's latency table)."""
    with load_model(model, n_ctx=tokens + 256, **placement) as loaded:
        speeds = time_decoding(loaded, samplers, temp, tokens, rounds)
    report(speeds, output, f"{loaded.name} {loaded.placement}\n{tokens} tokens, {rounds} rounds")


@cli.command()
@model_option
@parallels_option.replace(default=(1, 4, 16))
@sampler_option
@temperature_option
@tokens_option
@rounds_option.replace(default=5)
@click.option("--schema", "has_schema", is_flag=True, help="Answers by a JSON schema instead of free text.")
@click.option(
    "--beside",
    type=click.Choice(["schema", "logprobs", "prompts"]),
    help="One answer has a schema or log-probabilities, or one more slot reads prompts all the time.",
)
@placement_options
@output_options
def batch(
    model: str,
    parallels: Sequence[int],
    sampler: Sampler,
    temp: float,
    tokens: int,
    rounds: int,
    has_schema: bool,
    beside: str | None,
    output: str | None,
    **placement: Any,
) -> None:
    """Time several answers generated at once, and compare with bare llama_decode calls."""
    params = SamplingParams(
        sampler=sampler,
        temperature=temp,
        max_tokens=tokens,
        constraints=Constraints(json_schema=_PERSONS) if has_schema else None,
    )
    with load_model(model, n_ctx=tokens + 256, n_parallel=1, **placement) as loaded:
        speeds = time_batches(loaded, parallels, params, rounds, beside)
    about = f"{sampler}, {tokens} tokens, {rounds} rounds" + (f", beside {beside}" if beside else "")
    report(speeds, output, f"{loaded.name} {loaded.placement}\n{about}")


@cli.command()
@model_option
@parallels_option.replace(default=(1, 16, 64))
@sampler_option
@temperature_option
@rounds_option.replace(default=100)
@placement_options
@output_options
def host(
    model: str,
    parallels: Sequence[int],
    sampler: Sampler,
    temp: float,
    rounds: int,
    output: str | None,
    **placement: Any,
) -> None:
    """Time what a step takes besides llama_decode: CPU time of the engine's thread for each answer."""
    with load_model(model, n_ctx=256, n_parallel=1, **placement) as loaded:
        rows = [time_host(loaded, n, sampler, temp, rounds) for n in parallels]
    report(rows, output, f"{loaded.name} {loaded.placement}\n{sampler}, {rounds} steps")


@cli.command()
@model_option
@rounds_option.replace(default=100)
@output_options
def options(model: str, rounds: int, output: str | None) -> None:
    """Time what options cost: CPU time of the engine's thread for a token, with 8 answers at a time."""
    with load_model(model, n_ctx=512, n_parallel=1) as loaded:
        rows = time_options(loaded, rounds)
    report(rows, output, f"{loaded.name} {loaded.placement}\nmin-k, {rounds} steps")


def slowdown(values: Sequence[float], reference: Sequence[float]) -> tuple[float, float, float]:
    """Return how much longer a contestant takes than the reference, in percent, with a 95% interval.

    `values` and `reference` are seconds in the same rounds, at least 6. The result is the median over rounds
    of the slowdown within a round, and the ends of its interval, which is based on order statistics alone.
    """
    percent = 100 * (np.array(values) / np.array(reference) - 1)
    low, high = quantile_test(percent).confidence_interval(0.95)
    return round(float(np.median(percent)), 3), round(float(low), 3), round(float(high), 3)


def time_decoding(
    model: Model, samplers: Sequence[Sampler], temperature: float, tokens: int, rounds: int
) -> list[Row]:
    """Generate answers to one prompt with greedy and each sampler in turn, past end-of-sequence too."""

    def step(sampler: Sampler, seed: int) -> float:
        """Return the seconds of a step of an answer; the prompt is in the KV cache from the first one on."""
        params = SamplingParams(
            sampler=sampler, temperature=temperature, max_tokens=tokens, seed=seed, ignore_eos=True
        )
        return seconds(model.chat(PROMPT, params).read) / tokens

    contestants = {str(sampler): partial(step, sampler) for sampler in (Greedy(), *samplers)}
    return compare_decoding(in_turn(contestants, rounds))


def compare_decoding(steps: Mapping[str, Sequence[float]]) -> list[Row]:
    """Return a row per sampler: its speed, and how much longer its steps take than greedy's.

    Args:
        steps: Seconds of a step by sampler, in each round, including greedy's.

    Returns:
        Medians over rounds; the slowdown is in percent, with its 95% interval.
    """
    rows = []
    for method, times in steps.items():
        percent, low, high = slowdown(times, steps["greedy"])
        rows.append(
            {
                "method": method,
                "tokens_per_s": 1 / median(times),
                "ms_per_token": 1e3 * median(times),
                "slowdown_percent": percent,
                "low": low,
                "high": high,
            }
        )
    return rows


def time_batches(
    model: Model, parallels: Sequence[int], params: SamplingParams, rounds: int, beside: str | None = None
) -> list[Row]:
    """Generate several answers at a time, then repeat the same llama_decode calls with nothing in between."""
    batches = dict(_batch(model, n, params, beside) for n in parallels)
    return compare_batches(in_turn(batches, rounds))


def compare_batches(speeds: Mapping[int, Sequence[tuple[float, float, float]]]) -> list[Row]:
    """Return a row per number of answers at a time.

    Args:
        speeds: Tokens per second in generation and in the bare calls, and the answers' tokens per call, by
            number of answers, for each round.

    Returns:
        Medians over rounds. `share_of_bare` is the median of the rounds' ratios, `speedup` the ratio of the
        medians to that of the first number of answers.
    """
    medians = {n_parallel: median(ours for ours, *_ in found) for n_parallel, found in speeds.items()}
    first = next(iter(medians.values()))
    return [
        {
            "answers": n_parallel,
            "tokens_per_s": medians[n_parallel],
            "share_of_bare": median(ours / bare for ours, bare, _ in found),
            "speedup": medians[n_parallel] / first,
            "tokens_a_call": found[0][2],
        }
        for n_parallel, found in speeds.items()
    ]


class _Recorder:
    """Forwards calls to a context and records those that change its KV cache."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._calls: list[Callable[[], object]] = []
        self.n_decoded = 0

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._context, name)
        if name not in ("decode", "copy", "clear", "truncate"):
            return attribute

        def record(*arguments: Any, **options: Any) -> Any:
            self._calls.append(partial(attribute, *arguments, **options))
            self.n_decoded += name == "decode"
            return attribute(*arguments, **options)

        return record

    def repeat(self) -> None:
        for call in self._calls:
            call()


def _batch(
    model: Model, n_parallel: int, params: SamplingParams, beside: str | None
) -> tuple[int, Callable[[int], tuple[float, float, float]]]:
    """Return the number of answers at a time, fewer if memory is low, and a contestant that generates them.

    The contestant returns what `compare_batches` takes.
    """
    # Each answer has its own prompt: what answers have in common would be evaluated only once.
    prompts = [
        model.prompt_tokens([{"role": "user", "content": f"{PROMPT} This is story {i}."}])
        for i in range(100, 100 + n_parallel)
    ]
    reads = beside == "prompts"
    n_ctx = max(*map(len, prompts), _LONG * reads) + (params.max_tokens or 0)
    n_threads = model.core.engine.context.n_threads
    context = make_context(model.weights, n_ctx, n_parallel + reads, n_threads=n_threads)
    n_parallel = context.n_seq - reads
    template = ChatTemplate(model.weights)
    requests = [
        Request(prompt, replace(params, seed=seed)) for seed, prompt in enumerate(prompts[:n_parallel])
    ]
    options: dict[str, dict[str, Any]] = {
        "schema": {"constraints": Constraints(json_schema=_PERSONS)},
        "logprobs": {"logprobs": 5},
    }
    requests[0] = replace(requests[0], params=replace(params, **options.get(beside or "", {})))
    most = range(params.max_tokens or 0) if reads else ()  # prompts that are read: more than one in a step
    long = [Request([i + 300] * _LONG, SamplingParams(max_tokens=1)) for i in most]

    def generate(context: Any) -> int:
        """Generate all answers; return their total number of tokens."""
        engine = Engine(context, model.weights, template)
        decodings = [engine.prepare(request) for request in requests]
        engine.enqueue(*decodings, *map(engine.prepare, long))
        while any(each.answer.finish_reason is None for each in decodings):
            engine.step()
        engine.cancel()
        return sum(decoding.answer.n_tokens for decoding in decodings)

    n_tokens = generate(context)
    gc.collect()
    gc.freeze()  # as mink-serve does: a full collection takes 0.1 s, most of it for Numba's objects

    def speed(function: Callable[[], object]) -> float:
        for seq_id in range(context.n_seq):
            context.clear(seq_id)
        return n_tokens / seconds(function)

    def measured(_: int) -> tuple[float, float, float]:
        recorder = _Recorder(
            context
        )  # again in each round: how much of a prompt a step reads depends on time
        return speed(partial(generate, recorder)), speed(recorder.repeat), n_tokens / recorder.n_decoded

    return n_parallel, measured


class _Timed(RowSampler):
    """Notes the CPU time of the last call."""

    seconds = 0.0

    def __call__(self, *arguments: Any) -> tuple[list[int], list[int]]:
        began = time.thread_time()
        found = super().__call__(*arguments)
        self.seconds = time.thread_time() - began
        return found


def time_host(model: Model, n_parallel: int, sampler: Sampler, temperature: float, rounds: int) -> Row:
    """Return the least CPU time of a step for each answer, in microseconds; llama_decode does nothing in it.

    `critical` is what a GPU waits for, of which `sampling` is the compiled call with its arguments; `text`
    is told while it computes.
    """
    context = make_context(model.weights, 256, n_parallel, n_threads=1)
    engine = Engine(context, model.weights, ChatTemplate(model.weights))
    engine.tells_late = True
    engine._rows = rows = _Timed(context.n_vocab, n_threads=1)
    for seed in range(n_parallel):
        params = SamplingParams(sampler=sampler, temperature=temperature, seed=seed)
        engine.enqueue(engine.prepare(Request([seed + 50], params)))
    real = C.llama_decode
    times: list[tuple[float, float, float]] = []
    while engine.n_waiting or any(len(slot.tokens) < 3 for slot in engine.slots if slot.job):
        engine.step()
    C.llama_decode = lambda *_: 0
    try:
        while len(times) < rounds and engine.n_busy == n_parallel:  # until an answer ends
            began = time.thread_time()
            engine.launch()
            launched = time.thread_time()
            engine.tell()
            told = time.thread_time()
            engine.collect()
            critical = time.thread_time() - told + launched - began
            times.append((critical, rows.seconds, told - launched))
    finally:
        C.llama_decode = real
    critical, sampling, text = (1e6 * min(column) / n_parallel for column in zip(*times, strict=True))
    return {"answers": n_parallel, "critical_us": critical, "sampling_us": sampling, "text_us": text}


_SCHEMA = {"type": "string", "maxLength": 60}
_OPTIONS: dict[str, dict[str, Any]] = {
    "none": {},
    "repeat_penalty": {"repeat_penalty": 1.1},
    "a choice: few tokens allowed": {"choice": ["yes", "no", "maybe"]},
    "a regex: most tokens allowed": {"regex": '[^"]*'},
    "a schema with maxLength": {"json_schema": _SCHEMA},
}


def time_options(model: Model, rounds: int) -> list[Row]:
    """Return the least CPU time of sampling a token under each option, and its ratio to that without any.

    Masks are computed in another thread, behind llama_decode. Also returned are the log-probabilities of five
    tokens, and the matcher of a schema that was compiled before.
    """
    weights, n = model.weights, 8
    rows = np.ascontiguousarray(logits_of_answer(model, n))
    sampling = _Timed(weights.n_vocab, n_threads=1)

    def sampled(options: dict[str, Any]) -> float:
        own = Constraints(**options)
        samplers = [
            TokenSampler(MinK(), 1.0, i, weights.n_vocab, Constrainer(own, weights, range(300)))
            for i in range(n)
        ]
        times = []
        for _ in range(rounds):
            sampling.fill_masks([each.constrainer.guide for each in samplers if each.constrainer.guide])
            sampling(rows, range(n), samplers)
            times.append(sampling.seconds)
        return min(times) / n

    def called(function: Callable[[], object]) -> float:
        return min(seconds(function, time.thread_time) for _ in range(rounds))

    costs = {name: sampled(options) for name, options in _OPTIONS.items()}
    costs["logprobs of 5"] = called(lambda: log_probabilities(rows[0], 5, 5))
    costs["a schema again, once an answer"] = called(lambda: Guide("json_schema", _SCHEMA, weights))
    return [
        {"option": name, "us": 1e6 * cost, "times_none": cost / costs["none"]} for name, cost in costs.items()
    ]


if __name__ == "__main__":
    run(cli, "scripts/bench.py")
