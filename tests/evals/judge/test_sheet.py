"""Blind sheets: the page as a rater sees it, its key, and what the votes show."""

import json
import re
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from scipy.stats import binomtest

from mink_local.evals.judge.people import saved_votes
from mink_local.evals.tables import escape_markdown
from tests.support.browser import Browser
from tests.support.http import until
from tests.support.made_run import change, write_run
from tests.support.mink_eval import MinkEval

METHODS = ("min-k:tau=3", "top-n-sigma:n=1")
HOSTILE = "</script><script>document.title = 'hacked'</script><img src=x onerror=\"document.title='hacked'\">"
N = 12  # questions


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run in which a response says which one it is, by a word that is not the method's name."""
    folder = write_run(
        tmp_path / "run",
        tasks=("gsm8k",),
        samplers=(*METHODS, "greedy"),
        temperatures=(1.0, 5.0),
        repeats=1,
        n_questions=N,
    )

    def name(line: dict[str, Any]) -> None:
        word = {METHODS[0]: "apple", METHODS[1]: "pear", "greedy": "plum"}[line["sampler"]]
        line["response"] = f"{word} {line['temperature']} {HOSTILE} \u2028 {line['question_id']}"

    return change(folder, name)


def options(*methods: str) -> list[str]:
    return [text for method in methods for text in ("--sampler", method)]


def key_of(folder: Path) -> Any:
    return json.loads((folder / "key.json").read_text())


def data_of(folder: Path) -> Any:
    page = (folder / "sheet.html").read_text(encoding="utf-8")
    (data,) = re.findall(r'id="data">([^<]+)<', page)
    return json.loads(data)


def test_a_sheet_hides_the_methods(mink_eval: MinkEval, run: Path) -> None:
    result = mink_eval("people", run, *options(*METHODS), "--pairs", 20, "--temp", 1, "--temp", 5)
    assert (result.status, result.stderr) == (0, "")
    assert result.stdout.startswith("20 pairs of 24.")
    page = (run / "sheet" / "sheet.html").read_text(encoding="utf-8")
    for word in ("min-k", "top-n", "tau", "tiny-model", "temperature", HOSTILE, "<img", "http:", "https:"):
        assert word not in page
    assert page.count("<script") == 2
    data, key = data_of(run / "sheet"), key_of(run / "sheet")
    assert data["sheet"] == key["sheet"]
    words = {METHODS[0]: "apple", METHODS[1]: "pear"}
    assert [entry[0] for entry in data["pairs"]] == list(key["pairs"])
    for name, prompt, left, right in data["pairs"]:
        pair = key["pairs"][name]
        assert prompt.startswith(f"Question {pair['question_id']} of gsm8k")
        for side, text in (("left", left), ("right", right)):
            assert text.split()[:2] == [words[pair[side]], str(pair["temperature"])]
    pairs = key["pairs"].values()
    assert 3 < sum(pair["left"] == METHODS[0] for pair in pairs) < 17
    asked = Counter(pair["question_id"] for pair in pairs)
    assert sorted(asked.values()) == [1] * 4 + [2] * 8  # as many questions as possible
    numbers = [int(pair["question_id"]) for pair in pairs]
    assert numbers != sorted(numbers)


def test_a_sheet_is_the_same_again_and_not_replaced_by_another(mink_eval: MinkEval, run: Path) -> None:
    command = ("people", run, *options(*METHODS), "--pairs", 5)
    written = []
    for seed in (0, 0, 1):
        result = mink_eval(*command, "--seed", seed)
        written.append([(run / "sheet" / name).read_bytes() for name in ("sheet.html", "key.json")])
    assert written == [written[0]] * 3
    result.refused(1, run / "sheet" / "key.json")
    assert mink_eval(*command, "--seed", 1, "--out", run / "other").status == 0
    assert data_of(run / "other")["pairs"] != data_of(run / "sheet")["pairs"]


