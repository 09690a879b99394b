"""`--executor ray`: a worker on every GPU of a Ray cluster, or several on CPUs.

Workers get stretches of questions, long ones first, and stream their responses to the driver, which alone
writes. What a lost worker had yet to answer is given out again, and another worker is started. Ray decides
where workers run.
"""

import logging
import math
import os
import queue
import socket
import threading
from collections import deque
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any

from mink_local.errors import MinkError, RunError
from mink_local.evals.run.grid import Ready, TaskWork, WorkItem
from mink_local.evals.run.manifest import file_sha256
from mink_local.evals.run.records import Response, ResponseKey
from mink_local.evals.run.worker import Worker
from mink_local.interrupts import on_interrupt
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


class WorkerPool:
    """The workers, a thread for each that gives it work, and the work that is left.

    `ready` is called for every worker that has loaded its model.
    """

    def __init__(
        self, options: Mapping[str, Any], work: Sequence[TaskWork], ready: Ready, workers: int | None
    ) -> None:
        import ray

        self._ray = ray
        self._todo = [deque(task.items) for task in work]
        self._n_workers, resources, threads = _shares(ray, workers)
        options = {**options, "n_threads": options["n_threads"] or threads}
        self._actor = ray.remote(RayWorker).options(**resources)
        self._load = (options, file_sha256(resolve(options["model"]).path), ray.put(list(work)))
        self._ready = ready
        self._workers: list[Any] = []
        self._losses = 0
        self._interrupted = self._stopped = False
        self._lock = threading.Lock()
        self._events: queue.SimpleQueue[Response | BaseException | None] = queue.SimpleQueue()

    def interrupt(self) -> None:
        """Have `responses` raise KeyboardInterrupt soon."""
        self._interrupted = True

    def responses(self) -> Generator[Response, None, None]:
        """Yield the responses as they come."""
        threads = [threading.Thread(target=self._keep_working) for _ in range(self._n_workers)]
        for thread in threads:
            thread.start()
        n_running = len(threads)
        try:
            while n_running:
                if self._interrupted:
                    raise KeyboardInterrupt
                try:
                    event = self._events.get(timeout=_POLL_SECONDS)
                except queue.Empty:
                    continue
                if isinstance(event, BaseException):
                    raise event
                if event is None:
                    n_running -= 1
                else:
                    yield event
        finally:
            with self._lock:
                self._stopped = True
                for worker in self._workers:
                    self._ray.kill(worker)
            for thread in threads:
                thread.join()

    def _keep_working(self) -> None:
        """Do the work of a worker's thread: its events are responses, and at the end an error or None."""
        error: BaseException | None = None
        try:
            while any(self._todo) and not self._stopped:
                self._run_worker()
        except BaseException as raised:
            error = raised
        self._events.put(error)

    def _run_worker(self) -> None:
        """Start a worker and give it work until nothing is left, or the worker is lost."""
        with self._lock:
            if self._stopped:
                return
            worker = self._actor.remote()
            self._workers.append(worker)
        try:
            loaded = self._ray.get(worker.load.remote(*self._load))
            with self._lock:
                self._ready(*loaded)
            while stretch := self._next_stretch():
                self._answer(worker, *stretch)
        except self._ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, MinkError):
                raise error.cause from None
            raise RunError(f"a worker failed: {error.cause!r}") from None
        except self._ray.exceptions.RayError as error:
            if not self._stopped:
                self._note_loss(_first_line(error))

    def _next_stretch(self) -> tuple[int, list[WorkItem]] | None:
        """Take half of a worker's share of what is left of a task; return the task's number and the items.

        Long stretches come first, in which the worker's batches are full, and short ones last, so that all
        workers end at about the same time.
        """
        with self._lock:
            for task, items in enumerate(self._todo):
                if items:
                    n_items = math.ceil(len(items) / (2 * self._n_workers))
                    return task, [items.popleft() for _ in range(n_items)]
        return None

    def _answer(self, worker: Any, task: int, items: Sequence[WorkItem]) -> None:
        """Have a worker answer items of a task; those that it does not answer are given out again."""
        done: set[ResponseKey] = set()
        try:
            for reference in worker.answer.options(num_returns="streaming").remote(task, items):
                response = self._ray.get(reference)
                done.add(response.key)
                self._losses = 0
                self._events.put(response)
        finally:
            left = [item.without(done) for item in reversed(items)]
            with self._lock:
                self._todo[task].extendleft(item for item in left if item.variants)

    def _note_loss(self, reason: str) -> None:
        """Raise RunError if too many workers are lost; otherwise `_keep_working` starts another."""
        self._losses += 1
        if self._losses == _LOSSES:
            raise RunError(f"{_LOSSES} workers were lost one after another, the last one so: {reason}")
        log.warning("a worker was lost, another is started: %s", reason)


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


def answer_on_ray(
    options: Mapping[str, Any], work: Sequence[TaskWork], ready: Ready, workers: int | None = None
) -> Generator[Response, None, None]:
    """Execute the work on the Ray cluster that `connect` has joined. It is an `Executor`."""
    pool = WorkerPool(options, work, ready, workers)
    with on_interrupt(pool.interrupt, terminate=True), closing(pool.responses()) as responses:
        yield from responses
