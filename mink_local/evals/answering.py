"""Who answers: a GGUF file here or on the machines of a `cluster`, or a model behind one of `addresses`.

`mink-eval run` and `mink-eval judge` ask both in the same way. k, log-probabilities and the options of
placement are a file's alone.
"""

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import date
from functools import cached_property
from itertools import groupby, takewhile
from pathlib import Path
from typing import Any, Literal, NamedTuple

from mink_local.errors import MinkError, RunError
from mink_local.evals.store import Store
from mink_local.files import sha256_of
from mink_local.generation.loading import load_model
from mink_local.generation.model import Model
from mink_local.generation.request import EndLoops, Prompt, Request, SamplingParams
from mink_local.models import trust
from mink_local.models.catalog import ModelFile, resolve
from mink_local.models.gguf import shards
from mink_local.samplers import Sampler

# The date given to chat templates that use one, so that prompts are the same tomorrow: the default in
# LLaMA-3's template.
DATE = date(2024, 7, 26)


def file_sha256(path: Path) -> str:
    """Return a file's SHA-256; for a split GGUF model, that of all parts' SHA-256. Raises RunError."""
    return joint_sha256(shards(path))


def joint_sha256(paths: Iterable[Path]) -> str:
    """Return the SHA-256 of a file, or that of several files' SHA-256. Raises RunError."""
    try:
        sums = [sha256_of(path) for path in paths]
    except OSError as error:
        raise RunError(f"{error.filename} cannot be read: {error.strerror or error}") from None
    return sums[0] if len(sums) == 1 else hashlib.sha256("".join(sums).encode()).hexdigest()


def with_reasoning(reasoning: str, content: str) -> str:
    """Return an answer as it is recorded: after its reasoning, in the same tags whatever the model's are.

    They are there, too, if the prompt opened the reasoning; where nothing follows, they stay open.
    """
    if not reasoning:
        return content
    return f"<think>\n{reasoning}" + (f"\n</think>\n\n{content}" if content else "")


_ON_CPU = 8  # answers at a time: about as fast as 32 there, and an interrupt loses fewer
_CTX_STEP = 256  # llama.cpp rounds context lengths to multiples of this


class ModelSession(NamedTuple):
    """What is known once requests can be answered.

    Attributes:
        template_sha256: Of the chat template with its variables; None if it is a server's own.
        environment: Settings that affect nothing but the last bits of llama.cpp's sums.
    """

    template_sha256: str | None
    environment: Mapping[str, Any]

    def record(self, store: Store[Any], role: str, name: str) -> None:
        """Record the session of a "model" or "judge". Raises RunError if its template has changed."""
        if self.template_sha256:
            store.agree({f"{role}s": {name: {"template_sha256": self.template_sha256}}}, learned=True)
        store.begin_session(**{role: name}, **self.environment)


@dataclass(frozen=True)
class Answered:
    """What was answered to a request.

    Attributes:
        index: Index of the request.
        text: The answer after its reasoning; see `with_reasoning`.
        finish_reason: "stop", "length", "repetition" (a loop), "overflow" (the prompt does not fit into the
            context), "refused" (the server answers other prompts) or "error".
        n_tokens: Length of the answer in tokens; from an address, as the server counts, or None.
        k: Number of candidates at every step; empty from an address.
        reasoning_cut: Whether the reasoning was made to end; an address does not say.
        seconds: Time from getting a slot, or sending the request, to the end.
        error: Why there is no answer, if it was refused or failed.
        n_reasoning: How many of the tokens are reasoning; None if a server does not say.
    """

    index: int
    text: str
    finish_reason: str
    n_tokens: int | None = 0
    prompt_tokens: int = 0
    k: Sequence[int] = ()
    reasoning_cut: bool = False
    seconds: float = 0.0
    error: str = ""
    n_reasoning: int | None = None


class Answerer(ABC):
    """Answers requests.

    Attributes:
        interrupted: True after `interrupt`.
    """

    interrupted = False

    @property
    @abstractmethod
    def name(self) -> str:
        """Its name in records."""

    @property
    @abstractmethod
    def facts(self) -> Mapping[str, Any]:
        """What the manifest records about it."""

    @abstractmethod
    def check(
        self, samplers: Sequence[Sampler], reasoning_budget: int | None, end_loops: EndLoops = "none"
    ) -> None:
        """Raise MinkError if it cannot answer, or would ignore a sampler or an option in silence."""

    @abstractmethod
    def answers(
        self, requests: Sequence[Request], room: Iterable[Request]
    ) -> Generator[Answered | ModelSession, None, None]:
        """Yield answers in order of completion, and every new session before its answers.

        Args:
            requests: What to answer.
            room: Requests that determine the context length, so that it is the same however few are left to
                answer; none of `requests` is longer.

        Raises:
            MinkError: The model cannot be loaded, or its server fails.
        """

    def unfinished(self) -> list[int]:
        """Return the lengths so far, in tokens, of the answers that are being generated, as far as known."""
        return []

    def interrupt(self) -> None:
        """Make `answers` end soon; may be called from a signal handler."""
        self.interrupted = True

    def close(self) -> None:  # noqa: B027  # most hold nothing
        """Free what it holds."""


