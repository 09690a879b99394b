"""Tokens for clients: their texts and log-probabilities, POST /tokenize, /detokenize, GET /tokenizer_info."""

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from mink_local.generation.answer import Piece
from mink_local.generation.model import Model
from mink_local.generation.request import SamplingParams
from mink_local.serve.answers import Json, engine_request
from mink_local.serve.api_errors import ApiError
from mink_local.serve.protocol import ChatRequest, DetokenizeRequest, TokenizeRequest, parse
from mink_local.serve.respond import json_response
from mink_local.serve.service import Service
from mink_local.serve.tools import plan_tools

MAX_CONTROL_TOKENS = 10_000  # in a text; llama.cpp's time grows with the square of their number
LEAST_LOGPROB = -9999.0  # in place of -inf, which JSON does not have


def finite(logprob: float) -> float:
    """Return a log-probability as a number that JSON has."""
    return max(logprob, LEAST_LOGPROB)


def token_text(model: Model, token: int) -> str:
    """Return the text of one token; bytes that are part of a character become U+FFFD."""
    return model.weights.piece(token).decode("utf-8", "replace")


def logprob_entry(model: Model, token: int, piece: Piece) -> Json:
    """Return an entry of a chat completion's `logprobs.content`."""
    assert piece.logprob is not None
    top = [_entry(model, other, logprob) for other, logprob in piece.top_logprobs]
    return {**_entry(model, token, piece.logprob), "top_logprobs": top}


def _entry(model: Model, token: int, logprob: float) -> Json:
    data = model.weights.piece(token)
    return {"token": data.decode("utf-8", "replace"), "logprob": finite(logprob), "bytes": list(data)}


async def tokenize(http: HttpRequest) -> Response:
    """Return the token ids of a text, by llama-server's or vLLM's names."""
    service: Service = http.app.state.service
    asked, _ = parse(await http.body(), TokenizeRequest)
    text = asked.prompt if asked.content is None else asked.content
    # vLLM adds the beginning of a text if it is not told otherwise, llama-server does not.
    default = asked.add_special_tokens is not False and asked.content is None
    add_special = default if asked.add_special is None else asked.add_special
    return json_response(await service.off_loop(_tokenized, service, text or "", add_special, asked))


def _tokenized(service: Service, text: str, add_special: bool, asked: TokenizeRequest) -> Json:
    if asked.parse_special and service.n_control_tokens(text) > MAX_CONTROL_TOKENS:
        raise ApiError(
            400,
            f"the text has more than {MAX_CONTROL_TOKENS} control tokens: shorten it, "
            "or send parse_special: false",
            param="content",
        )
    weights = service.model.weights
    tokens = weights.tokenize(text, add_special=add_special, parse_special=asked.parse_special)
    answer: Json = {"tokens": tokens, "count": len(tokens), "max_model_len": service.model.n_ctx}
    if asked.with_pieces:
        pieces = (weights.piece(token) for token in tokens)
        answer["tokens"] = [
            {"id": token, "piece": _text_or_bytes(piece)} for token, piece in zip(tokens, pieces, strict=True)
        ]
    return answer


async def detokenize(http: HttpRequest) -> Response:
    """Return the text of token ids, by llama-server's and vLLM's names."""
    service: Service = http.app.state.service
    asked, _ = parse(await http.body(), DetokenizeRequest)
    n_vocab = service.model.weights.n_vocab
    if any(token >= n_vocab for token in asked.tokens):
        raise ApiError(400, f"tokens must be from 0 to {n_vocab - 1}", param="tokens")
    text = "".join(await service.off_loop(service.model.texts, asked.tokens))
    return json_response({"content": text, "prompt": text})


async def tokenizer_info(http: HttpRequest) -> Response:
    """Return the special tokens and the chat template."""
    service: Service = http.app.state.service
    weights = service.model.weights
    return json_response(
        {"bos_token": weights.bos, "eos_token": weights.eos, "chat_template": weights.chat_template}
    )


async def count_input_tokens(http: HttpRequest) -> Response:
    """Return the number of tokens of a conversation's prompt."""
    service: Service = http.app.state.service
    asked, _ = parse(await http.body(), ChatRequest)
    model = service.model
    plan = await service.off_loop(plan_tools, asked, model.chat_template, model.supports_tools)
    request = engine_request(asked, SamplingParams(), plan, model.has_thinking_switch)
    tokens = await service.off_loop(service.tokens, request)
    return json_response({"object": "response.input_tokens", "input_tokens": len(tokens)})


def _text_or_bytes(piece: bytes) -> str | list[int]:
    """Return the text of a token, or its bytes if they are no whole character, as llama-server does."""
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return list(piece)
