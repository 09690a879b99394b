"""A sampler as a `llama_sampler`, for a llama.cpp sampler chain of your own.

    chain = llama_cpp.llama_sampler_chain_init(llama_cpp.llama_sampler_chain_default_params())
    min_k = native_sampler(MinK(tau=3.0), n_vocab)
    llama_cpp.llama_sampler_chain_add(chain, min_k)  # the chain owns it now
    llama_cpp.llama_sampler_chain_add(chain, llama_cpp.llama_sampler_init_temp(5.0))
    llama_cpp.llama_sampler_chain_add(chain, llama_cpp.llama_sampler_init_dist(seed))
    token = llama_cpp.llama_sampler_sample(chain, context, -1)
    k = check(min_k, step=1)  # the number of candidates; raises if a row had a NaN

llama.cpp clones and frees it like its own samplers; nothing needs to be kept alive in Python.
"""

import ctypes
from typing import Any

import numpy as np

from mink_local.checks import Range
from mink_local.errors import GenerationError
from mink_local.llama.library import C
from mink_local.llama.token_data import TOKEN_DATA, write_token_data
from mink_local.llama.token_sampler import broken
from mink_local.samplers import AnySampler, Sampler, Workspace, as_sampler
from mink_local.samplers.base import TEMPERATURES, random_of

_SIZES = Range(1, 2**31 - 1, whole=True)
_UNKNOWN_TOKEN = -3  # in addition to the kernels' errors


class _Selection:
    """The state of one `llama_sampler`; an error persists until llama.cpp resets the chain."""

    def __init__(self, sampler: Sampler, n_vocab: int, temperature: float, seed: int | None) -> None:
        self.options = sampler, n_vocab, temperature, seed
        self.k = 0
        self.error: int | Exception = 0
        workspace = Workspace(n_vocab)
        self.random = random_of(seed)
        self._select, self._ids = sampler.checked_selector(temperature, workspace, self.random), workspace.ids
        self._logits = np.empty(n_vocab, np.float32)

    def apply(self, array: Any) -> None:
        """Reduce a llama_token_data_array to the candidates, by token id; leave it unchanged on an error."""
        address = ctypes.cast(array.data, ctypes.c_void_p).value
        records = np.frombuffer((C.llama_token_data * array.size).from_address(address), TOKEN_DATA)
        ids = records["id"]
        is_known = bool(np.all((ids >= 0) & (ids < self._logits.size)))
        if is_known:
            self._logits[:] = -np.inf
            self._logits[ids] = records["logit"]
        try:
            k = self._select(self._logits) if is_known else _UNKNOWN_TOKEN
        except Exception as error:  # of a sampler of others
            self.error = error
            return
        if k < 0:
            self.error = k
            return
        write_token_data(self._logits, self._ids, k, records)
        array.size, array.selected, array.sorted = k, -1, False
        self.k = k


_selections: dict[int, _Selection] = {}  # by id, which is stored as a llama_sampler's context


def _of(sampler: int) -> int:
    return int(C.llama_sampler.from_address(sampler).ctx)


# Exceptions cannot pass through llama.cpp: these callbacks raise none and keep a kernel's error for `check`.


def _name(_: int) -> int:
    return ctypes.addressof(_NAME)


def _apply(sampler: int, array: int) -> None:
    _selections[_of(sampler)].apply(C.llama_token_data_array.from_address(array))


def _reset(sampler: int) -> None:
    selection = _selections[_of(sampler)]
    selection.k, selection.error = 0, 0
    selection.random.seed(selection.options[-1])


def _clone(sampler: int) -> int | None:
    original = _selections[_of(sampler)]
    clone = _Selection(*original.options)
    clone.k, clone.error = original.k, original.error
    clone.random.setstate(original.random.getstate())
    return ctypes.cast(_init(clone), ctypes.c_void_p).value


def _free(sampler: int) -> None:
    del _selections[_of(sampler)]


def _init(selection: _Selection) -> Any:
    _selections[id(selection)] = selection
    return C.llama_sampler_init(ctypes.byref(_INTERFACE), id(selection))


_PTR = ctypes.c_void_p
_NAME = ctypes.create_string_buffer(b"mink-local")
_INTERFACE = C.llama_sampler_i()
_CALLBACKS = {
    "name": ctypes.CFUNCTYPE(_PTR, _PTR)(_name),
    "apply": ctypes.CFUNCTYPE(None, _PTR, _PTR)(_apply),
    "reset": ctypes.CFUNCTYPE(None, _PTR)(_reset),
    "clone": ctypes.CFUNCTYPE(_PTR, _PTR)(_clone),
    "free": ctypes.CFUNCTYPE(None, _PTR)(_free),
}
for _field, _callback in _CALLBACKS.items():
    _kind = getattr(C, f"llama_sampler_i_{_field}")
    setattr(_INTERFACE, _field, ctypes.cast(_callback, _kind))
# Never freed: llama.cpp may use or free a sampler while the interpreter shuts down.
ctypes.pythonapi.Py_IncRef(ctypes.py_object(globals()))
ctypes.pythonapi.Py_IncRef(ctypes.py_object(_CALLBACKS))
ctypes.pythonapi.Py_IncRef(ctypes.py_object(_INTERFACE))


def native_sampler(
    sampler: AnySampler, n_vocab: int, temperature: float = 1.0, seed: int | None = None
) -> Any:
    """Return a new `llama_sampler_p` that keeps the candidates of `sampler`.

    Place it after penalties and grammar, and before llama.cpp's `temp`. It orders the candidates by token id,
    so that for a given seed `dist` samples the same tokens as with every other form of the sampler. It is
    owned by the caller, or by the chain it is added to.

    Args:
        sampler: A sampler, its text or a function, as in `SamplingParams`, that does not end with a
            llama.cpp built-in: mirostat, adaptive-p, dynatemp.
        n_vocab: Number of tokens in the vocabulary.
        temperature: The temperature of `temp`, above 0; only samplers with order "temperature-first" depend
            on it.
        seed: Seed for samplers that cut at random, such as xtc, at least 0; None picks one at random.

    Raises:
        TypeError: The sampler ends with a llama.cpp built-in.
        OptionError: An argument is of another type, or out of range.
    """
    sampler = as_sampler(sampler)
    TEMPERATURES.check("temperature", temperature)
    if sampler.comes_last:
        raise TypeError(f"{sampler.members[-1].name} is llama.cpp's own: use its llama_sampler")
    return _init(_Selection(sampler, _SIZES.check("n_vocab", n_vocab), temperature, seed))


def check(sampler: Any, step: int) -> int:
    """Return the number of candidates in the last step of a `native_sampler`.

    A native function cannot raise: a row that cannot be sampled from, or for which a sampler of others fails,
    is left unchanged, and llama.cpp samples some token from it. Call this after every token, or once after
    many.

    Raises:
        GenerationError: There was such a row since the sampler was created or reset; the message names
            `step`.
    """
    selection = _selections[sampler.contents.ctx]
    if selection.error == _UNKNOWN_TOKEN:
        raise GenerationError(f"a candidate is not in the vocabulary of {selection.options[1]} tokens")
    if isinstance(selection.error, Exception):
        raise GenerationError(f"at step {step} or before: {selection.error}") from selection.error
    if selection.error:
        raise GenerationError(broken(selection.error, step))
    return selection.k
