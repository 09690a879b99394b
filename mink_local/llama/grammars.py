"""Grammars in Lark's syntax, as llguidance takes them: checked, or converted from llama.cpp's GBNF."""

import json
import re
from collections.abc import Iterator

from mink_local.errors import ConstraintError
from mink_local.llama.json_schema import kept_schema

IS_LARK = re.compile(r"^[ \t]*(%llguidance\b|start\s*(\[.*\]\s*)?:(?!:=))", re.MULTILINE)
_LARK_PART = re.compile(
    r'"(?:\\.|[^"\\\n])*"|/(?![/*])(?:\\.|[^/\\\n])+/|//[^\n]*|\#[^\n]*|(?P<schema>%json\b\s*)|%llguidance\s*\{\s*\}|'
    r"<\[\d{1,9}\]>|"  # a token
    r"(?P<refused>%(?:llguidance|regex)\b|<|\btemperature\s*=)"
)
_GBNF_PART = re.compile(
    r"\s+|\#[^\n]*|(?P<head>[\w-]+)\s*::=|(?P<name>[\w-]+)|(?P<text>\"(?:\\.|[^\"\\])*\")|"
    r"(?P<set>\[\^?(?:\\.|[^\]\\])*\])|(?P<any>\.)|(?P<mark>[()|*+?]|\{\s*\d+\s*(?:,\s*(?:\d+\s*)?)?\})",
    re.ASCII | re.DOTALL,
)
_ENDLESS = re.compile(r"[*+]|\{\s*(\d+)\s*,\s*\}")
_MOST = 10_000  # repetitions where there would be no limit
_CHARACTER = re.compile(r"\\(?:x(..)|u(.{4})|U(.{8})|(.))|(.)", re.DOTALL)
_CONTROLS = {"n": "\n", "r": "\r", "t": "\t"}


def lark(grammar: str, name: str) -> str:
    """Return a grammar in Lark's syntax, given in that syntax or as GBNF.

    Raises:
        ConstraintError: It is neither, or has what a client must not set; the error begins with `name`.
    """
    try:
        return "".join(_checked(grammar, name)) if IS_LARK.search(grammar) else _from_gbnf(grammar)
    except SyntaxError as error:
        raise ConstraintError(name, str(error)) from None


def _checked(grammar: str, name: str) -> Iterator[str]:
    """Yield a Lark grammar, with the options for every `%json` schema in it."""
    at = 0
    while (part := _LARK_PART.search(grammar, at)) is not None:
        if part["refused"]:
            raise SyntaxError(f"it must not have {part['refused']}")
        yield grammar[at : part.end()]
        at = part.end()
        if part["schema"]:
            try:
                schema, at = json.JSONDecoder().raw_decode(grammar, at)
            except (ValueError, RecursionError) as error:
                raise SyntaxError(f"a JSON schema in it is malformed: {error}") from None
            yield json.dumps(kept_schema(schema, name))
    yield grammar[at:]


def _from_gbnf(grammar: str) -> str:
    """Return a GBNF grammar in Lark's syntax.

    A rule that does not contain itself becomes a terminal, which llguidance matches as one regular
    expression: exactly, and fast. Between terminals of other rules, the longest match wins.
    """
    bodies: dict[str, list[tuple[str, str]]] = {}
    body: list[tuple[str, str]] | None = None
    at = 0
    while at < len(grammar):
        part = _GBNF_PART.match(grammar, at)
        if part is None or (body is None and part.lastgroup not in (None, "head")):
            line = grammar.count("\n", 0, at) + 1
            if body is not None and re.match(r"!?<", grammar[at:]):
                raise SyntaxError(f"line {line}: tokens in GBNF are not supported: {grammar[at : at + 20]!r}")
            raise SyntaxError(f"line {line} is not GBNF at {grammar[at : at + 20]!r}")
        at = part.end()
        if part["head"]:
            body = bodies.setdefault(part["head"], [])
        elif part.lastgroup and body is not None:
            body.append((part.lastgroup, part[part.lastgroup]))
    if "root" not in bodies:
        raise SyntaxError("it has no rule 'root'")
    names = _lark_names(bodies)
    rules = [f"start: {names['root']}\n"]
    for name, body in bodies.items():
        # Two terminals that repeat one character without end would keep llguidance busy for ever.
        parts = body if names["root"].isupper() else _limited(body)
        rules.append(f"{names[name]}: {' '.join(_part(*part, names) for part in parts)}\n")
    return "".join(rules)


def _lark_names(bodies: dict[str, list[tuple[str, str]]]) -> dict[str, str]:
    """Return the rules' names in Lark: upper-case for the non-recursive ones."""
    used = {name: {text for kind, text in body if kind == "name"} for name, body in bodies.items()}
    if missing := set().union(*used.values()) - used.keys():
        raise SyntaxError(f"it has no rule {min(missing)[:100]!r}")
    users: dict[str, list[str]] = {name: [] for name in used}
    for name, parts in used.items():
        for part in parts:
            users[part].append(name)
    ready = [name for name, parts in used.items() if not parts]
    for name in ready:  # which grows meanwhile
        for user in users[name]:
            used[user].discard(name)
            if not used[user]:
                ready.append(user)
    terminals = set(ready)
    return {name: f"{'R' if name in terminals else 'r'}{i}" for i, name in enumerate(bodies)}


def _limited(body: list[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Bound unlimited repetition of a single character."""
    has_several = False
    for kind, text in body:
        if kind == "mark" and not has_several and (endless := _ENDLESS.fullmatch(text)):
            least = int(endless[1] or (text == "+"))
            yield kind, f"{{{least},{max(least, _MOST)}}}"
        else:
            yield kind, text
        members = {character for character, _ in _characters(text[1:-1])} if kind == "set" else set()
        has_several = kind == "any" or text[:2] == "[^" or len(members - {"-"}) > 1


def _part(kind: str, text: str, names: dict[str, str]) -> str:
    if kind == "name":
        return names[text]
    if kind == "text":
        return json.dumps("".join(character for character, _ in _characters(text[1:-1])), ensure_ascii=False)
    if kind == "any" or text == "[^]":
        return "/(?s:.)/"
    return _set(text[1:-1]) if kind == "set" else text


def _set(members: str) -> str:
    """Return a regular expression for a set of characters."""
    inverted = members.startswith("^")
    found = list(_characters(members.removeprefix("^")))
    last = len(found) - 1
    written = [
        "-" if character == "-" and not is_escaped and 0 < i < last else f"\\x{{{ord(character):x}}}"
        for i, (character, is_escaped) in enumerate(found)
    ]
    return f"/[{'^' * inverted}{''.join(written)}]/"


def _characters(text: str) -> Iterator[tuple[str, bool]]:
    """Yield the characters of a literal, and whether each was escaped."""
    for *codes, escaped, plain in _CHARACTER.findall(text):
        try:
            character = chr(int("".join(codes), 16)) if any(codes) else _CONTROLS.get(escaped, escaped)
        except (ValueError, OverflowError):
            raise SyntaxError(f"it has no character {''.join(codes)!r}") from None
        yield character or plain, not plain
