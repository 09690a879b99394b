"""Many answers at a time: each is the model's answer to its own prompt, whatever is generated beside it."""

from collections.abc import Callable, Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from mink_local import Constraints, MinK, load_model
from mink_local.errors import GenerationError
from mink_local.generation.answer import Answer, Piece
from mink_local.generation.decoding import Decoding
from mink_local.generation.engine import Engine
from mink_local.generation.model import Model
from mink_local.generation.request import Prompt, Request, SamplingParams
from mink_local.llama.context import Context, Segment
from mink_local.samplers import Greedy, TopP
from tests.conftest import forget
from tests.support.tiny import write_recurrent_model

QUESTIONS = [
    "What is the capital of France?",
    "Name three colours.",
    "Why is the sky blue? Give a short answer.",
    "Tell me a story about a dog named Max.",
    "What is 12 times 12?",
    "Write a haiku about rain.",
    "How do I boil an egg?",
    "Say hello.",
]


def ask(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


@pytest.fixture(scope="module")
def model(tiny_path: Path) -> Model:
    """A small random model with four slots, whose logits depend on every token before."""
    return load_model(str(tiny_path), n_ctx=512, n_parallel=4, trust=True)


@pytest.fixture(scope="module")
def real() -> Model:
    return load_model("smollm2-135m", n_ctx=512, n_parallel=4)


@pytest.fixture(scope="module")
def auto(tiny_path: Path) -> Model:
    """A small model that was loaded without a number of slots."""
    return load_model(str(tiny_path), n_ctx=1024, trust=True)


def request(prompt: Prompt, **options: Any) -> Request:
    return Request(prompt, SamplingParams(**options))


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> dict[int, list[NDArray[np.float32]]]:
    """The logits that every answer's tokens were sampled from, by its index."""
    rows: dict[int, list[NDArray[np.float32]]] = {}
    sample = Decoding.sample

    def watched(self: Decoding, logits: NDArray[np.float32]) -> Piece:
        rows.setdefault(self.answer.index, []).append(logits.copy())
        return sample(self, logits)

    monkeypatch.setattr(Decoding, "sample", watched)
    return rows


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> dict[int, list[int]]:
    """Every answer's tokens, the one that ended it included, by its index."""
    tokens: dict[int, list[int]] = {}
    append = Decoding.append

    def watched(self: Decoding, token: int, k: int) -> Piece:
        tokens.setdefault(self.answer.index, []).append(token)
        return append(self, token, k)

    monkeypatch.setattr(Decoding, "append", watched)
    return tokens


def logits_alone(model: Model, prompt: list[int], answer: list[int]) -> list[NDArray[np.float32]]:
    """The logits at every step of an answer, token by token in a context of its own."""
    context = Context(model.weights, 512, 2)
    context.decode(Segment(prompt, 0))
    rows = [context.logits().copy()]
    for i, token in enumerate(answer):
        context.decode(Segment([token], len(prompt) + i))
        rows.append(context.logits().copy())
    return rows


def see_their_own_past(
    model: Model,
    answers: Sequence[Answer],
    taken: dict[int, list[int]],
    seen: dict[int, list[NDArray[np.float32]]],
) -> None:
    """Whether the logits of every answer were those of the same tokens evaluated alone, but for rounding."""
    for answer in answers:
        written, rows = taken[answer.index], seen[answer.index]
        alone = logits_alone(model, model.tokens(answer.request.prompt), written[:-1])
        assert len(rows) == len(alone) == len(answer.k) == len(written)
        for here, there in zip(rows, alone, strict=True):
            assert np.abs(here - there).max() < 0.02 * np.ptp(there)


@pytest.mark.slow
def test_every_answer_sees_its_own_past(
    real: Model, seen: dict[int, list[NDArray[np.float32]]], taken: dict[int, list[int]]
) -> None:
    """Slots are refilled, prompts copied, rewound and read in the batches of others."""
    shared = "Answer in one sentence and be polite. Here is the question that I have for you today: "
    requests = [
        request(
            ask(prefix + text), sampler=MinK(), temperature=temperature, max_tokens=3 + (7 * i) % 17, seed=i
        )
        for i, (prefix, text, temperature) in enumerate(
            [("", text, 2.0) for text in QUESTIONS[:6]]
            + [(shared, text, 1.0) for text in QUESTIONS[:3]]
            + [("", QUESTIONS[3], temperature) for temperature in (0.0, 1.0, 5.0, 10.0, 0.5) * 2]
        )
    ]
    answers = list(forget(real).complete(requests))
    assert sorted(answer.index for answer in answers) == list(range(len(requests)))
    see_their_own_past(real, answers, taken, seen)
    for answer in answers:
        pieces = b"".join(map(real.weights.piece, taken[answer.index]))
        assert pieces.decode("utf-8", "replace").startswith(answer.text)


def test_a_model_that_cannot_forget_just_the_end(
    tmp_path: Path,
    smollm2_path: Path,
    seen: dict[int, list[NDArray[np.float32]]],
    taken: dict[int, list[int]],
) -> None:
    """A recurrent one: it reads a prompt again where another would rewind, and after an interrupt."""
    file = write_recurrent_model(tmp_path / "mamba.gguf", smollm2_path)
    model = load_model(str(file), n_ctx=256, n_parallel=4)
    requests = [
        request(QUESTIONS[i // 3], sampler=TopP(), temperature=0.5, max_tokens=3 + (5 * i) % 7, seed=i)
        for i in range(18)
    ]
    answers = list(model.complete(requests))
    assert sorted(answer.index for answer in answers) == list(range(18))
    see_their_own_past(model, answers, taken, seen)
    taken.clear()
    seen.clear()
    interrupted = model.complete(requests)
    next(interrupted)
    model.interrupt()
    assert "interrupted" in {answer.finish_reason for answer in interrupted}
    taken.clear()
    seen.clear()
    see_their_own_past(model, list(model.complete(requests)), taken, seen)


def test_one_at_a_time_is_chat(tiny_path: Path) -> None:
    model = load_model(str(tiny_path), n_ctx=512, n_parallel=1, backend_sampling=False, trust=True)
    requests = [
        request(ask(text), sampler=sampler, temperature=temperature, max_tokens=10, seed=5)
        for text in QUESTIONS[:2]
        for sampler, temperature in ((MinK(), 5.0), (TopP(), 1.0), (Greedy(), 1.0))
    ]
    together = [(a.text, a.k, a.finish_reason, a.n_tokens) for a in model.complete(requests)]
    forget(model)
    one_by_one = []
    for each in requests:
        reply = model.chat(each.prompt, each.params)  # type: ignore[arg-type]
        one_by_one.append(("".join(reply), reply.k, reply.finish_reason, reply.n_tokens))
    assert together == one_by_one


def test_a_prompt_is_evaluated_once(model: Model) -> None:
    requests = [
        request(ask(text), sampler=MinK(), temperature=temperature, max_tokens=6, seed=1)
        for text in QUESTIONS[:3]
        for temperature in (0.0, 0.5, 1.0, 2.0, 5.0, 10.0)
    ]
    forget(model)
    answers = sorted(model.complete(requests), key=lambda answer: answer.index)
    for first, *others in (answers[i : i + 6] for i in range(0, 18, 6)):
        assert max(answer.evaluated_tokens for answer in others) <= 1
        assert first.evaluated_tokens > 5
    assert answers[0].evaluated_tokens == answers[0].prompt_tokens


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Segment, ...]]:
    """What was evaluated, batch by batch."""
    batches: list[tuple[Segment, ...]] = []
    decode = Context.decode

    def watched(self: Context, *parts: Segment) -> bool:
        batches.append(parts)
        return decode(self, *parts)

    monkeypatch.setattr(Context, "decode", watched)
    return batches


def test_what_answers_have_in_common_is_evaluated_once(
    real: Model, decoded: list[tuple[Segment, ...]]
) -> None:
    """Among answers that are drawn from the same logits: not one token is evaluated for a second time, and
    what several have begun with is evaluated for all of them."""
    requests = [
        request(ask(QUESTIONS[3]), sampler=MinK(), temperature=temperature, max_tokens=30, seed=1)
        for temperature in (0.0, 1.0, 2.0, 5.0)
    ]
    forget(real)
    answers = list(real.complete(requests))
    written = {tuple(answer.tokens[:n]) for answer in answers for n in range(1, answer.n_tokens)}
    evaluated = sum(len(part.tokens) for parts in decoded for part in parts)
    unfinished = [answer for answer in answers if answer.finish_reason == "stop"]
    assert evaluated == answers[0].prompt_tokens + len(
        written | {tuple(answer.tokens) for answer in unfinished}
    )
    assert evaluated < answers[0].prompt_tokens + sum(answer.n_tokens for answer in answers) * 0.9
    assert sum(answer.evaluated_tokens for answer in answers) == answers[0].prompt_tokens
    assert len({answer.text for answer in answers}) > 1, "they parted"


def test_those_that_part_wait_for_a_sequence(model: Model, decoded: list[tuple[Segment, ...]]) -> None:
    """More answers than sequences are begun together, and part at once."""
    requests = [
        request(ask(QUESTIONS[3]), sampler=TopP(), temperature=10.0, max_tokens=6, seed=i) for i in range(9)
    ]
    answers = list(forget(model).complete(requests))
    assert sorted(answer.index for answer in answers) == list(range(9))
    assert len({tuple(answer.tokens[:1]) for answer in answers}) == 9, "no two begin alike"
    assert [len(parts) for parts in decoded[:2]] == [1, 4]
    evaluated = sum(len(part.tokens) for parts in decoded for part in parts)
    assert evaluated <= answers[0].prompt_tokens + 9 * 6, "nobody's prompt is read again"


def test_a_gap_is_closed(model: Model, decoded: list[tuple[Segment, ...]]) -> None:
    """llama.cpp evaluates only neighbouring sequences together."""
    requests = [
        request(ask(text), sampler=MinK(), temperature=temperature, max_tokens=3 + (5 * i) % 13, seed=i)
        for i, text in enumerate(QUESTIONS)
        for temperature in (1.0, 5.0, 10.0)
    ]
    assert len(list(model.complete(requests))) == 24
    for parts in decoded:
        assert [part.seq_id for part in parts] == list(range(len(parts)))
    assert {len(parts) for parts in decoded} == {1, 2, 3, 4}


def test_a_common_beginning_is_evaluated_once(model: Model) -> None:
    examples = "Q: How much is 2 + 3? A: 5. " * 12
    forget(model)
    answers = list(model.generate([ask(examples + text) for text in QUESTIONS[:5]], max_tokens=4, seed=1))
    shared = model.count_tokens(ask(examples)) - 8
    whole = [answer for answer in answers if answer.evaluated_tokens == answer.prompt_tokens]
    assert len(whole) == 1
    assert all(a.prompt_tokens - a.evaluated_tokens > shared for a in answers if a not in whole)


def test_results_say_whose_they_are(real: Model) -> None:
    prompts = [ask(text) for text in QUESTIONS]
    answers = list(real.generate(prompts, temperature=0.0, max_tokens=8, seed=2**32 - 4))
    assert sorted(a.index for a in answers) == list(range(len(prompts)))
    for answer in answers:
        assert answer.request.prompt == prompts[answer.index]
        assert answer.seed == (2**32 - 4 + answer.index) % (2**32 - 1)
        assert answer.finish_reason in ("stop", "length")
        assert answer.n_tokens <= 8
        assert answer.seconds > 0
    assert next(answer.text for answer in answers if answer.index == 4).startswith("12 times 12 is")


def test_requests_are_taken_as_there_is_room(model: Model) -> None:
    taken: list[int] = []

    def requests() -> Iterator[Request]:
        for i in range(20):
            taken.append(i)
            yield request(ask(QUESTIONS[i % 8]), max_tokens=2 + i % 3, seed=i)

    for done, _ in enumerate(model.complete(requests()), start=1):
        assert len(taken) <= done + model.n_parallel + 1
    assert len(taken) == 20


def test_a_prompt_that_does_not_fit_is_said_and_the_rest_goes_on(model: Model) -> None:
    prompts = [ask(QUESTIONS[0]), ask("word " * 600), ask(QUESTIONS[1])]
    answers = {a.index: a for a in model.generate(prompts, temperature=0.0, max_tokens=4)}
    assert [answers[i].finish_reason for i in range(3)] == ["length", "overflow", "length"]
    assert (answers[1].text, answers[1].n_tokens, answers[1].evaluated_tokens) == ("", 0, 0)
    assert answers[1].prompt_tokens > model.n_ctx


def test_a_text_is_continued_without_a_chat_template(real: Model) -> None:
    """With its control tokens read as such: the rendered template is the same prompt."""
    rendered = real.apply_chat_template(ask(QUESTIONS[0]))
    text, messages = (
        next(real.generate([prompt], temperature=0.0, max_tokens=12)).text
        for prompt in (rendered, ask(QUESTIONS[0]))
    )
    assert text == messages
    counting = next(real.generate(["1, 2, 3, 4, 5, 6,"], temperature=0.0, max_tokens=6))
    assert counting.text.startswith(" 7")


def test_stop_strings_and_constraints_are_each_answers_own(real: Model) -> None:
    requests = [
        request(ask(QUESTIONS[3]), temperature=0.0, max_tokens=30),
        request(ask(QUESTIONS[3]), temperature=0.0, max_tokens=30, stop=["Max"]),
        request(ask(QUESTIONS[3]), temperature=0.0, constraints=Constraints(grammar='root ::= "yes" | "no"')),
    ]
    plain, stopped, constrained = sorted(real.complete(requests), key=lambda answer: answer.index)
    assert stopped.text == plain.text[: plain.text.index("Max")]
    assert stopped.finish_reason == "stop"
    assert constrained.text in ("yes", "no")


@pytest.mark.parametrize("before", [0, 1, 5])
def test_interrupt_ends_what_was_begun(model: Model, before: int) -> None:
    expected = [a.text for a in forget(model).generate([ask(QUESTIONS[0])], temperature=0.0, max_tokens=20)]
    requests = (request(ask(QUESTIONS[i % 8]), max_tokens=8, seed=i) for i in range(40))
    written = model.complete(requests)
    finished = [next(written) for _ in range(before)]
    model.interrupt()
    cut = list(written)
    assert all(answer.finish_reason in ("stop", "length") for answer in finished)
    assert len([a for a in cut if a.finish_reason == "interrupted"]) <= model.n_parallel + 1
    assert len(cut) <= 2 * model.n_parallel
    again = [a.text for a in forget(model).generate([ask(QUESTIONS[0])], temperature=0.0, max_tokens=20)]
    assert again == expected


def test_interrupt_ends_answers_that_share_a_sequence(model: Model) -> None:
    written = model.complete(request(ask(QUESTIONS[3]), max_tokens=n, temperature=0.0) for n in (2, 9, 9, 9))
    first = next(written)
    model.interrupt()
    others = list(written)
    assert (first.n_tokens, first.finish_reason) == (2, "length")
    assert [(a.n_tokens, a.finish_reason) for a in others] == [(2, "interrupted")] * 3


def test_a_run_that_is_dropped_harms_nothing(model: Model) -> None:
    prompts = [ask(text) for text in QUESTIONS]
    expected = next(forget(model).complete([greedy(QUESTIONS[4])])).text
    abandoned = forget(model).generate(prompts, max_tokens=30, seed=1)
    next(abandoned)
    assert next(model.complete([greedy(QUESTIONS[4])])).text == expected
    with pytest.raises(GenerationError, match="was cancelled: the model was asked again"):
        list(abandoned)


def test_an_option_out_of_range_is_said_when_it_comes(model: Model) -> None:
    with pytest.raises(ValueError, match="temperature must be"):
        list(model.generate([ask("Hello")], temperature=-1.0))
    with pytest.raises(ValueError, match="there is no message"):
        list(model.generate([ask("Hello"), []], max_tokens=3))


def test_a_broken_model_ends_each_answer(tiny: Callable[..., Path]) -> None:
    model = load_model(str(tiny(scale=float("nan"))), n_parallel=3)
    answers = list(model.generate([ask(text) for text in QUESTIONS]))
    assert len(answers) == len(QUESTIONS)
    for answer in answers:
        assert answer.finish_reason == "error"
        assert "a NaN among its logits at step 1" in str(answer.error)


def test_backend_sampling_in_a_batch(tiny_path: Path) -> None:
    """The same batches, so the same logits: greedy gives the same text and cutoffs."""
    texts = []
    for backend in (True, False):
        model = load_model(str(tiny_path), n_ctx=256, n_parallel=3, backend_sampling=backend, trust=True)
        answers = model.generate([ask(text) for text in QUESTIONS[:5]], temperature=0.0, max_tokens=12)
        texts.append({answer.index: (answer.text, answer.k) for answer in answers})
    assert texts[0] == texts[1]


# The engine itself: submit, cancel, step


def run(engine: Engine, steps: int | None = None) -> None:
    for _ in range(10_000 if steps is None else steps):
        if engine.idle:
            return
        engine.step()


def greedy(text: str, max_tokens: int = 12, **options: Any) -> Request:
    return request(ask(text), temperature=0.0, max_tokens=max_tokens, **options)


@pytest.mark.slow
def test_requests_come_while_others_are_generated(real: Model) -> None:
    alone = [next(forget(real).complete([greedy(text)])).text for text in QUESTIONS]
    engine = forget(real).engine
    answers = []
    for text in QUESTIONS:
        answers.append(engine.submit(greedy(text)))
        run(engine, steps=2)
    run(engine)
    assert [answer.finish_reason for answer in answers].count(None) == 0
    same = sum(answer.text == text for answer, text in zip(answers, alone, strict=True))
    assert same >= len(QUESTIONS) - 2, "but for llama.cpp's rounding in batches of another size"


@pytest.mark.parametrize("steps", [0, 1, 5])
def test_one_answer_is_cancelled_alone(
    model: Model, seen: dict[int, list[NDArray[np.float32]]], taken: dict[int, list[int]], steps: int
) -> None:
    """Waiting, in prefill or in the middle, whether or not it shares a slot."""
    engine = forget(model).engine
    requests = [greedy(text) for text in QUESTIONS[:4]] + [greedy(QUESTIONS[0]), greedy(QUESTIONS[5])]
    answers = [engine.submit(each, Answer(each, index)) for index, each in enumerate(requests)]
    run(engine, steps)
    for i in (0, 2, 5):
        engine.cancel(answers[i])
        assert answers[i].finish_reason == "interrupted"
        assert answers[i].n_tokens <= steps
    run(engine)
    others = [answers[i] for i in (1, 3, 4)]
    assert {answer.finish_reason for answer in others} <= {"stop", "length"}
    see_their_own_past(model, others, taken, seen)
    assert engine.idle
    engine.cancel(answers[0])  # nothing is left to be done


def test_a_cancelled_slot_is_free_at_the_next_step(model: Model) -> None:
    engine = forget(model).engine
    answers = [engine.submit(greedy(text, 200)) for text in QUESTIONS[:5]]
    run(engine, 3)
    assert engine.n_waiting == 1
    engine.cancel(answers[0])
    assert answers[4] in [answer for answer, _ in engine.step() + engine.step()]
    assert engine.n_waiting == 0
    engine.cancel_all()
    assert engine.idle


def test_broken_logits_end_one_answer_and_not_the_run(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = forget(model).engine
    answers = [engine.submit(greedy(text)) for text in QUESTIONS[:3]]
    sample = Decoding.sample

    def damaged(self: Decoding, logits: NDArray[np.float32]) -> Piece:
        if self.answer is answers[1] and self.answer.n_tokens == 2:
            logits = np.full_like(logits, np.nan)
        return sample(self, logits)

    monkeypatch.setattr(Decoding, "sample", damaged)
    run(engine)
    assert [answer.finish_reason == "error" for answer in answers] == [False, True, False]
    assert "a NaN among its logits at step 3" in str(answers[1].error)
    assert answers[1].n_tokens == 2


def test_constraints_that_leave_no_token_end_one_answer(model: Model) -> None:
    only_ends = Constraints(grammar='root ::= "yes"')
    requests = [greedy(QUESTIONS[0]), greedy(QUESTIONS[1], constraints=only_ends, ignore_eos=True)]
    first, second = sorted(forget(model).complete(requests), key=lambda answer: answer.index)
    assert first.finish_reason == "length"
    assert (second.text, second.finish_reason) == ("yes", "error")
    assert "leave no token at step" in str(second.error)


def test_a_batch_on_which_llama_cpp_fails_ends_those_in_it(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = forget(model).engine
    answers = [engine.submit(greedy(text)) for text in QUESTIONS[:5]]
    run(engine, 3)

    def fail(*_: object) -> bool:
        raise GenerationError("llama.cpp failed")

    with monkeypatch.context() as patch:
        patch.setattr(Context, "decode", fail)
        assert {answer.finish_reason for answer, _ in engine.step()} == {"error"}
    run(engine)
    assert [answer.finish_reason for answer in answers] == ["error"] * 4 + ["length"]


def test_an_interrupt_that_was_not_heard_yet_is_not_undone(model: Model) -> None:
    """By a second reply, which cancels the first."""
    first = model.chat(ask(QUESTIONS[0]), max_tokens=5)
    model.interrupt()
    second = model.chat(ask(QUESTIONS[1]), temperature=0.0, max_tokens=5)
    assert list(first) == []
    assert first.finish_reason == "interrupted"
    assert second.read()
    assert second.finish_reason == "length"


def test_an_interrupt_while_idle_is_not_meant_for_later(model: Model) -> None:
    model.interrupt()
    reply = model.chat(ask(QUESTIONS[0]), temperature=0.0, max_tokens=5)
    assert reply.read()
    assert reply.finish_reason == "length"


def test_an_endless_iterable_is_not_read_ahead(auto: Model) -> None:
    """Also by a model that chooses how many at a time by itself."""
    endless = auto.complete(greedy(QUESTIONS[i % 8], 3) for i in count())
    assert [next(endless).n_tokens for _ in range(100)] == [3] * 100
    endless.close()  # type: ignore[attr-defined]


# Memory


def test_many_answers_have_room_beside_a_conversation(
    auto: Model, decoded: list[tuple[Segment, ...]], caplog: pytest.LogCaptureFixture
) -> None:
    """A model that was loaded without a word about them writes as many at a time as suit the device."""
    conversation = ask(QUESTIONS[3])
    first = auto.chat(conversation, temperature=0.0, max_tokens=8)
    conversation += [{"role": "assistant", "content": "".join(first)}, {"role": "user", "content": "Go on."}]
    decoded.clear()
    answers = list(auto.generate([ask(text) for text in QUESTIONS], temperature=0.0, max_tokens=10))
    assert len(answers) == max(map(len, decoded)) == len(QUESTIONS)
    lengths = [max(s.position + len(s.tokens) for parts in decoded for s in parts)]
    assert lengths[0] < 100
    decoded.clear()
    assert len(list(auto.generate([ask("word " * 200), ask("Hello")], max_tokens=60))) == 2
    assert max(s.position + len(s.tokens) for parts in decoded for s in parts) > 200, "in a longer cache"
    too_long = auto.generate([ask("word " * 2000), ask("Hello")], max_tokens=2)
    assert sorted(str(answer.finish_reason) for answer in too_long) == ["length", "overflow"]
    again = auto.chat(conversation, temperature=0.0, max_tokens=8)
    assert "".join(again)
    assert again.evaluated_tokens < again.prompt_tokens - first.prompt_tokens + 2
    assert caplog.messages == []
