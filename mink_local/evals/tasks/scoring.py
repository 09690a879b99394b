"""Strict and flexible scorers for numbers, options, texts and mathematical expressions."""

import re
import unicodedata
from collections.abc import Sequence
from fractions import Fraction
from string import ascii_uppercase

from mink_local.evals.tasks.base import Question, Scorer, Verdict
from mink_local.evals.tasks.equivalence import same_maths
from mink_local.evals.tasks.exact import exact, same_quantity, unit_of
from mink_local.evals.tasks.statements import BOUND, Statement, plain

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
    r"|\s?(?:mn|mln|mio|bn|tn)\b|k\b|(?-i:M\b)|[万亿千百])+)",
    re.IGNORECASE,
)
_SCALE = re.compile("|".join(sorted(_POWERS, key=len, reverse=True)))
_MONEY = re.compile(  # $3M, £1m, 3m dollars; but $3m$ is a formula
    r"((?:[€£¥₹]|\\?\$|USD|EUR|Rs\.?)\s?-?[\d.,]*\d)\s?(m|mm|mn|mil|b|bn|t|tn|k)\b(?![\^²³/]|[^$\n]*\$)"
    r"|([\d.]*\d)\s?(m|b)(?= (?:dollars|euros?|pounds|yen|USD|EUR|people)\b)",
    re.IGNORECASE,
)
_CURRENCY = re.compile(r"(?:US)?\\?([$€£¥₹])\s?(-?[\d.,]*\d)(?![^$\n]*(?<!\\)\$)")
_CURRENCIES = {"$": "dollars", "€": "euros", "£": "GBP", "¥": "yen", "₹": "rupees"}
_UNIT = re.compile(r"\s*(?:(?:square|cubic|sq|cu)\b\.? )?(?:[ap]\.m\.|[A-Za-z°%¢/]+(?:\^[23]|[²³])?)")
_LETTERS_OF_MONEY = {"m": "million", "mm": "million", "b": "billion", "t": "trillion", "k": "thousand"}
_SPELLINGS = (
    (r"(?<=\d)[,’']?\s?(?=(?:\d{2},)*\d{3}\b(?!-[a-z]))", ""),  # 1,800 and 1 800
    (r"(?<=10)([⁰¹²³⁴-⁹]+)", lambda digits: f"^{unicodedata.normalize('NFKC', digits[0])}"),
    (r"\s*[×x*]\s?10\s?\^", "e"),
    (r"(?<=[A-Za-z])\^2", "²"),  # 18 m^2
    (r"(?<=[A-Za-z])\^3", "³"),
    (r"(?<=[A-Za-z])\^-?\d", ""),
    (r"==?>|-+>", "="),
    (r"\b(?:minus|negative) +(?=\.?\d)", "-"),
    (r"(?:^|(?<=[(\[:=≈,;]))\s*[-–]\s*(?=\.?\d)", "-"),
    (r"(?<![\d/.])(\d+) of (?:the|these|those|his|her|their|all) \d+(?= [a-z])", r"\1"),
)
_NUMBER = re.compile(
    r"(?<![A-Za-z_\d.,])(?<!\d:)(?:(?<![\d)\]]\s)(?<!\b[A-Za-z]\s)(?<![)\]])-)?"  # a sign, no subtraction
    r"(?:\d+ (?=\d+ ?/ ?\d))?(?:\d+(?:\.\d+)?|\.\d+)"  # the 1 of 1 1/2
    r"(?:e-?\d{1,2}(?!\d)| ?/ ?\d+(?![\d.]))?(?![\w,:]*\d)",
    re.IGNORECASE,
)
_WORDS = r"(?:[a-z%]+\s+){0,3}?"
_AT_LEAST = r"(?:at (?:the )?(?:least|most|minimum|maximum|min|max)\b|minimum\b|maximum\b)"
_PARTS = (
    r"(?:half|third|quarter|fourth|fifth|sixth|seventh|eighth|ninth|tenth|hundredth|part|portion|fraction"
    r"|share|rest|remainder|none|some|any|most|many|few|several|one|each|two|three|four|five|six)s?"
)
_NUMBER_HEDGES = re.compile(  # where # is the only number
    "|".join(
        (
            r"\b(?:not|never|neither|nor|either|or|between|than|wrong|incorrect)\b|n['’]t\b|不|或",
            rf"\b{BOUND}\s+#|[<>≤≥≠]|#\s*\+|不到|至少|至多|超过|以上|以下",  # at least 18
            rf"#\s*{_WORDS}[(,]?\s*(?:{_AT_LEAST}|plus\b)",  # 18 at most
            rf"#\s*{_WORDS}and (?:more|less|fewer|over|under|above|below|up|older|younger|an?|one)\b",
            r"\b(?:twice|thrice|half|double|triple|quadruple|treble|multiple|sum|squared|cubed|dozens?)\b",
            r"\bbelow zero\b|\b(?:opposite|inverse|reciprocal|root|square|cube|factorial|logarithm) of\b",
            rf"\b{_PARTS} of (?:(?:the|these|those|them|all|his|her|their|its|our|my) )*#",  # a third of 18
            r"\btimes\s+#|#\s+times\s+(?:as|more|less|the|his|her|their|that|what|larger|bigger)\b|#\s*-?fold\b",
            r"#\s*-?(?:third|fourth|fifth|sixth|seventh|eighth|ninth|tenth)s?\b",
            r"#\s*-?\w*(?:hundred|thousand|million)ths?\b|\b(?:hundred|thousand|million)\s+(?:and\s+)?#",
            r"[A-Za-z)]\s*[-+*/^×·÷]\s*#|#\s*[-+*×·÷]\s*\(?[a-z]\b|-\s*[(\[|]\s*#",  # x + 5, 5 + x, -(5)
            r"√|#\s?[⁰¹²³⁴-⁹ⁿ(±^√π!]|#\s*\(?(?:[xyzn]|pi|i)\b|#[abrqvBT]\b",  # 18², 3x
            r"#\s*\\(?!circ|degree|d?l?dots|checkmark|square|pounds|euro)[a-z]",  # 3\pi
            r"\b(?:because|by|from|after|in|on|to|with|step)\b[^#]*#",  # found by adding 3
        )
    ),
    re.IGNORECASE,
)
_NUMBER_TAIL = re.compile(  # what follows a number and explains it, but is no bound
    rf"(?<=\d)([^\d=≈]*?)(?!{_AT_LEAST})"
    rf"(?:(?<![-+*/^×·÷]) \((?!\s*(?:{_AT_LEAST}|or\b|and (?:up|above|over|more)|not (?:more|less)))"
    r"|\b(?:because|since|as(?! (?:many|much|\w+ as))|which|and not|rather)\b|, not\b"
    rf"|(?:, (?=[a-z])(?!{_AT_LEAST}|or\b)|[;:]\s"
    r"|\b(?:in|for|per(?! cent)|from|after|on|at|with|over(?= \d))\b)"
    r"(?=[^=≈]*$)|, or (?:about |around )?\d[\d.,]*(?!\1)(?= [a-z])).*",  # or 1.5 hours
    re.IGNORECASE | re.DOTALL,
)
_POWER = re.compile(r"(?<=[A-Za-z])[²³]")  # of a unit
_SEVERAL = re.compile(
    r"[A-Za-z]\s*=[^=,;]*\d[^=]*?(?:[,;]|\band\b)\s*[A-Za-z]\w*\s*=|\b(?:1 in|\d out of) \d"
)  # x = 5 and y = 7
_TERSE = re.compile(r"\W*\d[\d./ ]*(?:[\w%/]+\s*){0,4}\W*$")  # 18 dollars per day


