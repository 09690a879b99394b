"""Questions: where their files come from, and how a model is asked them."""

import dataclasses
import hashlib
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from mink_local.errors import DataError
from mink_local.evals.run.questions import AskedTask, ask, fetch
from mink_local.evals.tasks import TASKS, find_task, score
from mink_local.evals.tasks.base import Published, prompt_of
from tests.conftest import shared
from tests.evals.conftest import Write
from tests.support.hub import REPOSITORY, Hub, serve
from tests.support.mink_eval import MinkEval, read_responses

NAME = "questions.jsonl"
CONTENT = random.Random(0).randbytes(200_000)
SHA256 = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setattr("mink_local.evals.run.questions.user_folder", lambda _: folder)
    return folder


@pytest.fixture
def hub() -> Iterator[Hub]:
    """A server on which CONTENT is published."""
    with serve(Hub({NAME: CONTENT})) as hub:
        yield hub


def published(hub: Hub) -> Published:
    return Published(f"{hub.url}/{REPOSITORY}/resolve/main/{NAME}", len(CONTENT), SHA256)


def kept(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def test_a_download_is_kept_until_it_is_damaged(hub: Hub, cache: Path) -> None:
    path = fetch(published(hub), "some")
    assert path.read_bytes() == CONTENT
    assert kept(cache) == [path]
    path.write_bytes(CONTENT[:-1] + b"!")
    assert fetch(published(hub), "some").read_bytes() == CONTENT
    hub.files.clear()
    assert fetch(published(hub), "some") == path


@pytest.mark.parametrize(
    ("files", "complaint"),
    [
        ({NAME: CONTENT[:-1] + b"!"}, "200000 bytes"),
        ({NAME: CONTENT + b"!!"}, "200001 bytes"),
        ({NAME: CONTENT[:70_000]}, "70000 bytes"),
        ({NAME: b"<html>Please log in</html>"}, "26 bytes"),
        ({}, "404"),
    ],
)
def test_what_is_not_the_file_is_refused(
    hub: Hub, cache: Path, files: dict[str, bytes], complaint: str
) -> None:
    hub.files = files
    with pytest.raises(DataError, match=complaint):
        fetch(published(hub), "some")
    assert kept(cache) == []


def test_offline_says_what_to_do(cache: Path) -> None:
    gone = Published("http://127.0.0.1:9/questions.jsonl", len(CONTENT), SHA256)
    with pytest.raises(DataError) as raised:
        fetch(gone, "some")
    for part in ("refused", gone.url, "--data FILE"):
        assert part in str(raised.value)
    assert kept(cache) == []


def test_a_cache_that_is_not_a_folder(hub: Hub, cache: Path) -> None:
    cache.write_text("")
    with pytest.raises(DataError, match="cache"):
        fetch(published(hub), "some")


@pytest.mark.parametrize("name", ["gsm8k", "aqua", "math500"])
def test_the_pinned_sums_are_those_of_the_published_files(name: str) -> None:
    content = shared(f"data/{name}_test.jsonl").read_bytes()
    source = TASKS[name].source
    assert isinstance(source, Published)
    assert hashlib.sha256(content).hexdigest() == source.sha256
    assert len(content) == source.size


def asked(task: str, file: Path, shots: int, **options: Any) -> AskedTask:
    return ask(find_task(task), file, shots=shots, **options)


def rows(path: Path, *numbers: int) -> Path:
    lines = ({"question": f"{n} + {n}?", "answer": f"<<{n}+{n}={2 * n}>>Add.\n#### {2 * n}"} for n in numbers)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


def test_the_first_questions_are_examples_and_are_not_asked(tmp_path: Path) -> None:
    settings = asked("gsm8k", rows(tmp_path / "data", *range(6)), shots=2, limit=3)
    assert list(settings.questions) == ["2", "3", "4"]  # as without examples: so are the seeds
    ending = 'Your response must end with "The final answer is (answer)".'
    assert settings.shots == (
        (f"0 + 0?\n\n{ending}", "Add.\nThe final answer is 0."),
        (f"1 + 1?\n\n{ending}", "Add.\nThe final answer is 2."),
    )
    turns = settings.messages(settings.questions["2"])
    assert [turn["role"] for turn in turns] == ["user", "assistant", "user", "assistant", "user"]
    assert [turn["content"][:5] for turn in turns] == ["0 + 0", "Add.\n", "1 + 1", "Add.\n", "2 + 2"]


@pytest.mark.parametrize("name", ["gsm8k", "aqua", "math500"])
def test_worked_answers_end_as_they_are_scored(name: str) -> None:
    """The published solution is found right by flexible scoring, which is what the model is to imitate."""
    path = shared(f"data/{name}_test.jsonl")
    settings = asked(name, path, shots=20)
    first, rest = TASKS[name].read(path, 0)[:20], TASKS[name].read(path, 0)[20:]
    assert list(settings.questions.values()) == [replace(one, worked="") for one in rest]
    for question, (prompt, worked) in zip(first, settings.shots, strict=True):
        assert prompt == question.prompt
        assert "<<" not in worked
        assert score(TASKS[name], question, worked, "stop")[1].correct


def test_own_files_show_their_answers(write: Write) -> None:
    rows = [{"question": f"{answer}?", "choices": ["x", "y"], "answer": answer} for answer in "yA"]
    own = write(*rows)
    settings = asked(str(own), own, shots=1)
    assert settings.shots[0][1] == "The answer is (B)."


def test_data_that_cannot_be_shown_is_refused(tmp_path: Path, write: Write) -> None:
    data = rows(tmp_path / "data", 1, 2, 3)
    bare = write({"question": "Why?", "answer": "#### 3"}, name="bare.jsonl")
    talk = write({"question": "Why?"}, {"question": "How?"}, name="talk.jsonl")
    for task, file, shots, source, named in (
        ("gsm8k", data, 4, None, "3 questions"),
        ("gsm8k", data, 3, None, "--shots"),
        (str(talk), talk, 1, None, "question 0"),
        (str(talk), talk, 1, bare, "bare.jsonl"),
    ):
        with pytest.raises(DataError, match=named):
            asked(task, file, shots, shots_from=source)


def test_examples_are_in_the_prompt_and_in_the_manifest(
    tmp_path: Path, here: list[object], mink_eval: MinkEval
) -> None:
    command = [*here, "-n", 2, "-o", tmp_path / "run"]
    mink_eval.run(*command, "--shots", 2, "--limit", 1, "--temp", 0)
    mink_eval.run(*here, "-n", 2, "-o", tmp_path / "none", "--limit", 3, "--temp", 0)
    (shown,) = read_responses(tmp_path / "run")
    alone = next(r for r in read_responses(tmp_path / "none") if r.question_id == "2")
    assert (shown.question_id, shown.seed) == ("2", alone.seed)
    assert shown.prompt_tokens > 2 * alone.prompt_tokens
    before = (tmp_path / "run" / "manifest.json").read_text()
    others = ["--shots", 2, "--shots-from", rows(tmp_path / "other", 7, 8)]
    for options, complaint in [
        ([], "gsm8k shots was 2 and is 0"),
        (["--shots", 3], "gsm8k shots was 2 and is 3"),
        (others, "gsm8k shots_sha256"),
        (["--shots", 2, "--stop", "x"], 'stop was not given and is ["x"]'),
    ]:
        mink_eval("run", "gsm8k", *command, *options).refused(1, complaint)
    assert (tmp_path / "run" / "manifest.json").read_text() == before
    for wrong in (["--shots-from", "file"], ["--stop", ""]):
        assert mink_eval("run", "gsm8k", *wrong).status == 2


def test_examples_come_from_the_split_for_them(
    hub: Hub,
    cache: Path,
    tmp_path: Path,
    tiny_path: Path,
    mink_eval: MinkEval,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """So that all test questions are asked; the report says where they are from."""
    test, train = (rows(tmp_path / name, *numbers) for name, numbers in (("test", (1, 2)), ("train", (7, 8))))
    hub.files = {"test.jsonl": test.read_bytes(), "train.jsonl": train.read_bytes()}
    url = f"{hub.url}/{REPOSITORY}/resolve/main"
    source = Published(f"{url}/test.jsonl", 999, hashlib.sha256(test.read_bytes()).hexdigest())
    examples = Published(f"{url}/train.jsonl", 999)
    task = dataclasses.replace(TASKS["gsm8k"], source=source, examples=examples)
    monkeypatch.setitem(TASKS, "gsm8k", task)
    out = tmp_path / "run"
    command = ["-m", tiny_path, "-n", 2, "--shots", 1, "--threads", 1, "-t", 0, "-o", out]
    mink_eval.run(*command)
    assert {one.question_id for one in read_responses(out)} == {"0", "1"}
    manifest = json.loads((out / "manifest.json").read_text())
    shots = [list(shot) for shot in asked("gsm8k", train, 1).shots]
    assert (
        manifest["tasks"]["gsm8k"]["shots_sha256"] == hashlib.sha256(json.dumps(shots).encode()).hexdigest()
    )
    mink_eval("report", out).succeeded()
    assert examples.url in (out / "report" / "report.md").read_text(encoding="utf-8")
    hub.files.clear()
    mink_eval.run(*command)  # both are kept
    for path in kept(cache):
        path.unlink()
    mink_eval("run", "gsm8k", *command, "--data", test, "--limit", 1).refused(1, "shots")
    for page in (b"<html>Please log in</html>", b"{" + 1000 * b"x"):
        hub.files = {"test.jsonl": test.read_bytes(), "train.jsonl": page}
        mink_eval("run", "gsm8k", *command).refused(1, "--shots-from")


def test_a_stop_string_ends_a_response(tmp_path: Path, here: list[object], mink_eval: MinkEval) -> None:
    command = [*here, "--limit", 1, "--temp", 0, "-n", 16]
    mink_eval.run(*command, "-o", tmp_path / "whole")
    (whole,) = read_responses(tmp_path / "whole")
    stop = whole.response[len(whole.response) // 2 :][:3].replace("\n", "\\n")
    mink_eval.run(*command, "-o", tmp_path / "cut", "--stop", "no such text", "--stop", stop)
    (cut,) = read_responses(tmp_path / "cut")
    assert cut.response == whole.response.partition(stop.replace("\\n", "\n"))[0]
    assert (whole.finish_reason, cut.finish_reason) == ("length", "stop")
    stops = json.loads((tmp_path / "cut" / "manifest.json").read_text())["stop"]
    assert stops == ["no such text", stop.replace("\\n", "\n")]


def test_gpqa_explains_its_answers_if_the_file_does(write: Write) -> None:
    names = "Question,Correct Answer,Incorrect Answer 1,Incorrect Answer 2,Incorrect Answer 3,Explanation\n"
    data = write(names, "Q1,a,b,c,d,Because\n", "Q2,a,b,c,d,Because\n", name="gpqa.csv")
    settings = asked("gpqa", data, shots=1)
    [question, _] = TASKS["gpqa"].read(data, 0)
    assert settings.shots[0][1].startswith("Because\n")
    assert score(TASKS["gpqa"], question, settings.shots[0][1], "stop")[1].correct
    data.write_text(data.read_text().replace("Because", ""))
    with pytest.raises(DataError, match="question 0"):
        asked("gpqa", data, shots=1)


def test_a_question_that_an_example_shows_is_not_asked(write: Write) -> None:
    shown = {"question": "What is 1+1?", "answer": 2}
    path = write({"question": "What is 1-1?", "answer": 0}, shown)
    settings = asked(str(path), path, shots=1, shots_from=write(shown, name="train.jsonl"))
    assert list(settings.questions) == ["0"]
    assert settings.remarks == (f"{path}: left out 1 question that --shots shows.",)


OPTIONS = "(A) yes\n(B) no"


@pytest.mark.parametrize(
    ("instruction", "prompt"),
    [
        ("Say it.", f"Why?\n\n{OPTIONS}\n\nSay it."),
        ("", f"Why?\n\n{OPTIONS}"),
        ("Q: {question}\nA:", f"Q: Why?\n\n{OPTIONS}\nA:"),
        ("Q: {question} [{choices}]", f"Q: Why? [{OPTIONS}]"),
        ("Of these:\n{choices}", f"Why?\n\nOf these:\n{OPTIONS}"),
        ("Write {x} and {}.", f"Why?\n\n{OPTIONS}\n\nWrite {{x}} and {{}}."),
    ],
)
def test_where_an_instruction_is_placed(instruction: str, prompt: str) -> None:
    assert prompt_of("Why?", instruction, ("yes", "no")) == prompt


def test_what_a_question_says_is_no_place() -> None:
    assert prompt_of("What is {choices}?", "{question} {choices}", ("{question}",)) == (
        "What is {choices}? (A) {question}"
    )


def test_they_are_asked_recorded_and_not_changed(
    tmp_path: Path, here: list[object], mink_eval: MinkEval
) -> None:
    out = tmp_path / "run"
    command = [*here, "-n", 2, "--limit", 1, "--no-greedy", "--out", out]
    given = ["--instruction", r"{question}\nThink.", "--system", "Be brief."]
    mink_eval.run(*command, *given)
    question = json.loads((out / "questions.jsonl").read_text())
    assert question["prompt"] == "What is 0 + 0?\nThink."
    task = json.loads((out / "manifest.json").read_text())["tasks"]["gsm8k"]
    assert (task["instruction"], task["system"]) == ("{question}\nThink.", "Be brief.")
    for other, named in ((given[:2], "system"), (given[2:], "instruction"), ([], "system")):
        mink_eval("run", "gsm8k", *command, *other).refused(1, named)
    mink_eval.run(*command, *given)
