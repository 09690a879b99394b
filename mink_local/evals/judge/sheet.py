"""Blind sheets for people: one page that shows pairs of responses without their methods and collects votes.

Which side is which method is in a file of its own, the key, which raters do not get.
"""

import hashlib
import json
import random
from collections import Counter
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path

from jinja2 import Environment, FileSystemLoader
from markupsafe import Markup

from mink_local.errors import ReportError
from mink_local.evals.judge.preferences import ResponsePair, response_pairs, samplers_of
from mink_local.evals.report.format import count
from mink_local.evals.report.page import content_policy
from mink_local.evals.report.recorded_run import read_run
from mink_local.evals.run.records import as_run_error
from mink_local.files import write_atomic

KEY, PAGE = "key.json", "sheet.html"
_FOLDER = Path(__file__).parent


def write_sheet(
    folder: Path, samplers: Sequence[str], n: int, seed: int, temperatures: Sequence[float], out: Path
) -> str:
    """Write the page and its key for pairs of the run in `folder`; return what is in them, in words.

    Args:
        samplers: At least two, as text; each is compared with each.
        n: Most pairs. Pairs of different questions come first, in a random order; identical responses are
            left out.
        seed: Of the order and of the sides.
        temperatures: Only those; none is all.
        out: Where the page and the key are written.

    Raises:
        ReportError: The run has no such pairs, or `out` has another sheet, whose key would be lost.
        RunError: A file cannot be written.
    """
    run = read_run(folder)
    samplers_of(run, samplers)
    pairs = [pair for a, b in combinations(samplers, 2) for pair in response_pairs(run, a, b)]
    pairs = [pair for pair in pairs if not temperatures or pair.place.temperature in temperatures]
    shown = [pair for pair in pairs if not pair.identical]
    if not shown:
        why = "all responses are identical" if pairs else "they have no question in common"
        raise ReportError(f"these methods have nothing to compare in {folder}: {why}")
    rng = random.Random(seed)
    entries, key = [], {}
    for pair in _chosen(shown, n, rng):
        name, swap = rng.randbytes(6).hex(), rng.random() < 0.5
        left, right = (1, 0) if swap else (0, 1)
        entries.append([name, pair.question, pair.texts[left], pair.texts[right]])
        key[name] = {**pair.place._asdict(), "left": pair.samplers[left], "right": pair.samplers[right]}
    sheet = hashlib.sha256(json.dumps(entries).encode()).hexdigest()[:16]
    _refuse_other(out / KEY, sheet)
    with as_run_error(out):
        out.mkdir(parents=True, exist_ok=True)
        content = {"sheet": sheet, "seed": seed, "methods": list(samplers), "pairs": key}
        write_atomic(
            out / KEY, json.dumps(content, indent=1) + "\n"
        )  # first: a page without it is worth nothing
        write_atomic(out / PAGE, render_sheet(sheet, entries))
    left_out = len(pairs) - len(shown)
    same = f"; {count(left_out, 'pair')} of identical responses left out" if left_out else ""
    return f"{count(len(entries), 'pair')} of {len(shown):,}{same}"


def _chosen(pairs: list[ResponsePair], n: int, rng: random.Random) -> list[ResponsePair]:
    """Return at most `n` pairs in a random order, of as many questions as possible."""
    rng.shuffle(pairs)
    seen: Counter[tuple[str, str]] = Counter()
    turns = []
    for pair in pairs:
        question = (pair.place.task, pair.place.question_id)
        turns.append(seen[question])
        seen[question] += 1
    chosen = [pairs[i] for i in sorted(range(len(pairs)), key=turns.__getitem__)[:n]]
    rng.shuffle(chosen)
    return chosen


def _refuse_other(path: Path, sheet: str) -> None:
    try:
        known = json.loads(path.read_bytes())["sheet"]
    except FileNotFoundError:
        return
    except (OSError, ValueError, KeyError, TypeError):
        known = None
    if known != sheet:
        raise ReportError(
            f"{path} is the key of another sheet, whose votes cannot be read without it: name another --out"
        )


def render_sheet(sheet: str, entries: Sequence[Sequence[str]]) -> str:
    """Return the page for pairs of an opaque name, the question, the left and the right response.

    Whatever a model or a task wrote is shown as text and cannot run, as in the report's page.
    """
    style, script = ((_FOLDER / f"sheet.{kind}").read_text(encoding="utf-8") for kind in ("css", "js"))
    environment = Environment(loader=FileSystemLoader(_FOLDER), autoescape=True)
    return environment.get_template("sheet.html").render(
        n_pairs=len(entries),
        style=Markup(style),
        script=Markup(script),
        policy=content_policy(style, script),
        data={"sheet": sheet, "pairs": entries},
    )
