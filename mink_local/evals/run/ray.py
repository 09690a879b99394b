"""`--executor ray`: one worker on every GPU of a Ray cluster, or several on CPUs.

Workers are given stretches of questions, long ones first, and stream their records to the driver, which alone
writes. What a lost worker had not handed over is given out again, and another worker is started in its
place. All of the scheduling is Ray's.
"""

import logging
import math
import os
import socket
from collections import deque
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from mink_local.errors import MinkError, RunError
from mink_local.evals.run.grid import Draw, Job, Part, Ready, key
from mink_local.evals.run.manifest import file_sha256
from mink_local.evals.run.records import Key, Record
from mink_local.evals.run.worker import Worker
from mink_local.interrupts import on_interrupt
from mink_local.models.catalog import resolve

_LOSSES = 3  # of workers one after another, none of which has answered anything
_CONNECT_SECONDS = 10.0
_POLL_SECONDS = 0.2  # after which Ctrl-C is noticed

log = logging.getLogger("mink_local")


class Actor:
    """A worker in a process of its own, on whatever machine of the cluster."""

    def load(self, options: Mapping[str, Any], sha256: str, parts: Sequence[Part]) -> "Loaded":
        """Load the model, and find the context that each of the parts needs.

        Raises RunError where this machine has another file for the model.
        """
        if file_sha256(resolve(options["model"]).path) != sha256:
            raise RunError(f"{options['model']} is not the same file on every machine of the cluster")
        self._worker = worker = Worker(**options)
        contexts = tuple(worker.context_for(part.prompts, part.max_tokens) for part in parts)
        worker.make_room(contexts[0])
        return Loaded(worker.template_sha256, worker.circumstances, contexts)

    def answer(self, jobs: Sequence[Job], n_ctx_seq: int) -> Iterator[Record]:
        """The records of the jobs, as `Worker.answer` has them."""
        self._worker.make_room(n_ctx_seq)
        yield from self._worker.answer(jobs)


@dataclass(frozen=True)
class Loaded:
    """What a worker says when its model is there. contexts: tokens of a sequence, for every part."""

    template_sha256: str
    circumstances: Mapping[str, Any]
    contexts: tuple[int, ...]


@dataclass
class Hand:
    """A worker as the driver sees it.

    handle: Ray's, of its `Actor`. waits_for: what `load` will return, or the stream of records; None while
    there is nothing to do. loaded: None while it loads. missing: what it is to answer yet, of the part with
    this number.
    """

    handle: Any
    waits_for: Any
    loaded: Loaded | None = None
    part: int = 0
    missing: dict[Key, tuple[Job, Draw]] = field(default_factory=dict)


