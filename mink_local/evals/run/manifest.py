"""What the records of a run depend on, in `DIR/manifest.json`, and its questions, in `DIR/questions.jsonl`.

A run goes on only under what it was begun with. Refused, because responses of both sorts would stand in
one table as if they were comparable: another run seed, context limit, limit of a response, data file,
question, GGUF file or chat template, another version of llama.cpp, llama-cpp-python or mink-local.

Let through, and noted under "sessions": the number of sequences, threads, layers on the GPU, the executor.
They move the last bits of llama.cpp's sums, so a seed may draw another response, but one of the same
distribution; and whoever goes on with a run on another machine, or in less memory, changes just these. Let
through as well: more models, tasks, samplers, temperatures, repeats and questions, which only add cells.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path
from typing import Any

from mink_local import __version__
from mink_local.errors import RunError
from mink_local.evals.run.records import MANIFEST, QUESTIONS, Store
from mink_local.evals.tasks.base import Question
from mink_local.models.gguf import shards
from mink_local.models.trust import sha256_of

FORMAT = 1


def file_sha256(path: Path) -> str:
    """Of a file's content; of a GGUF model that is split in several, of all their SHA-256."""
    try:
        sums = [sha256_of(part) for part in shards(path)]
    except OSError as error:
        raise RunError(f"{path} cannot be read: {error.strerror}") from None
    return sums[0] if len(sums) == 1 else hashlib.sha256("".join(sums).encode()).hexdigest()


def versions() -> dict[str, str]:
    from llama_cpp import llama_cpp

    return {
        "mink-local": __version__,
        "llama-cpp-python": version("llama-cpp-python"),
        "llama.cpp": llama_cpp.llama_version().decode(),
    }


class Manifest:
    """The manifest of a folder, made to agree with what is asked for now.

    questions: by task; they are kept, so that scoring and the report need neither data nor model.
    wanted: "seed" and "ctx"; "models", by name: their "path" and "sha256"; "tasks", by name: their "data",
    "data_sha256" and "max_tokens". Raises RunError, which names everything that differs, where the folder
    was begun otherwise.
    """

    def __init__(
        self, store: Store, wanted: Mapping[str, Any], questions: Mapping[str, Sequence[Question]]
    ) -> None:
        self._store = store
        wanted = {"format": FORMAT, "versions": versions(), **wanted}
        self._content = self._read() or {**wanted, "sessions": []}
        with self._damage_told(MANIFEST):
            self._refuse(list(_differences(self._content, wanted)))
            for kind in ("models", "tasks"):
                self._content[kind] = wanted[kind] | self._content[kind]
        self._keep(questions)
        self._write()

    def begin_session(self, model: str, template_sha256: str, session: Mapping[str, Any]) -> None:
        """Note under what circumstances a model goes on. Raises RunError where its template is another."""
        entry = self._content["models"][model]
        if entry.setdefault("template_sha256", template_sha256) != template_sha256:
            self._refuse([f"the chat template of {model} is another"])
        started = datetime.now(timezone.utc).isoformat(timespec="seconds")
        self._content["sessions"].append({"started": started, "model": model, **session})
        self._write()

    def _keep(self, questions: Mapping[str, Sequence[Question]]) -> None:
        with self._damage_told(QUESTIONS):
            lines = map(json.loads, (self._store.read(QUESTIONS) or "").splitlines())
            known = {(line["task"], line["question_id"]): line for line in lines}
        before = len(known)
        for task, of_task in questions.items():
            for question in of_task:
                line = _line(task, question)
                if known.setdefault((task, question.id), line) != line:
                    self._refuse([f"question {question.id} of {task} has another text or answer"])
        if len(known) > before:
            self._store.write(QUESTIONS, "".join(json.dumps(line) + "\n" for line in known.values()))

    def _read(self) -> dict[str, Any] | None:
        text = self._store.read(MANIFEST)
        if text is None:
            return None
        with self._damage_told(MANIFEST):
            content: dict[str, Any] = json.loads(text)
            if content["format"] == FORMAT:
                return content
        raise RunError(f"{self._store.folder} is of another version of mink-eval: name another --out")

    def _write(self) -> None:
        self._store.write(MANIFEST, json.dumps(self._content, indent=1) + "\n")

    @contextmanager
    def _damage_told(self, name: str) -> Iterator[None]:
        try:
            yield
        except (ValueError, KeyError, TypeError, AttributeError):
            raise RunError(f"{self._store.folder / name} is damaged: name another --out") from None

    def _refuse(self, differences: Sequence[str]) -> None:
        if differences:
            raise RunError(
                f"{self._store.folder} was begun otherwise: {'; '.join(differences)}. "
                "Give what it was begun with, or name another folder with --out"
            )


def _differences(then: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    """What of `now` cannot stand beside records that were made under `then`."""
    for option in ("seed", "ctx"):
        if then[option] != now[option]:
            yield f"--{option} was {_given(then[option])} and is {_given(now[option])}"
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


def _given(value: int | None) -> str:
    return "not given" if value is None else str(value)


def _line(task: str, question: Question) -> dict[str, Any]:
    return {
        "task": task,
        "question_id": question.id,
        "prompt": question.prompt,
        "gold": question.gold,
        "choices": list(question.choices),
        "order": list(question.order),
    }
