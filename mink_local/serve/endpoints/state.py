"""What the server offers and has done: models, health, numbers, the last requests, and the playground."""

import base64
import hashlib
import re
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Literal

import msgspec
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.responses import Response

from mink_local.generation.model import Model
from mink_local.samplers import default_samplers
from mink_local.serve.bodies import Output
from mink_local.serve.clients import Client
from mink_local.serve.metrics import Metrics
from mink_local.serve.service import Service

PLAYGROUND = Path(__file__).parents[1] / "playground.html"
OPENAPI = Path(__file__).parents[1] / "openapi.json"  # written by scripts/docs.py


class Health(Output, kw_only=True):
    """The state of a server that works."""

    status: Literal["ok"] = "ok"


class ModelMeta(Output, kw_only=True):
    """The model behind an id, and how it is sampled.

    Attributes:
        n_ctx: Tokens that a prompt and its answer share.
        n_ctx_train: Tokens that the model was trained for.
        ignores_client_sampling: Whether `sampler` and `temperature` override what a client sends.
    """

    n_ctx: int
    n_ctx_train: int
    n_vocab: int
    sampler: str
    temperature: float
    ignores_client_sampling: bool


class ModelEntry(Output, kw_only=True):
    """A model id, with OpenAI's, Anthropic's and vLLM's names."""

    id: str
    object: Literal["model"] = "model"
    type: Literal["model"] = "model"
    display_name: str
    created: int
    created_at: str
    owned_by: str = "mink-local"
    max_model_len: int
    max_input_tokens: int
    meta: ModelMeta


class ModelList(Output, kw_only=True):
    """All model ids, the model's own name first."""

    object: Literal["list"] = "list"
    data: list[ModelEntry]


class Properties(Output, kw_only=True):
    """What llama-server's `/props` has, as far as clients read it."""

    default_generation_settings: dict[str, int]
    total_slots: int
    model_alias: str
    chat_template: str
    bos_token: str
    eos_token: str
    build_info: str


class RecordedToken(Output, kw_only=True):
    """A token of an answer.

    Attributes:
        k: Number of candidates that it was sampled from.
    """

    id: int
    text: str
    k: int


class RecordedAnswer(Output, kw_only=True):
    """An answer, and how it was sampled.

    Attributes:
        prompt: Token ids of the prompt.
        prompt_text: The prompt as the model saw it, with its control tokens.
        finish_reason: `stop`, `length` or `error`; `left` if the client did not wait for the end.
    """

    prompt: list[int]
    prompt_text: str
    sampler: str
    temperature: float
    tokens: list[RecordedToken]
    finish_reason: str


class RecordedRequest(Output, kw_only=True):
    """One of the last requests, with its answers, at most four.

    Attributes:
        client: The name of the key that was used; empty without keys.
    """

    model: str
    created: int
    client: str
    answers: list[RecordedAnswer]


async def health(service: Service, _: Client) -> Health:
    """Return whether the engine works, also while the server drains."""
    if service.failure is not None:
        raise service.failure
    return Health()


async def ready(service: Service, _: Client) -> Health:
    """Return whether the server takes requests: not while it loads its model, drains, or has failed."""
    service.check_ready()
    return Health()


async def list_models(service: Service, _: Client) -> ModelList:
    """List the model ids: the model, and its presets."""
    return ModelList(data=[_entry(service, model_id) for model_id in service.presets.by_id])


async def loaded_model(service: Service, _: Client) -> ModelEntry:
    """Describe the model under its own name, as TabbyAPI does."""
    return _entry(service, None)


async def retrieve_model(service: Service, _: Client, model_id: str) -> ModelEntry:
    """Describe a model id."""
    return _entry(service, model_id)


def _entry(service: Service, model_id: str | None) -> ModelEntry:
    model, preset = service.model, service.presets.find(model_id)
    meta = ModelMeta(
        n_ctx=model.n_ctx,
        n_ctx_train=model.weights.n_ctx_train,
        n_vocab=model.weights.n_vocab,
        sampler=str(preset.sampler),
        temperature=preset.temperature,
        ignores_client_sampling=preset.is_fixed,
    )
    name = preset.model_id
    return ModelEntry(
        id=name,
        display_name=name,
        created=service.created,
        max_model_len=model.n_ctx,
        max_input_tokens=model.n_ctx - 1,
        created_at=datetime.fromtimestamp(service.created, UTC).isoformat(),
        meta=meta,
    )


async def properties(service: Service, _: Client) -> Properties:
    """Return what llama-server's clients look up: the context's length, the slots, the chat template."""
    model = service.model
    return Properties(
        default_generation_settings={"n_ctx": model.n_ctx},
        total_slots=model.n_parallel,
        model_alias=service.presets.default.model_id,
        chat_template=model.chat_template or "",
        bos_token=model.weights.bos,
        eos_token=model.weights.eos,
        build_info=service.fingerprint,
    )


async def recorded_request(service: Service, client: Client, request_id: str) -> RecordedRequest:
    """Return one of the key's last requests with its answers, by the id in X-Request-Id or in the answer."""
    head, found = service.history.find(request_id, client.name)
    answers = [await service.work(client, _recorded, service.model, record) for record in found]
    return RecordedRequest(model=head.model, created=head.created, client=head.client, answers=answers)


def _recorded(model: Model, record: bytes) -> RecordedAnswer:
    weights, fields = model.weights, msgspec.msgpack.decode(record)
    prompt = [weights.piece(token) or weights.token_text(token).encode() for token in fields["prompt"]]
    tokens = fields.pop("tokens")
    steps = zip(tokens, model.token_texts(tokens), fields.pop("k"), strict=False)
    return RecordedAnswer(
        prompt_text=b"".join(prompt).decode("utf-8", "replace"),
        tokens=[RecordedToken(id=token, text=text, k=k) for token, text, k in steps],
        **fields,
    )


async def metrics(service: Service, _: Client) -> Response:
    """Return the server's numbers in Prometheus's text format."""
    return as_text(service.metrics)


def as_text(metrics: Metrics) -> Response:
    """Return numbers in Prometheus's text format."""
    return Response(generate_latest(metrics.registry), media_type=CONTENT_TYPE_LATEST)


async def openapi(_: Service, __: Client) -> Response:
    """Return the OpenAPI document."""
    return Response(OPENAPI.read_bytes(), media_type="application/json")


async def playground(_: Service, __: Client) -> Response:
    """Return the playground, one page of HTML, CSS and JavaScript, with its Content-Security-Policy."""
    content, policy = playground_page(tuple(map(str, default_samplers())))
    headers = {"content-security-policy": policy, "referrer-policy": "no-referrer"}
    return Response(content, media_type="text/html", headers=headers)


@cache
def playground_page(samplers: tuple[str, ...]) -> tuple[str, str]:
    """Return the page and a policy that allows its script and style, by their hashes, and its own server.

    Args:
        samplers: The samplers that it suggests.
    """
    options = "".join(f'<option value="{sampler}">' for sampler in samplers)
    content = PLAYGROUND.read_text(encoding="utf-8").replace("<!-- samplers -->", options)
    script, style = (_hash(content, tag) for tag in ("script", "style"))
    policy = (
        f"default-src 'none'; script-src {script}; style-src {style}; connect-src 'self'; img-src data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
    )
    return content, policy


def _hash(content: str, tag: str) -> str:
    [inside] = re.findall(f"<{tag}>(.*?)</{tag}>", content, re.DOTALL)
    return f"'sha256-{base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()}'"
