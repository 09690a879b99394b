"""A model that answers questions: the same for the local executor and for a Ray worker."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from datetime import date
from typing import Any, Literal

from mink_local.errors import GenerationError
from mink_local.evals.run.grid import Ready, TaskWork, Variant, WorkItem
from mink_local.evals.run.records import Response, prompt_sha256, seed_of
from mink_local.evals.tasks.base import score
from mink_local.generation.answer import Answer
from mink_local.generation.loading import load_model
from mink_local.generation.request import Request, SamplingParams
from mink_local.interrupts import until_interrupted
from mink_local.samplers import Greedy

# The date given to chat templates that write one, so that a prompt is the same tomorrow: the date to which
# LLaMA-3's template defaults.
DATE = date(2024, 7, 26)

NO_TEMPLATE = hashlib.sha256(b"").hexdigest()  # the `template_sha256` of a model without a chat template
_CTX_STEP = 256  # llama.cpp's own step of a context's length
_PREFILL = Variant(Greedy(), 0.0, 0)


class Worker:
    """A loaded model that answers questions.

    `seed` is the run's. `ctx` limits the tokens of a prompt and its response; None is what the model was
    trained on.
    """

    def __init__(
        self,
        model: str,
        seed: int,
        n_parallel: int | Literal["auto"],
        ctx: int | None,
        n_gpu_layers: int | Literal["auto"],
        n_threads: int | None,
        rpc: Sequence[str] | None = None,
    ) -> None:
        self.model = load_model(
            model, n_ctx=_CTX_STEP, n_gpu_layers=n_gpu_layers, n_threads=n_threads, rpc=rpc, date=DATE
        )
        self.interrupted = False
        self._seed = seed
        self._n_parallel: int | Literal["auto"] = n_parallel
        trained = self.model.weights.n_ctx_train
        self._limit = min(ctx or trained, trained)
        self._n_ctx = 0

    @property
    def template_sha256(self) -> str:
        return hashlib.sha256((self.model.chat_template or "").encode()).hexdigest()

    @property
    def environment(self) -> dict[str, Any]:
        """The settings that change the last bits of llama.cpp's sums and no more."""
        placement = self.model.placement.partition(", with a context")[0]  # of loading, which is not this one
        return {"placement": placement, "n_parallel": self.model.n_parallel, "n_ctx_seq": self._n_ctx}

    def context_for(self, work: TaskWork) -> int:
        """Return the tokens of the longest prompt with the longest response, within the limit."""
        longest = max(self.model.count_tokens(work.settings.messages(prompt)) for prompt in work.prompts)
        n_ctx = -(-(longest + work.settings.max_tokens) // _CTX_STEP) * _CTX_STEP
        return min(n_ctx, self._limit)

    def reserve(self, n_ctx: int) -> bool:
        """Make a KV cache for prompts and responses of `n_ctx` tokens each; return False if it is there."""
        if n_ctx == self._n_ctx:
            return False
        self.model.reserve(n_ctx, self._n_parallel)
        self._n_ctx = n_ctx
        return True

    def answer(self, items: Sequence[WorkItem]) -> Iterator[Response]:
        """Yield the responses in order of completion, after `reserve`.

        Generation continues in another thread while a response is scored and written. After `interrupt` it
        ends with the responses that are complete. Raises GenerationError if the model cannot answer a
        question.
        """
        answers = self._one_by_one(items) if self.model.n_parallel == 1 else self._answers(items)
        with closing(until_interrupted(answers, self.interrupt)) as finished:
            for item, variant, answer in finished:
                if answer.finish_reason == "error":
                    question = f"question {item.question.id} of {item.settings.task.name} with {item.model}"
                    raise GenerationError(f"{question}: {answer.error}")
                if answer.finish_reason != "interrupted":
                    yield self._response(item, variant, answer)

    def interrupt(self) -> None:
        """End `answer` as soon as possible; may be called from a signal handler."""
        self.interrupted = True
        self.model.interrupt()

    def _answers(self, items: Sequence[WorkItem]) -> Iterator[tuple[WorkItem, Variant, Answer]]:
        running: dict[int, tuple[WorkItem, Variant]] = {}

        def requests() -> Iterator[Request]:
            wanted = ((item, variant) for item in items for variant in item.variants)
            for index, asked in enumerate(wanted):
                if self.interrupted:
                    return
                running[index] = asked
                yield self._request(*asked)

        for answer in self.model.answer_all(requests()):
            yield *running.pop(answer.index), answer

    def _one_by_one(self, items: Sequence[WorkItem]) -> Iterator[tuple[WorkItem, Variant, Answer]]:
        """Yield answers that depend on nothing but their own request, wherever the run was stopped.

        The last bits of llama.cpp's sums depend on what is evaluated together. So every question begins
        with an empty cache, and its prompt is evaluated for an answer that is thrown away: for every answer
        that counts, only the prompt's last token is evaluated again.
        """
        for item in items:
            self.model.forget()
            settings = replace(item.settings, max_tokens=1)
            for _ in self._answers([replace(item, variants=(_PREFILL,), settings=settings)]):
                pass
            yield from self._answers([item])

    def _request(self, item: WorkItem, variant: Variant) -> Request:
        settings = item.settings
        params = SamplingParams(
            sampler=variant.sampler,
            temperature=variant.temperature,
            max_tokens=settings.max_tokens,
            seed=seed_of(self._seed, settings.task.name, item.question.id, variant.repeat),
            stop=settings.stop,
        )
        return Request(settings.messages(item.question.prompt), params)

    def _response(self, item: WorkItem, variant: Variant, answer: Answer) -> Response:
        task, question, finish_reason = item.settings.task, item.question, str(answer.finish_reason)
        scored = None if task.open_ended else score(task, question, answer.text, finish_reason)
        strict, flexible = scored or (None, None)
        return Response(
            **item.key(variant)._asdict(),
            order=variant.sampler.order,
            seed=answer.seed,
            prompt_sha256=prompt_sha256(question.prompt),
            prompt_tokens=answer.prompt_tokens,
            response=answer.text,
            n_tokens=answer.n_tokens,
            finish_reason=finish_reason,
            k=[int(k) for k in answer.k],
            seconds=round(answer.seconds, 3),
            strict=strict,
            flexible=flexible,
        )


class LocalExecutor:
    """Answers in this process, with one model."""

    def __init__(self) -> None:
        self._worker: Worker | None = None
        self._interrupted = False

    def answer(
        self, options: Mapping[str, Any], work: Sequence[TaskWork], ready: Ready
    ) -> Iterator[Response]:
        self._worker = worker = Worker(**options)
        for task in work:
            if self._interrupted:
                return
            if worker.reserve(worker.context_for(task)):
                ready(worker.template_sha256, {"executor": "local", **worker.environment})
            yield from worker.answer(task.items)

    def interrupt(self) -> None:
        self._interrupted = True
        if self._worker:
            self._worker.interrupt()
