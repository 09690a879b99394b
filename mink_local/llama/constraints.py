"""Constraints on logits before sampling: logit bias, repetition penalties, and the form of the answer."""

import ctypes
import math
import pickle
import weakref
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import takewhile
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mink_local.checks import Range, as_texts, plain, shown, whole
from mink_local.errors import OptionError
from mink_local.llama.guide import Guide
from mink_local.llama.json_types import schema_of
from mink_local.llama.library import C
from mink_local.llama.token_data import APPLY, NO_MASK, SamplingBuffers, edited
from mink_local.llama.weights import Weights
from mink_local.samplers.rows import NO_TOKENS

_LARGE = 1e30  # sums and products of options up to this stay finite in float32; inf - inf would be NaN
_BIASES = Range(-_LARGE, _LARGE)
_FORMS = ("json_schema", "regex", "choice", "grammar")
_LAST_N = 64  # llama.cpp's default
_RANGES = {
    "repeat_penalty": Range(0, _LARGE, low_open=True),
    "frequency_penalty": Range(-_LARGE, _LARGE),
    "presence_penalty": Range(-_LARGE, _LARGE),
    "penalty_last_n": Range(-1, whole=True),
    "dry_multiplier": Range(0, _LARGE),
    "dry_base": Range(1, _LARGE),
    "dry_allowed_length": Range(0, 2**31 - 1, whole=True),
    "dry_penalty_last_n": Range(-1, whole=True),
}


@dataclass(frozen=True)
class Constraints:
    """Options that modify the logits before sampling, with llama.cpp's names and defaults (all off).

    They are applied in this order, all before the sampler.

    Args:
        logit_bias: Added to the logits of tokens, by token id; -inf bans a token.
        repeat_penalty: Above 0. Divides positive and multiplies negative logits of tokens that occur in the
            last `penalty_last_n`, including the prompt (as in llama.cpp's server).
        frequency_penalty: Subtracted from the logits of the answer's tokens for each occurrence.
        presence_penalty: Subtracted once from the logit of each of the answer's tokens.
        penalty_last_n: Number of tokens to look back, -1 for all: prompt and answer, for all three as in
            llama.cpp. None: 64 for `repeat_penalty`, and the whole answer for the other two, as in OpenAI's
            API.
        dry_multiplier: At least 0. DRY subtracts `multiplier * base ** (length - allowed_length)` from the
            logit of a token that would continue a repetition of `length` tokens.
        dry_base: At least 1.
        dry_allowed_length: Longest repetition that goes unpenalized.
        dry_penalty_last_n: Number of tokens to search for repetitions, -1 for all.
        dry_sequence_breakers: Texts that end a repetition.
        json_schema: A JSON schema that the answer conforms to: a dict, or its JSON text; or, with Pydantic
            installed, a type: a model, a dataclass, `list[City]`, `Literal["a", "b"]`. See `Answer.parsed`.
        regex: A regular expression that the whole answer matches.
        choice: The possible answers.
        grammar: GBNF with the start rule `root`, or Lark with the start rule `start`. Use only Lark
            grammars that you trust: some, such as `start: /x+/ /x+/`, never finish compiling. In Lark,
            `<[ID]>` is the token with that id, also one without a text.

    The prompt's tokens that end a turn are not looked at, unlike in llama.cpp: a long conversation would keep
    its answers from ending.

    Give at most one of the last four. It applies after any reasoning, and ends the answer once satisfied.

    Raises:
        ValueError: An option is out of range.
    """

    logit_bias: Mapping[int, float] = field(default_factory=dict)
    repeat_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    penalty_last_n: int | None = None
    dry_multiplier: float = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_penalty_last_n: int = 64
    dry_sequence_breakers: Sequence[str] = ("\n", ":", '"', "*")
    json_schema: Any = None
    regex: str | None = None
    choice: Sequence[str] | None = None
    grammar: str | None = None

    def __post_init__(self) -> None:
        for name, limits in _RANGES.items():
            if getattr(self, name) is not None or name != "penalty_last_n":
                self._set(name, limits.check(name, getattr(self, name)))
        biases = self.logit_bias
        if not isinstance(biases, Mapping) or None in map(whole, biases):
            raise OptionError("logit_bias", f"must be a dict from token ids to biases, not {shown(biases)}")
        for bias in biases.values():
            if bias != -math.inf:
                _BIASES.check("logit_bias", bias, "-inf, or ")
        self._set("logit_bias", {whole(token): float(bias) for token, bias in biases.items()})
        self._set("dry_sequence_breakers", as_texts("dry_sequence_breakers", self.dry_sequence_breakers))
        if not all(self.dry_sequence_breakers):
            raise OptionError("dry_sequence_breakers", "must not contain an empty text")
        given = [name for name in _FORMS if getattr(self, name) is not None]
        if len(given) > 1:
            raise OptionError(given[1], f"and {given[0]} are mutually exclusive: give only one")
        if given[:1] == ["grammar"] and not str(self.grammar).strip():
            raise OptionError("grammar", "is empty: give GBNF or Lark, or omit it")
        if self.choice is not None:
            self._set("choice", as_texts("choice", self.choice))
            if not self.choice:
                raise OptionError("choice", "must have at least one text")
        for name in ("regex", "grammar"):
            if not isinstance(getattr(self, name), str | None):
                raise OptionError(name, f"must be a text, not {shown(getattr(self, name))}")
        if self.json_schema is not None:
            self._set("json_schema", plain("json_schema", self.json_schema))
            self.schema  # noqa: B018  (a type without one is refused here)

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    @cached_property
    def schema(self) -> Any:
        """The JSON schema, also of a type; None if there is none."""
        return None if self.json_schema is None else schema_of(self.json_schema, "json_schema")

    def __getstate__(self) -> dict[str, Any]:
        """Return what is pickled: in place of a type that another process cannot import, its schema."""
        try:
            pickle.dumps(self.json_schema)
        except Exception:
            return {**vars(self), "json_schema": self.schema}
        return vars(self)

    @property
    def form(self) -> tuple[str, Any] | None:
        """What the answer conforms to: the option's name and its value; of a type, its JSON schema."""
        if self.json_schema is not None:
            return "json_schema", self.schema
        return next(((name, value) for name in _FORMS if (value := getattr(self, name)) is not None), None)

    @property
    def changes_logits(self) -> bool:
        """Whether there is a bias or a penalty."""
        return bool(self.logit_bias or self.dry_multiplier) or (
            (self.repeat_penalty, self.frequency_penalty, self.presence_penalty) != (1, 0, 0)
        )


