"""Min-k sampling for GGUF models on llama.cpp.

from mink_local import MinK, load_model

model = load_model("smollm2-135m")
for piece in model.chat([{"role": "user", "content": "Hello"}], sampler=MinK(), temperature=5.0):
    print(piece, end="", flush=True)
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mink_local.generation.loading import load_model
    from mink_local.llama.constraints import Constraints
    from mink_local.samplers import MinK

__version__ = "0.1.0"
__all__ = ["Constraints", "MinK", "__version__", "load_model"]

_HOMES = {
    "Constraints": "mink_local.llama.constraints",
    "MinK": "mink_local.samplers",
    "load_model": "mink_local.generation.loading",
}


def __getattr__(name: str) -> Any:
    """Import on first use: Numba and llama.cpp take a third of a second that --help need not pay."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
