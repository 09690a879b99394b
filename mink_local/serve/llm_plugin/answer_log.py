"""Chunks of a chat completion as `llm` shows and logs them."""

import json
from collections.abc import Iterator
from statistics import median
from typing import Any

import llm
from llm.models import AsyncResponse
from llm.parts import StreamEvent

from mink_local.errors import GenerationError


class AnswerLog:
    """Makes the events of an answer from the chunks of a chat completion, and logs it at its end.

    Args:
        model_id: Name of the model, with the server's preset if there is one.
        seed: The seed of the answer.
        server: URL of the server, None if there is none.
    """

    def __init__(self, model_id: str, seed: int, server: str | None = None) -> None:
        self._model_id, self._seed, self._server = model_id, seed, server
        self._finish_reason: str | None = None
        self._k: list[int] = []
        self._usage: dict[str, Any] = {}
        self._calls: list[dict[str, str]] = []

    def events(self, chunk: dict[str, Any]) -> Iterator[StreamEvent]:
        """Yield the events of a chunk."""
        self._usage = chunk.get("usage") or self._usage
        for choice in chunk["choices"]:
            self._finish_reason = choice.get("finish_reason") or self._finish_reason
            self._k += choice.get("k") or ()
            delta = choice["delta"]
            if reasoning := delta.get("reasoning_content"):
                yield StreamEvent("reasoning", reasoning)
            if text := delta.get("content"):
                yield StreamEvent("text", text)
            for call in delta.get("tool_calls") or ():
                yield from self._call_events(call)

    def _call_events(self, delta: dict[str, Any]) -> Iterator[StreamEvent]:
        function = delta["function"]
        if delta.get("id"):
            self._calls.append({"id": delta["id"], "name": function["name"], "arguments": ""})
            yield StreamEvent("tool_call_name", function["name"], tool_call_id=delta["id"])
        call = self._calls[-1]
        if arguments := function.get("arguments"):
            call["arguments"] += arguments
            yield StreamEvent("tool_call_args", arguments, tool_call_id=call["id"])

    def finish(self, response: llm.Response | AsyncResponse) -> None:
        """Give a response its usage, its calls of tools, and what is logged as its JSON.

        Raises:
            GenerationError: The answer was cut off.
        """
        if self._finish_reason is None:
            raise GenerationError("the answer was cut off: mink-serve closed the connection")
        for call in self._calls:
            response.add_tool_call(_tool_call(call))
        details: dict[str, Any] = {}
        for group in ("prompt_tokens_details", "completion_tokens_details"):
            details |= {name: number for name, number in (self._usage.get(group) or {}).items() if number}
        if self._k:
            details["median_k"] = median(self._k)
        response.set_usage(
            input=self._usage.get("prompt_tokens"),
            output=self._usage.get("completion_tokens"),
            details=details or None,
        )
        response.set_resolved_model(self._model_id)
        response.response_json = {
            "model": self._model_id,
            "server": self._server,
            "finish_reason": self._finish_reason,
            "seed": self._seed,
            "k": self._k,
        }


def _tool_call(call: dict[str, str]) -> llm.ToolCall:
    try:
        arguments = json.loads(call["arguments"] or "{}")
    except json.JSONDecodeError:
        raise GenerationError(
            f"the arguments of a call of {call['name']} are cut off: allow more tokens (max_tokens, n_ctx)"
        ) from None
    return llm.ToolCall(tool_call_id=call["id"], name=call["name"], arguments=arguments)