class Constrainer:
    """Applies constraints to rows of logits: bias and penalties by a llama.cpp chain, then a guide's mask.

    Args:
        constraints: By default none, so that nothing else is needed.
        prompt: Tokens before the answer, for the penalties.
        prefix: Tokens that the answer begins with. If they do not match the constraint, it starts after them.
        before: What the guide allows before the answer; see `Guide`.

    Attributes:
        guide: The guide, if there is one.
        penalties: Address of llama.cpp's samplers for bias and penalties; 0 if there are none.

    Raises:
        ValueError: A biased token is not in the vocabulary, or a constraint cannot be kept.
    """

    def __init__(
        self,
        constraints: Constraints | None = None,
        weights: Weights | None = None,
        prompt: Sequence[int] = (),
        prefix: Sequence[int] = (),
        before: str = "",
    ) -> None:
        self.guide: Guide | None = None
        self.penalties = 0
        self._banned: set[int] = set()
        self._chain: Any = None
        if constraints is None or weights is None:
            return
        if constraints.form is not None:
            option, value = constraints.form
            self.guide = Guide(option, value, weights, before)
            if not self.guide.begin(prefix):
                self.guide = Guide(option, value, weights)
        if not constraints.changes_logits:
            return
        self._banned |= {token for token, bias in constraints.logit_bias.items() if bias == -math.inf}
        self._chain = C.llama_sampler_chain_init(C.llama_sampler_chain_default_params())
        # The finalizer holds the weights: the samplers read their vocabulary. It is not called at the end of
        # the program: other threads may still be using them then.
        free = weakref.finalize(self, lambda chain, _: C.llama_sampler_free(chain), self._chain, weights)
        free.atexit = False
        seen = [token for token in prompt if token not in weights.end_tokens]
        samplers = _penalties(constraints, weights)
        for sampler, length in samplers:
            for token in seen[-length:] if length else ():
                C.llama_sampler_accept(sampler, token)
            C.llama_sampler_chain_add(self._chain, sampler)
        self.penalties = ctypes.cast(self._chain, ctypes.c_void_p).value or 0
        # Penalties can change no others than these: the biased tokens, the last ones, and the answer's.
        self._biased = list(constraints.logit_bias)
        self._last = deque(seen, max(length for _, length in samplers))
        self._of_answer = set[int]()
        for token in prefix:
            self._accept_penalties(token)

    @property
    def changed(self) -> NDArray[np.int32]:
        """The tokens whose logits the penalties may change, some of them several times."""
        if not self.penalties:
            return NO_TOKENS
        return np.array([*self._biased, *self._last, *self._of_answer], np.int32)

    @property
    def is_on(self) -> bool:
        """Whether it may change logits."""
        return bool(self.penalties) or self.guide is not None

    def apply(
        self,
        logits: NDArray[np.float32],
        buffers: SamplingBuffers,
        banned: NDArray[np.int32] = NO_TOKENS,
    ) -> NDArray[np.float32]:
        """Return the constrained logits (V,), -inf for banned tokens; valid until the next call.

        A row with a NaN is not masked: a ban must not hide that a model is broken.

        Args:
            banned: Further tokens to ban.

        Raises:
            NoTokenLeftError: The guide gave up.
        """
        if not self.is_on and banned.size == 0:
            return logits
        mask = self.guide.mask() if self.guide is not None else NO_MASK
        edits = banned, self.penalties, self.changed
        row: NDArray[np.float32] = edited(APPLY, logits, *edits, mask, buffers.arrays)
        return row

    def accept(self, token: int) -> None:
        """Take the next token of the answer. Raises NoTokenLeftError if the guide bans it."""
        if self._chain is not None:
            self._accept_penalties(token)
        if self.guide is not None:
            self.guide.accept(token)

    def _accept_penalties(self, token: int) -> None:
        C.llama_sampler_accept(self._chain, token)
        self._last.append(token)
        self._of_answer.add(token)

    def forced(self) -> list[int]:
        """Return the tokens that must come next, up to one that is banned."""
        tokens = self.guide.forced() if self.guide is not None else []
        return list(takewhile(lambda token: token not in self._banned, tokens))

    def may_end(self, text: str) -> bool:
        """Return whether the answer is complete with a text, all of it after the prefix."""
        return self.guide is None or self.guide.may_end(text)

    @property
    def is_over(self) -> bool:
        """Whether nothing may follow."""
        return self.guide is not None and self.guide.is_over


