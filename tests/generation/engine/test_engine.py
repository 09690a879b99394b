"""Many answers at a time: each follows its own prompt, whatever is generated beside it."""

import gc
import random
import re
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from mink_local import Constraints, MinK, load_model
from mink_local.errors import GenerationError
from mink_local.generation.answer import Answer
from mink_local.generation.engine import slots
from mink_local.generation.engine.budget import PromptBudget
from mink_local.generation.engine.engine import Engine
from mink_local.generation.model import Model
from mink_local.generation.request import Prompt, Request, SamplingParams
from mink_local.llama.context import Context, Segment
from mink_local.samplers import TopP
from tests.conftest import forget
from tests.generation.conftest import logits_alone, run, submit
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

SHARED = "Answer in one sentence. "
PROMPTS = ["One, two,", SHARED + "Who?", SHARED + "Why?", SHARED * 3, "word " * 40]


def ask(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def request(prompt: Prompt, **options: Any) -> Request:
    return Request(prompt, SamplingParams(**options), watch=Rows())


def greedy(text: str, max_tokens: int = 12, **options: Any) -> Request:
    return request(ask(text), temperature=0.0, max_tokens=max_tokens, **options)


class Rows(list[NDArray[np.float32]]):
    """Collects the logits from which the tokens of a request were sampled."""

    def __call__(self, row: NDArray[np.float32]) -> None:
        self.append(row.copy())


def check_past(model: Model, answer: Answer) -> None:
    """Check that the logits of an answer were those of the same tokens evaluated alone, up to rounding."""
    rows = answer.request.watch
    assert isinstance(rows, Rows)
    prompt = model.prompt_tokens(answer.request.prompt)
    alone = logits_alone(model, prompt + answer.tokens, len(prompt) - 1)
    assert answer.n_tokens <= len(rows) <= len(alone)
    for here, there in zip(rows, alone, strict=False):
        assert np.abs(here - there).max() < 0.02 * np.ptp(there)


@pytest.mark.parametrize("checkpoint_memory", [None, 0])
def test_a_model_that_cannot_forget_just_the_end(
    tmp_path: Path, smollm2_path: Path, checkpoint_memory: float | None
) -> None:
    """A recurrent one goes back to a checkpoint where others rewind, and after an interrupt."""
    file = write_recurrent_model(tmp_path / "mamba.gguf", smollm2_path)

    def requests() -> list[Request]:
        return [
            request(QUESTIONS[i // 3], sampler=TopP(), temperature=0.5, max_tokens=3 + (5 * i) % 7, seed=i)
            for i in range(18)
        ]

    with load_model(str(file), n_ctx=256, n_parallel=4, checkpoint_memory=checkpoint_memory) as model:
        answers = list(model.answer_all(requests()))
        interrupted = model.answer_all(requests())
        next(interrupted)
        model.interrupt()
        assert "interrupted" in {answer.finish_reason for answer in interrupted}
        answers += model.answer_all(requests())
        assert sorted(answer.index for answer in answers) == sorted([*range(18)] * 2)
        for answer in answers:
            check_past(model, answer)


def test_a_prompt_of_several_answers_is_evaluated_once(
    model: Model, decoded: list[tuple[Segment, ...]]
) -> None:
    """Whoever asks second waits for the first one's cache and copies that, whether or not slots are free."""
    requests = [
        request(ask(QUESTIONS[3]), sampler=TopP(), temperature=10.0, max_tokens=6, seed=i) for i in range(9)
    ]
    answers = list(forget(model).answer_all(requests))
    assert sorted(answer.index for answer in answers) == list(range(9))
    assert len({tuple(answer.tokens[:1]) for answer in answers}) == 9, "no two have the same first token"
    n_prompt = answers[0].prompt_tokens
    assert sorted(answer.evaluated_tokens for answer in answers) == [*[1] * 8, n_prompt]
    evaluated = sum(len(part.tokens) for parts in decoded for part in parts)
    assert evaluated <= n_prompt + 8 + sum(answer.n_tokens for answer in answers)
    for answer in answers:
        check_past(model, answer)


def test_a_gap_is_closed(
    model: Model, decoded: list[tuple[Segment, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """llama.cpp evaluates only adjacent sequences together."""
    monkeypatch.setattr(PromptBudget, "tokens", lambda *_: 50)
    requests = [
        request(ask(text), sampler=MinK(), temperature=temperature, max_tokens=3 + (5 * i) % 13, seed=i)
        for i, text in enumerate(QUESTIONS)
        for temperature in (1.0, 5.0, 10.0)
    ]
    assert len(list(model.answer_all(requests))) == 24
    for parts in [parts for parts in decoded if any(part.n_outputs for part in parts)]:
        first = parts[0].seq_id
        assert [part.seq_id for part in parts] == list(range(first, first + len(parts)))
    assert {len(parts) for parts in decoded} == {1, 2, 3, 4}


def test_conversations_that_take_turns_are_evaluated_once(model: Model) -> None:
    conversations = [ask(f"{i}. {QUESTIONS[3]}" * 5) for i in range(3)]
    for turn in range(3):
        for messages in conversations:
            [answer] = model.generate([messages], temperature=0.0, max_tokens=4)
            new = answer.evaluated_tokens if turn else 0
            assert new < answer.prompt_tokens / 2
            messages += [{"role": "assistant", "content": answer.text}, *ask("Go on.")]


def test_stop_strings_and_constraints_are_each_answers_own(real: Model) -> None:
    yes_or_no, only_yes = (Constraints(grammar=f"root ::= {words}") for words in ('"yes" | "no"', '"yes"'))
    banned = {token: -float("inf") for token in range(real.weights.n_vocab)}
    requests = [
        greedy(QUESTIONS[3]),
        greedy(QUESTIONS[3], stop=["Max"]),
        greedy(QUESTIONS[3], constraints=yes_or_no),
        greedy(QUESTIONS[3], constraints=only_yes, ignore_eos=True, min_tokens=9),
        greedy(QUESTIONS[3], constraints=replace(only_yes, logit_bias=banned)),
    ]
    plain, stopped, constrained, over, stuck = real.answer_all(requests, ordered=True)
    assert stopped.text == plain.text[: plain.text.index("Max")]
    assert (plain.finish_reason, stopped.finish_reason) == ("length", "stop")
    assert constrained.text in ("yes", "no")
    assert (over.text, over.finish_reason) == ("yes", "stop"), "nothing can follow"
    assert (stuck.text, stuck.finish_reason, stuck.no_token_left) == ("", "error", True)


# The engine itself: enqueue, cancel, step


@pytest.mark.parametrize(("most", "order"), [(None, "cac"), (2, "cca")])
def test_clients_take_turns(
    model: Model, monkeypatch: pytest.MonkeyPatch, most: int | None, order: str
) -> None:
    engine = forget(model).core.engine
    monkeypatch.setattr(engine, "most_of_client", most)
    endless = {"temperature": 0, "max_tokens": 99, "ignore_eos": True}
    decodings = [engine.prepare(request([300 + i], **endless)) for i in range(7)]
    for decoding, client in zip(decodings, "aaabacc", strict=True):
        decoding.client = client
    running, waiting = decodings[:4], decodings[4:]
    engine.enqueue(*running)
    engine.step()
    engine.enqueue(*waiting)
    began = []
    for decoding in (running[0], running[3], running[1]):
        engine.cancel([decoding.answer])
        engine.step()
        began += [each for each in waiting if each.answer.began and each not in began]
    assert "".join(each.client for each in began) == order
    engine.cancel()


class Client(str):
    """A client's name that can be watched."""


def test_clients_whose_turn_is_over_are_forgotten(model: Model) -> None:
    engine = model.core.engine
    known: weakref.WeakSet[Client] = weakref.WeakSet()
    for i in range(30):
        decoding = engine.prepare(request([300 + i], temperature=0, max_tokens=2))
        decoding.client = Client(i)
        known.add(decoding.client)
        engine.enqueue(decoding)
        run(engine)
    del decoding
    gc.collect()
    assert len(known) <= len(engine.slots), "those whose conversation a slot holds"


def test_a_batch_on_which_llama_cpp_fails_ends_those_in_it(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = forget(model).core.engine
    answers = [submit(engine, greedy(text)) for text in QUESTIONS[:5]]
    run(engine, 3)

    def fail(*_: object, **__: object) -> bool:
        raise GenerationError("llama.cpp failed")

    with monkeypatch.context() as patch:
        patch.setattr(Context, "decode", fail)
        assert {answer.finish_reason for answer, _ in engine.step()} == {"error"}
    run(engine)
    assert [answer.finish_reason for answer in answers] == ["error"] * 4 + ["length"]


@pytest.mark.parametrize("tells_late", [False, True])
def test_masks_that_fail_end_the_answers_that_need_one(
    model: Model, monkeypatch: pytest.MonkeyPatch, tells_late: bool
) -> None:
    """Not the others, nor the model's thread; and nobody waits for what is never told."""
    monkeypatch.setattr(model.core.engine, "tells_late", tells_late)

    def fail(*_: object) -> None:
        raise RuntimeError("the guide fell over")

    guided = SamplingParams(constraints=Constraints(regex="[a-z]{9,}"), max_tokens=20)
    requests = [Request([300 + i], each) for i, each in enumerate([guided, SamplingParams(max_tokens=4)] * 2)]
    with monkeypatch.context() as patch:
        patch.setattr("mink_local.llama.token_sampler.fill_masks", fail)
        answers = list(model.answer_all(requests))
        answers += model.answer_all([requests[0]])
    assert len(answers) == 5
    for answer in answers:
        is_guided = answer.request.params.constraints is not None
        assert ("fell over" in str(answer.error)) == is_guided
    assert model.complete("One", guided).read()


def test_an_interrupt_is_for_what_is_being_generated(model: Model) -> None:
    """Not for a reply that begins later, whether one was interrupted or the model was idle."""
    first = model.chat(ask(QUESTIONS[0]), ignore_eos=True)
    for _ in range(2):
        model.interrupt()
        later = model.chat(ask(QUESTIONS[1]), temperature=0.0, max_tokens=5)
        first.read()
        assert first.finish_reason == "interrupted"
        assert later.read()
        assert later.finish_reason == "length"


# Requests that come and go in a random order


def random_request(choice: random.Random) -> Request:
    options: dict[str, Any] = {"prompt_logprobs": 0} if choice.random() < 0.2 else {}
    made = request(
        choice.choice(PROMPTS),
        sampler=TopP(0.9),
        temperature=choice.choice([0.0, 1.0, 10.0]),
        max_tokens=choice.randint(1, 12),
        seed=choice.randint(0, 3),
        stop=[choice.choice("aeiou")] if choice.random() < 0.3 else (),
        **options,
    )
    return replace(made, watch=None) if choice.random() < 0.5 else made  # then it is sampled with others


@pytest.mark.parametrize(
    "seed", [0, 1, 2, 3, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(4, 12))]
)
def test_requests_that_come_and_go(model: Model, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """An answer may be cancelled at any point: waiting, in prefill, generating.

    Also between the parts of a step: its slot, but not its logits, may go to others, which are unaffected. On
    a GPU, one may have ended that has not been told so yet.
    """
    choice = random.Random(seed)
    engine = forget(model).core.engine
    is_late = seed % 2 == 1
    monkeypatch.setattr(engine, "tells_late", is_late)  # as on a GPU
    pace = random.Random(seed)  # instead of the machine's
    parts_beside = {True: [0, 1, 5, 16, 64], False: [16, 64, 512]}
    monkeypatch.setattr(PromptBudget, "tokens", lambda _, __, n=0: pace.choice(parts_beside[n > 0]))
    answers: list[Answer] = []
    cancelled: set[Answer] = set()
    ends: list[Answer] = []  # told
    parts: Iterator[Callable[[], Any]] = cycle([engine.launch, engine.tell, engine.collect])
    for _ in range(600):
        action = choice.random()
        if action < 0.2 and len(answers) < 60:
            answers.append(submit(engine, random_request(choice)))
        elif action < 0.3 and answers:
            answer = choice.choice(answers)
            was_running = answer.finish_reason is None
            told = engine.cancel([answer])
            ends += [each for each, piece in told if piece.finish_reason is not None]
            if was_running:
                [*_, last] = [piece for each, piece in told if each is answer]
                assert last.finish_reason == answer.finish_reason
                if last.token is None or not is_late:  # else this token has ended it
                    cancelled.add(answer)
        else:
            ends += [each for each, piece in next(parts)() or () if piece.finish_reason is not None]
    while not engine.idle:
        ends += [each for each, piece in next(parts)() or () if piece.finish_reason is not None]
    ends += [each for each, _ in engine.tell()]
    assert engine.n_busy == engine.n_waiting == 0
    assert sorted(map(id, ends)) == sorted(map(id, answers)), "each end is told once"
    assert len(cancelled) > 2
    for answer in answers:
        assert answer.finish_reason in (("interrupted",) if answer in cancelled else ("length", "stop"))
        if answer.request.watch is not None:
            check_past(model, answer)
        assert model.detokenize(answer.tokens).startswith(answer.text)
        if answer.request.params.prompt_logprobs is not None and answer not in cancelled:
            assert len(answer.prompt_logprobs) == answer.prompt_tokens


def test_what_is_told_late_is_the_same(real: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts, usage, and what is in the cache after each; also of an answer that is cancelled."""
    options: list[dict[str, Any]] = [
        {}, {"stop": ["Max"]}, {"stop": ["e", "a"], "min_tokens": 9}, {"max_tokens": 1}, {"logprobs": 1},
        {"constraints": Constraints(repeat_penalty=1.2)}, {"constraints": Constraints(regex="[a-z ]+")},
        {"stop_token_ids": [28, 30]},
    ]  # fmt: skip
    engine = real.core.engine

    def results() -> Iterator[Any]:
        for seed, one in enumerate(options * 2):
            forget(real)
            params = SamplingParams(**{"seed": seed, "max_tokens": 30, **one})
            answer = submit(engine, Request(ask(QUESTIONS[3]), params))
            run(engine, 12 if seed >= len(options) else 1000)
            engine.cancel([answer])
            assert engine.idle
            held = [list(slot.tokens) for slot in engine.slots if slot.tokens]
            yield answer.tokens, answer.k, answer.text, answer.usage, answer.finish_reason, held

    expected = list(results())
    monkeypatch.setattr(engine, "tells_late", True)
    for late, usual in zip(results(), expected, strict=True):
        assert late[:-2] == usual[:-2] or late[-2] == "interrupted"
        assert late[-2:] == usual[-2:] or late[-2] == "interrupted"


def test_64_answers_at_a_time_are_those_of_one(tiny_path: Path) -> None:
    """With samplers and constraints of all kinds, some cancelled; on a CPU and as on a GPU."""
    kinds: list[dict[str, Any]] = [
        {}, {"sampler": TopP(), "stop": ["e"]}, {"ignore_eos": True},
        {"constraints": Constraints(repeat_penalty=1.3)}, {"constraints": Constraints(regex="[a-z ]{9,40}")},
        {"constraints": Constraints(choice=["yes", "no, never"])},
    ]  # fmt: skip
    requests = [
        Request([i + 50, 7], SamplingParams(**{"seed": i, "max_tokens": 10 + i % 20, **kinds[i % 6]}))
        for i in range(80)
    ]
    for tells_late in (False, True):
        with load_model(tiny_path, n_ctx=256, n_parallel=64, trust=True) as model:
            engine = model.core.engine
            engine.tells_late = tells_late
            answers = [submit(engine, one) for one in requests]
            run(engine, 5)
            for answer in answers[::9]:
                engine.cancel([answer])
            run(engine)
            assert engine.n_busy == 0
            for i, answer in enumerate(answers):
                reasons = ("interrupted", "stop", "length") if i % 9 == 0 else ("stop", "length")
                assert answer.finish_reason in reasons
                assert model.detokenize(answer.tokens).startswith(answer.text)
                if i % 6 == 5 and answer.finish_reason == "stop":
                    assert answer.text in ("yes", "no, never")


# Requests prepared in other threads than the engine's, while it generates


LONG = list(range(300, 700))


@pytest.fixture
def engine(model: Model, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    """An engine that evaluates 50 prompt tokens in a step, with an answer in progress."""
    monkeypatch.setattr(PromptBudget, "tokens", lambda _, __, n_answers=0: 50 if n_answers else 511)
    monkeypatch.setattr(PromptBudget, "unnoticed", 511)
    engine = forget(model).core.engine
    submit(engine, request("One", max_tokens=400, temperature=0, ignore_eos=True))
    engine.step()
    yield engine
    engine.cancel()


def prompt(tokens: Prompt) -> Request:
    return request(tokens, max_tokens=1, temperature=0)


def test_a_prompt_is_evaluated_in_parts_while_answers_are_generated(model: Model, engine: Engine) -> None:
    running = engine.slots[0].job
    assert running
    late = submit(engine, prompt(LONG))
    for n_steps in range(1, 9):
        assert not late.tokens
        engine.step()
        assert running.answer.n_tokens == n_steps + 1
    assert late.tokens
    check_past(model, late)


def test_an_answer_that_waits_for_a_slot_keeps_to_its_constraint(engine: Engine) -> None:
    """When it gets one, the text that was forced after its first token is evaluated before it goes on."""
    pattern = "[0-9] apples and pears, [a-z]{9}"
    params = SamplingParams(sampler=TopP(), temperature=5.0, constraints=Constraints(regex=pattern))
    answers = [submit(engine, Request(LONG[:150], params)) for _ in range(6)]
    while any(answer.finish_reason is None for answer in answers):
        engine.step()
    assert all(re.fullmatch(pattern, answer.text) for answer in answers)


def test_short_prompts_do_not_wait_for_part_of_a_long_one(engine: Engine) -> None:
    engine.cancel()
    long = submit(engine, prompt(LONG))
    short = [submit(engine, prompt([n, *LONG[:80]])) for n in range(3)]
    run(engine, 2)  # they start together
    assert all(answer.tokens for answer in short)
    assert engine.unevaluated(long) > 300  # some of it was read beside them
    engine.step()
    assert long.tokens


def test_a_request_that_waits_for_a_prefix_lets_others_pass(engine: Engine) -> None:
    first = submit(engine, prompt(LONG))
    engine.step()
    second, other = submit(engine, prompt([*LONG, 7])), submit(engine, prompt("Two"))
    engine.step()
    assert (other.n_tokens, first.n_tokens, engine.n_waiting) == (1, 0, 1)
    while not second.tokens:
        engine.step()
    assert second.evaluated_tokens < 10  # the rest is copied from the first


def test_a_short_prompt_passes_a_long_one_until_that_has_waited(engine: Engine) -> None:
    long = submit(engine, prompt(LONG))
    n_passed = 0
    while not long.tokens:
        short = submit(engine, prompt([n_passed, *range(900, 950)]))
        while not (short.tokens or long.tokens):
            engine.step()
        n_passed += not long.tokens
    assert 1 <= n_passed <= 8


def test_much_of_each_prompt_of_a_burst_is_read_at_a_time(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, decoded: list[tuple[Segment, ...]]
) -> None:
    monkeypatch.setattr(slots, "_IN_STEP", 200)
    engine.cancel()
    decoded.clear()
    burst = [submit(engine, prompt([i, *LONG[:300]])) for i in range(4)]
    while not any(answer.tokens for answer in burst):
        engine.step()
    assert all(answer.tokens for answer in burst)
    assert all(len(part.tokens) >= 200 for part in decoded[0])
    assert len(decoded[0]) == 2


@pytest.mark.parametrize(("n", "most"), [(1, 3), (2, 7), (4, 6)])
def test_the_answers_of_a_burst_start_together(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, decoded: list[tuple[Segment, ...]], n: int, most: int
) -> None:
    """Also those that come while the first prompt is read, and after as many steps as the tokens fill.

    Those that have come are read in step, and in whole batches if no slot is left for others.
    """
    monkeypatch.setattr(PromptBudget, "tokens", lambda *_: 128)
    monkeypatch.setattr(PromptBudget, "unnoticed", 32)
    engine.cancel()
    decoded.clear()
    burst = [submit(engine, prompt([0, *LONG[:300]]))]
    engine.step()
    burst += [submit(engine, prompt([i, *LONG[:300]])) for i in range(1, n)]
    while not any(answer.tokens for answer in burst):
        engine.step()
    assert all(answer.tokens for answer in burst)
    assert len(decoded) <= most
    assert len({len(part.tokens) for part in decoded[1]}) == 1
