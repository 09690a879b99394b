"""A sampler as a real `llama_sampler`, for a llama.cpp sampler chain of your own.

    chain = llama_cpp.llama_sampler_chain_init(llama_cpp.llama_sampler_chain_default_params())
    min_k = native_sampler(MinK(tau=3.0), n_vocab)
    llama_cpp.llama_sampler_chain_add(chain, min_k)  # the chain owns it now
    llama_cpp.llama_sampler_chain_add(chain, llama_cpp.llama_sampler_init_temp(5.0))
    llama_cpp.llama_sampler_chain_add(chain, llama_cpp.llama_sampler_init_dist(seed))
    token = llama_cpp.llama_sampler_sample(chain, context, -1)
    k = check(min_k, step=1)  # the number of candidates; raises for a row with a NaN

Its whole interface is native code: no step enters Python, and llama.cpp clones and frees it like a
sampler of its own, in any order, with nothing to be kept alive in Python.
"""

import ctypes
import functools
from typing import Any

import numpy as np
from llama_cpp import llama_cpp as C
from llvmlite import binding as llvm
from llvmlite import ir
from numba import carray, float32, float64, int32, int64, types, uint64, uintp
from numba.extending import intrinsic

from mink_local.errors import GenerationError
from mink_local.llama.token_data import TOKEN_DATA, layout, read_token_data, write_token_data
from mink_local.llama.token_sampler import broken
from mink_local.samplers import Mirostat, Sampler, kernels
from mink_local.samplers.compile import c_function, helper

_MAX_OPTIONS = 8  # of a kernel
_UNKNOWN_TOKEN = -3


