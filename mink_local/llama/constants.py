"""llama.cpp constants needed before it is loaded."""

import ctypes
import os
from collections.abc import Iterable, Mapping
from typing import Any

from mink_local.checks import Range, check_types, shown
from mink_local.errors import OptionError

# The C library, whose functions serve as callbacks that need no GIL.
LIBC = ctypes.cdll.msvcrt if os.name == "nt" else ctypes.pythonapi

ALL_LAYERS = -1  # as the number of layers on the GPU, or of those whose experts are on the CPU
EXPERTS = r"\.ffn_(up|down|gate|gate_up)_(ch|)exps"  # in the names of a mixture's tensors
MAX_THREADS = 512  # of a context, GGML_MAX_N_THREADS
N_BATCH = 512  # maximum tokens per llama_decode; a longer batch aborts the process
N_SEQ_MAX = 256  # maximum sequences per context, LLAMA_MAX_SEQ
RANDOM_SEED = 0xFFFFFFFF  # tells llama.cpp to pick a seed
MAX_SEED = 2**64 - 1  # of answers: its remainder by RANDOM_SEED counts
RPC_PORT = 50052  # default port of llama.cpp's RPC server
MODEL = "model"  # in place of a sampler: what the model's file recommends

TEMPLATE_NAMES = frozenset(
    [
        "messages",
        "tools",
        "functions",
        "function_call",
        "tool_choice",
        "bos_token",
        "eos_token",
        "add_generation_prompt",
        "raise_exception",
        "strftime_now",
        "self",
    ]
)
"""Names under which chat templates get what is not for users to replace."""

KV_TYPES = {"f16": 1, "bf16": 30, "f32": 0, "q8_0": 8, "q5_1": 7, "q5_0": 6, "q4_1": 3, "q4_0": 2}
"""KV cache types by name, with their numbers in enum ggml_type."""


def kv_type_number(kv_type: str) -> int:
    """Return a KV cache type's number in enum ggml_type. Raises ValueError for an unknown type."""
    if kv_type not in KV_TYPES:
        raise ValueError(f"kv_type must be one of {', '.join(KV_TYPES)}, not {kv_type!r}")
    return KV_TYPES[kv_type]


def check_split(shares: Iterable[float]) -> tuple[float, ...]:
    """Return proportions of layers. Raises OptionError unless they are finite and one is above 0."""
    check_types(tensor_split=(shares, Iterable))
    found = tuple(Range(0).check("tensor_split", share) for share in shares)
    if not any(found):
        raise OptionError("tensor_split", "must not be all 0")
    return found


def check_template_kwargs(kwargs: Any) -> None:
    """Raise OptionError unless a value has variables of a chat template that users can set, by name."""
    if not isinstance(kwargs, Mapping) or not all(isinstance(name, str) for name in kwargs):
        raise OptionError("template_kwargs", f"must be a dict of names and values, not {shown(kwargs)}")
    for name in kwargs:
        if name in TEMPLATE_NAMES:
            raise OptionError(f"template_kwargs.{name}", "cannot be set: templates get it from elsewhere")
