"""What a program that embeds the package relies on: options, metadata, life and threads of a model."""

import asyncio
import threading
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from numpy.typing import NDArray

from mink_local import Constraints, MinK, load_model
from mink_local.errors import GenerationError, ModelError
from mink_local.generation.answer import Piece
from mink_local.generation.decoding import Decoding
from mink_local.generation.model import Model
from mink_local.generation.request import Request, SamplingOptions, SamplingParams
from tests.conftest import forget

STORY = [{"role": "user", "content": "Tell me a story about a dog named Max."}]
TWELVE = [{"role": "user", "content": "What is 12 times 12?"}]
FRANCE = [{"role": "user", "content": "What is the capital of France?"}]


def test_options_are_the_fields_of_sampling_params() -> None:
    assert list(SamplingOptions.__annotations__) == [field.name for field in fields(SamplingParams)]


def test_options_replace_those_of_the_params(smollm2: Model) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=3)
    reply = smollm2.chat(STORY, params, max_tokens=5)
    assert reply.request.params == SamplingParams(temperature=0.0, max_tokens=5)
    assert len(next(smollm2.generate([STORY], params)).tokens) == 3
    with pytest.raises(TypeError, match="temprature"):
        smollm2.chat(STORY, temprature=1.0)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"min_tokens": -1}, "min_tokens must be at least 0"),
        ({"logprobs": -1}, "logprobs must be at least 0"),
        ({"stop_token_ids": [10**6]}, "stop_token_ids has token 1000000: the model's are 0 to 49151"),
        ({"prefix": [5, -1]}, "prefix has token -1: the model's are 0 to 49151"),
    ],
)
def test_options_out_of_range(smollm2: Model, options: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        smollm2.chat(STORY, **options)


# Pieces and log-probabilities


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch) -> list[NDArray[np.float32]]:
    """The raw logits of every step."""
    seen: list[NDArray[np.float32]] = []
    sample = Decoding.sample

    def watched(self: Decoding, logits: NDArray[np.float32]) -> Piece:
        seen.append(logits.copy())
        return sample(self, logits)

    monkeypatch.setattr(Decoding, "sample", watched)
    return seen


def test_pieces_carry_their_step(smollm2: Model) -> None:
    reply = smollm2.chat(STORY, temperature=2.0, max_tokens=30, seed=3, stop=["never to be seen"])
    pieces = list(reply)
    assert "".join(pieces) == reply.text
    assert [piece.token for piece in pieces][: reply.n_tokens] == reply.tokens
    assert [piece.k for piece in pieces] == reply.k
    assert {piece.logprob for piece in pieces} == {None}
    assert reply.logprobs == []


def test_logprobs_are_those_of_the_model(smollm2: Model, rows: list[NDArray[np.float32]]) -> None:
    """Before temperature, cut and constraints; against float64 on the same rows."""
    params = SamplingParams(
        temperature=3.0, max_tokens=25, seed=1, logprobs=4, constraints=Constraints(presence_penalty=2.0)
    )
    reply = smollm2.chat(STORY, params)
    pieces = list(reply)
    assert len(reply.logprobs) == len(reply.top_logprobs) == reply.n_tokens == 25
    for row, token, logprob, top in zip(rows, reply.tokens, reply.logprobs, reply.top_logprobs, strict=True):
        exact = row.astype(np.float64)
        exact -= exact.max() + np.log(np.exp(exact - exact.max()).sum())
        assert logprob == pytest.approx(exact[token], abs=1e-9)
        assert [t for t, _ in top] == np.argsort(-row, kind="stable")[:4].tolist()
        assert [p for _, p in top] == pytest.approx([exact[t] for t, _ in top], abs=1e-9)
    assert [piece.logprob for piece in pieces] == reply.logprobs
    assert pieces[3].top_logprobs == reply.top_logprobs[3]
    bare = smollm2.chat(STORY, max_tokens=3, logprobs=0)
    bare.read()
    assert (len(bare.logprobs), bare.top_logprobs) == (3, [()] * 3)


@pytest.mark.cpu  # elsewhere they move the sampling to the host, which draws other numbers
def test_logprobs_change_no_token(smollm2: Model) -> None:
    plain = forget(smollm2).chat(STORY, temperature=5.0, max_tokens=20, seed=2).read()
    assert forget(smollm2).chat(STORY, temperature=5.0, max_tokens=20, seed=2, logprobs=20).read() == plain


# What ends an answer


