"""GET /v1/models and /v1/models/{id}."""

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from mink_local.serve.answers import Json
from mink_local.serve.presets import Preset
from mink_local.serve.respond import json_response
from mink_local.serve.service import Service


async def list_models(http: HttpRequest) -> Response:
    """Return the model ids."""
    service: Service = http.app.state.service
    entries = [_entry(service, service.presets.find(model_id)) for model_id in service.presets.ids]
    return json_response({"object": "list", "data": entries})


async def retrieve_model(http: HttpRequest) -> Response:
    """Return one model id."""
    service: Service = http.app.state.service
    return json_response(_entry(service, service.presets.find(http.path_params["model_id"])))


def _entry(service: Service, preset: Preset) -> Json:
    model = service.model
    return {
        "id": preset.model_id,
        "object": "model",
        "created": service.created,
        "owned_by": "mink-local",
        "max_model_len": model.n_ctx,
        "meta": {
            "n_ctx": model.n_ctx,
            "n_ctx_train": model.weights.n_ctx_train,
            "n_vocab": model.weights.n_vocab,
            "sampler": str(preset.defaults.sampler),
            "temperature": preset.defaults.temperature,
            "ignores_client_sampling": preset.is_fixed,
        },
    }
