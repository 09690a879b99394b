"""A loaded GGUF model: where its layers are, its chat template, and the generation of text."""

import codecs
import logging
import os
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Literal

import psutil

from mink_local.catalog import resolve
from mink_local.errors import ContextOverflowError, GenerationError, ModelError
from mink_local.llamacpp import ALL_LAYERS, N_BATCH, RANDOM_SEED, Context, Draw, Weights, gpu_missing
from mink_local.samplers import Greedy, MinK, Sampler
from mink_local.template import ChatTemplate, Message
from mink_local.vetting import vet

DEFAULT_N_CTX = 4096

log = logging.getLogger("mink_local")

FinishReason = Literal["stop", "length", "interrupted"]
Loader = Callable[[int], tuple[Weights, Context]]


def load_model(
    model: str,
    *,
    n_ctx: int = DEFAULT_N_CTX,
    n_gpu_layers: int | Literal["auto"] = "auto",
    n_threads: int | None = None,
    verbose: bool = False,
) -> "Model":
    """Load a GGUF model.

    model: an alias of `models.txt` or a path.
    n_ctx: tokens that prompt and answer share; at most what the model was trained on.
    n_gpu_layers: "auto" puts every layer on the GPU where there is one, fewer where they do not fit,
        none where there is no GPU; a number asks for just so many. `Model.placement` says what came
        of it.
    n_threads: CPU threads, one for every physical core by default.
    verbose: llama.cpp's log on standard error.

    Raises ModelNotFoundError, or ModelError for a file that cannot be loaded. A file that is not yet known
    is first tried in a child process (`vetting`).
    """
    if n_ctx < 1:
        raise ValueError(f"n_ctx must be at least 1, not {n_ctx}")
    if n_threads is not None and n_threads < 1:
        raise ValueError(f"n_threads must be at least 1, not {n_threads}")
    if n_gpu_layers != "auto" and n_gpu_layers < ALL_LAYERS:
        raise ValueError(f"n_gpu_layers must be auto, -1 for all, or more, not {n_gpu_layers}")
    file = resolve(model)
    vet(file)
    threads = n_threads or _physical_cores()

    def load(layers: int) -> tuple[Weights, Context]:
        weights = Weights(file.path, layers, verbose)
        if n_ctx > weights.n_ctx_train:
            log.warning("%s was trained on %d tokens: the context is that", file.name, weights.n_ctx_train)
        return weights, Context(weights, min(n_ctx, weights.n_ctx_train), threads)

    missing = gpu_missing()
    if missing:
        if n_gpu_layers not in ("auto", 0):
            log.warning("no layer of %s goes to a GPU: %s", file.name, missing)
        weights, context = load(0)
        placement = f"on the CPU, {threads} threads ({missing})"
    elif n_gpu_layers == "auto":
        weights, context, placement = _load_what_fits(load)
    else:
        weights, context = load(n_gpu_layers)
        placement = _placement(n_gpu_layers, weights.n_layers)
    log.info("%s is %s", file.name, placement)
    return Model(file.name, weights, context, placement)


def _load_what_fits(load: Loader) -> tuple[Weights, Context, str]:
    """Load with as many layers on the GPU as it takes: all, three quarters, half, a quarter, none."""
    try:
        weights, context = load(ALL_LAYERS)
        return weights, context, _placement(ALL_LAYERS, weights.n_layers)
    except ModelError as error:
        reason = error
    weights, context = load(0)  # what fails here does not fail for want of GPU memory
    for quarters in (3, 2, 1):
        layers = weights.n_layers * quarters // 4
        try:
            weights, context = load(layers)
            break
        except ModelError:
            layers = 0
    placement = f"{_placement(layers, weights.n_layers)} (all of it does not fit the GPU)"
    log.warning("%s: %s", placement, reason)
    return weights, context, placement


def _placement(layers: int, n_layers: int) -> str:
    if layers == 0:
        return "on the CPU"
    if layers == ALL_LAYERS or layers > n_layers:
        return "on the GPU, every layer"
    return f"on the GPU with {layers} of {n_layers} layers, on the CPU with the rest"


def _physical_cores() -> int:
    available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return max(1, min(psutil.cpu_count(logical=False) or 1, available or 1))


