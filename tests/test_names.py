"""Names and words: one class for a name, no reaching into another object, the field's words in all prose."""

import ast
import io
import re
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "mink_local"
MODULES = sorted(path.relative_to(ROOT).as_posix() for path in PACKAGE.rglob("*.py"))
PUBLIC_ALL_THE_SAME = {"_asdict", "_exit", "_fields", "_replace"}  # of named tuples and of `os`
WORDS = {
    r"draw|draws|drawn|drew|drawing": "sample",
    r"survivors?": "candidates",
    r"begun": "prefix, or started",
    r"likelihoods?": "logprob",
    r"thoughts?": "reasoning",
    r"crew|hire[sd]?|hiring": "pool, start",
    r"stands?|standing|stood": "is, is kept",
    r"vouch(?:es|ed)?|brings? down|brought down|taken? apart|takes? apart|in vain": "no metaphors",
    r"hence|wherein|thereof|of which": "name the thing again",
    r"but for": "except",
    r"in the graph|in graph": "backend sampling",
    r"is to be had|are to be had|is no name|where there (?:is|are)|where none": "plain English: if",
}


@cache
def tree(module: str) -> ast.Module:
    return ast.parse((ROOT / module).read_text(encoding="utf-8"))


def test_no_two_classes_share_a_name() -> None:
    places = defaultdict(list)
    for module in MODULES:
        for node in ast.walk(tree(module)):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(f"{module}:{node.lineno}")
    assert {name: where for name, where in places.items() if len(where) > 1} == {}


def private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("__") and name not in PUBLIC_ALL_THE_SAME


def defined(module: str) -> set[str]:
    """Return the names of functions and attributes that the module itself gives to its classes."""
    names = set()
    for node in ast.walk(tree(module)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and is_own(node):
            names.add(node.attr)
    return names


def is_own(node: ast.Attribute) -> bool:
    return isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")


@pytest.mark.parametrize("module", MODULES)
def test_no_module_touches_the_underscore_of_another(module: str) -> None:
    own, found = defined(module), []
    for node in ast.walk(tree(module)):
        if (
            isinstance(node, ast.Attribute)
            and private(node.attr)
            and not is_own(node)
            and node.attr not in own
        ):
            found.append(f"{node.lineno}: {ast.unparse(node)}")
        elif isinstance(node, ast.ImportFrom):
            found += [f"{node.lineno}: import {alias.name}" for alias in node.names if private(alias.name)]
    assert found == []


def prose(module: str) -> Iterator[tuple[int, str]]:
    """Yield a module's comments, and its strings of more than one word, with their lines."""
    for node in ast.walk(tree(module)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            yield node.lineno, node.value
    source = (ROOT / module).read_text(encoding="utf-8")
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def complaints(texts: Iterator[tuple[int, str]]) -> list[str]:
    """Return a line for each word of the list in the texts; what is in backquotes is code."""
    found = []
    for line, text in texts:
        for words, better in WORDS.items():
            for match in re.finditer(rf"\b(?:{words})\b", re.sub(r"`[^`]*`", "", text), re.IGNORECASE):
                found.append(f"{line}: {match[0]!r}: {better}")
    return found


@pytest.mark.parametrize("module", MODULES)
def test_prose_has_the_words_of_the_field(module: str) -> None:
    assert complaints(prose(module)) == []


@pytest.mark.parametrize(
    "document",
    [
        "README.md",
        "docs/clients.md",
        "docs/rpc.md",
        "docs/several-servers.md",
        "docs/mink-bench.md",
        "docs/mink-chat.md",
        "docs/mink-eval.md",
        "docs/mink-models.md",
    ],
)
def test_documents_have_the_words_of_the_field(document: str) -> None:
    text = re.sub(r"--[\w-]+", "", (ROOT / document).read_text(encoding="utf-8"))  # options keep their names
    assert complaints(iter(enumerate(text.splitlines(), 1))) == []


@pytest.mark.parametrize("module", MODULES)
def test_docstrings_begin_with_a_short_sentence(module: str) -> None:
    found = []
    for node in ast.walk(tree(module)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module):
            first = re.split(r"(?<=[.:;])\s", ast.get_docstring(node) or "", maxsplit=1)[0]
            name = getattr(node, "name", "module")
            if re.match(r"(What|How|Whether|That|Which|Where)\b", first):
                found.append(f"{name}: {first}: begin with a verb")
            elif len(first.split()) > 20:
                found.append(f"{name}: {first}: more than 20 words")
    assert found == []