class Crew:
    """The workers, and what is left for them to do."""

    def __init__(
        self, options: Mapping[str, Any], parts: Sequence[Part], ready: Ready, workers: int | None
    ) -> None:
        import ray

        self.interrupted = False
        self._ray = ray
        self._name: str = options["name"]
        self._todo = [deque(part.jobs) for part in parts]
        self._ready = ready
        self._losses = 0
        n_workers, resources, threads = _shares(ray, workers)
        options = {**options, "n_threads": options["n_threads"] or threads}
        self._kind = ray.remote(Actor).options(**resources)
        self._load = (options, file_sha256(resolve(options["model"]).path), ray.put(list(parts)))
        self._hands = [self._hire() for _ in range(n_workers)]

    def records(self) -> Iterator[Record]:
        """The records of all that is to be done, as they come. Raises KeyboardInterrupt when interrupted."""
        while any(self._todo) or any(hand.missing for hand in self._hands):
            if self.interrupted:
                raise KeyboardInterrupt
            for hand in self._hands:
                if hand.waits_for is None and any(self._todo):
                    self._assign(hand)
            waiting = [hand for hand in self._hands if hand.waits_for is not None]
            events, _ = self._ray.wait([hand.waits_for for hand in waiting], timeout=_POLL_SECONDS)
            for hand in waiting:
                if any(hand.waits_for is event for event in events) and (record := self._take(hand)):
                    yield record

    def dismiss(self) -> None:
        for hand in self._hands:
            self._ray.kill(hand.handle)

    def _hire(self) -> Hand:
        handle = self._kind.remote()
        return Hand(handle, handle.load.remote(*self._load))

    def _assign(self, hand: Hand) -> None:
        """Give a worker half of its share of what is left of a part: long stretches first, in which its
        batches are full, and short ones in the end, so that all are done at about the same time."""
        assert hand.loaded is not None
        hand.part = next(i for i, jobs in enumerate(self._todo) if jobs)
        jobs = self._todo[hand.part]
        stretch = [jobs.popleft() for _ in range(math.ceil(len(jobs) / (2 * len(self._hands))))]
        hand.missing = {
            key(self._name, job.task, job.question, draw): (job, draw)
            for job in stretch
            for draw in job.draws
        }
        answer = hand.handle.answer.options(num_returns="streaming")
        hand.waits_for = answer.remote(stretch, hand.loaded.contexts[hand.part])

    def _take(self, hand: Hand) -> Record | None:
        """What Ray has for us from a worker, a record perhaps."""
        errors = self._ray.exceptions
        try:
            if hand.loaded is None:
                hand.loaded, hand.waits_for = self._ray.get(hand.waits_for), None
                self._ready(hand.loaded.template_sha256, {"executor": "ray", **hand.loaded.circumstances})
                return None
            record: Record = self._ray.get(next(hand.waits_for))
        except StopIteration:
            hand.waits_for = None
            self._take_back(hand)
            return None
        except errors.RayTaskError as error:
            if isinstance(error.cause, MinkError):
                raise error.cause from None
            raise RunError(f"a worker failed: {error.cause!r}") from None
        except errors.RayError as error:
            self._replace(hand, str(error))
            return None
        self._losses = 0
        del hand.missing[record.key]
        return record

    def _replace(self, lost: Hand, reason: str) -> None:
        """Start another worker for one that is lost, and have done again what it has not handed over."""
        self._losses += 1
        reason = reason.strip().partition("\n")[0]
        if self._losses == _LOSSES:
            raise RunError(f"{_LOSSES} workers were lost one after another, the last one so: {reason}")
        log.warning("a worker was lost, another is started: %s", reason)
        self._take_back(lost)
        self._hands[self._hands.index(lost)] = self._hire()

    def _take_back(self, hand: Hand) -> None:
        """Have what a worker has not handed over done first: nothing, unless it was lost or stopped."""
        draws: dict[Job, list[Draw]] = {}
        for job, draw in hand.missing.values():
            draws.setdefault(job, []).append(draw)
        again = [replace(job, draws=tuple(left)) for job, left in draws.items()]
        self._todo[hand.part].extendleft(reversed(again))
        hand.missing = {}


def _shares(ray: Any, workers: int | None) -> tuple[int, dict[str, Any], int | None]:
    """How many workers there are, what Ray is to give each, and its threads where the user named none."""
    resources = ray.cluster_resources()
    gpus = int(resources.get("GPU", 0))
    if gpus:
        if workers and workers > gpus:
            raise RunError(f"the cluster has {gpus} GPUs: at most so many --workers, not {workers}")
        return workers or gpus, {"num_gpus": 1, "num_cpus": 0}, None
    nodes = sum(node["Alive"] for node in ray.nodes())
    workers = workers or nodes
    threads = None if workers <= nodes else max(1, int(resources.get("CPU", 1)) // workers)
    return workers, {"num_cpus": 0, "scheduling_strategy": "SPREAD"}, threads


def connect(address: str | None) -> None:
    """Join the Ray cluster at `address` or in RAY_ADDRESS, or else start one on this machine, once.

    Raises RunError where Ray is not installed or there is no cluster.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # Ray would report to its makers,
    os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", ".")  # and write on our standard output
    try:
        import ray
    except ImportError:
        raise RunError('--executor ray needs Ray: type  python -m pip install "mink-local[ray]"') from None
    if ray.is_initialized():
        return
    if address := address or os.environ.get("RAY_ADDRESS"):
        _require_answer(address)
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, include_dashboard=False)
    except (ConnectionError, RuntimeError, ValueError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise RunError(f"no Ray cluster was to be had: {reason}") from None


def _require_answer(address: str) -> None:
    """Raise RunError where nothing listens at HOST:PORT: Ray itself tries that for minutes, and aloud."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdecimal():
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_SECONDS).close()
        except (OSError, OverflowError) as error:
            raise RunError(f"no Ray cluster answers at {address}: {error}") from None


def answer_on_ray(
    options: Mapping[str, Any],
    parts: Sequence[Part],
    ready: Ready,
    workers: int | None = None,
) -> Generator[Record, None, None]:
    """The executor of the Ray cluster that `connect` has joined: one worker on every GPU, or where there
    is none on every machine; or so many `workers`."""
    crew = Crew(options, parts, ready, workers)

    def interrupt() -> None:
        crew.interrupted = True

    try:
        with on_interrupt(interrupt, terminate=True):
            yield from crew.records()
    finally:
        crew.dismiss()
