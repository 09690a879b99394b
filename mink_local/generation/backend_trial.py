"""Compare backend sampling with host sampling before its first use with a model on a device.

A device, its driver or llama.cpp's code for it may differ from the CPU: logits in float16, a wrong softmax,
other candidates. A trial evaluates a fixed text twice, with the attached sampler and on the host. Its result
is remembered for the model file, the device, llama.cpp's build and the form of the sampler.
"""

import json
import logging
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path

import llama_cpp
import numpy as np
from llama_cpp import llama_cpp as C
from numpy.typing import NDArray
from platformdirs import user_cache_path

from mink_local.errors import GenerationError, ModelError
from mink_local.files import add_to_record, read_record
from mink_local.llama.context import Context, Segment
from mink_local.llama.devices import gpu_names
from mink_local.llama.token_sampler import TokenSampler
from mink_local.llama.weights import Weights
from mink_local.models.gguf import shards
from mink_local.samplers import MinK, MinP, Sampler, TopP

log = logging.getLogger("mink_local")

_TEXT = (
    "Robots were rare, and so the small town had built its own, out of an old oven. It was slow, it could "
    "not count, and on cold mornings it smelled of bread. Nobody minded: everyone had a story about it."
)
_STEPS = 48
_WARM = 4  # steps that are not timed
_SECONDS = 10.0  # after which a slow model takes no more steps
_TEMPERATURE, _SEED = 2.0, 1
_UNDECIDED = 3  # steps that may be left to the host; each moves the rest of an answer there
_NEAR = 1e-2  # of a threshold's logit; float32 moves what top-p and min-p keep
_DEVIATIONS = 6  # of the tokens' surprise from what their distribution has


@dataclass(frozen=True)
class TrialResult:
    """The result of a trial: what is wrong, or "", and the milliseconds of a step."""

    wrong: str
    backend_ms: float
    host_ms: float

    def complaint(self, must_be_faster: bool) -> str | None:
        """Return why backend sampling is not to be used, in words, or None if it is."""
        if self.wrong:
            return f"backend sampling failed its trial on this device: {self.wrong}"
        if must_be_faster and self.backend_ms >= self.host_ms:
            times = f"{self.backend_ms:.2f} ms a token, {self.host_ms:.2f} on the host"
            return f"backend sampling is not faster here: {times}"
        return None


class BackendTrials:
    """The trials of a model; each is made once, and remembered in the cache folder.

    Args:
        must_be_faster: Use backend sampling only where it is faster; otherwise being right is enough.
    """

    def __init__(self, weights: Weights, n_threads: int, must_be_faster: bool) -> None:
        self._weights, self._n_threads, self._must_be_faster = weights, n_threads, must_be_faster
        self._complaints: dict[Sampler, str | None] = {}

    def complaint(self, sampler: Sampler) -> str | None:
        """Return why a sampler with a backend form is not to use it, in words, or None if it is."""
        form = form_of(sampler)
        if form not in self._complaints:
            result = self._result(form)
            complaint = self._complaints[form] = result.complaint(self._must_be_faster)
            if complaint is not None:
                log.log(logging.WARNING if result.wrong else logging.INFO, "%s", complaint)
        return self._complaints[form]

    def _result(self, form: Sampler) -> TrialResult:
        """Return the remembered result of a trial, or make the trial now."""
        key = self._key(form)
        with suppress(KeyError, TypeError):  # unknown, or damaged
            return TrialResult(**read_record(_record())[key])
        try:
            result = run_trial(self._weights, form, self._n_threads)
        except (GenerationError, ModelError) as error:
            return TrialResult(str(error), 0.0, 0.0)  # not remembered: the next time it may work
        add_to_record(_record(), key, asdict(result))
        return result

    def _key(self, form: Sampler) -> str:
        """Return what a result depends on."""
        path = self._weights.path.absolute()
        files = [file.stat() for file in map(Path, shards(path)) if file.exists()]
        build = [
            version("llama-cpp-python"),
            C.llama_print_system_info().decode(),
            os.stat(llama_cpp.__file__).st_mtime_ns,  # changes with each installation
            os.environ.get("LLAMA_CPP_LIB_PATH"),
        ]
        devices = gpu_names() if self._weights.on_gpu else ["CPU"]
        sizes = [[file.st_size, file.st_mtime_ns] for file in files]
        return json.dumps([str(path), sizes, build, devices, str(form)])


