"""Exact values of rational numbers in LaTeX or plain text, and the units that they are stated in.

Floats and math-verify's rounding call numbers equal that are not, such as 1/2^98 and 1/2^99. Where both sides
are rational, they are therefore compared as fractions.
"""

import math
import re
from fractions import Fraction

_LONGEST = 2000  # characters; no real number is that long
_MOST_BITS = 200_000  # of a power, about 60,000 digits
_LARGEST_FACTORIAL = 10_000

_STYLE = re.compile(
    r"\\[,;:!]|\\(?:left|right|displaystyle|limits|q?quad)(?![a-zA-Z])|[$~\u00a0\u2000-\u200b\u202f]"
)
_SEPARATOR = re.compile(r"(?<=\d)(?:,|\{,\})(?=(?:\d{2},)*\d{3}(?!\d))")  # 1,450,000 and 14,50,000
_NUMBER = re.compile(r"(\d*)\.?(\d*)(?:\\overline\s*\{(\d+)\})?(?:e([-+]?\d{1,5})(?![\da-z]))?")
_FRAC = re.compile(r"\\[dtc]?frac(?![a-zA-Z])")
_MIXED = re.compile(r"(\d+)\s+(\d+)\s*/\s*(\d+)(?![\d.])")
_TIMES = re.compile(r"\\(?:times|cdot)(?![a-zA-Z])|[*×·]")
_OVER = re.compile(r"\\div(?![a-zA-Z])|[/÷∕⁄]")
_MINUS = re.compile(r"[-−]")
_PLUS = re.compile(r"\+")
_OPENS = {"(": ")", "{": "}"}


def exact(text: str) -> Fraction | None:
    """Return the value of a rational number, such as -1,450.5, 2\\frac{1}{2}, 3/4, 5!, 2^{-98} or 50\\%.

    None for anything else, and for numbers with too many digits to compute.
    """
    if len(text) > _LONGEST or not re.search(r"\d", text):
        return None
    reader = _Reader(_SEPARATOR.sub("", _STYLE.sub("", text)).strip().removesuffix("."))
    try:
        value = reader.sum()
    except (ValueError, ZeroDivisionError, RecursionError):
        return None
    return value if reader.is_done() else None


