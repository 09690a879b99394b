"""`mink-eval run` with a real model: what is asked for is recorded once, however the run is stopped."""

import csv
import json
import re
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from mink_local.evals.answering import FileAnswerer
from mink_local.evals.run.records import read_run, scored, seed_of
from mink_local.evals.run.summary import summarise
from mink_local.evals.stats import what_can_be_found
from mink_local.models.catalog import ModelFile
from tests.evals.conftest import Write
from tests.support.mink_eval import MINK_EVAL, MinkEval, read_responses, responses
from tests.support.python import Finished
from tests.support.tiny import write_scripted


@pytest.mark.slow
def test_a_run_in_parts_is_the_run_as_a_whole(
    tmp_path: Path, questions: list[object], mink_eval: MinkEval
) -> None:
    """With the embedded model, unlike one of a single layer, what was in the KV cache before would show."""
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    command = [*questions, "-t", 5, "-n", 20]
    both = ["-s", "min-k", "-s", "top-p", "--limit", 6]
    mink_eval.run(*command, *both, "--out", whole)
    assert len(responses(whole)) == 18
    for part in (["-s", "top-p", "--limit", 2], ["-s", "min-k", "--limit", 4], both):
        mink_eval.run(*command, *part, "--out", parts)
    assert responses(parts) == responses(whole)
    again = mink_eval.run(*command, *both, "--out", parts)
    assert "18" in again.stdout
    assert "tokens/s" not in again.stdout  # nothing was generated


def test_only_what_is_added_runs(tmp_path: Path, here: list[object], mink_eval: MinkEval) -> None:
    out = tmp_path / "run"
    steps: list[tuple[list[object], int]] = [
        (["--limit", 2], 4),
        (["--limit", 5], 6),
        (["--limit", 2, "--sampler", "min-k:tau=3", "--sampler", "greedy", "--sampler", "top-p"], 2),
        (["--limit", 2, "--temp", 1, "--temp", 5, "--temp", 5.0, "--temp", 0], 2),
        (["--limit", 2, "--temp", 2, "--repeats", 3], 6),
    ]
    for options, n_new in steps:
        assert f"{n_new} responses, " in mink_eval.run(*here, "-n", 4, "--out", out, *options).stdout
    records = list(read_responses(out))
    assert Counter((r.sampler, r.temperature, r.repeat) for r in records) == {
        ("min-k:tau=3", 1.0, 0): 5, ("greedy", 0.0, 0): 5, ("min-k:tau=3", 5.0, 0): 2,
        ("top-p:p=0.9,order=temperature-first", 1.0, 0): 2,
        ("min-k:tau=3", 2.0, 0): 2, ("min-k:tau=3", 2.0, 1): 2, ("min-k:tau=3", 2.0, 2): 2,
    }  # fmt: skip
    seeds = {(r.question_id, r.repeat, r.seed) for r in records}
    assert len(seeds) == len({(r.question_id, r.repeat) for r in records})  # one for all methods
    assert len(seeds) == len({r.seed for r in records})


def test_a_dry_run_says_what_would_be_asked_and_writes_nothing(
    tmp_path: Path, here: list[object], mink_eval: MinkEval
) -> None:
    out = tmp_path / "run"
    command = [*here, "-n", 4, "--limit", 2, "--system", "Be brief.", "--out", out]
    said = mink_eval.run(*command, "--dry-run").stdout
    assert "[system]\nBe brief.\n\n[user]\nWhat is 0 + 0?\n\nYour response must end" in said
    assert "4 of 4 responses missing" in said
    assert not out.exists()
    mink_eval.run(*command)
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    assert "2 of 6 responses missing" in mink_eval.run(*command, "--limit", 3, "--dry-run").stdout
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before


def test_what_several_cells_can_show_is_said_beforehand(
    tmp_path: Path, here: list[object], mink_eval: MinkEval
) -> None:
    command = [*here, "-n", 1, "--limit", 6, "--out", tmp_path / "run"]
    assert what_can_be_found(6) not in mink_eval.run(*command, "--no-greedy").stdout
    for repeats in (1, 2):
        said = mink_eval.run(*command, "--repeats", repeats).stdout
        assert what_can_be_found(6, repeats=repeats) in said