class NumberScorer(Scorer):
    """Scores answers that are a single number.

    Flexible scoring reads the only number in a statement, or in the last part of an equation that needs no
    more arithmetic: with or without currency, percent, unit, bold, LaTeX and thousands separators; a
    fraction; 1.5 million. Ranges, two numbers, bounds ("less than 18"), "7 dozen" and numbers in words do not
    count as answers.
    """

    def is_same(self, answer: str, gold: str) -> bool:
        values = _value(gold), _value(answer)
        if values[0] is None or values[1] is None:
            return False
        return (
            values[0] == values[1] if gold.isdecimal() else same_quantity(values[0], gold, values[1], answer)
        )

    def read(self, statement: Statement, question: Question) -> str | None:
        has_unit = unit_of(question.gold) is not None
        text = _spelled(_CURRENCY.sub(_in_currency, statement.text) if has_unit else statement.text)
        if _COMMA.fullmatch(question.gold):
            text = _with_point(text)
        if _SEVERAL.search(text) or (statement.terse and not _TERSE.match(text)):
            return None
        for part in reversed(re.split("[=≈]", _NUMBER_TAIL.sub(r"\1", text))):
            numbers = list(_NUMBER.finditer(part))
            if len(numbers) == 1 and not _NUMBER_HEDGES.search(_POWER.sub("", _NUMBER.sub("#", part))):
                unit = _UNIT.match(part, numbers[0].end()) if has_unit else None
                return f"{numbers[0][0]}{unit[0] if unit else ''}"
        return None


