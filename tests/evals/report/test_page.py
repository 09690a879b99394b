"""The page of a report: what it says and packs, and what a browser makes of it."""

import base64
import gzip
import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from mink_local.evals.report.cli import report
from tests.support.made_run import write_run

HOSTILE = "</script><script>document.title = 'hacked'</script><img src=x onerror=\"document.title='hacked'\">"
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
browser = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium to open the page in")
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
        samplers=("min-k:tau=3", "top-p:p=0.9,order=temperature-last"),
        temperatures=(1.0, 5.0),
        n_questions=6,
    )
    for name in ("questions", "records"):
        path = folder / f"{name}.jsonl"
        lines = [json.loads(line) for line in path.read_bytes().splitlines()]
        for line in lines:
            if line["question_id"] == "3":
                line |= {"prompt": HOSTILE, "gold": HOSTILE, "response": f"{HOSTILE} \u2028 needle"}
                line["strict"] = line["flexible"] = {"answer": HOSTILE, "correct": True}
            if line["question_id"] == "4" and "response" in line:
                line["response"] += "\ud800"  # Chromium shows it, but its --dump-dom falls over
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "manifest.json").write_text(
        json.dumps({"seed": 7, "models": [{"path": "/home/me", "sha": "ab"}]})
    )
    result = CliRunner().invoke(report, [str(folder)], catch_exceptions=False)
    assert result.exit_code == 0
    return folder / "report" / "report.html"


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


def test_the_page_asks_for_nothing_and_runs_only_its_own_script(page: Path) -> None:
    html = page.read_text()
    reader = Reader(html)
    policy = next(a["content"] for _, a in reader.tags if a.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert [tag for tag, _ in reader.tags].count("script") == 2  # the data and the program
    for _, attributes in reader.tags:
        assert not any(name.startswith("on") or name == "style" for name in attributes)
        assert (attributes.get("src") or "data:").startswith(
            "data:image/svg+xml;base64,"
        ) or "src" not in attributes
        assert (attributes.get("href") or "#").startswith("#")
    assert HOSTILE not in html


def test_tables_and_sentences_are_in_the_page_without_script(page: Path) -> None:
    text = Reader(page.read_text()).text
    assert f"gsm8k with model {HOSTILE}" in text
    assert "top-p:p=0.9" in text
    assert "6 questions, 2 responses each, 2 methods at T = 1 and 5." in text
    assert "models 1 sha" in text
    assert "/home/me" not in text


def test_all_responses_are_packed(page: Path) -> None:
    packed = re.search(r'id="data">([^<]+)<', page.read_text())
    assert packed
    data: dict[str, Any] = json.loads(gzip.decompress(base64.b64decode(packed[1])))
    records = [json.loads(line) for line in (page.parents[1] / "records.jsonl").read_bytes().splitlines()]
    assert data["baseline"] == "min-k:tau=3"
    got = []
    for cell, question, repeat, response, strict, right, *_, tokens, steps, ones, largest in data[
        "responses"
    ]:
        model, task, sampler, temperature, _ = data["cells"][cell]
        of, name, _, _ = data["questions"][question]
        assert of == task
        got.append((model, task, sampler, temperature, name, repeat, response, strict, right))
        assert ones <= steps == tokens
        assert largest >= 1
    keys = ("model", "task", "sampler", "temperature", "question_id", "repeat", "response")
    wanted = [(*(r[k] for k in keys), r["strict"]["answer"], r["strict"]["correct"]) for r in records]
    assert got == wanted


def open_page(page: Path, state: str, tmp_path: Path) -> str:
    """What is on the page when its script has run, as HTML."""
    assert CHROMIUM is not None
    command = [CHROMIUM, *FLAGS.split(), f"--user-data-dir={tmp_path}", f"file://{page}#{state}"]
    done = subprocess.run(command, capture_output=True, timeout=120, check=True)
    return done.stdout.decode()


@browser
def test_a_link_opens_a_question(page: Path, tmp_path: Path) -> None:
    """Question 3 of gsm8k: every response is shown as it is, as text, and nothing in it ran."""
    html = open_page(page, "in=gsm8k&question=3", tmp_path)
    article = html[html.index('<article id="question"') :]
    shown = Reader(article[: article.index("</article>")])
    assert "gsm8k, question 3" in shown.text
    assert shown.text.count(HOSTILE) == 1 + 1 + 8 * 3 + 2  # prompt, gold, response and answers, model's name
    assert [a["class"] for t, a in shown.tags if t == "section"] == ["card"] * 8
    assert [tag for tag, _ in shown.tags if tag in ("script", "img")] == []
    assert "<title>Min-k evaluation: gsm8k</title>" in html
    assert "48 responses to 6 questions." in html


@browser
def test_filters_come_from_the_link(page: Path, tmp_path: Path) -> None:
    state = "task=gsm8k&t=5&method=min-k%3Atau%3D3&text=NEEDLE&verdict=strict-right&others=on"
    html = open_page(page, state, tmp_path)
    assert "2 responses to 1 question." in html
    shown = Reader(html[html.index('<article id="question"') :])
    assert shown.text.count("needle") == 8
    assert [t for t, _ in shown.tags].count("mark") == 8
    assert [a["class"] for t, a in shown.tags if t == "section" and "class" in a].count("card other") == 6


@browser
def test_an_unknown_link_opens_the_page(page: Path, tmp_path: Path) -> None:
    html = open_page(page, "in=gsm8k&question=999&task=nothing&t=", tmp_path)
    assert "48 responses to 6 questions." in html
