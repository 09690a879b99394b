"""POST /v1/completions."""

import secrets
from collections.abc import Iterator, Sequence
from itertools import accumulate

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from mink_local.generation.answer import Answer, TopLogprobs
from mink_local.generation.request import Request
from mink_local.serve.answers import Json, usage_of
from mink_local.serve.chat import ignored_header, with_seeds
from mink_local.serve.engine_thread import Event, EventStream
from mink_local.serve.protocol import CompletionRequest, parse
from mink_local.serve.respond import respond
from mink_local.serve.sampling import sampling_params
from mink_local.serve.service import Service
from mink_local.serve.tokens import finite, token_text


async def create_completion(http: HttpRequest) -> Response:
    """Continue texts or token ids, each `n` times."""
    service: Service = http.app.state.service
    asked, unknown = parse(await http.body(), CompletionRequest)
    preset = service.presets.find(asked.model)
    params, ignored = sampling_params(asked, preset, service.limits)
    n = asked.n or 1
    requests = [request for prompt in asked.prompts() for request in with_seeds(Request(prompt, params), n)]
    return await respond(
        http,
        service,
        requests,
        lambda events: _CompletionBody(service, asked, preset.model_id, events),
        is_stream=bool(asked.stream),
        headers=ignored_header([*ignored, *unknown]),
    )


class _CompletionChoice:
    """Collects text, tokens and log-probabilities of a choice until they are taken."""

    def __init__(self, index: int, asked: CompletionRequest) -> None:
        self._index = index
        self._asked = asked
        self._length = 0  # of the tokens taken so far, in characters
        self._clear()

    def add_token(self, text: str, logprob: float | None, top: Json | None) -> None:
        """Add a token of the prompt or the answer; the first of a prompt has no log-probability."""
        self._token_texts.append(text)
        self._token_logprobs.append(None if logprob is None else finite(logprob))
        self._top_logprobs.append(top)

    def take(self, finish_reason: str | None = None) -> Json:
        """Return an entry of `choices` with what was collected, and begin anew."""
        entry: Json = {"index": self._index, "text": self.text, "finish_reason": finish_reason, "k": self.k}
        entry["logprobs"] = None if self._asked.logprobs is None else self._logprobs()
        if self._asked.return_tokens:
            entry["tokens"] = self.tokens
        self._clear()
        return entry

    def _clear(self) -> None:
        self.text = ""
        self.k: list[int] = []
        self.tokens: list[int] = []
        self._token_texts: list[str] = []
        self._token_logprobs: list[float | None] = []
        self._top_logprobs: list[Json | None] = []

    def _logprobs(self) -> Json:
        *offsets, self._length = accumulate(map(len, self._token_texts), initial=self._length)
        return {
            "tokens": self._token_texts,
            "token_logprobs": self._token_logprobs,
            "top_logprobs": self._top_logprobs,
            "text_offset": offsets,
        }


class _CompletionBody:
    """Makes the chunks of a completion, or the whole of it."""

    def __init__(
        self, service: Service, asked: CompletionRequest, model_id: str, events: EventStream
    ) -> None:
        self._model = service.model
        self._asked = asked
        self._choices = {
            decoding.answer: _CompletionChoice(i, asked) for i, decoding in enumerate(events.decodings)
        }
        self._prompts = (
            {decoding.answer: decoding.prompt for decoding in events.decodings} if asked.echo else {}
        )
        self._only_echo = bool(asked.echo) and asked.token_limit == 0
        self._finish_reasons: dict[Answer, str] = {}
        self._head = {
            "id": f"cmpl-{secrets.token_hex(12)}",
            "object": "text_completion",
            "created": service.now(),
            "model": model_id,
            "system_fingerprint": service.fingerprint,
        }

    def chunks(self, event: Event) -> Iterator[Json]:
        """Take an event; yield what a stream says of it."""
        choice = self._choices[event.answer]
        if (prompt := self._prompts.pop(event.answer, None)) is not None:
            self._add_prompt(choice, event.answer, prompt)
        if not self._only_echo:
            self._add_piece(choice, event)
        if event.finish_reason is not None:
            self._finish_reasons[event.answer] = event.finish_reason
        if self._asked.stream:
            yield {**self._head, "choices": [choice.take(event.finish_reason)]}

    def usage(self) -> Json:
        """Return OpenAI's `usage`."""
        answers, n = list(self._choices), self._asked.n or 1
        return usage_of([answers[i : i + n] for i in range(0, len(answers), n)])

    def last_chunks(self, usage: Json, timings: Json) -> Iterator[Json]:
        """Yield the chunk with the usage, if it is asked for."""
        if self._asked.include_usage:
            yield {**self._head, "choices": [], "usage": usage, "timings": timings}

    def whole(self, usage: Json, timings: Json) -> Json:
        """Return the whole completion."""
        choices = [choice.take(self._finish_reasons[answer]) for answer, choice in self._choices.items()]
        return {**self._head, "choices": choices, "usage": usage, "timings": timings}

    def _add_prompt(self, choice: _CompletionChoice, answer: Answer, prompt: Sequence[int]) -> None:
        choice.text += "".join(self._model.texts(prompt))
        if self._asked.logprobs is None:
            return
        tops = answer.prompt_top_logprobs
        for token, logprob, top in zip(prompt, answer.prompt_logprobs, tops, strict=True):
            self._add_token(choice, token, logprob, top)

    def _add_piece(self, choice: _CompletionChoice, event: Event) -> None:
        piece = event.piece
        choice.text += piece
        if piece.token is None:
            return
        if self._asked.logprobs is not None:  # also of the end: lm-eval takes the last for what is generated
            self._add_token(choice, piece.token, piece.logprob, piece.top_logprobs)
        if not event.is_end_token:
            choice.k.append(piece.k)
            choice.tokens.append(piece.token)

    def _add_token(
        self, choice: _CompletionChoice, token: int, logprob: float | None, top: TopLogprobs
    ) -> None:
        """Add a token with the most probable ones of its step, itself among them."""
        text = token_text(self._model, token)
        texts = {token_text(self._model, other): finite(value) for other, value in top}
        choice.add_token(
            text, logprob, {text: finite(logprob), **texts} if logprob is not None and top else None
        )
