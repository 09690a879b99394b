"""Find the option of a multiple-choice question that a response states."""

import re
from string import ascii_uppercase

from mink_local.evals.tasks.base import NO_ANSWER, Question, Task, Verdict
from mink_local.evals.tasks.statements import Statement, plain, statements

_LEAD = r"\W*?(?i:(?:the|option|choice|letter|answer|so|hence|therefore|thus|most|\w+ly)\b\W+?){0,3}"
_BEGINS = re.compile(
    _LEAD
    + r"(?:[(\[]\s*(?P<bracketed>[A-Za-z])\s*[)\]]"  # (B)  (b) 21
    + r"|(?P<bare>[A-Za-z])(?=\s*(?:[).,;:=\]。，]|[\"'”’](?!\w)|$)"  # B) 21  b.
    + r"|\s+(?:because|since|as|which|and|with|[-–—(]))"
    + r"|(?P<capital>[B-Z])(?=\s))"  # B is right; not A, which is a word
)
_NAMED = re.compile(r"\(([A-Z])\)|\b[Oo]ption ([A-Z])\b")
_HEDGE = re.compile(
    r"\s*[)\]]?\s*(?:(?:or|and|/|,|&|或)\s*(?:\w+ly\s+)?[(\[]?(?:option\s+)?[A-Z](?:[)\]]|\b(?!['’]))"
    r"|(?:is|can|does)\s*(?:not|never|n['’]t|wrong|incorrect))"
)
_NOT = re.compile(r"\b(?:not|neither|nor|isn't|than)\b", re.IGNORECASE)
_LOOSE = re.compile(r"[\s,]+|\.$")


def listed(choices: tuple[str, ...]) -> str:
    """Return the options as a model gets them, one a line: (A) …"""
    return "\n".join(f"({letter}) {choice}" for letter, choice in zip(ascii_uppercase, choices, strict=False))


class ChoiceTask(Task):
    """Questions with options; a response states one by its letter or its wording.

    Flexible: a letter counts in brackets, in bold, in a box, in lower case if it cannot be a word, and before
    or (in brackets) after the option's text. "Apples" is A only if option A says so. Options with the same
    text are the same answer, whatever their letters. "A or B", "not B" and "B is wrong" are no answer.
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
    if statement.terse or statement.unfinished or statement.about or _NOT.search(text):
        return None
    named = {"".join(letters) for letters in _NAMED.findall(text)} & set(options)
    return named.pop() if len(named) == 1 else None


def _key(text: str) -> str:
    """Return the form of an option's wording that is compared."""
    return _LOOSE.sub("", plain(text)).casefold()
