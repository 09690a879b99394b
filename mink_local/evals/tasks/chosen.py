"""Scorers that the user names for own files: a kind of answer, a regular expression, or a Python function."""

import importlib
import os
import re
import sys
from collections.abc import Callable
from functools import lru_cache

from mink_local.errors import DataError
from mink_local.evals.tasks.base import Question, Scorer, ScorerError, Verdict
from mink_local.evals.tasks.datasets import Gsm8k, Math500
from mink_local.evals.tasks.exact import exact
from mink_local.evals.tasks.scoring import LETTER_SCORER, TEXT_SCORER, normal_text

OwnFunction = Callable[[str, Question], object]
"""A user's scorer of a response, without its reasoning, to a question; returns True, False or a Verdict."""

_NAMED: dict[str, Scorer] = {
    "number": Gsm8k.scorer,
    "letter": LETTER_SCORER,
    "text": TEXT_SCORER,
    "math": Math500.scorer,
}


@lru_cache
def chosen_scorer(name: str) -> Scorer:
    """Return the scorer with a name: number, letter, text, math, regex:PATTERN or MODULE:FUNCTION.

    The module is looked for in the current folder, too. Raises DataError if there is no such scorer.
    """
    if name in _NAMED:
        return _NAMED[name]
    kind, colon, rest = name.partition(":")
    if not colon:
        raise DataError(f"no scorer {name!r}: use {', '.join(_NAMED)}, regex:PATTERN or MODULE:FUNCTION")
    if kind != "regex":
        return FunctionScorer(name, _function(kind, rest))
    try:
        n_groups = re.compile(rest).groups
    except re.error as error:
        raise DataError(f"{rest!r} is no regular expression ({error})") from None
    if n_groups > 1:
        raise DataError(f"{rest!r} has {n_groups} groups: leave one, and write the others as (?:…)")
    return RegexScorer(rest)


def _function(module: str, name: str) -> OwnFunction:
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found = getattr(importlib.import_module(module), name, None)
    except Exception as error:  # whatever the user's module raises
        raise DataError(
            f"the scorer's module {module!r} cannot be imported ({type(error).__name__}: {error})"
        ) from None
    if not callable(found):
        raise DataError(f"the module {module!r} has no function {name!r}")
    function: OwnFunction = found
    return function


class RegexScorer(Scorer):
    """Scores the group, or all, of the pattern's last match: as a number if both are, or else as a text."""

    flexible = Scorer.strict

    def is_same(self, answer: str, gold: str) -> bool:
        values = exact(answer), exact(gold)
        return values[0] == values[1] if None not in values else normal_text(answer) == normal_text(gold)


class FunctionScorer(Scorer):
    """Scores by a function of the user's."""

    is_own = True

    def __init__(self, name: str, function: OwnFunction) -> None:
        super().__init__("")
        self._name, self._function = name, function

    def strict(self, response: str, question: Question) -> Verdict:
        """Return the function's verdict. Raises ScorerError if it fails, or returns something else."""
        try:
            found = self._function(response, question)
        except Exception as error:  # whatever the user's function raises
            reason = f"{type(error).__name__}: {error}"
        else:
            if isinstance(found, Verdict):
                return found
            if isinstance(found, bool):
                return Verdict(None, found)
            reason = f"it returned {found!r:.40}, and neither True, False nor a Verdict"
        raise ScorerError(f"{self._name} cannot score question {question.id} of {question.task}: {reason}")