def _immortal(thing: Any) -> Any:
    """Never free `thing`: a sampler may be used or freed while the interpreter goes down."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))
    return thing


def _external(name: str, function: Any, signature: Any) -> Any:
    llvm.add_symbol(name, ctypes.cast(function, ctypes.c_void_p).value)
    return types.ExternalFunction(name, signature)


_SAMPLER = layout(C.llama_sampler, ctx=np.uintp)
_ARRAY = layout(C.llama_token_data_array, data=np.uintp, size=np.uintp, selected=np.int64, sorted=np.bool_)
_STATE = np.dtype(  # what `ctx` points to; the scratch arrays follow it in the same block of memory
    [
        ("interface", np.uintp),
        ("name", np.uintp),
        ("kernel", np.uintp),  # the address of its C function
        ("n_options", np.int64),
        ("options", np.float64, (_MAX_OPTIONS,)),
        ("n_vocab", np.int64),
        ("n_work", np.int64),
        ("k", np.int64),
        ("error", np.int64),
    ],
    align=True,
)
_SIZE = _STATE.itemsize

# Looked up by name when the code below is loaded: an address in it could not be cached on disk. Python's
# allocator, because on Windows several C libraries have a `malloc` and a `free`; it needs no GIL.
_init = _external("llama_sampler_init", C.llama_sampler_init, uintp(uintp, uintp))
_malloc = _external("PyMem_RawMalloc", ctypes.pythonapi.PyMem_RawMalloc, uintp(uintp))
_raw_free = _external("PyMem_RawFree", ctypes.pythonapi.PyMem_RawFree, types.void(uintp))

_KERNEL = int64(float32[::1], float64[::1], uint64[::1], int32[::1])


@intrinsic
def _pointer(_, address):
    """The void pointer to an address."""

    def generate(context, builder, _, arguments):
        return builder.inttoptr(arguments[0], context.get_value_type(types.voidptr))

    return types.voidptr(address), generate


@intrinsic
def _call_kernel(_, address, logits, options, work, ids):  # noqa: ARG001
    """Call the C function of a kernel, which Numba gives arrays by value."""

    def generate(context, builder, signature, arguments):
        values = [context.get_value_type(kind) for kind in (signature.return_type, *signature.args[1:])]
        function = ir.FunctionType(values[0], values[1:]).as_pointer()
        return builder.call(builder.inttoptr(arguments[0], function), arguments[1:])

    return _KERNEL.return_type(address, *_KERNEL.args), generate


@helper
def _context(sampler):
    return carray(sampler, (1,), _SAMPLER)[0].ctx


@helper
def _states(sampler):
    return carray(_pointer(_context(sampler)), (1,), _STATE)


@helper
def _create(states):
    """Address of a new llama_sampler with a copy of this state, or 0 if there is no memory."""
    context = _malloc(uintp(_SIZE + 8 * states[0].n_work + 8 * states[0].n_vocab))
    if context == 0:
        return context
    copies = carray(_pointer(context), (1,), _STATE)
    copies[0] = states[0]
    return _init(copies[0].interface, context)


@c_function(types.void(types.voidptr, types.voidptr))
def _apply(sampler, array):
    """Leave the candidates in a llama_token_data_array, by token id; change nothing if there are none."""
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
    k = _call_kernel(state.kernel, logits, state.options[: state.n_options], work, ids)
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
def _free(sampler):
    _raw_free(_context(sampler))


@c_function(uintp(types.voidptr))
def _new(states):
    return _create(carray(states, (1,), _STATE))


_NAME = _immortal(ctypes.create_string_buffer(b"mink-local"))


@c_function(types.voidptr(types.voidptr))
def _name(sampler):
    return _pointer(_states(sampler)[0].name)


_INTERFACE = _immortal(C.llama_sampler_i())
for _function in (_name, _apply, _reset, _clone, _free):
    _field = _immortal(_function).__name__[1:]
    setattr(_INTERFACE, _field, getattr(C, f"llama_sampler_i_{_field}")(_function.address))


@functools.cache
def _address(kernel: Any) -> int:
    """Return the address of a kernel as a C function, compiled on first use."""
    return int(_immortal(c_function(_KERNEL)(kernel.py_func)).address)


def native_sampler(sampler: Sampler, n_vocab: int, temperature: float = 1.0) -> Any:
    """Return a new `llama_sampler_p` that leaves the candidates of `sampler`.

    Place it after penalties and grammar, and before llama.cpp's `temp`. It leaves the candidates in the
    order of their ids, in which `dist` samples the same tokens as every other form of the sampler for a
    seed. The caller owns it, or the chain that it is added to.

    Args:
        sampler: Any sampler except mirostat, which llama.cpp has itself; also one of your own.
        n_vocab: The number of tokens of the vocabulary.
        temperature: The temperature of `temp`. Only a method of order "temperature-first" depends on it.

    Raises:
        TypeError: The sampler is mirostat, or has more than 8 options.
        MemoryError: There is no memory for the sampler.
    """
    if isinstance(sampler, Mirostat):
        raise TypeError(f"{sampler.name} is a sampler of llama.cpp's own, which also samples the token")
    options = sampler.kernel_options(temperature)
    if options.size > _MAX_OPTIONS:
        raise TypeError(f"{sampler.name} has {options.size} options: use {_MAX_OPTIONS} at most")
    state = np.zeros(1, _STATE)
    state["interface"], state["name"] = ctypes.addressof(_INTERFACE), ctypes.addressof(_NAME)
    state["kernel"], state["n_options"] = _address(sampler.kernel), options.size
    state["options"][0, : options.size] = options
    state["n_vocab"], state["n_work"] = n_vocab, kernels.work_size(n_vocab)
    address = _new.ctypes(state.ctypes.data)
    if not address:
        raise MemoryError(f"no memory for a sampler of {n_vocab} tokens")
    return ctypes.cast(address, C.llama_sampler_p_ctypes)


def check(sampler: Any, step: int) -> int:
    """Return the number of candidates of the last step of a `native_sampler`.

    A native function cannot raise: a row that nothing can be sampled from is left unchanged, and llama.cpp
    samples some token from it. Check after every token, or once after many.

    Raises:
        GenerationError: There was such a row since the sampler was made or reset. The message names `step`.
    """
    state = np.frombuffer(ctypes.string_at(sampler.contents.ctx, _SIZE), _STATE)[0]
    if state["error"] == _UNKNOWN_TOKEN:
        raise GenerationError(f"a candidate is no token of a vocabulary of {state['n_vocab']}")
    if state["error"]:
        raise GenerationError(broken(int(state["error"]), step))
    return int(state["k"])
