"""The paper's claims, one by one, beside what was measured here: a table of docs/results.md."""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from mink_local.evals.report.format import percent, points
from mink_local.samplers import Greedy, LlamaDefault, MinK, MinP, TopNSigma, TopP, label
from scripts.measured import Accuracies, Estimate, ablated, frontier, gain, most_covered, step_times

HOT = 10.0
TEMPERATURES = (1.0, 2.0, 5.0, HOT)
COLLAPSING = (TopP(), MinP())  # the paper's baselines, temperature first
OTHERS = (
    TopP(order="temperature-last"), MinP(order="temperature-last"), TopNSigma(), LlamaDefault(),
)  # fmt: skip
MODEL_OF_PAPER = "LLaMA-3-8B"
TASKS = {"gsm8k": ("GSM8K", 77.4, 74.8), "aqua": ("AQuA", 50.0, 46.1)}  # the paper's accuracy at T = 1 and 10
TEXTS = {"frontier-open": "open text", "frontier-math": "mathematics", "frontier-code": "code"}


@dataclass(frozen=True)
class Claim:
    """A claim of the paper, what was found here, and what that makes of it."""

    paper: str
    found: str
    verdict: str


def claims() -> Iterator[Claim]:
    """Yield the claims for which there are measurements."""
    groups: list[Callable[[], Iterator[Claim]]] = [
        _candidates,
        *(partial(group, task) for task in TASKS for group in (_temperature, _other_methods)),
        _options, _noise_and_variety, _coverage, _step, _people,
    ]  # fmt: skip
    for group in groups:
        with contextlib.suppress(FileNotFoundError):
            yield from group()


def _candidates() -> Iterator[Claim]:
    run = Accuracies("accuracy-gsm8k")
    yield Claim(
        "Its candidates do not depend on temperature.",
        f"Steps with one candidate: {percent(run.k_is_1(MinK(), 1))}% at T = 1, "
        f"{percent(run.k_is_1(MinK(), HOT))}% at T = 10, in other texts.",
        "holds by construction, as it does for every method that cuts before temperature",
    )


def _temperature(task: str) -> Iterator[Claim]:
    run, temperatures = Accuracies(f"accuracy-{task}"), Accuracies(f"temperatures-{task}")
    name, cold, hot = TASKS[task]
    change = temperatures.difference(MinK(), HOT)
    yield Claim(
        f"{name}: its accuracy stays at T = 10 ({MODEL_OF_PAPER}: {cold}% at T = 1, {hot}%).",
        f"{_share(run.accuracy(MinK(), 1))} at T = 1, {_share(run.accuracy(MinK(), HOT))} at T = 10: "
        f"{_points(change)}.",
        "does not hold"
        if change[2] < 0
        else f"holds as far as n = {run.n_questions} can tell: the interval ends at a loss of "
        f"{percent(max(0.0, -change[1]))} points",
    )
    others = [f"{label(str(one))} {_share(run.accuracy(one, HOT))}" for one in (*COLLAPSING, *OTHERS[:2])]
    yield Claim(
        f"{name}: top-p and min-p collapse at T = 10 (0%).",
        "; ".join(others) + ".",
        "holds with temperature first, as in the paper; not with temperature last, llama.cpp's order",
    )


def _other_methods(task: str) -> Iterator[Claim]:
    run, name = Accuracies(f"accuracy-{task}"), TASKS[task][0]
    where = f"with n = {run.n_questions}, by a test that is corrected for all cells"
    signs = [run.significant(method, temperature) for method in OTHERS for temperature in TEMPERATURES]
    hot = [f"{label(str(one))} {_points(run.difference(one, HOT))}" for one in OTHERS]
    yield Claim(
        f"{name}: it is better than the other methods in most cells.",
        f"Of {len(signs)} cells of methods that cut before temperature, significantly worse than Min-k: "
        f"{signs.count(-1)}, better: {signs.count(1)}. At T = 10, minus Min-k: {'; '.join(hot)}.",
        f"holds in {signs.count(-1)} of {len(signs)} cells; the others could not be told apart {where}"
        if -1 in signs
        else f"could not be told apart {where}",
    )
    greedy = run.difference(Greedy(), 1)
    yield Claim(
        f"({name}: the paper has no greedy row.)",
        f"Greedy {_share(run.accuracy(Greedy(), 1))}; minus Min-k at T = 1 {_points(greedy)}.",
        _verdict(greedy, run, above="greedy is better", below="greedy is worse"),
    )


