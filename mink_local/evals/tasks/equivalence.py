"""Which answers are equal: numbers exactly, formulas by math-verify.

math-verify runs in a child process, which runs this module too: a few characters (9^9^9^9) can send SymPy
into an endless computation, and math-verify's own time limit works only in the main thread and cannot stop C
code. It rounds decimals, so it gets them as fractions, and compares irrational numbers to many digits.
"""

import importlib.util
import re
from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache
from typing import Any

from mink_local.errors import DataError
from mink_local.evals.tasks.stated import plain
from mink_local.sandbox import GIB, Child, SandboxError, serve

SECONDS = 5  # per comparison
LONGEST = 2000  # characters; no real answer is that long
_DIGITS = 1000


def number_of(text: str) -> Fraction | None:
    """Return the value of a plain number, such as -1.5, 3/4, 1 1/2 or 50%; None for other texts."""
    text = plain(text).strip().rstrip(" .%").removeprefix("+")
    if len(text) > _DIGITS or not re.fullmatch(r"-?(?:\d+ )?\d*\.?\d*(?: ?/ ?\d+)?", text):
        return None
    try:
        value = sum(map(Fraction, re.sub(" ?/ ?", "/", text.removeprefix("-")).split()), Fraction())
    except (ValueError, ZeroDivisionError):
        return None
    return (-value if text.startswith("-") else value) if text.strip("-") else None


_SPACING = re.compile(r"\s|\\[,;:! ]|\\(?:left|right|displaystyle)(?![a-zA-Z])|(?<=\\)d(?=frac)")
_BASED = re.compile(r"\(?(-?[\dA-Fa-f.]+)\)?_\{*(?:\\text\{)?(?:base )?(\d{1,2})\}*")  # 52_8, 4210_{5}
_WORDS = re.compile(r"[A-Za-z][A-Za-z' -]+")

_REPEATING = re.compile(r"(?<![\d.])(\d*)\.(\d*)\\(?:overline|bar|dot)\s*\{?(\d{1,30})\}?(?!\d)")

_verifier = Child("mink_local.evals.tasks.equivalence", memory=2 * GIB)


def same_number(gold: str, answer: str) -> bool | None:
    """Return whether plain numbers are equal, exactly; 50% is 50, and 0.5. None if one is no plain number."""
    ours, theirs = number_of(gold), number_of(answer)
    if ours is None or theirs is None:
        return None
    return ours == theirs or ours / _parts(gold) == theirs / _parts(answer)


def _parts(text: str) -> int:
    return 100 if "%" in text else 1


_FACTOR = re.compile(r"-?[\d.,/ ]*\d[A-Za-z]")  # 2h is no 2 hours, for which math-verify takes it


def same_maths(gold: str, answer: str) -> bool:
    """Return whether an answer in LaTeX (without $) is the gold answer; thread-safe.

    Numbers are equal only if they are so exactly, and in the same base. Words are compared as texts, and
    everything else with `equivalent`, whose exceptions it raises.
    """
    if max(len(gold), len(answer)) > LONGEST:
        return False
    gold, answer = (_REPEATING.sub(_as_fraction, text) for text in (gold, answer))
    shown = plain(gold), plain(answer)
    based = [_BASED.fullmatch(text.strip()) for text in (gold, answer)]
    if any(based):
        digits = [found.groups() if found else (text, "10") for found, text in zip(based, shown, strict=True)]
        return digits[0] == digits[1]
    if (same := same_number(gold, answer)) is not None:
        return same
    if any(map(_FACTOR.fullmatch, shown)) and any(number_of(text) is not None for text in shown):
        return False
    if all(map(_WORDS.fullmatch, shown)):
        return shown[0].casefold() == shown[1].casefold()
    bare = [_SPACING.sub("", text).removesuffix(".") for text in (gold, answer)]
    fractions = (
        text if (value := number_of(text)) is None else f"\\frac{{{value.numerator}}}{{{value.denominator}}}"
        for text in (gold, answer)
    )
    return bare[0] == bare[1] or equivalent(*fractions)


def _as_fraction(repeating: re.Match[str]) -> str:
    """Return 0.1\\overline{6} as a fraction."""
    whole, once, again = repeating.groups()
    numerator = int(whole + once + again) - int(whole + once or 0)
    return rf"\frac{{{numerator}}}{{{10 ** len(once + again) - 10 ** len(once)}}}"


@lru_cache(maxsize=100_000)
def equivalent(gold: str, answer: str) -> bool:
    """Return whether `answer` (LaTeX, without $) is equivalent to `gold`; thread-safe.

    False if math-verify takes longer than SECONDS, or too much memory. Raises DataError if math-verify is not
    installed, and ChildStartError if its process does not start.
    """
    if len(answer) > LONGEST:
        return False
    if importlib.util.find_spec("math_verify") is None:
        raise DataError(
            "comparing answers needs math-verify, which is not installed: "
            'type  python -m pip install "mink-local[eval]"'
        )
    try:
        return bool(_verifier.ask([gold, answer], SECONDS))
    except SandboxError:
        return False


def _begin(_: object) -> Callable[[tuple[str, str]], bool]:
    """Return the function with which the child answers."""
    import math_verify
    import sympy

    def exactly(expression: Any) -> Any:
        """Return an expression without decimals, and ∞ of x = ∞, of which SymPy finds no solution."""
        if isinstance(expression, sympy.Eq) and expression.rhs.is_infinite:
            return expression.rhs
        if isinstance(expression, sympy.Basic | sympy.MatrixBase):
            decimals = expression.atoms(sympy.Float)
            expression = expression.xreplace({number: sympy.Rational(str(number)) for number in decimals})
        return expression.doit() if getattr(expression, "is_number", False) else expression

    def verify(expressions: tuple[str, str]) -> bool:
        gold, answer = (
            list(map(exactly, math_verify.parse(f"\\boxed{{{text}}}", parsing_timeout=None)))
            for text in expressions
        )
        return bool(math_verify.verify(gold, answer, numeric_precision=_DIGITS, timeout_seconds=None))

    return verify


if __name__ == "__main__":
    serve(_begin)
