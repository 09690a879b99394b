"""`mink-eval run --executor ray` on a cluster of two workers on this machine."""

import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.support.mink_eval import MINK_EVAL, MinkEval, count_lines, responses

pytest.importorskip("ray")

RAY = ["--executor", "ray", "--workers", "2", "--threads", "1", "--parallel", "1"]


def actors(driver: int) -> list[psutil.Process]:
    """The processes of the workers that are answering."""
    children = psutil.Process(driver).children(recursive=True)
    return [child for child in children if child.cmdline()[:1] == ["ray::Worker.answer"]]


@pytest.mark.slow
def test_a_killed_worker_loses_and_repeats_nothing(tmp_path: Path, tiny_path: Path) -> None:
    """The one killed is replaced; what both write is what one process writes."""
    grid = ["-s", "min-k", "-s", "top-p", "-t", "5", "--limit", "20", "-n", "64", "--model", str(tiny_path)]
    command = [*MINK_EVAL, "run", "sample-math", *grid, "--out", str(tmp_path / "run"), *RAY]
    driver = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while driver.poll() is None and not count_lines(tmp_path / "run"):
        time.sleep(0.01)
    killed = actors(driver.pid)[0]
    killed.kill()
    output, errors = driver.communicate(timeout=120)
    assert driver.returncode == 0, errors
    assert "All 60 responses" in output
    assert "a worker was lost" in errors
    assert "\x1b" not in output + errors  # Ray's own words are kept off the screen
    assert "raylet" not in output + errors
    assert len(responses(tmp_path / "run")) == 60


def test_without_ray_it_says_what_to_install(
    mink_eval: MinkEval, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    result = mink_eval("run", "sample-math", "--executor", "ray", "--out", tmp_path / "run")
    result.refused(2, "mink-local[ray]")


def test_there_must_be_a_cluster_at_the_address(tmp_path: Path, mink_eval: MinkEval) -> None:
    address = ["--executor", "ray", "--ray-address", "127.0.0.1:1"]
    result = mink_eval("run", "sample-math", *address, "--out", tmp_path / "run")
    result.refused(1, "127.0.0.1:1")
    assert result.stdout == ""
