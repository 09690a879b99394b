"""MATH500: the paper's comparison, exact equality, and math-verify's within limits."""

from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mink_local.errors import DataError
from mink_local.evals.tasks import TASKS, Verdict, equivalence, score
from mink_local.evals.tasks.equivalence import equivalent, number_of, same_maths
from mink_local.evals.tasks.scoring import normalized
from mink_local.sandbox import Child, ChildStartError
from tests.conftest import shared
from tests.support.scoring import verdicts

# response, gold, strict's answer, whether strict takes it, whether flexible does
ANSWERS = [
    ("The final answer is 9", "9", "9", True, True),
    ("The final answer is 9.", "9", "9", True, True),
    ("The final answer is: 9.", "9", "9", True, True),
    ("The final answer is 3.5.", "3.5", "3", False, True),  # strict stops at the first full stop
    ("The final answer is 3.5", "3", "3", True, False),
    ("The final answer is $\\frac{14}{3}$.", "\\frac{14}{3}", "$\\frac{14}{3}$", True, True),
    ("The final answer is \\dfrac{14}{3}.", "\\frac{14}{3}", "\\dfrac{14}{3}", True, True),
    ("The final answer is 14/3.", "\\frac{14}{3}", "14/3", True, True),
    ("The final answer is \\frac43", "\\frac{4}{3}", "\\frac43", True, True),
    ("The final answer is \\left( 3, \\frac{\\pi}{2} \\right)", "(3,\\frac{\\pi}{2})",
     "\\left( 3, \\frac{\\pi}{2} \\right)", True, True),
    ("The final answer is EVELYN.", "\\text{Evelyn}", "EVELYN", True, True),
    ("The final answer is 10080.", "10,\\!080", "10080", True, True),
    ("The final answer is 10,080.", "10080", "10,080", True, True),
    ("The final answer is 9.00", "9", "9", True, True),
    ("The final answer is 9\nThat was easy", "9", None, False, True),
    ("The final answer is (9).", "9", "(9)", False, True),
    ("The final answer is **9**.", "9", "**9**", False, True),
    ("the final answer is \\(\\boxed{9}\\)", "9", None, False, True),
    ("The final answer is \\[\\boxed{9}.\\]", "9", "\\[\\boxed{9}", True, True),
    ("**Answer:** $x = 9$", "9", None, False, True),
    ("So it is \\boxed{\\frac{28}{6}}.", "\\frac{14}{3}", None, False, True),
    ("The final answer is 0.5", "\\frac{1}{2}", "0", False, True),
    ("The final answer is 90 degrees.", "90^\\circ", "90 degrees", False, True),
    ("The final answer is \\$18.90.", "18.90", "\\$18", False, True),
    ("The final answer is $\\sqrt{52}$.", "2\\sqrt{13}", "$\\sqrt{52}$", False, True),
    ("The final answer is (-2, 1).", "1,-2", "(-2, 1)", False, True),
    ("The final answer is $[-2,7]$.", "x \\in [-2,7]", "$[-2,7]$", False, True),
    ("The final answer is \\(9\\times 2\\) = \\(18\\).", "18", "\\(9\\times 2\\) = \\(18\\)", False, True),
    ("The final answer is 8. No: the final answer is 9.", "9", "8", False, True),
    ("The final answer is 2\\pi.", "2", "2\\pi", False, False),
    ("The final answer is 2.", "2\\pi", "2", False, False),
    ("The final answer is \\sqrt{13}.", "13", "\\sqrt{13}", False, False),
    ("The final answer is nan", "3", "nan", False, False),
    ("The final answer is 1_000", "1000", "1_000", False, False),
    ("The final answer is infinity", "3", "infinity", False, False),
    ("The final answer is 1e999", "3", "1e999", False, False),
    ("We have 3 cases, and 9 of them fit.", "9", None, False, False),
    ("", "9", None, False, False),
]  # fmt: skip


@pytest.mark.parametrize(("response", "gold", "answer", "strict", "flexible"), ANSWERS)
def test_answers(response: str, gold: str, answer: str | None, strict: bool, flexible: bool) -> None:
    both = verdicts("math500", response, gold)
    assert both[0] == Verdict(answer, strict)
    assert both[1].correct == flexible


def test_floats_are_the_same_within_a_millionth() -> None:
    for answer, correct in [
        ("2,000000", False),
        ("-1e-7", True),
        ("+0", True),
        (".0000009", True),
        (".0000011", False),
    ]:
        assert verdicts("math500", f"The final answer is {answer}", "0")[0].correct == correct, answer
    assert normalized("11,\\! 111,\\! 100") == "11111100"
    assert normalized("3, 500") == "3,500"


