"""Rows of logits and log-probabilities of texts and prompts, compared with float64 on llama.cpp's logits."""

from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from mink_local import load_model
from mink_local.errors import ContextOverflowError, GenerationError, OptionError
from mink_local.generation.answer import Answer
from mink_local.generation.engine.slots import N_OUTPUTS
from mink_local.generation.model import Model, read_rows
from mink_local.generation.request import Request, SamplingParams
from mink_local.llama.context import Segment
from mink_local.samplers import Workspace, kernels
from tests.conftest import forget
from tests.generation.conftest import logits_alone, run, submit

TEXT = (
    "The lighthouse keeper walked down to the harbour every morning, whatever the weather, and counted the "
    "boats. There were eleven of them, all painted white, and one that was not painted at all. "
)


def plain(row: NDArray[np.float32], token: int) -> float:
    """The definition, in float64: log of softmax(row)[token]."""
    logits = row.astype(np.float64)
    return float(logits[token] - logits.max() - np.log(np.exp(logits - logits.max()).sum()))


def one_at_a_time(model: Model, context: list[int], continuation: list[int]) -> list[float]:
    """Token by token, in a KV cache of its own."""
    rows = logits_alone(model, [*context, *continuation[:-1]], len(context) - 1)
    return [plain(row, token) for row, token in zip(rows, continuation, strict=True)]


def pair(model: Model, context: str, continuation: str) -> tuple[list[int], list[int]]:
    whole, begun = model.prompt_tokens(context + continuation), model.prompt_tokens(context)
    return begun, whole[len(begun) :]


@given(
    st.lists(st.floats(-1e4, 1e4, width=32) | st.just(float("-inf")), min_size=1, max_size=60),
    st.integers(0, 10**6),
)
def test_log_probability_is_the_definition(logits: list[float], place: int) -> None:
    row = np.array(logits, np.float32)
    token = place % row.size
    total = kernels.log_total(row, Workspace(row.size).work)
    if np.isneginf(row).all():
        assert np.isnan(total)
        return
    assert float(row[token]) - total == pytest.approx(plain(row, token), rel=1e-11, abs=1e-11)


def n_tokens(batches: list[tuple[Segment, ...]]) -> int:
    return sum(len(part.tokens) for parts in batches for part in parts)


@pytest.mark.parametrize("n_parallel", [1, 4])
def test_continuations_are_scored_as_one_at_a_time(tiny_path: Path, n_parallel: int) -> None:
    """With shared and separate contexts, of one token and of hundreds."""
    model = load_model(tiny_path, n_ctx=1024, n_parallel=n_parallel, trust=True)
    model.reserve(1024, n_parallel, N_OUTPUTS)
    pairs = [pair(model, "The capital of France is", f" {city}.") for city in ("Paris", "London", "a cat")]
    pairs += [pair(model, TEXT, "And then he went home.")]
    pairs += [pair(model, TEXT, " ".join([TEXT] * 4)), pair(model, "The", TEXT), pair(model, "1, 2,", " 3")]
    assert max(len(continuation) for _, continuation in pairs) > N_OUTPUTS
    for (context, continuation), found in zip(pairs, model.logprobs(pairs), strict=True):
        # llama.cpp's logits depend a little on what is evaluated together.
        assert found == pytest.approx(one_at_a_time(model, context, continuation), abs=0.05)


def test_a_shared_context_is_evaluated_once(smollm2: Model, decoded: list[tuple[Segment, ...]]) -> None:
    choices = [pair(smollm2, TEXT * 3, f" {word}") for word in ("Boats", "Trees", "Nobody", "Everything")]
    forget(smollm2).logprobs(choices)
    assert n_tokens(decoded) < len(choices[0][0]) + sum(len(continuation) + 1 for _, continuation in choices)


@pytest.mark.parametrize(
    ("pair", "error", "named"),
    [
        (([], [1]), OptionError, r"pairs\[1\]"),
        (([1], []), OptionError, r"pairs\[1\]"),
        (([1], [2], [3]), OptionError, r"pairs\[1\]"),
        (5, OptionError, r"pairs\[1\]"),
        (([1], [-1]), OptionError, r"pairs\[1\]\[1\].*-1"),
        (([10**6], [1]), OptionError, r"pairs\[1\]\[0\].*1000000"),
        (([1] * 800, [2] * 300), ContextOverflowError, "1024"),
    ],
)
def test_requests_that_cannot_be_scored(smollm2: Model, pair: Any, error: Any, named: str) -> None:
    with pytest.raises(error, match=named):
        smollm2.logprobs([([1], [2]), pair])


def test_what_is_scored_has_a_probability(tiny: Callable[..., Path]) -> None:
    broken = load_model(str(tiny(scale=float("nan"))))
    assert broken.logprobs([]) == []
    with pytest.raises(GenerationError, match="NaN"):
        broken.logprobs([([1], [2])])


# Rows of logits, beside those of one sequence at a time


@pytest.fixture(scope="module")
def tiny_model(tiny_path: Path) -> Model:
    return load_model(tiny_path, n_ctx=64, trust=True)


def test_rows_are_those_of_one_sequence_at_a_time(tiny_model: Model) -> None:
    """More sequences than slots, with a common prefix and without; then others in the same cache."""
    tiny_model.reserve(64, 3, 8)
    prompt = tiny_model.prompt_tokens("Name one country in Africa.")
    first = [([*prompt, *range(300, 300 + n), 40 + n], 1 + n) for n in range(6)]
    second = [([*prompt, 300, 301, 302, 7, 8], 2), ([9, 10, 11], 3), ([9], 5)]
    for batch in (first, second):
        found = dict(read_rows(tiny_model, batch))
        assert sorted(found) == list(range(len(batch)))
        for i, (tokens, n_rows) in enumerate(batch):
            alone = logits_alone(tiny_model, tokens, max(0, len(tokens) - n_rows))
            assert found[i] == pytest.approx(np.stack(alone), abs=1e-2)


