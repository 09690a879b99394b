"""Find the option of a multiple-choice question that a response states."""

import re
from string import ascii_uppercase

from mink_local.evals.tasks.base import NO_ANSWER, Question, Task, Verdict
from mink_local.evals.tasks.statements import Statement, plain, statements

_LEAD = r"\W*?(?:(?:the|option|choice|letter|answer)\s+){0,3}"
_BEGINS = re.compile(
    _LEAD
    + r"(?:[(\[]\s*(?P<bracketed>[A-Za-z])\s*[)\]]"  # (B)  (b) 21
    + r"|(?P<bare>[A-Za-z])(?=\s*(?:[).,;:\]]|$)|\s+(?:because|since|as|which|and|with|[-–—(]))"  # B) 21  b.
    + r"|(?P<capital>[B-Z])(?=\s))"  # B is right; not A, which is a word
)
_BRACKETED = re.compile(r"\(([A-Z])\)")
_HEDGE = re.compile(r"\s*[)\]]?\s*(?:or|and|/|,|&)\s*[(\[]?(?:option\s+)?[A-Z](?:[)\]]|\b(?!['’]))")
_NOT = re.compile(r"\b(?:not|neither|nor|isn't)\b", re.IGNORECASE)
_LOOSE = re.compile(r"[\s,]+|\.$")


def listed(choices: tuple[str, ...]) -> str:
    """Return the options as a model gets them, one a line: (A) …"""
    return "\n".join(f"({letter}) {choice}" for letter, choice in zip(ascii_uppercase, choices, strict=False))


class ChoiceTask(Task):
    """Questions with options; a response states one by its letter or its wording.

    Flexible: a letter counts in brackets, in bold, in a box, in lower case if it cannot be a word, and before
    or (in brackets) after the option's text. "Apples" is A only if option A says so. Options with the same
    text are the same answer, whatever their letters. "A or B" is no answer.
    """

    def flexible(self, response: str, question: Question) -> Verdict:
        options = dict(zip(ascii_uppercase, (_key(choice) for choice in question.choices), strict=False))
        for statement in statements(response):
            letter = _letter(statement, options)
            if letter is not None:
                return Verdict(letter, options[letter] == options[question.gold])
        return NO_ANSWER


def _letter(statement: Statement, options: dict[str, str]) -> str | None:
    text = plain(statement.text)
    worded = [letter for letter, option in options.items() if option == _key(text)]
    if worded and not (len(text) == 1 and text.isalpha()):
        return worded[0]
    begins = _BEGINS.match(text)
    letter = begins and (begins["bracketed"] or begins["bare"] or begins["capital"])
    if begins and letter and letter.upper() in options:
        return None if _HEDGE.match(text, begins.end()) else letter.upper()
    behind = set(_BRACKETED.findall(text)) & set(options)
    return behind.pop() if len(behind) == 1 and not statement.terse and not _NOT.search(text) else None


def _key(text: str) -> str:
    """Return the form of an option's wording that is compared."""
    return _LOOSE.sub("", plain(text)).casefold()
