"""Guides: what an answer must conform to, compiled by llguidance into a mask of allowed tokens a step.

A JSON schema, a regular expression, choices or a grammar become a grammar in Lark's syntax, and that becomes
a matcher. llguidance cannot be interrupted. What it does not limit itself is limited before, in `json_schema`
and `grammars`, and it compiles in a thread that is abandoned on timeout.
"""

import atexit
import contextlib
import ctypes
import json
import re
import threading
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from functools import cache, lru_cache, partial
from importlib import import_module
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from mink_local.errors import ConstraintError, NoTokenLeftError
from mink_local.llama.grammars import lark
from mink_local.llama.json_schema import kept_schema
from mink_local.llama.library import C
from mink_local.llama.weights import Weights
from mink_local.sandbox import in_a_line
from mink_local.threads import in_background, run

_LONGEST = {"regex": 4096, "choice": 1 << 16, "grammar": 1 << 16}  # characters
_SECONDS = 10.0  # to compile; what passes the limits takes less than one
_STACK = 64 << 20  # bytes: the compiler recurses along chains of rules and references
_LIMITS: dict[str, Any] = {"initial_lexer_fuel": 300_000, "step_max_items": 10_000, "verbose_errors": False}
_REPEATED_OFTEN = re.compile(r"\{\d*,?\d{6,}")

T = TypeVar("T")

_MOST_KNOWN = 64
_KNOWN: "weakref.WeakKeyDictionary[Weights, dict[str, Any]]" = weakref.WeakKeyDictionary()
"""Matchers that have read nothing, to be copied, by what they were compiled from."""

_starting = threading.Lock()
_compiling: set[Future[Any]] = set()
_has_ended = threading.Event()


@atexit.register
def _wait_for_compilers() -> None:
    """Let threads leave llguidance before Python ends: one that did so later would crash the process."""
    with _starting:
        _has_ended.set()
    wait(_compiling.copy(), _SECONDS)


