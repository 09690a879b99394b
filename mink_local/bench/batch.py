"""What writing many answers at a time costs beyond llama.cpp's own work, for `mink-bench batch`."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

from mink_local.bench.timing import PROMPT
from mink_local.generation.engine import Engine
from mink_local.generation.loading import make_context
from mink_local.generation.prompts import PromptEncoder
from mink_local.generation.request import Request, SamplingParams
from mink_local.generation.template import ChatTemplate
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
    """An engine that generates `n_parallel` answers at a time, in a KV cache of its own."""

    def __init__(
        self, model: "Model", n_parallel: int, sampler: Sampler, temperature: float, tokens: int
    ) -> None:
        # Each has a prompt of its own: what answers have in common would be evaluated once.
        prompts = [
            model.tokens([{"role": "user", "content": f"{PROMPT} This is story {i}."}])
            for i in range(100, 100 + n_parallel)
        ]
        n_ctx = max(map(len, prompts)) + tokens
        n_threads = model.engine.context.n_threads
        self._context = make_context(model.weights, n_ctx, n_parallel, n_threads=n_threads)
        self._encoder = PromptEncoder(model.weights, ChatTemplate(model.weights))
        self.n_parallel = self._context.n_seq  # fewer if memory is short
        self._requests = [
            Request(
                prompt,
                SamplingParams(sampler=sampler, temperature=temperature, max_tokens=tokens, seed=seed),
            )
            for seed, prompt in enumerate(prompts[: self.n_parallel])
        ]
        recorder = Recorder(self._context)
        self._n_tokens = self._generate(recorder)  # type: ignore[arg-type]
        self._calls = recorder.calls

    def time(self) -> tuple[float, float]:
        """Return tokens a second, of generation and of its calls alone."""
        self._forget()
        ours = _seconds(lambda: self._generate(self._context))
        self._forget()
        bare = _seconds(lambda: [call() for call in self._calls])
        return self._n_tokens / ours, self._n_tokens / bare

    def _generate(self, context: Context) -> int:
        """Generate all answers; return how many tokens they have."""
        engine = Engine(context, self._encoder)
        answers = [engine.submit(request) for request in self._requests]
        while not engine.idle:
            engine.step()
        return sum(answer.n_tokens for answer in answers)

    def _forget(self) -> None:
        for seq_id in range(self.n_parallel):
            self._context.clear(seq_id)


def _seconds(function: Callable[[], object]) -> float:
    began = time.perf_counter()
    function()
    return time.perf_counter() - began
