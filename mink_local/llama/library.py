"""llama-cpp-python (`binding`) and its C functions and structs (`C`), which fit the loaded llama.cpp.

The binding declares structs as one version of llama.cpp has them. Over another version, as LLAMA_CPP_LIB_PATH
or a distribution may bring it, their fields shift in silence, and an address is read as a size.
"""

import os
import sys
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from mink_local.errors import MinkError

_TESTED = "0.3.36"
SEPARATE, _FITS = "llama_cpp_py_sync", "llama-cpp-py-sync==0.11413"  # see scripts/library.txt
_ON_WINDOWS = (
    "install Microsoft's Visual C++ Redistributable (x64) and, for a CUDA wheel, that version of CUDA; "
    "a processor without AVX2 needs a llama-cpp-python that was compiled on it"
)
_MADE_FOR = {"0.3.36": "0.5"}  # llama.cpp's version, by the binding's
# What llama.cpp sets in each struct: read at another place, it would be something else.
_DEFAULTS: dict[str, dict[str, object]] = {
    "llama_context_default_params": {
        "n_batch": 2048,
        "n_seq_max": 1,
        "rope_scaling_type": -1,
        "flash_attn_type": -1,
        "yarn_ext_factor": -1.0,
        "defrag_thold": -1.0,
        "type_k": 1,
        "type_v": 1,
        "offload_kqv": True,
        "op_offload": True,
        "kv_unified": False,
    },
    "llama_model_default_params": {
        "n_gpu_layers": -1,
        "split_mode": 1,
        "load_mode": -1,
        "lazy_mode": 1,
        "kv_overrides": None,
        "use_extra_bufts": True,
    },
    "llama_sampler_chain_default_params": {"no_perf": True},
}


def require_fit(functions: Any, number: str) -> None:
    """Check that a binding's structs are those of the llama.cpp that it has loaded.

    Args:
        functions: The binding's module of C functions.
        number: The binding's version.

    Raises:
        MinkError: They are not.
    """
    loaded = functions.llama_version().decode()
    file = f"{functions._lib._name} is llama.cpp {loaded}"
    made_for = _MADE_FOR.get(number)
    if made_for and loaded.split(".")[:2] != made_for.split("."):
        raise MinkError(
            f"llama-cpp-python {number} is made for llama.cpp {made_for}, but {file}: {_advice()}"
        )
    for name, defaults in _DEFAULTS.items():
        params = getattr(functions, name)()
        found = {field: getattr(params, field, value) or None for field, value in defaults.items()}
        if shifted := [field for field, value in defaults.items() if found[field] != (value or None)]:
            raise MinkError(
                f"llama-cpp-python {number} finds {', '.join(shifted)} elsewhere in {name}'s struct than "
                f"llama.cpp puts it ({file}): {_advice()}"
            )


def _use_separate_library() -> None:
    """Have the binding, here and in child processes, load a separate package's llama.cpp if it has none."""
    own, separate = (_folder(name) for name in ("llama_cpp", SEPARATE))
    if separate and own and not any(own.glob("lib/*llama*")):
        os.environ.setdefault("LLAMA_CPP_LIB_PATH", str(separate))


def is_separate() -> bool:
    """Return whether the loaded llama.cpp is the one of a separate package."""
    return SEPARATE in Path(C._lib._name).parts


def _folder(package: str) -> Path | None:
    spec = find_spec(package)
    return Path(spec.origin).parent if spec and spec.origin else None


def _advice(reason: str = "") -> str:
    path = Path(os.environ.get("LLAMA_CPP_LIB_PATH", ""))
    if "libgomp" in reason:
        return "install GNU's OpenMP: sudo apt install libgomp1 (Debian, Ubuntu), sudo dnf install libgomp"
    if path.name not in ("", SEPARATE):
        return "unset LLAMA_CPP_LIB_PATH, or point it to a llama.cpp that fits"
    if "GLIBC" in reason:  # of a newer Linux
        own = f'--no-cache-dir --no-binary llama-cpp-python "llama-cpp-python=={_TESTED}"'
        return f"compile one for this system: pip install --force-reinstall --no-deps {own}"
    if path.name == SEPARATE:
        return f"pip install --force-reinstall --no-deps {_FITS}"
    return f'pip install --force-reinstall --no-deps "llama-cpp-python=={_TESTED}"'


def _installed() -> str:
    try:
        return version("llama-cpp-python")
    except PackageNotFoundError:
        return "(not installed by pip)"


_use_separate_library()
try:
    import llama_cpp as binding
    from llama_cpp import llama_cpp as C
except (ImportError, OSError, RuntimeError, AttributeError) as error:  # AttributeError: a function is missing
    is_windows = sys.platform == "win32" and not os.environ.get("LLAMA_CPP_LIB_PATH")
    what_to_do = _ON_WINDOWS if is_windows and not isinstance(error, ImportError) else _advice(str(error))
    raise MinkError(f"llama-cpp-python {_installed()} cannot be loaded ({error}): {what_to_do}") from error
require_fit(C, binding.__version__)

__all__ = ["SEPARATE", "C", "binding", "is_separate", "require_fit"]
