"""Many answers at a time: each is the model's answer to its own prompt, whatever is written beside it."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from mink_local import Constraints, MinK, load_model
from mink_local.errors import GenerationError, ModelError
from mink_local.generation import parallel as parallel_module
from mink_local.generation.answer import Answer, Request
from mink_local.generation.model import Model, Sampling
from mink_local.llama.context import Context, Segment
from mink_local.models.gguf import read_metadata
from mink_local.models.memory import kv_bytes_per_token
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
def model() -> Model:
    return load_model("smollm2-135m", n_ctx=4 * 512, n_parallel=4)


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> dict[int, list[NDArray[np.float32]]]:
    """The logits that every answer's tokens were drawn from, by its index."""
    rows: dict[int, list[NDArray[np.float32]]] = {}
    draw = Answer.draw

    def watched(self: Answer, logits: NDArray[np.float32]) -> int:
        rows.setdefault(self.index, []).append(logits.copy())
        return draw(self, logits)

    monkeypatch.setattr(Answer, "draw", watched)
    return rows


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> dict[int, list[int]]:
    """Every answer's tokens, the one that ended it included, by its index."""
    tokens: dict[int, list[int]] = {}
    accept = Answer.accept

    def watched(self: Answer, token: int, k: int | None = None) -> str:
        tokens.setdefault(self.index, []).append(token)
        return accept(self, token, k)

    monkeypatch.setattr(Answer, "accept", watched)
    return tokens


def logits_alone(model: Model, prompt: list[int], answer: list[int]) -> list[NDArray[np.float32]]:
    """The logits at every step of an answer, token by token in a context of its own."""
    context = Context(model._weights, 512, 2)
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
        alone = logits_alone(model, list(answer.prompt), written[:-1])
        assert len(rows) == len(alone) == len(answer.k) == len(written)
        for here, there in zip(rows, alone, strict=True):
            assert np.abs(here - there).max() < 0.02 * np.ptp(there)


def test_every_answer_sees_its_own_past(
    model: Model, seen: dict[int, list[NDArray[np.float32]]], taken: dict[int, list[int]]
) -> None:
    """Slots are refilled, prompts copied, rewound and read in the batches of others."""
    shared = "Answer in one sentence and be polite. Here is the question that I have for you today: "
    requests = [
        Request(ask(prefix + text), MinK(), temperature, 3 + (7 * i) % 17, seed=i)
        for i, (prefix, text, temperature) in enumerate(
            [("", text, 2.0) for text in QUESTIONS]
            + [(shared, text, 1.0) for text in QUESTIONS[:4]]
            + [("", QUESTIONS[3], temperature) for temperature in (0.0, 1.0, 5.0, 10.0, 0.5) * 3]
        )
    ]
    answers = list(forget(model).complete(requests))
    assert sorted(answer.index for answer in answers) == list(range(len(requests)))
    see_their_own_past(model, answers, taken, seen)
    for answer in answers:
        pieces = b"".join(map(model._weights.piece, taken[answer.index]))
        assert pieces.decode("utf-8", "replace").startswith(answer.text)


