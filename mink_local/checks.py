"""What may be given as a number: the ranges of options, in Python and on the command line alike."""

import inspect
import math
import operator
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from difflib import get_close_matches
from functools import wraps
from numbers import Real
from typing import Any, TypeVar

from mink_local.errors import OptionError

T = TypeVar("T")

NO_LISTS = (str, bytes, bytearray, memoryview, Mapping)  # though one can iterate over them


@dataclass(frozen=True)
class Range:
    """The numbers that an option takes.

    Args:
        low, high: The limits.
        low_open, high_open: Whether a limit itself is excluded.
        whole: Whether only whole numbers are taken; otherwise all finite ones.
    """

    low: float = -math.inf
    high: float = math.inf
    low_open: bool = False
    high_open: bool = False
    whole: bool = False

    def __contains__(self, number: float) -> bool:
        return (self.low < number if self.low_open else self.low <= number) and (
            number < self.high if self.high_open else number <= self.high
        )

    def __str__(self) -> str:
        """Return the limits in words: "from 0 to 1", "above 0 and at most 100"."""
        low, high = (str(n) if isinstance(n, int) else f"{n:.15g}" for n in (self.low, self.high))
        least = f"{'above' if self.low_open else 'at least'} {low}" if self.low > -math.inf else ""
        most = f"{'below' if self.high_open else 'at most'} {high}" if self.high < math.inf else ""
        if least and most and not (self.low_open or self.high_open):
            return f"from {low} to {high}"
        return " and ".join(filter(None, (least, most)))

    def check(self, name: str, value: Any, other: str = "") -> Any:
        """Return a number, NumPy's too, as an int or a float; the message for none begins with `other`.

        Raises:
            OptionError: It is not a number, or out of range; the message names the option.
        """
        number = whole(value) if self.whole else _finite(value)
        if number is None or number not in self:
            kind = "a whole number" if self.whole else "a finite number"
            raise OptionError(name, f"must be {other}{kind} {self}".rstrip() + f", not {shown(value)}")
        return number


def check_types(**options: tuple[Any, Any]) -> None:
    """Raise OptionError unless each option's value is of its type or, in a union, of one of them."""
    for name, (value, kind) in options.items():
        if not isinstance(value, kind):
            names = (one.__name__.replace("NoneType", "None") for one in getattr(kind, "__args__", (kind,)))
            raise OptionError(name, f"must be {' or '.join(names)}, not {shown(value)}")


def spelled_out(*kinds: type, owner: Callable[[str], str] | None = None) -> Callable[[T], T]:
    """Return a decorator that shows `**options` as the keywords of dataclasses, in help() and to Tab.

    The function raises TypeError for any other option; see `require_known`.
    """

    def decorated(function: T) -> T:
        shown = inspect.signature(function)  # type: ignore[arg-type]
        own = [one for one in shown.parameters.values() if one.kind != one.VAR_KEYWORD]
        options = [one for kind in kinds for one in _keywords(kind)]
        signature = shown.replace(parameters=[*own, *options])

        @wraps(function)  # type: ignore[arg-type]
        def checked(*args: Any, **given: Any) -> Any:
            require_known(given, signature.parameters, owner)
            return function(*args, **given)  # type: ignore[operator]

        checked.__signature__ = signature  # type: ignore[attr-defined]
        return checked  # type: ignore[return-value]

    return decorated


def _keywords(kind: type) -> list[inspect.Parameter]:
    """Return a dataclass's keyword-only parameters, or all if none is, as such."""
    known = inspect.signature(kind).parameters.values()
    keywords = [one for one in known if one.kind == one.KEYWORD_ONLY] or known
    return [one.replace(kind=one.KEYWORD_ONLY) for one in keywords]


def require_known(
    options: Iterable[str], known: Iterable[str], owner: Callable[[str], str] | None = None
) -> None:
    """Raise TypeError for an option that does not exist, with its owner or the nearest one.

    Args:
        options: The names of the options that are given.
        known: The names of those that exist.
        owner: Returns where else to pass an option, to end the message; "" if it is unknown.
    """
    names = list(known)
    for option in options:
        if option not in names:
            near = "".join(f", perhaps {name}" for name in get_close_matches(option, names, n=1))
            raise TypeError(f"there is no option {option}{(owner and owner(option)) or near}")


def as_texts(name: str, values: Any, wanted: str = "a list of texts") -> tuple[str, ...]:
    """Return several texts; raise OptionError, with what is wanted, unless there is nothing else."""
    if isinstance(values, Iterable) and not isinstance(values, NO_LISTS):
        with suppress(TypeError):  # of an array that has no dimension
            found = tuple(values)
            if all(isinstance(each, str) for each in found):
                return found
    raise OptionError(name, f"must be {wanted}, not {shown(values)}")


def as_ids(name: str, values: Any) -> list[int]:
    """Return token ids, NumPy's too, as a list of ints; raise OptionError unless they are whole numbers."""
    if isinstance(values, Iterable) and not isinstance(values, NO_LISTS):
        with suppress(TypeError):
            found = list(values)
            if bool not in set(map(type, found)):
                return list(map(operator.index, found))
    raise OptionError(name, f"must be a list of token ids, not {shown(values)}")


def plain(name: str, value: Any) -> Any:
    """Return a copy of dicts and lists in one another, which nobody else changes; other values as they are.

    Raises OptionError, with the option's name, if they are nested too deeply, or in a circle.
    """
    try:
        return _copied(value)
    except RecursionError:
        raise OptionError(name, "is nested too deeply, or Python's stack is nearly full") from None


def _copied(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _copied(each) for key, each in value.items()}
    return [_copied(each) for each in value] if isinstance(value, list | tuple) else value


def shown(value: Any) -> str:
    """Return a wrong value as a message quotes it."""
    try:
        text = " ".join((str(value) if isinstance(value, Real) else repr(value)).split())
    except Exception:  # an int of thousands of digits, or an object that has no text
        text = type(value).__name__
    return text if len(text) <= 60 else f"{text[:60]}…"


def whole(value: Any) -> int | None:
    """Return a whole number, NumPy's too, as an int; None if it is none."""
    try:
        return None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        return None


def _finite(value: Any) -> float | None:
    if type(value) is bool or not isinstance(value, Real):
        return None
    with suppress(OverflowError):  # a large int
        return float(value) if math.isfinite(value) else None
    return None


def no_attribute(owner: object, name: str, counterparts: Mapping[str, str]) -> AttributeError:
    """Return the error for an attribute that does not exist, with what to write for another library's."""
    instead = f": use {counterparts[name]}" if name in counterparts else ""
    return AttributeError(f"{type(owner).__name__} has no attribute {name}{instead}", name=name, obj=owner)
