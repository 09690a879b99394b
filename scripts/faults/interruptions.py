"""Kills, full and read-only disks, clocks that jump, and two processes at once, on each of the subjects."""

import os
import resource
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

from scripts.faults.kind import Case, FaultError, Kind
from scripts.faults.subjects import ROOT, SUBJECTS, Subject, ended

Interruption = Callable[[Random, Subject, Path], str]
START_SECONDS = 60.0
DISK = 256 << 20  # bytes, before it becomes small


def _cases(interrupt: Interruption, shared: Path) -> Case:
    def case(rng: Random, folder: Path) -> str:
        name = rng.choice(list(SUBJECTS))
        subject = SUBJECTS[name](shared, folder / "home")
        subject.home.mkdir()
        return f"{name} {interrupt(rng, subject, folder)}"

    return case


def kill(rng: Random, subject: Subject, logs: Path) -> str:
    """Kill a program at a random moment: before its first record, or soon after."""
    subject.prepare(rng)
    before = subject.recorded()
    process = subject.start(logs)
    if rng.random() < 0.2:
        time.sleep(rng.uniform(0, 2))
    else:
        end = time.monotonic() + START_SECONDS
        while process.poll() is None and subject.recorded() == before and time.monotonic() < end:
            time.sleep(0.002)
        time.sleep(rng.uniform(0, subject.window))
    before = subject.recorded()
    killed = process.poll() is None
    process.kill()
    process.wait()
    subject.check_lost(before)
    subject.finish(logs)
    return "was killed" if killed else "ended before"


@contextmanager
def disk(folder: Path) -> Iterator[Callable[[str], bool]]:
    """Mount a disk of its own at `folder`; yield a function that changes the mount's options, if root may."""

    def mount(*arguments: str) -> bool:
        return not subprocess.run(["mount", *arguments, folder], capture_output=True, check=False).returncode

    mounted = os.geteuid() == 0 and mount("-t", "tmpfs", "-o", f"size={DISK}", "tmpfs")
    try:
        yield lambda options: mounted and mount("-o", f"remount,{options}")
    finally:
        if mounted:
            subprocess.run(["umount", "-l", folder], check=True)


def cramp(rng: Random, subject: Subject, logs: Path) -> str:
    """Run a program on a disk that is full or can only be read, then on a good one."""
    with disk(subject.home) as remount:
        subject.prepare(rng)
        before = subject.recorded()
        state = rng.choice(["full", "full", "read-only"])
        used = sum(path.stat().st_blocks * 512 for path in subject.home.rglob("*"))
        free = rng.choice([0, 4096, rng.randrange(100_000), rng.randrange(3_000_000)])
        options: dict[str, object] = {}
        if not remount("ro" if state == "read-only" else f"size={max(used + free, 4096)}"):
            state = "limited"  # a user may not mount: the longest file is limited
            options["preexec_fn"] = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (free, free))
        status = ended(subject.start(logs, **options), logs)
        if state != "limited" and not remount(f"rw,size={DISK}"):
            raise OSError(f"{subject.home} cannot be made large again")
        subject.check_lost(before)
        subject.finish(logs)
    return f"{state} {'went on' if status == 0 else 'ended with a sentence'}"


JUMPING = """
import os, random, time
rng = random.Random(os.environ["JUMPS"])
now = time.time
time.time = lambda: now() + rng.choice([0, 0, -1, 60, -3600, 86400 * 365, -1e9, 2e9])
time.time_ns = lambda: int(time.time() * 1e9)
"""


def confuse(rng: Random, subject: Subject, logs: Path) -> str:
    """Run a program whose clock jumps by years; its file times stay as they are."""
    subject.prepare(rng)
    (logs / "sitecustomize.py").write_text(JUMPING)
    path = os.pathsep.join([str(logs), str(ROOT)])
    env = {**subject.env, "PYTHONPATH": path, "JUMPS": str(rng.random())}
    before = subject.recorded()
    status = ended(subject.start(logs, env=env), logs)
    subject.check_lost(before)
    subject.finish(logs)
    if status:
        raise FaultError("death", f"exit status {status} because of the clock")
    return "done"


def double(rng: Random, subject: Subject, logs: Path) -> str:
    """Run a program twice at once."""
    subject.prepare(rng)
    before = subject.recorded()
    processes = []
    for _ in range(2):
        processes.append(subject.start(logs))
        time.sleep(rng.choice([0, 0, rng.random()]))
    statuses = [ended(process, logs) for process in processes]
    subject.check_lost(before)
    if all(statuses):
        raise FaultError("loss", f"none of the two did its work: {statuses}")
    subject.finish(logs)
    return "one was refused" if any(statuses) else "both did it"


def begin_kills(shared: Path) -> Case:
    return _cases(kill, shared)


def begin_disks(shared: Path) -> Case:
    return _cases(cramp, shared)


def begin_clocks(shared: Path) -> Case:
    return _cases(confuse, shared)


def begin_doubles(shared: Path) -> Case:
    return _cases(double, shared)


KINDS = (
    Kind("kills", 1000, begin_kills, seconds=600),  # 200 of each subject
    Kind("disks", 500, begin_disks, seconds=600),
    Kind("clocks", 250, begin_clocks, seconds=600),
    Kind("doubles", 250, begin_doubles, seconds=600),
)
