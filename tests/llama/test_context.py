"""Weights and contexts: batches, interrupts, number formats of the KV cache, refused files, closing, logs."""

import gc
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from llama_cpp import llama_cpp as C
from numpy.typing import NDArray

from mink_local import load_model
from mink_local.errors import GenerationError, ModelError
from mink_local.llama.constants import KV_TYPES, N_SEQ_MAX, RANDOM_SEED
from mink_local.llama.context import Context, Segment
from mink_local.llama.weights import Weights
from tests.support.python import output_of, run_python
from tests.support.tiny import Shape, write_embedding_model


def test_constants_are_llama_cpps() -> None:
    assert (C.LLAMA_DEFAULT_SEED, C.llama_max_parallel_sequences()) == (RANDOM_SEED, N_SEQ_MAX)


@pytest.mark.parametrize("kv_type", KV_TYPES)
def test_every_number_format_of_the_cache_answers(weights: Weights, kv_type: str) -> None:
    tokens = weights.tokenize("The capital of France is", add_special=True, parse_special=False)
    context = Context(weights, 256, 1, kv_type=kv_type)
    context.decode(Segment(tokens, 0))
    assert weights.piece(int(context.rows[-1].argmax())) == b" Paris"


def test_flash_attention_changes_little(weights: Weights) -> None:
    rows = []
    for flash_attn in (False, True):
        context = Context(weights, 64, 1, flash_attn=flash_attn)
        context.decode(Segment(list(range(50, 70)), 0))
        rows.append(context.rows[-1].copy())
    assert np.abs(rows[0] - rows[1]).max() < 2  # of logits with a range of 40
    assert rows[0].argmax() == rows[1].argmax()
    assert not np.array_equal(rows[0], rows[1])


def test_llama_cpp_says_why_it_makes_no_context(tiny: Callable[..., Path]) -> None:
    narrow = Weights(tiny(shape=Shape(head_width=16)))
    with pytest.raises(ModelError, match=r"1 x 256 .*q8_0"):
        Context(narrow, 256, 1, kv_type="q8_0")


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


# Weights: refused files, the vocabulary, closing a model, and logs


def test_the_vocabulary(weights: Weights) -> None:
    text = "Größe, 猫 and <|im_end|>\n"
    tokens = weights.tokenize(text, add_special=False, parse_special=False)
    assert b"".join(map(weights.piece, tokens)).decode() == text
    end = weights.tokenize("<|im_end|>", add_special=False, parse_special=True)
    assert len(end) == 1
    assert weights.piece(end[0]) == b""
    assert weights.token_text(end[0]) == weights.eos == "<|im_end|>"
    assert "<|im_end|>" in weights.control_tokens
    assert weights.token_text(-1) == ""

    assert {weights.token_text(token) for token in weights.end_tokens} >= {"<|im_end|>", "<|endoftext|>"}


def test_other_files_are_refused_with_llama_cpps_reason(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"missing\.gguf.*failed"):
        Weights(tmp_path / "missing.gguf")
    (tmp_path / "text.gguf").write_text("no model at all")
    with pytest.raises(ModelError, match=r"text\.gguf.*magic"):
        Weights(tmp_path / "text.gguf")
    with pytest.raises(ModelError, match=r"bert\.gguf"):
        Context(Weights(write_embedding_model(tmp_path / "bert.gguf")), 64, 1)


def test_close_frees_contexts_first_and_may_be_called_again(tiny: Callable[..., Path]) -> None:
    weights = Weights(tiny())
    contexts = [Context(weights, 64, 1) for _ in range(2)]
    weights.close()
    weights.close()
    assert weights.is_closed
    assert all(context.is_closed for context in contexts)
    with pytest.raises(ModelError, match="tiny is closed"):
        Context(weights, 64, 1)
    contexts[0].close()
    del weights, contexts
    gc.collect()


LOGS = """
import ctypes, logging, sys
from pathlib import Path
from llama_cpp import Llama
from llama_cpp import llama_cpp as C
from numpy.typing import NDArray
from mink_local.llama.weights import Weights
path = sys.argv[1]
heard = []
if sys.argv[2] == "own callback":
    callback = C.llama_log_callback(lambda level, text, _: heard.append(text))
    C.llama_log_set(callback, None)
quiet = Weights(Path(path))
if sys.argv[2] == "own callback":
    print(len(heard))
    C.llama_model_free(C.llama_model_load_from_file(path.encode(), C.llama_model_default_params()))
    print(len(heard) > 50)
elif sys.argv[2] == "verbose":
    loud = Weights(Path(path), verbose=True)
    print("loud", file=sys.stderr)
    Weights(Path(path))
else:
    Llama(path, n_ctx=64, verbose=True)
"""


def test_an_embedder_hears_all_but_our_calls(tiny_path: Path) -> None:
    """By a callback, or by a model that is verbose, after ours."""
    assert output_of("-c", LOGS, tiny_path, "own callback") == "0\nTrue\n"
    assert "llama_model_loader" in run_python("-c", LOGS, tiny_path, "Llama").succeeded().stderr


def test_verbose_is_of_one_model(tiny_path: Path) -> None:
    before, _, after = run_python("-c", LOGS, tiny_path, "verbose").succeeded().stderr.partition("loud\n")
    assert "llama_model_loader" in before
    assert after == ""


def test_a_context_of_a_token_takes_a_batch_of_all_sequences(tiny_path: Path) -> None:
    with load_model(tiny_path, n_ctx=1, n_parallel=8, trust=True) as model:
        prompts = [f"Hi {i}" for i in range(9)]
        answers = list(model.generate(prompts, max_tokens=3, temperature=0.0))
    assert {(answer.n_tokens, answer.finish_reason) for answer in answers} == {(3, "length")}


def test_a_copy_that_waits_for_a_batch_is_neither_saved_nor_replaced(
    weights: Weights,
) -> None:
    context = Context(weights, 256, 2, n_seq=2)
    first, second = [*range(100, 140)], [*range(200, 260)]

    def fill(tokens: list[int], seq_id: int) -> None:
        context.clear(seq_id)
        assert context.decode(Segment(tokens, 0, seq_id, 1))

    def row_after(tokens: list[int], seq_id: int) -> NDArray[np.float32]:
        assert context.decode(Segment([5], len(tokens), seq_id, 1))
        row: NDArray[np.float32] = context.rows[0].copy()
        context.truncate(len(tokens), seq_id)
        return row

    fill(second, 0)
    expected = row_after(second, 0)
    snapshot = np.frombuffer(context.snapshot(second, 0), np.uint8)
    fill(first, 0)
    context.copy(0, 1)
    assert (context.is_copied(0), context.is_copied(1)) == (True, False)
    for seq_id in range(2):  # what the batch copied would be the old keys and values, or go to the new ones
        assert not context.may_restore(snapshot, seq_id)
    fill(first, 0)
    assert context.is_copied(1)
    assert context.may_restore(snapshot, 1)
    assert context.restore(snapshot, 1) == (second, {})
    fill(first, 0)
    np.testing.assert_allclose(row_after(second, 1), expected, atol=1e-3)