def test_fields_of_a_record(tmp_path: Path, here: list[object], mink_eval: MinkEval) -> None:
    command = [*here, "-n", 4, "--limit", 1, "-s", "top-p:order=temperature-last"]
    mink_eval.run(*command, "-o", tmp_path / "run")
    mink_eval.run(*command, "-o", tmp_path / "other", "--no-greedy")
    greedy, record = read_responses(tmp_path / "run")
    assert [other.key for other in read_responses(tmp_path / "other")] == [record.key]
    assert (greedy.sampler, greedy.temperature, greedy.order) == ("greedy", 0.0, None)
    assert record == replace(
        record,
        model="tiny",
        task="gsm8k",
        question_id="0",
        sampler="top-p:p=0.9,order=temperature-last",
        order="temperature-last",
        seed=seed_of(0, "gsm8k", "0", 0),
        n_tokens=4,
        finish_reason="length",
    )
    assert len(record.k) == 4
    assert record.prompt_tokens > 20
    assert (record.strict, record.flexible, record.last) == (None, None, None)  # as reports score


def test_thoughts_end_at_their_budget(
    tmp_path: Path, tiny: Callable[..., Path], mink_eval: MinkEval, write: Write
) -> None:
    """What was cut is recorded and reported apart from responses that are too long."""
    thinker = tiny(template="{% for m in messages %}{{ m.content }}{% endfor %}<think>")
    data = write({"question": "1 + 1?", "answer": "#### 2"})
    command = ["--model", thinker, "--data", data, "-n", 8, "-o", tmp_path / "run", "--no-greedy"]
    mink_eval.run(*command, "--reasoning-budget", 0)
    [record] = read_responses(tmp_path / "run")
    assert (record.thoughts_cut, record.k[0]) == (True, 0)
    assert mink_eval("report", tmp_path / "run").status == 0
    assert "reasoning cut off 100" in (tmp_path / "run" / "report" / "report.md").read_text(encoding="utf-8")
    assert "reasoning_budget" in mink_eval("run", "gsm8k", *command, "--reasoning-budget", 5).stderr


def test_loops_are_ended_only_if_asked(tmp_path: Path, mink_eval: MinkEval, write: Write) -> None:
    """They are counted in any case, and a run that ends them is not mixed with one that does not."""
    scripts = {"<think>": [" But", " wait", ",", " but"], "</think>": ["x"], "\n\n": ["It is 2."]}
    template = "{% for m in messages %}{{ m.content }}{% endfor %}<think>"
    model = write_scripted(tmp_path / "x.gguf", template, scripts, again={" but": " wait"})
    data = write({"question": "1 + 1?", "answer": "#### 2"})
    command = ["--model", model, "--data", data, "-n", 200, "-s", "greedy", "-t", 0]
    for folder, options in ("counted", []), ("ended", ["--end-loops", "reasoning"]):
        mink_eval.run(*command, *options, "-o", tmp_path / folder)
        summary = summarise(scored(read_run(tmp_path / folder)))
        [cell] = summary.cells.itertuples()
        assert cell.looped == 1
        assert (cell.truncated, cell.accuracy, cell.thoughts_cut) == ((0, 1, 1) if options else (1, 0, 0))
        other = [] if options else ["--end-loops", "reasoning"]
        assert "end_loops" in mink_eval("run", "gsm8k", *command, *other, "-o", tmp_path / folder).stderr


def test_an_arm_may_have_a_setting_for_each_phase(tmp_path: Path, mink_eval: MinkEval, write: Write) -> None:
    """It is recorded, resumed and compared under the text that it was asked for by."""
    scripts = {"<think>": [" Well", "</think>"], "\n\n": ["x"]}
    template = "{% for m in messages %}{{ m.content }}{% endfor %}<think>"
    model = write_scripted(tmp_path / "x.gguf", template, scripts)
    data, out = write({"question": "1 + 1?", "answer": "#### 2"}), tmp_path / "run"
    arms = ["--arm", "greedy@0", "--arm", "top-k:k=5@0.2/top-k:k=2@0.5", "--arm", "top-k:k=4@0.2 / greedy@0"]
    command = ["--model", model, "--data", data, "-n", 3, "-o", out, *arms]
    mink_eval.run(*command)
    found = {(one.sampler, one.temperature): one.k[:2] for one in read_responses(out)}
    assert found == {
        ("greedy", 0): [1, 1],
        ("top-k:k=5@0.2 / top-k:k=2", 0.5): [5, 5],
        ("top-k:k=4@0.2 / greedy", 1): [4, 4],
    }
    mink_eval.run(*command)
    assert len(read_responses(out)) == 3
    mink_eval("report", out).succeeded()
    report = (out / "report" / "report.md").read_text(encoding="utf-8")
    assert "top-k:k=5@0.2 / top-k:k=2" in report
    mink_eval("report", out, "--against", "top-k:k=5@0.2/top-k:k=2@0.5").succeeded()


