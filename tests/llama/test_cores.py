"""Efficiency cores are left out where the system tells them apart."""

from pathlib import Path

import psutil

from mink_local.llama import cores


def test_as_many_as_there_are() -> None:
    assert 1 <= cores.n_cores() <= (psutil.cpu_count(logical=False) or 1)


def test_a_hybrid_processor(tmp_path: Path) -> None:
    """Two performance cores of two threads each beside four efficiency cores."""
    (tmp_path / "cpu_core").mkdir()
    (tmp_path / "cpu_core/cpus").write_text("0-3\n")
    for cpu in range(8):
        folder = tmp_path / f"system/cpu/cpu{cpu}/topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(
            f"{cpu // 2 * 2}-{cpu // 2 * 2 + 1}\n" if cpu < 4 else f"{cpu}\n"
        )
    assert cores.linux_performance_cores(tmp_path) == 2
    assert cores.linux_performance_cores(tmp_path / "nothing") is None
    assert cores.parse_cpu_list("0-3,8\n") == [0, 1, 2, 3, 8]
