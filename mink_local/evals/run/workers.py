"""Workers that answer a run's questions: in this process, or one per GPU of a Ray cluster."""

import logging
import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from itertools import groupby
from typing import Any

from mink_local.errors import GenerationError, MinkError, RunError
from mink_local.evals.answering import Answered, Answerer, FileAnswerer, Prepared, file_sha256
from mink_local.evals.run.questions import AskedTask
from mink_local.evals.run.records import (
    Response,
    ResponseKey,
    Wanted,
    mark_of,
    prompt_sha256,
    seed_of,
    with_verdicts,
)
from mink_local.evals.tasks.base import NO_ANSWER, ScorerError
from mink_local.generation.request import Request, SamplingParams
from mink_local.models.catalog import resolve

_LOSSES = 3  # this many Ray workers lost with no response in between end the run
_CONNECT_SECONDS = 10.0
_POLL_SECONDS = 0.2  # how long Ctrl-C may go unnoticed

log = logging.getLogger("mink_local")


class Worker:
    """Answers a run's questions, in this process or in one of Ray's.

    Args:
        answerer: Answers the requests.
        tasks: Tasks by name, with all questions of the run: the longest prompt determines the context length,
            so that it is the same whenever the run is resumed.
        seed: Seed of the run.
    """

    def __init__(self, answerer: Answerer, tasks: Mapping[str, AskedTask], seed: int) -> None:
        self._answerer, self._tasks, self._seed = answerer, tasks, seed
        self._interrupted = False
        self._task = ""  # the one there is room for

    def answer(self, wanted: Sequence[Wanted]) -> Iterator[Response | Prepared]:
        """Yield responses in order of completion, and every new session before its responses.

        Generation continues while a response is scored and written.

        Args:
            wanted: Responses; those to a question are consecutive, so that its prompt is evaluated once.

        Raises:
            GenerationError: The model cannot answer a question.
            MinkError: The model cannot be loaded, or its server fails.
        """
        for task, group in groupby(wanted, lambda one: one.task):
            members = list(group)
            if self._interrupted:
                return
            if task != self._task and (session := self._answerer.prepare(self._all_of(task, members[0]))):
                yield session
            self._task = task
            with closing(self._answerer.answers(list(map(self._request, members)))) as answers:
                for answer in answers:
                    yield self._response(members[answer.index], answer)

    def unfinished(self) -> list[int]:
        """Return the lengths so far of the responses that are being generated; see `Answerer`."""
        return self._answerer.unfinished()

    def interrupt(self) -> None:
        """Make `answer` end soon; may be called from a signal handler."""
        self._interrupted = True
        self._answerer.interrupt()

    def close(self) -> None:
        """Free the model."""
        self._answerer.close()

    def _all_of(self, task: str, like: Wanted) -> Iterator[Request]:
        questions = self._tasks[task].questions.values()
        return (self._request(like._replace(question=question)) for question in questions)

    def _request(self, wanted: Wanted) -> Request:
        asked = self._tasks[wanted.task]
        params = SamplingParams(
            sampler=wanted.sampler,
            temperature=wanted.temperature,
            max_tokens=asked.max_tokens,
            seed=self._seed_of(wanted),
            stop=asked.stop,
            reasoning_budget=asked.reasoning_budget,
        )
        return Request(asked.messages(wanted.question), params)

    def _seed_of(self, wanted: Wanted) -> int:
        return seed_of(self._seed, *wanted.question.key, wanted.repeat)

    def _response(self, wanted: Wanted, answer: Answered) -> Response:
        """Return the scored response. Raises GenerationError if there is no answer."""
        question = wanted.question
        if answer.finish_reason == "error":
            where = f"question {question.id} of {wanted.task} with {wanted.model}"
            raise GenerationError(f"{where}: {answer.error}")
        response = Response(
            **wanted.key._asdict(),
            order=wanted.sampler.order,
            seed=self._seed_of(wanted),
            prompt_sha256=prompt_sha256(question.prompt),
            prompt_tokens=answer.prompt_tokens,
            response=answer.text,
            n_tokens=answer.n_tokens,
            finish_reason=answer.finish_reason,
            k=list(answer.k),
            thoughts_cut=answer.reasoning_cut,
            seconds=round(answer.seconds, 3),
            strict=None,
            flexible=None,
        )
        task = self._tasks[wanted.task].task
        try:
            response = with_verdicts(response, question, task)
        except ScorerError as error:
            log.warning("%s; the response is kept, and mink-eval report scores it again", error)
            return replace(response, strict=NO_ANSWER, flexible=NO_ANSWER)
        is_users = task.scorer_of(question).is_own  # a report asks it again, as it may have changed
        return response if is_users else replace(response, scored=mark_of(question, response))


