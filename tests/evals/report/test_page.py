"""The page of a report: its text, its packed responses, and what a browser shows of them."""

import json
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page

from mink_local.evals.report.report import page as page_of
from mink_local.evals.run.records import read_run
from mink_local.evals.run.report import run_report
from mink_local.evals.run.summary import summarise
from tests.support.browser import complaints_of, wait
from tests.support.made_run import change, write_run

MIN_K = "min-k:tau=3"
HOSTILE = "</script><script>document.title = 'hacked'</script><img src=x onerror=\"document.title='hacked'\">"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a run in which a model's name and all that concerns question 3 are hostile."""
    folder = tmp_path_factory.mktemp("run")
    write_run(
        folder,
        tasks=("gsm8k",),
        models=(f"model {HOSTILE}",),
        samplers=(MIN_K, "top-p:p=0.9,order=temperature-last"),
        temperatures=(1.0, 5.0),
        n_questions=6,
    )
    for name in ("questions", "records"):
        path = folder / f"{name}.jsonl"
        lines = [json.loads(line) for line in path.read_bytes().splitlines()]
        for line in lines:
            if line["question_id"] == "3":
                line |= {
                    "prompt": HOSTILE,
                    "gold": HOSTILE,
                    "response": f"{HOSTILE} \u2028 needle",
                    "prompt_sha256": "",
                }
                line["strict"] = line["flexible"] = {"answer": HOSTILE, "correct": True}
            if line["question_id"] == "4" and "response" in line:
                line["response"] += "\ud800"
        path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    (folder / "manifest.json").write_text(
        json.dumps(
            {
                "seed": 7,
                "models": {f"model {HOSTILE}": {"path": "/home/me", "sha": "ab"}},
                "tasks": {"gsm8k": {"max_tokens": 100}},
            }
        )
    )
    return write_page(folder, "a <note>")


def write_page(folder: Path, *notes: str, against: tuple[str, Any] | None = None) -> Path:
    """Write the page of a run, and return its path."""
    run = read_run(folder)
    run.notes += notes
    (folder / "report.html").write_text(page_of(run_report(run, against)), encoding="utf-8")
    return folder / "report.html"


