"""Constants of llama.cpp that are needed before it is loaded."""

import math

ALL_LAYERS = -1  # as a number of layers on the GPU
N_BATCH = 512  # maximum tokens of a llama_decode; a longer batch aborts the process
N_SEQ_MAX = 256  # maximum sequences of a context, LLAMA_MAX_SEQ
RANDOM_SEED = 0xFFFFFFFF  # the seed that means "any" to llama.cpp
MAX_SEED = RANDOM_SEED - 1
RPC_PORT = 50052  # of llama.cpp's RPC server

KV_TYPES = {"f16": 1, "bf16": 30, "f32": 0, "q8_0": 8, "q5_1": 7, "q5_0": 6, "q4_1": 3, "q4_0": 2}
"""Types of the KV cache: their numbers in enum ggml_type by name."""


def kv_type_number(kv_type: str) -> int:
    """Return the number of a KV cache type in enum ggml_type. Raises ValueError for an unknown type."""
    if kv_type not in KV_TYPES:
        raise ValueError(f"kv_type must be one of {', '.join(KV_TYPES)}, not {kv_type!r}")
    return KV_TYPES[kv_type]


def check_range(name: str, value: float | None, low: float, high: float = math.inf) -> None:
    """Raise ValueError unless an option is None or from `low` to `high`, both included."""
    if value is not None and not low <= value <= high:
        allowed = f"at least {low}" if high == math.inf else f"from {low} to {high}"
        raise ValueError(f"{name} must be {allowed}, not {value}")
