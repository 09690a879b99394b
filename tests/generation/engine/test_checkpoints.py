"""Models that cannot forget just the end of a sequence: what they remember; their texts are right."""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from mink_local import Greedy, MinK, Model, Request, SamplingParams, load_model
from mink_local.generation.answer import Answer
from mink_local.generation.engine.checkpoints import BEFORE_END, EVERY, places_in
from mink_local.generation.engine.kept import KeptCaches
from mink_local.generation.engine.slots import MIN_CHECKPOINT_PREFIX, common_prefix
from mink_local.llama.context import Context, Segment
from mink_local.llama.weights import Weights
from mink_local.models.gguf import read_metadata
from mink_local.models.memory import Footprint
from tests.support.architectures import STATEFUL, WITH_WINDOWS, write_architecture
from tests.support.effort import FACTOR

Loader = Callable[..., Model]
Tokens = list[int]
OF_A_TURN = 60  # tokens that may be evaluated to go back
ROUNDING = 0.1  # of logits whose standard deviation is 2.4: a prompt read in other batches differs by 0.06


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory, smollm2_path: Path) -> Callable[[str], Path]:
    folder = tmp_path_factory.mktemp("architectures")

    def path(arch: str) -> Path:
        found = folder / f"{arch}.gguf"
        return found if found.exists() else write_architecture(found, arch, smollm2_path)

    return path


QUICK = ("mamba", "qwen35", "gemma3")
SLOW = [pytest.param(arch, marks=pytest.mark.slow) for arch in STATEFUL + WITH_WINDOWS if arch not in QUICK]


@pytest.fixture(params=[*QUICK, *SLOW], scope="module")
def path(request: pytest.FixtureRequest, written: Callable[[str], Path]) -> Path:
    return written(request.param)


@pytest.fixture(scope="module")
def hybrid(written: Callable[[str], Path]) -> Path:
    """A Qwen3.5: attention beside gated delta nets."""
    return written("qwen35")


def loaded(
    path: Path, n_parallel: int = 1, n_ctx: int = 1024, checkpoint_memory: float | None = None
) -> Model:
    return load_model(
        path,
        n_ctx=n_ctx,
        n_parallel=n_parallel,
        checkpoint_memory=checkpoint_memory,
        n_gpu_layers=0,
        n_threads=1,
        trust=True,
    )


def words(n: int, seed: int = 0) -> Tokens:
    return [*map(int, np.random.default_rng(seed).integers(1000, 40_000, n))]


def greedy(prompt: Sequence[int], n: int = 8, **options: object) -> Request:
    return Request([*prompt], SamplingParams(sampler=Greedy(), max_tokens=n, ignore_eos=True, **options))  # type: ignore[arg-type]


def ask(model: Model, *requests: Request) -> list[Answer]:
    return [*model.answer_all(requests, ordered=True)]


def evaluated(model: Model, prompt: Sequence[int], n: int = 8) -> int:
    [answer] = ask(model, greedy(prompt, n))
    return answer.evaluated_tokens


class Fresh:
    """Answers as a model with one slot gives them that has seen nothing before."""

    def __init__(self, path: Path) -> None:
        self.model = loaded(path, checkpoint_memory=0)

    def check(self, *answers: Answer) -> None:
        """Check that tokens are the same, but where two are equally probable up to rounding."""
        for answer in answers:
            self.model.forget()
            [alone] = ask(self.model, answer.request)
            n_same = common_prefix(answer.tokens, alone.tokens)
            if answer.tokens != alone.tokens:
                row = self.model.logits(answer.prompt, alone.tokens[:n_same])
                assert abs(row[alone.tokens[n_same]] - row[answer.tokens[n_same]]) < ROUNDING

    def check_sampled(self, *answers: Answer) -> None:
        """Check that log-probabilities are the same up to rounding."""
        for answer in answers:
            self.model.forget()
            [alone] = self.model.logprobs([(answer.prompt, answer.tokens)])
            assert np.abs(np.subtract(answer.logprobs, alone)).max() < ROUNDING


