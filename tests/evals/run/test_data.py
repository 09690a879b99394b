"""Where questions come from: downloads over connections that fail in every way, files in the wrong format."""

import hashlib
import json
import random
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from mink_local.errors import DataError, TaskNotFoundError
from mink_local.evals.run import download
from mink_local.evals.run.data import locate
from mink_local.evals.run.download import fetch
from mink_local.evals.tasks import TASKS, find_task
from mink_local.evals.tasks.base import Published
from mink_local.evals.tasks.gpqa import shuffled
from tests.conftest import shared

CONTENT = random.Random(0).randbytes(200_000)
SHA256 = hashlib.sha256(CONTENT).hexdigest()


class Server(ThreadingHTTPServer):
    """Serves CONTENT as told: how much of it before a connection breaks, whether ranges are known."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.content = CONTENT
        self.etag = '"first"'
        self.breaks: list[int] = []  # bytes of each response to come before its connection breaks
        self.knows_ranges = True
        self.status = 200
        self.asked: list[str | None] = []  # the Range header of every request

    @property
    def source(self) -> Published:
        return Published(f"http://127.0.0.1:{self.server_port}/questions.jsonl", SHA256, len(CONTENT))


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        server, wanted = self.server, self.headers["Range"]
        server.asked.append(wanted)
        start = 0
        if wanted and server.knows_ranges and self.headers["If-Range"] == server.etag:
            start = int(wanted.removeprefix("bytes=").removesuffix("-"))
        self.send_response(206 if start else server.status)
        body = server.content[start:]
        self.send_header("ETag", server.etag)
        self.send_header("Content-Length", str(len(body)))
        if start:
            self.send_header(
                "Content-Range", f"bytes {start}-{len(server.content) - 1}/{len(server.content)}"
            )
        self.end_headers()
        self.wfile.write(body[: server.breaks.pop(0)] if server.breaks else body)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(download, "_PAUSE", 0.0)
    with Server() as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield server
        server.shutdown()


def left_behind(folder: Path) -> set[str]:
    return {path.suffix for path in folder.rglob("*") if path.is_file()}


def test_a_download_is_kept(server: Server, tmp_path: Path) -> None:
    path = fetch(server.source, "some")
    assert path.read_bytes() == CONTENT
    assert path.is_relative_to(tmp_path)
    assert fetch(server.source, "some") == path
    assert server.asked == [None]
    assert left_behind(tmp_path) == {".jsonl"}


def test_a_kept_file_that_was_damaged_is_fetched_again(server: Server) -> None:
    path = fetch(server.source, "some")
    path.write_bytes(CONTENT[:-1] + b"!")
    assert fetch(server.source, "some").read_bytes() == CONTENT


def test_a_connection_that_drops_is_taken_up_where_it_broke(server: Server) -> None:
    server.breaks = [70_000, 70_000]
    assert fetch(server.source, "some").read_bytes() == CONTENT
    assert server.asked == [None, "bytes=70000-", "bytes=140000-"]


def test_a_later_run_goes_on_where_an_earlier_one_gave_up(server: Server, tmp_path: Path) -> None:
    server.breaks = [70_000, 0, 0, 0]
    with pytest.raises(DataError, match="could not be downloaded"):
        fetch(server.source, "some")
    assert left_behind(tmp_path) == {".part", ".etag"}
    assert fetch(server.source, "some").read_bytes() == CONTENT
    assert server.asked[-1] == "bytes=70000-"
    assert left_behind(tmp_path) == {".jsonl"}


@pytest.mark.parametrize("change", ["ignores ranges", "has another version"])
def test_a_server_that_does_not_go_on_starts_over(server: Server, change: str) -> None:
    server.breaks = [70_000, 0, 0, 0]
    with pytest.raises(DataError):
        fetch(server.source, "some")
    if change == "ignores ranges":
        server.knows_ranges = False
    else:
        server.etag = '"second"'
    assert fetch(server.source, "some").read_bytes() == CONTENT


def test_other_bytes_are_refused_and_removed(server: Server, tmp_path: Path) -> None:
    server.content = CONTENT[:-1] + bytes([CONTENT[-1] ^ 1])
    with pytest.raises(DataError, match=f"was removed: its SHA-256 is .* and not {SHA256}"):
        fetch(server.source, "some")
    assert left_behind(tmp_path) == set()
    server.content = CONTENT
    assert fetch(server.source, "some").read_bytes() == CONTENT


def test_a_short_page_instead_of_the_data_is_refused(server: Server) -> None:
    server.content = b"<html>Please log in</html>"
    with pytest.raises(DataError, match="the connection broke off"):
        fetch(server.source, "some")


def test_an_unfinished_file_that_is_too_long_is_refused_and_removed(server: Server, tmp_path: Path) -> None:
    path = fetch(server.source, "some")
    path.rename(f"{path}.part")
    with Path(f"{path}.part").open("ab") as part:
        part.write(b"more")
    with pytest.raises(DataError, match="was removed"):
        fetch(server.source, "some")
    assert left_behind(tmp_path) == set()


def test_offline_says_what_to_do(server: Server) -> None:
    gone = Published("http://127.0.0.1:9/questions.jsonl", SHA256, len(CONTENT))
    with pytest.raises(DataError) as raised:
        fetch(gone, "some")
    sentence = str(raised.value)
    assert "Connection refused" in sentence
    assert gone.url in sentence
    assert "--data FILE" in sentence
    server.status = 404
    server.content = b"no"
    with pytest.raises(DataError, match="HTTP 404"):
        fetch(server.source, "some")


def test_two_at_once_fetch_once(server: Server) -> None:
    paths: list[Path] = []
    threads = [threading.Thread(target=lambda: paths.append(fetch(server.source, "some"))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(paths)) == 1
    assert len(paths) == 4
    assert server.asked == [None]


def test_a_cache_that_is_no_folder(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(DataError, match="cannot be kept in"):
        fetch(server.source, "some")


@pytest.mark.parametrize("name", ["gsm8k", "aqua", "math500"])
def test_the_pinned_sums_are_those_of_the_published_files(name: str) -> None:
    content = shared(f"data/{name}_test.jsonl").read_bytes()
    source = TASKS[name].source
    assert isinstance(source, Published)
    assert hashlib.sha256(content).hexdigest() == source.sha256
    assert len(content) == source.size


def test_locate(tmp_path: Path) -> None:
    file = tmp_path / "own.jsonl"
    file.write_text("")
    assert locate(TASKS["gsm8k"], file) == file
    assert locate(TASKS["sample-math"]).name == "sample-math.jsonl"
    with pytest.raises(DataError, match="is a folder"):
        locate(TASKS["gsm8k"], tmp_path)
    with pytest.raises(DataError, match="there is no file"):
        locate(TASKS["gsm8k"], tmp_path / "none")
    with pytest.raises(
        DataError, match=r"gpqa needs your own copy of its data with --data FILE: .*gpqa_main\.csv"
    ):
        locate(TASKS["gpqa"])


def test_an_unknown_task_lists_the_known_ones() -> None:
    with pytest.raises(
        TaskNotFoundError, match="'gsm8': the tasks are gsm8k, aqua, gpqa, math500, sample-math"
    ):
        find_task("gsm8")


Write = Callable[[str | bytes], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(content: str | bytes) -> Path:
        path = tmp_path / "data"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


def refusal(task: str, path: Path) -> str:
    with pytest.raises(DataError) as raised:
        TASKS[task].read(path, seed=0)
    assert str(raised.value).startswith(str(path))
    return str(raised.value).removeprefix(str(path))


@pytest.mark.parametrize(
    ("name", "n", "last"), [("gsm8k", 1319, "14"), ("aqua", 254, "A"), ("math500", 500, "106^\\circ")]
)
def test_the_published_sets_are_read_whole(name: str, n: int, last: str) -> None:
    questions = TASKS[name].read(shared(f"data/{name}_test.jsonl"), seed=0)
    assert [question.id for question in questions] == [str(row) for row in range(n)]
    assert questions[-1].gold == last
    assert all(question.prompt.endswith(TASKS[name].instruction) for question in questions)


def gsm8k(question: str = "How many?", answer: str = "Two.\n#### 2") -> str:
    return json.dumps({"question": question, "answer": answer}) + "\n"


def aqua(**fields: Any) -> str:
    options = ["A)1", "B)2", "C)3", "D)4", "E)5"]
    row = {"question": "How many?", "options": options, "rationale": "", "correct": "B", **fields}
    return json.dumps({field: value for field, value in row.items() if value is not None}) + "\n"


def test_gold_answers_lose_their_commas(write: Write) -> None:
    golds = ["2", "-10", "1,450,000", "0.5", "12"]
    path = write("\n".join(gsm8k(f"Question {gold}?", f"…\n#### {gold}") for gold in golds))
    assert [question.gold for question in TASKS["gsm8k"].read(path, 0)] == [
        "2",
        "-10",
        "1450000",
        "0.5",
        "12",
    ]


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("", " holds no questions"),
        ("\n \n", " holds no questions"),
        (gsm8k() + '{"answer": "#### 3"}\n', ", line 2: no 'question'"),
        (gsm8k() + "\n" + gsm8k("  "), ", line 3: 'question' is empty"),
        (gsm8k() + '{"question": 5}', ", line 2: 'question' is not text"),
        (gsm8k() + '{"question": "Why?"}', ", line 2: no 'answer'"),
        (gsm8k(answer="Two."), ", line 1: 'answer' has no gold answer, it does not end in '#### NUMBER'"),
        (gsm8k(answer="#### two"), ", line 1: 'answer' has no gold answer, it does not end in '#### NUMBER'"),
        (gsm8k() + gsm8k("Why?") + gsm8k(), ", line 3: the same question as in line 1; remove one"),
        ("question,answer\nHow many?,2\n", ", line 1: this is not JSON; one JSON object a line is wanted"),
        ("[" + gsm8k() + "]", ", line 1: this is not JSON; one JSON object a line is wanted"),
        ("[" * 100_000, ", line 1: this is not JSON; one JSON object a line is wanted"),
        ("[1, 2]\n", ", line 1: a JSON object is wanted, not [1, 2]"),
        (gsm8k().encode("utf-16"), ", line 1: this is not UTF-8 text"),
        (gsm8k().encode() + "{'é'}".encode("latin-1"), ", line 2: this is not UTF-8 text"),
        (gsm8k("\ud800"), ", line 1: 'question' holds half a character (a lone surrogate)"),
    ],
)
def test_wrong_lines_are_named(content: str | bytes, complaint: str, write: Write) -> None:
    assert refusal("gsm8k", write(content)) == complaint


def test_a_byte_order_mark_does_no_harm(write: Write) -> None:
    assert TASKS["gsm8k"].read(write(gsm8k().encode("utf-8-sig")), 0)[0].gold == "2"


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    assert refusal("gsm8k", tmp_path) == " cannot be read: Is a directory"


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (aqua(options=["A)1", "B)2", "C)3", "D)4"]), ", line 1: 'options' is not a list of five"),
        (aqua(options="A)1"), ", line 1: 'options' is not a list of five"),
        (aqua(options=None), ", line 1: no 'options'"),
        (aqua(options=["A)1", *"2345"]), ", line 1: an option does not begin with 'B)' but with '2'"),
        (aqua(options=["A)1", "B)2", 3, "D)4", "E)5"]), ", line 1: 'options' is not text"),
        (aqua(correct="F"), ", line 1: 'correct' is 'F' and not one of A to E"),
        (aqua(correct="AB"), ", line 1: 'correct' is 'AB' and not one of A to E"),
        (aqua(correct=None), ", line 1: no 'correct'"),
        (gsm8k(), ", line 1: no 'options'"),
    ],
)  # fmt: skip
def test_wrong_options_are_named(content: str, complaint: str, write: Write) -> None:
    assert refusal("aqua", write(content)) == complaint


def test_aqua_shows_its_options() -> None:
    question = TASKS["sample-choice"].read(locate(TASKS["sample-choice"]), 0)[0]
    assert question.choices[1] == "15%"
    assert "\n(B) 15%\n" in question.prompt


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (gsm8k(), ", line 1: no 'problem'"),
        ('{"problem": "Why?", "answer": " "}', ", line 1: 'answer' is empty"),
        ('{"problem": "Why?"}', ", line 1: no 'answer'"),
    ],
)
def test_math500_needs_problem_and_answer(content: str, complaint: str, write: Write) -> None:
    assert refusal("math500", write(content)) == complaint


COLUMNS = "Record ID,Question,Correct Answer,Incorrect Answer 1,Incorrect Answer 2,Incorrect Answer 3\n"


def test_gpqa_reads_the_users_own_csv(write: Write) -> None:
    path = write(COLUMNS + 'r1,"Which one,\nsays ""he""?",right,w1,w2,w3\nr2,And?,yes,no,never,"not, ever"\n')
    questions = TASKS["gpqa"].read(path, seed=1)
    assert [question.id for question in questions] == ["0", "1"]
    first = questions[0]
    assert first.prompt.startswith('Which one,\nsays "he"?\n\n(A) ')
    assert first.prompt.endswith("The final answer is (A).")
    assert sorted(first.choices) == ["right", "w1", "w2", "w3"]
    assert first.choices == tuple(("right", "w1", "w2", "w3")[place] for place in first.order)
    assert first.choices["ABCD".index(first.gold)] == "right"


def test_the_shuffle_depends_on_seed_and_question_alone(write: Write) -> None:
    rows = [f"r,Question {row}?,right,w1,w2,w3\n" for row in range(200)]
    whole = TASKS["gpqa"].read(write(COLUMNS + "".join(rows)), seed=1)
    part = TASKS["gpqa"].read(write(COLUMNS + "".join(rows[100:])), seed=1)
    other = TASKS["gpqa"].read(write(COLUMNS + "".join(rows)), seed=2)
    assert [question.order for question in whole[100:]] == [question.order for question in part]
    assert [question.order for question in whole] != [question.order for question in other]
    assert all(30 < [question.gold for question in whole].count(letter) < 70 for letter in "ABCD")
    assert shuffled("What?", 4, 0) == (1, 2, 3, 0)  # stored runs depend on it


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("", " holds no questions"),
        (COLUMNS, " holds no questions"),
        ("a,b\n1,2\n", ", line 1: no column 'Question'; GPQA's gpqa_main.csv is wanted"),
        (gsm8k(), ", line 1: no column 'Question'; GPQA's gpqa_main.csv is wanted"),
        (COLUMNS + 'r,"two\nlines",a,b,c,d\nr,Why?,,b,c,d\n', ", line 4: 'Correct Answer' is empty"),
        (COLUMNS + "r,Why?,a,b,c\n", ", line 2: 5 columns and not 6"),
        (COLUMNS + 'r,"Why?,a,b,c,d\n', ", line 2: this is not CSV (unexpected end of data)"),
        (COLUMNS.encode() + b"r,Why\xff?,a,b,c,d\n", ", line 2: this is not UTF-8 text"),
        (COLUMNS + "r,Why?,a,b,c,d\n" * 2, ", line 3: the same question as in line 2; remove one"),
    ],
)
def test_wrong_csv_is_named(content: str | bytes, complaint: str, write: Write) -> None:
    assert refusal("gpqa", write(content)) == complaint
