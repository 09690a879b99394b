"""Generation with the real model, and with small models that fail; a KV cache on disk."""

import gc
import json
import weakref
from collections.abc import Callable
from itertools import count
from pathlib import Path
from threading import Event, Lock
from typing import Any

import pytest

from mink_local import Constraints, MinK, SamplingParams, load_model
from mink_local.errors import ContextOverflowError, GenerationError
from mink_local.generation.model import Model
from mink_local.llama.constants import MAX_SEED, RANDOM_SEED
from mink_local.llama.context import Context, Next, Segment
from mink_local.samplers import Greedy
from tests.conftest import forget
from tests.generation.conftest import FRANCE, STORY, answered
from tests.support.http import until
from tests.support.python import output_of

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
    there = output_of("-c", SAME, json.dumps([STORY, temperature, seed]))
    assert json.loads(there) == here


def test_every_token_is_a_candidate_of_its_step(smollm2: Model) -> None:
    """At T = 1000 sampling is nearly uniform over the candidates, and never leaves them."""
    allowed: list[list[int]] = []
    reply = smollm2.chat(
        STORY,
        temperature=1000.0,
        seed=1,
        max_tokens=40,
        watch=lambda row: allowed.append(MinK().candidates(row)[0].tolist()),
    )
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
        held = len(smollm2.core.engine.slots[0].tokens)
        assert held >= reply.prompt_tokens + reply.n_tokens - 1
    again = smollm2.chat(messages[:-1], temperature=0.0, max_tokens=15)
    assert "".join(again) == messages[-1]["content"]
    assert again.evaluated_tokens == 1


def test_finish_reasons(smollm2: Model) -> None:
    cut = answered(smollm2, STORY, temperature=0.0, max_tokens=5)
    whole = answered(smollm2, "What is 2 + 2?", temperature=0.0)
    stopped = answered(smollm2, STORY, temperature=0.0, stop_token_ids=[cut.tokens[3]])
    assert [(reply.finish_reason, reply.stopped_by) for reply in (cut, whole, stopped)] == [
        ("length", None),
        ("stop", None),
        ("stop", cut.tokens[3]),
    ]
    assert len(cut.k) == cut.n_tokens == 5
    assert len(whole.k) == whole.n_tokens
    assert whole.usage == {
        "prompt_tokens": whole.prompt_tokens,
        "completion_tokens": len(whole.tokens),
        "total_tokens": whole.prompt_tokens + len(whole.tokens),
    }


def test_context_full(tiny: Callable[..., Path]) -> None:
    model = load_model(str(tiny(n_ctx_train=256)))
    assert model.n_ctx == 256
    reply = answered(model, FRANCE, temperature=0.0)
    assert (reply.finish_reason, reply.prompt_tokens + reply.n_tokens) == ("length", 256)
    for much in ("word " * 300, "\0" * 20_000_000):  # which no template renders in time
        with pytest.raises(ContextOverflowError, match="256"):
            model.chat(much)
    with pytest.raises(ContextOverflowError):
        model.complete("<|im_end|>" * 100_000)
    assert model.count_tokens("<|im_end|>" * 100_000) == 100_000, "llama.cpp alone takes minutes"
    "".join(model.chat(FRANCE, temperature=0.0, max_tokens=3))  # the model still works


@pytest.mark.cpu
@pytest.mark.parametrize("n_batches", [0, 1])
def test_interrupt_during_prefill(smollm2: Model, monkeypatch: pytest.MonkeyPatch, n_batches: int) -> None:
    """The next answer is right, however much of the prompt has been evaluated."""
    model, decode, batches, is_asked = forget(smollm2), Context.decode, count(), Event()

    def interrupting(self: Context, *parts: Segment, following: Next) -> bool:
        if next(batches) == n_batches and is_asked.wait(60):
            reply.interrupt()
        return decode(self, *parts, following=following)

    with monkeypatch.context() as patch:
        patch.setattr(Context, "decode", interrupting)
        reply = model.chat("one two three four five six seven " * 120, temperature=0.0)
        is_asked.set()
        reply.read()
    assert reply.finish_reason == "interrupted"
    assert len(smollm2.core.engine.slots[0].tokens) < reply.prompt_tokens
    assert "12 times 12 is" in smollm2.chat("What is 12 times 12?", temperature=0.0, max_tokens=20).read()


