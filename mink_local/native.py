"""A sampler as a real `llama_sampler`, for a llama.cpp sampler chain of one's own.

    chain = llama_cpp.llama_sampler_chain_init(llama_cpp.llama_sampler_chain_default_params())
    cut = native_sampler(MinK(tau=3.0), n_vocab)
    llama_cpp.llama_sampler_chain_add(chain, cut)  # the chain owns it now
    llama_cpp.llama_sampler_chain_add(chain, llama_cpp.llama_sampler_init_temp(5.0))
    llama_cpp.llama_sampler_chain_add(chain, llama_cpp.llama_sampler_init_dist(seed))
    token = llama_cpp.llama_sampler_sample(chain, context, -1)
    k = check(cut, step=1)  # the number of candidates; raises for a row with a NaN

Its whole interface is native code: no step enters Python, and llama.cpp clones and frees it like one
of its own, in any order, with nothing to be kept alive on the Python side.
"""

import ctypes
from typing import Any

import numpy as np
from llama_cpp import llama_cpp as C
from llvmlite import binding as llvm
from numba import carray, njit, types, uintp
from numba.extending import intrinsic

from mink_local.errors import GenerationError
from mink_local.llama.token_data import TOKEN_DATA, layout, read_token_data, write_token_data
from mink_local.llama.token_sampler import broken
from mink_local.samplers import Sampler, kernels
from mink_local.samplers.compile import c_function

# Every kernel with its place here; `_select` below calls them by it.
_METHODS = (
    kernels.min_k,
    kernels.min_k_variant,
    kernels.greedy,
    kernels.top_k,
    kernels.top_p,
    kernels.min_p,
    kernels.top_n_sigma,
    kernels.eta,
    kernels.p_less,
)
_N_OPTIONS = 4  # the most that a kernel has
_UNKNOWN_TOKEN = -3


_SAMPLER = layout(C.llama_sampler, ctx=np.uintp)
_ARRAY = layout(C.llama_token_data_array, data=np.uintp, size=np.uintp, selected=np.int64, sorted=np.bool_)
_STATE = np.dtype(  # what `ctx` points to; the scratch arrays follow it in the same block of memory
    [
        ("interface", np.uintp),
        ("name", np.uintp),
        ("method", np.int64),
        ("options", np.float64, (_N_OPTIONS,)),
        ("n_vocab", np.int64),
        ("n_work", np.int64),
        ("k", np.int64),
        ("error", np.int64),
    ],
    align=True,
)
_SIZE = _STATE.itemsize

# Looked up by name when the code below is loaded: an address in it could not be cached on disk.
llvm.add_symbol("llama_sampler_init", ctypes.cast(C.llama_sampler_init, ctypes.c_void_p).value)
_init = types.ExternalFunction("llama_sampler_init", uintp(uintp, uintp))
_malloc = types.ExternalFunction("malloc", uintp(uintp))
_free = types.ExternalFunction("free", types.void(uintp))

_helper = njit(nogil=True, error_model="numpy")


@intrinsic
def _pointer(_, address):
    """The void pointer to an address."""

    def generate(context, builder, _, arguments):
        return builder.inttoptr(arguments[0], context.get_value_type(types.voidptr))

    return types.voidptr(address), generate


@_helper
def _context(sampler):
    return carray(sampler, (1,), _SAMPLER)[0].ctx


@_helper
def _states(sampler):
    return carray(_pointer(_context(sampler)), (1,), _STATE)


@_helper
def _create(states):
    """Address of a new llama_sampler with a copy of this state, or 0 where there is no memory."""
    context = _malloc(uintp(_SIZE + 8 * states[0].n_work + 8 * states[0].n_vocab))
    if context == 0:
        return context
    copies = carray(_pointer(context), (1,), _STATE)
    copies[0] = states[0]
    return _init(copies[0].interface, context)


@_helper
def _select(state, logits, work, ids):
    a, b, c, d = state.options[0], state.options[1], state.options[2], state.options[3]
    if state.method == 0:
        return kernels.min_k(logits, a, False, work, ids)
    if state.method == 1:
        return kernels.min_k_variant(logits, a, b, c != 0, d != 0, False, work, ids)
    if state.method == 2:
        return kernels.greedy(logits, False, work, ids)
    if state.method == 3:
        return kernels.top_k(logits, np.int64(a), False, work, ids)
    if state.method == 4:
        return kernels.top_p(logits, a, b, False, work, ids)
    if state.method == 5:
        return kernels.min_p(logits, a, b, False, work, ids)
    if state.method == 6:
        return kernels.top_n_sigma(logits, a, False, work, ids)
    if state.method == 7:
        return kernels.eta(logits, a, b, False, work, ids)
    return kernels.p_less(logits, a, False, work, ids)


