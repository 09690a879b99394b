"""Log-probabilities of the prompt's tokens are those of `Model.logprobs`, alone and beside other requests."""

from itertools import count
from typing import Any

import numpy as np
import pytest

from mink_local import load_model
from mink_local.generation.answer import Answer
from mink_local.generation.model import Model
from mink_local.generation.request import Request, SamplingParams
from tests.conftest import forget
from tests.generation.conftest import run

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
    (scored,) = model.logprobs([(prompt[:1], prompt[1:])], 1)
    return scored.logprobs


def request(prompt: Any, **options: Any) -> Request:
    return Request(prompt, SamplingParams(temperature=0.0, **options))


def assert_recorded(answer: Answer, expected: list[float], tolerance: float) -> None:
    first, *others = answer.prompt_logprobs
    assert first is None
    assert len(others) == len(expected)
    assert np.abs(np.subtract(others, expected)).max() < tolerance  # type: ignore[arg-type]
    assert len(answer.prompt_top_logprobs) == len(answer.prompt_logprobs)


def test_alone_they_are_those_of_logprobs(model: Model, prompt: list[int], expected: list[float]) -> None:
    engine = forget(model).engine
    answer = engine.submit(request(prompt, max_tokens=1, prompt_logprobs=2))
    run(engine)
    assert_recorded(answer, expected, 1e-3)
    assert answer.evaluated_tokens == answer.prompt_tokens
    start = len(model.prompt_tokens(CONTEXT))
    (scored,) = model.logprobs([(prompt[:start], prompt[start:])], 1)
    assert sum(answer.prompt_logprobs[start:]) == pytest.approx(scored.total, abs=1e-3)  # type: ignore[arg-type]
    assert answer.prompt_top_logprobs[0] == ()
    for token, logprob, top in zip(
        prompt[1:], answer.prompt_logprobs[1:], answer.prompt_top_logprobs[1:], strict=True
    ):
        assert len(top) == 2
        assert dict(top).get(token, logprob) == pytest.approx(logprob, abs=1e-6)


def test_they_need_no_context_of_their_own(prompt: list[int], expected: list[float]) -> None:
    """With one row of logits for each slot, a batch has only a few of the prompt's tokens."""
    model = load_model("smollm2-135m", n_ctx=512, n_parallel=3)
    answer = model.engine.submit(request(prompt, max_tokens=4, prompt_logprobs=0))
    plain = model.engine.submit(request(CONTEXT, max_tokens=20))
    run(model.engine)
    # llama.cpp's logits depend on what is evaluated together, a 4-bit model's more than others.
    assert_recorded(answer, expected, 0.6)
    assert set(answer.prompt_top_logprobs) == {()}
    assert (answer.n_tokens, plain.n_tokens) == (4, 20)
    assert plain.prompt_logprobs == []


def test_beside_other_requests_and_after_them(model: Model, prompt: list[int], expected: list[float]) -> None:
    """All logits are needed, so neither a cached prompt nor another answer's slot is reused.

    An answer without them shares the slot of one with them.
    """
    engine = forget(model).engine
    plain = request(prompt, max_tokens=8)
    before = engine.submit(plain)
    run(engine)
    recorded = [engine.submit(request(prompt, max_tokens=8, prompt_logprobs=0)) for _ in range(2)]
    others = [engine.submit(plain), engine.submit(request(CONTEXT, max_tokens=30))]
    run(engine)
    for answer in recorded:
        assert_recorded(answer, expected, 0.6)
        assert answer.evaluated_tokens == answer.prompt_tokens
    assert {answer.text for answer in [*recorded, others[0]]} == {before.text}
    assert others[0].evaluated_tokens == 0


def test_a_row_with_a_nan_ends_one_answer(
    model: Model, prompt: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = forget(model).engine
    with_them = engine.submit(request(prompt, max_tokens=5, prompt_logprobs=0))
    sharing = engine.submit(request(prompt, max_tokens=5))
    rows = count()
    logits = type(engine.context).logits

    def damaged(self: Any, output: int = -1) -> Any:
        row = logits(self, output)
        return np.full_like(row, np.nan) if next(rows) == 2 else row

    monkeypatch.setattr(type(engine.context), "logits", damaged)
    run(engine)
    assert with_them.finish_reason == "error"
    assert "NaN" in str(with_them.error)
    assert (with_them.n_tokens, len(with_them.prompt_logprobs)) == (0, 3)
    assert (sharing.n_tokens, sharing.finish_reason) == (5, "length")