@dataclass(eq=False)
class FileAnswerer(Answerer):
    """A GGUF model, loaded when needed.

    Args:
        file: The file. On another machine, it is found by its alias if `models.txt` has its SHA-256, or else
            by its path.
        ctx: Maximum tokens of prompt plus answer; None uses the model's training context.
        n_parallel: Number of answers at a time; a single one is answered as if it were the only request, at
            the cost of evaluating its prompt twice.
        sha256: SHA-256 that the file must have, for machines that may have a different one.
        placement: Options of `load_model`.
    """

    file: ModelFile
    ctx: int | None = None
    n_parallel: int | Literal["auto"] = "auto"
    sha256: str | None = None
    placement: Mapping[str, Any] = field(default_factory=dict)
    _n_ctx: int = field(default=0, init=False)

    @property
    def name(self) -> str:
        return self.file.name

    @property
    def facts(self) -> Mapping[str, Any]:
        return {"path": str(self.file.path), "sha256": file_sha256(self.file.path)}

    def check(self, *_: object) -> None:
        trust.check(self.file)

    @cached_property
    def model(self) -> Model:
        """The model. Raises RunError if this machine has a different file for it."""
        name = self.file.name if self.file.sha256 else str(self.file.path)
        if self.sha256 and file_sha256(resolve(name).path) != self.sha256:
            raise RunError(f"{name} must be the same file on every machine of the cluster")
        return load_model(name, n_ctx=_CTX_STEP, date=DATE, **self.placement)

    def _make_room(self, room: Iterable[Request]) -> ModelSession | None:
        """Make room for the longest of some requests; return None if nothing has changed."""
        longest = max(
            len(self.model.prompt_tokens(request.prompt, request.enable_thinking))
            + (request.params.max_tokens or 0)
            for request in room
        )
        n_ctx = -(-longest // _CTX_STEP) * _CTX_STEP
        n_ctx = min(n_ctx, self.ctx or n_ctx, self.model.weights.n_ctx_train)
        if n_ctx == self._n_ctx:
            return None
        n = self.n_parallel
        if n == "auto" and not self.model.placement.n_gpu_layers:
            n = _ON_CPU
        self.model.reserve(n_ctx, n)
        self._n_ctx = n_ctx
        return self._session()

    def _session(self) -> ModelSession:
        environment = {
            "executor": "ray" if self.sha256 else "local",
            "placement": self.model.placement.where,
            "n_parallel": self.model.n_parallel,
            "n_ctx_seq": self._n_ctx,
        }
        template = self.model.chat_template or ""
        for option in ("template_kwargs", "reasoning_marks"):  # they change answers as another template does
            if value := self.placement.get(option):
                template += json.dumps(value, sort_keys=True)
        return ModelSession(hashlib.sha256(template.encode()).hexdigest(), environment)

    def answers(
        self, requests: Sequence[Request], room: Iterable[Request]
    ) -> Generator[Answered | ModelSession, None, None]:
        if session := self._make_room(room):
            self._warm_up(requests)
            yield session
        numbered = list(enumerate(requests))
        alone = self.model.n_parallel == 1  # then an answer must depend on nothing but its own request
        for _, group in groupby(numbered, lambda one: one[1].prompt if alone else None):
            members = list(group)
            if self.interrupted:
                return
            if alone:
                self._prefill(members[0][1].prompt)
            wanted = takewhile(lambda _: not self.interrupted, (request for _, request in members))
            for answer in self.model.answer_all(wanted):
                if answer.finish_reason != "interrupted":
                    yield Answered(
                        members[answer.index][0],
                        with_reasoning(answer.reasoning, answer.content),
                        str(answer.finish_reason),
                        answer.n_tokens,
                        answer.prompt_tokens,
                        [int(k) for k in answer.k],
                        answer.reasoning_cut,
                        answer.seconds,
                        str(answer.error or ""),
                        answer.n_reasoning,
                    )

    def _warm_up(self, requests: Sequence[Request]) -> None:
        """Do what is done once, before answers are timed: compile samplers, evaluate what prompts share."""
        each = {request.params.sampler: request.params for request in requests}
        wanted = (Request(requests[0].prompt, replace(one, max_tokens=1)) for one in each.values())
        list(self.model.answer_all(takewhile(lambda _: not self.interrupted, wanted)))

    def _prefill(self, prompt: Prompt) -> None:
        """Evaluate a prompt in an empty cache, for an answer that is thrown away.

        llama.cpp's sums are not batch-invariant. For the answers that count, only the prompt's last token is
        then evaluated again, wherever a run was interrupted.
        """
        self.model.forget()
        list(self.model.answer_all([Request(prompt, SamplingParams(temperature=0, max_tokens=1))]))

    def unfinished(self) -> list[int]:
        model: Model | None = vars(self).get("model")  # reading the property would load it
        with suppress(MinkError):  # it has just been closed by another thread
            slots = model.core.engine.slots if model else []
            return [slot.job.answer.n_tokens for slot in slots if slot.job]
        return []

    def interrupt(self) -> None:
        super().interrupt()
        if "model" in vars(self):  # reading the property would load it
            self.model.interrupt()

    def close(self) -> None:
        if model := vars(self).pop("model", None):
            model.close()