def test_a_recommended_repeat_penalty_is_refused_with_what_to_write(
    tmp_path: Path, tiny: Callable[..., Path], questions: list[object], mink_eval: MinkEval
) -> None:
    values = {"temp": 0.6, "top_k": 20, "penalty_repeat": 1.05}
    model = tiny("qwen.gguf", more_keys={f"general.sampling.{name}": value for name, value in values.items()})
    command = ["run", "gsm8k", *questions, "--model", model, "--limit", 1, "-n", 2, "-o", tmp_path / "run"]
    for asked in ("--arm", "--sampler"):
        refused = mink_eval(*command, asked, "model")
        refused.refused(2, "repeat penalty")
    rest = re.search(r"\S+@0\.6", refused.stderr)
    assert rest
    mink_eval(*command, "--arm", rest[0]).succeeded()
    assert {f"{one.sampler}@{one.temperature}" for one in read_responses(tmp_path / "run")} == {
        rest[0],
        "greedy@0.0",
    }


def test_a_prompt_that_does_not_fit_is_recorded_and_the_run_continues(
    tmp_path: Path, tiny_path: Path, mink_eval: MinkEval, write: Write
) -> None:
    data = write(*({"question": "word " * n, "answer": "#### 1"} for n in (5, 600, 6)))
    command = ["--model", tiny_path, "--data", data, "-n", 8, "--ctx", 256, "--parallel", 2]
    finished = mink_eval.run(*command, "-o", tmp_path / "run")
    assert "2 prompts did not fit" in finished.stdout
    by_id = {record.question_id: record for record in read_responses(tmp_path / "run")}
    assert [by_id[i].finish_reason for i in "012"] == ["length", "overflow", "length"]
    assert (by_id["1"].response, by_id["1"].n_tokens) == ("", 0)


def test_a_broken_model_ends_the_run_and_what_was_recorded_is_kept(
    tmp_path: Path, questions: list[object], tiny_path: Path, tiny: Callable[..., Path], mink_eval: MinkEval
) -> None:
    broken = tiny("broken.gguf", scale=float("nan"))
    options = ["--model", tiny_path, "--model", broken, "-n", 2, "--out", tmp_path / "run"]
    finished = mink_eval("run", "gsm8k", *questions, *options)
    assert finished.status == 1
    assert "NaN" in finished.stderr.splitlines()[-1]
    assert "24 of 48" in finished.stdout
    assert {record.model for record in read_responses(tmp_path / "run")} == {"tiny"}


def test_a_task_from_an_own_file(tmp_path: Path, tiny_path: Path, mink_eval: MinkEval, write: Write) -> None:
    """Asked with its ids, scored, and open-ended without answers."""
    mine = write({"question": "1 + 1?", "answer": 2, "id": "sum"})
    talk = write({"question": "Tell me a story."}, name="talk.jsonl")
    command = ["--model", tiny_path, "-n", 4, "--parallel", 1, "--threads", 1, "-o", tmp_path / "run"]
    mink_eval("run", mine, talk, *command).succeeded()
    by_task = {record.task: record for record in scored(read_run(tmp_path / "run")).responses}
    assert by_task["mine"].question_id == "sum"
    assert by_task["mine"].strict
    assert by_task["talk"].flexible is None
    tasks = json.loads((tmp_path / "run" / "manifest.json").read_text())["tasks"]
    assert {name: task["rule"] for name, task in tasks.items()} == {"mine": "question", "talk": "open"}
    mink_eval("report", tmp_path / "run").succeeded()


def test_questions_are_added_to_a_file_and_changed_ones_are_named(
    tmp_path: Path, tiny_path: Path, mink_eval: MinkEval, write: Write
) -> None:
    out = tmp_path / "run"
    command = ["--model", tiny_path, "-n", 2, "--parallel", 1, "--threads", 1, "--no-greedy", "-o", out]

    def ask(*answers: object, data: bool = False) -> Finished:
        given = enumerate(f"#### {answer}" if data else answer for answer in answers)
        mine = write(*({"question": f"{i} + 1?", "answer": answer} for i, answer in given))
        return mink_eval("run", *(["gsm8k", "--data", mine] if data else [mine]), *command)

    for data in (False, True):
        ask(1, 2, data=data).succeeded()
        assert "1 response, " in ask(1, 2, 3, data=data).succeeded().stdout
        ask(1, 7, 8, data=data).refused(1, "questions 1, 2 of")
        ask(1, 7, 3, data=data).refused(1, "question 1 of")
        assert "3 responses in" in ask(1, 2, 3, data=data).succeeded().stdout
    assert len(responses(out)) == 6


