"""Which answers are equal: numbers exactly, in the units that they are stated in; formulas by math-verify.

math-verify runs in a child process, which runs this module too: a few characters (9^9^9^9) can send SymPy
into an endless computation, and math-verify's own time limit works only in the main thread and cannot stop C
code. It rounds decimals, so it gets them as fractions, and compares irrational numbers to many digits.
"""

import importlib.util
import re
import unicodedata
from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache
from typing import Any, NamedTuple

from mink_local.errors import DataError
from mink_local.evals.tasks.statements import plain
from mink_local.sandbox import GIB, Child, SandboxError, serve

SECONDS = 5  # per comparison
LONGEST = 2000  # characters; no real answer is that long
_DIGITS = 1000

# Numbers

_POWERS = {
    **dict.fromkeys(("k", "thousand", "grand", "千"), 3),
    **dict.fromkeys(("hundred", "百"), 2),
    **dict.fromkeys(("M", "million", "mn", "mln", "mil", "mio"), 6),
    **dict.fromkeys(("billion", "bn"), 9),
    **dict.fromkeys(("trillion", "tn"), 12),
    "lakh": 5,
    "crore": 7,
    "万": 4,
    "亿": 8,
}
_SCALES = re.compile(  # 18 hundred, 15k, 1.5 million, 3 hundred thousand
    r"(?<=\d)((?:[\s-]*(?:hundred|thousand|million|billion|trillion|lakh|crore|grand)s?\b"
    r"|\s?(?:mn|mln|mio|bn|tn)\b|k\b(?! gold)|(?-i:\s?M\b)|[万亿千百])+)",
    re.IGNORECASE,
)
_SCALE = re.compile("|".join(sorted(_POWERS, key=len, reverse=True)))
_CURRENCIES = {"$": "dollars", "USD": "dollars", "€": "euros", "EUR": "euros", "£": "GBP", "¥": "yen"}
_CURRENCIES |= dict.fromkeys(("₹", "Rs", "Rs."), "rupees")
_SCALED = (
    r"(?:\s?(?:[mMbBtTkK]|mm|mn|mil|bn|tn)\b(?![\^²³/-])|\s(?:hundred|thousand|[mbtr]+illion|lakh|crore)\b)"
)
_AMOUNT = re.compile(  # $5, US$1,800, £3M, $2 million; but $3m$ is a formula, and $18+ a bound
    rf"(?:US)?\\?([$€£¥₹]|USD|EUR|Rs\.?)\s?(-?[\d.,]*\d(?:(?:,?\\[,!]|\{{,\}}|\s)\d{{3}}\b)*{_SCALED}?)"
    r"(?!\d|[.,]\d|\s?(?:[-–+/^×·÷]|\*\s?\d)|[^$\n]*(?<!\\)\$)",
)
_COUNTED_IN_MILLIONS = r"(?= (?:dollars|euros?|pounds|GBP|yen|rupees|people)\b)"
_CONTINENTAL = (  # 1.800,50 and 1.234.567 and 0,5
    r"(?<![\d.,])(?:\d{1,3}(?:\.\d{3})+,\d{1,2}|\d{1,3}(?:\.\d{3}){2,}|0,\d+)(?![.,]?\d)"
)
_IN_WORDS = (
    r"(?:an?|one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|half|and|quarters?|thirds?|dozen)"
)
_IN_ALL = r"(?: (?:in (?:total|all)|altogether|together|overall))"
_SPELLINGS = (
    (rf"(?<=\d)\s?(?:mm?|mil){_COUNTED_IN_MILLIONS}", " million"),
    (rf"(?<=\d)\s?b{_COUNTED_IN_MILLIONS}", " billion"),
    (rf"(?<=\d)\s?t{_COUNTED_IN_MILLIONS}", " trillion"),
    (r"(?<=\d)(?:[,’']|\s(?!\d+ ?/))(?=(?:\d{2},)*\d{3}\b(?!-[a-z]))", ""),  # 1,800 and 1 800
    (_CONTINENTAL, lambda number: number[0].replace(".", "").replace(",", ".")),
    (rf"(?<![\w-])(?:{_IN_WORDS}[\s-]+)+(?=\([-\d.])", ""),  # a dozen (12)
    (rf",? (?:which (?:is|equals|makes)|that is,?|i\.e\.,?|so|thus)\s+(?=-?\d[\d.,]*{_IN_ALL}?\W*$)", " = "),
    (r"(?<=10)([⁰¹²³⁴-⁹]+)", lambda digits: f"^{unicodedata.normalize('NFKC', digits[0])}"),
    (r"\s*[×x*·]\s?10\s?\^", "e"),
    (r"(?<![\w.^*/×·÷+-])10\s?\^(-?\d{1,2})(?![\w.^!])", r"1e\1"),
    (r"(?<=[A-Za-z])\^2", "²"),  # 18 m^2
    (r"(?<=[A-Za-z])\^3", "³"),
    (r"(?<=[A-Za-z])\^-?\d", ""),
    (r"\bper cent\b", "percent"),
    (r"==?>|-+>", "="),
    (r"\b(?:minus|negative) +(?=\.?\d)", "-"),
    (r"(?:^|(?<=[(\[:=≈,;]))\s*[-–]\s*(?=\.?\d)", "-"),
    (r"(?<![\d/.])(\d+) of (?:the|these|those|his|her|their|all) \d+(?= [a-z])", r"\1"),
)

