"""Backend sampling: which answers are sampled inside llama.cpp's graph, after a trial of the device.

A device, its driver or llama.cpp's code for it may give different results than the CPU: logits in float16, a
wrong softmax, other candidates. A trial evaluates a fixed text twice, with the sampler attached and on the
host. The verdict is remembered per model file, device, llama.cpp build and form of the sampler.
"""

import json
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from llama_cpp import llama_cpp as C
from numpy.typing import NDArray
from platformdirs import user_cache_path

from mink_local.errors import GenerationError, ModelError
from mink_local.files import add_to_record, read_record
from mink_local.generation.request import Request
from mink_local.llama.backend_sampler import BackendSampler, has_backend_form
from mink_local.llama.context import Context, Segment
from mink_local.llama.devices import gpu_names
from mink_local.llama.token_sampler import TokenSampler
from mink_local.llama.weights import Weights
from mink_local.models.trust import file_state
from mink_local.samplers import MinK, MinP, Sampler, TopP

log = logging.getLogger("mink_local")

_TEXT = (
    "Robots were rare, and so the small town had built its own, out of an old oven. It was slow, it could "
    "not count, and on cold mornings it smelled of bread. Nobody minded: everyone had a story about it."
)
_STEPS = 48
_WARM = 4  # untimed steps
_SECONDS = 10.0  # after which a slow model takes no more steps
_TEMPERATURE, _SEED = 2.0, 1
_UNDECIDED = 3  # steps that may be left to the host; each one moves the rest of an answer there
_NEAR = 1e-2  # distance in logits from the threshold of top-p or min-p, which float32 moves
_DEVIATIONS = 6  # allowed deviation of the tokens' surprisal from its expectation, in standard deviations


@dataclass(frozen=True)
class TrialResult:
    """The result of a trial: what is wrong, or "", and the milliseconds per step."""

    wrong: str
    backend_ms: float = 0.0
    host_ms: float = 0.0


class BackendSampling:
    """Decides which answers of a model are sampled inside llama.cpp's graph.

    Args:
        is_requested: Whether correct results on the device suffice; samplers without a backend form then run
            on the host with a warning. Otherwise the device must also be faster, and there are no warnings.
    """

    def __init__(self, weights: Weights, n_threads: int, is_requested: bool) -> None:
        self._weights, self._n_threads, self._is_requested = weights, n_threads, is_requested
        self._complaints: dict[Sampler, str] = {}  # "" if there is none

    def obstacle(self, sampler: Sampler, needs_logits: bool) -> str:
        """Return why tokens are not sampled in the graph, or "" if they are."""
        return _without_form(sampler, needs_logits) or self._complaint(sampler)

    def attached(self, request: Request, seed: int, context: Context, seq_id: int) -> BackendSampler | None:
        """Attach a request's sampler to a sequence; None if its tokens are sampled on the host."""
        params = request.params
        sampler = params.effective_sampler
        reason = _without_form(sampler, request.needs_logits)
        if reason and self._is_requested:
            log.warning("%s: sampling on the CPU", reason)
        if reason or self._complaint(sampler):
            return None
        backend = BackendSampler(sampler, params.temperature, seed, context, seq_id)
        try:
            backend.attach()
        except GenerationError as error:
            log.warning("%s: sampling on the CPU", error)
            return None
        return backend

    def _complaint(self, sampler: Sampler) -> str:
        """Return why a sampler should not use its backend form, or "", according to a single trial."""
        form = form_of(sampler)
        if form not in self._complaints:
            verdict = self._verdict(form)
            complaint = ""
            if verdict.wrong:
                complaint = f"backend sampling failed its trial on this device: {verdict.wrong}"
                log.warning("%s", complaint)
            elif not self._is_requested and verdict.backend_ms >= verdict.host_ms:
                times = f"{verdict.backend_ms:.2f} ms per token, {verdict.host_ms:.2f} on the host"
                complaint = f"backend sampling is not faster here: {times}"
                log.info("%s", complaint)
            self._complaints[form] = complaint
        return self._complaints[form]

    def _verdict(self, form: Sampler) -> TrialResult:
        """Return the remembered verdict, or that of a new trial."""
        path = self._weights.path.absolute()
        devices = gpu_names() if self._weights.on_gpu else ["CPU"]
        build = C.llama_print_system_info().decode()
        key = json.dumps([str(path), file_state(path), build, devices, str(form)])
        with suppress(KeyError, TypeError):  # unknown or damaged
            return TrialResult(**read_record(_record())[key])
        try:
            verdict = run_trial(self._weights, form, self._n_threads)
        except (GenerationError, ModelError) as error:
            return TrialResult(str(error))  # not remembered: it may work next time
        add_to_record(_record(), key, asdict(verdict))
        return verdict


