"""GGUF models in lm-evaluation-harness: its tasks, batched in this process, with any sampler.

The harness has no entry point for other packages' models, so `mink-eval lm-eval` registers this one as
mink-local and passes its command line on to the harness.
"""

import hashlib
import logging
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import click
from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM
from lm_eval.api.registry import register_model
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
from tqdm import tqdm

from mink_local.cli import file_text
from mink_local.errors import MinkError
from mink_local.evals.inputs import DATE, file_sha256, template_sha256
from mink_local.generation.loading import load_model
from mink_local.generation.request import Request, SamplingParams
from mink_local.llama.constants import MAX_SEED, check_range
from mink_local.models.catalog import EMBEDDED
from mink_local.samplers import SAMPLERS, Chain, Greedy, Sampler, TopP, parse
from mink_local.version import __version__

NAME = "mink-local"
log = logging.getLogger("mink_local")

_HARNESS_ARGUMENTS = {"batch_size", "max_batch_size", "device"}
_OFF: dict[str, tuple[float, ...]] = {"top_k": (0, -1), "top_p": (1.0,), "min_p": (0.0,)}


@register_model(NAME)
class MinkLM(TemplateLM):  # type: ignore[misc]
    """A GGUF model for the harness.

    Args:
        model: Name or path of the model.
        sampler: Sampler for all generation, as text; None uses each task's own (`top_p`, `top_k` or another
            request field).
        temperature: Temperature for all generation; None uses each task's own, mostly 0 (greedy).
        seed: Seed of the first request; later requests count up from it.
        n_ctx: Maximum tokens of a prompt plus its answer.
        parallel: Number of answers generated at a time.
        gpu_layers: See --gpu-layers.
        threads: See --threads.
        max_gen_toks: Maximum length of an answer in tokens, unless the task sets a limit.
        chat_template_file: See --chat-template-file.
        rest: Sampler options that the harness split off at their commas, and what it passes to every model.

    Raises:
        MinkError: An argument is unknown or out of range.
    """

    def __init__(
        self,
        model: str = EMBEDDED,
        sampler: str | None = None,
        temperature: float | None = None,
        seed: int = 0,
        n_ctx: int = 4096,
        parallel: int | str = "auto",
        gpu_layers: int | str = "auto",
        threads: int | None = None,
        max_gen_toks: int = 256,  # as in the harness's own models
        chat_template_file: str | None = None,
        **rest: Any,
    ) -> None:
        super().__init__()
        text = None if sampler is None else _with_options(sampler, rest)
        unknown = sorted(set(rest) - _HARNESS_ARGUMENTS)
        if unknown:
            raise MinkError(
                f"{NAME} takes no model argument {', '.join(unknown)}: it takes model, sampler, temperature, "
                "seed, n_ctx, parallel, gpu_layers, threads, max_gen_toks and chat_template_file"
            )
        try:
            check_range("seed", seed, 0, MAX_SEED)
            template = None if chat_template_file is None else file_text(chat_template_file)
            self._sampler = parse(text) if text is not None else None
            self._model = load_model(
                model,
                n_ctx=256,  # until `reserve`
                n_gpu_layers=gpu_layers,  # type: ignore[arg-type]
                n_threads=threads,
                date=DATE,
                chat_template=template,
            )
        except (ValueError, click.BadParameter) as error:
            raise MinkError(f"--model_args: {error}") from None
        self._template_sha256 = template_sha256({"chat_template": template})
        self._temperature = None if temperature is None else float(temperature)
        self._seed = seed
        self._parallel: Any = parallel
        self._max_gen_toks = max_gen_toks
        self.max_length = min(n_ctx, self._model.weights.n_ctx_train)
        self._n_cut = 0  # prompts that lost their beginning

    def get_model_info(self) -> dict[str, Any]:
        """Return what the harness adds to the "config" of its results."""
        return {
            "model_sha256": file_sha256(Path(self._model.weights.path)),
            "model_template_sha256": self._template_sha256,
            "model_sampler": None if self._sampler is None else str(self._sampler),
            "model_temperature": self._temperature,
            "mink_local_version": __version__,
        }

    # Tokens and templates

    @property
    def eot_token_id(self) -> int:
        return self._token(self._model.weights.eos)

    @property
    def prefix_token_id(self) -> int:
        """The token to put before a text without context: the BOS token, or else the end token."""
        return self._token(self._model.weights.bos or self._model.weights.eos)

    def _token(self, text: str) -> int:
        (token,) = self.tok_encode(text, add_special_tokens=False)
        return token

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
        if add_special_tokens is None:
            return self._model.prompt_tokens(string) if string else []
        return self._model.weights.tokenize(string, add_special=add_special_tokens, parse_special=True)

    @property
    def tokenizer_name(self) -> str:
        """The name under which the harness caches requests; it distinguishes models and chat templates."""
        template = self._model.weights.chat_template or ""
        return f"{self._model.name}-{hashlib.sha256(template.encode()).hexdigest()[:16]}"

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        return self._model.weights.chat_template if chat_template else None

    def apply_chat_template(self, chat_history: list[dict[str, str]], *_: Any, **__: Any) -> str:
        """Return the prompt for an answer, or for the rest of one that comes last."""
        return self._model.apply_chat_template(chat_history)

    # Log-probabilities

    def _loglikelihood_tokens(
        self,
        requests: list[tuple[tuple[str, str] | None, list[int], list[int]]],
        disable_tqdm: bool = False,
        **_: Any,
    ) -> list[tuple[float, bool]]:
        """Return the logprob of each continuation, and whether greedy decoding would generate it."""
        pairs = [self._fitted(context, continuation) for _, context, continuation in requests]
        results = []
        scored = self._model.logprobs(pairs, self._parallel)
        for (strings, *_tokens), continuation in zip(
            requests, tqdm(scored, desc="Scoring", disable=disable_tqdm), strict=True
        ):
            results.append((continuation.total, continuation.is_greedy))
            if strings is not None:
                self.cache_hook.add_partial("loglikelihood", strings, results[-1])
        return results

    def _fitted(self, context: list[int], continuation: list[int]) -> tuple[list[int], list[int]]:
        """Drop the beginning of a context that is too long, as the harness's own models do."""
        if len(continuation) > self.max_length:
            raise MinkError(
                f"a continuation has {len(continuation)} tokens but n_ctx is {self.max_length}: "
                "set a larger one with --model_args n_ctx=N"
            )
        return context[-(self.max_length + 1 - len(continuation)) :], continuation

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
        """Return the logprobs of whole texts, in windows of `max_length` tokens."""
        windows: list[tuple[None, list[int], list[int]]] = []
        text_of: list[int] = []  # by window
        for i, (text,) in enumerate(request.args for request in requests):
            tokens = self.tok_encode(text, add_special_tokens=False)
            pairs = get_rolling_token_windows(tokens, self.prefix_token_id, self.max_length, context_len=1)
            windows += [(None, *make_disjoint_window(pair)) for pair in pairs]
            text_of += [i] * (len(windows) - len(text_of))
        totals = [0.0] * len(requests)
        scores = self._loglikelihood_tokens(windows, disable_tqdm)  # type: ignore[arg-type]
        for i, (score, _) in zip(text_of, scores, strict=True):
            totals[i] += score
        return totals

    # Generation

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """Return the answers, each up to its first stop string."""
        asked = [self.request(i, *request.args) for i, request in enumerate(requests)]
        if not asked:
            return []
        if self._n_cut:
            log.warning("%d prompts lost their beginning: set a larger --model_args n_ctx=N", self._n_cut)
        longest = max(len(request.prompt) + (request.params.max_tokens or 0) for request in asked)
        self._model.reserve(min(longest, self.max_length), self._parallel)
        texts = [""] * len(asked)
        first = asked[0].params  # the harness logs the task's options, ignoring --model_args
        method = f"Generating ({first.sampler}, T = {first.temperature:g})"
        with tqdm(total=len(asked), desc=method, disable=disable_tqdm) as bar:
            for answer in self._model.answer_all(asked):
                if answer.error:
                    raise MinkError(f"request {answer.index}: {answer.error}")
                texts[answer.index] = answer.text
                self.cache_hook.add_partial("generate_until", requests[answer.index].args, answer.text)
                bar.update()
        return texts

    def request(self, index: int, context: str, options: dict[str, Any]) -> Request:
        """Convert one of the harness's requests to ours; a prompt that is too long loses its beginning."""
        max_tokens = int(options.get("max_gen_toks", options.get("max_new_tokens", self._max_gen_toks)))
        if max_tokens >= self.max_length:
            raise MinkError(
                f"answers of {max_tokens:,} tokens leave no room for a prompt in a context of "
                f"{self.max_length:,}: set a larger one with --model_args n_ctx=N, or shorter answers with "
                "--gen_kwargs max_gen_toks=N"
            )
        until = options.get("until") or []
        sampler, temperature = self._sampling(options)
        params = SamplingParams(
            sampler=sampler,
            temperature=temperature,
            max_tokens=max_tokens,
            seed=(self._seed + index) % (MAX_SEED + 1),
            stop=[until] if isinstance(until, str) else [string for string in until if string],
        )
        tokens = self.tok_encode(context)
        fitting = tokens[-(self.max_length - max_tokens) :]
        self._n_cut += len(fitting) < len(tokens)
        return Request(fitting, params)

    def _sampling(self, options: dict[str, Any]) -> tuple[Sampler | None, float]:
        """Return a request's sampler and temperature: from --model_args, or else the task's."""
        wanted = float(options.get("temperature", 1.0 if options.get("do_sample") else 0.0))
        temperature = wanted if options.get("do_sample", wanted > 0) else 0.0
        if self._sampler is not None:
            return self._sampler, self._temperature if self._temperature is not None else temperature or 1.0
        if self._temperature is not None:
            temperature = self._temperature
        if temperature == 0:
            return Greedy(), 0.0
        try:
            cuts = list(_cuts(options)) or [TopP(1.0)]
            return cuts[0] if len(cuts) == 1 else Chain(*cuts), temperature
        except ValueError as error:
            raise MinkError(f"the task's options: {error}; give --model_args sampler=…") from None