def _spelled(text: str) -> str:
    """Return a text with its numbers in digits: 1,800, 18 hundred and $1.8k are 1800, 18e2 and 1.8e3."""
    text = plain(_MONEY.sub(_in_words, text))
    for written, meant in _SPELLINGS:
        text = re.sub(written, meant, text, flags=re.IGNORECASE)
    return _SCALES.sub(_as_power, text)


def _in_currency(amount: re.Match[str]) -> str:
    return f"{amount[2]} {_CURRENCIES[amount[1]]}"


def _with_point(text: str) -> str:
    """Return 1.450,5 as 1450.5."""
    return re.sub(r"(\d),(\d+)", r"\1.\2", re.sub(r"(?<=\d)\.(?=\d{3}(?:\D|$))", "", text))


def _in_words(money: re.Match[str]) -> str:
    letters = (money[2] or money[4]).lower()
    return f"{money[1] or money[3]} {_LETTERS_OF_MONEY.get(letters, letters)}"


def _as_power(scales: re.Match[str]) -> str:
    words = scales[1] if "M" in scales[1] else scales[1].lower()
    return f"e{sum(_POWERS[word] for word in _SCALE.findall(words))}"


_POINTED = r"\d+(?:\.\d+)?|\.\d+|\d+(?:\.\d+)?e[-+]?\d{1,3}|(?:\d+ )?\d+ ?/ ?\d+"
_COMMA = re.compile(r"[-+−]?\s*(?:\d{1,3}(?:\.\d{3})+|\d+),(?!\d{3}$)\d+")  # 3,5 and 1.450,50
_QUANTITY = re.compile(
    rf"\+?(-?(?:{_POINTED}))\s*"
    r"(%|(?:(?:square|cubic) )?[A-Za-z°¢/]+(?:\^[23]|[²³])?|[ap]\.m\.)?\.?",
    re.ASCII,
)


def _value(text: str) -> Fraction | None:
    """Return the value of a number such as 18, -1.5, 1e6, 1 1/2, 3,5 or 18 dollars; None of other texts."""
    found = _QUANTITY.fullmatch(
        _spelled(_with_point(text) if _COMMA.fullmatch(text.strip()) else text).strip()
    )
    return exact(found[1]) if found else None


def as_number(gold: str) -> str | None:
    """Return a gold answer that is a number, such as $5, 50%, +5, 3,5 or 18 dollars, as it is recorded.

    That is a plain number, unless it has a unit or a decimal comma. None for other texts.
    """
    if _value(gold) is None:
        return None
    text = _spelled(gold).removesuffix("%").removeprefix("+").strip()
    if re.fullmatch(rf"-?(?:{_POINTED})", text, re.ASCII):
        return text
    return gold.strip() if _COMMA.fullmatch(gold.strip()) or unit_of(gold) else None


