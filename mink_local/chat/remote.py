"""One answer from a running mink-serve, instead of from a model that has to be loaded first.

What an answer needs is imported after its request was sent.
"""

import json
import math
import os
import secrets
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import click

from mink_local.chat.attachments import before_message, fenced
from mink_local.chat.settings import MIN_K, SETTINGS, Settings
from mink_local.cli import INTERRUPTED
from mink_local.errors import MinkError
from mink_local.llama.constants import RANDOM_SEED

if TYPE_CHECKING:
    from mink_local.chat.conversation.loop_guard import LoopGuard
    from mink_local.generation.text import TextPart

_SECONDS = 10  # in which the server has to accept a connection
_SAME_NAME = (
    "max_tokens", "reasoning_budget", "repeat_penalty", "frequency_penalty", "presence_penalty",
    "dry_multiplier", "grammar",
)  # settings that are fields of a request  # fmt: skip


def answer(ctx: click.Context, url: str, prompt: str, files: tuple[Path, ...], as_json: bool) -> None:
    """Print the answer to a prompt, or a JSON object of all that is known of it.

    Args:
        ctx: The context of the command.
        url: Where mink-serve is.
        prompt: The message.
        files: Text files for the message.
        as_json: Print JSON.

    Raises:
        MinkError: The server does not answer, or refuses the request.
        click.UsageError: Settings do not fit together, or are for a model that is loaded here.
    """
    settings = Settings(ctx)
    settings.check(is_new=settings.given)
    for setting in SETTINGS:
        if setting.reloads and setting.name != "model" and settings.given(setting.name):
            raise click.UsageError(f"--{setting.key} is for a model that is loaded here: unset MINK_URL.")
    request = _request(settings, prompt, files)
    with closing(_sent(url, request)) as connection:
        # While the server evaluates the prompt:
        from mink_local.chat.conversation.export import answer_as_json
        from mink_local.chat.conversation.store import SamplingInfo
        from mink_local.chat.terminal.progress import AGAINST_LOOPS, note_end, show_answer
        from mink_local.chat.terminal.screen import Screen

        screen = Screen(settings["plain"], settings["thoughts"])
        reply = RemoteAnswer(_response(connection, url), settings["loop_guard"])
        if reply.ignored:
            screen.note(f"(this server ignores {reply.ignored})")
        if not as_json:
            show_answer(screen, reply)
            note_end(screen, reply, settings["max_tokens"], AGAINST_LOOPS)
        else:
            for _ in reply.parts():
                pass
            info = SamplingInfo(reply.model, str(settings.sampler), settings["temp"], request["seed"])
            reply.message.parts = [info]
            screen.write(answer_as_json(reply.message, f"by {url}"))
    if reply.message.finish_reason == "interrupted":
        sys.exit(INTERRUPTED)


def _request(settings: Settings, prompt: str, files: tuple[Path, ...]) -> dict[str, Any]:
    """Return the body of the request for an answer."""
    system = [{"role": "system", "content": settings["system"]}] if settings["system"] else []
    seed = settings["seed"]
    fields: dict[str, Any] = {
        "messages": [*system, {"role": "user", "content": before_message(map(fenced, files)) + prompt}],
        "stream": True,
        "stream_options": {"include_usage": True},
        "return_tokens": True,
        "temperature": settings["temp"],
        "seed": secrets.randbelow(RANDOM_SEED) if seed is None else seed,
        **{name: settings[name] for name in _SAME_NAME if settings[name] is not None},
    }
    if settings["sampler"] is None:  # `settings.sampler` would import the samplers
        options = {f"min_k_{name}": settings[name] for name in MIN_K if settings[name] is not None}
        fields |= {"min_k": True, **options}
    else:
        fields["sampler"] = str(settings.sampler)
    if settings.given("model"):
        fields["model"] = settings["model"]
    if settings["think"] is not None:
        fields["chat_template_kwargs"] = {"enable_thinking": settings["think"]}
    if settings["logit_bias"]:
        biases = [(token, False if bias == -math.inf else bias) for token, bias in settings["logit_bias"]]
        fields["logit_bias"] = biases
    if settings["json_schema"]:
        fields["json_schema"] = json.loads(settings["json_schema"])
    return fields


