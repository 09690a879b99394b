"""`--executor ray`: a worker on every GPU of a Ray cluster, or several on CPUs.

Workers get stretches of questions, long ones first, and stream their responses to the driver, which alone
writes. What a lost worker had yet to answer is given out again, and another worker is started. Ray decides
where workers run.
"""

import logging
import math
import os
import socket
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mink_local.errors import MinkError, RunError
from mink_local.evals.run.grid import Ready, TaskWork, WorkItem
from mink_local.evals.run.records import Response, ResponseKey
from mink_local.evals.run.worker import Worker
from mink_local.evals.store import file_sha256
from mink_local.models.catalog import resolve

_LOSSES = 3  # workers lost with no response in between end the run
_CONNECT_SECONDS = 10.0
_POLL_SECONDS = 0.2  # after which Ctrl-C is noticed

log = logging.getLogger("mink_local")


class RayWorker:
    """A worker in a process of its own, on any machine of the cluster."""

    def load(
        self, options: Mapping[str, Any], sha256: str, work: Sequence[TaskWork]
    ) -> tuple[str, dict[str, Any]]:
        """Load the model; return the SHA-256 of its template, and its runtime environment.

        Raises RunError if this machine has another file for the model.
        """
        if file_sha256(resolve(options["model"]).path) != sha256:
            raise RunError(f"{options['model']} is not the same file on every machine of the cluster")
        self._worker = Worker(**options)
        self._contexts = [self._worker.context_for(task) for task in work]
        self._worker.reserve(self._contexts[0])
        return self._worker.template_sha256, {"executor": "ray", **self._worker.environment}

    def answer(self, task: int, items: Sequence[WorkItem]) -> Iterator[Response]:
        """Yield the responses to items of the task with this number, in order of completion."""
        self._worker.reserve(self._contexts[task])
        yield from self._worker.answer(items)


@dataclass(eq=False)
class Stretch:
    """Items of the task with this number that a worker answers; none while it loads its model."""

    worker: Any
    task: int = 0
    items: Sequence[WorkItem] = ()
    done: set[ResponseKey] = field(default_factory=set)


class RayExecutor:
    """Spreads the work over the workers of a Ray cluster.

    Args:
        address: As for `connect`.
        workers: How many; None is one for every GPU, or every machine.

    Raises:
        RunError: Ray is not installed, or no cluster answers.
    """

    def __init__(self, address: str | None, workers: int | None) -> None:
        connect(address)
        import ray

        self._ray, self._wanted_workers = ray, workers
        self._interrupted = False

    def interrupt(self) -> None:
        self._interrupted = True

    def answer(
        self, options: Mapping[str, Any], work: Sequence[TaskWork], ready: Ready
    ) -> Iterator[Response]:
        self._todo = [deque(task.items) for task in work]
        self._n_workers, resources, threads = _shares(self._ray, self._wanted_workers)
        options = {**options, "n_threads": options["n_threads"] or threads}
        self._actor = self._ray.remote(RayWorker).options(**resources)
        self._load = (options, file_sha256(resolve(options["model"]).path), self._ray.put(list(work)))
        self._busy: dict[Any, Stretch] = {}  # by what Ray waits for: a loaded model, or the next response
        self._workers: list[Any] = []
        self._losses = 0
        try:
            for _ in range(self._n_workers):
                self._start_worker()
            while self._busy and not self._interrupted:
                for source in self._ray.wait(list(self._busy), timeout=_POLL_SECONDS)[0]:
                    response = self._receive(source, self._busy.pop(source), ready)
                    if response:
                        yield response
        finally:
            for worker in self._workers:
                self._ray.kill(worker)

    def _start_worker(self) -> None:
        worker = self._actor.remote()
        self._workers.append(worker)
        self._busy[worker.load.remote(*self._load)] = Stretch(worker)

    def _receive(self, source: Any, stretch: Stretch, ready: Ready) -> Response | None:
        """Take what has come from a worker, and give it work; return the response, if it is one."""
        try:
            if not stretch.items:
                ready(*self._ray.get(source))
            elif (reference := next(source, None)) is not None:
                response: Response = self._ray.get(reference)
                stretch.done.add(response.key)
                self._losses = 0
                self._busy[source] = stretch
                return response
        except self._ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, MinkError):
                raise error.cause from None
            raise RunError(f"a worker failed: {error.cause!r}") from None
        except self._ray.exceptions.RayError as error:
            self._replace(stretch, _first_line(error))
        else:
            self._hand_out(stretch.worker)
        return None

    def _hand_out(self, worker: Any) -> None:
        """Have a worker answer half of its share of what is left of a task.

        Long stretches come first, in which the worker's batches are full, and short ones last, so that all
        workers end at about the same time.
        """
        for task, items in enumerate(self._todo):
            if items:
                n_items = math.ceil(len(items) / (2 * self._n_workers))
                stretch = Stretch(worker, task, [items.popleft() for _ in range(n_items)])
                responses = worker.answer.options(num_returns="streaming").remote(task, stretch.items)
                self._busy[responses] = stretch
                return

    def _replace(self, stretch: Stretch, reason: str) -> None:
        """Start a worker in the place of a lost one, whose unanswered items are given out again.

        Raises RunError if too many workers are lost.
        """
        self._losses += 1
        if self._losses == _LOSSES:
            raise RunError(f"{_LOSSES} workers were lost one after another, the last one so: {reason}")
        log.warning("a worker was lost, another is started: %s", reason)
        left = [item.without(stretch.done) for item in reversed(stretch.items)]
        self._todo[stretch.task].extendleft(item for item in left if item.variants)
        if any(self._todo):
            self._start_worker()


def _shares(ray: Any, workers: int | None) -> tuple[int, dict[str, Any], int | None]:
    """Return the number of workers, the resources of each, and its threads unless the user gives them."""
    resources = ray.cluster_resources()
    gpus = int(resources.get("GPU", 0))
    if gpus:
        if workers and workers > gpus:
            raise RunError(f"the cluster has {gpus} GPUs: at most {gpus} --workers, not {workers}")
        return workers or gpus, {"num_gpus": 1, "num_cpus": 0}, None
    nodes = sum(node["Alive"] for node in ray.nodes())
    workers = workers or nodes
    threads = None if workers <= nodes else max(1, int(resources.get("CPU", 1)) // workers)
    return workers, {"num_cpus": 0, "scheduling_strategy": "SPREAD"}, threads


def connect(address: str | None) -> None:
    """Join the Ray cluster at `address` or in RAY_ADDRESS, or else start one on this machine, once.

    Raises RunError if Ray is not installed, or no cluster answers.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # Ray would report to its makers
    os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", ".")  # and write on our standard output
    try:
        import ray
    except ImportError:
        raise RunError('--executor ray needs Ray: type  python -m pip install "mink-local[ray]"') from None
    if ray.is_initialized():
        return
    address = address or os.environ.get("RAY_ADDRESS")
    host, _, port = (address or "").removeprefix("ray://").rpartition(":")
    try:
        if host and port.isdecimal():  # Ray itself retries for minutes, and prints it
            socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_SECONDS).close()
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, include_dashboard=False)
    except (OSError, OverflowError, RuntimeError, ValueError) as error:
        at = f" answers at {address}" if address else " can be started"
        raise RunError(f"no Ray cluster{at}: {_first_line(error)}") from None


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