class _Reader:
    """Reads an expression by recursive descent; raises ValueError for what is not a rational number."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def _take(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        """Return the match here, after blanks, and go behind it."""
        blanks = len(self._text) - self._at - len(self._text[self._at :].lstrip())
        found = pattern.match(self._text, self._at + blanks)
        if found:
            self._at = found.end()
        return found

    def _next(self) -> str:
        return self._text[self._at :].lstrip()[:1]

    def is_done(self) -> bool:
        return not self._next()

    def sum(self) -> Fraction:
        value = self._product()
        while True:
            if self._take(_PLUS):
                value += self._product()
            elif self._take(_MINUS):
                value -= self._product()
            else:
                return value

    def _product(self) -> Fraction:
        value = self._signed()
        while True:
            if self._take(_OVER):
                value /= self._signed()
            elif self._take(_TIMES):
                value *= self._signed()
            elif self._text.startswith("(", self._at):  # 2(3), but not 2 (3)
                value *= self._power()
            else:
                return value

    def _signed(self) -> Fraction:
        if self._take(_MINUS):
            return -self._signed()
        self._take(_PLUS)
        return self._power()

    def _power(self) -> Fraction:
        base = self._atom()
        while self._take(re.compile(r"!(?!!)")):
            if base.denominator != 1 or not 0 <= base <= _LARGEST_FACTORIAL:
                raise ValueError
            base = Fraction(math.factorial(int(base)))
        if self._take(re.compile(r"\^|\*\*")):
            base = _raised(base, self._signed())
        return base / 100 if self._take(re.compile(r"\\?%")) else base

    def _atom(self) -> Fraction:
        if mixed := self._take(_MIXED):
            return int(mixed[1]) + Fraction(int(mixed[2]), int(mixed[3]))
        if self._take(_FRAC):
            return self._argument() / self._argument()
        if self._next() in _OPENS:
            return self._group()
        number = self._take(_NUMBER)
        if number is None or not number[1] + number[2]:
            raise ValueError
        value = _decimal(*number.groups())
        if "." not in number[0] and self._take(_FRAC):  # 2\frac{1}{2}
            value += self._argument() / self._argument()
        return value

    def _argument(self) -> Fraction:
        """Return an argument of \\frac: a group, or a digit."""
        if self._next() == "{":
            return self._group()
        digit = self._take(re.compile(r"\d"))
        if digit is None:
            raise ValueError
        return Fraction(int(digit[0]))

    def _group(self) -> Fraction:
        closing = _OPENS[self._next()]
        self._take(re.compile("[({]"))
        value = self.sum()
        if not self._take(re.compile(re.escape(closing))):
            raise ValueError
        return value


def _decimal(whole: str, digits: str, repeated: str | None, exponent: str | None) -> Fraction:
    value = Fraction(int(f"0{whole}{digits}"), 10 ** len(digits))
    if repeated:
        value += Fraction(int(repeated), (10 ** len(repeated) - 1) * 10 ** len(digits))
    return value * Fraction(10) ** int(exponent or 0)


def _raised(base: Fraction, exponent: Fraction) -> Fraction:
    bits = max(base.numerator.bit_length(), base.denominator.bit_length())
    if exponent.denominator != 1 or bits * abs(exponent) > _MOST_BITS:
        raise ValueError
    return base ** int(exponent)


_BASED = re.compile(r"(-?[\dA-Fa-f.]+)_(?:\{?(?:\\text\{)?(?:base )?(\d{1,2})\}*)")
"""Digits in a base, such as 52_8 or 4210_{5}."""


def based(text: str) -> tuple[str, str] | None:
    """Return the digits and the base of a number such as 52_8; None for other texts."""
    found = _BASED.fullmatch(_SEPARATOR.sub("", _STYLE.sub("", text)).replace(" ", "").strip("()"))
    return (found[1].lower().lstrip("0"), found[2]) if found else None


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
dollars: 1 = cent ¢; 100 = dollar $ us$ usd
euros: 1 = euro € eur
pounds: 1 = penny pence; 100 = £ gbp
yen: 1 = yen ¥ jpy
rupees: 1 = rupee ₹ inr rs
share: 1 = % percent
angle: 1 = ° ^\\circ degree deg
before noon: 1 = am a.m.
after noon: 1 = pm p.m.
"""
_UNITS = {
    name: (measure.strip(), Fraction(amount.strip()))
    for measure, units in (line.split(":") for line in _TABLE.replace("\n  ", "").strip().splitlines())
    for amount, names in (unit.split("=") for unit in units.split(";"))
    for name in names.split()
}
_POWERS = {"square": 2, "sq": 2, "cubic": 3, "cu": 3, "²": 2, "³": 3, "^2": 2, "^3": 3}
_CURRENCY = re.compile(r"(?:US|\\)?([$€£¥₹])\s*[-−]?\s*[\d.]|\b(USD|EUR|GBP|JPY|INR|Rs\b\.?)\s*[\d.]")
_AFTER = re.compile(
    r"\d[\s}]*(?:(square|cubic|sq|cu)\b\.?\s*)?"
    r"([ap]\.m\.|km/h|m/s|miles/h|\^\\circ|[A-Za-z]+|[%°$€£¥₹¢])(\^[23]|[²³])?"
)
_COUNTED = re.compile(r"[a-z]{3,}[^s\W]s|people|children|men|women")  # apples, which are no pears
_PAIRED = re.compile(r"(?<!\\)\$([^$]*)\$")  # math mode
_WORDS = re.compile(r"\\(?:text\w*|mathrm|mbox)\s*\{([^{}]*)\}|\^\{(\\circ|[23])\}")


def unit_of(text: str) -> tuple[str, Fraction] | None:
    """Return what the unit of a stated number measures, and how much of it; None without a unit."""
    shown = _WORDS.sub(lambda found: f" {found[1]}" if found[1] else f"^{found[2]}", _PAIRED.sub(r"\1", text))
    shown = re.sub(r"\\([%$])|\\[,;:! ]", r"\1", shown)
    if sign := _CURRENCY.search(shown):
        return _UNITS[(sign[1] or sign[2]).lower().removesuffix(".")]
    found = _AFTER.search(shown)
    if found is None:
        return None
    name = found[2].lower() if len(found[2]) > 1 else found[2]
    known = _UNITS.get(name) or _UNITS.get(name.removesuffix("s"))
    if known is None and _COUNTED.fullmatch(name):
        return name, Fraction(1)
    power = _POWERS.get(found[1] or found[3] or "", 1)
    return (f"{known[0]}^{power}", known[1] ** power) if known and power > 1 else known


def same_quantity(gold: Fraction, gold_text: str, answer: Fraction, text: str) -> bool:
    """Return whether numbers are equal in the units of their texts, if both texts have a unit."""
    ours, theirs = unit_of(gold_text), unit_of(text)
    if ours is None or theirs is None:
        return gold == answer
    return ours[0] == theirs[0] and gold * ours[1] == answer * theirs[1]
