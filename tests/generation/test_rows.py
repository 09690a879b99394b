"""Rows of logits of many sequences, beside those of one at a time."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from mink_local import load_model
from mink_local.errors import ContextOverflowError
from mink_local.generation.model import Model
from mink_local.llama.context import Context, Segment


@pytest.fixture
def model(tiny_path: Path) -> Iterator[Model]:
    with load_model(str(tiny_path), n_ctx=64, trust=True) as model:
        yield model


@pytest.mark.slow
def test_rows_are_those_of_one_sequence_at_a_time(model: Model) -> None:
    """More sequences than slots, with a common prefix and without; then others in the same cache."""
    prompt = model.tokens("Name one country in Africa.")
    first = [([*prompt, *range(300, 300 + n), 40 + n], 1 + n) for n in range(6)]
    second = [([*prompt, 300, 301, 302, 7, 8], 2), ([9, 10, 11], 3)]
    with model.rows(64, 3, 8) as rows:
        found = [{row[:2]: row.logits.copy() for row in rows(given)} for given in (first, second)]
    for given, logits in zip((first, second), found, strict=True):
        ends = {(i, len(tokens) - k) for i, (tokens, n_rows) in enumerate(given) for k in range(n_rows)}
        assert logits.keys() == ends
        for (i, n_tokens), row in logits.items():
            assert row == pytest.approx(model.logits(given[i][0][:n_tokens]), abs=1e-2)


def test_a_prefix_of_an_earlier_call_is_not_evaluated_again(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluated = []
    decode = Context.decode

    def watched(self: Context, *parts: Segment) -> bool:
        evaluated.append(sum(len(part.tokens) for part in parts))
        return decode(self, *parts)

    monkeypatch.setattr(Context, "decode", watched)
    prompt = list(range(1, 30))
    with model.rows(64, 4) as rows:
        list(rows([(prompt, 1)]))
        list(rows(((*prompt, token), 1) for token in (3, 4, 5, 6)))
    assert sum(evaluated) == len(prompt) + 4


def test_what_cannot_be_evaluated(model: Model) -> None:
    with model.rows(64, 2) as rows:
        with pytest.raises(ContextOverflowError):
            list(rows([([1, 2], 1), ([1] * 300, 1)]))
        assert len(list(rows([([1, 2], 1)]))) == 1, "the slots are free again"
