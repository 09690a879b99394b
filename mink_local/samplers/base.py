"""`Sampler`, the base class: selects candidates with a kernel, and registers each sampler by name."""

import logging
import math
import threading
from collections.abc import Callable, Mapping
from dataclasses import field, fields
from random import Random
from typing import Any, ClassVar, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mink_local.checks import Range, shown, whole
from mink_local.errors import OptionError
from mink_local.samplers import kernels

log = logging.getLogger("mink_local")

Kernel = Callable[..., int]
Selector = Callable[[NDArray[np.float32]], int]
LogitsProcessor = Callable[[Any, NDArray[np.float32]], NDArray[np.float32]]
Order = Literal["temperature-first", "temperature-last"]

TEMPERATURES = Range(0, low_open=True)
_SEEDS = Range(0, whole=True)
_LARGEST = np.finfo(np.float32).max
_WARNED: set[str] = set()  # samplers that have failed as processors
_CHANCE = Random()  # for processors without a seed


class Cut(NamedTuple):
    """A kernel with its options: what compiled code needs to know of a sampler.

    Attributes:
        probability: Of cutting at a step; None for a cut that is made at every step, without drawing.
    """

    kernel: Kernel
    options: NDArray[np.float64]
    probability: float | None = None


class Workspace:
    """Scratch arrays for selecting from `n_vocab` logits; not thread-safe.

    Attributes:
        ids: Starts with the candidates selected last, unordered.
        work: The first kernel's scratch.
        left: The logits that one cut of a chain leaves for the next.
        places, part_work: What the kernels of the remaining cuts write to.
    """

    def __init__(self, n_vocab: int) -> None:
        self.ids, self.places = np.empty((2, n_vocab), np.int32)
        self.work, self.part_work = np.zeros((2, kernels.work_size(n_vocab)), np.uint64)
        self.left = np.empty(n_vocab, np.float32)
        self.arrays = self.ids, self.places, self.work, self.part_work, self.left


class _OfThread(threading.local):
    workspace = Workspace(0)


_of_thread = _OfThread()


def scratch(n_vocab: int) -> Workspace:
    """Return scratch arrays of the calling thread's own."""
    if _of_thread.workspace.ids.size != n_vocab:
        _of_thread.workspace = Workspace(n_vocab)
    return _of_thread.workspace


def _as_row(logits: ArrayLike) -> NDArray[np.float32]:
    row = np.asanyarray(logits, np.float32)
    if hasattr(row, "filled"):  # a masked array, whose masked entries are no tokens
        row = row.filled(-np.inf)
    row = np.asarray(row)
    if row.ndim != 1 or row.size == 0:
        raise ValueError(f"logits must be one row of shape (V,), not {row.shape}: call this for each row")
    return np.require(row, requirements=["C_CONTIGUOUS", "WRITEABLE"])  # what kernels are compiled for


def number(
    default: float,
    low: float,
    high: float = math.inf,
    *,
    exclusive: bool = False,
    variant: bool = False,
) -> Any:
    """Return a dataclass field for a finite number from `low` to `high`; whole if the default is an int.

    Args:
        exclusive: Whether the limits themselves are excluded.
        variant: Whether `str()` omits the field when it has its default.
    """
    limits = Range(low, high, exclusive, exclusive, whole=isinstance(default, int))
    return field(default=default, metadata={"range": limits, "variant": variant})


def choice(default: Any, *others: Any, variant: bool = False) -> Any:
    """Return a dataclass field for one of several values."""
    return field(default=default, metadata={"choices": (default, *others), "variant": variant})


def _check_choice(name: str, value: Any, choices: tuple[Any, ...]) -> None:
    if value not in choices or type(value) is not type(choices[0]):
        raise ValueError(f"{name} must be {' or '.join(map(_text, choices))}, not {value}")


SAMPLERS: dict[str, type["Sampler"]] = {}
"""All samplers by name, in the order of tables and help texts."""


