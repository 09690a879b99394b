"""What writing many answers at a time costs beyond llama.cpp's own work, for `mink-bench batch`."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

from mink_local.bench.timing import PROMPT
from mink_local.generation.answer import Request
from mink_local.generation.engine import Batch
from mink_local.generation.parallel import make_context
from mink_local.llama.context import Context
from mink_local.samplers import Sampler

if TYPE_CHECKING:
    from mink_local.generation.model import Model


@dataclass
class BatchSpeed:
    """Tokens of answers a second with `n_parallel` answers at a time, medians over rounds.

    bare_tokens_per_second: of the same llama_decode calls with nothing in between, the same tokens in the
    same batches. share: of those that are reached, the median over rounds of the ratio within a round.
    gain: over the first of the numbers of answers that were timed, in the same way.
    """

    n_parallel: int
    tokens_per_second: float
    bare_tokens_per_second: float
    share: float
    gain: float


class Recorder:
    """A context that keeps what is asked of the real one."""

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


def time_batches(
    model: "Model", parallels: Sequence[int], sampler: Sampler, temperature: float, tokens: int, rounds: int
) -> list[BatchSpeed]:
    """Write as many answers as there is room for, of at most `tokens` tokens each, to one prompt, and repeat
    its llama_decode calls without anything else; `rounds` times over for each of `parallels` in turn."""
    contestants = [_Contestant(model, n, sampler, temperature, tokens) for n in parallels]
    taken = [[contestant.time() for contestant in contestants] for _ in range(rounds)]
    speeds = []
    for i, contestant in enumerate(contestants):
        ours, bare = zip(*(row[i] for row in taken), strict=True)
        speeds.append(
            BatchSpeed(
                n_parallel=contestant.n_parallel,
                tokens_per_second=round(median(ours), 1),
                bare_tokens_per_second=round(median(bare), 1),
                share=round(median(a / b for a, b in zip(ours, bare, strict=True)), 3),
                gain=round(median(row[i][0] / row[0][0] for row in taken), 2),
            )
        )
    return speeds


class _Contestant:
    """Answers that are written `n_parallel` at a time, in a context of their own."""

    def __init__(
        self, model: "Model", n_parallel: int, sampler: Sampler, temperature: float, tokens: int
    ) -> None:
        # Each its own prompt: what answers have in common would be evaluated once.
        prompts = [
            [{"role": "user", "content": f"{PROMPT} This is story {i}."}]
            for i in range(100, 100 + n_parallel)
        ]
        n_ctx = max(map(model.count_tokens, prompts)) + tokens
        self._model = model
        self._context = make_context(model._weights, n_ctx, model._batch.context.n_threads, n_parallel)
        self.n_parallel = self._context.n_seq  # fewer where memory is short
        self._requests = [
            Request(prompt, sampler, temperature, tokens, seed)
            for seed, prompt in enumerate(prompts[: self.n_parallel])
        ]
        model._use(self._context)
        recorder = Recorder(self._context)
        model._batch = Batch(recorder)  # type: ignore[arg-type]
        self._n_tokens = sum(answer.n_tokens for answer in model.complete(self._requests))
        self._calls = recorder.calls

    def time(self) -> tuple[float, float]:
        """Tokens a second, as they are written and of the calls alone."""
        self._forget()
        ours = _seconds(lambda: list(self._model.complete(self._requests)))
        self._forget()
        bare = _seconds(lambda: [call() for call in self._calls])
        return self._n_tokens / ours, self._n_tokens / bare

    def _forget(self) -> None:
        for seq_id in range(self.n_parallel):
            self._context.clear(seq_id)
        self._model._use(self._context)


def _seconds(function: Callable[[], object]) -> float:
    began = time.perf_counter()
    function()
    return time.perf_counter() - began
