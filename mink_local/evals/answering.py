"""Who answers: a GGUF file in this process or in one of Ray's, or a model behind an address; see `addresses`.

`mink-eval run` and `mink-eval judge` ask both in the same way. k, log-probabilities and the options of
placement are a file's alone.
"""

import hashlib
import json
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import date
from functools import cached_property
from itertools import groupby, takewhile
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

from mink_local.errors import MinkError, RunError
from mink_local.files import sha256_of
from mink_local.generation.loading import load_model
from mink_local.generation.model import Model
from mink_local.generation.request import Prompt, Request, SamplingParams
from mink_local.models.catalog import resolve
from mink_local.models.gguf import shards

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


def template_sha256(options: Mapping[str, Any]) -> str | None:
    """Return the SHA-256 of the chat template among options of `load_model`; None for the model's own."""
    template = options.get("chat_template")
    return None if template is None else hashlib.sha256(template.encode()).hexdigest()


NO_TEMPLATE = hashlib.sha256(b"").hexdigest()  # the `template_sha256` of a model without a chat template
_ON_CPU = 8  # answers at a time: about as fast as 32 there, and an interrupt loses fewer
_CTX_STEP = 256  # llama.cpp rounds context lengths to multiples of this


class Prepared(NamedTuple):
    """What is known once requests can be answered.

    Attributes:
        template_sha256: Of the chat template with its variables; None if it is a server's own.
        environment: Settings that affect nothing but the last bits of llama.cpp's sums.
    """

    template_sha256: str | None
    environment: Mapping[str, Any]


@dataclass(frozen=True)
class Answered:
    """What was answered to a request.

    Attributes:
        index: Index of the request.
        finish_reason: "stop", "length", "overflow" (the prompt does not fit into the context), "refused" (the
            server answers other prompts) or "error".
        n_tokens: Length of the answer in tokens; from an address, as the server counts.
        k: Number of candidates at every step; empty from an address.
        reasoning_cut: Whether the reasoning was ended by its budget; an address does not say.
        seconds: Time from getting a slot, or sending the request, to the end.
        error: Why there is no answer, if it was refused or failed.
    """

    index: int
    text: str
    finish_reason: str
    n_tokens: int = 0
    prompt_tokens: int = 0
    k: Sequence[int] = ()
    reasoning_cut: bool = False
    seconds: float = 0.0
    error: str = ""


class Answerer(Protocol):
    """Answers requests."""

    @property
    def name(self) -> str:
        """Its name in records."""

    @property
    def facts(self) -> Mapping[str, Any]:
        """What the manifest records about it."""

    def prepare(self, requests: Iterable[Request]) -> Prepared | None:
        """Make room for the longest of some requests; return None if nothing has changed. Raises MinkError.

        All later requests must be among them, or no longer.
        """

    def answers(self, requests: Sequence[Request]) -> Generator[Answered, None, None]:
        """Yield answers in order of completion. Raises MinkError."""

    def unfinished(self) -> list[int]:
        """Return the lengths so far, in tokens, of the answers that are being generated, as far as known."""

    def interrupt(self) -> None:
        """Make `answers` end soon; may be called from a signal handler."""

    def close(self) -> None:
        """Free what it holds."""


@dataclass(eq=False)
class FileAnswerer:
    """A GGUF model, loaded when needed.

    Args:
        file: Its name on any machine: an alias or a path.
        ctx: Maximum tokens of prompt plus answer; None uses the model's training context.
        n_parallel: Number of answers at a time.
        repeatable: Whether an answer given alone must depend on nothing but its own request, at the cost of
            evaluating its prompt twice.
        sha256: SHA-256 that the file must have, for machines that may have a different one.
        placement: Options of `load_model`.
    """

    file: str
    ctx: int | None = None
    n_parallel: int | Literal["auto"] = "auto"
    repeatable: bool = False
    sha256: str | None = None
    placement: Mapping[str, Any] = field(default_factory=dict)
    _interrupted: bool = field(default=False, init=False)
    _n_ctx: int = field(default=0, init=False)

    @cached_property
    def name(self) -> str:
        return resolve(self.file).name

    @cached_property
    def facts(self) -> Mapping[str, Any]:
        sha256 = file_sha256(resolve(self.file).path)
        return {"sha256": sha256, "template_sha256": template_sha256(self.placement)}

    @cached_property
    def model(self) -> Model:
        """The model. Raises RunError if this machine has a different file for it."""
        if self.sha256 and file_sha256(resolve(self.file).path) != self.sha256:
            raise RunError(f"{self.file} must be the same file on every machine of the cluster")
        return load_model(self.file, n_ctx=_CTX_STEP, date=DATE, **self.placement)

    def prepare(self, requests: Iterable[Request]) -> Prepared | None:
        longest = max(
            len(self.model.prompt_tokens(request.prompt, request.enable_thinking))
            + (request.params.max_tokens or 0)
            for request in requests
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

    def _session(self) -> Prepared:
        environment = {
            "executor": "ray" if self.sha256 else "local",
            "placement": self.model.placement.where,
            "n_parallel": self.model.n_parallel,
            "n_ctx_seq": self._n_ctx,
        }
        template = self.model.chat_template or ""
        if kwargs := self.placement.get("template_kwargs"):  # they change prompts as another template does
            template += json.dumps(kwargs, sort_keys=True)
        return Prepared(hashlib.sha256(template.encode()).hexdigest(), environment)

    def answers(self, requests: Sequence[Request]) -> Generator[Answered, None, None]:
        alone = self.repeatable and self.model.n_parallel == 1
        for first, group in _by_prompt(requests) if alone else [(0, requests)]:
            if self._interrupted:
                return
            if alone:
                self._prefill(group[0].prompt)
            for answer in self.model.answer_all(takewhile(lambda _: not self._interrupted, group)):
                if answer.finish_reason != "interrupted":
                    yield Answered(
                        first + answer.index,
                        answer.text,
                        str(answer.finish_reason),
                        answer.n_tokens,
                        answer.prompt_tokens,
                        [int(k) for k in answer.k],
                        answer.reasoning_cut,
                        answer.seconds,
                        str(answer.error or ""),
                    )

    def _prefill(self, prompt: Prompt) -> None:
        """Evaluate a prompt in an empty cache, for an answer that is thrown away.

        llama.cpp's sums are not batch-invariant. For the answers that count, only the prompt's last token is
        then evaluated again, wherever a run was interrupted.
        """
        self.model.forget()
        list(self.model.answer_all([Request(prompt, SamplingParams(temperature=0, max_tokens=1))]))

    def unfinished(self) -> list[int]:
        model: Model | None = vars(self).get("model")  # reading the property would load it
        if model is None:
            return []
        with suppress(MinkError):  # it has just been closed by another thread
            jobs = [slot.job or () for slot in model.core.engine.slots]
            return [decoding.answer.n_tokens for job in jobs for decoding in job]
        return []

    def interrupt(self) -> None:
        self._interrupted = True
        if "model" in vars(self):  # reading the property would load it
            self.model.interrupt()

    def close(self) -> None:
        if model := vars(self).pop("model", None):
            model.close()


def _by_prompt(requests: Sequence[Request]) -> Iterator[tuple[int, Sequence[Request]]]:
    """Yield runs of requests with the same prompt, each with the index of its first one."""
    first = 0
    for _, members in groupby(requests, lambda request: request.prompt):
        group = list(members)
        yield first, group
        first += len(group)
