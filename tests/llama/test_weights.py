"""Weights: refused files, the vocabulary, closing a model, and logs."""

import gc
from collections.abc import Callable
from pathlib import Path

import pytest

from mink_local.errors import GenerationError, ModelError
from mink_local.llama.context import Context, Segment
from mink_local.llama.weights import Weights
from tests.support.python import run_python
from tests.support.tiny import write_embedding_model


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


def test_end_tokens(weights: Weights) -> None:
    assert {weights.token_text(token) for token in weights.end_tokens} >= {"<|im_end|>", "<|endoftext|>"}
    assert [token for token in range(100) if weights.ends_generation(token)] == sorted(weights.end_tokens)


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
    assert all(context.handle is None for context in contexts)
    with pytest.raises(GenerationError, match=r"tiny\.gguf"):
        weights.tokenize("Hello", add_special=True, parse_special=False)
    with pytest.raises(ModelError, match=r"tiny\.gguf"):
        Context(weights, 64, 1)
    contexts[0].close()
    with pytest.raises(GenerationError, match="closed"):
        contexts[0].decode(Segment([1], 0))
    del weights, contexts
    gc.collect()


LOGS = """
import ctypes, logging, sys
from pathlib import Path
from llama_cpp import Llama
from llama_cpp import llama_cpp as C
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


def logs(case: str, path: Path) -> tuple[str, str]:
    child = run_python("-c", LOGS, path, case)
    assert child.returncode == 0, child.stderr
    return child.stdout, child.stderr


def test_an_embedders_callback_hears_all_but_our_calls(tiny_path: Path) -> None:
    assert logs("own callback", tiny_path)[0] == "0\nTrue\n"


def test_an_embedders_verbose_model_is_heard_after_ours(tiny_path: Path) -> None:
    assert "llama_model_loader" in logs("Llama", tiny_path)[1]


def test_verbose_is_of_one_model(tiny_path: Path) -> None:
    before, _, after = logs("verbose", tiny_path)[1].partition("loud\n")
    assert "llama_model_loader" in before
    assert after == ""
