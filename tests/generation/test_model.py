"""Generation with the real model, and with small ones that go wrong."""

import gc
import json
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from mink_local import Constraints, MinK, load_model
from mink_local.errors import ContextOverflowError, GenerationError
from mink_local.generation.answer import Piece
from mink_local.generation.decoding import Decoding
from mink_local.generation.model import Model
from mink_local.generation.text import TextStream
from mink_local.llama.context import Segment
from mink_local.llama.token_sampler import TokenSampler
from mink_local.samplers import Greedy
from tests.conftest import forget

STORY = [{"role": "user", "content": "Tell me a story about a dog named Max."}]
FRANCE = [{"role": "user", "content": "What is the capital of France?"}]


def rerun(code: str, *arguments: str) -> str:
    """What a new Python process prints."""
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True
    ).stdout


SAME = """
import json, sys
from mink_local import load_model
messages, temperature, seed = json.loads(sys.argv[1])
model = load_model("smollm2-135m", n_ctx=1024)
reply = model.chat(messages, temperature=temperature, seed=seed, max_tokens=30)
print(json.dumps(["".join(reply), reply.k]))
"""


@pytest.mark.parametrize(("temperature", "seed"), [(5.0, 1), pytest.param(0.0, 3, marks=pytest.mark.slow)])
def test_same_seed_same_text_in_any_process(smollm2: Model, temperature: float, seed: int) -> None:
    reply = forget(smollm2).chat(STORY, temperature=temperature, seed=seed, max_tokens=30)
    here = ["".join(reply), reply.k]
    there = rerun(SAME, json.dumps([STORY, temperature, seed]))
    assert json.loads(there) == here


def test_other_seed_other_text(smollm2: Model) -> None:
    texts = {"".join(smollm2.chat(STORY, temperature=5.0, seed=s, max_tokens=25)) for s in range(3)}
    assert len(texts) == 3
    seeds = {smollm2.chat(STORY).seed for _ in range(5)}
    assert len(seeds) == 5