def test_stop_tokens(smollm2: Model) -> None:
    whole = smollm2.chat(STORY, temperature=0.0, max_tokens=20)
    whole.read()
    token = whole.tokens[7]
    reply = smollm2.chat(STORY, temperature=0.0, max_tokens=20, stop_token_ids=[token])
    reply.read()
    assert reply.finish_reason == "stop"
    assert reply.tokens == whole.tokens[: whole.tokens.index(token)]


def test_min_tokens_and_ignore_eos(smollm2: Model) -> None:
    hello = [{"role": "user", "content": "Say hello."}]
    short = smollm2.chat(hello, temperature=0.0)
    short.read()
    assert short.finish_reason == "stop"
    n = short.n_tokens + 5
    longer = smollm2.chat(hello, temperature=0.0, min_tokens=n, max_tokens=n + 1)
    longer.read()
    assert longer.n_tokens >= n
    assert longer.tokens[: short.n_tokens] == short.tokens
    endless = smollm2.chat(hello, temperature=0.0, ignore_eos=True, max_tokens=n)
    endless.read()
    assert (endless.finish_reason, endless.n_tokens) == ("length", n)
    stopped = smollm2.chat(
        hello, temperature=0.0, min_tokens=3, max_tokens=6, stop_token_ids=[short.tokens[0]]
    )
    stopped.read()
    assert stopped.n_tokens >= 3
    assert short.tokens[0] not in stopped.tokens[:3]


def test_a_ban_of_ends_does_not_hide_a_broken_model(tiny: Callable[..., Path]) -> None:
    with load_model(str(tiny(scale=float("nan")))) as model, pytest.raises(GenerationError, match="NaN"):
        model.chat(FRANCE, ignore_eos=True).read()


# Messages


def test_an_assistants_last_message_is_continued(smollm2: Model) -> None:
    begun = [*FRANCE, {"role": "assistant", "content": "The capital of France is the city of"}]
    reply = smollm2.chat(begun, temperature=0.0, max_tokens=5)
    assert "Paris" in reply.read()
    text = smollm2.apply_chat_template(FRANCE) + "The capital of France is the city of"
    assert smollm2.apply_chat_template(begun) == text
    assert b"".join(smollm2.weights.piece(t) for t in smollm2.tokens(begun)[-3:]).endswith(b"city of")
    with pytest.raises(ValueError, match="no message to answer before"):
        smollm2.chat(begun[1:])


def test_content_parts(smollm2: Model) -> None:
    parts = [{"type": "text", "text": "What is the capital"}, {"type": "text", "text": " of France?"}]
    assert smollm2.tokens([{"role": "user", "content": parts}]) == smollm2.tokens(FRANCE)
    image = {"type": "image_url", "image_url": {"url": "x"}}
    with pytest.raises(ValueError, match="images and sound are not supported"):
        smollm2.chat([{"role": "user", "content": [*parts, image]}])


def test_messages_that_grow_in_place_are_tokenized_anew(smollm2: Model) -> None:
    messages = [dict(FRANCE[0])]
    first = smollm2.count_tokens(messages)
    messages[0]["content"] += " And of Italy?"
    second = smollm2.count_tokens(messages)
    messages.append({"role": "assistant", "content": "Paris."})
    assert first < second < smollm2.count_tokens([*messages, *FRANCE])


def test_requests_are_independent_values() -> None:
    assert Request("x") == Request("x", SamplingParams())
    assert hash(SamplingParams(sampler=MinK())) == hash(SamplingParams(sampler=MinK()))


def test_descriptions(smollm2: Model) -> None:
    assert repr(smollm2).startswith(f"<Model smollm2-135m, {smollm2.placement}")
    reply = smollm2.chat(FRANCE, temperature=0.0, max_tokens=2)
    assert repr(reply) == "<Reply 0: 0 tokens, not finished, ''>"
    reply.read()
    assert repr(reply) == f"<Reply 0: 2 tokens, length, {reply.text!r}>"


# The life of a model


def test_a_model_is_closed(tiny: Callable[..., Path]) -> None:
    before = set(psutil.Process().children())
    with load_model(str(tiny(template="{{ messages[0].content }}"))) as model:
        reply = model.chat(FRANCE, max_tokens=50)
        next(reply)
        assert len(set(psutil.Process().children()) - before) == 1, "the child that renders the template"
    assert set(psutil.Process().children()) <= before
    with pytest.raises((GenerationError, ModelError)):
        list(reply)
    for use in (lambda: model.chat(FRANCE), lambda: model.forget(), lambda: list(model.generate(["x"]))):
        with pytest.raises(ModelError, match="is closed: load it again"):
            use()
    model.close()


