"""`mink-eval run --ray` on a cluster of two workers on this machine."""

import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from tests.support.mink_eval import MINK_EVAL, MinkEval, count_lines, responses
from tests.support.rpc import free_port

pytest.importorskip("ray")


@dataclass(frozen=True)
class LocalCluster:
    """A cluster on this machine that claims to have two GPUs, and so starts two workers."""

    address: str
    head: psutil.Process

    def answering(self) -> list[psutil.Process]:
        """The processes of the workers that are answering."""
        children = self.head.children(recursive=True)
        return [child for child in children if child.cmdline()[:1] == ["ray::FileAnswerer.answers"]]


@pytest.fixture
def cluster() -> Iterator[LocalCluster]:
    address = f"127.0.0.1:{free_port()}"
    options = ["--head", "--block", f"--port={address[10:]}", "--num-gpus=2", "--include-dashboard=false"]
    command = [Path(sys.executable).with_name("ray"), "start", *options]
    with psutil.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as head:
        assert any("Ray runtime started" in line for line in head.stdout)
        yield LocalCluster(address, head)
        head.terminate()


@pytest.mark.slow
def test_a_killed_worker_loses_and_repeats_nothing(
    tmp_path: Path, tiny_path: Path, cluster: LocalCluster
) -> None:
    """The same command again measures what it had left; what all write is what one process writes."""
    grid = ["-s", "min-k", "-s", "top-p", "-t", "5", "--limit", "20", "-n", "64", "--model", str(tiny_path)]
    where = ["--ray", cluster.address, "--threads", "1", "--parallel", "1", "--out", str(tmp_path / "run")]
    command = [*MINK_EVAL, "run", "sample-math", *grid, *where]

    def finished(kills: bool) -> tuple[int, str, str]:
        driver = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        if kills:
            while driver.poll() is None and not count_lines(tmp_path / "run"):
                time.sleep(0.01)
            first, _ = cluster.answering()
            first.kill()
        output, errors = driver.communicate(timeout=300)  # against a hang: a busy machine needs minutes
        assert "\x1b" not in output + errors  # Ray's own words are kept off the screen
        assert "raylet" not in output + errors
        return driver.returncode, output, errors

    status, _, errors = finished(kills=True)
    assert (status, "a worker was lost" in errors) == (1, True)
    status, output, errors = finished(kills=False)
    assert (status, "60 responses in" in output) == (0, True), errors
    assert len(responses(tmp_path / "run")) == 60


def test_without_ray_it_says_what_to_install(
    mink_eval: MinkEval, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    result = mink_eval("run", "sample-math", "--ray", "local", "--out", tmp_path / "run")
    result.refused(2, "mink-local[ray]")


def test_there_must_be_a_cluster_at_the_address(tmp_path: Path, mink_eval: MinkEval) -> None:
    result = mink_eval("run", "sample-math", "--ray", "127.0.0.1:1", "--out", tmp_path / "run")
    result.refused(1, "127.0.0.1:1")
    assert result.stdout == ""