def _options() -> Iterator[Claim]:
    run = Accuracies("heatmap")
    cells = [(MinK(tau=tau), t) for tau in (1.0, 3.0, 10.0, 30.0) for t in (1.0, 5.0, HOT)]
    values = [run.accuracy(*cell)[0] for cell in cells]
    changes = [ablated(*cell)[0] for cell in cells if cell[0] != MinK()]
    yield Claim(
        "τ from 1 to 10 does not matter (74 to 79%).",
        f"τ = 1 to 30, T = 1 to 10: {percent(min(values))} to {percent(max(values))}%; minus τ = 3 at the "
        f"same T, {points(min(changes))} to {points(max(changes))} points.",
        f"holds as far as n = {run.n_questions} can tell",
    )
    for text, variant, verdict in (
        ("position weights (−12.0 points without, at T = 4)", MinK(alpha=0.0), "holds"),
        (
            "range R (−35.1)",
            MinK(normalize=False),
            "holds, but for another reason: dividing by R moves no cliff. Without R the fallback keeps "
            "⌊τ⌋ = 3 tokens at every step",
        ),
        ("fallback (the paper: on GSM8K, no)", MinK(tau=0.0), "does not hold"),
    ):
        change = ablated(variant, 5.0)
        yield Claim(
            f"It needs its {text}.",
            f"Without, at T = 5: {_points(change)}.",
            _verdict(change, run, above="does not hold", below=verdict),
        )


def _noise_and_variety() -> Iterator[Claim]:
    infinite = float("inf")
    noise = [
        f"{label(str(one))} {_share(frontier('frontier-math', one, infinite)['noise_0.01'])}"
        for one in (MinK(), *OTHERS)
    ]
    yield Claim(
        "Its noise stays below 10% at T = 10.",
        f"Exact, at T = ∞, on GSM8K's answers: {'; '.join(noise)}.",
        "holds, as it does for others that cut before temperature",
    )
    gains = [f"{_nats(gain(name, MinK(), 5.0))} ({text})" for name, text in TEXTS.items()]
    yield Claim(
        "It keeps both quality and diversity (not measured).",
        "At T = 5, its entropy minus that of min-p, temperature last, at the same noise: "
        f"{', '.join(gains)} nats.",
        "does not hold on mathematics and code, where min-p has more variety; on open text they could not be "
        "told apart",
    )


def _coverage() -> Iterator[Claim]:
    shares = [
        f"{label(str(one))} {_share(most_covered('coverage-1.5b', one).covered)}"
        for one in (MinK(), MinK(floor=1.0), *OTHERS[:2])
    ]
    yield Claim(
        "(The same, where the valid answers are known.)",
        "The most of them in 100 answers, at the best temperature with a validity at most 1 point below "
        f"greedy's: {'; '.join(shares)}.",
        "does not hold: others that cut before temperature cover more, as valid as it is",
    )


def _step() -> Iterator[Claim]:
    [step] = [one for one in step_times() if (one.method, one.form) == (str(MinK()), "host")]
    yield Claim(
        "A step takes 3.73% longer than greedy's.",
        f"{step.slowdown:+.1f}% [{step.slowdown_low:+.1f}, {step.slowdown_high:+.1f}], on this machine.",
        "holds: here it is less" if step.slowdown_high < 3.73 else "could not be told apart",
    )


def _people() -> Iterator[Claim]:
    yield Claim(
        "A judge and people prefer its answers (people: 75 to 67, and 58 ties).",
        "Not repeated.",
        "not tested; by the paper's own test, people's preference is not significant",
    )


def _verdict(change: Estimate, run: Accuracies, above: str, below: str) -> str:
    """Return what a difference says if its interval is above 0, or below it."""
    _, low, high = change
    if low <= 0 <= high:
        return f"could not be told apart with n = {run.n_questions}"
    return above if low > 0 else below


def _share(estimate: Estimate) -> str:
    value, low, high = map(percent, estimate)
    return f"{value}% [{low}, {high}]"


def _points(estimate: Estimate) -> str:
    value, low, high = map(points, estimate)
    return f"{value} points [{low}, {high}]"


def _nats(estimate: Estimate) -> str:
    value, low, high = (f"{number:+.3f}".replace("-", "−") for number in estimate)
    return f"{value} [{low}, {high}]"