# What is measured, and units as number of the first one = names. A plural needs no name of its own.
_TABLE = """
length: 1 = mm millimeter millimetre; 10 = cm centimeter centimetre; 100 = dm decimeter decimetre
  ; 1000 = m meter metre; 1000000 = km kilometer kilometre; 127/5 = inch inches; 1524/5 = ft foot feet
  ; 4572/5 = yd yard; 1609344 = mi mile
mass: 1 = mg milligram; 1000 = g gram; 1000000 = kg kilogram kilo; 1000000000 = t tonne ton
  ; 45359237/1600 = oz ounce; 45359237/100 = lb
time: 1 = ms millisecond; 1000 = s sec second; 60000 = min minute; 3600000 = h hr hour; 86400000 = day
  ; 604800000 = week
volume: 1 = ml milliliter millilitre; 1000 = l L liter litre
speed: 1 = km/h kph; 3.6 = m/s; 1.609344 = mph miles/h
dollars: 1 = cent ¢; 100 = dollar usd
euros: 1 = euro eur
pounds: 1 = penny pence; 100 = gbp
yen: 1 = yen jpy
rupees: 1 = rupee inr rs
share: 1/100 = % percent pct percentage
angle: 1 = ° degree deg
before noon: 1 = am a.m.
after noon: 1 = pm p.m.
"""
_UNITS = {
    name: (measure.strip(), Fraction(amount.strip()))
    for measure, units in (line.split(":") for line in _TABLE.replace("\n  ", "").strip().splitlines())
    for amount, names in (unit.split("=") for unit in units.split(";"))
    for name in names.split()
}
_DIMENSIONS = {"square": 2, "sq": 2, "cubic": 3, "cu": 3, "²": 2, "³": 3}
_COUNTED = re.compile(r"[a-z]{3,}[^s\W]s|people|children|men|women")  # apples, which are no pears
_NUMBER = re.compile(
    r"\+?(-?)((?:\d+ )?\d+ ?/ ?\d+|(?:\d+(?:\.\d*)?|\.\d+)(?:e[-+]?\d{1,3})?)", re.IGNORECASE | re.ASCII
)
UNIT = re.compile(
    r"(?:\s*(%|°|¢)|(?:\s*(?=\w\w|\w/)|\s+)(?:(square|cubic|sq|cu)\b\.? )?([ap]\.m\.|[A-Za-z/]+)([²³])?)\.?"
)


class Quantity(NamedTuple):
    """A number, and what its unit measures, if it has one; `amount` is in the smallest unit of that."""

    value: Fraction
    measure: str
    amount: Fraction


def quantity(text: str) -> Quantity | None:
    """Return the quantity that a text such as -1,450.5, 2\\frac{1}{2}, 3/4 or 5 \\text{ cm}^2 states.

    None for anything else, such as several numbers, formulas, and words that are no unit.
    """
    shown = spelled(text[: LONGEST + 1])
    number = _NUMBER.match(shown)
    if number is None or len(text) > LONGEST:
        return None
    try:
        value = sum(map(Fraction, re.sub(r" ?/ ?", "/", number[2]).split()), Fraction())
    except ZeroDivisionError:
        return None
    value = -value if number[1] else value
    if shown[number.end() :] in ("", "."):
        return Quantity(value, "", value)
    unit = UNIT.fullmatch(shown, number.end())
    found = _measured(unit) if unit else None
    return Quantity(value, found[0], value * found[1]) if found else None