def test_three_methods_and_identical_responses(mink_eval: MinkEval, run: Path) -> None:
    change(run, lambda line: (line["temperature"] == 1 and line.update(response="the same")) or None)
    result = mink_eval("people", run, *options(*METHODS, "greedy"), "--pairs", 500)
    assert [int(n) for n in re.findall(r"\d+", result.stdout)][:3] == [60, 72, 12]
    pairs = key_of(run / "sheet")["pairs"]
    both = Counter(frozenset((p["left"], p["right"])) for p in pairs.values())
    assert set(both.values()) == {2 * N}
    same = {name for name, p in pairs.items() if p["identical"]}
    assert {name for name, *_ in data_of(run / "sheet")["pairs"]} == set(pairs) - same
    votes = write_votes(run / "v.json", run / "sheet", "Ann", METHODS[0], 500)
    content = json.loads(votes.read_text())
    content["votes"] = {name: side for name, side in content["votes"].items() if name not in same}
    votes.write_text(json.dumps(content))
    mink_eval("people", run, votes).succeeded()
    row = json.loads((run / "sheet" / "votes.json").read_text())["rows"][0]
    assert (row["pairs"], row["won:tied:lost"]) == (
        2 * N,
        f"{N}:{N}:0",
    )  # as a model's judge would count them


def test_a_sheet_has_as_many_pairs_of_every_cell(mink_eval: MinkEval, run: Path) -> None:
    """Of samplers, temperatures and models: also if most of the responses are of one temperature."""
    change(run, lambda line: line["temperature"] != 5 or int(line["question_id"]) < 6)
    mink_eval("people", run, *options(*METHODS, "greedy"), "--pairs", 24).succeeded()
    pairs = key_of(run / "sheet")["pairs"].values()
    cells = Counter((frozenset((p["left"], p["right"])), p["temperature"]) for p in pairs)
    assert sorted(cells.values()) == [4] * 6


def write_votes(path: Path, folder: Path, rater: str, favours: str, n: int, ties: int = 0) -> Path:
    """Write the votes of a rater who favours a method in `n` pairs, then the other, with ties at the end."""
    key = key_of(folder)
    votes = {}
    for number, (name, pair) in enumerate(key["pairs"].items()):
        is_left = (pair["left"] == favours) == (number < n)
        votes[name] = "left" if is_left else "right"
        if number >= len(key["pairs"]) - ties:
            votes[name] = "tie"
    path.write_text(json.dumps({"sheet": key["sheet"], "rater": rater, "votes": votes}))
    return path


@pytest.mark.parametrize(
    ("raters", "temperature", "won", "win_rate", "kappa", "p", "parts"),
    [
        (["Ann"], ["--temp", 5], (8, 2, 2), 0.75, None, binomtest(8, 10).pvalue, []),
        (["Ann", "[b]Bo|", "Cy"], ["--temp", 5], (24, 0, 12), 2 / 3, 1, binomtest(8, 12).pvalue, []),
        (["Ann"], [], (24, 0, 0), 1, None, 2 * 0.5**N, [("gsm8k", 1.0), ("gsm8k", 5.0)]),
    ],
)
def test_votes(
    mink_eval: MinkEval,
    run: Path,
    raters: list[str],
    temperature: list[object],
    won: tuple[int, int, int],
    win_rate: float,
    kappa: float | None,
    p: float,
    parts: list[tuple[str, float]],
) -> None:
    """κ is 1 if all agree, p takes the votes on one question together, and every temperature has its row."""
    mink_eval("people", run, *options(*METHODS), *temperature)
    n, ties = won[0] // len(raters), won[1]
    files = [
        write_votes(run / "sheet" / f"votes-{rater}.json", run / "sheet", rater, METHODS[0], n, ties)
        for rater in raters
    ]
    assert set(saved_votes(run / "sheet")) == set(files)
    result = mink_eval("people", run / "sheet", *files)
    assert (result.status, result.stderr) == (0, "")
    every, *by_temperature = json.loads((run / "sheet" / "votes.json").read_text())["rows"]
    assert (every["task"], every["temperature"], every["sampler"]) == ("all", None, METHODS[0])
    assert every["won:tied:lost"] == ":".join(map(str, won))
    assert every["win_rate"][0] == pytest.approx(win_rate)
    assert (every["kappa"] and every["kappa"][0]) == pytest.approx(kappa)
    assert every["p"] == pytest.approx(p, rel=1e-5)
    assert sorted((row["task"], row["temperature"]) for row in by_temperature) == parts
    text = (run / "sheet" / "votes.md").read_text()
    assert all(f"{escape_markdown(rater)} {every['pairs']}" in text for rater in raters)


