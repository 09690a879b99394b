"""GGUF models for lm-evaluation-harness: its tasks, in-process and batched, with any sampler.

The harness has no entry point for models of other packages, so `mink-eval lm-eval` registers this one as
mink-local and hands the rest of its command line to the harness.
"""

import hashlib
import sys
from collections.abc import Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM
from lm_eval.api.registry import register_model
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
from tqdm import tqdm

from mink_local.errors import MinkError
from mink_local.evals.run.workers import DATE
from mink_local.evals.store import file_sha256
from mink_local.generation.loading import load_model
from mink_local.generation.request import Request, SamplingParams
from mink_local.llama.constants import MAX_SEED
from mink_local.models.catalog import EMBEDDED
from mink_local.samplers import SAMPLERS, Greedy, Sampler, TopP, parse
from mink_local.version import __version__

NAME = "mink-local"
_HARNESS_ARGUMENTS = {"batch_size", "max_batch_size", "device"}
_OFF: dict[str, tuple[float, ...]] = {"top_k": (0, -1), "top_p": (1.0,), "min_p": (0.0,)}


@register_model(NAME)
class MinkLM(TemplateLM):  # type: ignore[misc]
    """A model of the harness.

    `sampler` and `temperature` are for all generation; without them, what the task asks for counts
    (`do_sample`, `temperature`, and `top_p`, `top_k` or another field of a request), which mostly is greedy.
    `seed` is the first request's; the others count on from it. A prompt and its answer have at most `n_ctx`
    tokens, and an answer `max_gen_toks`, unless a task has another limit. Raises MinkError if an argument is
    unknown or out of range.
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
        **rest: Any,
    ) -> None:
        super().__init__()
        text = None if sampler is None else _with_options(sampler, rest)
        unknown = sorted(set(rest) - _HARNESS_ARGUMENTS)
        if unknown:
            raise MinkError(
                f"{NAME} takes no model argument {', '.join(unknown)}: it takes model, sampler, temperature, "
                "seed, n_ctx, parallel, gpu_layers, threads and max_gen_toks"
            )
        try:
            self._sampler = parse(text) if text is not None else None
            self._model = load_model(
                model,
                n_ctx=256,  # until `reserve`
                n_gpu_layers=gpu_layers,  # type: ignore[arg-type]
                n_threads=threads,
                date=DATE,
            )
        except ValueError as error:
            raise MinkError(f"--model_args: {error}") from None
        self._temperature = None if temperature is None else float(temperature)
        self._seed = seed
        self._parallel: Any = parallel
        self._max_gen_toks = max_gen_toks
        self.max_length = min(n_ctx, self._model.weights.n_ctx_train)

    def get_model_info(self) -> dict[str, Any]:
        """Return what the harness adds to the "config" of its results; a sampler of None is each task's."""
        return {
            "model_sha256": file_sha256(Path(self._model.weights.path)),
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
        """The token before a text that has no context: the vocabulary's first, or else its last."""
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
        """The name under which the harness caches requests: of the model and its chat template."""
        template = self._model.weights.chat_template or ""
        return f"{self._model.name}-{hashlib.sha256(template.encode()).hexdigest()[:16]}"

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        return self._model.weights.chat_template if chat_template else None

    def apply_chat_template(self, chat_history: list[dict[str, str]], *_: Any, **__: Any) -> str:
        """Return the prompt for the next answer, or for the rest of it if its beginning comes last."""
        return self._model.apply_chat_template(chat_history)

    # Log-probabilities

    def _loglikelihood_tokens(
        self,
        requests: list[tuple[tuple[str, str] | None, list[int], list[int]]],
        disable_tqdm: bool = False,
        **_: Any,
    ) -> list[tuple[float, bool]]:
        """Return the logprob of every continuation, and if greedy sampling would generate it."""
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
        """Cut the beginning of a context that is too long, as the harness's own models do."""
        if len(continuation) > self.max_length:
            raise MinkError(
                f"a continuation is {len(continuation)} tokens and n_ctx is {self.max_length}: "
                "give a larger one with --model_args n_ctx=N"
            )
        return context[-(self.max_length + 1 - len(continuation)) :], continuation

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
        """Return the logprobs of whole texts; one that is too long is cut into windows of `max_length`."""
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
        for request, total in zip(requests, totals, strict=True):
            self.cache_hook.add_partial("loglikelihood_rolling", request.args, total)
        return totals

    # Generation

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """Return answers, each up to the first of its stop strings."""
        asked = [self.request(i, *request.args) for i, request in enumerate(requests)]
        if not asked:
            return []
        longest = max(len(request.prompt) + (request.params.max_tokens or 0) for request in asked)
        self._model.reserve(min(longest, self.max_length), self._parallel)
        texts = [""] * len(asked)
        first = asked[0].params  # the harness logs what the task asks for, whatever --model_args say
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
        """Return the request of one of the harness: a prompt, cut at its beginning if it is too long."""
        max_tokens = int(options.get("max_gen_toks", options.get("max_new_tokens", self._max_gen_toks)))
        max_tokens = min(max_tokens, self.max_length - 1)
        until = options.get("until") or []
        sampler, temperature = self._sampling(options)
        params = SamplingParams(
            sampler=sampler,
            temperature=temperature,
            max_tokens=max_tokens,
            seed=(self._seed + index) % (MAX_SEED + 1),
            stop=[until] if isinstance(until, str) else [string for string in until if string],
        )
        return Request(self.tok_encode(context)[-(self.max_length - max_tokens) :], params)

    def _sampling(self, options: dict[str, Any]) -> tuple[Sampler | None, float]:
        """Return sampler and temperature of a request: those of --model_args, or else the task's."""
        wanted = float(options.get("temperature", 1.0 if options.get("do_sample") else 0.0))
        temperature = wanted if options.get("do_sample", wanted > 0) else 0.0
        if self._sampler is not None:
            return self._sampler, self._temperature if self._temperature is not None else temperature or 1.0
        if self._temperature is not None:
            temperature = self._temperature
        if temperature == 0:
            return Greedy(), 0.0
        methods: dict[type[Sampler], dict[str, Any]] = {}
        for method in SAMPLERS.values():
            for name, option in method.request_fields.items():
                if options.get(name) not in (None, *_OFF.get(name, ())):
                    methods.setdefault(method, {})[option] = options[name]
        if len(methods) > 1:
            names = " and ".join(method.name for method in methods)
            raise MinkError(f"a task combines {names}: give one with --model_args sampler=…")
        method, values = next(iter(methods.items()), (TopP, {"p": 1.0}))
        return method(**values), temperature


def _with_options(sampler: str, rest: dict[str, Any]) -> str:
    """Return a sampler's text with the options that the harness has split from it, at their commas.

    They are taken out of `rest`.
    """
    method: Any = SAMPLERS.get(sampler.partition(":")[0])
    split = [option.name for option in fields(method) if option.name in rest] if method else []
    for option in split:
        sampler += f"{',' if ':' in sampler else ':'}{option}={str(rest.pop(option)).lower()}"
    return sampler


def main(arguments: Sequence[str]) -> None:
    """Run the harness's own command line with this model."""
    from lm_eval.__main__ import cli_evaluate

    sys.argv = ["lm-eval", *_with_model(arguments)]
    cli_evaluate()


def _with_model(arguments: Sequence[str]) -> Iterator[str]:
    """Yield the arguments, with `--model mink-local` before those of a run; a later --model replaces it."""
    command, rest = "run", list(arguments)
    if rest and rest[0] in ("run", "ls", "validate"):
        command, *rest = rest
    yield command
    if command == "run":
        yield from ("--model", NAME)
    yield from rest