def _cuts(options: Mapping[str, Any]) -> Iterator[Sampler]:
    """Yield the cuts that a task's generation options ask for, in the usual order: top-k, top-p, min-p."""
    for method in SAMPLERS.values():
        given = {
            option: options[name]
            for name, option in method.request_fields.items()
            if options.get(name) not in (None, *_OFF.get(name, ()))
        }
        if given:
            yield method(**given)


def _with_options(sampler: str, rest: dict[str, Any]) -> str:
    """Return a sampler's text with the options that the harness split off at their commas.

    They are removed from `rest`.
    """
    method: Any = SAMPLERS.get(sampler.partition(":")[0])
    split = [option.name for option in fields(method) if option.name in rest] if method else []
    for option in split:
        sampler += f"{',' if ':' in sampler else ':'}{option}={str(rest.pop(option)).lower()}"
    return sampler


def main(arguments: Sequence[str]) -> None:
    """Run the harness's command line with this model."""
    from lm_eval.__main__ import cli_evaluate

    sys.argv = ["lm-eval", *_with_model(arguments)]
    cli_evaluate()


def _with_model(arguments: Sequence[str]) -> Iterator[str]:
    """Yield the arguments; a run's start with `--model mink-local`, which a later --model overrides."""
    command, rest = "run", list(arguments)
    if rest and rest[0] in ("run", "ls", "validate"):
        command, *rest = rest
    yield command
    if command == "run":
        yield from ("--model", NAME)
    yield from rest