@pytest.mark.slow
@pytest.mark.cpu
def test_closing_frees_the_memory(smollm2_path: Path) -> None:
    process = psutil.Process()

    def load_and_close() -> int:
        with load_model(str(smollm2_path), n_ctx=4096, trust=True) as model:
            model.chat(FRANCE, max_tokens=2).read()
        return int(process.memory_info().rss)

    load_and_close()
    before = load_and_close()
    assert [load_and_close() for _ in range(2)][-1] < before + (40 << 20), "a KV cache alone has 90 MB"


def test_n_ctx_is_of_one_answer() -> None:
    with load_model("smollm2-135m", n_ctx=512, n_parallel=4) as model:
        assert (model.n_ctx, model.n_parallel) == (512, 4)
        model.reserve(768, 2)
        assert (model.n_ctx, model.n_parallel) == (768, 2)


def test_a_trusted_model_starts_no_child(tiny: Callable[..., Path]) -> None:
    path = str(tiny())
    with load_model(path, trust=True) as model:
        before = set(psutil.Process().children())
        grammar = Constraints(grammar='root ::= "yes"')
        assert model.chat(FRANCE, constraints=grammar).read() == "yes"
        assert set(psutil.Process().children()) <= before


@pytest.mark.parametrize("options", [{"kv_type": "q8_0"}, {"kv_type": "f16", "flash_attn": False}])
def test_cache_options(options: dict[str, Any]) -> None:
    with load_model("smollm2-135m", n_ctx=512, **options) as model:
        assert "12 times 12 is" in model.chat(TWELVE, temperature=0.0, max_tokens=20).read()
        assert len(list(model.generate([FRANCE, STORY], max_tokens=3))) == 2


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"kv_type": "q9"}, "q9"),
        ({"kv_type": "q8_0", "flash_attn": False}, "flash"),
    ],
)
def test_cache_options_that_do_not_go(options: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        load_model("smollm2-135m", **options)


# Threads and tasks


def test_a_second_thread_gets_an_error(smollm2: Model) -> None:
    """In the middle of a prefill, and nothing else happens."""
    long = [{"role": "user", "content": "one two three four five six seven " * 25}]
    reply = forget(smollm2).chat(long, temperature=0.0, max_tokens=1)
    begun, errors = threading.Event(), []

    def intrude() -> None:
        begun.wait()
        for use in (lambda: smollm2.chat(FRANCE), lambda: smollm2.forget(), lambda: next(reply)):
            try:
                use()
            except GenerationError as error:
                errors.append(str(error))

    thread = threading.Thread(target=intrude)
    thread.start()
    begun.set()
    reply.read()
    thread.join()
    assert len(errors) == 3
    assert all("in use by another thread" in error for error in errors)


def test_async_iteration(smollm2: Model) -> None:
    expected = smollm2.chat(STORY, temperature=0.0, max_tokens=20).read()

    async def main() -> str:
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                ticks += 1
                await asyncio.sleep(0.001)

        ticker = asyncio.create_task(tick())
        text = "".join([piece async for piece in smollm2.chat(STORY, temperature=0.0, max_tokens=20)])
        ticker.cancel()
        assert ticks > 20, "the event loop runs while the model generates"
        return text

    assert asyncio.run(main()) == expected


def test_a_cancelled_task_cancels_its_reply(smollm2: Model) -> None:
    reply = smollm2.chat(STORY, temperature=0.0, ignore_eos=True)

    async def read() -> None:
        async for _ in reply:
            pass

    async def main() -> None:
        task = asyncio.create_task(read())
        while reply.n_tokens < 5:
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert reply.finish_reason == "interrupted"
    assert 5 <= reply.n_tokens < 500
    assert smollm2.engine.idle
    assert "12 times 12 is" in smollm2.chat(TWELVE, temperature=0.0, max_tokens=20).read()


def test_an_answer_goes_on_inside_a_character(smollm2: Model) -> None:
    *begun, last = smollm2.tokenize("🧿")
    assert begun
    only = Constraints(logit_bias={last: 1000.0})
    reply = smollm2.chat(FRANCE, prefix=begun, temperature=0.0, max_tokens=1, constraints=only)
    assert reply.read() == "🧿"
