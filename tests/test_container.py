"""The limits of a container, in made file systems of both versions of cgroups."""

import math
from collections.abc import Mapping
from pathlib import Path

import psutil
import pytest

from mink_local import container
from mink_local.container import Limits, limits
from mink_local.llama import devices
from mink_local.models import memory

GIB = 1 << 30
NONE = 2**63 - 4096  # version 1's "no limit"


def root(folder: Path, membership: str, files: Mapping[str, object]) -> Path:
    for name, content in {"proc/self/cgroup": membership, **files}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"{content}\n")
    return folder


def v2(folder: str, **files: object) -> dict[str, object]:
    return {f"sys/fs/cgroup/{folder}{name.replace('_', '.', 1)}": content for name, content in files.items()}


def test_version_2_in_a_container(tmp_path: Path) -> None:
    """`docker run -m 4g --cpus 2`: its own cgroup is the root. Cached files give way."""
    stat = f"anon {GIB}\ninactive_file {GIB // 2}\nactive_file {GIB // 2}\nslab 5"
    files = v2("", memory_max=4 * GIB, memory_current=3 * GIB, memory_stat=stat, cpu_max="200000 100000")
    assert limits(root(tmp_path, "0::/", files)) == Limits(4 * GIB, 2 * GIB, 2.0)


def test_version_2_takes_the_narrowest_of_a_service_and_those_around_it(tmp_path: Path) -> None:
    files = {
        **v2("system.slice/", memory_max=2 * GIB, memory_current=2 * GIB, cpu_max="max 100000"),
        **v2("system.slice/mink.service/", memory_max=8 * GIB, memory_current=0, cpu_max="50000 100000"),
    }
    assert limits(root(tmp_path, "0::/system.slice/mink.service", files)) == Limits(2 * GIB, 0, 0.5)


@pytest.mark.parametrize("place", ["", "docker/f00d/"])
@pytest.mark.parametrize("mount", ["cpu,cpuacct", "cpu"])
def test_version_1(tmp_path: Path, place: str, mount: str) -> None:
    """In the container its cgroup is at the root of the mount; on the host, at its path."""
    memory_files = {
        "limit_in_bytes": 4 * GIB, "usage_in_bytes": 3 * GIB,
        "stat": f"inactive_file 7\ntotal_inactive_file {GIB}\ntotal_active_file 0",
    }  # fmt: skip
    files = {f"sys/fs/cgroup/memory/{place}memory.{name}": value for name, value in memory_files.items()}
    files |= {
        f"sys/fs/cgroup/{mount}/{place}cpu.cfs_quota_us": 300000,
        f"sys/fs/cgroup/{mount}/{place}cpu.cfs_period_us": 100000,
    }
    if place:
        files["sys/fs/cgroup/memory/memory.limit_in_bytes"] = NONE
        files[f"sys/fs/cgroup/{mount}/cpu.cfs_quota_us"] = -1
    membership = "12:memory:/docker/f00d\n4:cpu,cpuacct:/docker/f00d\n1:name=systemd:/docker/f00d"
    assert limits(root(tmp_path, membership, files)) == Limits(4 * GIB, 2 * GIB, 3.0)


@pytest.mark.parametrize(
    "files",
    [
        {},
        v2("", memory_max="max", memory_current=GIB, cpu_max="max 100000"),
        v2("", memory_max="", cpu_max="", memory_stat="nonsense\n\n"),
        v2("", memory_max="a lot", cpu_max="-1 0", memory_stat="anon"),
        {"sys/fs/cgroup/memory/memory.limit_in_bytes": NONE, "sys/fs/cgroup/cpu/cpu.cfs_quota_us": -1},
    ],
)
def test_no_limits(tmp_path: Path, files: Mapping[str, object]) -> None:
    assert limits(root(tmp_path, "3:memory:/a\n2:cpu:/a\n0::/a/b\nbroken", files)) == Limits()
    assert limits(tmp_path / "another") == Limits()  # no Linux


def test_a_narrow_container_narrows_every_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = psutil.virtual_memory()
    monkeypatch.setattr(container, "limits", lambda: Limits(2 * GIB, GIB, 1.9))
    assert (container.total_memory(), container.n_cpus(), devices.n_cores()) == (2 * GIB, 1, 1)
    assert memory.memory_budget(with_gpus=False).ram == GIB
    monkeypatch.setattr(container, "limits", lambda: Limits(math.inf, math.inf, 0.1))
    assert (container.total_memory(), container.n_cpus()) == (machine.total, 1)