def test_interrupted_rows_are_not_taken_for_all(tiny_model: Model) -> None:
    rows = read_rows(tiny_model, [([1, 2, 3], 2)] * 40)
    next(rows)
    tiny_model.interrupt()
    with pytest.raises(GenerationError):
        list(rows)


def test_what_cannot_be_evaluated(tiny_model: Model) -> None:
    with pytest.raises(ContextOverflowError):
        list(read_rows(tiny_model, [([1, 2], 1), ([1] * 300, 1)]))
    assert len(list(read_rows(tiny_model, [([1, 2], 1)]))) == 1, "the slots are free again"


# Of the prompt: those of `Model.logprobs`, alone and beside other requests


CONTEXT = "The lighthouse keeper walked down to the harbour every morning, whatever the weather."
CONTINUATION = " There were eleven boats, all of them painted white."


@pytest.fixture(scope="module")
def model() -> Model:
    model = load_model("smollm2-135m", n_ctx=512, n_parallel=3)
    model.reserve(512, 3, n_outputs=64)
    return model


@pytest.fixture(scope="module")
def prompt(model: Model) -> list[int]:
    return model.prompt_tokens(CONTEXT + CONTINUATION)


@pytest.fixture(scope="module")
def expected(model: Model, prompt: list[int]) -> list[float]:
    """The result of `Model.logprobs` for every token but the first."""
    (logprobs,) = model.logprobs([(prompt[:1], prompt[1:])])
    return logprobs


def request(prompt: Any, **options: Any) -> Request:
    return Request(prompt, SamplingParams(temperature=0.0, **options))


def assert_recorded(answer: Answer, expected: list[float], tolerance: float) -> None:
    first, *others = answer.prompt_logprobs
    assert first is None
    assert len(others) == len(expected)
    assert np.abs(np.subtract(others, expected)).max() < tolerance  # type: ignore[arg-type]
    assert len(answer.prompt_top_logprobs) == len(answer.prompt_logprobs)


def test_alone_they_are_those_of_logprobs(model: Model, prompt: list[int], expected: list[float]) -> None:
    engine = forget(model).core.engine
    answer = submit(engine, request(prompt, max_tokens=1, prompt_logprobs=2))
    run(engine)
    assert_recorded(answer, expected, 1e-3)
    assert answer.evaluated_tokens == answer.prompt_tokens
    start = len(model.prompt_tokens(CONTEXT))
    (logprobs,) = model.logprobs([(prompt[:start], prompt[start:])])
    assert answer.prompt_logprobs[start:] == pytest.approx(logprobs, abs=1e-3)
    assert answer.prompt_top_logprobs[0] == ()
    for token, logprob, top in zip(
        prompt[1:], answer.prompt_logprobs[1:], answer.prompt_top_logprobs[1:], strict=True
    ):
        assert len(top) == 2
        assert dict(top).get(token, logprob) == pytest.approx(logprob, abs=1e-6)


def test_they_need_no_context_of_their_own(prompt: list[int], expected: list[float]) -> None:
    """With one row of logits for each slot, a batch has only a few of the prompt's tokens."""
    model = load_model("smollm2-135m", n_ctx=512, n_parallel=3)
    answer = submit(model.core.engine, request(prompt, max_tokens=4, prompt_logprobs=0))
    plain = submit(model.core.engine, request(CONTEXT, max_tokens=20))
    run(model.core.engine)
    # llama.cpp's logits depend on what is evaluated together, a 4-bit model's more than others.
    assert_recorded(answer, expected, 0.6)
    assert set(answer.prompt_top_logprobs) == {()}
    assert (answer.n_tokens, plain.n_tokens) == (4, 20)
    assert plain.prompt_logprobs == []


def test_beside_other_requests_and_after_them(model: Model, prompt: list[int], expected: list[float]) -> None:
    """All logits are needed, so no cached prompt is reused.

    An answer without them has the same prompt as one with them.
    """
    engine = forget(model).core.engine
    plain = request(prompt, max_tokens=8)
    before = submit(engine, plain)
    run(engine)
    recorded = [submit(engine, request(prompt, max_tokens=8, prompt_logprobs=0)) for _ in range(2)]
    others = [submit(engine, plain), submit(engine, request(CONTEXT, max_tokens=30))]
    run(engine)
    for answer in recorded:
        assert_recorded(answer, expected, 0.6)
        assert answer.evaluated_tokens == answer.prompt_tokens
    assert {answer.text for answer in [*recorded, others[0]]} == {before.text}
    assert others[0].evaluated_tokens == 1


def test_a_row_with_a_nan_ends_one_answer(
    model: Model, prompt: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = forget(model).core.engine
    with_them = submit(engine, request(prompt, max_tokens=5, prompt_logprobs=0))
    sharing = submit(engine, request(prompt, max_tokens=5))
    numbers = count()
    rows = type(engine.context).rows

    def damaged(self: Any) -> Any:
        found = rows.__get__(self).copy()
        found[[next(numbers) == 2 for _ in found]] = np.nan
        return found

    monkeypatch.setattr(type(engine.context), "rows", property(damaged))
    run(engine)
    assert with_them.finish_reason == "error"
    assert "NaN" in str(with_them.error)
    assert (with_them.n_tokens, len(with_them.prompt_logprobs)) == (0, 3)
    assert (sharing.n_tokens, sharing.finish_reason) == (5, "length")
