"""Time generation with every sampler, for `mink-bench decode`."""

import time
import weakref
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Literal, Protocol

import numpy as np
from llama_cpp import llama_cpp as C

from mink_local.bench.measuring import Row, in_turn, slowdown
from mink_local.bench.sampler import LLAMA_CPP, PROMPT
from mink_local.errors import MinkError
from mink_local.generation.loading import make_context
from mink_local.generation.model import Model
from mink_local.generation.slots import Slot, decode
from mink_local.llama.backend_sampler import BackendSampler, has_backend_form
from mink_local.llama.context import Context
from mink_local.llama.token_sampler import TokenSampler
from mink_local.samplers import Greedy, Sampler

Form = Literal["host", "backend", "llama.cpp"]


def time_decoding(
    model: Model,
    samplers: Sequence[Sampler],
    forms: Sequence[Form],
    temperature: float,
    tokens: int,
    rounds: int,
) -> list[Row]:
    """Generate answers to one prompt with every sampler in turn; generation continues past end-of-sequence.

    Each sampler takes those of `forms` that it has: "host", "backend" (inside llama.cpp's compute graph) or
    "llama.cpp" (its own samplers). Greedy and llama.cpp's greedy come first. Raises MinkError if the device
    cannot sample on the backend.
    """
    prompt = model.prompt_tokens([{"role": "user", "content": PROMPT}])
    n_threads = model.engine.context.n_threads
    context = make_context(model.weights, len(prompt) + tokens, 1, n_threads=n_threads)
    generation = _Generation(context, model.weights.n_vocab, prompt, temperature, tokens)
    methods: dict[tuple[str, Form], Sampler] = {("greedy", "llama.cpp"): Greedy()}
    for form in forms:
        methods |= {(str(sampler), form): sampler for sampler in [Greedy(), *samplers] if _has(sampler, form)}
    contestants = {key: partial(generation.time, sampler, key[1]) for key, sampler in methods.items()}
    return compare(in_turn(contestants, rounds))


def compare(steps: Mapping[tuple[str, Form], Sequence[tuple[float, float]]]) -> list[Row]:
    """Return a row per method and form: its speed, and how much longer its steps are than greedy's.

    Args:
        steps: By method and form, the seconds of a step and of its sampling, one pair per round; each form
            has greedy.

    Returns:
        Medians over rounds; the slowdown is in percent, with its 95% interval.
    """
    rows = []
    for (method, form), times in steps.items():
        step, sampling = zip(*times, strict=True)
        percent, low, high = slowdown(step, [seconds for seconds, _ in steps["greedy", form]])
        rows.append(
            {
                "method": method,
                "form": form,
                "tokens_per_s": 1 / float(np.median(step)),
                "ms_per_token": 1e3 * float(np.median(step)),
                "sampling_us": 1e6 * float(np.median(sampling)),
                "slowdown_percent": percent,
                "low": low,
                "high": high,
            }
        )
    return rows


def _has(sampler: Sampler, form: Form) -> bool:
    if form == "llama.cpp":
        return type(sampler) in LLAMA_CPP
    return form == "host" or has_backend_form(sampler)


class _Generation:
    """Generates answers to one prompt and times the steps."""

    def __init__(
        self, context: Context, n_vocab: int, prompt: Sequence[int], temperature: float, tokens: int
    ) -> None:
        self._context = context
        self._slot: Slot[None] = Slot(context, 0)
        self._n_vocab, self._prompt = n_vocab, prompt
        self._temperature, self._tokens = temperature, tokens

    def time(self, sampler: Sampler, form: Form, seed: int) -> tuple[float, float]:
        """Return the median seconds of a step of an answer, and of its sampling."""
        self._slot.truncate(0)
        stepper = self._stepper(sampler, form, seed)
        self._slot.queue(self._prompt)
        evaluate(self._context, self._slot)
        times = np.array([self._step(stepper) for _ in range(self._tokens)])
        self._context.detach()
        whole, sampling = np.median(times, axis=0)
        return float(whole), float(sampling)

    def _step(self, stepper: "Stepper") -> tuple[float, float]:
        began = time.perf_counter()
        token = stepper.next(self._context)
        sampled = time.perf_counter()
        self._slot.push(token)
        evaluate(self._context, self._slot)
        return time.perf_counter() - began, sampled - began

    def _stepper(self, sampler: Sampler, form: Form, seed: int) -> "Stepper":
        if form == "llama.cpp":
            return LlamaCppStepper(sampler, self._temperature, seed)
        host = HostStepper(sampler, self._temperature, seed, self._n_vocab)
        if form == "host":
            return host
        backend = BackendSampler(sampler, self._temperature, seed, self._context)
        if not backend.attach():
            raise MinkError(f"this device cannot sample {sampler} inside llama.cpp's graph: use --form host")
        return BackendStepper(backend, host, self._slot)


class Stepper(Protocol):
    """Samples tokens one after the other."""

    def next(self, context: Context) -> int:
        """Return a token for the last output of the last batch."""
        ...


class HostStepper:
    """Samples from the logits, as `Engine` does on the host."""

    def __init__(self, sampler: Sampler, temperature: float, seed: int, n_vocab: int) -> None:
        self._sample = TokenSampler(sampler, temperature, seed, n_vocab)
        self._n_steps = 0

    def next(self, context: Context) -> int:
        self._n_steps += 1
        return self._sample(context.logits(), step=self._n_steps)


class BackendStepper:
    """Reads the tokens that an attached sampler has sampled, and changes to the host as `Engine` does."""

    def __init__(self, backend: BackendSampler, host: HostStepper, slot: Slot[None]) -> None:
        self._backend: BackendSampler | None = backend
        self._host, self._slot = host, slot

    def next(self, context: Context) -> int:
        if self._backend is not None:
            token = self._backend.next()
            if token is not None:
                return token
            self._backend.detach()
            self._backend = None
            self._slot.evaluate_last_again()
            evaluate(context, self._slot)
        return self._host.next(context)


class LlamaCppStepper:
    """Samples with llama.cpp's own samplers, in llama.cpp's order: the cut, then temperature."""

    def __init__(self, sampler: Sampler, temperature: float, seed: int) -> None:
        self._chain = C.llama_sampler_chain_init(C.llama_sampler_chain_default_params())
        weakref.finalize(self, C.llama_sampler_free, self._chain)
        C.llama_sampler_chain_add(self._chain, LLAMA_CPP[type(sampler)](sampler))
        if not isinstance(sampler, Greedy):
            C.llama_sampler_chain_add(self._chain, C.llama_sampler_init_temp(temperature))
            C.llama_sampler_chain_add(self._chain, C.llama_sampler_init_dist(seed))

    def next(self, context: Context) -> int:
        return int(C.llama_sampler_sample(self._chain, context.handle, -1))


def evaluate(context: Context, slot: Slot[None]) -> None:
    """Evaluate what a slot has pending, and wait for it: a GPU is still at work when llama.cpp returns."""
    while slot.pending:
        decode(context, [slot])
    C.llama_synchronize(context.handle)