@pytest.mark.parametrize("options", [{"temperature": 0.0}, {"temperature": 5.0}, {"ignore_eos": True}])
def test_nan_logits_stop_the_generation(tiny: Callable[..., Path], options: dict[str, Any]) -> None:
    with load_model(tiny(scale=float("nan"))) as model, pytest.raises(GenerationError, match=r"NaN.*step 1"):
        model.chat(FRANCE, **options).read()


@pytest.mark.slow
def test_models_are_freed_in_any_order(tiny: Callable[..., Path]) -> None:
    path = str(tiny())
    constraints = Constraints(grammar="root ::= [a-z ]*", repeat_penalty=1.2, dry_multiplier=0.5)
    for _ in range(3):
        model = load_model(path, trust=True)
        reply = model.chat(FRANCE, temperature=5.0, seed=1, max_tokens=5, constraints=constraints)
        next(reply)
        weights, context, join = model.weights, model.core.engine.context, model.core.thread._thread.join
        del model
        assert list(reply)
        del reply, weights
        join()
        gc.collect()
        assert context.truncate(0)
        assert context.decode(Segment([1], 0))
        del context
        gc.collect()


def test_dropping_a_model_waits_for_nothing_and_frees_all(tiny_path: Path) -> None:
    """Not for its thread, which may wait for who drops it; nor for the garbage collection."""
    lock, entered, has_locked = Lock(), Event(), []

    def watch(_: object) -> None:
        entered.set()
        has_locked.append(lock.acquire(timeout=10))

    model = load_model(tiny_path, n_ctx=256)
    model.chat("Hi", max_tokens=2).read()
    parts = [weakref.ref(part) for part in (model.weights, model.core.engine.context, model._template)]
    gc.disable()
    try:
        with lock:
            reply = model.chat("Hi", watch=watch, max_tokens=1)
            assert entered.wait(60)
            del reply, model
        until(lambda: not any(part() for part in parts))
    finally:
        gc.enable()
    assert has_locked == [True]


def test_utf8_comes_in_whole_characters(smollm2: Model) -> None:
    """No piece ends inside a character, and all bytes arrive, also those of characters of several tokens."""
    text = "naïve ½ 日本語 😀"
    tokens = smollm2.tokenize(text)
    assert len(tokens) > len(text) / 2
    pieces = smollm2.token_texts(tokens)
    assert all(text.startswith("".join(pieces[:n])) for n in range(len(pieces)))
    assert smollm2.detokenize(tokens) == text
    assert smollm2.detokenize(smollm2.tokenize("<|im_end|>")) == "<|im_end|>"  # not the control token
    assert smollm2.detokenize(tokens[:-1]).endswith("\ufffd")


# A KV cache on disk: a conversation goes on as if the model had stayed loaded


TURNS = [{"role": "user", "content": "Tell me a story about a dog and a cat."}]
GREEDY = SamplingParams(temperature=0, max_tokens=12)
LARGE = 1 << 30


@pytest.fixture(scope="module")
def saved(smollm2: Model, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int, list[int]]:
    """A file with an answered conversation, its number of tokens, and how the model went on with it."""
    path = tmp_path_factory.mktemp("kv") / "cache"
    forget(smollm2).chat(TURNS, GREEDY).read()
    assert smollm2.save_cache(path, LARGE)
    next_answer = answered(smollm2, [*TURNS, *_more(smollm2)], GREEDY)
    return path, smollm2.load_cache(path), next_answer.tokens