@pytest.mark.parametrize(
    ("arguments", "status", "named"),
    [
        (["no.json"], 1, "key.json"),
        (options(METHODS[0]), 2, "--sampler"),
        (options("top-k", "greedy"), 1, "top-k:k=20"),
        ([*options(*METHODS), "--temp", "3"], 1, "no question"),
    ],
)
def test_what_is_refused(
    mink_eval: MinkEval, run: Path, arguments: list[str], status: int, named: str
) -> None:
    mink_eval("people", run, *arguments).refused(status, named)


@pytest.mark.parametrize(
    ("edit", "named"),
    [
        ({"sheet": "other"}, "another sheet"),
        ({"votes": {"123": "left"}}, "another sheet"),
        ({"votes": {"123": "maybe"}}, "'maybe'"),
        ({"votes": [1]}, "$.votes"),
        ({"rater": None}, "$.rater"),
        ({"votes": {}}, "nobody"),
        ({}, "Ann"),  # two files of one rater
        (None, "No such file"),
    ],
)
def test_votes_that_are_refused(
    mink_eval: MinkEval, run: Path, tmp_path: Path, edit: dict[str, Any] | None, named: str
) -> None:
    mink_eval("people", run, *options(*METHODS), "--pairs", 3)
    votes = write_votes(tmp_path / "v.json", run / "sheet", "Ann", METHODS[0], 3)
    if edit is None:
        votes.unlink()
    else:
        votes.write_text(json.dumps(json.loads(votes.read_text()) | edit))
    mink_eval("people", run, votes, *[votes] * (edit == {})).refused(1, named)


def test_a_damaged_key_is_named(mink_eval: MinkEval, run: Path, tmp_path: Path) -> None:
    (run / "sheet").mkdir()
    (run / "sheet" / "key.json").write_text('{"pairs": 3}')
    mink_eval("people", run, tmp_path / "v").refused(1, run / "sheet" / "key.json")


@pytest.mark.posix
def test_a_rater_votes_and_saves(mink_eval: MinkEval, run: Path, tmp_path: Path, browser: Browser) -> None:
    """By keys and by clicks; the tab is closed in the middle; the saved file is what was voted."""
    mink_eval("people", run, *options(*METHODS), "--pairs", 5)
    page = (run / "sheet" / "sheet.html").as_uri()
    names = list(key_of(run / "sheet")["pairs"])
    browser.open(page)
    browser.press("ArrowLeft")
    browser.press("t")
    browser.press("n")
    browser.click("document.querySelector('[data-vote=right]')")
    assert browser.run("document.getElementById('place').textContent") == "Pair 5 of 5, 3 voted"
    browser.press("p")
    assert browser.run("document.querySelector('[aria-pressed=true]').textContent") == "B is better"
    time.sleep(1)  # a page of Chromium hands on what it keeps a moment later, and may be ended before
    browser.open("about:blank")

    def is_remembered() -> bool:
        browser.open(page)
        return bool(browser.run("document.getElementById('place').textContent") == "Pair 3 of 5, 3 voted")

    until(is_remembered)
    shown = data_of(run / "sheet")["pairs"][2]
    assert browser.run("document.getElementById('left').textContent") == shown[2]
    assert HOSTILE in shown[2]
    assert browser.run("document.title") == "Which answer is better?"
    browser.press("b")
    browser.press("a")
    assert "save the votes" in browser.run("document.getElementById('saved').textContent")
    browser.click("document.querySelector('#save button')")
    assert "Enter your name" in browser.run("document.getElementById('saved').textContent")
    browser.call("Input.insertText", text="Ann O'b")
    browser.call("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path))
    browser.press("Enter")
    browser.wait("document.getElementById('saved').textContent.startsWith('Saved 5 of 5')")
    saved = tmp_path / "votes-Ann-O-b.json"
    until(saved.exists)
    content = json.loads(saved.read_text())
    assert content["rater"] == "Ann O'b"
    assert content["votes"] == dict(zip(names, ("left", "tie", "right", "right", "left"), strict=True))
    assert browser.complaints == []
    assert mink_eval("people", run, saved).status == 0