def test_texts_are_those_of_a_fresh_model(path: Path, tmp_path: Path) -> None:
    """Whatever was read, copied, ended or cancelled before, and whatever runs beside."""
    fresh = Fresh(path)
    system = words(100)
    first = [*system, *words(30, 1)]
    with loaded(path, 3) as model:
        at_once = ask(model, *(greedy([*system, *words(n, n)]) for n in (30, 50, 9)), greedy(words(200, 5)))
        fresh.check(*at_once, *ask(model, *[greedy([*system, *words(50, 50)])] * 3))
        fresh.check(*ask(model, at_once[0].request))
        hot = SamplingParams(sampler=MinK(), temperature=2.0, max_tokens=8, ignore_eos=True, logprobs=0)
        fresh.check_sampled(*ask(model, *(Request(first, replace(hot, seed=seed)) for seed in range(4))))
    with loaded(path, 2) as model:
        [answer] = ask(model, greedy(first, 20))
        second = [*first, *answer.tokens[8:], *words(12, 2)]  # without its reasoning
        fresh.check(*ask(model, greedy(second)), *ask(model, greedy(second)))
        reply = model.reply(greedy([*second, *words(40, 3)], 500))
        next(reply)
        reply.close()
        fresh.check(*ask(model, greedy(second)), *ask(model, greedy([*first, *answer.tokens, *words(9, 4)])))
    prompts = [words(664, 6), [*words(664, 6)[:400], *words(30, 7)], words(664, 6)[:150], words(664, 6)]
    with loaded(path, 2) as model:
        fresh.check(*(each for prompt in prompts for each in ask(model, greedy(prompt))))
        pair, other = ((prompt[:-20], prompt[-20:]) for prompt in prompts[:2])
        [alone], [beside, _] = model.logprobs([pair]), model.logprobs([pair, other])
        assert np.abs(np.subtract(alone, beside)).max() < ROUNDING
    with loaded(path, 1, 256) as model:
        full, after, overflow = ask(model, greedy(words(100), 500), greedy(first), greedy(words(300)))
        assert [each.finish_reason for each in (full, overflow)] == ["length", "overflow"]
        assert full.prompt_tokens + full.n_tokens == model.n_ctx
        fresh.check(after)
        [answer] = ask(model, greedy(first, 20))
        assert model.save_cache(tmp_path / "cache", 1 << 30)
    with loaded(path, 1, 256) as model:
        assert model.load_cache(tmp_path / "cache") == len(first) + 19
        [again] = ask(model, greedy(second))
        assert again.evaluated_tokens <= OF_A_TURN
        fresh.check(again)
    fresh.model.close()


@pytest.mark.slow
@pytest.mark.parametrize("arch", STATEFUL)
@pytest.mark.parametrize("seed", range(2 * FACTOR))
def test_programs_of_turns_edits_cancels_and_forks(
    written: Callable[[str], Path], arch: str, seed: int
) -> None:
    """With room for a few checkpoints, or one, or none."""
    choose = random.Random(seed)
    memory = choose.choice([None, 0.1, 1e-6, 0])
    fresh, talks = Fresh(written(arch)), [words(60)]
    with loaded(written(arch), choose.randint(1, 4), checkpoint_memory=memory) as model:
        for step in range(12):
            prompts = choose.choices(talks, k=choose.randint(1, 4))
            prompts = [[*each, *words(choose.randint(1, 60), choose.randint(0, 9))] for each in prompts]
            if choose.random() < 0.3:
                reply = model.reply(greedy(prompts[0], 300))
                next(reply)
                choose.choice([reply.close, model.interrupt])()
            answers = ask(model, *(greedy(each, choose.randint(1, 20)) for each in prompts))
            fresh.check(*(each for each in answers if each.finish_reason != "interrupted"))
            for answer in answers:
                said = [*answer.prompt, *answer.tokens]
                talks.append([said, said[: choose.randint(1, len(said))], said[:-5]][step % 3])
            talks = [each for each in talks if len(each) < 500][-5:]
            n_checkpoints, size = model.core.engine.checkpoints
            assert n_checkpoints <= 1 or size <= model.core.engine.context.checkpoint_memory
    fresh.model.close()


@pytest.fixture
def conversation(hybrid: Path) -> Iterator[tuple[Model, Tokens, Answer]]:
    """A model that has read 3,000 tokens and answered."""
    with loaded(hybrid, n_ctx=4096) as model:
        prompt = words(3000)
        [answer] = ask(model, greedy(prompt, 24))
        yield model, prompt, answer


def test_the_next_turn_reads_what_is_new(conversation: tuple[Model, Tokens, Answer]) -> None:
    """Also if the template drops the reasoning and writes the beginning of the answer otherwise."""
    model, prompt, answer = conversation
    exact = [*prompt, *answer.tokens, *words(30, 1)]
    assert evaluated(model, exact) <= 31
    assert evaluated(model, [*prompt[:-5], *answer.tokens[8:], *words(30, 2)]) <= OF_A_TURN
    assert evaluated(model, exact) <= OF_A_TURN + 24  # the other branch again
    assert evaluated(model, exact) == 1


def test_an_older_turn_can_be_edited(hybrid: Path) -> None:
    """The one before last, by reading at most one turn and what is new; in a long prompt, too."""
    with loaded(hybrid, n_ctx=4096) as model:
        border = [model.weights.control_ids[0], *words(2, 9)]
        turns = [[*words(300, i), *border] for i in range(9)]
        assert evaluated(model, [*chain(*turns)]) == sum(map(len, turns))
        edited = [*chain(*turns[:6]), *words(40, 20)]
        assert evaluated(model, edited) <= len(turns[0]) + 40 + OF_A_TURN
    with loaded(hybrid, n_ctx=4096) as model:
        talk: Tokens = []
        for turn in turns:
            talk += turn
            [answer] = ask(model, greedy(talk))
            talk += answer.tokens
        edited = [*talk[: -2 * (len(turns[0]) + 8)], *words(40, 20)]
        assert evaluated(model, edited) <= len(turns[0]) + 8 + 40 + OF_A_TURN


