"""The records of a run, as they are read."""

import json
from pathlib import Path
from typing import Any

import pytest

from mink_local.errors import RunError
from mink_local.evals.run.folder import RECORDS
from mink_local.evals.run.records import (
    CUT_SHORT,
    Complaint,
    Response,
    from_json,
    read_lines,
    read_responses,
    to_line,
)
from tests.support.records import FOUR, RESPONSE, write_records

# As mink-eval 0.1 wrote it: its records must stay readable.
OLD_LINE = (
    b'{"model":"tiny","task":"gsm8k","sampler":"min-k:tau=3","temperature":5.0,"order":null,"repeat":0,'
    b'"question_id":"7","response":"Four\\nand\\u2028\\u201c20\\u201d: \\ud83d\\ude00","n_tokens":9,'
    b'"finish_reason":"stop","k":[1,2,300],"strict":{"answer":null,"correct":false},'
    b'"flexible":{"answer":"20","correct":true},"seed":1,"prompt_sha256":"00","prompt_tokens":20,"seconds":0.5}\n'
)


def test_the_format_of_a_line_is_that_of_stored_runs() -> None:
    assert to_line(RESPONSE) == OLD_LINE
    assert from_json(Response, json.loads(OLD_LINE)) == RESPONSE


def test_what_is_written_is_read(tmp_path: Path) -> None:
    write_records(tmp_path / "new" / "run", FOUR[:3])
    write_records(tmp_path / "new" / "run", FOUR[3:])
    assert list(read_responses(tmp_path / "new" / "run")) == FOUR
    assert (tmp_path / "new" / "run" / RECORDS).read_bytes().count(b"\n") == 4


def test_every_jsonl_of_records_is_read_and_no_key_twice(tmp_path: Path) -> None:
    """The records of another machine, for example, may be put into the folder."""
    write_records(tmp_path, FOUR[:2])
    (tmp_path / "other.jsonl").write_bytes(b"".join(to_line(record) for record in FOUR))
    (tmp_path / "notes.jsonl").write_text('{"note": "no record"}\n')
    assert sorted(read_responses(tmp_path), key=lambda record: record.question_id) == FOUR


def test_a_damaged_line_is_named(tmp_path: Path) -> None:
    write_records(tmp_path, FOUR)
    lines = (tmp_path / RECORDS).read_bytes().splitlines(keepends=True)
    for damage in (
        b"{\n",
        b"17\n",
        b'{"response": ""}\n',
        b"\xff\n",
        lines[0].replace(b'"correct"', b'"right"'),
    ):
        (tmp_path / RECORDS).write_bytes(b"".join([*lines[:2], damage, lines[3]]))
        with pytest.raises(RunError, match=r"line 3 of .*records.jsonl is not a record"):
            list(read_responses(tmp_path))


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"model": 3}, '"model" cannot be 3'),
        ({"sampler": "min-k\x1b[2J"}, '"sampler" cannot be "min-k\\u001b[2J"'),
        ({"temperature": -1}, '"temperature" cannot be -1'),
        ({"temperature": True}, '"temperature" cannot be true'),
        ({"repeat": 1.0}, '"repeat" cannot be 1.0'),
        ({"k": [1, "2"]}, '"k" cannot be [1, "2"]'),
        ({"strict": {"answer": None}}, 'no "correct"'),
        ({"seed": None}, '"seed" cannot be null'),
        ({"strict": None}, '"strict" and "flexible" must both be null, or neither'),
    ],
)
def test_a_complaint_names_the_field(tmp_path: Path, changes: dict[str, Any], complaint: str) -> None:
    path = tmp_path / RECORDS
    wrong = json.dumps({**json.loads(OLD_LINE), **changes}).encode() + b"\n"
    path.write_bytes(to_line(FOUR[0]) + b"\r\n" + wrong + to_line(FOUR[1]).replace(b"\n", b"\r\n") + b'{"mod')
    items = list(read_lines(path, Response))
    assert items == [(1, FOUR[0]), (3, complaint), (4, FOUR[1]), (5, CUT_SHORT)]
    assert [isinstance(item, Complaint) for _, item in items] == [False, True, False, True]


def test_a_file_of_others_may_lack_what_is_not_reported() -> None:
    line = json.loads(OLD_LINE)
    for name in ("seed", "prompt_sha256", "prompt_tokens", "seconds"):
        del line[name]
    assert from_json(Response, line).key == RESPONSE.key


def test_an_open_ended_response_has_no_verdicts() -> None:
    line = json.loads(OLD_LINE) | {"strict": None, "flexible": None}
    record = from_json(Response, line)
    assert record.open_ended
    assert json.loads(to_line(record)) == line
