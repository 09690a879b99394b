"""What a run left in its folder: the questions, and one response a line, however the run ended."""

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from mink_local.errors import ReportError
from mink_local.evals.run.records import MANIFEST, QUESTIONS, Response
from mink_local.evals.tasks.base import Question, Verdict

_T = TypeVar("_T")


@dataclass
class Run:
    """made_with: what the manifest says, by the path of its keys. problems: a sentence for every line that
    was left out, with its file and number."""

    questions: dict[tuple[str, str], Question] = field(default_factory=dict)  # by task and id
    responses: list[Response] = field(default_factory=list)
    made_with: dict[str, str] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


def read_run(folder: Path) -> Run:
    """The questions and responses in `folder`. A line that cannot be read is left out and named.

    Responses are in every `*.jsonl` file that has a "response" in it. Of two for the same question, cell and
    repeat the first counts. Raises ReportError where there is no run or no response.
    """
    if not (folder / QUESTIONS).exists():
        raise ReportError(f"{folder} holds no {QUESTIONS}: is it the --out of a mink-eval run?")
    run = Run(made_with=_manifest(folder / MANIFEST))
    for _, (task, question) in _read(folder / QUESTIONS, _question, run.problems):
        run.questions[task, question.id] = question
    seen = set()
    for path in sorted(folder.glob("*.jsonl")):
        if path.name == QUESTIONS or b'"response"' not in path.read_bytes():
            continue
        for number, response in _read(path, _response, run.problems):
            if response.key in seen:
                run.problems.append(_at(path, number, "its response was there already"))
            elif (response.task, response.question_id) not in run.questions:
                asked = f"question {response.question_id} of {response.task}"
                run.problems.append(_at(path, number, f"{asked} is not in {QUESTIONS}"))
            else:
                seen.add(response.key)
                run.responses.append(response)
    if not run.responses:
        first = f" ({run.problems[0]})" if run.problems else ""
        raise ReportError(f"{folder} holds no responses{first}: run mink-eval run … --out {folder}")
    return run


def _read(path: Path, convert: Callable[[Any], _T], problems: list[str]) -> Iterator[tuple[int, _T]]:
    """The lines of a file that `convert` takes, with their numbers."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ReportError(f"{path} cannot be read: {error.strerror}") from None
    lines = content.split(b"\n")  # and not splitlines: U+2028 may stand inside a JSON string
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            yield number, convert(json.loads(line))
        except (json.JSONDecodeError, UnicodeDecodeError, RecursionError):
            cut_short = number == len(lines)
            problems.append(_at(path, number, "cut short" if cut_short else "not JSON"))
        except ValueError as error:
            problems.append(_at(path, number, str(error)))


def _manifest(path: Path) -> dict[str, str]:
    """Empty where there is none that can be read: the responses do not depend on it."""
    try:
        return dict(_flat(json.loads(path.read_bytes())))
    except (OSError, ValueError, RecursionError):
        return {}


def _flat(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(value, dict | list):
        for key, part in value.items() if isinstance(value, dict) else enumerate(value, start=1):
            if key not in ("path", "data"):  # folders of the machine: a report is for showing around
                yield from _flat(part, f"{name} {key}".strip())
    else:
        yield name, str(value)


def _at(path: Path, number: int, what: str) -> str:
    return f"{path.name}, line {number}: {what}"


def _question(record: Any) -> tuple[str, Question]:
    choices = _take(record, "choices", list)
    question = Question(
        _name(record, "question_id"),
        _take(record, "prompt", str),
        _take(record, "gold", str),
        tuple(map(str, choices)),
        tuple(_take(record, "order", list)),
    )
    return _name(record, "task"), question


def _response(record: Any) -> Response:
    return Response(
        model=_name(record, "model"),
        task=_name(record, "task"),
        sampler=_name(record, "sampler"),
        temperature=_temperature(record),
        order=_take(record, "order", str, type(None)),
        repeat=_whole(_take(record, "repeat", int), "repeat"),
        question_id=_name(record, "question_id"),
        response=_take(record, "response", str),
        n_tokens=_whole(_take(record, "n_tokens", int), "n_tokens"),
        finish_reason=_take(record, "finish_reason", str),
        k=[_whole(size, "k") for size in _take(record, "k", list)],
        strict=_verdict(_take(record, "strict", dict)),
        flexible=_verdict(_take(record, "flexible", dict)),
    )


def _take(record: Any, name: str, *kinds: type) -> Any:
    """A field of one of these types (a bool is no int). Raises ValueError that says what is wrong."""
    if not isinstance(record, dict):
        raise ValueError("not a JSON object")
    if name not in record:
        raise ValueError(f'no "{name}"')
    if type(record[name]) not in kinds:
        raise _wrong(name, record[name])
    return record[name]


def _wrong(name: str, value: Any) -> ValueError:
    return ValueError(f'"{name}" cannot be {json.dumps(value)[:40]}')


def _name(record: Any, field: str) -> str:
    """A text that may stand in a table and be printed to a terminal."""
    name: str = _take(record, field, str)
    if not name.isprintable():
        raise _wrong(field, name)
    return name


def _temperature(record: Any) -> float:
    value = float(_take(record, "temperature", float, int))
    if not 0 <= value < math.inf:
        raise _wrong("temperature", value)
    return value


def _whole(value: Any, name: str) -> int:
    if type(value) is not int or not 0 <= value < 2**31:
        raise _wrong(name, value)
    return value


def _verdict(verdict: Any) -> Verdict:
    return Verdict(_take(verdict, "answer", str, type(None)), _take(verdict, "correct", bool))
