"""Backend sampling proves itself before it is used: it is compared with the kernels on this model and device.

A device, its driver or llama.cpp's code for it may compute what no CPU computes: logits in float16, a wrong
softmax, other candidates. So the first use of a form of backend sampling is preceded by a trial: the steps of
a fixed text, once with the attached sampler and once on the host. The verdict is remembered for the model
file, the device, llama.cpp's build and the form.
"""

import json
import logging
import os
import time
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
from mink_local.llama.backend_sampler import BackendSampler
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
        must_be_faster: Backend sampling was not asked for, so that being right is not enough.
    """

    def __init__(self, weights: Weights, n_threads: int, must_be_faster: bool) -> None:
        self._weights, self._n_threads, self._must_be_faster = weights, n_threads, must_be_faster
        self._verdicts: dict[Sampler, TrialResult] = {}

    def complaint(self, sampler: Sampler) -> str | None:
        """Return why a sampler with a backend form is not to use it, in words, or None if it is."""
        form = form_of(sampler)
        if form not in self._verdicts:
            verdict = self._verdicts[form] = self._remembered(form) or self._try(form)
            complaint = verdict.complaint(self._must_be_faster)
            if complaint is not None:
                log.log(logging.WARNING if verdict.wrong else logging.INFO, "%s", complaint)
        return self._verdicts[form].complaint(self._must_be_faster)

    def _try(self, form: Sampler) -> TrialResult:
        try:
            verdict = run_trial(self._weights, form, self._n_threads)
        except (GenerationError, ModelError) as error:
            return TrialResult(str(error), 0.0, 0.0)  # perhaps not the next time
        self._remember(form, verdict)
        return verdict

    def _remembered(self, form: Sampler) -> TrialResult | None:
        try:
            return TrialResult(**read_record(_record())[self._key(form)])
        except (OSError, KeyError, TypeError):
            return None

    def _remember(self, form: Sampler, verdict: TrialResult) -> None:
        try:
            key = self._key(form)
        except OSError as error:
            log.info("a verdict is not remembered: %s", error)
        else:
            add_to_record(_record(), key, asdict(verdict))

    def _key(self, form: Sampler) -> str:
        """Return what a verdict depends on. Raises OSError if the model file is gone."""
        path = self._weights.path.absolute()
        files = [[status.st_size, status.st_mtime_ns] for status in map(os.stat, shards(path))]
        build = [
            version("llama-cpp-python"),
            C.llama_print_system_info().decode(),
            os.stat(llama_cpp.__file__).st_mtime_ns,  # another one after each installation
            os.environ.get("LLAMA_CPP_LIB_PATH"),
        ]
        devices = gpu_names() if self._weights.on_gpu else ["CPU"]
        return json.dumps([str(path), files, build, devices, str(form)])


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
    tokens = weights.tokenize(_TEXT, add_special=True, parse_special=False)
    tokens = tokens[: min(_STEPS, weights.n_ctx_train)]
    context = Context(weights, len(tokens), n_threads)
    try:
        backend = BackendSampler(sampler, _TEMPERATURE, _SEED, context)
        if not backend.attach():
            raise GenerationError("this device lacks an operation")
        sampled: list[tuple[int | None, int]] = []
        seconds: list[list[float]] = [[], []]
        for position, token in enumerate(tokens):
            began = time.perf_counter()
            context.decode(Segment([token], position))
            sampled.append((backend.next(), backend.k))
            seconds[0].append(time.perf_counter() - began)
            if position > _WARM and sum(seconds[0]) > _SECONDS:
                break
        backend.detach()
        context.clear()
        host = TokenSampler(sampler, _TEMPERATURE, _SEED, weights.n_vocab)
        check = _Differences(sampler)
        for position, (token, (choice, k)) in enumerate(zip(tokens, sampled, strict=False)):
            began = time.perf_counter()
            context.decode(Segment([token], position))
            host(context.logits(), step=position + 1)
            seconds[1].append(time.perf_counter() - began)
            check.add(context.logits(), choice, k)
    finally:
        context.close()
    backend_ms, host_ms = (round(1e3 * float(np.median(times[_WARM:] or times)), 3) for times in seconds)
    return TrialResult(check.wrong(), backend_ms, host_ms)


class _Differences:
    """Counts steps in which backend sampling differs from a sampler's kernel."""

    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler
        self._n_steps = self._n_different = self._n_undecided = 0
        self._surprise = self._variance = 0.0  # summed: above the distribution's entropy; of that

    def add(self, logits: NDArray[np.float32], token: int | None, k: int) -> None:
        """Take the token that was sampled from k candidates, None if that was left to the host."""
        self._n_steps += 1
        if token is None:
            self._n_undecided += 1
            return
        ids, kept = self._sampler.candidates(logits, _TEMPERATURE)
        if isinstance(self._sampler, TopP | MinP):
            same = abs(k - ids.size) <= 1 + ids.size // 100 and logits[token] >= kept[-1] - _NEAR
        else:
            same = k == ids.size and token in ids
        self._n_different += not same
        scaled = (kept.astype(np.float64) - kept[0]) / _TEMPERATURE
        surprises = np.log(np.exp(scaled).sum()) - scaled
        p = np.exp(-surprises)
        entropy = float(p @ surprises)
        if same:
            self._surprise += (kept[0] - float(logits[token])) / _TEMPERATURE + surprises[0] - entropy
            self._variance += float(p @ (surprises - entropy) ** 2)

    def wrong(self) -> str:
        """Return in words what is wrong, or ""."""
        if self._n_different:
            return f"{self._n_different} of {self._n_steps} steps keep other candidates than they should"
        if self._n_undecided > _UNDECIDED:
            return f"{self._n_undecided} of {self._n_steps} steps cannot be decided there"
        if abs(self._surprise) > _DEVIATIONS * max(self._variance, 1e-6) ** 0.5:
            return "its tokens do not follow the distribution"
        return ""


def _record() -> Path:
    return user_cache_path("mink-local") / "backend-sampling.json"