class Sampler:
    """Base class of samplers: decides which tokens of a row of logits remain candidates.

    Wherever one is taken, so is a plain function of the logits: `lambda logits: logits.argsort()[-5:]` keeps
    the five best. For one as fast as this package's, compile a kernel, whose arguments are documented in
    `mink_local.samplers.kernels`, and subclass this as a frozen dataclass of the kernel's options:

        from dataclasses import dataclass

        from mink_local.samplers import Sampler, number
        from mink_local.samplers.compile import compiled
        from mink_local.samplers.kernels import keep_from, survey

        @compiled
        def near(logits, options, work, ids):
            n, _, largest = survey(logits, work)
            return keep_from(largest - options[0], largest, logits, work, ids) if n > 0 else n

        @dataclass(frozen=True)
        class Near(Sampler):
            distance: float = number(1.0, low=0)

            name = "near"
            keeps = "logits within `distance` of the largest"
            sweep = ("distance", (0.1, 0.3, 1.0, 3.0))
            kernel = staticmethod(near)

    A subclass that sets `keeps` is registered in `SAMPLERS`, from which all programs derive their lists,
    tables, help texts and completions.

    Attributes:
        name: What `str()` begins with and `parse` reads.
        keeps: Which tokens remain candidates, in a few words, for help texts and tables.
        sweep: The option to vary in a sweep, and its values from few candidates to many; None for no sweep.
        request_fields: Maps request fields, named as in llama-server, to the options they set. The first
            one may switch the sampler off (`is_off`).
        is_stateful: Whether a token's probability depends on more than the candidates' logits and the
            temperature: on chance, on previously sampled tokens, or on one of llama.cpp's own samplers.
        comes_last: Whether it keeps every token and leaves temperature or sampling to one of llama.cpp's own
            samplers, so that it must come last in a chain.
        order: Which distribution the sampler sees: that of `logits / temperature` ("temperature-first") or
            of `logits` ("temperature-last"); None if the candidates do not depend on temperature.
    """

    name: ClassVar[str] = "sampler"
    keeps: ClassVar[str] = ""
    sweep: ClassVar[tuple[str, tuple[float, ...]] | None] = None
    request_fields: ClassVar[Mapping[str, str]] = {}
    is_stateful: ClassVar[bool] = False
    comes_last: ClassVar[bool] = False
    kernel: ClassVar[Kernel]
    order: Order | None = None

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "keeps" in vars(cls):
            SAMPLERS[cls.name] = cls

    def __post_init__(self) -> None:
        for f in fields(self):  # type: ignore[arg-type]
            value = getattr(self, f.name)
            if "range" in f.metadata:
                object.__setattr__(self, f.name, f.metadata["range"].check(f.name, value))
            if f.name == "order" or "choices" in f.metadata:
                _check_choice(f.name, value, f.metadata.get("choices", get_args(Order)))

    @classmethod
    def is_off(cls, value: float) -> bool:
        """Return whether this value of the first of `request_fields` switches the sampler off."""
        return value <= 0

    @property
    def members(self) -> "tuple[Sampler, ...]":
        """The cuts of a chain, in order; any other sampler is its own only member."""
        return (self,)

    def kernel_options(self, temperature: float) -> NDArray[np.float64]:
        """Return the kernel's `options`.

        These are all fields but `order`, followed by the temperature of the distribution that the sampler
        sees, if it has an order. Override this for fields that are not numbers.
        """
        options = [getattr(self, f.name) for f in fields(self) if f.name != "order"]  # type: ignore[arg-type]
        return np.array(options + [self.seen(temperature)] * (self.order is not None), np.float64)

    def selector(self, temperature: float, workspace: Workspace, random: Random | None = None) -> Selector:
        """Return a function that selects the candidates of a row without allocating.

        Args:
            temperature: What the logits will be divided by, > 0.
            workspace: Receives the candidates' ids; must be as large as the rows.
            random: Source of randomness for samplers that cut at random; with None they cut at every step.

        Returns:
            A function that takes a row of raw logits, contiguous float32 (V,), and returns k or the kernel's
            error.
        """
        first, *others = self.as_cuts(temperature)
        ids, left, places = workspace.ids, workspace.left, workspace.places
        select = self._called(first, workspace.work, ids, random)
        selects = [self._called(cut, workspace.part_work, places, random) for cut in others]

        def select_in_turn(row: NDArray[np.float32]) -> int:
            k = select(row)
            if k <= 1:  # or the first cut's error
                return k
            kernels.take(row, ids, k, left)
            for select_of_part in selects:
                part = left[:k]
                k = select_of_part(part)
                kernels.narrow(part, ids, places, k)
                if k == 1:
                    break
            return k

        return select_in_turn if selects else select

    def _called(
        self, cut: Cut, work: NDArray[np.uint64], ids: NDArray[np.int32], random: Random | None
    ) -> Selector:
        """Return a function that makes a cut of a row, or keeps all tokens if the cut is not drawn."""
        kernel, options, probability = cut
        if not is_own(kernel):
            return lambda row: check_candidates(self.name, kernel(row, options, work, ids), row, ids)
        if random is None or probability is None:
            return lambda row: kernel(row, options, work, ids)
        keep_all = kernels.every_finite
        return lambda row: (kernel if random.random() < probability else keep_all)(row, options, work, ids)

    def checked_selector(
        self, temperature: float, workspace: Workspace, random: Random | None = None
    ) -> Selector:
        """Return `selector`, also if a subclass overrides it, with a check of what others' code returns.

        The function raises OptionError for candidates that are none.
        """
        select = self.selector(temperature, workspace, random)
        if type(self).selector is Sampler.selector:
            return select
        return lambda row: check_candidates(self.name, select(row), row, workspace.arrays[0])

    def as_cuts(self, temperature: float) -> tuple[Cut, ...]:
        """Return the cuts that `selector` makes, in order."""
        if not hasattr(self, "kernel") and self.members == (self,):
            raise OptionError(type(self).__name__, "needs a kernel or a selector: see help(Sampler)")
        if self.members == (self,):
            return (Cut(self.kernel, self.kernel_options(temperature)),)
        return tuple(cut for member in self.members for cut in member.as_cuts(temperature))

    def cutoff(self, logits: ArrayLike, temperature: float = 1.0) -> int:
        """Return how many tokens of a row of logits remain candidates.

        Samplers that cut only at random steps (XTC) always cut here.

        Args:
            logits: Raw logits of shape (V,). -inf (banned) and NaN are never candidates; +inf counts as the
                largest finite float32.
            temperature: What the logits will be divided by, > 0. Only samplers with order
                "temperature-first" depend on it.

        Raises:
            ValueError: No logit is finite, the shape is wrong, or the temperature is not positive.
        """
        return self._select(_as_row(logits), temperature).size

    def candidates(
        self, logits: ArrayLike, temperature: float = 1.0
    ) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """Return the candidates of a row of logits, largest logit first, ties by token id.

        Arguments and errors as for `cutoff`.

        Returns:
            The token ids, int32 (k,), and their logits, float32 (k,), not divided by the temperature.
        """
        row = _as_row(logits)
        ids = self._select(row, temperature)
        kept = np.minimum(row[ids], _LARGEST)
        descending = np.lexsort((ids, -kept))
        return ids[descending], kept[descending]

    def __call__(self, input_ids: Any, scores: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return `scores` with all but the candidates set to -inf: a logits processor for llama-cpp-python.

        llama-cpp-python still applies its own top_k=40, top_p=0.95, min_p=0.05 and temperature afterwards:
        pass `top_k=0, top_p=1.0, min_p=0.0` as well to switch those cuts off. It applies a grammar or
        `response_format` afterwards too, and ends the process if none of the candidates is allowed: with
        those, use `native_sampler`, after the grammar.

        Args:
            scores: Raw logits, float32 (V,); may be a strided view. Not modified.

        llama.cpp swallows what a processor raises, and would go on with all tokens. So where a sampler cannot
        decide, only the largest logit is left, and a warning says why, once: if its order is
        "temperature-first", since a processor is not told the temperature (pass `sampler.at(temperature)`);
        if it is one of llama.cpp's own; or if no logit is finite.
        """
        row = _as_row(scores)
        try:
            if self.order == "temperature-first":
                raise ValueError(f"{self} needs the temperature: pass sampler.at(temperature)")
            return self.at(1.0)(input_ids, row)
        except (TypeError, ValueError) as error:
            return self._largest_alone(row, error)

    def at(self, temperature: float, seed: int | None = None) -> LogitsProcessor:
        """Return a logits processor for generation at `temperature`, which is applied afterwards.

        Create one processor per text.

        Args:
            temperature: The temperature applied afterwards, above 0.
            seed: Seed for samplers that cut at random, at least 0; None picks one at random.

        Raises:
            TypeError: The sampler ends with one of llama.cpp's own, which a processor cannot be.
        """
        if self.comes_last:
            raise TypeError(
                f"{self.members[-1].name} is llama.cpp's own: pass its option to llama-cpp-python"
            )
        TEMPERATURES.check("temperature", temperature)
        random = _CHANCE if seed is None else random_of(seed)  # seeding takes longer than a cut

        def process(input_ids: Any, scores: NDArray[np.float32]) -> NDArray[np.float32]:  # noqa: ARG001
            row = _as_row(scores)
            try:
                ids = self._select(row, temperature, random)
            except Exception as error:  # also of code of others
                return self._largest_alone(row, error)
            kept = np.full_like(row, -np.inf)
            kept[ids] = np.minimum(row[ids], _LARGEST)
            return kept

        return process

    def _largest_alone(self, row: NDArray[np.float32], error: Exception) -> NDArray[np.float32]:
        """Return logits from which greedy is sampled, where a processor fails."""
        if self.name not in _WARNED:
            _WARNED.add(self.name)
            log.warning("%s, as a logits processor: %s; the most probable token is taken", self.name, error)
        kept = np.full_like(row, -np.inf)
        kept[np.argmax(np.where(np.isnan(row), -np.inf, row))] = 0
        return kept

    def _select(
        self, row: NDArray[np.float32], temperature: float, random: Random | None = None
    ) -> NDArray[np.int32]:
        """Return the candidates' ids, unordered, in an array that the next call overwrites."""
        TEMPERATURES.check("temperature", temperature)
        workspace = scratch(row.size)
        select = self.checked_selector(temperature, workspace, random)
        k = select(row)
        if k == kernels.HAS_NAN:
            k = select(np.where(np.isnan(row), np.float32(-np.inf), row))
        if k < 0:
            raise ValueError("no candidates: no logit is finite")
        return workspace.ids[:k]

    def seen(self, temperature: float) -> float:
        """Return the temperature of the distribution that the sampler sees: 1 unless temperature-first."""
        return float(temperature) if self.order == "temperature-first" else 1.0

    def __str__(self) -> str:
        options = ",".join(
            f"{f.name}={_text(getattr(self, f.name))}"
            for f in fields(self)  # type: ignore[arg-type]
            if not f.metadata.get("variant") or getattr(self, f.name) != f.default
        )
        return f"{self.name}:{options}" if options else self.name


def is_own(kernel: Any) -> bool:
    """Return whether a kernel is this package's: others' are checked."""
    return getattr(kernel, "__module__", "") == kernels.__name__


def check_candidates(name: str, k: Any, row: NDArray[np.float32], ids: NDArray[np.int32]) -> int:
    """Return k, the number of a row's candidates, or a kernel's error, as a sampler of others returned it.

    Whoever uses candidates trusts them, compiled code too: what is wrong here would end the process there.

    Args:
        name: The sampler's.
        k: What it returned.
        row: The logits, float32 (V,).
        ids: What it wrote, int32 (V,).

    Raises:
        OptionError: It is no number of candidates, or the first k ids are not different tokens with logits.
    """
    error = whole(k)
    if error in (kernels.NO_FINITE_LOGIT, kernels.HAS_NAN):
        return error
    n = int(Range(1, row.size, whole=True).check(f"the number of candidates of {name}", k))
    kept = np.unique(ids[:n])
    if kept.size < n or kept[0] < 0 or kept[-1] >= row.size or not np.all(row[kept] > -np.inf):
        needed = f"must be {n} different token ids below {row.size} whose logits are not -inf or NaN"
        raise OptionError(f"the candidates of {name}", f"{needed}, not {shown(ids[:n].tolist())}")
    return n


def random_of(seed: int | None) -> Random:
    """Return the random numbers of a seed; None picks one at random.

    Raises OptionError unless the seed is a whole number; Python would take a negative one for the positive.
    """
    return Random(seed if seed is None else _SEEDS.check("seed", seed))


def _text(value: object) -> str:
    """Return an option in the shortest form that `parse` reads back."""
    if isinstance(value, bool):
        return str(value).lower()
    return repr(float(value)).removesuffix(".0") if isinstance(value, float) else str(value)
