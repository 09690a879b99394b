"""The page of a report: its text, its packed responses, and what Node and a browser show of them."""

import base64
import gzip
import json
import re
import shutil
import subprocess
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from mink_local.evals.report.document import make_document
from mink_local.evals.report.page import render_page
from mink_local.evals.report.recorded_run import read_run
from mink_local.evals.report.summary import summarise
from tests.support.made_run import write_run

MIN_K = "min-k:tau=3"
HOSTILE = "</script><script>document.title = 'hacked'</script><img src=x onerror=\"document.title='hacked'\">"
NODE = shutil.which("node")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --virtual-time-budget=20000 --dump-dom"
)


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
                line["response"] += "\ud800"  # Chromium shows it, but its --dump-dom falls over
        path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    (folder / "manifest.json").write_text(
        json.dumps({"seed": 7, "models": {"m": {"path": "/home/me", "sha": "ab"}}})
    )
    return write_page(folder, "a <note>")


def write_page(folder: Path, *remarks: str) -> Path:
    """Write the page of a run, and return its path."""
    run = read_run(folder)
    run.remarks += remarks
    summary = summarise(run)
    page = render_page(make_document(run, summary), run, next(iter(summary.baselines), None))
    (folder / "report.html").write_text(page, encoding="utf-8")
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

    def classes(self, tag: str) -> list[str | None]:
        return [attributes.get("class") for name, attributes in self.tags if name == tag]


