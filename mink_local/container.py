"""What this process may take of the machine: on Linux, the limits of its container or service (cgroups)."""

import math
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import psutil

_ROOT = Path("/")
_NO_LIMIT = 1 << 60  # bytes; version 1 has a number near 2^63 for none


class Limits(NamedTuple):
    """The limits of a cgroup and of those around it; infinite if there are none.

    Attributes:
        memory: Bytes in all.
        free: Bytes that can still be taken; cached files give way.
        cpus: Seconds of CPU time per second.
    """

    memory: float = math.inf
    free: float = math.inf
    cpus: float = math.inf


def free_memory() -> int:
    """Return the bytes of memory that this process can still take."""
    return int(min(psutil.virtual_memory().available, limits().free))


def total_memory() -> int:
    """Return the bytes of memory that this process can take in all."""
    return int(min(psutil.virtual_memory().total, limits().memory))


def n_cpus() -> int:
    """Return the number of logical cores that this process can use."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, int(min(usable, limits().cpus)))


def limits(root: Path = _ROOT) -> Limits:
    """Return the limits of this process's cgroups, of either version, in the file system at `root`."""
    found = [Limits()]
    for controllers, path in _memberships(root):
        for folder in _folders(root / "sys/fs/cgroup", controllers, path):
            found.append(_limits_of(folder))
    return Limits(*map(min, zip(*found, strict=True)))


def _memberships(root: Path) -> Iterator[tuple[str, str]]:
    """Yield the controllers and the path of each cgroup of this process; version 2 names no controllers."""
    with suppress(OSError):
        for line in (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines():
            _, _, membership = line.partition(":")
            controllers, _, path = membership.partition(":")
            yield controllers, path.strip("/")


def _folders(mount: Path, controllers: str, path: str) -> Iterator[Path]:
    """Yield the folders of a cgroup and of those around it; inside a container, the mount is its own."""
    for name in {controllers, *controllers.split(",")}:
        top = mount / name
        yield top
        for end in range(len(parts := Path(path).parts)):
            yield top.joinpath(*parts[: end + 1])


def _limits_of(folder: Path) -> Limits:
    """Return a cgroup's own limits; the names of files are those of version 2, then of version 1."""
    memory, *_ = _numbers(folder / "memory.max") or _numbers(folder / "memory.limit_in_bytes") or [math.inf]
    used, *_ = _numbers(folder / "memory.current") or _numbers(folder / "memory.usage_in_bytes") or [0]
    quota, *rest = _numbers(folder / "cpu.max") or _numbers(folder / "cpu.cfs_quota_us") or [math.inf]
    period, *_ = rest or _numbers(folder / "cpu.cfs_period_us") or [0]
    memory = memory if memory < _NO_LIMIT else math.inf
    free = max(0, memory - max(0, used - _cached(folder / "memory.stat")))
    return Limits(memory, free, quota / period if quota > 0 and period > 0 else math.inf)


def _numbers(path: Path) -> list[float]:
    """Return the numbers in a file, infinity for "max"; none if it is not there."""
    try:
        words = path.read_text(encoding="utf-8").split()
        return [math.inf if word == "max" else float(word) for word in words]
    except (OSError, ValueError):
        return []


def _cached(path: Path) -> int:
    """Return the bytes of files in a cgroup's memory, from its memory.stat."""
    with suppress(OSError, ValueError):
        pairs = (line.split() for line in path.read_text(encoding="utf-8").splitlines())
        sizes = {name: int(size) for name, size in pairs}
        names = ("inactive_file", "active_file")
        return sum(sizes.get(f"total_{name}", sizes.get(name, 0)) for name in names)  # total_ in version 1
    return 0