class Model:
    """A model that is ready to chat. Not for several threads at once; `load_model` makes one.

    n_ctx: tokens that a prompt and its answer share.
    placement: where its layers are, and why, as half a sentence.
    """

    def __init__(self, name: str, weights: Weights, context: Context, placement: str) -> None:
        self.name = name
        self.placement = placement
        self.n_ctx = context.n_ctx
        self._weights = weights
        self._context = context
        self._template = ChatTemplate(weights)
        self._cached: list[int] = []  # the tokens that the KV cache holds for certain
        self._reply: Reply | None = None
        if self._template.is_plain:
            log.warning("%s has no chat template: its turns are plain text (User: … Assistant: …)", name)

    def count_tokens(self, messages: Sequence[Message]) -> int:
        """Tokens of the prompt that `messages` make, the opening of the answer included."""
        return len(self._template.tokens(messages))

    def chat(
        self,
        messages: Sequence[Message],
        *,
        sampler: Sampler | None = None,
        temperature: float = 1.0,
        max_tokens: int | None = None,
        seed: int | None = None,
        stop: Sequence[str] = (),
    ) -> "Reply":
        """Answer a conversation: an iterator of pieces of text, which generates as it is read.

        messages: dicts with "role" and "content", as llama-cpp-python takes them.
        sampler: MinK() by default.
        temperature: > 0 divides the logits of the tokens that stand; 0 takes the largest logit.
        max_tokens: the context is the limit by default.
        seed: 0 to 2^32 - 2, by default a random one, which is `Reply.seed`. One seed gives one text,
            in any process on one machine and build.
        stop: strings that end the answer and are not part of it.

        The KV cache is kept between calls: only what is new at the end of a conversation is
        evaluated. Raises ValueError for an option out of range, ContextOverflowError for a prompt that
        leaves no room to answer, MinkError where the chat template refuses the messages.
        """
        if not 0 <= temperature < float("inf"):
            raise ValueError(f"temperature must be a finite number of at least 0, not {temperature}")
        if max_tokens is not None and max_tokens < 1:
            raise ValueError(f"max_tokens must be at least 1, not {max_tokens}")
        if seed is None:
            seed = secrets.randbelow(RANDOM_SEED)
        if not 0 <= seed < RANDOM_SEED:
            raise ValueError(f"seed must be from 0 to {RANDOM_SEED - 1}, not {seed}")
        if isinstance(stop, str) or not all(stop):
            raise ValueError("stop must be a list of strings that are not empty")
        prompt = self._template.tokens(messages)
        room = self.n_ctx - len(prompt)
        if room < 1:
            raise ContextOverflowError(len(prompt), self.n_ctx)
        self._reply = Reply(
            model=self,
            prompt=prompt,
            sampler=Greedy() if temperature == 0 else sampler or MinK(),
            temperature=temperature,
            max_tokens=min(room, max_tokens or room),
            seed=seed,
            stop=(*stop, *self._template.stop),
        )
        self._context.interrupted = False
        return self._reply

    def _rewind(self, tokens: Sequence[int]) -> int:
        """Forget what the KV cache holds beyond its common beginning with `tokens`; returns how many
        of those are left to evaluate. The last one always is: its logits are wanted."""
        reused = _common_prefix(self._cached, tokens[:-1])
        if not self._context.truncate(reused):  # a recurrent model cannot forget just its end
            self._context.clear()
            reused = 0
        del self._cached[reused:]
        return len(tokens) - reused

    def _extend(self, tokens: Sequence[int]) -> bool:
        """Evaluate `tokens` behind those in the KV cache; False where it was interrupted."""
        for start in range(0, len(tokens), N_BATCH):
            batch = tokens[start : start + N_BATCH]
            if not self._context.decode(batch, len(self._cached)):
                return False
            self._cached += batch
        return True


class Reply(Iterator[str]):
    """An answer as it is written: iterate over it for the pieces of text.

    prompt_tokens: length of the prompt.
    evaluated_tokens: how many of those were not in the KV cache and had to be evaluated; known from
        the first piece on.
    n_tokens: tokens of the answer so far, without the one that ends it.
    k: the number of candidates at every step so far, the one that ended it included.
    finish_reason: "stop" (the model, or a stop string, ended it), "length" (max_tokens, or the
        context is full), "interrupted"; None while it goes on.
    """

    def __init__(
        self,
        model: Model,
        prompt: list[int],
        sampler: Sampler,
        temperature: float,
        max_tokens: int,
        seed: int,
        stop: tuple[str, ...],
    ) -> None:
        self.seed = seed
        self.prompt_tokens = len(prompt)
        self.evaluated_tokens = 0
        self.n_tokens = 0
        self.k: list[int] = []
        self.finish_reason: FinishReason | None = None
        self._model = model
        self._max_tokens = max_tokens
        self._draw = Draw(sampler, temperature, seed, model._weights.n_vocab)
        self._pieces = self._until_stop(self._decode_utf8(self._generate(prompt)), stop)

    def __next__(self) -> str:
        return next(self._pieces)

    def interrupt(self) -> None:
        """End the answer as soon as possible, a prompt that is being read included (on a CPU).

        May be called from another thread, or from a signal handler.
        """
        self._model._context.interrupted = True

    def _generate(self, prompt: list[int]) -> Iterator[int]:
        """Decode, cut, draw, and again: the one loop that every answer comes from."""
        model, context, weights = self._model, self._model._context, self._model._weights
        self.evaluated_tokens = model._rewind(prompt)
        going = model._extend(prompt[-self.evaluated_tokens :])
        while going and not context.interrupted:
            token = self._draw(context.logits(), step=len(self.k) + 1)
            self.k.append(self._draw.k)
            if weights.ends_generation(token):
                self.finish_reason = "stop"
                return
            self.n_tokens += 1
            yield token
            if self.n_tokens == self._max_tokens:
                self.finish_reason = "length"
                return
            if model._reply is not self:
                raise GenerationError("another answer was begun on this model before this one ended")
            going = model._extend([token])
        self.finish_reason = "interrupted"

    def _decode_utf8(self, tokens: Iterable[int]) -> Iterator[str]:
        """Text as soon as its characters are whole; bytes that are none become U+FFFD."""
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        for token in tokens:
            if text := decoder.decode(self._model._weights.piece(token)):
                yield text
        if text := decoder.decode(b"", final=True):
            yield text

    def _until_stop(self, pieces: Iterable[str], stop: tuple[str, ...]) -> Iterator[str]:
        """Text up to the first stop string; what might be the beginning of one is held back."""
        held = ""
        for piece in pieces:
            held += piece
            ends = [at for string in stop if (at := held.find(string)) >= 0]
            if ends:
                self.finish_reason = "stop"
                held = held[: min(ends)]
                break
            safe = len(held) - max((_overlap(held, string) for string in stop), default=0)
            if safe:
                yield held[:safe]
                held = held[safe:]
        if held:
            yield held


def _overlap(text: str, string: str) -> int:
    """Length of the longest end of `text` that `string` starts with."""
    longest = min(len(text), len(string) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(string[:n])), 0)


def _common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