def test_every_token_is_a_candidate_of_its_step(smollm2_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At T = 1000 sampling is nearly uniform over the candidates, and never leaves them."""
    model = load_model(str(smollm2_path), n_ctx=512, backend_sampling=False)
    reply = model.chat(STORY, temperature=1000.0, seed=1, max_tokens=40)
    allowed: list[list[int]] = []
    sample = Decoding.sample

    def watched(self: Decoding, logits: NDArray[np.float32]) -> Piece:
        allowed.append(MinK().candidates(logits)[0].tolist())
        return sample(self, logits)

    monkeypatch.setattr(Decoding, "sample", watched)
    drawn = [piece.token for piece in reply]
    assert len(drawn) >= 30
    assert all(token in ids for token, ids in zip(drawn, allowed, strict=False))
    assert any(token != ids[0] for token, ids in zip(drawn, allowed, strict=False))


def test_temperature_zero_is_greedy(smollm2: Model) -> None:
    greedy = "".join(smollm2.chat(STORY, sampler=Greedy(), temperature=1.0, max_tokens=20))
    cold = smollm2.chat(STORY, sampler=MinK(), temperature=0.0, max_tokens=20)
    assert "".join(cold) == greedy
    assert set(cold.k) == {1}


def test_only_new_tokens_are_evaluated(smollm2: Model) -> None:
    forget(smollm2)
    messages: list[dict[str, str]] = []
    held = 0  # tokens in the KV cache
    for question in ("Tell me a story about a dog.", "What happened next?", "Give it a title."):
        messages.append({"role": "user", "content": question})
        reply = smollm2.chat(messages, temperature=0.0, max_tokens=15)
        messages.append({"role": "assistant", "content": "".join(reply)})
        assert reply.evaluated_tokens == reply.prompt_tokens - held
        held = len(smollm2.engine.slots[0].tokens)
        assert held >= reply.prompt_tokens + reply.n_tokens - 1
    again = smollm2.chat(messages[:-1], temperature=0.0, max_tokens=15)
    assert "".join(again) == messages[-1]["content"]
    assert again.evaluated_tokens == 1


def test_a_reused_cache_gives_the_same_answer(smollm2: Model) -> None:
    turns = [*STORY, {"role": "assistant", "content": "Max was a dog."}, *FRANCE]
    fresh = "".join(forget(smollm2).chat(turns, temperature=0.0, max_tokens=15))
    "".join(forget(smollm2).chat(STORY, temperature=5.0, seed=1, max_tokens=15))
    "".join(smollm2.chat(turns[:1], temperature=0.0, max_tokens=10))
    assert "".join(smollm2.chat(turns, temperature=0.0, max_tokens=15)) == fresh


def test_finish_reasons(smollm2: Model) -> None:
    cut = smollm2.chat(STORY, temperature=0.0, max_tokens=5)
    assert cut.finish_reason is None
    "".join(cut)
    assert (cut.n_tokens, len(cut.k)) == (5, 5)
    assert str(cut.finish_reason) == "length"
    whole = smollm2.chat([{"role": "user", "content": "Say hello."}], temperature=0.0)
    "".join(whole)
    assert whole.finish_reason == "stop"
    assert len(whole.k) == whole.n_tokens


def test_stop_strings(smollm2: Model) -> None:
    whole = "".join(smollm2.chat(STORY, temperature=0.0, max_tokens=20))
    for stop in (whole[20:29], whole[5], whole[30:50]):
        reply = smollm2.chat(STORY, temperature=0.0, max_tokens=20, stop=["never to be seen", stop])
        pieces = list(reply)
        assert "".join(pieces) == whole[: whole.index(stop)]
        assert reply.finish_reason == "stop"
    longer = smollm2.chat(STORY, temperature=0.0, max_tokens=20, stop=[whole[-3:] + "…"])
    assert "".join(longer) == whole  # what was held back for a stop string comes after all
    assert longer.finish_reason == "length"


def test_context_full(tiny: Callable[..., Path]) -> None:
    model = load_model(str(tiny(n_ctx_train=256)))
    assert model.n_ctx == 256
    reply = model.chat(FRANCE, temperature=0.0)
    "".join(reply)
    assert (reply.finish_reason, reply.prompt_tokens + reply.n_tokens) == ("length", 256)
    with pytest.raises(ContextOverflowError, match="256"):
        model.chat([{"role": "user", "content": "word " * 300}])
    "".join(model.chat(FRANCE, temperature=0.0, max_tokens=3))  # and goes on


@pytest.mark.slow
def test_prompt_of_several_batches(smollm2: Model) -> None:
    long = [{"role": "user", "content": "one two three four five six seven " * 90}]
    reply = forget(smollm2).chat(long, temperature=0.0, max_tokens=4)
    whole = "".join(reply)
    assert reply.evaluated_tokens == reply.prompt_tokens > 600
    assert "".join(smollm2.chat(long, temperature=0.0, max_tokens=4)) == whole


@pytest.mark.cpu
@pytest.mark.parametrize("seconds", [0.0, 0.4, pytest.param(0.9, marks=pytest.mark.slow)])
def test_interrupt_while_the_prompt_is_read(smollm2: Model, seconds: float) -> None:
    """The next answer is what it would have been, however far the prompt had come."""
    expected = "".join(forget(smollm2).chat(FRANCE, temperature=0.0, max_tokens=20))
    long = [{"role": "user", "content": "one two three four five six seven " * 120}]
    reply = forget(smollm2).chat(long, temperature=0.0)
    whole_prompt = reply.prompt_tokens
    timer = threading.Timer(seconds, reply.interrupt)
    timer.start()
    list(reply)
    timer.join()
    assert reply.finish_reason == "interrupted"
    assert len(smollm2.engine.slots[0].tokens) < whole_prompt
    assert "".join(smollm2.chat(FRANCE, temperature=0.0, max_tokens=20)) == expected


def test_interrupt_while_it_answers(smollm2: Model) -> None:
    reply = smollm2.chat(STORY, temperature=5.0, seed=1)
    for _ in range(5):
        next(reply)
    reply.interrupt()
    assert "".join(reply) == ""
    assert reply.finish_reason == "interrupted"


@pytest.mark.parametrize("options", [{"temperature": 0.0}, {"temperature": 5.0}, {"ignore_eos": True}])
def test_nan_logits_stop_the_generation(tiny: Callable[..., Path], options: dict[str, Any]) -> None:
    with load_model(tiny(scale=float("nan"))) as model, pytest.raises(GenerationError, match=r"NaN.*step 1"):
        model.chat(FRANCE, **options).read()


def test_placement_says_where_and_why(smollm2: Model) -> None:
    """These tests may run where there is a GPU."""
    assert smollm2.placement.startswith(("on the CPU", "on the GPU", "on 127.0.0.1:"))
    if smollm2.placement.startswith("on the CPU"):
        assert "GPU" in smollm2.placement


@pytest.mark.slow
def test_models_are_freed_in_any_order(tiny: Callable[..., Path]) -> None:
    path = str(tiny())
    for _ in range(3):
        model = load_model(path, trust=True)
        reply = model.chat(FRANCE, temperature=5.0, seed=1, max_tokens=5)
        next(reply)
        weights, context = model.weights, model.engine.context
        del model
        assert list(reply)
        del reply, weights
        gc.collect()
        assert context.truncate(0)
        assert context.decode(Segment([1], 0))
        del context
        gc.collect()


CONSTRAINED: dict[str, Any] = {
    "temperature": 5.0,
    "seed": 3,
    "max_tokens": 6,
    "constraints": Constraints(grammar="root ::= [a-z ]*", repeat_penalty=1.2, dry_multiplier=0.5),
}


@pytest.mark.slow
def test_garbage_collection_in_the_middle_of_an_answer(smollm2: Model) -> None:
    """Whatever llama.cpp has pointers to is held by the answer."""
    undisturbed = "".join(forget(smollm2).chat(STORY, **CONSTRAINED))
    pieces = []
    for piece in forget(smollm2).chat(STORY, **CONSTRAINED):
        TokenSampler(MinK(), 1.0, 1, 1000)  # takes the memory that is free again
        gc.collect()
        pieces.append(piece)
    assert "".join(pieces) == undisturbed


@pytest.mark.slow
def test_an_answer_outlives_its_model_and_the_other_way_round(smollm2: Model) -> None:
    expected = "".join(forget(smollm2).chat(STORY, **CONSTRAINED))
    model = load_model("smollm2-135m", n_ctx=smollm2.n_ctx, n_threads=smollm2.engine.context.n_threads)
    reply = model.chat(STORY, **CONSTRAINED)
    first = next(reply)
    del reply
    gc.collect()
    reply = model.chat(STORY, **CONSTRAINED)
    assert next(reply) == first
    del model
    gc.collect()
    assert first + "".join(reply) == expected
    assert reply.text == expected


def test_utf8_comes_in_whole_characters(smollm2: Model) -> None:
    """Characters that are several tokens: pieces are never broken, and all bytes arrive."""
    text = "naïve ½ 日本語 😀"
    tokens = smollm2.weights.tokenize(text, add_special=False, parse_special=False)
    assert len(tokens) > len(text) / 2
    assert any(not _is_utf8(smollm2.weights.piece(token)) for token in tokens)
    stream = TextStream()
    pieces = [stream.push(smollm2.weights.piece(token)) for token in tokens[:-1]]
    assert all(text.startswith("".join(pieces[:n])) for n in range(len(pieces)))
    half = "".join(pieces) + stream.close()
    assert half.endswith("\ufffd")
    whole = TextStream()
    assert "".join(whole.push(smollm2.weights.piece(token)) for token in tokens) + whole.close() == text


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True
