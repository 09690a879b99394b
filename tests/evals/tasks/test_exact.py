"""Which answers to MATH are equal: exactly for rational numbers, and never by rounding."""

import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mink_local.evals.tasks.equivalence import same_maths
from mink_local.evals.tasks.exact import exact
from tests.support.scoring import verdicts

EQUAL = r"""
1010_2 = 1010_{2}
42 = 42_{10}
4210_{5} = 4210_5
3\frac12 = 3.5
1 1/2 = \frac{3}{2}
-\frac{1}{2} = \frac{-1}{2}
2^{-10} = \frac{1}{1024}
100! = 99!\cdot 100
\frac{100!}{98!} = 9900
6\times10^{23} = 6.0\cdot10^{23}
1e-7 = 10^{-7}
50\% = 0.5
50\% = 50
\$5 = 500\text{ cents}
5.4 \text{ cents} = \$0.054
5\text{ feet} = 60\text{ inches}
12\text{ cm}^2 = 12\text{ square centimeters}
5\text{ million} = 5000000
5\text{ dozen} = 60
90^\circ = 90
\frac{270}7\text{ degrees} = \frac{270}{7}^\circ
14,50,000 = 1450000
\sqrt{52} = 2\sqrt{13}
2^{1/2} = \sqrt2
\lfloor 2.5\rfloor = 2
1.5x = \frac{3x}{2}
(x-1)^2 = x^2-2x+1
(0,9)\cup(9,36) = (9,36)\cup(0,9)
\{1,2\} = \{2,1\}
\pm 3 = 3,-3
y=2x+3 = 2x-y=-3
\text{ellipse} = Ellipse
(2,\infty) = (2,+\infty)
(-\infty,\frac12] = (-\infty,0.5]
(-\infty,\infty) = (-\infty,+\infty)
(-\infty,2)\cup(3,\infty) = (3,+\infty)\cup(-\infty,2)
(-\infty,2]\cup[3.5,\infty) = (-\infty,2]\cup[\frac72,\infty)
x\in[2,\infty) = [2.0,\infty)
\{1,\infty\} = \{\infty,1\}
(\sin x,\cos x) = (\sin{x},\cos{x})
(-\pi,\pi) = (-\frac{2\pi}2,\pi)
\{-\infty,\infty\} = \pm\infty
(1,0.5,\infty) = (1,\frac12,\infty)
\begin{pmatrix}0.5\\\infty\end{pmatrix} = \begin{pmatrix}\frac12\\\infty\end{pmatrix}
x=-\infty = -\infty
\lim_{x\to\infty}x = \infty
"""
DIFFERENT = r"""
\frac{1}{2004!} = \frac{1}{2006!}
\frac{1}{20000!} = \frac{1}{20001!}
\frac{1}{2^{98}} = \frac{1}{2^{99}}
2^{10^6} = 2^{10^6}+1
10^{-400} = 10^{-401}
52_8 = 52_9
52_8 = 52
A3_{16} = A4_{16}
\frac13 = 0.3333333333
1.00000000000000001 = 1
12345678901234567890 = 12345678901234567891
0.999999999 = 1
1 1/2 = 11/2
\sqrt{2} = 1.41421356
\pi = 3.14159265
\ln 2 = 0.693147
4\pi = 12.566370614359172
\sqrt{2}+10^{-20} = \sqrt{2}
\cos(10^{-10}) = 1
\frac{1}{2}x = \frac{1}{2x}
x^2+10^{-9} = x^2
x=\frac{1}{2^{98}} = x=\frac{1}{2^{99}}
y=2x+3 = y=2x+3.00000001
(0,10^{-9}) = (0,10^{-10})
(0,10^{-9})\cup(9,36) = (0,10^{-10})\cup(9,36)
\{10^{-9},1\} = \{1,10^{-10}\}
\begin{pmatrix}10^{-9}\\2\end{pmatrix} = \begin{pmatrix}10^{-8}\\2\end{pmatrix}
5\text{ cm} = 5\text{ m}
12\text{ cm}^2 = 12\text{ cm}
10\text{ a.m.} = 10\text{ p.m.}
5\text{ million} = 5
\$5 = 5\text{ cents}
\text{even} = \text{odd}
7!! = 7!
-5 = 5
\infty = -\infty
x=\infty = x=-\infty
x=\infty = x=\frac10
\infty = 10^{99}
\{1,\infty\} = \{1,-\infty\}
(1,2,\infty) = (1,2,-\infty)
(2,\infty) = [2,\infty)
(2,\infty) = (-\infty,2)
(2,\infty) = (2.0000000001,\infty)
(-\infty,\frac13] = (-\infty,0.3333333333]
(-\infty,2)\cup(3,\infty) = (-\infty,2]\cup(3,\infty)
(-\infty,10^{-9})\cup(3,\infty) = (-\infty,10^{-10})\cup(3,\infty)
"""


def pairs(table: str) -> list[tuple[str, str]]:
    """The two sides of every line; an = without blanks is part of one."""
    return [
        (ours, theirs) for ours, _, theirs in (line.partition(" = ") for line in table.split("\n") if line)
    ]


@pytest.mark.parametrize(
    ("gold", "answer", "same"),
    [*((*pair, True) for pair in pairs(EQUAL)), *((*pair, False) for pair in pairs(DIFFERENT))],
)
def test_answers_are_equal_only_if_they_are(gold: str, answer: str, same: bool) -> None:
    for one, other in ((gold, answer), (answer, gold)):
        assert verdicts("math500", f"The final answer is $\\boxed{{{other}}}$.", one)[1].correct == same


def ways(value: Fraction) -> st.SearchStrategy[str]:
    """LaTeX and plain texts of a fraction."""
    top, bottom = value.numerator, value.denominator
    texts = [
        f"\\frac{{{top}}}{{{bottom}}}",
        f"\\dfrac{{{top * 3}}}{{{bottom * 3}}}",
        f"{top}/{bottom}",
        f"{top} \\div {bottom}",
        f"{top} \\cdot {bottom}^{{-1}}",
        f"\\left({top}\\right) \\times \\frac1{{{bottom}}}",
    ]
    whole, rest = divmod(abs(top), bottom)
    sign = "-" if top < 0 else ""
    if whole:
        texts.append(f"{sign}{whole}\\frac{{{rest}}}{{{bottom}}}")
    if bottom == 1:
        texts += [str(top), f"{top:,}", f"{top}.000", f"{top:,}".replace(",", "{,}")]
    return st.sampled_from(texts)


@given(st.data(), st.fractions(max_denominator=10**12) | st.integers(-(10**40), 10**40).map(Fraction))
def test_every_way_to_write_a_number_has_its_value(data: st.DataObject, value: Fraction) -> None:
    text = data.draw(ways(value))
    assert exact(text) == value
    assert exact(f"({text}) + 10^{{-50}}") == value + Fraction(1, 10**50)
    assert same_maths(data.draw(ways(value)), text)


@given(st.text(alphabet="0123456789.,+-*/^!(){}%_ \\frac×·−", max_size=40))
def test_no_text_takes_long_or_raises(text: str) -> None:
    value = exact(text)
    assert value is None or math.isfinite(value.numerator.bit_length())