class Guide:
    """Knows which tokens may come next in an answer.

    Args:
        option: The kind of constraint: `json_schema`, `regex`, `choice` or `grammar`.
        value: The constraint, as in `Constraints`.
        weights: The model.
        before: A grammar in Lark's syntax for the whole text, in which `@answer` is what is constrained.

    Raises:
        ConstraintError: The constraint cannot be kept, or allows no text.
    """

    def __init__(self, option: str, value: Any, weights: Weights, before: str = "") -> None:
        weights.keep_for(self)  # the tokenizer reads their vocabulary
        self._tokenizer = tokenizer_of(weights)
        self._mask = np.zeros(-(-weights.n_vocab // 32), np.uint32)
        known = _KNOWN.setdefault(weights, {})
        try:
            key = json.dumps([option, value, before], default=dict)
        except (TypeError, ValueError, RecursionError) as error:
            raise ConstraintError(option, f"it is not JSON: {error}") from None
        if (prototype := known.get(key)) is None:
            prototype = self._new(option, value, weights, before)
            while len(known) >= _MOST_KNOWN:
                known.pop(next(iter(known)), None)  # another thread may do the same
            known[key] = prototype
        self._begin(prototype.deep_copy())

    def _new(self, option: str, value: Any, weights: Weights, before: str) -> Any:
        """Return a matcher that has shown that it can begin."""

        def begin() -> None:  # perhaps after the model is closed
            with weights.in_use():
                self._begin(_matcher(option, value, self._tokenizer.result(), before))
                self.mask()
                self.forced()
                self.check()

        try:
            _compiled(option, begin)
        except NoTokenLeftError as error:
            raise ConstraintError(option, str(error)) from None
        return self.matcher

    def _begin(self, matcher: Any) -> None:
        self.matcher, self._start = matcher, matcher.deep_copy()
        self._ahead = "", matcher.deep_copy()  # a text, and what has read it

    def begin(self, tokens: Sequence[int]) -> bool:
        """Consume a prefix of the text; return False if it is not allowed."""
        is_allowed = bool(self.matcher.try_consume_tokens(list(tokens)) == len(tokens))
        self._begin(self.matcher)
        return is_allowed

    def mask(self) -> NDArray[np.uint32]:
        """Return a bit for every token, set if it may come next; valid until the next call.

        Raises:
            NoTokenLeftError: llguidance gave up, because this step takes too long.
        """
        self.matcher.unsafe_compute_mask_ptr(self._mask.ctypes.data, self._mask.nbytes)
        self.check()
        return self._mask

    def accept(self, token: int) -> None:
        """Go on to the next step.

        Raises:
            NoTokenLeftError: The token is not allowed.
        """
        self.matcher.consume_token(token)
        self.check()

    def forced(self) -> list[int]:
        """Return the tokens that must come next, as the tokenizer writes their text."""
        return list(self.matcher.compute_ff_tokens())

    def may_end(self, text: str) -> bool:
        """Return whether the answer is complete with a text, all of it after the first tokens.

        A text that begins with that of the last call is not read again.
        """
        begun, matcher = self._ahead
        if not text.startswith(begun):
            begun, matcher = "", self._start.deep_copy()
        tokens = self._tokenizer.result().greedy_tokenize(text[len(begun) :])
        self._ahead = text, matcher
        return bool(matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting())

    @property
    def is_over(self) -> bool:
        """Whether the answer is complete and nothing may follow it."""
        return bool(self.matcher.is_stopped())

    def check(self) -> None:
        """Raise NoTokenLeftError if the guide gave up."""
        if self.matcher.is_error():
            raise NoTokenLeftError(_reason(self.matcher.get_error()))


def fill_masks(guides: Sequence[Guide], masks: NDArray[np.uint32]) -> None:
    """Compute the masks of guides in parallel; see `Guide.mask`. One that gives up has an error afterwards.

    Args:
        masks: Receives them, uint32 (at least as many, V / 32).
    """
    matchers = [(guide.matcher, i) for i, guide in enumerate(guides)]
    _executor().unsafe_compute_mask_ptr(matchers, masks.ctypes.data, masks.strides[0], len(masks))


@cache
def _executor() -> Any:
    return import_module("llguidance").LLExecutor()


def check(option: str, value: Any, name: str) -> None:
    """Raise ConstraintError if a constraint cannot be kept; see `Guide`.

    One that can is known from then on: agents send the same tools with every request.

    Args:
        name: What the error calls it, such as the field of a request that it was sent in.
    """
    try:
        _check(option, json.dumps(value), name)
    except (TypeError, ValueError, RecursionError) as error:
        if isinstance(error, ConstraintError):
            raise
        raise ConstraintError(name, f"it is not JSON: {error}") from None


@lru_cache(maxsize=_MOST_KNOWN)
def _check(option: str, written: str, name: str) -> None:
    from llguidance import LLMatcher, LLParserLimits

    def complaint() -> str:
        grammar = _grammar(option, json.loads(written), name)
        return str(LLMatcher.validate_grammar(grammar, limits=LLParserLimits(**_LIMITS)))

    if found := _compiled(name, complaint):
        raise ConstraintError(name, _reason(found))


def tokenizer_of(weights: Weights) -> "Future[Any]":
    """Return llguidance's tokenizer for a model: a future, made in the background by the first call."""
    with _starting:
        if weights.tokenizer is None:
            weights.tokenizer = in_background(partial(_tokenizer, weights), "tokenizer")
        return weights.tokenizer


def _tokenizer(weights: Weights) -> Any:
    tokenizer: Any = import_module("llguidance").LLTokenizer  # from_llamacpp has no type

    # Control tokens have no text here, so that no constrained text contains one; a byte 0xFF would mark one.
    with weights.in_use() as vocab:
        return tokenizer.from_llamacpp(
            tokens=[b"" if piece.startswith(b"\xff") else piece for piece in weights.pieces()],
            vocab_ptr=vocab,
            tokenize_fptr=ctypes.cast(C._lib.llama_tokenize, ctypes.c_void_p).value,
            eos_token=sorted(weights.end_tokens) or [weights.n_vocab - 1],  # it wants at least one
        )


def _matcher(option: str, value: Any, tokenizer: Any, before: str) -> Any:
    from llguidance import LLMatcher, LLParserLimits

    grammar = _grammar(option, value, option)
    if before:
        parts = [{"lark_grammar": before}, {"name": "answer", "lark_grammar": grammar}]
        grammar = json.dumps({"grammars": parts})
    return LLMatcher(tokenizer, grammar, limits=LLParserLimits(**_LIMITS), log_level=0)


def _grammar(option: str, value: Any, name: str) -> str:
    """Return a constraint in Lark's syntax. Raises ConstraintError, with `name`, if it cannot be kept."""
    if option == "json_schema":
        return f"start: %json {json.dumps(kept_schema(value, name))}"
    if len(value if isinstance(value, str) else "".join(value)) > _LONGEST[option]:
        raise ConstraintError(name, f"it is longer than {_LONGEST[option]} characters")
    if option == "regex":
        return f"start: /{_regex(value, name)}/"
    if option == "choice":
        return f"start: /{'|'.join(map(_literal, value))}/"
    return lark(value, name)


def _regex(pattern: str, name: str) -> str:
    """Return a regular expression that matches in full, without anchors, with ASCII classes."""
    from llguidance import regex_to_lark

    if _REPEATED_OFTEN.search(pattern):
        raise ConstraintError(name, "it repeats something over 99,999 times")
    whole = re.sub(r"(?<!\\)((?:\\\\)*)\$\Z", r"\1", pattern.removeprefix("^"))
    return str(regex_to_lark(whole, "dws"))


def _literal(text: str) -> str:
    return "".join(f"\\x{{{ord(character):x}}}" for character in text)


def _compiled(option: str, function: Callable[[], T]) -> T:
    """Call a function that compiles a constraint in a thread with a large stack.

    Raises:
        ConstraintError: It takes too long, or raises this, or the program has ended.
    """
    future: Future[T] = Future()
    with _starting:
        if _has_ended.is_set():
            raise ConstraintError(option, "the program has ended")
        default = threading.stack_size(_STACK)
        thread = threading.Thread(target=run, args=(future, function), daemon=True)
        try:
            thread.start()
        finally:
            threading.stack_size(default)
        _compiling.add(future)
        future.add_done_callback(_compiling.discard)
    thread.join(_SECONDS)
    if not future.done():
        raise ConstraintError(option, f"it does not compile in {_SECONDS:g} s: simplify it")
    with contextlib.suppress(UnicodeEncodeError):
        return future.result()
    raise ConstraintError(option, "it contains half of a surrogate pair")


def _reason(complaint: str) -> str:
    """Return llguidance's complaint in a line, without what it quotes of the grammar."""
    text = re.sub(r"\n *\^+ *(?=\n)", "", complaint).partition("\n<")[0].partition("\n   1 |")[0]
    text = text.partition(" (in regex): ")[2] or text
    if "NoExtension" in text:
        return "it allows no text"
    if "Too many items" in text or "items; max" in text:  # of all rows of a step, or of one
        return "it has too many ways to go on at some step: simplify it"
    return in_a_line(text)