def test_a_system_prompt_is_read_once(hybrid: Path) -> None:
    system = words(150)
    with loaded(hybrid, 3) as model:
        answers = ask(model, *(greedy([*system, *words(n, n)]) for n in (25, 47, 5)))
        assert [each.evaluated_tokens for each in answers] == [175, 47, 5]


def test_caches_on_disk_have_them(hybrid: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that the next turn goes on after a restart; a file from which a prompt could not is not read."""
    prompt = words(600)
    with loaded(hybrid) as model:
        core = model.core
        core.engine.kept = KeptCaches(tmp_path, 1 << 30, core.engine.context)
        [answer] = ask(model, greedy(prompt, 24))
        core.thread.call_when_idle(core.engine.keep_all)
        core.engine.kept.close()
    reads: list[Path] = []
    read = KeptCaches.read

    def watched(self: KeptCaches, path: Path, client: str = "") -> NDArray[np.uint8] | None:
        reads.append(path)
        return read(self, path, client)

    monkeypatch.setattr(KeptCaches, "read", watched)
    with loaded(hybrid) as model:
        model.core.engine.kept = KeptCaches(tmp_path, 1 << 30, model.core.engine.context)
        assert evaluated(model, [*prompt[:400], *words(9, 1)]) == 409
        assert not reads
        assert evaluated(model, [*prompt[:-5], *answer.tokens[8:], *words(30, 2)]) <= OF_A_TURN
        assert len(reads) == 1


@pytest.mark.parametrize("memory", [0, 1e-6, None])
def test_nobody_waits_for_what_cannot_be_shared(
    hybrid: Path, monkeypatch: pytest.MonkeyPatch, memory: float | None
) -> None:
    copies: list[int] = []
    copy = Context.copy

    def counted(self: Context, source: int, target: int) -> None:
        copies.append(target)
        copy(self, source, target)

    monkeypatch.setattr(Context, "copy", counted)
    with loaded(hybrid, 2, checkpoint_memory=memory) as model:
        engine = model.core.engine
        prompts = [[*words(700), *words(50, i)] for i in (1, 2)]
        decodings = [engine.prepare(greedy(each)) for each in prompts]
        engine.enqueue(*decodings)
        engine.launch()
        assert engine.n_busy == (2 if memory == 0 else 1)
        while not engine.idle:
            engine.step()
        first, second = (each.answer.evaluated_tokens for each in decodings)
        # It does not wait for the last few tokens that are shared.
        assert first == 750
        assert second == 750 if memory == 0 else 50 <= second < 50 + MIN_CHECKPOINT_PREFIX
        assert len(copies) == (memory != 0)
        assert (engine.checkpoints == (0, 0)) == (memory == 0)
        assert ("checkpoints" in str(model.placement)) == (memory != 0)


def test_the_least_recently_used_are_dropped(hybrid: Path) -> None:
    one = Footprint(read_metadata(hybrid)).checkpoint + 200
    with loaded(hybrid, 2, checkpoint_memory=5 * one / 1e6) as model:
        for seed in range(6):
            evaluated(model, words(100, seed))
            evaluated(model, words(100, 0))  # used all the time
            number, size = model.core.engine.checkpoints
            assert 1 < number <= 5
            assert size <= 5 * one
        assert evaluated(model, words(100, 0)) == 1


@pytest.mark.parametrize("arch", STATEFUL)
def test_what_a_checkpoint_takes_is_known_from_the_file(written: Callable[[str], Path], arch: str) -> None:
    computed = Footprint(read_metadata(written(arch))).checkpoint
    context = Context(Weights(written(arch), trust=True), 256, 1)
    context.decode(Segment(words(10), 0))
    assert computed <= len(context.checkpoint()) <= computed + 200  # with names and sizes
    context.close()


def test_places_of_checkpoints() -> None:
    """At the end, before what begins the answer, at borders of messages, and far apart in a long text."""
    talk = [7, *range(100, 150), 7, *range(200, 240), 7, 8, *range(300, 350), 7, 9, 10]
    assert places_in(talk, 1, [7]) == [51, 92, len(talk) - BEFORE_END, len(talk) - 1]
    for n_tokens in (1, 2, BEFORE_END, 40, 3 * EVERY):
        for n_outputs in (1, n_tokens):
            places = places_in(range(n_tokens), n_outputs, [])
            assert places == sorted(set(places))
            assert all(0 <= place <= n_tokens - n_outputs for place in places)
    assert {EVERY, 2 * EVERY} < set(places_in(range(3 * EVERY), 1, []))
