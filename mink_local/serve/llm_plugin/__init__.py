"""Plugin for `llm`: the models on this machine, as `mink/NAME`."""

from collections.abc import Callable
from importlib.util import find_spec

import llm


@llm.hookimpl
def register_models(register: Callable[..., None]) -> None:
    """Register the catalogue's models that are on this machine."""
    if find_spec("llm.parts") is None:
        return  # an `llm` before 0.32, which an ImportError would end
    from mink_local.serve.llm_plugin.models import AsyncMinkModel, MinkModel, names  # not for `llm --help`

    for name in names():
        register(MinkModel(name), AsyncMinkModel(name))