_LEAD = r"\W*(?i:(?:the|option|choice|letter|answer|therefore|thus|so|most|\w+ly)\b\W+){0,3}"
_LETTER = re.compile(
    r"\(\s*([A-Za-z])\s*\)|\b[Oo]ption ([A-Z])\b"  # 0.26, which is (B), option B
    rf"|\A{_LEAD}\[?([A-Za-z])\s*(?=[).,;:=\]。，!]|[\"'”’](?!\w)|\Z)"  # B) 21, b.
    rf"|\A{_LEAD}([A-Z])(?=\s+(?:because|since|as|which|and|[-–—(]))"
    rf"|\A{_LEAD}([B-Z])(?=\s)"  # not A, which is a word
)
_LETTER_HEDGES = re.compile(
    r"\b(?:or|(?:can)?not|never|neither|nor|between|than|both|because|by|incorrect|wrong)\b|n['’]t\b|不|或"
    r"|\b[A-J]\)?(?:, | ?[/&] ?| and )\(?[A-J]\b",
    re.IGNORECASE,
)
_LETTER_TAIL = re.compile(  # (B), not (A)
    r"(\b[A-J]\b[)\]]?),? (?:and not|not|rather than|instead of|because|since|as|after|though|although)\b.*",
    re.DOTALL,
)
_LOOSE = re.compile(r"[\s,]+|\.$")
_AROUND_OPTION = " .\"'“”‘’()[]"
_LOOSE_WORDS = re.compile(r"^[).:;=-]+|[(.;]+$")


class ChoiceScorer(Scorer):
    """Scores answers that are one of a question's options.

    Flexible scoring reads the letter, in brackets, bold or a box, in lower case where it cannot be a word, or
    the option's text: "Apples" is A only if option A says so. Options with the same text are the same answer,
    whatever their letters. "A or B", "not B" and "B is wrong" do not count as answers.
    """

    def read(self, statement: Statement, question: Question) -> str | None:
        text, options = plain(statement.text), _options(question)
        words = text.strip(_AROUND_OPTION)
        worded = [letter for letter, option in options.items() if option in (_key(text), _key(words))]
        if worded and not (len(words) == 1 and words.isalpha()):
            return worded[0]
        text = _LETTER_TAIL.sub(r"\1", text)
        if _LETTER_HEDGES.search(text):
            text = _without_own_words(text, question.choices)
        if _LETTER_HEDGES.search(text):
            return None
        named = {"".join(letters).upper() for letters in _LETTER.findall(text)}
        if len(named) != 1 or not named <= options.keys():
            return None
        (letter,) = named
        words = _LOOSE_WORDS.sub("", _key(_LETTER.sub("", text)))
        return None if words in options.values() and words != options[letter] else letter

    def is_right(self, answer: str, question: Question) -> bool:
        options = _options(question)
        return options[answer] == options[question.gold]


LETTER_SCORER = ChoiceScorer(r"The answer is\s*\(?([A-J])\b\)?")


def _without_own_words(text: str, choices: Sequence[str]) -> str:
    """Return a statement without an option's text beside its letter: (C) of (C) Cannot be determined."""
    for letter, choice in zip(ascii_uppercase, choices, strict=False):
        words = r"\s+".join(map(re.escape, plain(choice).rstrip(".").split()))
        own = rf"(\b{letter}\b[\s).:,=–—-]*){words}(?!\w)|(?<!\w){words}[\s,]*(\(?{letter}\b)"
        text = re.sub(own, r"\1\2 ", text, flags=re.IGNORECASE)
    return text


def _options(question: Question) -> dict[str, str]:
    """Return the options' texts by letter."""
    return dict(zip(ascii_uppercase, map(_key, question.choices or ascii_uppercase[:10]), strict=False))


