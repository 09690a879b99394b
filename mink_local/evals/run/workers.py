"""Workers that answer a run's questions: in this process, or one per GPU of a Ray cluster."""

import hashlib
import json
import logging
import math
import os
import socket
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from itertools import groupby, takewhile
from typing import Any, Literal, NamedTuple

from mink_local.errors import GenerationError, MinkError, RunError
from mink_local.evals.inputs import DATE, file_sha256
from mink_local.evals.run.questions import AskedTask
from mink_local.evals.run.records import Response, ResponseKey, prompt_sha256, seed_of
from mink_local.evals.tasks.base import score
from mink_local.generation.answer import Answer
from mink_local.generation.loading import load_model
from mink_local.generation.model import Model
from mink_local.generation.request import Request, SamplingParams
from mink_local.models.catalog import resolve
from mink_local.samplers import parse

NO_TEMPLATE = hashlib.sha256(b"").hexdigest()  # the `template_sha256` of a model without a chat template
_CTX_STEP = 256  # llama.cpp rounds context lengths to multiples of this
_LOSSES = 3  # this many Ray workers lost with no response in between end the run
_CONNECT_SECONDS = 10.0
_POLL_SECONDS = 0.2  # how long Ctrl-C may go unnoticed

log = logging.getLogger("mink_local")


class LoadedModel(NamedTuple):
    """A model with a context, ready to answer.

    Attributes:
        environment: The settings that affect nothing but the last bits of llama.cpp's sums.
    """

    template_sha256: str
    environment: Mapping[str, Any]


