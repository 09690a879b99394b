"""Plugin of the program `llm`: models `mink/NAME`, in its own process or on a running `mink-serve`."""

from collections.abc import Callable
from importlib.util import find_spec

import llm


@llm.hookimpl
def register_models(register: Callable[..., None]) -> None:
    """Register the models that are on this machine, and those of a running server."""
    if find_spec("llm.parts") is None:
        return  # an `llm` before 0.32, which an ImportError would end
    from mink_local.serve.llm_plugin.models import AsyncMinkModel, MinkModel, names  # not for `llm --help`

    for name, is_here in names().items():
        register(MinkModel(name, is_here), AsyncMinkModel(name, is_here))