def _without_form(sampler: Sampler, needs_logits: bool) -> str:
    if needs_logits:
        return "constraints, log-probabilities and bans have no backend form"
    return "" if has_backend_form(sampler) else f"{sampler} has no backend form"


def form_of(sampler: Sampler) -> Sampler:
    """Return a sampler with ordinary parameters and the same graph nodes."""
    if isinstance(sampler, MinK):
        return MinK(3.0 if sampler.tau > 0 else 0.0, 1.0 if sampler.floor > 0 else 0.0)
    if isinstance(sampler, TopP | MinP):
        return type(sampler)(order=sampler.order)
    return type(sampler)()


def run_trial(weights: Weights, sampler: Sampler, n_threads: int) -> TrialResult:
    """Compare backend sampling with the kernels, step by step on a text.

    Raises GenerationError if it cannot be attached or llama.cpp fails, ModelError if memory is insufficient.
    """
    tokens = weights.tokenize(_TEXT, add_special=True, parse_special=False)
    tokens = tokens[: min(_STEPS, weights.n_ctx_train)]
    rows: list[NDArray[np.float32]] = []
    sampled: list[tuple[int | None, int]] = []
    host = TokenSampler(sampler, _TEMPERATURE, _SEED, weights.n_vocab)
    with closing(Context(weights, len(tokens), n_threads)) as context:
        backend = BackendSampler(sampler, _TEMPERATURE, _SEED, context)
        backend.attach()

        def sample(step: int) -> None:
            host(context.logits(), step)
            rows.append(context.logits().copy())

        backend_ms = _take_steps(context, tokens, lambda _: sampled.append((backend.next(), backend.k)))
        backend.detach()
        context.clear()
        host_ms = _take_steps(context, tokens[: len(sampled)], sample)
    return TrialResult(differences(sampler, rows, sampled), backend_ms, host_ms)


def _take_steps(context: Context, tokens: Sequence[int], sample: Callable[[int], None]) -> float:
    """Evaluate tokens one by one and call `sample` with each step's number, from 1.

    Returns the milliseconds per step. A slow model takes fewer steps.
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
    """Return how backend sampling differs from a sampler's kernel, or "".

    Args:
        sampler: The sampler.
        rows: The logits (V,) of each step.
        sampled: For each step, the token, or None if it was left to the host, and the number of candidates.
    """
    may_be_near = isinstance(sampler, TopP | MinP)
    n_different = n_undecided = 0
    excess = variance = 0.0  # of the tokens' surprisal over the entropy, and its expected variance
    for row, (token, k) in zip(rows, sampled, strict=False):
        if token is None:
            n_undecided += 1
            continue
        ids, kept = sampler.candidates(row, _TEMPERATURE)
        most = 1 + ids.size // 100 if may_be_near else 0
        lowest = kept[-1] - (_NEAR if may_be_near else 0.0)
        if abs(k - ids.size) > most or row[token] < lowest:
            n_different += 1
            continue
        scaled = kept.astype(np.float64) / _TEMPERATURE
        log_p = scaled - np.logaddexp.reduce(scaled)
        p = np.exp(log_p)
        excess += float(p @ scaled) - float(row[token]) / _TEMPERATURE
        variance += float(p @ (log_p - p @ log_p) ** 2)
    if n_different:
        return f"{n_different} of {len(rows)} steps keep the wrong candidates"
    if n_undecided > _UNDECIDED:
        return f"{n_undecided} of {len(rows)} steps could not be decided"
    if abs(excess) > _DEVIATIONS * max(variance, 1e-6) ** 0.5:
        return "its tokens do not follow the distribution"
    return ""


def _record() -> Path:
    return user_cache_path("mink-local") / "backend-sampling.json"
