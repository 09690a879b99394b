"""One answer from a running mink-serve, instead of from a model that has to be loaded first.

What an answer needs is imported after its request was sent.
"""

import json
import math
import os
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from functools import partial
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import click

from mink_local.chat.attachments import before_message, fenced
from mink_local.chat.settings import MIN_K, SETTINGS, Settings
from mink_local.errors import MinkError
from mink_local.llama.constants import RANDOM_SEED

if TYPE_CHECKING:
    from mink_local.chat.conversation.store import StoredMessage
    from mink_local.generation.answer import Piece

_SECONDS = 10  # in which the server has to accept a connection
_SAME_NAME = (
    "max_tokens", "reasoning_budget", "repeat_penalty", "frequency_penalty", "presence_penalty",
    "dry_multiplier", "grammar",
)  # settings that are fields of a request  # fmt: skip


def answer(ctx: click.Context, url: str, prompt: str, files: tuple[Path, ...], as_json: bool) -> int:
    """Print the answer to a prompt, or a JSON object of all that is known of it; return the exit status.

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
        from mink_local.chat.conversation.store import SamplingInfo, StoredMessage
        from mink_local.chat.terminal.progress import print_answer
        from mink_local.chat.terminal.screen import Screen

        screen = Screen(settings["plain"], settings["thoughts"])
        sampler = str(settings.sampler) if as_json else ""  # imports the samplers
        message = StoredMessage(
            "assistant", parts=[SamplingInfo("", sampler, settings["temp"], request["seed"])]
        )
        response = _response(connection, url)
        if ignored := response.getheader("x-mink-ignored"):
            screen.note(f"(this server ignores {ignored.replace(',', ', ')})")
        pieces = partial(_pieces, response, message, settings["loop_guard"])
        return print_answer(screen, message, pieces, settings, as_json)


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
        message = _error_message(response.read())
    except (OSError, HTTPException) as failure:
        raise MinkError(f"MINK_URL={url} does not answer like mink-serve: {failure}") from None
    if message:
        raise MinkError(f"{url}: {message}")
    place = response.getheader("location")
    to = f", which leads to {place}" if place else ""
    raise MinkError(f"MINK_URL={url} does not answer like mink-serve: status {response.status}{to}")


def _error_message(body: bytes) -> str:
    """Return the message in the body of an error, "" if there is none."""
    try:
        error = json.loads(body)
    except ValueError:
        return ""
    for key in ("error", "message"):
        error = error.get(key) if isinstance(error, dict) else error
    return error if isinstance(error, str) else ""


def _pieces(
    response: HTTPResponse, message: "StoredMessage", has_guard: bool, _: Callable[[int], None]
) -> "Iterator[Piece]":
    """Yield the pieces of an answer from a stream of server-sent events, until Ctrl-C.

    Args:
        message: The answer, which the pieces are added to.
        has_guard: End an answer that repeats itself.

    Raises:
        MinkError: The server ends it early.
    """
    began, guard = time.perf_counter(), None
    try:
        for chunk in _chunks(response):
            message.first_token_s = message.first_token_s or time.perf_counter() - began
            n_before = len(message.tokens)
            try:
                piece = _added(message, chunk)
            except (AttributeError, TypeError):
                raise MinkError("the server does not answer like mink-serve") from None
            yield piece
            if has_guard:
                from mink_local.chat.conversation.loop_guard import LoopGuard  # imports NumPy

                guard = guard or LoopGuard()
                for at in range(n_before, len(message.tokens)):
                    guard.feed(message.tokens[at], piece if at == len(message.tokens) - 1 else "")
                if guard.since is not None:
                    message.finish_reason = "repetition"
                    message.repeated, message.repeats_since = guard.repeated, guard.since
                    break
    except KeyboardInterrupt:
        message.finish_reason = "interrupted"
    message.seconds = time.perf_counter() - began
    if message.finish_reason is None:
        raise MinkError("the server ended the answer early")


def _chunks(response: HTTPResponse) -> Iterator[dict[str, Any]]:
    """Yield the chunks of a stream. Raises MinkError for one that is an error."""
    try:
        for line in response:
            data = line.removeprefix(b"data:").strip()
            if data != line.strip() and data.startswith(b"{"):
                chunk = json.loads(data)
                if chunk.get("error"):
                    raise MinkError(_error_message(data) or "the server failed")
                yield chunk
    except (OSError, HTTPException, ValueError) as error:
        raise MinkError(f"the server ended the answer early: {error}") from None


def _added(message: "StoredMessage", chunk: dict[str, Any]) -> "Piece":
    """Add a chunk to an answer; return its text."""
    from mink_local.generation.answer import Piece

    reasoning = content = ""
    message.parts = [replace(message.parts[0], model=chunk.get("model") or "")]
    if usage := chunk.get("usage"):
        message.prompt_tokens = usage.get("prompt_tokens") or 0
        cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
        message.evaluated_tokens = message.prompt_tokens - cached
    for choice in chunk.get("choices") or []:
        message.tokens += choice.get("tokens") or []
        message.k += choice.get("k") or []
        message.finish_reason = choice.get("finish_reason") or message.finish_reason
        delta = choice.get("delta") or {}
        reasoning += delta.get("reasoning_content") or ""
        content += delta.get("content") or ""
    message.add(reasoning, content)
    piece = Piece(reasoning + content)
    piece.reasoning, piece.content = reasoning, content
    return piece