def _sent(url: str, request: dict[str, Any]) -> HTTPConnection:
    """Send a request with the key in MINK_API_KEY; return the connection that its response comes from.

    Raises:
        click.UsageError: It is not a URL.
        MinkError: The server cannot be reached.
    """
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        host = None
    if not host or parts.scheme not in ("http", "https"):
        raise click.UsageError(f"MINK_URL={url} is not a URL such as http://127.0.0.1:8080")
    kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
    connection = kind(host, port, timeout=_SECONDS)
    path = parts.path.rstrip("/").removesuffix("/v1") + "/v1/chat/completions"
    headers = {"Content-Type": "application/json"}
    if key := os.environ.get("MINK_API_KEY"):
        headers["Authorization"] = f"Bearer {key}"
    try:
        connection.request("POST", path, json.dumps(request), headers)
    except (OSError, HTTPException) as error:
        reason = getattr(error, "strerror", None) or error
        raise MinkError(f"MINK_URL={url}: {reason}: start mink-serve there, or unset MINK_URL") from None
    connection.sock.settimeout(None)  # a prompt may take long
    return connection


def _response(connection: HTTPConnection, url: str) -> HTTPResponse:
    """Return the response. Raises MinkError if it is an error."""
    try:
        response = connection.getresponse()
        if response.status == 200:
            return response
        error = json.loads(response.read()).get("error", {}).get("message", "")
    except (OSError, HTTPException, ValueError) as failure:
        raise MinkError(f"MINK_URL={url} does not answer like mink-serve: {failure}") from None
    raise MinkError(f"{url}: {error or f'status {response.status}'}")


class RemoteAnswer:
    """An answer as the server sends it; a `GrowingAnswer`.

    Args:
        response: A stream of server-sent events.
        has_guard: End an answer that repeats itself.

    Attributes:
        ignored: The fields of the request that have no effect, in words.
        model: The id of the server's model.
    """

    unread_tokens = 0  # of the prompt; the server does not tell

    def __init__(self, response: HTTPResponse, has_guard: bool) -> None:
        from mink_local.chat.conversation.store import StoredMessage

        self.message = StoredMessage("assistant")
        self.repeats_since: int | None = None
        self.ignored = (response.getheader("x-mink-ignored") or "").replace(",", ", ")
        self.model = ""
        self._response = response
        self._has_guard = has_guard
        self._guard: LoopGuard | None = None

    @property
    def n_new(self) -> int:
        """Number of tokens so far."""
        return len(self.message.tokens)

    def parts(self, _: Callable[[], None] = lambda: None) -> "Iterator[TextPart]":
        """Yield the parts of the answer, until Ctrl-C. Raises MinkError if the server ends it early."""
        began, message = time.perf_counter(), self.message
        try:
            for chunk in self._chunks():
                message.first_token_s = message.first_token_s or time.perf_counter() - began
                yield from self._added(chunk)
                if message.finish_reason == "repetition":
                    break
        except KeyboardInterrupt:
            message.finish_reason = "interrupted"
        message.seconds = time.perf_counter() - began
        if message.finish_reason is None:
            raise MinkError("the server ended the answer early")

    def _chunks(self) -> Iterator[dict[str, Any]]:
        """Yield the chunks of the stream. Raises MinkError for one that is an error."""
        try:
            for line in self._response:
                if line.startswith(b"data: {"):
                    chunk = json.loads(line.removeprefix(b"data: "))
                    if "error" in chunk:
                        raise MinkError(chunk["error"]["message"])
                    yield chunk
        except (OSError, HTTPException, ValueError) as error:
            raise MinkError(f"the server ended the answer early: {error}") from None

    def _added(self, chunk: dict[str, Any]) -> "Iterator[TextPart]":
        """Add a chunk to the message; yield its text."""
        from mink_local.generation.text import TextPart

        message, self.model = self.message, chunk["model"]
        if usage := chunk.get("usage"):
            message.prompt_tokens = usage["prompt_tokens"]
            cached = usage["prompt_tokens_details"]["cached_tokens"]
            message.evaluated_tokens = message.prompt_tokens - cached
        for choice in chunk["choices"]:
            tokens, delta = choice.get("tokens", []), choice["delta"]
            message.tokens += tokens
            message.k += choice.get("k", [])
            message.finish_reason = choice["finish_reason"]
            reasoning, content = delta.get("reasoning_content") or "", delta.get("content") or ""
            for part in (TextPart(reasoning, True), TextPart(content)):
                if part.text:
                    message.add(part.text, part.is_reasoning)
                    yield part
            self._watch(tokens, reasoning + content)

    def _watch(self, tokens: list[int], text: str) -> None:
        """End the answer if it repeats itself."""
        if not self._has_guard or not tokens:
            return
        if self._guard is None:
            from mink_local.chat.conversation.loop_guard import LoopGuard  # imports NumPy

            self._guard = LoopGuard()
        *others, last = tokens
        for token in others:
            self._guard.feed(token, "")
        if self._guard.feed(last, text):
            self.message.finish_reason = "repetition"
            self.message.repeated, self.repeats_since = self._guard.repeated, self._guard.since