@c_function(types.void(types.voidptr, types.voidptr))
def _apply(sampler, array):
    """Cut a llama_token_data_array down to the candidates, by token id; leaves it where it cannot."""
    state = _states(sampler)[0]
    candidates = carray(array, (1,), _ARRAY)[0]
    records = carray(_pointer(candidates.data), (np.int64(candidates.size),), TOKEN_DATA)
    scratch = _context(sampler) + uintp(_SIZE)
    work = carray(_pointer(scratch), (state.n_work,), np.uint64)
    scratch += uintp(8 * state.n_work)
    logits = carray(_pointer(scratch), (state.n_vocab,), np.float32)
    ids = carray(_pointer(scratch + uintp(4 * state.n_vocab)), (state.n_vocab,), np.int32)
    if not read_token_data(records, logits):
        state.error = _UNKNOWN_TOKEN
        return
    k = _select(state, logits, work, ids)
    if k < 0:
        state.error = k
        return
    write_token_data(logits, ids, k, records)
    candidates.size = k
    candidates.selected = -1
    candidates.sorted = False
    state.k = k


@c_function(types.void(types.voidptr))
def _reset(sampler):
    state = _states(sampler)[0]
    state.k = 0
    state.error = 0


@c_function(types.voidptr(types.voidptr))
def _clone(sampler):
    return _pointer(_create(_states(sampler)))


@c_function(types.void(types.voidptr))
def _release(sampler):
    _free(_context(sampler))


@c_function(uintp(types.voidptr))
def _new(states):
    return _create(carray(states, (1,), _STATE))


def _immortal(thing: Any) -> Any:
    """`thing`, never to be freed: a sampler may be used or freed while the interpreter goes down."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))
    return thing


_NAME = _immortal(ctypes.create_string_buffer(b"mink-local"))


@c_function(types.voidptr(types.voidptr))
def _name(sampler):
    return _pointer(_states(sampler)[0].name)


_INTERFACE = _immortal(C.llama_sampler_i())
for _field, _function in (
    ("name", _name),
    ("apply", _apply),
    ("reset", _reset),
    ("clone", _clone),
    ("free", _release),
):
    _immortal(_function)
    setattr(_INTERFACE, _field, getattr(C, f"llama_sampler_i_{_field}")(_function.address))


def native_sampler(sampler: Sampler, n_vocab: int, temperature: float = 1.0) -> Any:
    """A new `llama_sampler_p` that cuts as `sampler` does, over `n_vocab` tokens.

    It reads the logits as it finds them: place it after penalties and grammar and before
    llama.cpp's `temp`, whose `temperature` only a cut of the scaled distribution looks at. It keeps
    the candidates in the order of their ids, which is what `dist` needs to draw the same tokens as
    every other form of the sampler for a seed. The caller, or the chain that it is added to, owns it.

    Raises TypeError for mirostat, which llama.cpp has itself, MemoryError.
    """
    kernel, options = sampler.cut(temperature)
    if kernel not in _METHODS:
        raise TypeError(f"{sampler.name} is a sampler of llama.cpp's own, which also draws the token")
    state = np.zeros(1, _STATE)
    state["interface"], state["name"] = ctypes.addressof(_INTERFACE), ctypes.addressof(_NAME)
    state["method"] = _METHODS.index(kernel)
    state["n_vocab"], state["n_work"] = n_vocab, kernels.work_size(n_vocab)
    state["options"][0, : len(options)] = options
    address = _new.ctypes(state.ctypes.data)
    if not address:
        raise MemoryError(f"no memory for a sampler of {n_vocab} tokens")
    return ctypes.cast(address, C.llama_sampler_p_ctypes)


def check(sampler: Any, step: int) -> int:
    """The number of candidates of the last step of a `native_sampler`.

    A native function cannot raise: a row that nothing can be drawn from is left uncut, and llama.cpp
    draws some token from it. This raises GenerationError if that ever happened since the sampler was
    made or reset, naming `step`, so it may be asked after every token or once after many.
    """
    state = np.frombuffer(ctypes.string_at(sampler.contents.ctx, _SIZE), _STATE)[0]
    if state["error"] == _UNKNOWN_TOKEN:
        raise GenerationError(f"a candidate is no token of a vocabulary of {state['n_vocab']}")
    if state["error"]:
        raise GenerationError(broken(int(state["error"]), step))
    return int(state["k"])
