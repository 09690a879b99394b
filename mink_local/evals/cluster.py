"""A GGUF model on a Ray cluster: one worker per GPU, or per machine without GPUs."""

import logging
import os
import socket
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from mink_local.errors import MinkError, RunError
from mink_local.evals.answering import Answered, FileAnswerer, ModelSession
from mink_local.generation.request import Request

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # otherwise Ray sends usage statistics
os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", ".")  # otherwise Ray writes to our standard output
import ray  # it reads them when it is imported

_LOSSES = 3  # this many workers lost with no answer in between end the run
_CONNECT_SECONDS = 10.0
_POLL_SECONDS = 0.2  # how long Ctrl-C may go unnoticed

log = logging.getLogger("mink_local")


class _Share(NamedTuple):
    """A worker, and the numbers of the requests that it was given and has left."""

    worker: Any
    given: Sequence[int]
    left: set[int]


@dataclass(eq=False)
class ClusterAnswerer(FileAnswerer):
    """A GGUF model on all machines of a cluster; Ray decides where the workers run.

    Each worker gets its share of the requests, and streams its answers to this process. When a worker is
    lost, another one gets what it has not answered.
    """

    _busy: dict[Any, _Share] = field(default_factory=dict, init=False)  # by Ray's iterator over answers
    _idle: list[Any] = field(default_factory=list, init=False)  # workers that have answered all they got
    _losses: int = field(default=0, init=False)

    def answers(
        self, requests: Sequence[Request], room: Iterable[Request]
    ) -> Generator[Answered | ModelSession, None, None]:
        """Yield answers and sessions; see `Answerer`.

        Raises:
            MinkError: A worker raised it.
            RunError: Too many workers were lost.
        """
        n_workers, resources = _shares()
        actor: Any = ray.remote(FileAnswerer).options(**resources)
        sha256, longest = self.facts["sha256"], ray.put(list(room))

        def start(numbers: Sequence[int]) -> None:
            new = (self.file, self.ctx, self.n_parallel, sha256, self.placement)
            worker = self._idle.pop() if self._idle else actor.remote(*new)
            given = [requests[number] for number in numbers]
            answers = worker.answers.options(num_returns="streaming").remote(given, longest)
            self._busy[answers] = _Share(worker, numbers, set(numbers))

        for first in range(min(n_workers, len(requests))):
            start(range(first, len(requests), n_workers))
        while self._busy and not self.interrupted:
            for answers in ray.wait(list(self._busy), timeout=_POLL_SECONDS)[0]:
                share = self._busy.pop(answers)
                try:
                    found = self._next(answers, share)
                except ray.exceptions.RayError as error:
                    self._count_loss(error)
                    start(sorted(share.left))
                    continue
                if found is None:
                    self._idle.append(share.worker)
                    continue
                self._busy[answers] = share  # behind the others, which come first
                yield found

    def _next(self, answers: Any, share: _Share) -> Answered | ModelSession | None:
        """Return a worker's next item; None after its last one. Raises RayError if it is lost."""
        try:
            reference = next(answers, None)
            found: Any = None if reference is None else ray.get(reference)
        except ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, MinkError):
                raise error.cause from None
            raise RunError(f"a worker failed: {error.cause!r}") from None
        if not isinstance(found, Answered):
            return found  # type: ignore[no-any-return]
        number = share.given[found.index]
        share.left.remove(number)
        self._losses = 0
        return replace(found, index=number)

    def _count_loss(self, error: Exception) -> None:
        self._losses += 1
        if self._losses == _LOSSES:
            raise RunError(f"{_LOSSES} workers were lost in a row: {_first_line(error)}") from None
        log.warning("a worker was lost, starting another: %s", _first_line(error))

    def close(self) -> None:
        """Stop the workers."""
        for worker in (*self._idle, *(share.worker for share in self._busy.values())):
            ray.kill(worker)
        self._busy, self._idle = {}, []


def _shares() -> tuple[int, dict[str, Any]]:
    """Return the number of workers and the resources of each: one per GPU, or per machine without GPUs."""
    gpus = int(ray.cluster_resources().get("GPU", 0))
    if gpus:
        return gpus, {"num_gpus": 1, "num_cpus": 0}
    return sum(node["Alive"] for node in ray.nodes()), {"num_cpus": 0, "scheduling_strategy": "SPREAD"}


def connect(address: str) -> None:
    """Join the Ray cluster at `address`, or start one on this machine if it is "local", once.

    Raises RunError if no cluster responds.
    """
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
