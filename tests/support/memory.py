"""How much a process grows."""

import gc
from collections.abc import Callable

import psutil


def rss() -> int:
    """Return the resident memory of this process, in bytes, after a garbage collection."""
    gc.collect()
    return int(psutil.Process().memory_info().rss)


def grown(cycle: Callable[[], object], cycles: int) -> float:
    """Return the bytes that the process grows by over `cycles` cycles, after as many as fill every pool."""
    for _ in range(cycles // 10):
        cycle()
    before = rss()
    for _ in range(cycles):
        cycle()
    return rss() - before
