"""Finds the answer that a response states last, and makes plain text of LaTeX and Markdown.

An answer is stated after an anchor: a box, "####", "the answer is" and the like in several languages. It ends
with its sentence. Responses of models decide what is here: see `tests/evals/tasks/test_responses.py`.
"""

import re
import unicodedata
from collections.abc import Iterator

_READ = 20_000  # characters read of a response, from the end: what is hostile is cheap
_LONGEST = 1000  # characters of a statement
_SHORT = 20  # characters of a response that is nothing but the answer

_NAME = r"\b(?:answer|respuesta|réponse|antwort|risposta|resposta|ответ)\b|答案|答え|选项"
_IS = r"\b(?:is|be|es|est|ist|è|é)(?![\w'’])|[:：=→]|[是为は]"
_ANCHOR = re.compile(
    # A) 12 is the correct answer; the answer isn't 64; it's 72
    r"(?<![\w'’])[(\[]?(?P<letter>[A-J])(?:[)\]][^\n.?!]{0,40}?)? is the (?:correct )?answer\b|"
    rf"(?:{_NAME})[^\n.:=?]{{0,40}}?\bis(?:n['’]t| not)\b[^.\n]{{1,40}}?[;,] ?(?:it['’]s|it is|but)\b"
    rf"|\\(?:boxed|fbox)\s*\{{|####(?=\W{{0,9}}\d)|(?:{_NAME})[^\n.:=?是为は]{{0,40}}?(?:{_IS})",
    re.IGNORECASE,
)
_BETWEEN_BOXES = re.compile(r"[\s$]*(?:,|and|or)[\s$]*\\(?:boxed|fbox)\s*\{")
_AFTER_A_BOX = re.compile(r"\}[\s$]*(?:,|and|or)[\s$]*$")
_DISPLAY = re.compile(r"[\s*:_]*(?:\\\[(.+?)\\\]|\$\$(.+?)\$\$)", re.DOTALL)
_PLACEHOLDER = re.compile(r"\W*\(answer\)\W*")  # copied from "The final answer is (answer)"
_END = re.compile(r"\n|(?<!\\)[.!?](?=\s|$)|。")
_NEXT_QUESTION = re.compile(r"\n\s*(?:Q|Question|Problem)\b[ \d]*[:.]")

_PLAIN = (  # pattern, what it means
    (r"(?<=\d)\s*(?=\\[dtc]?frac)", " "),
    (r"\\[dtc]?frac\s*(?:\{([^{}]*)\}|(\w))\s*(?:\{([^{}]*)\}|(\w))", r"\1\2/\3\4"),
    (r"\\(?:text\w*|math\w+|mbox|boxed|left|right|displaystyle)\b|\\[()\[\]]|\{,\}|\\!", ""),
    (r"(?<=\d)(?:,|\\,)(?=\d{3}\b)", ""),
    (r"\\[,;: ]|~", " "),
    (r"[−‐‑]", "-"),
    ("⁄", "/"),
    (r"\\(?=[%&#_{}])|[*`{}]|\\?\$|[€£¥₹]|</?\w+>", ""),
)


def plain(text: str) -> str:
    """Return LaTeX and Markdown as plain text: `**\\$1,200**` is 1200, and `\\dfrac{1}{2}` is 1/2."""
    text = unicodedata.normalize("NFKC", text)
    for written, meant in _PLAIN:
        text = re.sub(written, meant, text)
    return text.strip()


def before_next_question(response: str) -> str:
    """Return a response up to a further question, which base models go on to ask themselves."""
    return _NEXT_QUESTION.split(response, maxsplit=1)[0]


def statements(response: str) -> Iterator[str]:
    """Yield what a response states as its answer, the last statement first."""
    text = response[-_READ:]
    for anchor in reversed(list(_ANCHOR.finditer(text))):
        is_box = anchor[0].endswith("{")
        if is_box and _AFTER_A_BOX.search(text[max(0, anchor.start() - 20) : anchor.start()]):
            continue
        rest = text[anchor.end() : anchor.end() + _LONGEST]
        stated = anchor["letter"] or _stated(rest, is_box=is_box)
        if not _PLACEHOLDER.fullmatch(stated):
            yield stated
    if len(text.strip()) <= _SHORT:
        yield text


def _stated(rest: str, *, is_box: bool) -> str:
    """Return what is in a box or a displayed formula, or else up to the end of the sentence."""
    if is_box:
        return _boxed(rest)
    if display := _DISPLAY.match(rest):
        return display[1] or display[2]
    return _END.split(rest.lstrip(" \n*:_"), maxsplit=1)[0]


def _boxed(text: str) -> str:
    """Return what is in a box, and in those that follow it in a list, given the text after its brace."""
    depth = 1
    for place, character in enumerate(text):
        depth += (character == "{") - (character == "}")
        if depth == 0:
            following = _BETWEEN_BOXES.match(text, place + 1)
            return text[:place] + (f", {_boxed(text[following.end() :])}" if following else "")
    return text
