"""Rows of logits and log-probabilities of texts, compared with float64 on llama.cpp's logits."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from mink_local import load_model
from mink_local.errors import ContextOverflowError, GenerationError
from mink_local.generation.model import Model
from mink_local.generation.slots import N_OUTPUTS, RowReader, score
from mink_local.llama.context import Context, Segment
from mink_local.samplers import kernels

TEXT = (
    "The lighthouse keeper walked down to the harbour every morning, whatever the weather, and counted the "
    "boats. There were eleven of them, all painted white, and one that was not painted at all. "
)


def plain(row: NDArray[np.float32], token: int) -> float:
    """The definition, in float64: log of softmax(row)[token]."""
    logits = row.astype(np.float64)
    return float(logits[token] - logits.max() - np.log(np.exp(logits - logits.max()).sum()))


def one_at_a_time(model: Model, context: list[int], continuation: list[int]) -> tuple[list[float], bool]:
    """Token by token, in a KV cache of its own."""
    cache = Context(model.weights, 1024, 2)
    cache.decode(Segment(context, 0))
    logprobs, greedy = [], True
    for i, token in enumerate(continuation):
        row = cache.logits()
        logprobs.append(plain(row, token))
        greedy = greedy and int(row.argmax()) == token
        cache.decode(Segment([token], len(context) + i))
    return logprobs, greedy


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
    if np.isneginf(row).all():
        assert np.isnan(kernels.log_probability(row, token))
        return
    assert kernels.log_probability(row, token) == pytest.approx(plain(row, token), rel=1e-11, abs=1e-11)


def n_tokens(batches: list[tuple[Segment, ...]]) -> int:
    return sum(len(part.tokens) for parts in batches for part in parts)


@pytest.mark.parametrize("n_parallel", [1, 4])
def test_continuations_are_scored_as_one_at_a_time(tiny_path: Path, n_parallel: int) -> None:
    """With shared and separate contexts, of one token and of hundreds."""
    model = load_model(tiny_path, n_ctx=1024, trust=True)
    pairs = [pair(model, "The capital of France is", f" {city}.") for city in ("Paris", "London", "a cat")]
    pairs += [pair(model, TEXT, "And then he went home.")]
    pairs += [pair(model, TEXT, " ".join([TEXT] * 4)), pair(model, "The", TEXT), pair(model, "1, 2,", " 3")]
    assert max(len(continuation) for _, continuation in pairs) > N_OUTPUTS
    scored = model.logprobs(pairs, n_parallel)
    assert [scored_one.index for scored_one in scored] == list(range(len(pairs)))
    for (context, continuation), scored_one in zip(pairs, scored, strict=True):
        expected, greedy = one_at_a_time(model, context, continuation)
        # llama.cpp's logits depend a little on what is evaluated together.
        assert scored_one.logprobs == pytest.approx(expected, abs=0.05)
        assert scored_one.is_greedy == greedy


def test_the_same_batch_gives_the_same_numbers(smollm2: Model) -> None:
    """If the batches are those of the plain computation, the only difference is float64 rounding."""
    context, continuation = pair(smollm2, "The", TEXT)
    assert len(continuation) < N_OUTPUTS
    cache = Context(smollm2.weights, 1024, smollm2.engine.context.n_threads, n_outputs=N_OUTPUTS)
    tokens = [*context, *continuation[:-1]]
    cache.decode(Segment(tokens, 0, n_outputs=len(continuation)))
    rows = [cache.logits(len(context) - 1 + i) for i in range(len(continuation))]
    expected = [plain(row, token) for row, token in zip(rows, continuation, strict=True)]
    (scored,) = smollm2.logprobs([(context, continuation)], 1)
    assert scored.logprobs == pytest.approx(expected, rel=1e-11)


def test_a_shared_context_is_evaluated_once(smollm2: Model, decoded: list[tuple[Segment, ...]]) -> None:
    choices = [pair(smollm2, TEXT * 3, f" {word}") for word in ("Boats", "Trees", "Nobody", "Everything")]
    smollm2.logprobs(choices, 4)
    assert n_tokens(decoded) < len(choices[0][0]) + sum(len(continuation) + 1 for _, continuation in choices)


def test_requests_that_cannot_be_scored(smollm2: Model, tiny: Callable[..., Path]) -> None:
    empties: list[tuple[list[int], list[int]]] = [([], [1]), ([1], [])]
    for empty in empties:
        with pytest.raises(ValueError, match="pair 1"):
            smollm2.logprobs([([1], [2]), empty])
    with pytest.raises(ContextOverflowError):
        score(RowReader(Context(smollm2.weights, 256, 1)), [([1] * 200, [2] * 300)])
    assert smollm2.logprobs([]) == []
    broken = load_model(str(tiny(scale=float("nan"))))
    with pytest.raises(GenerationError, match="NaN"):
        broken.logprobs([([1], [2])])


# Rows of logits, beside those of one sequence at a time


@pytest.fixture(scope="module")
def tiny_model(tiny_path: Path) -> Model:
    return load_model(tiny_path, n_ctx=64, trust=True)


@pytest.mark.slow
def test_rows_are_those_of_one_sequence_at_a_time(tiny_model: Model) -> None:
    """More sequences than slots, with a common prefix and without; then others in the same cache."""
    prompt = tiny_model.prompt_tokens("Name one country in Africa.")
    first = [([*prompt, *range(300, 300 + n), 40 + n], 1 + n) for n in range(6)]
    second = [([*prompt, 300, 301, 302, 7, 8], 2), ([9, 10, 11], 3)]
    with tiny_model.rows(64, 3, 8) as rows:
        found = [{row[:2]: row.logits.copy() for row in rows(batch)} for batch in (first, second)]
    for batch, logits in zip((first, second), found, strict=True):
        ends = {(i, len(tokens) - k) for i, (tokens, n_rows) in enumerate(batch) for k in range(n_rows)}
        assert logits.keys() == ends
        for (i, n_tokens), row in logits.items():
            assert row == pytest.approx(tiny_model.logits(batch[i][0][:n_tokens]), abs=1e-2)


def test_a_prefix_of_an_earlier_call_is_not_evaluated_again(
    tiny_model: Model, decoded: list[tuple[Segment, ...]]
) -> None:
    prompt = list(range(1, 30))
    with tiny_model.rows(64, 4) as rows:
        list(rows([(prompt, 1)]))
        list(rows(((*prompt, token), 1) for token in (3, 4, 5, 6)))
    assert n_tokens(decoded) == len(prompt) + 4


def test_what_cannot_be_evaluated(tiny_model: Model) -> None:
    with tiny_model.rows(64, 2) as rows:
        with pytest.raises(ContextOverflowError):
            list(rows([([1, 2], 1), ([1] * 300, 1)]))
        assert len(list(rows([([1, 2], 1)]))) == 1, "the slots are free again"
