"""The number of CPU cores that generation uses."""

import os
import platform
import subprocess
from pathlib import Path

import psutil

_LINUX_CPUS = Path("/sys/devices")


def n_cores() -> int:
    """Return the number of physical cores, efficiency cores left out: they would make the others wait.

    macOS and Linux tell efficiency cores apart; elsewhere all physical cores count.
    """
    physical = macos_performance_cores() or linux_performance_cores() or psutil.cpu_count(logical=False)
    available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return max(1, min(physical or 1, available or 1))


def macos_performance_cores() -> int | None:
    if platform.system() != "Darwin":
        return None
    command = ["sysctl", "-n", "hw.perflevel0.physicalcpu"]  # not there on Intel
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    return int(result.stdout) if result.stdout.strip().isdigit() else None


def linux_performance_cores(devices: Path = _LINUX_CPUS) -> int | None:
    """Return how many performance cores a hybrid Intel processor has, None for another processor."""
    try:
        cpus = parse_cpu_list((devices / "cpu_core/cpus").read_text(encoding="utf-8"))
        siblings = (
            devices / f"system/cpu/cpu{cpu}/topology/thread_siblings_list" for cpu in cpus
        )  # threads of one core
        return len({path.read_text(encoding="utf-8") for path in siblings}) or None
    except (OSError, ValueError):
        return None


def parse_cpu_list(text: str) -> list[int]:
    """Return the numbers of a list as Linux writes it: "0-3,8" is 0, 1, 2, 3, 8."""
    numbers: list[int] = []
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        numbers += range(int(first), int(last or first) + 1)
    return numbers