@pytest.mark.slow
def test_every_gold_answer_is_the_same_as_itself() -> None:
    questions = TASKS["math500"].read(shared("data/math500_test.jsonl"), seed=0)
    for question in questions:
        for response in (
            f"The final answer is $\\boxed{{{question.gold}}}$.",
            f"The final answer is ${question.gold}$.",
        ):
            assert score(TASKS["math500"], question, response, "stop")[1].correct, question.gold
    golds = sorted({question.gold for question in questions})
    assert [gold for gold in golds if not equivalent(gold, gold)] == []
    assert not any(equivalent(gold, other) for gold, other in zip(golds[:100], golds[150:], strict=False))


QUICK = [
    "10^{10^{10}}",
    "{" * 900 + "3" + "}" * 900,
    "1" * 100_000,
    "\\frac" * 300,
    "}",
    "\\",
    "nan",
    "\x00",
    "\ud800",
]
SLOW = ["9^9^9^9", "9999999999999999!", "\\sqrt{" * 300 + "}" * 300, "x" * 1900, "{"]
ENDLESS = "\\int_0^1 e^{x^{x^x}} dx"


@pytest.mark.parametrize(
    "answer", [*QUICK, *(pytest.param(answer, marks=pytest.mark.slow) for answer in SLOW)]
)
def test_hostile_answers_are_not_the_same_and_harm_nobody(
    answer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(equivalence, "SECONDS", 1)
    assert not equivalent("3", answer)
    monkeypatch.setattr(equivalence, "SECONDS", 30)
    assert equivalent("\\frac{6}{2}", "3")


@pytest.mark.slow
def test_the_limit_holds_in_any_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(equivalence, "SECONDS", 3)
    assert equivalent("\\frac{7}{2}", "3.5")  # the child has started
    answers = ["0.5", ENDLESS, "\\frac{3}{6}", "2", "50\\%"]
    with ThreadPoolExecutor(len(answers)) as pool:
        same = list(pool.map(lambda answer: equivalent("\\frac{1}{2}", answer), answers))
    assert same == [True, False, True, False, True]


def test_without_math_verify_a_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(DataError, match=r"mink-local\[eval\]"):
        equivalent("1", "a question not asked before")


def test_a_child_that_does_not_start_is_an_error_and_not_a_wrong_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(equivalence, "_verifier", Child("mink_local.no_such_module", memory=1 << 30))
    with pytest.raises(ChildStartError, match="no_such_module"):
        equivalent("1", "another question not asked before")


# Which answers are equal: numbers exactly, and never by rounding


EQUAL = r"""
1010_2 = 1010_{2}
2h = 2h
2 = 2\text{ h}
42 = 42_{10}
4210_{5} = 4210_5
3\frac12 = 3.5
1 1/2 = \frac{3}{2}
-\frac{1}{2} = \frac{-1}{2}
2^{-10} = \frac{1}{1024}
100! = 99!\cdot 100
\frac{100!}{98!} = 9900
6\times10^{23} = 6.0\cdot10^{23}
50\% = 0.5
50\% = 50
12\text{ cm}^2 = 12\text{ square centimeters}
90^\circ = 90
\frac{270}7\text{ degrees} = \frac{270}{7}^\circ
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
\frac13 = 0.\overline{3}
\frac16 = 0.1\overline{6}
"""
DIFFERENT = r"""
\frac{1}{2004!} = \frac{1}{2006!}
\frac{1}{20000!} = \frac{1}{20001!}
\frac{1}{2^{98}} = \frac{1}{2^{99}}
2^{10^6} = 2^{10^6}+1
10^{-400} = 10^{-401}
52_8 = 52_9
2 = 2h
6 = 6g
4000 = 4k
52_8 = 52
52_{8} = 528
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
x=5 = y=5
1, 200 = 1200
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
    ]
    whole, rest = divmod(abs(top), bottom)
    sign = "-" if top < 0 else ""
    if whole:
        texts.append(f"{sign}{whole}\\frac{{{rest}}}{{{bottom}}}")
    if bottom == 1:
        texts += [str(top), f"{top:,}", f"{top}.000", f"{top:,}".replace(",", "{,}")]
    return st.sampled_from(texts)


values = st.fractions(max_denominator=10**12) | st.integers(-(10**40), 10**40).map(Fraction)


@given(st.data(), values)
def test_every_way_to_write_a_number_has_its_value(data: st.DataObject, value: Fraction) -> None:
    text = data.draw(ways(value))
    assert number_of(text) == value
    assert same_maths(data.draw(ways(value)), text)


@pytest.mark.slow
@given(st.data(), values)
def test_sums_and_products_are_compared_exactly(data: st.DataObject, value: Fraction) -> None:
    top, bottom = value.numerator, value.denominator
    ours = data.draw(ways(value))
    for theirs in (f"{top} \\div {bottom}", f"\\left({top}\\right) \\times \\frac1{{{bottom}}}"):
        assert same_maths(ours, theirs)
        assert not same_maths(ours, f"{theirs} + 10^{{-50}}")


@given(st.text(alphabet="0123456789.,+-*/^!(){}%_ \\frac×·−", max_size=40))
def test_no_text_is_an_error(text: str) -> None:
    assert same_maths(text, text) or number_of(text) is None
