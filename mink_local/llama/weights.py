"""A GGUF file loaded by llama.cpp: tensors, vocabulary, chat template."""

import contextlib
import ctypes
import os
import re
import weakref
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from mink_local.checks import as_ids
from mink_local.errors import GenerationError, ModelError, OptionError
from mink_local.llama import ggml
from mink_local.llama.constants import ALL_LAYERS, EXPERTS, LIBC
from mink_local.llama.devices import gpu_pointers
from mink_local.llama.library import C, binding
from mink_local.llama.log import allocated, logged, reason

_CONTROL = C.LLAMA_TOKEN_ATTR_CONTROL | C.LLAMA_TOKEN_ATTR_UNKNOWN
_NO_DEVICES = (ctypes.c_void_p * 1)(None)  # a list of devices ends with NULL


def cpu_params() -> Any:
    """Return llama.cpp's parameters for a model that uses no GPU at all, not even for its buffers."""
    params = C.llama_model_default_params()
    params.n_gpu_layers, params.devices = 0, ctypes.cast(_NO_DEVICES, ctypes.c_void_p)
    return params


class _BufferOverride(ctypes.Structure):
    """struct llama_model_tensor_buft_override."""

    _fields_ = (("pattern", ctypes.c_char_p), ("buffer_type", ctypes.c_void_p))


def _experts_on_cpu(n_layers: int) -> Any:
    """Return what keeps the experts of the first layers on the CPU: an override, and the end of the list."""
    layers = "" if n_layers == ALL_LAYERS else rf"blk\.({'|'.join(map(str, range(n_layers)))})"
    override = _BufferOverride((layers + EXPERTS).encode(), ggml.backend_cpu_buffer_type())
    return (_BufferOverride * 2)(override)


def _advice(complaint: str) -> str:
    """Return what to do about what llama.cpp says of a file; "" where only the file is to blame."""
    if not re.search("unknown (model architecture|pre-tokenizer type)", complaint):
        return ""
    return (
        f": it needs a newer llama-cpp-python (installed: {binding.__version__}): "
        "pip install --upgrade llama-cpp-python"
    )


class Cancel:
    """Ends the loading of files when it is called, from any thread."""

    def __init__(self) -> None:
        self._goes_on = (ctypes.c_uint8 * 2)(1)  # a string of at most one character

    def __call__(self) -> None:
        self._goes_on[0] = 0

    def watch(self, params: Any) -> None:
        """Make llama.cpp poll this after every tensor, except on Windows, where it loads to the end."""
        # A C function that ignores the first argument, a float: where floats have registers of their own, the
        # pointer is the first of the others.
        if os.name != "nt":
            params.progress_callback = ctypes.cast(LIBC.strlen, C.llama_progress_callback)
            params.progress_callback_user_data = ctypes.addressof(self._goes_on)


class _Loaded:
    """llama.cpp's model and its vocabulary, whose memory is freed with the last reference to this."""

    def __init__(self, handle: Any) -> None:
        self.handle, self.vocab = handle, C.llama_model_get_vocab(handle)
        weakref.finalize(self, C.llama_model_free, handle).atexit = False


def closed(name: str) -> ModelError:
    """Return the error for any use of something closed."""
    return ModelError(f"{name} is closed: load it again")