def test_a_model_that_cannot_forget_just_the_end(
    tmp_path: Path,
    smollm2_path: Path,
    seen: dict[int, list[NDArray[np.float32]]],
    taken: dict[int, list[int]],
) -> None:
    """A recurrent one: it reads a prompt again where another would rewind, and after an interrupt."""
    file = write_recurrent_model(tmp_path / "mamba.gguf", smollm2_path)
    model = load_model(str(file), n_ctx=4 * 256, n_parallel=4)
    requests = [Request(QUESTIONS[i // 3], TopP(), 0.5, 3 + (5 * i) % 7, seed=i) for i in range(18)]
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


def test_one_at_a_time_is_chat() -> None:
    smollm2 = load_model("smollm2-135m", n_ctx=512, n_parallel=1)
    requests = [
        Request(ask(text), sampler, temperature, 20, seed=5)
        for text in QUESTIONS[:4]
        for sampler, temperature in ((MinK(), 5.0), (TopP(), 1.0), (Greedy(), 1.0))
    ]
    forget(smollm2)
    together = [(a.text, a.k, a.finish_reason, a.n_tokens) for a in smollm2.complete(requests)]
    forget(smollm2)
    one_by_one = []
    for request in requests:
        reply = smollm2.chat(
            request.prompt,  # type: ignore[arg-type]
            sampler=request.sampler,
            temperature=request.temperature,
            max_tokens=20,
            seed=5,
        )
        one_by_one.append(("".join(reply), reply.k, reply.finish_reason, reply.n_tokens))
    assert together == one_by_one


def test_a_prompt_is_evaluated_once(model: Model) -> None:
    requests = [
        Request(ask(text), MinK(), temperature, 6, seed=1)
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
    model: Model, decoded: list[tuple[Segment, ...]]
) -> None:
    """Among answers that are drawn from the same logits: not one token is evaluated for a second time, and
    what several have begun with is evaluated for all of them."""
    requests = [
        Request(ask(QUESTIONS[3]), MinK(), temperature, 30, seed=1) for temperature in (0.0, 1.0, 2.0, 5.0)
    ]
    forget(model)
    answers = list(model.complete(requests))
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
    requests = [Request(ask(QUESTIONS[3]), TopP(), 10.0, 6, seed=i) for i in range(9)]
    answers = list(forget(model).complete(requests))
    assert sorted(answer.index for answer in answers) == list(range(9))
    assert len({tuple(answer.tokens[:1]) for answer in answers}) == 9, "no two begin alike"
    assert [len(parts) for parts in decoded[:2]] == [1, 4]
    evaluated = sum(len(part.tokens) for parts in decoded for part in parts)
    assert evaluated <= answers[0].prompt_tokens + 9 * 6, "nobody's prompt is read again"


def test_a_gap_is_closed(model: Model, decoded: list[tuple[Segment, ...]]) -> None:
    """llama.cpp evaluates only neighbouring sequences together."""
    requests = [
        Request(ask(text), MinK(), temperature, 3 + (5 * i) % 13, seed=i)
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
    answers = list(model.generate([ask(examples + text) for text in QUESTIONS], max_tokens=4, seed=1))
    shared = model.count_tokens(ask(examples)) - 8
    whole = [answer for answer in answers if answer.evaluated_tokens == answer.prompt_tokens]
    assert len(whole) == 1
    assert all(a.prompt_tokens - a.evaluated_tokens > shared for a in answers if a not in whole)


def test_results_say_whose_they_are(model: Model) -> None:
    prompts = [ask(text) for text in QUESTIONS]
    answers = list(model.generate(prompts, temperature=0.0, max_tokens=25, seed=2**32 - 4))
    assert sorted(a.index for a in answers) == list(range(len(prompts)))
    for answer in answers:
        assert answer.request.prompt == prompts[answer.index]
        assert answer.seed == (2**32 - 4 + answer.index) % (2**32 - 1)
        assert answer.finish_reason in ("stop", "length")
        assert answer.n_tokens <= 25
        assert answer.seconds > 0
    assert next(answer.text for answer in answers if answer.index == 4).startswith("12 times 12 is")


def test_requests_are_taken_as_there_is_room(model: Model) -> None:
    taken: list[int] = []

    def requests() -> Iterator[Request]:
        for i in range(20):
            taken.append(i)
            yield Request(ask(QUESTIONS[i % 8]), max_tokens=2 + i % 3, seed=i)

    for done, _ in enumerate(model.complete(requests()), start=1):
        assert len(taken) <= done + model.n_parallel + 1
    assert len(taken) == 20


def test_a_prompt_that_does_not_fit_is_said_and_the_rest_goes_on(model: Model) -> None:
    prompts = [ask(QUESTIONS[0]), ask("word " * 600), ask(QUESTIONS[1])]
    answers = {a.index: a for a in model.generate(prompts, temperature=0.0, max_tokens=4)}
    assert [answers[i].finish_reason for i in range(3)] == ["length", "overflow", "length"]
    assert (answers[1].text, answers[1].n_tokens, answers[1].evaluated_tokens) == ("", 0, 0)
    assert answers[1].prompt_tokens > model.n_ctx


def test_a_text_is_continued_without_a_chat_template(model: Model) -> None:
    """With its control tokens read as such: the rendered template is the same prompt."""
    rendered = model._template._render(ask(QUESTIONS[0]))
    text, messages = (
        next(model.generate([prompt], temperature=0.0, max_tokens=12)).text
        for prompt in (rendered, ask(QUESTIONS[0]))
    )
    assert text == messages
    counting = next(model.generate(["1, 2, 3, 4, 5, 6,"], temperature=0.0, max_tokens=6))
    assert counting.text.startswith(" 7")


def test_stop_strings_and_constraints_are_each_answers_own(model: Model) -> None:
    requests = [
        Request(ask(QUESTIONS[3]), temperature=0.0, max_tokens=30),
        Request(ask(QUESTIONS[3]), temperature=0.0, max_tokens=30, stop=["Max"]),
        Request(ask(QUESTIONS[3]), temperature=0.0, constraints=Constraints(grammar='root ::= "yes" | "no"')),
    ]
    plain, stopped, constrained = sorted(model.complete(requests), key=lambda answer: answer.index)
    assert stopped.text == plain.text[: plain.text.index("Max")]
    assert stopped.finish_reason == "stop"
    assert constrained.text in ("yes", "no")


@pytest.mark.parametrize("before", [0, 1, 5])
def test_interrupt_ends_what_was_begun(model: Model, before: int) -> None:
    expected = [a.text for a in forget(model).generate([ask(QUESTIONS[0])], temperature=0.0, max_tokens=20)]
    requests = (Request(ask(QUESTIONS[i % 8]), max_tokens=8, seed=i) for i in range(40))
    written = model.complete(requests)
    finished = [next(written) for _ in range(before)]
    model.interrupt()
    cut = list(written)
    assert all(answer.finish_reason in ("stop", "length") for answer in finished)
    assert len([a for a in cut if a.finish_reason == "interrupted"]) <= model.n_parallel
    assert len(cut) <= 2 * model.n_parallel
    again = [a.text for a in forget(model).generate([ask(QUESTIONS[0])], temperature=0.0, max_tokens=20)]
    assert again == expected


def test_interrupt_ends_answers_that_share_a_sequence(model: Model) -> None:
    written = model.complete(Request(ask(QUESTIONS[3]), max_tokens=n, temperature=0.0) for n in (2, 9, 9, 9))
    first = next(written)
    model.interrupt()
    others = list(written)
    assert (first.n_tokens, first.finish_reason) == (2, "length")
    assert [(a.n_tokens, a.finish_reason) for a in others] == [(2, "interrupted")] * 3


def test_a_run_that_is_dropped_harms_nothing(model: Model) -> None:
    prompts = [ask(text) for text in QUESTIONS]
    abandoned = model.generate(prompts, max_tokens=30, seed=1)
    next(abandoned)
    assert "12" in next(model.generate([ask(QUESTIONS[4])], temperature=0.0, max_tokens=20)).text
    with pytest.raises(GenerationError, match="another answer was begun"):
        list(abandoned)


def test_an_option_out_of_range_is_said_when_it_comes(model: Model) -> None:
    with pytest.raises(ValueError, match="temperature must be"):
        list(model.generate([ask("Hello")], temperature=-1.0))
    with pytest.raises(ValueError, match="there is no message"):
        list(model.generate([ask("Hello"), []], max_tokens=3))


def test_a_broken_model_is_said(tiny: Callable[..., Path]) -> None:
    model = load_model(str(tiny(scale=float("nan"))), n_parallel=3)
    with pytest.raises(GenerationError, match="a NaN among its logits"):
        list(model.generate([ask(text) for text in QUESTIONS]))


def test_tokens_are_drawn_in_the_graph_of_a_batch_too() -> None:
    """The same batches, so the same logits: where nothing is left to chance, the same text and cuts."""
    texts = []
    choices: tuple[Sampling, ...] = ("graph", "host")
    for sampling in choices:
        model = load_model("smollm2-135m", n_ctx=768, n_parallel=3, sampling=sampling)
        answers = model.generate([ask(text) for text in QUESTIONS[:5]], temperature=0.0, max_tokens=12)
        texts.append({answer.index: (answer.text, answer.k) for answer in answers})
    assert texts[0] == texts[1]


# Memory


def test_many_answers_have_room_beside_a_conversation(
    smollm2: Model, decoded: list[tuple[Segment, ...]], caplog: pytest.LogCaptureFixture
) -> None:
    """A model that was loaded without a word about them writes as many at a time as suit the device."""
    conversation = ask(QUESTIONS[3])
    first = smollm2.chat(conversation, temperature=0.0, max_tokens=8)
    conversation += [{"role": "assistant", "content": "".join(first)}, {"role": "user", "content": "Go on."}]
    decoded.clear()
    answers = list(smollm2.generate([ask(text) for text in QUESTIONS], temperature=0.0, max_tokens=10))
    assert len(answers) == max(map(len, decoded)) == len(QUESTIONS)
    context = smollm2._batches[1].context
    assert context.n_ctx < smollm2.n_ctx
    assert len(list(smollm2.generate([ask("word " * 400), ask("Hello")], max_tokens=200))) == 2
    assert smollm2._batches[1].context.n_ctx > context.n_ctx, "the longer prompts need another cache"
    too_long = smollm2.generate([ask("word " * 2000), ask("Hello")], max_tokens=2)
    assert sorted(str(answer.finish_reason) for answer in too_long) == ["length", "overflow"]
    again = smollm2.chat(conversation, temperature=0.0, max_tokens=8)
    assert "".join(again)
    assert again.evaluated_tokens < again.prompt_tokens - first.prompt_tokens + 2
    assert caplog.messages == []


def test_reserve() -> None:
    model = load_model("smollm2-135m", n_ctx=256)
    assert (model.n_ctx, model.n_parallel) == (256, 1)
    model.reserve(300, 8)
    assert model.n_ctx >= 300
    assert model.n_parallel == 8
    assert len(list(model.generate([ask(text) for text in QUESTIONS], max_tokens=3))) == 8
    model.reserve(10**9, 2)
    assert model.n_ctx == model._weights.n_ctx_train
    model.reserve(256)
    assert model.n_parallel == parallel_module.ON_CPU
    for wrong in ((0, 1), (256, 0), (256, 100_000)):
        with pytest.raises(ValueError, match="must be"):
            model.reserve(*wrong)
    assert "".join(model.chat(ask("Hello"), max_tokens=2))


@pytest.mark.parametrize(
    ("free", "wanted", "possible"), [(10, 8, 8), (5, 8, 5), (0.1, 8, 1), (20, "auto", 5)]
)
def test_answers_at_a_time_are_those_that_memory_is_there_for(
    smollm2: Model,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    free: float,
    wanted: Any,
    possible: int,
) -> None:
    """A machine with memory for `free` answers, played by what is asked of it."""
    weights = smollm2._weights
    each = 256 * kv_bytes_per_token(read_metadata(weights.path))
    monkeypatch.setattr(parallel_module, "_free_memory", lambda _: int(free * each))
    context = parallel_module.make_context(weights, 256, 1, wanted)
    assert context.n_seq == possible
    warned = [f"memory is short: {possible} answers at a time instead of {wanted}"]
    assert caplog.messages == (warned if possible != wanted and wanted != "auto" else [])


HUNGRY = """
import resource, sys
from mink_local import load_model
from mink_local.generation import parallel
from mink_local.errors import ModelError
model = load_model("smollm2-135m", n_ctx=256)
list(model.generate([[{"role": "user", "content": "Hello"}]], max_tokens=2))
parallel._free_memory = lambda _: 1 << 60  # nobody warned us
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 30), resource.RLIM_INFINITY))
model.reserve(2048, 64)
print(model.n_parallel, len(list(model.generate(["Hello"] * 3, max_tokens=2))))
"""


def test_memory_that_is_not_to_be_had_is_asked_for_in_halves() -> None:
    """With 1 GiB of address space left, 64 answers of 92 MiB each fail inside llama.cpp."""
    result = subprocess.run([sys.executable, "-c", HUNGRY], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    possible, answered = map(int, result.stdout.split())
    assert 1 <= possible < 64
    assert answered == 3
    assert f"memory is short: {possible} answers at a time instead of 64" in result.stderr


def test_a_context_that_fails_leaves_the_model_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    model = load_model("smollm2-135m", n_ctx=256)
    make = parallel_module.make_context

    def refuse(weights: Any, n_ctx: int, *rest: Any) -> Context:
        if n_ctx > 256:
            raise ModelError("no memory")
        return make(weights, n_ctx, *rest)

    monkeypatch.setattr("mink_local.generation.model.make_context", refuse)
    with pytest.raises(ModelError, match="no memory"):
        model.reserve(2048, 2)
    assert (model.n_ctx, model.n_parallel) == (256, 1)
    assert "".join(model.chat(ask("Hello"), max_tokens=2))


# mink-bench batch


def test_bench_batch() -> None:
    result = subprocess.run(
        [
            sys.executable,
            "-m",
            "mink_local.bench.cli",
            *["batch", "--tokens", "5", "--rounds", "1", "--json", "--parallel", "1", "--parallel", "3"],
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    one, three = json.loads(result.stdout)
    assert (one["n_parallel"], three["n_parallel"], one["gain"]) == (1, 3, 1.0)
    assert (
        min(row[key] for row in (one, three) for key in ("tokens_per_second", "bare_tokens_per_second")) > 0
    )
