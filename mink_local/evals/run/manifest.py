"""The settings that the responses of a run depend on, in `DIR/manifest.json`, and the run's questions.

A run is continued only under the settings that it was started with, or one table would hold responses that
are not comparable. Models, tasks, samplers, temperatures, repeats and questions may be added. Slots, threads,
layers on the GPU and the executor may change, and are noted under "sessions": they change the last bits of
llama.cpp's sums, so that a seed may give another response of the same distribution.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from llama_cpp import llama_cpp

from mink_local.errors import RunError
from mink_local.evals.run.folder import MANIFEST, RunFolder
from mink_local.evals.run.records import (
    QUESTIONS,
    Complaint,
    RecordedQuestion,
    as_run_error,
    read_lines,
    to_line,
)
from mink_local.evals.run.settings import RunSettings
from mink_local.evals.tasks.base import Question
from mink_local.files import sha256_of
from mink_local.models.gguf import shards
from mink_local.version import __version__

FORMAT = 1


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file; of a GGUF model in several files, that of all their SHA-256."""
    with as_run_error(path, "read"):
        sums = [sha256_of(shard) for shard in shards(path)]
    return sums[0] if len(sums) == 1 else hashlib.sha256("".join(sums).encode()).hexdigest()


def versions() -> dict[str, str]:
    """Return the versions of the programs that a result depends on."""
    return {
        "mink-local": __version__,
        "llama-cpp-python": version("llama-cpp-python"),
        "llama.cpp": llama_cpp.llama_version().decode(),
    }


class Manifest:
    """The manifest of a folder, which agrees with what is asked for now.

    `wanted` has "seed", "ctx", "stop", by name "models" ("path", "sha256") and "tasks" ("data",
    "data_sha256", "max_tokens", and if given "shots", "shots_sha256", "rule"), and in "asked" the grid, from
    which a report counts the responses that were asked for; it is added to the grids of earlier sessions.
    `questions`, by task, are kept in the folder. Raises RunError if the folder was started with other
    settings; the text names every difference.
    """

    def __init__(
        self, folder: RunFolder, wanted: Mapping[str, Any], questions: Mapping[str, Sequence[Question]]
    ) -> None:
        self._folder = folder
        asked = wanted["asked"]
        wanted = {"format": FORMAT, "versions": versions(), **wanted, "asked": []}
        self._content = self._read() or {**wanted, "sessions": []}
        with self._as_damage():
            self._refuse(list(_differences(self._content, wanted)))
            if "asked" in self._content and asked not in self._content["asked"]:
                self._content["asked"].append(asked)
            for kind in ("models", "tasks"):
                self._content[kind] = wanted[kind] | self._content[kind]
        self._keep(questions)
        self._write()

    @property
    def settings(self) -> RunSettings | None:
        return RunSettings.of(self._content)

    def begin_session(self, model: str, template_sha256: str, session: Mapping[str, Any]) -> None:
        """Note the runtime environment in which a model continues the run.

        Raises RunError if the model's chat template is another than before.
        """
        entry = self._content["models"][model]
        if entry.setdefault("template_sha256", template_sha256) != template_sha256:
            self._refuse([f"the chat template of {model} is another"])
        started = datetime.now(UTC).isoformat(timespec="seconds")
        self._content["sessions"].append({"started": started, "model": model, **session})
        self._write()

    def _keep(self, questions: Mapping[str, Sequence[Question]]) -> None:
        """Add questions to those of earlier sessions."""
        known: dict[tuple[str, str], RecordedQuestion] = {}
        path = self._folder.folder / QUESTIONS
        for number, item in read_lines(path, RecordedQuestion) if path.exists() else ():
            if isinstance(item, Complaint):
                raise RunError(f"{path} is damaged (line {number}: {item}): name another --out")
            known[item.task, item.question_id] = item
        n_before = len(known)
        for item in (RecordedQuestion.of(task, q) for task, some in questions.items() for q in some):
            if known.setdefault((item.task, item.question_id), item) != item:
                self._refuse([f"question {item.question_id} of {item.task} has another text or answer"])
        lines = b"".join(map(to_line, known.values()))
        self._content["questions_sha256"] = hashlib.sha256(lines).hexdigest()
        if len(known) > n_before:
            self._folder.write(QUESTIONS, lines)

    def _read(self) -> dict[str, Any] | None:
        path = self._folder.folder / MANIFEST
        if not path.exists():
            return None
        with self._as_damage(), as_run_error(path, "read"):
            content: dict[str, Any] = json.loads(path.read_bytes())
            if content["format"] == FORMAT:
                return content
        raise RunError(f"{self._folder.folder} is of another version of mink-eval: name another --out")

    def _write(self) -> None:
        self._folder.write(MANIFEST, json.dumps(self._content, indent=1) + "\n")

    @contextmanager
    def _as_damage(self) -> Iterator[None]:
        """Raise what a manifest of another structure causes as a RunError."""
        try:
            yield
        except (ValueError, KeyError, TypeError, AttributeError):
            raise RunError(f"{self._folder.folder / MANIFEST} is damaged: name another --out") from None

    def _refuse(self, differences: Sequence[str]) -> None:
        if differences:
            raise RunError(
                f"{self._folder.folder} was started with other settings: {'; '.join(differences)}. "
                "Give the settings that it was started with, or name another folder with --out"
            )


def _differences(then: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    """Yield every setting whose responses are not comparable with those made under `then`."""
    for option, was in (("seed", then["seed"]), ("ctx", then["ctx"]), ("stop", then.get("stop", []))):
        if was != now[option]:
            yield f"--{option} was {_given(was)} and is {_given(now[option])}"
    for program, number in now["versions"].items():
        if then["versions"][program] != number:
            yield f"{program} was {then['versions'][program]} and is {number}"
    for name, model in now["models"].items():
        if then["models"].get(name, model)["sha256"] != model["sha256"]:
            yield f"model {name} was another file than {model['path']}"
    for name, task in now["tasks"].items():
        before = then["tasks"].get(name, task)
        if before["max_tokens"] != task["max_tokens"]:
            yield f"--max-tokens was {before['max_tokens']} for {name} and is {task['max_tokens']}"
        if before["data_sha256"] != task["data_sha256"]:
            yield f"the data of {name} was another than {task['data']}"
        shots, shots_now = (entry.get("shots", 0) for entry in (before, task))
        if shots != shots_now:
            yield f"--shots was {shots} for {name} and is {shots_now}"
        elif before.get("shots_sha256") != task.get("shots_sha256"):
            yield f"the examples of --shots for {name} were others"


def _given(value: Any) -> str:
    if value is None or value == []:
        return "not given"
    return " ".join(map(json.dumps, value)) if isinstance(value, list) else str(value)
