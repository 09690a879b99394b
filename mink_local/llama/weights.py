"""A GGUF file that llama.cpp has loaded: tensors, vocabulary, chat template."""

import ctypes
import weakref
from functools import cached_property
from pathlib import Path

from llama_cpp import llama_cpp as C

from mink_local.errors import GenerationError, ModelError
from mink_local.llama.log import logged, reason


class Weights:
    """A GGUF file loaded by llama.cpp: tensors, vocabulary and chat template.

    n_gpu_layers: how many layers go to the GPU, ALL_LAYERS for every one.
    Raises ModelError where llama.cpp does not load the file or it is no model that writes text.
    A damaged file can abort the process inside llama.cpp: see `vetting`.
    """

    def __init__(self, path: Path, n_gpu_layers: int = 0, verbose: bool = False) -> None:
        self.verbose = verbose
        with logged(verbose):
            C.llama_backend_init()
            params = C.llama_model_default_params()
            params.n_gpu_layers = n_gpu_layers
            self.handle = C.llama_model_load_from_file(bytes(path), params)
        if not self.handle:
            raise ModelError(f"llama.cpp cannot load {path}: {reason()}")
        weakref.finalize(self, C.llama_model_free, self.handle)
        self.path = path
        self.on_gpu = n_gpu_layers != 0  # the output layer is the first to go there
        self.vocab = C.llama_model_get_vocab(self.handle)
        self.n_vocab: int = C.llama_vocab_n_tokens(self.vocab)
        self.n_layers: int = C.llama_model_n_layer(self.handle)
        self.n_ctx_train: int = C.llama_model_n_ctx_train(self.handle)
        self._pieces: dict[int, bytes] = {}
        if C.llama_vocab_type(self.vocab) == C.LLAMA_VOCAB_TYPE_NONE or self.n_vocab == 0:
            raise ModelError(f"{path} has no vocabulary: it cannot read or write text")
        if C.llama_model_has_encoder(self.handle) or not C.llama_model_has_decoder(self.handle):
            raise ModelError(f"{path} is not a decoder-only model: it cannot be chatted with")
        if C.llama_model_is_diffusion(self.handle):
            raise ModelError(f"{path} is a diffusion model: it does not write token by token")

    @cached_property
    def chat_template(self) -> str | None:
        """The Jinja source in the file, or None where it has none."""
        template = C.llama_model_chat_template(self.handle, None)
        return template.decode("utf-8", "replace") if template else None

    @cached_property
    def control_tokens(self) -> tuple[str, ...]:
        """The texts that the tokenizer may read as a control token instead of as text."""
        special = C.LLAMA_TOKEN_ATTR_CONTROL | C.LLAMA_TOKEN_ATTR_UNKNOWN
        return tuple(
            self.token_text(token)
            for token in range(self.n_vocab)
            if C.llama_vocab_get_attr(self.vocab, token) & special
        )

    @cached_property
    def bos(self) -> str:
        return self.token_text(C.llama_vocab_bos(self.vocab))

    @cached_property
    def eos(self) -> str:
        return self.token_text(C.llama_vocab_eos(self.vocab))

    def token_text(self, token: int) -> str:
        """A token as the vocabulary spells it; empty for the -1 of a token that is not there."""
        text = C.llama_vocab_get_text(self.vocab, token) if 0 <= token < self.n_vocab else b""
        return (text or b"").decode("utf-8", "replace")

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """Token ids of `text`. `parse_special` reads control tokens in it as such."""
        data = text.encode("utf-8", "replace")
        tokens = (C.llama_token * (len(data) + 8))()
        args = (tokens, len(tokens), add_special, parse_special)
        n_tokens = C.llama_tokenize(self.vocab, data, len(data), *args)
        if n_tokens < 0:
            raise GenerationError(f"llama.cpp could not tokenize a text of {len(data)} bytes")
        return list(tokens[:n_tokens])

    def piece(self, token: int) -> bytes:
        """The bytes that a token writes, perhaps part of a character; none for a control token."""
        if token not in self._pieces:
            buffer = ctypes.create_string_buffer(32)
            size = C.llama_token_to_piece(self.vocab, token, buffer, len(buffer), 0, False)
            if size < 0:
                buffer = ctypes.create_string_buffer(-size)
                size = C.llama_token_to_piece(self.vocab, token, buffer, len(buffer), 0, False)
            self._pieces[token] = buffer.raw[:size]
        return self._pieces[token]

    def ends_generation(self, token: int) -> bool:
        return bool(C.llama_vocab_is_eog(self.vocab, token))