class Worker:
    """Answers questions with a model, which is loaded when needed, in this process or in one of Ray's.

    Args:
        model: Name of the model on any machine: an alias or a path.
        tasks: Tasks by name, with all questions of the run: the longest prompt determines the context length,
            so that it is the same whenever the run is resumed.
        seed: Seed of the run.
        ctx: Maximum tokens of prompt plus response; None uses the model's training context.
        n_parallel: Number of responses at a time.
        placement: Options of `load_model`.
        sha256: SHA-256 of the model's file, for machines that may have a different one.
    """

    def __init__(
        self,
        model: str,
        tasks: Mapping[str, AskedTask],
        *,
        seed: int,
        ctx: int | None,
        n_parallel: int | Literal["auto"],
        placement: Mapping[str, Any],
        sha256: str | None = None,
    ) -> None:
        self._name, self._tasks, self._seed, self._ctx = model, tasks, seed, ctx
        self._n_parallel: int | Literal["auto"] = n_parallel
        self._placement, self._sha256 = placement, sha256
        self._model: Model | None = None
        self._interrupted = False
        self._n_ctx = 0
        self._task = ""  # the one the context is sized for

    def answer(self, keys: Sequence[ResponseKey]) -> Iterator[Response | LoadedModel]:
        """Yield responses in order of completion, and every newly loaded model before its responses.

        Generation continues while a response is scored and written.

        Args:
            keys: The wanted responses; those to a question are consecutive, so that its prompt is evaluated
                once.

        Raises:
            GenerationError: The model cannot answer a question.
            RunError: This machine has a different file for the model.
        """
        model = self._model = self._model or self.load()
        for task, group in groupby(keys, lambda key: key.task):
            if self._interrupted:
                return
            if task != self._task and self._reserve(model, task):
                yield self._session(model)
            with closing(self._answers(model, list(group))) as answers:
                for key, answer in answers:
                    if answer.finish_reason == "error":
                        raise GenerationError(
                            f"question {key.question_id} of {task} with {key.model}: {answer.error}"
                        )
                    if answer.finish_reason != "interrupted":
                        yield self._response(key, answer)

    def interrupt(self) -> None:
        """Make `answer` end soon; may be called from a signal handler."""
        self._interrupted = True
        if self._model:
            self._model.interrupt()

    def close(self) -> None:
        """Free the model."""
        if self._model:
            self._model.close()

    def load(self) -> Model:
        """Return the loaded model. Raises RunError if this machine has a different file for it."""
        if self._sha256 and file_sha256(resolve(self._name).path) != self._sha256:
            raise RunError(f"{self._name} must be the same file on every machine of the cluster")
        return load_model(self._name, n_ctx=_CTX_STEP, date=DATE, **self._placement)

    def _reserve(self, model: Model, task: str) -> bool:
        """Make room for a task's longest prompt and response; return False if there already is."""
        self._task, asked = task, self._tasks[task]
        longest = max(model.count_tokens(asked.messages(question)) for question in asked.questions.values())
        n_ctx = -(-(longest + asked.max_tokens) // _CTX_STEP) * _CTX_STEP
        n_ctx = min(n_ctx, self._ctx or n_ctx, model.weights.n_ctx_train)
        if n_ctx == self._n_ctx:
            return False
        model.reserve(n_ctx, self._n_parallel)
        self._n_ctx = n_ctx
        return True

    def _session(self, model: Model) -> LoadedModel:
        placement = model.placement.partition(", with a context")[0]  # that of loading, since changed
        environment = {
            "executor": "ray" if self._sha256 else "local",
            "placement": placement,
            "n_parallel": model.n_parallel,
            "n_ctx_seq": self._n_ctx,
        }
        template = model.chat_template or ""
        if kwargs := self._placement.get("template_kwargs"):  # they change prompts as another template does
            template += json.dumps(kwargs, sort_keys=True)
        return LoadedModel(hashlib.sha256(template.encode()).hexdigest(), environment)

    def _answers(
        self, model: Model, keys: Sequence[ResponseKey]
    ) -> Generator[tuple[ResponseKey, Answer], None, None]:
        """Yield the answers to one task's questions.

        One at a time, answers depend on nothing but their own request, wherever the run was interrupted.
        llama.cpp's sums are not batch-invariant, so every question starts with an empty cache, and its prompt
        is evaluated for an answer that is thrown away. For the answers that count, only the prompt's last
        token is evaluated again.
        """
        alone = model.n_parallel == 1
        groups = [list(group) for _, group in groupby(keys, lambda key: key.question_id if alone else "")]
        for group in groups:
            if self._interrupted:
                return
            if alone:
                model.forget()
                prefill = SamplingParams(temperature=0, max_tokens=1)
                list(model.answer_all([Request(self._request(group[0]).prompt, prefill)]))
            requests = takewhile(lambda _: not self._interrupted, map(self._request, group))
            for answer in model.answer_all(requests):
                yield group[answer.index], answer

    def _request(self, key: ResponseKey) -> Request:
        asked = self._tasks[key.task]
        params = SamplingParams(
            sampler=parse(key.sampler),
            temperature=key.temperature,
            max_tokens=asked.max_tokens,
            seed=seed_of(self._seed, key.task, key.question_id, key.repeat),
            stop=asked.stop,
            reasoning_budget=asked.reasoning_budget,
        )
        return Request(asked.messages(asked.questions[key.question_id]), params)

    def _response(self, key: ResponseKey, answer: Answer) -> Response:
        task, finish_reason = self._tasks[key.task].task, str(answer.finish_reason)
        question = self._tasks[key.task].questions[key.question_id]
        scored = None if task.open_ended else score(task, question, answer.text, finish_reason)
        strict, flexible = scored or (None, None)
        return Response(
            **key._asdict(),
            order=parse(key.sampler).order,
            seed=answer.seed,
            prompt_sha256=prompt_sha256(question.prompt),
            prompt_tokens=answer.prompt_tokens,
            response=answer.text,
            n_tokens=answer.n_tokens,
            finish_reason=finish_reason,
            k=[int(k) for k in answer.k],
            thoughts_cut=answer.reasoning_cut,
            seconds=round(answer.seconds, 3),
            strict=strict,
            flexible=flexible,
        )


class Cluster:
    """Workers of a Ray cluster: one per GPU, or several on CPUs. Ray decides where they run.

    Workers get chunks of keys, large ones first, and stream their responses to this process, the only one
    that writes. When a worker is lost, its unanswered keys are reassigned and another worker is started.

    The arguments are those of `Worker`.
    """

    def __init__(
        self,
        model: str,
        tasks: Mapping[str, AskedTask],
        placement: Mapping[str, Any],
        **options: Any,
    ) -> None:
        import ray

        self._ray = ray
        self._n_workers, resources = _shares(ray)
        options |= {"placement": placement, "sha256": file_sha256(resolve(model).path)}
        actor: Any = ray.remote(Worker).options(**resources)
        self._start = partial(actor.remote, model, ray.put(dict(tasks)), **options)
        self._todo: deque[ResponseKey] = deque()
        # by Ray's iterator over its responses: a worker and the keys it has yet to answer
        self._busy: dict[Any, tuple[Any, dict[ResponseKey, None]]] = {}
        self._workers: list[Any] = []
        self._losses = 0
        self._interrupted = False

    def answer(self, keys: Sequence[ResponseKey]) -> Iterator[Response | LoadedModel]:
        """Yield responses and sessions; see `Worker.answer`.

        Raises:
            MinkError: A worker raised it.
            RunError: Too many workers were lost.
        """
        self._todo.extend(keys)
        for _ in range(self._n_workers):
            self._start_worker()
        while self._busy and not self._interrupted:
            for responses in self._ray.wait(list(self._busy), timeout=_POLL_SECONDS)[0]:
                found = self._receive(responses, *self._busy.pop(responses))
                if found:
                    yield found

    def interrupt(self) -> None:
        """Make `answer` end soon; may be called from a signal handler."""
        self._interrupted = True

    def close(self) -> None:
        """Stop the workers."""
        for worker in self._workers:
            self._ray.kill(worker)

    def _start_worker(self) -> None:
        if self._todo:
            self._workers.append(self._start())
            self._hand_out(self._workers[-1])

    def _receive(
        self, responses: Any, worker: Any, left: dict[ResponseKey, None]
    ) -> Response | LoadedModel | None:
        """Return a worker's next item; None if it was lost or has sent its last response."""
        try:
            reference = next(responses, None)
            found: Response | LoadedModel | None = None if reference is None else self._ray.get(reference)
        except self._ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, MinkError):
                raise error.cause from None
            raise RunError(f"a worker failed: {error.cause!r}") from None
        except self._ray.exceptions.RayError as error:
            self._replace(left, _first_line(error))
            return None
        if found is None:
            self._hand_out(worker)
            return None
        self._busy[responses] = worker, left  # behind the others, which come first
        if isinstance(found, Response):
            del left[found.key]
            self._losses = 0
        return found

    def _hand_out(self, worker: Any) -> None:
        """Have a worker answer half of its share of what is left.

        Large chunks, which fill the worker's batches, come first, and small ones last, so that all workers
        finish at about the same time.
        """
        if self._todo:
            n = math.ceil(len(self._todo) / (2 * self._n_workers))
            keys = [self._todo.popleft() for _ in range(n)]
            responses = worker.answer.options(num_returns="streaming").remote(keys)
            self._busy[responses] = worker, dict.fromkeys(keys)

    def _replace(self, left: Iterable[ResponseKey], reason: str) -> None:
        """Replace a lost worker and reassign the keys it left.

        Raises RunError if too many workers are lost.
        """
        self._losses += 1
        if self._losses == _LOSSES:
            raise RunError(f"{_LOSSES} workers were lost in a row; the last error: {reason}")
        log.warning("a worker was lost, starting another: %s", reason)
        self._todo.extendleft(reversed(list(left)))
        self._start_worker()


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
