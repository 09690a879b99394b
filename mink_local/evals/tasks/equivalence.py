"""Compares mathematical expressions: exactly if they are numbers, otherwise with math-verify.

math-verify runs in a child process, which runs this module too: a few characters (9^9^9^9) can send SymPy
into an endless computation, and math-verify's own time limit works only in the main thread and cannot stop C
code. Its "equal" is checked exactly, because it rounds.
"""

import importlib.util
import re
from collections.abc import Callable
from functools import lru_cache
from itertools import permutations
from typing import Any

from mink_local.errors import DataError
from mink_local.evals.tasks.exact import LONGEST, based, exact, same_quantity, unit_of
from mink_local.sandbox import GIB, Child, SandboxError, serve

SECONDS = 5  # per comparison

_MOST_MEMBERS = 6  # of a set whose members are matched with another's in every order

_SCALES = {
    "dozen": "12",
    "hundred": "10^2",
    "thousand": "10^3",
    "million": "10^6",
    "billion": "10^9",
    "trillion": "10^{12}",
}
_SCALE = re.compile(rf"(?:\\text\w*\s*\{{\s*|\b|(?<=\d))({'|'.join(_SCALES)})s?\b\s*\}}?")
_UNIT = re.compile(
    r"(?:\\[,;:! ]|\s)*(?:\\(?:text\w*|mathrm|mbox)\s*\{[^{}]*\}|(?<=[\d)}\s])[A-Za-z°¢€/.]{2,}|[°¢€£]"
    r"|(?<=\d)\s*[a-zA-Z])?(?:\^\{?[23]\}?|[²³])?(?:\^\{?\\circ\}?)?[.\s]*$"
)
_WORD = re.compile(r"[A-Za-z][A-Za-z' -]+")

_verifier = Child("mink_local.evals.tasks.equivalence", memory=2 * GIB)


def same_maths(gold: str, answer: str) -> bool:
    """Return whether an answer in LaTeX (without $) is the gold answer; thread-safe.

    Numbers are equal only if they are so exactly, in the same base, and in units that agree if both have one.
    Words are compared as texts, and everything else with `equivalent`, whose exceptions it raises.
    """
    gold, answer = (_SCALE.sub(lambda word: rf"\cdot {_SCALES[word[1]]} ", text) for text in (gold, answer))
    bases = based(gold), based(answer)
    if any(bases):
        return (bases[0] or (_canonical(gold), "10")) == (bases[1] or (_canonical(answer), "10"))
    words = [re.sub(r"\\text\w*|[{}]", "", text).strip() for text in (gold, answer)]
    if all(map(_WORD.fullmatch, words)):
        return words[0].casefold() == words[1].casefold()
    bare = [_bare(gold), _bare(answer)]
    values = exact(bare[0]), exact(bare[1])
    if values[0] is None or values[1] is None:
        return _canonical(gold) == _canonical(answer) or equivalent(gold, answer)
    if ("%" in gold) != ("%" in answer):  # 50 is 50%, and so is 0.5
        return values[0] == values[1] or exact(bare[0].rstrip("\\%")) == exact(bare[1].rstrip("\\%"))
    return same_quantity(values[0], gold, values[1], answer)


def _bare(text: str) -> str:
    """Return a number without its unit and currency."""
    return re.sub(r"\\?[$€£¥₹]", "", _UNIT.sub("", text) if unit_of(text) or "\\text" in text else text)


def _canonical(text: str) -> str:
    """Return an expression without what only spaces and sizes it."""
    text = re.sub(
        r"\\(?:left|right|displaystyle)(?![a-zA-Z])|\\[,;:! ]", "", text.replace("\\dfrac", "\\frac")
    )
    return re.sub(r"(?<!\d)\s+|\s+(?!\d)", "", text).removesuffix(".")


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

    def verify(expressions: tuple[str, str]) -> bool:
        gold, answer = (math_verify.parse(f"\\boxed{{{text}}}", parsing_timeout=None) for text in expressions)
        return bool(math_verify.verify(gold, answer, timeout_seconds=None)) and not _differ(
            gold[0], answer[0]
        )

    return verify


def _differ(gold: Any, answer: Any) -> bool:
    """Return whether two SymPy expressions that math-verify calls equal have different values.

    False if their values cannot be compared.
    """
    import sympy

    gold, answer = (_exactly(one) for one in (gold, answer))
    if isinstance(gold, sympy.FiniteSet | sympy.Union) and type(gold) is type(answer):
        members = list(gold.args)
        if len(members) != len(answer.args) or len(members) > _MOST_MEMBERS:
            return len(members) != len(answer.args)
        return all(any(map(_differ, members, order)) for order in permutations(answer.args))
    if isinstance(gold, sympy.Tuple | sympy.Interval | sympy.MatrixBase) and type(gold) is type(answer):
        parts = [list(one) if isinstance(one, sympy.MatrixBase) else one.args for one in (gold, answer)]
        return any(map(_differ, *parts))
    if isinstance(gold, sympy.Rel) and isinstance(answer, sympy.Rel):  # equal up to a factor
        ratio = sympy.simplify((gold.lhs - gold.rhs) / (answer.lhs - answer.rhs))
        return bool(ratio.free_symbols)
    both = isinstance(gold, sympy.Expr) and isinstance(answer, sympy.Expr)
    return both and (gold - answer).equals(0) is False and gold.doit() != answer.doit()  # oo - oo is nan


def _exactly(expression: Any) -> Any:
    """Return 5 of x = 5, and decimals as fractions. What math-verify left a text stays one."""
    import sympy

    if isinstance(expression, sympy.Eq) and expression.lhs.is_Symbol:
        expression = expression.rhs
    decimals = expression.atoms(sympy.Float) if isinstance(expression, sympy.Basic) else ()
    return (
        expression.xreplace({number: sympy.Rational(str(number)) for number in decimals})
        if decimals
        else expression
    )


if __name__ == "__main__":
    serve(_begin)
