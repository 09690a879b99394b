"""The models that the server offers: the loaded one, with each of its presets."""

from mink_local.serve.protocol.responses import (
    ModelEntry,
    ModelList,
    ModelMeta,
)
from mink_local.serve.service import Service


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
        id=name, display_name=name, created=service.created, max_model_len=model.n_ctx, meta=meta
    )