def _key(text: str) -> str:
    """Return an option's text in the form used for comparison."""
    return _LOOSE.sub("", plain(text)).casefold()


_ARTICLE = re.compile(r"^(?:an?|the) ")
_SHIELDED = str.maketrans(".?!。\n", "\ue000\ue001\ue002\ue003 ")  # do not end a sentence within the gold
_UNSHIELDED = str.maketrans("\ue000\ue001\ue002\ue003", ".?!。")
_SIGNS = str.maketrans("’‘“”‐‑‒–—", "''\"\"-----")
_AROUND_TEXT = " \t\n.,;:!?\"'()[]"
_TEXT_TAIL = re.compile(r",? (?:not|and not|rather than|because|since|which is|as)\b.*|\s*\(.*\)$", re.DOTALL)


class TextScorer(Scorer):
    """Scores answers that are texts, by equality with the stated answer.

    Case, markup, a leading article, surrounding punctuation and what explains the answer (", not London",
    "because …") make no difference.
    """

    def is_same(self, answer: str, gold: str) -> bool:
        return normal_text(answer) == normal_text(gold)

    def flexible(self, response: str, question: Question) -> Verdict:
        for gold in question.golds:
            words = r"\s+".join(map(re.escape, gold.split()))
            response = re.sub(
                words, lambda found: found[0].translate(_SHIELDED), response, flags=re.IGNORECASE
            )
        return super().flexible(response, question)

    def read(self, statement: Statement, question: Question) -> str | None:
        answer = plain(statement.text).translate(_UNSHIELDED)
        head = _TEXT_TAIL.sub("", answer)
        if self.is_same(head, question.gold):
            return head
        return answer if normal_text(answer) else None


TEXT_SCORER = TextScorer(r"The final answer is[:\s]+(.+?)(?:\.|$)")


def normal_text(answer: str) -> str:
    """Return a text in the form used for comparison: plain, lower case, no article or punctuation."""
    text = unicodedata.normalize("NFKC", plain(answer)).casefold().translate(_SIGNS)
    return _ARTICLE.sub("", " ".join(text.split()).strip(_AROUND_TEXT)).strip(_AROUND_TEXT)


_FRACTION = re.compile(r"\\[dt]?frac(?:\{([^{}]*)\}|(\d))(?:\{([^{}]*)\}|(\d))")
_TEXT = re.compile(r"\\(?:text|textbf|mbox|mathrm|mathbf|boxed)\{([^{}]*)\}")
_DRESS = re.compile(r"\\(?:left|right|displaystyle)(?![a-zA-Z])|\\[()\[\],;:! ]|\$|\s")
_THOUSANDS = re.compile(r"(?<=\d)(?:,|\{,\})(?:\\!\s*)?(?=\d{3}(?!\d))")
_FLOAT = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?")

_MATHS = re.compile(r"\$\$(.+?)\$\$|(?<!\\)\$(.+?)(?<!\\)\$|\\\((.+?)\\\)|\\\[(.+?)\\\]", re.DOTALL)
_DELIMITER = re.compile(r"\\[()\[\]]|(?<!\\)\$")
_ROOT = re.compile(r"√(\w+|\([^()]*\))")
_PROSE = re.compile(r"^(?:not\b|answer$|(?:in)?correct\b)|(?<!\\)\b[A-Za-z]{2,}[ ,]+[A-Za-z]{2,}\b")
_UNIT_WORDS = re.compile(
    r"\A(?:(?:square|cubic|sq|cu)\.? )?[A-Za-z°]+(?:[²³]|\^[23])?(?: (?:per|an?) [a-z]+)?"
)
_UNIT_AFTER = re.compile(r"(?<=[\d)}])\s*(?:\\[,;:! ])*\\(?:text\w*|mathrm|mbox)\s*\{[^{}]*\}[.\s]*$")
_NOT_ALL = re.compile(
    rf"\b(?:{BOUND}|or|nor|and|not|twice|half|double|times)\b|[<>≤≥≠±+*/×·=]", re.IGNORECASE
)
_AROUND_MATHS = " \t\n*_`,:;\"'“”"


