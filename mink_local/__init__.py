"""Min-k sampling for GGUF models on llama.cpp.

from mink_local import MinK, load_model

model = load_model("smollm2-135m")
for piece in model.chat([{"role": "user", "content": "Hello"}], sampler=MinK(), temperature=5.0):
    print(piece, end="", flush=True)
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from mink_local.errors import (
    CatalogError,
    ConstraintError,
    ContextOverflowError,
    DownloadError,
    GenerationError,
    MinkError,
    ModelError,
    ModelNotFoundError,
    OptionError,
)
from mink_local.version import __version__

if TYPE_CHECKING:
    from mink_local.generation.answer import Answer, Piece
    from mink_local.generation.loading import load_model
    from mink_local.generation.model import Model
    from mink_local.generation.replies import Answers, Reply
    from mink_local.generation.request import Request, SamplingParams
    from mink_local.llama.constraints import Constraints
    from mink_local.models.placement import PlacementOptions
    from mink_local.native import native_sampler
    from mink_local.samplers import (
        AdaptiveP,
        Chain,
        DynamicTemperature,
        Eta,
        Greedy,
        LlamaDefault,
        MinK,
        MinP,
        Mirostat,
        PLess,
        Sampler,
        TopA,
        TopK,
        TopNSigma,
        TopP,
        Typical,
        Xtc,
        parse,
    )

__all__ = [
    "AdaptiveP", "Answer", "Answers", "CatalogError", "Chain", "ConstraintError", "Constraints",
    "ContextOverflowError", "DownloadError", "DynamicTemperature", "Eta",
    "GenerationError", "Greedy", "LlamaDefault", "MinK", "MinP", "MinkError", "Mirostat", "Model",
    "ModelError", "ModelNotFoundError", "OptionError", "PLess", "Piece", "PlacementOptions",
    "Reply", "Request", "Sampler", "SamplingParams", "TopA", "TopK", "TopNSigma", "TopP", "Typical",
    "Xtc", "__version__", "load_model", "native_sampler", "parse",
]  # fmt: skip

_HOMES = {
    "Answer": "generation.answer",
    "Answers": "generation.replies",
    "Constraints": "llama.constraints",
    "Model": "generation.model",
    "Piece": "generation.answer",
    "PlacementOptions": "models.placement",
    "Reply": "generation.replies",
    "Request": "generation.request",
    "SamplingParams": "generation.request",
    "load_model": "generation.loading",
    "native_sampler": "native",
}


def __getattr__(name: str) -> Any:
    """Import on first use: Numba and llama.cpp take a third of a second, which --help can do without."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES.get(name, 'samplers')}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
