"""Fixtures for the tests of llama.cpp: the embedded model without the layers above."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from mink_local.llama.context import Context, Segment
from mink_local.llama.weights import Weights
from tests.support.logits import embedded_logits

Generate = Callable[..., list[int]]


@pytest.fixture(scope="session")
def weights(smollm2_path: Path) -> Weights:
    """The embedded model's weights."""
    return Weights(smollm2_path)


@pytest.fixture(scope="session")
def tiny_weights(tiny_path: Path) -> Weights:
    """Weights of a one-layer model with random weights, which evaluates a token instantly."""
    return Weights(tiny_path)


@pytest.fixture(scope="session")
def rows() -> NDArray[np.float32]:
    """Logits of the embedded model over the steps of a text, (16, V)."""
    return embedded_logits()[:16].copy()


@pytest.fixture
def generate(weights: Weights) -> Generate:
    """`generate(sample, prompt, n_tokens)` samples by `sample(logits, step)` until the text ends."""
    context = Context(weights, 512, 1)

    def generate(sample: Callable[..., int], prompt: list[int], n_tokens: int) -> list[int]:
        context.clear()
        context.decode(Segment(prompt, 0))
        tokens: list[int] = []
        while len(tokens) < n_tokens:
            token = sample(context.rows[-1], len(tokens) + 1)
            if token in weights.end_tokens:
                break
            tokens.append(token)
            context.decode(Segment([token], len(prompt) + len(tokens) - 1))
        return tokens

    return generate
