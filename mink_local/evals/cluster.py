"""A GGUF model on a Ray cluster: one worker per GPU, or per machine without GPUs."""

import logging
import os
import socket
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from mink_local.errors import MinkError, RunError
from mink_local.evals.answering import Answered, FileAnswerer, ModelSession
from mink_local.generation.request import Request

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # otherwise Ray sends usage statistics
os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", ".")  # otherwise Ray writes to our standard output
import ray  # it reads them when it is imported

_CONNECT_SECONDS = 10.0
_POLL_SECONDS = 0.2  # how long Ctrl-C may go unnoticed

log = logging.getLogger("mink_local")


@dataclass(eq=False)
class ClusterAnswerer(FileAnswerer):
    """A GGUF model on all machines of a cluster; Ray decides where the workers run.

    Each worker gets its share of the requests, and streams its answers to this process.
    """

    _workers: list[Any] = field(default_factory=list, init=False)

    def answers(
        self, requests: Sequence[Request], room: Iterable[Request]
    ) -> Generator[Answered | ModelSession, None, None]:
        """Yield answers and sessions; see `Answerer`.

        Raises:
            MinkError: A worker raised it.
            RunError: A worker was lost; it is raised after the answers of the others.
        """
        self._workers = self._workers or self._started()
        n, longest = len(self._workers), ray.put(list(room))
        shares = {
            worker.answers.options(num_returns="streaming").remote(requests[first::n], longest): first
            for first, worker in enumerate(self._workers[: len(requests)])
        }
        lost = ""
        while shares and not self.interrupted:
            for answers in ray.wait(list(shares), timeout=_POLL_SECONDS)[0]:
                first = shares.pop(answers)
                try:
                    found = _next(answers)
                except ray.exceptions.RayError as error:
                    lost = _first_line(error)
                    log.warning("a worker was lost: %s", lost)
                    continue
                if found is None:
                    continue
                shares[answers] = first  # behind the others, which come first
                yield replace(found, index=first + n * found.index) if isinstance(found, Answered) else found
        if lost:
            raise RunError(f"a worker was lost, whose answers are missing: {lost}")

    def _started(self) -> list[Any]:
        n_workers, resources = _shares()
        actor: Any = ray.remote(FileAnswerer).options(**resources)
        new = (self.file, self.ctx, self.n_parallel, self.facts["sha256"], self.placement)
        return [actor.remote(*new) for _ in range(n_workers)]

    def close(self) -> None:
        """Stop the workers."""
        for worker in self._workers:
            ray.kill(worker)
        self._workers = []


def _next(answers: Any) -> Answered | ModelSession | None:
    """Return a worker's next item; None after its last one. Raises RayError if it is lost."""
    try:
        reference = next(answers, None)
        return None if reference is None else ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, MinkError):
            raise error.cause from None
        raise RunError(f"a worker failed: {error.cause!r}") from None


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
