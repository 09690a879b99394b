"""A model that turns jobs into records: the same for the local executor and for a Ray actor."""

import hashlib
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from datetime import date
from typing import TYPE_CHECKING, Any, Literal

from mink_local.evals.run.grid import Draw, Job, Part, Ready, seed_of
from mink_local.evals.run.records import Record
from mink_local.evals.tasks import TASKS, score
from mink_local.interrupts import in_background, on_interrupt
from mink_local.samplers import Greedy

if TYPE_CHECKING:
    from mink_local.generation.answer import Answer, Request

# What a chat template that writes the date is told, so that a prompt is the same tomorrow: the date that
# LLaMA-3's falls back on.
TODAY = date(2024, 7, 26)

_CTX_STEP = 256  # llama.cpp's own step of a sequence's length
_READ = Draw(Greedy(), 0.0, 0)


class Worker:
    """A loaded model and how it is to answer.

    model: a path or an alias. name: of the model in the records. seed: of the run. n_parallel: answers at a
    time. ctx: at most so many tokens for a prompt and its answer, None for what the model was trained on.
    """

    def __init__(
        self,
        model: str,
        name: str,
        seed: int,
        n_parallel: int | Literal["auto"],
        ctx: int | None,
        n_gpu_layers: int | Literal["auto"],
        n_threads: int | None,
    ) -> None:
        from mink_local.generation.loading import load_model

        # A small context to begin with: `answer` makes the one that the questions need.
        self.model = load_model(
            model, n_ctx=_CTX_STEP, n_gpu_layers=n_gpu_layers, n_threads=n_threads, today=TODAY
        )
        self.interrupted = False
        self._name = name
        self._seed = seed
        self._n_parallel: int | Literal["auto"] = n_parallel
        trained = self.model._weights.n_ctx_train
        self._limit = min(ctx or trained, trained)
        self._n_ctx_seq = 0

    @property
    def template_sha256(self) -> str:
        """Of the chat template's source; of nothing where the model has none."""
        return hashlib.sha256((self.model._weights.chat_template or "").encode()).hexdigest()

    def context_for(self, prompts: Sequence[str], max_tokens: int) -> int:
        """Tokens that the longest of the prompts and an answer of `max_tokens` take, within the limit."""
        longest = max(self.model.count_tokens(_messages(prompt)) for prompt in prompts)
        whole = -(-(longest + max_tokens) // _CTX_STEP) * _CTX_STEP
        return min(whole, self._limit)

    @property
    def circumstances(self) -> dict[str, Any]:
        """What moves the last bits of llama.cpp's sums and no more."""
        return {
            "placement": self.model.placement,
            "n_parallel": self.model.n_parallel,
            "n_ctx_seq": self._n_ctx_seq,
        }

    def make_room(self, n_ctx_seq: int) -> None:
        """Have a KV cache in which every answer and its prompt may have `n_ctx_seq` tokens."""
        if n_ctx_seq != self._n_ctx_seq:
            self.model.reserve(n_ctx_seq, self._n_parallel)
            self._n_ctx_seq = n_ctx_seq

    def answer(self, jobs: Sequence[Job]) -> Iterator[Record]:
        """The records of the jobs in order of completion, when there is room.

        Generation goes on in another thread while a record is being scored and written. After `interrupt`
        it ends with what is complete.
        """
        answers = self._one_by_one(jobs) if self.model.n_parallel == 1 else self._answers(jobs)
        with closing(in_background(answers, self.interrupt)) as finished:
            for job, draw, answer in finished:
                if answer.finish_reason and answer.finish_reason != "interrupted":
                    yield self._record(job, draw, answer, answer.finish_reason)

    def interrupt(self) -> None:
        """End `answer` as soon as possible; may be called from a signal handler."""
        self.interrupted = True
        self.model.interrupt()

    def _answers(self, jobs: Sequence[Job]) -> Iterator[tuple[Job, Draw, "Answer"]]:
        asked: dict[int, tuple[Job, Draw]] = {}

        def requests() -> Iterator["Request"]:
            wanted = ((job, draw) for job in jobs for draw in job.draws)
            for index, cell in enumerate(wanted):
                if self.interrupted:
                    return
                asked[index] = cell
                yield self._request(*cell)

        for answer in self.model.complete(requests()):
            yield *asked.pop(answer.index), answer

    def _one_by_one(self, jobs: Sequence[Job]) -> Iterator[tuple[Job, Draw, "Answer"]]:
        """With one sequence a response depends on nothing but its own cell, wherever the run was stopped.

        llama.cpp's sums depend in their last bits on what is evaluated together. So every question begins
        with an empty cache, and its prompt is read for an answer that is thrown away: for each that
        counts the last token alone is evaluated again, be it the first one or one that was missing.
        """
        for job in jobs:
            self.model.forget()
            for _ in self._answers([replace(job, draws=(_READ,), max_tokens=1)]):
                pass
            yield from self._answers([job])

    def _request(self, job: Job, draw: Draw) -> "Request":
        from mink_local.generation.answer import Request

        return Request(
            prompt=_messages(job.question.prompt),
            sampler=draw.sampler,
            temperature=draw.temperature,
            max_tokens=job.max_tokens,
            seed=seed_of(self._seed, job.task, job.question.id, draw.repeat),
        )

    def _record(self, job: Job, draw: Draw, answer: "Answer", finish_reason: str) -> Record:
        question = job.question
        strict, flexible = score(TASKS[job.task], question, answer.text, finish_reason)
        return Record(
            model=self._name,
            task=job.task,
            sampler=str(draw.sampler),
            temperature=draw.temperature,
            order=draw.sampler.order,
            repeat=draw.repeat,
            question_id=question.id,
            seed=answer.seed,
            prompt_sha256=hashlib.sha256(question.prompt.encode("utf-8", "replace")).hexdigest(),
            prompt_tokens=answer.prompt_tokens,
            response=answer.text,
            n_tokens=answer.n_tokens,
            finish_reason=finish_reason,
            k=[int(k) for k in answer.k],
            seconds=round(answer.seconds, 3),
            strict=strict,
            flexible=flexible,
        )


def _messages(prompt: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": prompt}]


def answer_here(
    options: Mapping[str, Any], parts: Sequence[Part], ready: Ready
) -> Generator[Record, None, None]:
    """The executor of one process with one model."""
    worker = Worker(**options)
    with on_interrupt(worker.interrupt, terminate=True):
        for i, part in enumerate(parts):
            worker.make_room(worker.context_for(part.prompts, part.max_tokens))
            if i == 0:
                ready(worker.template_sha256, {"executor": "local", **worker.circumstances})
            yield from worker.answer(part.jobs)
            if worker.interrupted:
                raise KeyboardInterrupt
