"""Grammars of regular expressions against the expressions themselves, with llama.cpp's sampler between."""

import re

import pytest

from mink_local import Constraints, MinK, Request, SamplingParams
from mink_local.generation.model import Model
from mink_local.llama.regex_grammar import from_regex

PATTERNS = [
    r"^\d{3}-\d{2,4}$",
    r"(red|blue|)\s\w+\.",
    r"[^a-z\n]{1,5}|[\w.+-]{2,6}@[a-c]\.org",
    r'"é東":\S{2}.',
    r"(?:ab)*?c+",
    r"x?\"[\]^-]{3}",
]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_what_is_sampled_matches(smollm2: Model, pattern: str) -> None:
    constraints = Constraints(grammar=from_regex(pattern))
    params = [
        SamplingParams(
            sampler=MinK(floor=9.0), temperature=5.0, max_tokens=40, seed=i, constraints=constraints
        )
        for i in range(4)
    ]
    ended = [
        answer.text
        for answer in smollm2.answer_all(Request("Say:", one) for one in params)
        if answer.finish_reason == "stop"
    ]
    assert all(re.fullmatch(pattern, text, re.ASCII) for text in ended), ended
    assert ended or pattern.endswith(("c+", ".")), pattern  # an open end may go on


@pytest.mark.parametrize(
    "pattern",
    ["(", r"(a)\1", "(?=a)b", r"\bword", "(?i)a", "(?i:a)", r"[\W\d]", "a{99999999999}", "(" * 5000],
)
def test_what_no_grammar_has_is_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match="regular expression"):
        from_regex(pattern)
