"""Quantizes GGUF files with llama.cpp."""

from pathlib import Path

from llama_cpp import llama_cpp as C


def quantize(source: Path, target: Path, file_type: str) -> Path:
    """Write a GGUF file in another type, such as "Q8_0", to `target`."""
    params = C.llama_model_quantize_default_params()
    params.ftype = getattr(C, f"LLAMA_FTYPE_MOSTLY_{file_type}")
    params.allow_requantize = True
    assert C.llama_model_quantize(str(source).encode(), str(target).encode(), params) == 0
    return target