def _measured(unit: re.Match[str]) -> tuple[str, Fraction] | None:
    """Return what a unit measures, and how much of it."""
    name = unit[1] or (unit[3].lower() if len(unit[3]) > 1 else unit[3])
    known = _UNITS.get(name) or _UNITS.get(name.removesuffix("s"))
    if known is None:
        return (name, Fraction(1)) if _COUNTED.fullmatch(name) else None
    power = _DIMENSIONS.get(unit[2] or unit[4] or "", 1)
    return (f"{known[0]}^{power}", known[1] ** power) if power > 1 else known


def same(gold: Quantity, answer: Quantity) -> bool:
    """Return whether quantities are equal, in their units if both have one; 50 is 50%, and so is 0.5."""
    if gold.measure and answer.measure:
        return gold[1:] == answer[1:]
    is_share = "share" in (gold.measure, answer.measure)
    return gold.value == answer.value or (is_share and gold.amount == answer.amount)


def spelled(text: str) -> str:
    """Return plain text with its numbers in digits: 1,800 is 1800, and $1.8k is 1.8e3 dollars."""
    text = plain(_AMOUNT.sub(lambda amount: f"{amount[2]} {_CURRENCIES[amount[1]]}", text))
    for written, meant in _SPELLINGS:
        text = re.sub(written, meant, text, flags=re.IGNORECASE)
    return _SCALES.sub(_as_power, text).strip()


def _as_power(scales: re.Match[str]) -> str:
    words = scales[1] if "M" in scales[1] else scales[1].lower()
    return f"e{sum(_POWERS[word] for word in _SCALE.findall(words))}"


# Formulas

_SPACING = re.compile(r"\s|\\[,;:! ]|\\(?:left|right|displaystyle)(?![a-zA-Z])|(?<=\\)d(?=frac)")
_BASED = re.compile(r"\(?(-?[\dA-Fa-f.]+)\)?_\{*(?:\\text\{)?(?:base )?(\d{1,2})\}*")  # 52_8, 4210_{5}
_WORDS = re.compile(r"[A-Za-z][A-Za-z' -]+")
_FACTOR = re.compile(r"-?[\d.,/ ]*\d[A-Za-z]")  # 2h is no 2 hours, for which math-verify takes it

_REPEATING = re.compile(r"(?<![\d.])(\d*)\.(\d*)\\(?:overline|bar|dot)\s*\{?(\d{1,30})\}?(?!\d)")
_SINE_OF_DEGREES = re.compile(
    r"(\\(?:sin|cos|tan|cot|sec|csc)(?:\^\{?\d\}?)?)\s*[({]?\s*(-?\d{1,4}(?:\.\d{1,9})?)\s*"
    r"(?:\^\s*\{?\s*\\(?:circ|degree)\s*\}?|\\degree|°)\s*[)}]?"
)

_verifier = Child("mink_local.evals.tasks.equivalence", memory=2 * GIB)


def same_maths(gold: str, answer: str) -> bool:
    """Return whether an answer in LaTeX (without $) is the gold answer; thread-safe.

    Numbers are equal only if they are so exactly, in the same base, and in units that agree if both have one.
    Words are compared as texts, and everything else with `equivalent`, whose exceptions it raises.
    """
    if max(len(gold), len(answer)) > LONGEST:
        return False
    gold, answer = (
        _SINE_OF_DEGREES.sub(r"\1(\\frac{\2\\pi}{180})", _REPEATING.sub(_as_fraction, text))
        for text in (gold, answer)
    )
    shown = plain(gold), plain(answer)
    based = [_BASED.fullmatch(text.strip()) for text in (gold, answer)]
    if any(based):
        digits = [found.groups() if found else (text, "10") for found, text in zip(based, shown, strict=True)]
        return digits[0] == digits[1]
    factors = [_FACTOR.fullmatch(text.strip()) for text in (gold, answer)]
    values = [
        None if factor else quantity(text) for factor, text in zip(factors, (gold, answer), strict=True)
    ]
    if values[0] and values[1]:
        return same(values[0], values[1])
    if any(values) and any(factors):
        return False
    if all(map(_WORDS.fullmatch, shown)):
        return shown[0].casefold() == shown[1].casefold()
    bare = [_SPACING.sub("", text).removesuffix(".") for text in (gold, answer)]
    return bare[0] == bare[1] or equivalent(
        *(
            f"\\frac{{{one.value.numerator}}}{{{one.value.denominator}}}" if one and not one.measure else text
            for one, text in zip(values, (gold, answer), strict=True)
        )
    )


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