def test_the_page_asks_for_nothing_and_runs_only_its_own_script(page: Path) -> None:
    html = page.read_text(encoding="utf-8")
    reader = Reader(html)
    policy = next(a["content"] for _, a in reader.tags if a.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert [tag for tag, _ in reader.tags].count("script") == 2  # the data and the program
    assert [tag for tag, _ in reader.tags].count("img") == 3
    for _, attributes in reader.tags:
        assert not any(name.startswith("on") or name == "style" for name in attributes)
        assert (attributes.get("src") or "data:image/svg+xml;base64,").startswith(
            "data:image/svg+xml;base64,"
        )
        assert (attributes.get("href") or "#").startswith("#")
    assert HOSTILE not in html


def test_the_list_of_questions_is_always_positioned(page: Path) -> None:
    """So the place of the chosen question, which the list is scrolled to, is measured from the list's top."""
    positions = re.findall(r"#questions {[^}]*position: (\w+)", page.read_text(encoding="utf-8"))
    assert positions == ["sticky", "relative"]


def test_tables_and_sentences_are_in_the_page_without_script(page: Path) -> None:
    text = Reader(page.read_text(encoding="utf-8")).text
    assert f"gsm8k with model {HOSTILE}" in text
    assert "a <note>" in text
    assert "top-p:p=0.9" in text
    assert "6 questions, 2 responses each, 2 methods at T = 1 and 5." in text
    assert "sha ab" in text
    assert "/home/me" not in text


def test_all_responses_are_packed(page: Path) -> None:
    packed = re.search(r'id="data">([^<]+)<', page.read_text(encoding="utf-8"))
    assert packed
    data: dict[str, Any] = json.loads(gzip.decompress(base64.b64decode(packed[1])))
    records = [json.loads(line) for line in (page.parent / "records.jsonl").read_bytes().splitlines()]
    assert data["baseline"] == ["sampler", "min-k:tau=3"]
    got = []
    for cell, question, *rest in data["responses"]:
        repeat, response, strict, right, _, _, _, n_tokens, n_steps, ones, largest = rest
        model, task, sampler, temperature, _ = data["cells"][cell]
        of, name, _, _ = data["questions"][question]
        assert of == task
        assert ones <= n_steps == n_tokens
        assert largest >= 1
        got.append((model, task, sampler, temperature, name, repeat, response, strict, right))
    keys = ("model", "task", "sampler", "temperature", "question_id", "repeat", "response")
    assert got == [(*(r[k] for k in keys), r["strict"]["answer"], r["strict"]["correct"]) for r in records]


@dataclass
class Shown:
    """The page after its script has run."""

    status: str
    filters: Reader
    question: Reader


def in_node(page: Path, state: str, keys: str = "") -> dict[str, str]:
    assert NODE
    script = Path(__file__).with_name("page_in_node.js")
    done = subprocess.run([NODE, script, page, state, keys], capture_output=True, timeout=60, check=True)
    shown: dict[str, str] = json.loads(done.stdout)
    return shown


@pytest.fixture(params=["node", "chromium"])
def opened(request: pytest.FixtureRequest, page: Path, tmp_path: Path) -> Any:
    """`opened(state)` runs the page's script with this fragment of the address."""

    def open_in_node(state: str) -> Shown:
        shown = in_node(page, state)
        return Shown(shown["status"], Reader(shown["filters"]), Reader(shown["question"]))

    def open_in_chromium(state: str) -> Shown:
        assert CHROMIUM
        command = [CHROMIUM, *FLAGS.split(), f"--user-data-dir={tmp_path}", f"{page.as_uri()}#{state}"]
        html = subprocess.run(command, capture_output=True, timeout=120, check=True).stdout.decode()
        assert "<title>Min-k evaluation: gsm8k</title>" in html  # no hostile script ran
        status, filters, question = (
            Reader(html[(start := html.index(f"<{tag} id=")) : html.index(f"</{tag}>", start)])
            for tag in ("p", "form", "article")
        )
        return Shown(status.text, filters, question)

    program, open_page = {
        "node": (NODE, open_in_node),
        "chromium": (CHROMIUM, open_in_chromium),
    }[request.param]
    if not program:
        others = "" if NODE or CHROMIUM else ", and no other program runs the page's script: it is not tested"
        pytest.skip(f"{request.param} is not installed{others}")
    return open_page


def test_a_link_opens_a_question(opened: Any) -> None:
    """Every response to question 3 is shown as it is, as text, and nothing in it runs."""
    shown = opened("in=gsm8k&question=3")
    assert shown.status == "48 responses to 6 questions."
    assert "gsm8k, question 3" in shown.question.text
    n_hostile = shown.question.text.count(HOSTILE)
    assert n_hostile == 1 + 1 + 8 * 3 + 2  # prompt, gold answer, responses, model's name
    assert shown.question.classes("section") == ["card"] * 8
    assert [tag for tag, _ in shown.question.tags if tag in ("script", "img")] == []


def test_filters_offer_what_the_run_has(opened: Any) -> None:
    text = opened("").filters.text
    for names in ("allgsm8k", f"allmodel {HOSTILE}", f"all{MIN_K}top-p:p=0.9 (T last)", "all15"):
        assert names in text
    for scoring in ("strict", "flexible"):
        assert f"{scoring}: correct where {MIN_K} is wrong" in text


def test_filters_come_from_the_link(opened: Any) -> None:
    shown = opened("task=gsm8k&t=5&method=min-k%3Atau%3D3&text=NEEDLE&verdict=strict-right&others=on")
    assert shown.status == "2 responses to 1 question."
    assert shown.question.text.count("needle") == 8
    assert len(shown.question.classes("mark")) == 8
    assert shown.question.classes("section").count("card other") == 6


def test_texts_are_searched_in_the_responses_and_by_choice_in_the_question(opened: Any) -> None:
    """Every question begins with "Question N of gsm8k", and no response does."""
    assert opened("text=question+2+of").status.startswith("No response")
    assert opened("text=question+2+of&asked=on").status == "8 responses to 1 question."


def test_an_unknown_link_opens_the_page(opened: Any) -> None:
    shown = opened("in=gsm8k&question=999&task=nothing&t=")
    assert shown.status == "48 responses to 6 questions."


@pytest.mark.slow
def test_responses_are_paired_with_the_baselines(opened: Any, page: Path) -> None:
    """The filters "won" and "lost" compare responses at the same temperature and repeat."""
    records = [json.loads(line) for line in (page.parent / "records.jsonl").read_bytes().splitlines()]
    for scoring in ("strict", "flexible"):
        correct = {
            (r["sampler"], (r["temperature"], r["repeat"], r["question_id"])): r[scoring]["correct"]
            for r in records
        }
        pairs = [(right, correct[MIN_K, at]) for (sampler, at), right in correct.items() if sampler != MIN_K]
        for verdict, wanted in (("won", (True, False)), ("lost", (False, True))):
            n = pairs.count(wanted)
            assert n
            status = opened(f"verdict={verdict}-{scoring}").status
            assert status.startswith(f"{n} response{'s' * (n > 1)} to ")


@pytest.mark.skipif(NODE is None, reason="node is not installed")
@pytest.mark.parametrize(
    ("keys", "question"), [("", "2"), ("j", "3"), ("jjjjjjj", "5"), ("k", "1"), ("kkk", "0"), ("jx", "3")]
)
def test_j_and_k_go_from_question_to_question(page: Path, keys: str, question: str) -> None:
    shown = in_node(page, "in=gsm8k&question=2", keys)
    assert f"gsm8k, question {question}<" in shown["question"]
    listed = [a for tag, a in Reader(shown["questions"]).tags if tag == "button"]
    assert [button["data-number"] for button in listed if button["aria-current"] == "true"] == [question]
    assert not keys or f"question={question}" in shown["hash"]


@pytest.mark.skipif(NODE is None, reason="node is not installed")
def test_open_ended_responses_are_neither_right_nor_wrong(tmp_path: Path) -> None:
    write_run(tmp_path, tasks=("essay",), samplers=(MIN_K,), temperatures=(1.0,), n_questions=2)
    page = write_page(tmp_path)
    shown = in_node(page, "")
    assert "2 responses" in shown["questions"]
    assert "no verdict" in in_node(page, "in=essay&question=0")["question"]
    for verdict in ("flexible-wrong", "strict-right", "none"):
        assert in_node(page, f"verdict={verdict}")["status"].startswith("No response")