class MathScorer(Scorer):
    """Scores answers that are mathematical expressions.

    Strict scoring compares as in the paper: normalized texts (see `normalized`), or floats within 1e-6.
    Flexible scoring reads the stated answer, boxed, in math mode or bare, with or without the brackets of the
    prompt's "(answer)", and asks math-verify whether it is equivalent. Sentences do not count as expressions.
    """

    def is_same(self, answer: str, gold: str) -> bool:
        both = [normalized(answer), normalized(gold)]
        if both[0] == both[1]:
            return True
        numbers = [float(text) for text in both if _FLOAT.fullmatch(text)]  # excludes nan
        return len(numbers) == 2 and abs(numbers[0] - numbers[1]) <= 1e-6

    def read(self, statement: Statement, question: Question) -> str | None:  # noqa: ARG002
        """Return the statement's only part in math mode, or all of it; None for a sentence."""
        text = statement.text
        pieces = list(_MATHS.finditer(text))
        if len(pieces) == 1:
            text = _with_unit(text, pieces[0])
        elif _PROSE.search(_MATHS.sub("", _UNIT_AFTER.sub("", text))):
            return None
        text = _DELIMITER.sub("", text).lstrip(_AROUND_MATHS).rstrip(f"{_AROUND_MATHS}.")
        # Names of commands are no words: (\sin x, \cos x) is no prose.
        words = re.sub(r"\\(?!text|mbox|math|boxed)[A-Za-z]+", ".", _UNIT_AFTER.sub("", text))
        if text.count("{") != text.count("}") or _PROSE.search(normalized(words)):
            return None
        return _ROOT.sub(r"\\sqrt{\1}", text).replace("π", "\\pi").replace("°", "^\\circ")

    def is_right(self, answer: str, question: Question) -> bool:
        is_bracketed = answer.startswith("(") and answer.endswith(")")
        readings = [answer, answer[1:-1].strip()] if is_bracketed else [answer]
        return any(same_maths(question.gold, one) for one in readings)


def _with_unit(text: str, piece: re.Match[str]) -> str:
    """Return the part in math mode with the sign before it and the unit after it; "" if there is more."""
    before, after = text[: piece.start()].rstrip(" (*"), text[piece.end() :].strip(" ).*")
    if _PROSE.search(f"{before} {_UNIT_WORDS.sub('', after)}") or _NOT_ALL.search(f"{before}#{after}"):
        return ""
    inside = next(filter(None, piece.groups()))
    sign = "-" if before.endswith(("-", "−")) else ""
    unit = rf" \text{{ {after}}}" if _UNIT_WORDS.fullmatch(after) else ""
    return f"{sign}{inside.rstrip('. ')}{unit}"


_COMMAND = re.compile(r"\\[a-zA-Z]|\^|[√π]")
_OPERATION = re.compile(r"(?=.*\b\d*[a-z]\b).*[\w)] ?[-+*/=<>] ?[\w(-]", re.DOTALL)  # with a variable


def as_formula(gold: str) -> str | None:
    """Return a gold answer that is a mathematical expression, without delimiters; None for other texts."""
    text, shown = _DELIMITER.sub("", gold).strip(), plain(gold)
    is_operation = _OPERATION.match(shown) and not re.search("[A-Za-z]{2}", shown)
    return text if _COMMAND.search(shown) or is_operation else None


def normalized(answer: str) -> str:
    """Return the paper's canonical form: no LaTeX styling, fractions as a/b, no spaces, lower case.

    The paper removes all commands; here \\sqrt, \\pi and the like keep their names, or 2\\pi would become 2.
    """
    text = _THOUSANDS.sub("", answer)
    text = _DRESS.sub("", _TEXT.sub(r"\1", text))
    text = _FRACTION.sub(lambda match: f"{match[1] or match[2]}/{match[3] or match[4]}", text)
    return text.replace("\\", "").lower()