def test_categories_are_added_to_a_run_that_began_without(
    tmp_path: Path, tiny_path: Path, mink_eval: MinkEval, write: Write
) -> None:
    rows = [{"problem": f"{n}?", "answer": "2", "subject": "Algebra", "level": n} for n in (1, 2)]
    out, data = tmp_path / "run", write(*rows)
    command = ["run", "math500", "--data", data, "-m", tiny_path, "-n", 2, "--threads", 1, "-o", out, "-q"]
    mink_eval(*command).succeeded()
    kept = [json.loads(line) for line in (out / "questions.jsonl").read_text().splitlines()]
    assert [one["category"] for one in kept] == ["Algebra\nlevel 1", "Algebra\nlevel 2"]
    older = [{name: one[name] for name in one if name != "category"} for one in kept]
    (out / "questions.jsonl").write_text("".join(json.dumps(one) + "\n" for one in older))
    assert "4 responses in" in mink_eval(*command).succeeded().stdout
    assert [json.loads(line) for line in (out / "questions.jsonl").read_text().splitlines()] == kept


def test_another_question_or_template_is_refused(
    tmp_path: Path, questions: list[object], tiny: Callable[..., Path], mink_eval: MinkEval
) -> None:
    out = tmp_path / "run"
    command = [*questions, "--model", tiny(), "--threads", 1, "-n", 2, "--limit", 1, "--out", out]
    (tmp_path / "x.jinja").write_text("{{ messages[0].content }}{{ x }}")
    mink_eval.run(*command)
    for other in (["--chat-template-file", tmp_path / "x.jinja"], ["--template-kwargs", '{"x": 1}']):
        mink_eval("run", "gsm8k", *command, *other, "-t", 2).refused(1, "template_sha256")
    text = (out / "questions.jsonl").read_text()
    (out / "questions.jsonl").write_text(text.replace("0 + 0", "0 + 1"))
    mink_eval("run", "gsm8k", *command, "-t", 2).refused(1, "question 0")


@pytest.mark.terminal
def test_ctrl_c_says_how_to_go_on(tmp_path: Path, here: list[object]) -> None:
    out = tmp_path / "run"
    arguments = ["run", "gsm8k", *map(str, here), "--repeats", "40", "-n", "48", "-o", str(out)]
    pexpect = pytest.importorskip("pexpect")
    terminal = pexpect.spawn(
        MINK_EVAL[0], [*MINK_EVAL[1:], *arguments], dimensions=(24, 80), encoding="utf-8", timeout=60
    )
    terminal.expect(r"[1-9]\d* of 492")
    terminal.sendintr()
    terminal.expect(pexpect.EOF)
    terminal.close()
    assert terminal.exitstatus == 130
    said = re.findall(r"(\d+) of 492 responses", terminal.before)  # after the progress
    assert int(said[-1]) == len(responses(out)) > 0
    assert all(record.finish_reason != "interrupted" for record in read_responses(out))


def test_a_template_that_writes_the_date_gets_the_same_every_day(tiny: Callable[..., Path]) -> None:
    """A run that passes midnight goes on with the same prompts."""
    file = ModelFile("tiny", tiny(template="{{ strftime_now('%d %b %Y') }}"))
    with closing(FileAnswerer(file, placement={"n_threads": 1})) as answerer:
        text = answerer.model.apply_chat_template([{"role": "user", "content": "Hello"}])
    assert text == "26 Jul 2024"


@pytest.mark.slow
def test_arms_are_settings_that_are_compared_with_the_first(
    tmp_path: Path, here: list[object], mink_eval: MinkEval
) -> None:
    out = tmp_path / "run"
    first, chain = "min-k:tau=3,floor=2", "top-k:k=20+top-p:p=0.9,order=temperature-first"
    arms = ["--arm", "min-k:floor=2@1.5", "--arm", "top-k:k=20+top-p@0.6", "--arm", "greedy@0"]
    mink_eval.run(*here, "--limit", 3, "-n", 4, "--out", out, *arms)
    asked = {(one.sampler, one.temperature) for one in read_responses(out)}
    assert asked == {(first, 1.5), (chain, 0.6), ("greedy", 0)}
    mink_eval("report", out).succeeded()
    with (out / "report" / "comparisons.csv").open(encoding="utf-8") as lines:
        rows = [(row["sampler"], row["against"], row["common_questions"]) for row in csv.DictReader(lines)]
    assert sorted(rows) == [(name, f"{first}@1.5", "3") for name in ("greedy", chain)]
    mink_eval("report", out, "--against", "greedy@0").succeeded()
    mink_eval("report", out, "--against", "greedy@0.7").refused(1, "min-k:tau=3,floor=2@1.5")
    mink_eval("report", out, "--against", "greedy@x").refused(2, "temperature")
    command = ["run", "gsm8k", *here, "--limit", 3, "-n", 4, "--out", out]
    mink_eval(*command, "--arm", "min-k@hot").refused(2, "temperature")
    mink_eval(*command, "--arm", "model").refused(1, "recommend")