def form_of(sampler: Sampler) -> Sampler:
    """Return the sampler with usual parameters whose graph has the same nodes."""
    if isinstance(sampler, MinK):
        return MinK(3.0 if sampler.tau > 0 else 0.0, 1.0 if sampler.floor > 0 else 0.0)
    if isinstance(sampler, TopP | MinP):
        return type(sampler)(order=sampler.order)
    return type(sampler)()


def run_trial(weights: Weights, sampler: Sampler, n_threads: int) -> TrialResult:
    """Compare backend sampling with the kernels on the steps of a text.

    Raises GenerationError if it cannot be attached or llama.cpp fails, and ModelError if there is no memory.
    """
    from mink_local.llama.backend_sampler import BackendSampler

    tokens = weights.tokenize(_TEXT, add_special=True, parse_special=False)
    tokens = tokens[: min(_STEPS, weights.n_ctx_train)]
    rows: list[NDArray[np.float32]] = []
    sampled: list[tuple[int | None, int]] = []
    context = Context(weights, len(tokens), n_threads)
    try:
        backend = BackendSampler(sampler, _TEMPERATURE, _SEED, context)
        if not backend.attach():
            raise GenerationError("this device lacks an operation")
        backend_ms = _take_steps(context, tokens, lambda _: sampled.append((backend.next(), backend.k)))
        backend.detach()
        context.clear()
        host = TokenSampler(sampler, _TEMPERATURE, _SEED, weights.n_vocab)

        def sample(step: int) -> None:
            host(context.logits(), step=step)
            rows.append(context.logits().copy())

        host_ms = _take_steps(context, tokens[: len(sampled)], sample)
    finally:
        context.close()
    return TrialResult(differences(sampler, rows, sampled), backend_ms, host_ms)


def _take_steps(context: Context, tokens: Sequence[int], sample: Callable[[int], None]) -> float:
    """Evaluate tokens one by one and call `sample` with the number of each step, from 1.

    Returns the milliseconds of a step. A slow model takes fewer steps.
    """
    seconds: list[float] = []
    for n, token in enumerate(tokens, start=1):
        if n > _WARM + 2 and sum(seconds) > _SECONDS:
            break
        start = time.perf_counter()
        context.decode(Segment([token], n - 1))
        sample(n)
        seconds.append(time.perf_counter() - start)
    return round(1e3 * float(np.median(seconds[_WARM:] or seconds)), 3)


def differences(
    sampler: Sampler, rows: Sequence[NDArray[np.float32]], sampled: Sequence[tuple[int | None, int]]
) -> str:
    """Return in words how backend sampling differs from a sampler's kernel, or "".

    Args:
        sampler: The sampler.
        rows: The logits (V,) of each step.
        sampled: The token of each step, None if it was left to the host, and its number of candidates.
    """
    n_different = n_undecided = 0
    excess = variance = 0.0  # of the tokens' surprise over the entropy, and what is expected of it
    for row, (token, k) in zip(rows, sampled, strict=False):
        if token is None:
            n_undecided += 1
            continue
        ids, kept = sampler.candidates(row, _TEMPERATURE)
        if isinstance(sampler, TopP | MinP):
            is_same = abs(k - ids.size) <= 1 + ids.size // 100 and row[token] >= kept[-1] - _NEAR
        else:
            is_same = k == ids.size and token in ids
        if not is_same:
            n_different += 1
            continue
        scaled = kept.astype(np.float64) / _TEMPERATURE
        total = np.logaddexp.reduce(scaled)
        p = np.exp(scaled - total)
        entropy = total - float(p @ scaled)
        excess += total - float(row[token]) / _TEMPERATURE - entropy
        variance += float(p @ (total - scaled - entropy) ** 2)
    if n_different:
        return f"{n_different} of {len(rows)} steps keep other candidates than they should"
    if n_undecided > _UNDECIDED:
        return f"{n_undecided} of {len(rows)} steps cannot be decided there"
    if abs(excess) > _DEVIATIONS * max(variance, 1e-6) ** 0.5:
        return "its tokens do not follow the distribution"
    return ""


def _record() -> Path:
    return user_cache_path("mink-local") / "backend-sampling.json"