class Weights:
    """A GGUF file loaded by llama.cpp.

    A damaged file can make llama.cpp abort the process: try files of unknown origin in a child process first
    (`mink_local.models.trust`).

    Args:
        path: The file, or the first one of a split model.
        n_gpu_layers: Number of layers on the GPU, the output layer first; ALL_LAYERS for all. With 0, no GPU
            is used at all, not even where llama.cpp would by default.
        verbose: Write llama.cpp's log to standard error, including that of contexts of these weights.
        trust: Whether the file is trusted: its chat template is rendered in this process.
        vocab_only: Load only the vocabulary, to tokenize and detokenize.
        n_cpu_moe: Number of layers, from the first, whose experts are on the CPU; ALL_LAYERS for all.
        gpu_shares: The proportions of layers that the GPUs get, in the order of `gpus`; those without a
            share are not used. By default those of their free memory.
        cancel: Ends loading early, with a ModelError.

    Attributes:
        n_vocab: Number of tokens in the vocabulary, V.
        n_layers: Number of layers, not counting the output layer.
        n_ctx_train: Context length the model was trained on, in tokens.
        on_gpu: Whether the output layer, and hence the logits, are on a GPU.
        bos, eos: Texts of the tokens that begin and end a sequence; empty if there are none.
        chat_template: Jinja source of the chat template in the file, or None.
        tool_template: That of the one for requests with tools, or None if it is the same.

    Raises:
        ModelError: llama.cpp cannot load the file, or the model does not generate text.
    """

    def __init__(
        self,
        path: Path,
        n_gpu_layers: int = 0,
        verbose: bool = False,
        trust: bool = False,
        vocab_only: bool = False,
        *,
        n_cpu_moe: int = 0,
        gpu_shares: Sequence[float] = (),
        cancel: Cancel | None = None,
    ) -> None:
        self.path, self.verbose, self.trust, self.gpu_shares = path, verbose, trust, gpu_shares
        self.on_gpu = n_gpu_layers != 0
        self.contexts: weakref.WeakSet[Any] = weakref.WeakSet()  # must be closed before the weights
        params = C.llama_model_default_params() if n_gpu_layers else cpu_params()
        params.n_gpu_layers = n_gpu_layers
        params.vocab_only = vocab_only
        if cancel is not None:
            cancel.watch(params)
        with logged(verbose):
            C.llama_backend_init()
        if n_gpu_layers and n_cpu_moe:
            overrides = _experts_on_cpu(n_cpu_moe)
            params.tensor_buft_overrides = ctypes.cast(overrides, ctypes.c_void_p)
        if n_gpu_layers and gpu_shares:
            used = {gpu: share for gpu, share in zip(gpu_pointers(), gpu_shares, strict=False) if share}
            devices = (ctypes.c_void_p * (len(used) + 1))(*used)
            params.devices = ctypes.cast(devices, ctypes.c_void_p)
            params.tensor_split = (ctypes.c_float * C.llama_max_devices())(*used.values())
        handle = allocated(partial(C.llama_model_load_from_file, bytes(path), params), verbose)
        if not handle:
            raise ModelError(f"llama.cpp cannot load {path}: {reason()}{_advice(reason())}")
        self._open = [_Loaded(handle)]
        # At the end of the program too; a thread that still compiles a constraint keeps the memory.
        self._close = weakref.finalize(self, self._open.clear)
        self.n_vocab: int = C.llama_vocab_n_tokens(self.vocab)
        self.n_layers: int = C.llama_model_n_layer(self.handle)
        self.n_ctx_train: int = C.llama_model_n_ctx_train(self.handle)
        self._require_generator()
        self.bos = self.token_text(C.llama_vocab_bos(self.vocab))
        self.eos = self.token_text(C.llama_vocab_eos(self.vocab))
        self.chat_template, self.tool_template = map(self._template, (None, b"tool_use"))
        state = path.stat()
        self.file = f"{path.resolve()} {state.st_size} {state.st_mtime_ns}"  # as it was loaded
        self._pieces: dict[int, bytes] = {}
        self.tokenizer: Future[Any] | None = None  # llguidance's, while or after it is made (`guide`)

    def _template(self, name: bytes | None) -> str | None:
        template: bytes | None = C.llama_model_chat_template(self.handle, name)
        return template.decode("utf-8", "replace") if template else None

    def _require_generator(self) -> None:
        if C.llama_vocab_type(self.vocab) == C.LLAMA_VOCAB_TYPE_NONE or self.n_vocab == 0:
            raise ModelError(f"{self.path} has no vocabulary: it cannot process text")
        if C.llama_model_has_encoder(self.handle) or not C.llama_model_has_decoder(self.handle):
            raise ModelError(f"{self.path} is not a decoder-only model: it cannot chat")
        if C.llama_model_is_diffusion(self.handle):
            raise ModelError(f"{self.path} is a diffusion model: it does not generate token by token")

    def close(self) -> None:
        """Free the memory of all contexts of these weights, then that of the weights; idempotent."""
        for context in list(self.contexts):
            context.close()
        self._close()

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called."""
        return not self._close.alive

    @property
    def handle(self) -> Any:
        """llama.cpp's model. Raises ModelError if it is closed."""
        return self._loaded.handle

    @property
    def vocab(self) -> Any:
        """llama.cpp's vocabulary. Raises ModelError if the model is closed."""
        return self._loaded.vocab

    @property
    def _loaded(self) -> _Loaded:
        for loaded in self._open:  # which another thread may empty
            return loaded
        raise closed(self.path.stem)

    @contextlib.contextmanager
    def in_use(self) -> Iterator[Any]:
        """Keep the vocabulary, which the block gets, while another thread may close the model.

        Raises ModelError if it is closed.
        """
        loaded = self._loaded
        yield loaded.vocab

    def keep_for(self, user: object) -> None:
        """Keep the vocabulary as long as an object. Raises ModelError if the model is closed."""
        # Holds its arguments until then; at the end of the program, too: another thread may be reading them.
        weakref.finalize(user, id, self._loaded).atexit = False

    @cached_property
    def control_tokens(self) -> tuple[str, ...]:
        """Texts that the tokenizer reads as control tokens, with `parse_special`."""
        return self._texts(_CONTROL)

    @cached_property
    def control_ids(self) -> tuple[int, ...]:
        """Ids of the control tokens."""
        return tuple(token for token, has in enumerate(self._attributes) if has & _CONTROL)

    @cached_property
    def user_defined_tokens(self) -> tuple[str, ...]:
        """Texts that the tokenizer reads as one token wherever they are, even without `parse_special`."""
        return self._texts(C.LLAMA_TOKEN_ATTR_USER_DEFINED)

    def _texts(self, attribute: int) -> tuple[str, ...]:
        return tuple(self.token_text(token) for token, has in enumerate(self._attributes) if has & attribute)

    @cached_property
    def _attributes(self) -> list[int]:
        with self.in_use() as vocab:
            return [C.llama_vocab_get_attr(vocab, token) for token in range(self.n_vocab)]

    @cached_property
    def longest_token(self) -> int:
        """Length of the longest token text in characters."""
        return max(map(len, self.token_texts()))

    @cached_property
    def end_tokens(self) -> frozenset[int]:
        """Ids of the tokens that end an answer."""
        with self.in_use() as vocab:
            return frozenset(token for token in range(self.n_vocab) if C.llama_vocab_is_eog(vocab, token))

    def token_texts(self) -> list[str]:
        """Return all tokens as spelled in the vocabulary."""
        with self.in_use() as vocab:
            texts = [C.llama_vocab_get_text(vocab, token) or b"" for token in range(self.n_vocab)]
        return [text.decode("utf-8", "replace") for text in texts]

    def token_text(self, token: int) -> str:
        """Return a token as spelled in the vocabulary; empty for -1, llama.cpp's "no token"."""
        with self.in_use() as vocab:
            text = C.llama_vocab_get_text(vocab, token) if 0 <= token < self.n_vocab else b""
            return (text or b"").decode("utf-8", "replace")

    def ids(self, name: str, values: Any) -> list[int]:
        """Return token ids, NumPy's too, as a list of ints.

        Raises OptionError, with the name of an option, unless all are in the vocabulary.
        """
        tokens = as_ids(name, values)
        for token in (min(tokens, default=0), max(tokens, default=0)):  # a prompt may have many
            if not 0 <= token < self.n_vocab:
                raise OptionError(name, f"has token {token}: valid ids are 0 to {self.n_vocab - 1}")
        return tokens

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """Return the token ids of a text.

        Args:
            add_special: Add the tokens that the vocabulary puts before or after each text, such as BOS.
            parse_special: Parse the texts of control tokens as control tokens.

        Raises:
            GenerationError: llama.cpp cannot tokenize the text.
            ModelError: The model is closed.
        """
        data = text.encode("utf-8", "replace")
        tokens = (C.llama_token * (len(data) + 8))()
        with self.in_use() as vocab:
            n_tokens = C.llama_tokenize(
                vocab, data, len(data), tokens, len(tokens), add_special, parse_special
            )
        if n_tokens < 0:
            raise GenerationError(f"llama.cpp cannot tokenize a text of {len(data)} bytes")
        return list(tokens[:n_tokens])

    def piece(self, token: int) -> bytes:
        """Return a token's UTF-8 bytes, possibly part of a character; empty for a control token.

        Raises OptionError for an id that is not in the vocabulary, and ModelError if the model is closed.
        """
        found = self._pieces.get(token)
        if found is None:
            if type(token) is not int or not 0 <= token < self.n_vocab:
                [token] = self.ids("token", (token,))
            loaded = self._loaded  # held as by `in_use`, in half the time: a short answer has many new tokens
            found = self._pieces[token] = _piece(loaded.vocab, token, ctypes.create_string_buffer(32))
        return found

    def pieces(self) -> list[bytes]:
        """Return the bytes of every token, as `piece` does, but faster."""
        buffer = ctypes.create_string_buffer(256)
        with self.in_use() as vocab:
            return [_piece(vocab, token, buffer) for token in range(self.n_vocab)]


def _piece(vocab: Any, token: int, buffer: Any) -> bytes:
    size = C.llama_token_to_piece(vocab, token, buffer, len(buffer), 0, False)
    if size < 0:
        return _piece(vocab, token, ctypes.create_string_buffer(-size))
    return ctypes.string_at(buffer, size)