class Reader(HTMLParser):
    """Every start tag with its attributes, and the text outside of scripts and styles."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self._skip = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._skip = tag in ("script", "style")

    def handle_endtag(self, tag: str) -> None:  # noqa: ARG002
        self._skip = False

    def handle_data(self, data: str) -> None:
        self.text += "" if self._skip else data


def test_the_page_asks_for_nothing_and_says_all_but_responses_without_script(page: Path) -> None:
    html = page.read_text(encoding="utf-8")
    assert HOSTILE not in html
    reader = Reader(html)
    policy = next(a["content"] for _, a in reader.tags if a.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert [tag for tag, _ in reader.tags].count("script") == 2  # the data and the program
    assert [tag for tag, _ in reader.tags].count("img") == 1
    for _, attributes in reader.tags:
        assert not any(name.startswith("on") or name == "style" for name in attributes)
        assert (attributes.get("src") or "data:image/svg+xml;base64,").startswith(
            "data:image/svg+xml;base64,"
        )
        assert (attributes.get("href") or "#").startswith("#")
    for said in (
        HOSTILE,
        "a <note>",
        "top-p:p=0.9",
        "6 questions, 2 responses each, 2 methods at T = 1 and 5.",
    ):
        assert said in reader.text
    assert re.search(r"sha\s+ab\b", reader.text)
    assert "/home/me" not in reader.text


@pytest.fixture
def opened(browser: Page, page: Path) -> Callable[..., Page]:
    """`opened(state)` opens the page at this fragment of its address."""

    def open_page(state: str, path: Path = page) -> Page:
        browser.goto("about:blank")
        browser.goto(f"{path.as_uri()}#{state}")
        wait(browser, "!document.getElementById('filters').hidden")
        return browser

    return open_page


def text(browser: Page, name: str) -> str:
    """Return the text of a part of the page."""
    return str(browser.evaluate(f"document.getElementById('{name}').textContent"))


def count(browser: Page, selector: str) -> int:
    return int(browser.evaluate(f"document.querySelectorAll('{selector}').length"))


def test_a_link_opens_a_question(opened: Callable[..., Page], browser: Page) -> None:
    """Every response to question 3 is shown as it is, as text, and nothing in it runs."""
    complaints = complaints_of(browser)
    opened("in=gsm8k&question=3")
    assert text(browser, "status") == "48 responses to 6 questions."
    question = text(browser, "question")
    assert "gsm8k, question 3" in question
    assert question.count(HOSTILE) == 1 + 1 + 8 * 2 + 2  # prompt, gold answer, responses, model's name
    assert count(browser, "#question section.card") == 8
    assert count(browser, "#question script, #question img") == 0
    assert browser.evaluate("document.title") == "Min-k evaluation: gsm8k"
    assert complaints == []


def test_every_response_to_a_question_is_shown(opened: Callable[..., Page], page: Path) -> None:
    shown = text(opened("in=gsm8k&question=2"), "question")
    records = [json.loads(line) for line in (page.parent / "records.jsonl").read_bytes().splitlines()]
    assert all(r["response"] in shown for r in records if r["question_id"] == "2")


def test_filters_offer_what_the_run_has(opened: Callable[..., Page]) -> None:
    filters = text(opened(""), "filters")
    for names in ("allgsm8k", f"allmodel {HOSTILE}", f"all{MIN_K}top-p:p=0.9 (T last)", "all15"):
        assert names in filters
    assert f"correct where {MIN_K} is wrong" in filters


def test_filters_come_from_the_link(opened: Callable[..., Page]) -> None:
    browser = opened("task=gsm8k&t=5&method=min-k%3Atau%3D3&text=NEEDLE&verdict=right&others=on")
    assert text(browser, "status") == "2 responses to 1 question."
    assert text(browser, "question").count("needle") == 8
    assert count(browser, "#question mark") == 8
    assert count(browser, "#question section.card.other") == 6


@pytest.mark.parametrize(
    ("state", "status"),
    [
        # Every question begins with "Question N of gsm8k", and no response does.
        ("text=question+2+of", "No response"),
        ("text=question+2+of&asked=on", "8 responses to 1 question."),
        # A link to what is not there opens the page.
        ("in=gsm8k&question=999&task=nothing&t=", "48 responses to 6 questions."),
    ],
)
def test_what_a_link_finds(opened: Callable[..., Page], state: str, status: str) -> None:
    assert text(opened(state), "status").startswith(status)


@pytest.mark.parametrize("against", [MIN_K, "greedy"])
def test_responses_are_paired_as_in_the_table(
    opened: Callable[..., Page], tmp_path: Path, against: str
) -> None:
    """At one temperature, "won" and "lost" are the table's, greedy's too, which is answered once."""
    write_run(
        tmp_path, tasks=("gsm8k",), samplers=(MIN_K, "greedy"), temperatures=(1.0, 5.0), n_questions=9,
        repeats=1,
    )  # fmt: skip
    summary = summarise(read_run(tmp_path), ("sampler", against))
    page = write_page(tmp_path, against=("sampler", against))
    for row in summary.comparisons.itertuples():
        for verdict, n in (("won", row.won), ("lost", row.lost)):
            status = text(opened(f"verdict={verdict}&t={row.temperature:g}", page), "status")
            assert status.startswith(f"{n} response{'s' * (n != 1)} to " if n else "No response")
    assert summary.comparisons[["won", "lost"]].to_numpy().sum() > 3


def test_arms_are_paired_as_in_the_table(opened: Callable[..., Page], tmp_path: Path) -> None:
    """Whatever their temperatures."""
    write_run(
        tmp_path, tasks=("gsm8k",), samplers=(MIN_K, "greedy"), temperatures=(1.0, 5.0), n_questions=9,
        repeats=1,
    )  # fmt: skip
    against = ("arm", f"{MIN_K}@5")
    page = write_page(tmp_path, against=against)
    found = summarise(read_run(tmp_path), against).comparisons
    for row in found.itertuples():
        at = f"&t={row.temperature:g}" if row.temperature else ""
        for verdict, n in (("won", row.won), ("lost", row.lost)):
            status = text(opened(f"verdict={verdict}&method={row.sampler}{at}", page), "status")
            assert status.startswith(f"{n} response{'s' * (n != 1)} to " if n else "No response")
    assert (len(found), found[["won", "lost"]].to_numpy().sum() > 3) == (2, True)


@pytest.mark.parametrize(
    ("keys", "question"), [("", "2"), ("j", "3"), ("jjjjjjj", "5"), ("k", "1"), ("kkk", "0"), ("jx", "3")]
)
def test_j_and_k_go_from_question_to_question(opened: Callable[..., Page], keys: str, question: str) -> None:
    browser = opened("in=gsm8k&question=2")
    browser.keyboard.type(keys)
    assert text(browser, "question").startswith(f"gsm8k, question {question}")
    assert (
        browser.evaluate("document.querySelector('#questions [aria-current=true]').dataset.number")
        == question
    )
    assert count(browser, "#questions [aria-current=true]") == 1
    assert f"question={question}" in browser.evaluate("location.hash")


@pytest.mark.parametrize("width", [1200, 500])
def test_the_chosen_question_is_in_sight_in_its_list(
    opened: Callable[..., Page], browser: Page, width: int
) -> None:
    """Beside the responses, and above them on a narrow screen."""
    browser.set_viewport_size({"width": width, "height": 150})
    opened("in=gsm8k&question=0")
    assert browser.evaluate(
        """(() => {
            const list = document.getElementById("questions").getBoundingClientRect();
            const chosen = document.querySelector("#questions [aria-current=true]").getBoundingClientRect();
            return list.top <= chosen.top && chosen.bottom <= list.bottom;
        })()"""
    )


@pytest.mark.parametrize(
    ("reason", "said"),
    [("length", "cut off"), ("repetition", "loop"), ("overflow", "did not fit"), ("refused", "refused by")],
)
def test_how_a_response_ended_is_said(
    opened: Callable[..., Page], tmp_path: Path, reason: str, said: str
) -> None:
    write_run(tmp_path, tasks=("gsm8k",), samplers=(MIN_K,), temperatures=(1.0,), n_questions=1)
    page = write_page(change(tmp_path, lambda r: r.update(finish_reason=reason)))
    assert said in text(opened("in=gsm8k&question=0", page), "question")


def test_open_ended_responses_are_neither_right_nor_wrong(
    opened: Callable[..., Page], tmp_path: Path
) -> None:
    write_run(tmp_path, tasks=("essay",), samplers=(MIN_K,), temperatures=(1.0,), n_questions=2)
    page = write_page(tmp_path)
    browser = opened("in=essay&question=0", page)
    assert "2 responses" in text(browser, "questions")
    assert "no verdict" in text(browser, "question")
    for verdict in ("wrong", "right", "none"):
        assert text(opened(f"verdict={verdict}", page), "status").startswith("No response")
