"""Numbers of llama.cpp that are needed without loading it."""

N_BATCH = 512  # most tokens in one llama_decode; a longer batch aborts the process
RPC_PORT = 50052  # of llama.cpp's RPC server

KV_TYPES = {"f16": 1, "bf16": 30, "f32": 0, "q8_0": 8, "q5_1": 7, "q5_0": 6, "q4_1": 3, "q4_0": 2}
"""Number formats that keys and values of a KV cache can have: their numbers in enum ggml_type, by name."""


def kv_type_number(kv_type: str) -> int:
    """Return the number of a KV cache's format in enum ggml_type; raise ValueError for another format."""
    if kv_type not in KV_TYPES:
        raise ValueError(f"kv_type must be one of {', '.join(KV_TYPES)}, not {kv_type!r}")
    return KV_TYPES[kv_type]
