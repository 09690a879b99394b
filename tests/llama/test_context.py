"""Contexts: batches, outputs, interrupts, number formats of the KV cache, closing."""

import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from llama_cpp import llama_cpp as C

from mink_local.errors import GenerationError, ModelError
from mink_local.llama.constants import KV_TYPES, MAX_SEED, N_BATCH, N_SEQ_MAX, RANDOM_SEED
from mink_local.llama.context import Context, Segment
from mink_local.llama.weights import Weights
from tests.support.tiny import Shape


def test_constants_are_llama_cpps() -> None:
    assert (C.LLAMA_DEFAULT_SEED, C.llama_max_parallel_sequences()) == (RANDOM_SEED, N_SEQ_MAX)
    assert MAX_SEED == RANDOM_SEED - 1


def test_logits_of_outputs_only(tiny_weights: Weights) -> None:
    context = Context(tiny_weights, 64, 1, n_outputs=2)
    context.decode(Segment([5, 6, 7, 8], 0, n_outputs=2))
    before_last, last = context.logits(2).copy(), context.logits().copy()
    assert last.shape == (tiny_weights.n_vocab,)
    with pytest.raises(GenerationError, match="logits"):
        context.logits(0)
    context.clear()
    context.decode(Segment([5, 6, 7], 0))
    np.testing.assert_allclose(context.logits(), before_last, rtol=1e-3, atol=1e-4)
    context.decode(Segment([8], 3))
    np.testing.assert_allclose(context.logits(), last, rtol=1e-3, atol=1e-4)


def test_sequences_are_copied_and_truncated(tiny_weights: Weights) -> None:
    context = Context(tiny_weights, 64, 1, n_seq=2)
    context.decode(Segment([5, 6, 7], 0))
    context.copy(0, 1)
    context.decode(Segment([8], 3, 0), Segment([8], 3, 1))
    assert np.array_equal(context.logits(0), context.logits(1))
    assert context.truncate(2, 1)
    context.decode(Segment([9], 2, 1))
    truncated = context.logits().copy()
    context.clear(0)
    context.decode(Segment([5, 6], 0))
    context.decode(Segment([9], 2))
    np.testing.assert_allclose(truncated, context.logits(), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("kv_type", KV_TYPES)
def test_every_number_format_of_the_cache_answers(weights: Weights, kv_type: str) -> None:
    tokens = weights.tokenize("The capital of France is", add_special=True, parse_special=False)
    context = Context(weights, 256, 1, kv_type=kv_type)
    context.decode(Segment(tokens, 0))
    assert weights.piece(int(context.logits().argmax())) == b" Paris"


def test_q8_0_takes_half_the_memory_of_f16(tiny_weights: Weights) -> None:
    def state_size(kv_type: str) -> int:
        context = Context(tiny_weights, 1024, 1, kv_type=kv_type)
        empty = C.llama_state_get_size(context.handle)
        context.decode(Segment([5] * N_BATCH, 0))
        context.decode(Segment([6] * 500, N_BATCH))
        return int(C.llama_state_get_size(context.handle) - empty)

    assert state_size("q8_0") / state_size("f16") == pytest.approx(34 / 64, rel=0.1)


def test_flash_attention_changes_little(weights: Weights) -> None:
    rows = []
    for flash_attn in (False, True):
        context = Context(weights, 64, 1, flash_attn=flash_attn)
        context.decode(Segment(list(range(50, 70)), 0))
        rows.append(context.logits().copy())
    assert np.abs(rows[0] - rows[1]).max() < 2  # of logits with a range of 40
    assert rows[0].argmax() == rows[1].argmax()
    assert not np.array_equal(rows[0], rows[1])


def test_llama_cpp_says_why_it_makes_no_context(tiny: Callable[..., Path]) -> None:
    narrow = Weights(tiny(shape=Shape(head_width=16)))
    with pytest.raises(ModelError, match=r"1 x 64 .*q8_0"):
        Context(narrow, 64, 1, kv_type="q8_0")


def test_an_interrupt_from_another_thread_ends_a_batch_in_the_middle(weights: Weights) -> None:
    context = Context(weights, 1024, 1)

    def interrupt() -> None:
        context.interrupted = True

    timer = threading.Timer(0.01, interrupt)
    timer.start()
    assert not context.decode(Segment(list(range(100, 600)), 0))  # the whole batch takes a second
    timer.join()
    assert not context.decode(Segment([1], 0))
    context.interrupted = False
    context.clear()
    assert context.decode(Segment([1], 0))


def test_a_failure_is_an_error_with_llama_cpps_reason(tiny_weights: Weights) -> None:
    context = Context(tiny_weights, 64, 1)
    with pytest.raises(GenerationError, match="status -1"):
        context.decode(Segment([1], 5, seq_id=9))