def _history(last_n: int, weights: Weights) -> int:
    """Return `last_n`, capped at the longest context: llama.cpp allocates an entry per token."""
    return weights.n_ctx_train if last_n == -1 else min(last_n, weights.n_ctx_train)


def _penalties(constraints: Constraints, weights: Weights) -> list[tuple[Any, int]]:
    """Return llama.cpp's samplers for bias and penalties, each with how many tokens of the prompt it sees."""

    def penalties(last_n: int, repeat: float, frequency: float, presence: float) -> Any:
        smallest = max(repeat, 1 / _LARGE)
        return C.llama_sampler_init_penalties(weights.n_vocab, last_n, smallest, frequency, presence)

    repeat = constraints.repeat_penalty
    of_answer = constraints.frequency_penalty, constraints.presence_penalty
    found = [(_logit_bias(constraints, weights), 0)]
    if constraints.penalty_last_n is not None:
        last_n = _history(constraints.penalty_last_n, weights)
        found.append((penalties(last_n, repeat, *of_answer), last_n))
    else:
        found.append((penalties(_LAST_N, repeat, 0, 0), _LAST_N))
        if any(of_answer):
            found.append((penalties(weights.n_ctx_train, 1, *of_answer), 0))
    return [*found, (_dry(constraints, weights), _history(constraints.dry_penalty_last_n, weights))]


def _logit_bias(constraints: Constraints, weights: Weights) -> Any:
    weights.ids("logit_bias", [*constraints.logit_bias])
    biases = (C.llama_logit_bias * len(constraints.logit_bias))()
    for entry, (token, bias) in zip(biases, constraints.logit_bias.items(), strict=True):
        entry.token, entry.bias = token, bias
    return C.llama_sampler_init_logit_bias(weights.n_vocab, len(biases), biases)


def _dry(constraints: Constraints, weights: Weights) -> Any:
    breakers = [text.encode("utf-8", "replace") for text in constraints.dry_sequence_breakers]
    return C.llama_sampler_init_dry(
        weights.vocab,
        constraints.dry_multiplier,
        constraints.dry_base,
        constraints.dry_allowed_length,
        _history(constraints.dry_penalty_last_n, weights),
        (ctypes.c_char_p * len(breakers))(*breakers),
        len(breakers),
    )