def _more(model: Model) -> list[dict[str, str]]:
    answer = model.chat(TURNS, GREEDY).read()
    return [{"role": "assistant", "content": answer}, {"role": "user", "content": "And then?"}]


def test_the_last_answer_is_kept_not_the_longest(tiny_path: Path, tmp_path: Path) -> None:
    with load_model(tiny_path, n_ctx=256, n_parallel=3, trust=True, n_threads=1) as model:
        answered(model, "A long story. " * 20, max_tokens=5, ignore_eos=True)
        last = answered(model, "Hi", max_tokens=5, ignore_eos=True)
        n_tokens = last.prompt_tokens + last.n_tokens - 1
        assert model.n_cached == n_tokens
        assert model.save_cache(tmp_path / "last", LARGE)
        answered(model, "Another. " * 10, max_tokens=5)
        assert model.load_cache(tmp_path / "last") == model.n_cached == n_tokens


def test_another_process_goes_on_with_it(smollm2: Model, saved: tuple[Path, int, list[int]]) -> None:
    path, n_tokens, expected = saved
    more = _more(smollm2)
    smollm2.reserve(512)  # an empty cache, of another length
    try:
        assert smollm2.load_cache(path) == n_tokens
        answer = answered(smollm2, [*TURNS, *more], GREEDY)
        assert answer.tokens == expected
        assert answer.evaluated_tokens < answer.prompt_tokens - 20
        assert smollm2.load_cache(path) == n_tokens
        other = smollm2.chat("Tell me a joke.", GREEDY)  # only the beginning is the same
        assert other.read() == forget(smollm2).chat("Tell me a joke.", GREEDY).read()
    finally:
        smollm2.reserve(1024)


def test_what_does_not_fit_is_ignored(
    smollm2: Model, saved: tuple[Path, int, list[int]], tiny: Callable[..., Path], tmp_path: Path
) -> None:
    path, _, _ = saved
    data = path.read_bytes()
    damaged = {
        "missing": None,
        "empty": b"",
        "text": b"no cache at all" * 99,
        "cut": data[: len(data) // 2],
        "header": b"\0" * 8 + data[8:],
        "count": data[:8] + b"\xff\xff\xff\x7f" + data[12:],
    }
    for name, content in damaged.items():
        file = tmp_path / name
        if content is not None:
            file.write_bytes(content)
        assert smollm2.load_cache(file) == 0, name
    smollm2.chat("word " * 300, max_tokens=1).read()
    assert smollm2.save_cache(tmp_path / "long", LARGE)
    cases: tuple[tuple[Path, dict[str, Any]], ...] = (
        (path, {"model": tiny()}),
        (path, {"kv_type": "q8_0"}),
        (tmp_path / "long", {}),
    )
    for file, options in cases:
        with load_model(**{"model": "smollm2-135m", "n_ctx": 256, **options}) as other:
            assert other.load_cache(file) == 0, options
            assert answered(other, "Hi", max_tokens=1).evaluated_tokens > 4


def test_what_is_not_written(smollm2: Model, tmp_path: Path) -> None:
    path = tmp_path / "cache"
    assert not forget(smollm2).save_cache(path, LARGE)
    smollm2.chat(TURNS, GREEDY).read()
    assert not smollm2.save_cache(path, 1000)
    with pytest.raises(OSError, match="no-folder"):
        smollm2.save_cache(tmp_path / "no-folder" / "cache", LARGE)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("seed", [RANDOM_SEED, 2**63, MAX_SEED])
def test_the_remainder_of_a_large_seed_counts(smollm2: Model, seed: int) -> None:
    """As mink-serve takes it."""
    large, small = (smollm2.chat(STORY, seed=each, max_tokens=8) for each in (seed, seed % RANDOM_SEED))
    assert large.read() == small.read()
    assert large.seed == small.seed == seed % RANDOM_SEED
