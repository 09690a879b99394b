"""The models that the server offers: the loaded one, with each of its presets."""

from datetime import UTC, datetime
from typing import Literal

from mink_local.serve.bodies import Output
from mink_local.serve.service import Service


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


async def list_models(service: Service) -> ModelList:
    """List the model ids: the model, and its presets."""
    return ModelList(data=[await retrieve_model(service, model_id) for model_id in service.presets.by_id])


async def retrieve_model(service: Service, model_id: str) -> ModelEntry:
    """Describe a model id."""
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