class Cluster:
    """Workers of a Ray cluster: one per GPU, or per machine without GPUs. Ray decides where they run.

    Each worker gets its share of what is wanted, and streams its responses to this process, the only one that
    writes. When a worker is lost, another one gets what it has not answered.

    The arguments are those of `Worker`; the answerer is a file of the same name on all machines.
    """

    def __init__(self, answerer: FileAnswerer, tasks: Mapping[str, AskedTask], seed: int) -> None:
        import ray

        self._ray = ray
        self._n_workers, resources = _shares(ray)
        file = replace(answerer, sha256=file_sha256(resolve(answerer.file).path))
        actor: Any = ray.remote(Worker).options(**resources)
        self._start = partial(actor.remote, file, ray.put(dict(tasks)), seed)
        # by Ray's iterator over its responses: a worker and what it has yet to answer
        self._busy: dict[Any, tuple[Any, dict[ResponseKey, Wanted]]] = {}
        self._losses = 0
        self._interrupted = False

    def answer(self, wanted: Sequence[Wanted]) -> Iterator[Response | Prepared]:
        """Yield responses and sessions; see `Worker.answer`.

        Raises:
            MinkError: A worker raised it.
            RunError: Too many workers were lost.
        """
        for number in range(min(self._n_workers, len(wanted))):
            self._start_worker({one.key: one for one in wanted[number :: self._n_workers]})
        while self._busy and not self._interrupted:
            for responses in self._ray.wait(list(self._busy), timeout=_POLL_SECONDS)[0]:
                if found := self._receive(responses):
                    yield found

    def unfinished(self) -> list[int]:
        """Return nothing: other processes do not say."""
        return []

    def interrupt(self) -> None:
        """Make `answer` end soon; may be called from a signal handler."""
        self._interrupted = True

    def close(self) -> None:
        """Stop the workers."""
        for worker, _ in self._busy.values():
            self._ray.kill(worker)

    def _start_worker(self, wanted: dict[ResponseKey, Wanted]) -> None:
        worker = self._start()
        responses = worker.answer.options(num_returns="streaming").remote(list(wanted.values()))
        self._busy[responses] = worker, wanted

    def _receive(self, responses: Any) -> Response | Prepared | None:
        """Return a worker's next item; None if it was lost or has sent its last response."""
        worker, left = self._busy.pop(responses)
        try:
            reference = next(responses, None)
            found: Response | Prepared | None = None if reference is None else self._ray.get(reference)
        except self._ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, MinkError):
                raise error.cause from None
            raise RunError(f"a worker failed: {error.cause!r}") from None
        except self._ray.exceptions.RayError as error:
            self._losses += 1
            if self._losses == _LOSSES:
                raise RunError(f"{_LOSSES} workers were lost in a row: {_first_line(error)}") from None
            log.warning("a worker was lost, starting another: %s", _first_line(error))
            self._start_worker(left)
            return None
        if found is None:
            self._ray.kill(worker)
            return None
        self._busy[responses] = worker, left  # behind the others, which come first
        if isinstance(found, Response):
            del left[found.key]
            self._losses = 0
        return found


def _shares(ray: Any) -> tuple[int, dict[str, Any]]:
    """Return the number of workers and the resources of each: one per GPU, or per machine without GPUs."""
    gpus = int(ray.cluster_resources().get("GPU", 0))
    if gpus:
        return gpus, {"num_gpus": 1, "num_cpus": 0}
    return sum(node["Alive"] for node in ray.nodes()), {"num_cpus": 0, "scheduling_strategy": "SPREAD"}


def connect(address: str) -> None:
    """Join the Ray cluster at `address`, or start one on this machine if it is "local", once.

    Raises RunError if no cluster responds.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # otherwise Ray sends usage statistics
    os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", ".")  # otherwise Ray writes to our standard output
    import ray

    if ray.is_initialized():
        return
    host, _, port = address.removeprefix("ray://").rpartition(":")
    try:
        if host and port.isdecimal():  # Ray itself would retry for minutes, and print it
            socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_SECONDS).close()
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, include_dashboard=False)
    except (OSError, OverflowError, RuntimeError, ValueError) as error:
        at = " can be started" if address == "local" else f" responds at {address}"
        raise RunError(f"no Ray cluster{at}: {_first_line(error)}") from None


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
