"""Time several answers at a time next to the bare llama_decode calls, for `mink-bench batch`."""

from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

from mink_local.bench.measuring import Row, in_turn, median_ratio, seconds
from mink_local.bench.sampler import PROMPT
from mink_local.generation.engine import Engine
from mink_local.generation.loading import make_context
from mink_local.generation.model import Model
from mink_local.generation.request import Request, SamplingParams
from mink_local.generation.template import ChatTemplate
from mink_local.llama.context import Context
from mink_local.samplers import Sampler


def time_batches(
    model: Model, parallels: Sequence[int], sampler: Sampler, temperature: float, tokens: int, rounds: int
) -> list[Row]:
    """Generate several answers at a time, and repeat the same llama_decode calls with nothing in between."""
    batches = [_TimedBatch(model, n, sampler, temperature, tokens) for n in parallels]
    speeds = in_turn({i: batch.time for i, batch in enumerate(batches)}, rounds)
    return compare({batch.n_parallel: speeds[i] for i, batch in enumerate(batches)})


def compare(speeds: dict[int, list[tuple[float, float]]]) -> list[Row]:
    """Return a row per number of answers at a time.

    Args:
        speeds: By that number, tokens per second of generation and of the bare calls, one pair per round.

    Returns:
        Medians over rounds; `share_of_bare` and `speedup` (over the first number) are ratios within a round.
    """
    first = [ours for ours, _ in next(iter(speeds.values()))]
    rows = []
    for n_parallel, pairs in speeds.items():
        ours, bare = zip(*pairs, strict=True)
        ratios = {"share_of_bare": median_ratio(ours, bare), "speedup": median_ratio(ours, first)}
        rows.append({"answers": n_parallel, "tokens_per_s": median(ours), **ratios})
    return rows


class _Recorder:
    """Passes calls on to a context and records those that change its KV cache."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self.calls: list[Callable[[], object]] = []

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._context, name)
        if name not in ("decode", "copy", "clear", "truncate"):
            return attribute

        def record(*arguments: Any) -> Any:
            self.calls.append(lambda: attribute(*arguments))
            return attribute(*arguments)

        return record


class _TimedBatch:
    """Generates `n_parallel` answers at a time, in KV caches of its own."""

    def __init__(
        self, model: Model, n_parallel: int, sampler: Sampler, temperature: float, tokens: int
    ) -> None:
        # Each has a prompt of its own: what answers have in common would be evaluated once.
        prompts = [
            model.prompt_tokens([{"role": "user", "content": f"{PROMPT} This is story {i}."}])
            for i in range(100, 100 + n_parallel)
        ]
        n_ctx = max(map(len, prompts)) + tokens
        n_threads = model.engine.context.n_threads
        self._context = make_context(model.weights, n_ctx, n_parallel, n_threads=n_threads)
        self._weights, self._template = model.weights, ChatTemplate(model.weights)
        self.n_parallel = self._context.n_seq  # fewer if memory is short
        self._requests = [
            Request(
                prompt,
                SamplingParams(sampler=sampler, temperature=temperature, max_tokens=tokens, seed=seed),
            )
            for seed, prompt in enumerate(prompts[: self.n_parallel])
        ]
        recorder = _Recorder(self._context)
        self._n_tokens = self._generate(recorder)
        self._calls = recorder.calls

    def time(self, _: int) -> tuple[float, float]:
        """Return tokens a second, of generation and of its calls alone."""
        self._forget()
        ours = seconds(lambda: self._generate(self._context))
        self._forget()
        bare = seconds(lambda: [call() for call in self._calls])
        return self._n_tokens / ours, self._n_tokens / bare

    def _generate(self, context: Any) -> int:
        """Generate all answers; return how many tokens they have."""
        engine = Engine(context, self._weights, self._template)
        answers = [engine.submit(request) for request in self._requests]
        while not engine.idle:
            engine.step()
        return sum(answer.n_tokens for answer in answers)

    def _forget(self) -> None:
        for seq_id in range(self.n_parallel):
            self._context.clear(seq_id)
