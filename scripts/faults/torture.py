"""Do the cases of all kinds, keep what came of each, and report."""

import json
import os
import queue
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mink_local.files import write_atomic
from mink_local.samplers.compile import CACHE
from mink_local.sandbox import GIB, ChildTimeoutError, SandboxError, Server
from scripts.faults.kind import Kind
from scripts.faults.kinds import KINDS

_MEMORY = 6 * GIB  # of the process that does the cases
_START_SECONDS = 600.0


@dataclass(frozen=True)
class Ended:
    """A case that was done; `fault` is None, or a death, hang or loss that `text` describes."""

    case: str
    outcome: str
    fault: str | None
    text: str
    seconds: float


def torture(
    kinds: Sequence[Kind],
    out: Path,
    scale: float,
    seed: int = 0,
    jobs: int = 1,
    say: Callable[[str], object] = print,
) -> list[Ended]:
    """Do the cases that `out` does not have yet, `jobs` at once; return the findings and write the report."""
    for kind in kinds:
        done = {ended.case for ended in _read(out, kind.name)}
        cases = [case for case in kind.cases(seed, scale) if case not in done]
        n_done = len(kind.cases(seed, scale)) - len(cases)
        say(f"{kind.name}: {len(cases)} cases of {kind.per_case} to do, {n_done} are done")
        for ended in do(kind, cases, out, jobs):
            with (out / f"{kind.name}.jsonl").open("a", encoding="utf-8") as stream:
                stream.write(json.dumps(asdict(ended)) + "\n")
            if ended.fault:
                say(f"{ended.case}: {ended.fault}: {ended.text.strip().splitlines()[-1]}")
        write_report(out, {**KINDS, kind.name: kind}.values())
    return [ended for kind in kinds for ended in _read(out, kind.name) if ended.fault]


def do(kind: Kind, cases: Sequence[str], out: Path, jobs: int = 1) -> Iterator[Ended]:
    """Yield the cases as they end; the folder of one with a fault is kept in `out/cases`."""
    waiting: queue.SimpleQueue[str] = queue.SimpleQueue()
    ready: queue.SimpleQueue[Ended | None] = queue.SimpleQueue()
    for case in cases:
        waiting.put(case)
    if not cases:
        return
    os.environ.setdefault("NUMBA_CACHE_DIR", str(CACHE))  # so that no process compiles the kernels anew

    def work(number: int) -> None:
        shared = (out / "workers" / f"{kind.name}-{number}").absolute()
        shutil.rmtree(shared, ignore_errors=True)
        shared.mkdir(parents=True)
        begin = f"{kind.begin.__module__}:{kind.begin.__qualname__}"
        first = [begin, str(shared)]
        server = Server("scripts.faults.worker", memory=_MEMORY, first=first, start_seconds=_START_SECONDS)
        try:
            with closing(server):
                while not waiting.empty():
                    ready.put(_done(kind, waiting.get_nowait(), server, (out / "cases").absolute()))
        except queue.Empty:  # another worker took the last one
            pass
        finally:
            ready.put(None)
            shutil.rmtree(shared, ignore_errors=True)

    with ThreadPoolExecutor(jobs) as pool:
        works = [pool.submit(work, number) for number in range(jobs)]
        try:
            for _ in range(jobs):
                yield from iter(ready.get, None)
        finally:
            while not waiting.empty():
                waiting.get()
        for each in works:
            each.result()


def _done(kind: Kind, case: str, server: Server, folder: Path) -> Ended:
    began = time.monotonic()
    shutil.rmtree(folder / case, ignore_errors=True)
    try:
        outcome, fault, text = server.ask([case, str(folder / case)], kind.seconds)
    except ChildTimeoutError as error:
        outcome, fault, text = "hang", "hang", str(error)
    except SandboxError as error:
        outcome, fault, text = "death", "death", str(error)
    if fault is None:
        shutil.rmtree(folder / case, ignore_errors=True)
    return Ended(case, outcome, fault, text, round(time.monotonic() - began, 3))


def _read(out: Path, name: str) -> list[Ended]:
    """Return the cases of a kind that are done; of half a line, left by a kill, it is done again."""
    path = out / f"{name}.jsonl"
    ended: dict[str, Ended] = {}
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        try:
            one = Ended(**json.loads(line))
        except ValueError:
            continue
        ended[one.case] = one
    return list(ended.values())


def write_report(out: Path, kinds: Iterable[Kind]) -> None:
    """Write `torture.md` and `torture.json`: what was done, what came of it, and every finding."""
    rows: list[dict[str, Any]] = []
    findings: list[dict[str, Any]] = []
    for kind in kinds:
        if not (done := _read(out, kind.name)):
            continue
        faults = Counter(ended.fault for ended in done)
        rows.append(
            {
                "kind": kind.name,
                "faults": len(done) * kind.per_case,
                **{f"{sort}s": faults[sort] for sort in ("death", "hang")},
                "losses": faults["loss"],
                "seconds": round(sum(ended.seconds for ended in done), 1),
                "outcomes": dict(Counter(ended.outcome for ended in done).most_common()),
            }
        )
        findings += [asdict(ended) for ended in done if ended.fault]
    write_atomic(out / "torture.json", json.dumps({"kinds": rows, "findings": findings}, indent=1) + "\n")
    lines = [
        "| kind | faults | deaths | hangs | losses | seconds | outcomes |",
        "|---|--:|--:|--:|--:|--:|---|",
    ]
    for row in rows:
        *cells, outcomes = row.values()
        told = ", ".join(f"{n} {outcome}" for outcome, n in outcomes.items())
        lines.append(f"| {' | '.join(map(str, cells))} | {told} |")
    for finding in findings:
        lines += ["", f"`scripts/torture repeat {finding['case']}`: {finding['fault']}", "", "```"]
        lines += [finding["text"].strip(), "```"]
    write_atomic(out / "torture.md", "\n".join([*lines, ""]))
