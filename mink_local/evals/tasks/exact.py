"""Exact values of rational numbers in LaTeX or plain text, and the units that they are stated in.

Floats and math-verify's rounding call numbers equal that are not, such as 1/2^98 and 1/2^99. Where both sides
are rational, they are therefore compared as fractions.
"""

import ast
import math
import operator
import re
from collections.abc import Callable
from fractions import Fraction

LONGEST = 2000  # characters; no real answer is that long
_MOST_BITS = 200_000  # of a power, about 60,000 digits
_LARGEST_FACTORIAL = 10_000

_STYLE = re.compile(
    r"\\[,;:!]|\\(?:left|right|displaystyle|limits|q?quad)(?![a-zA-Z])|[$~\u00a0\u2000-\u200b\u202f]"
)
_SEPARATOR = re.compile(r"(?<=\d)(?:,|\{,\})(?=(?:\d{2},)*\d{3}(?!\d))")  # 1,450,000 and 14,50,000
_FRACTION = r"\\[dtc]?frac\s*(?:\{([^{}]*)\}|(\d))\s*(?:\{([^{}]*)\}|(\d))"
_PYTHON = (  # pattern, how Python writes it
    (r"\\(?:times|cdot)(?![a-zA-Z])|[×·]", "*"),
    (r"\\div(?![a-zA-Z])|[÷∕⁄]", "/"),
    ("−", "-"),
    (r"\\?%", "*decimal('.01','')"),
    (rf"(\d+)\s*{_FRACTION}", r"(\1+(\2\3)/(\4\5))"),  # 2\frac{1}{2}
    (_FRACTION, r"((\1\2)/(\3\4))"),
    (r"(\d+)\s+(\d+)\s*/\s*(\d+)(?![\d.])", r"(\1+\2/\3)"),  # 2 1/2
    (r"(?<![\w.'])(\d*\.\d+|\d+\.?)(?:e([-+]?\d{1,5}))?(?![\w.'])", r"decimal('\1','\2')"),
    (r"\^", "**"),
    ("[{]", "("),
    ("[}]", ")"),
    (r"(decimal\([^()]*\)|(?<!\w)\([^()]*\))!(?!!)", r"factorial(\1)"),
    (r"\)(?=\()", ")*"),  # 2(3)
)


def exact(text: str) -> Fraction | None:
    """Return the value of a rational number, such as -1,450.5, 2\\frac{1}{2}, 3/4, 5!, 2^{-98} or 50\\%.

    None for anything else, and for numbers with too many digits to compute.
    """
    if len(text) > LONGEST or not re.search(r"\d", text):
        return None
    code = _SEPARATOR.sub("", _STYLE.sub("", text)).strip().removesuffix(".")
    for written, meant in _PYTHON:
        code = re.sub(written, meant, code)
    try:
        return _value(ast.parse(code, mode="eval").body)
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, MemoryError):
        return None


def _value(node: ast.expr) -> Fraction:
    match node:
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand)
        case ast.UnaryOp(op=ast.UAdd(), operand=operand):
            return _value(operand)
        case ast.BinOp(left, op, right) if type(op) in _OPERATIONS:
            return _OPERATIONS[type(op)](_value(left), _value(right))
        case ast.Call(ast.Name("factorial"), [number]):
            return _factorial(_value(number))
        case ast.Call(ast.Name("decimal"), [ast.Constant(str(digits)), ast.Constant(str(exponent))]):
            return Fraction(f"{digits.removesuffix('.')}e{exponent or 0}")
    raise ValueError


def _factorial(number: Fraction) -> Fraction:
    if number.denominator != 1 or not 0 <= number <= _LARGEST_FACTORIAL:
        raise ValueError
    return Fraction(math.factorial(int(number)))


def _power(base: Fraction, exponent: Fraction) -> Fraction:
    bits = max(base.numerator.bit_length(), base.denominator.bit_length())
    if exponent.denominator != 1 or bits * abs(exponent) > _MOST_BITS:
        raise ValueError
    return base ** int(exponent)


_OPERATIONS: dict[type[ast.operator], Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: _power,
}
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
