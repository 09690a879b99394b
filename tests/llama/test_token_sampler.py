"""From logits to a token: the forms of the sampler, constraints, mirostat, lifetimes."""

import ctypes
import gc
import json
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from llama_cpp import Llama, LogitsProcessorList
from llama_cpp import llama_cpp as C
from numpy.typing import NDArray

from mink_local import load_model
from mink_local.errors import GenerationError
from mink_local.generation.model import Model
from mink_local.llama.constraints import Constrainer, Constraints
from mink_local.llama.context import Segment
from mink_local.llama.token_sampler import TokenSampler
from mink_local.models.catalog import resolve
from mink_local.native import check, native_sampler
from mink_local.samplers import Greedy, MinK, Mirostat, Sampler
from tests.conftest import forget
from tests.support import reference
from tests.support.chain import SamplerChain
from tests.support.memory import grown, rss

STORY = [{"role": "user", "content": "Tell me a story about a robot."}]
JSON = [{"role": "user", "content": "Describe a cat as JSON with its name and age."}]
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer"}},
    "required": ["name", "age"],
}
INF = float("inf")
NAN = float("nan")

Row = NDArray[np.float32]


@pytest.fixture(scope="module")
def smollm2() -> Model:
    return load_model("smollm2-135m", n_ctx=1024, n_threads=1)


@pytest.fixture(scope="module")
def llama() -> Iterator[Llama]:
    """The same model in llama-cpp-python's own class, with the context options of ours: logits of
    other options (flash attention, batch size, threads) differ in their last bits."""
    path = str(resolve("smollm2-135m").path)
    options = {"n_ctx": 1024, "n_batch": 512, "n_threads": 1, "n_threads_batch": 1, "flash_attn": True}
    model = Llama(path, verbose=False, **options)
    yield model
    model.close()


@pytest.fixture(scope="module")
def rows(smollm2: Model) -> Row:
    """Logits of the real model over the steps of a text, (32, V)."""
    context = smollm2.engine.context
    forget(smollm2)
    tokens = smollm2.weights.tokenize(
        "Robots were rare, and so the small town had built its own, out of what lay around: an old oven, "
        "two bicycles, a radio.",
        add_special=True,
        parse_special=False,
    )
    taken = []
    for position, token in enumerate(tokens[:32]):
        context.decode(Segment([token], position))
        taken.append(context.logits().copy())
    context.clear()
    return np.array(taken)


# One seed, one text: logits processor, direct form, native form


@pytest.mark.parametrize(("temperature", "seed"), [(0.5, 0), (1.0, 7), (5.0, 7), (20.0, 4294967294)])
def test_every_form_draws_the_same_tokens(
    smollm2: Model, llama: Llama, temperature: float, seed: int
) -> None:
    steps: list[Row] = []
    drawn: list[int] = []

    def processor(input_ids: Any, scores: Row) -> Row:
        steps.append(np.array(scores))
        drawn.append(int(input_ids[-1]))
        return MinK()(input_ids, scores)

    prompt = smollm2.tokens(STORY)
    answer: Any = llama.create_completion(
        prompt,
        max_tokens=110,
        temperature=temperature,
        seed=seed,
        top_k=0,
        top_p=1.0,
        min_p=0.0,
        logits_processor=LogitsProcessorList([processor]),
    )
    tokens = drawn[1:]  # a step is shown the token of the step before
    assert len(tokens) >= 100

    n_vocab = smollm2.weights.n_vocab
    direct = TokenSampler(MinK(), temperature, seed, n_vocab)
    assert [direct(row, 1) for row in steps[:-1]] == tokens
    native = SamplerChain(
        native_sampler(MinK(), n_vocab),
        C.llama_sampler_init_temp(temperature),
        C.llama_sampler_init_dist(seed),
    )
    assert [native.sample(row) for row in steps[:-1]] == tokens
    native.free()

    reply = smollm2.chat(STORY, temperature=temperature, seed=seed, max_tokens=110)
    assert "".join(reply) == answer["choices"][0]["text"]


# Rows that nothing can be drawn from


@pytest.mark.parametrize("sampler", [MinK(), Greedy(), Mirostat()], ids=str)
def test_broken_rows_name_the_step(sampler: Sampler) -> None:
    draw = TokenSampler(sampler, 1.0, 1, 1000)
    row = np.zeros(1000, np.float32)
    row[17] = NAN
    with pytest.raises(GenerationError, match="a NaN among its logits at step 3"):
        draw(row, 3)
    with pytest.raises(GenerationError, match="no finite logit at step 4"):
        draw(np.full(1000, -INF, np.float32), 4)
    row[17] = INF
    assert TokenSampler(Greedy(), 0.0, 1, 1000)(row, 5) == 17


def test_a_ban_does_not_hide_a_nan(smollm2: Model) -> None:
    draw = constrained(smollm2, Constraints(logit_bias={17: -INF}))
    row = np.zeros(smollm2.weights.n_vocab, np.float32)
    row[17] = NAN
    with pytest.raises(GenerationError, match="a NaN among its logits at step 2"):
        draw(row, 2)
    row[17] = INF  # inf - inf would be one
    assert draw(row, 3) != 17


def test_constraints_that_leave_nothing(smollm2: Model) -> None:
    n_vocab = smollm2.weights.n_vocab
    draw = constrained(smollm2, Constraints(logit_bias=dict.fromkeys(range(n_vocab), -INF)))
    with pytest.raises(GenerationError, match="leave no token at step 6"):
        draw(np.zeros(n_vocab, np.float32), 6)
    with pytest.raises(GenerationError, match="the model gave no finite logit at step 7"):
        draw(np.full(n_vocab, -INF, np.float32), 7)


# Constraints


def constrained(
    model: Model, constraints: Constraints, prompt: list[int] | None = None, sampler: Sampler | None = None
) -> TokenSampler:
    constrainer = Constrainer(constraints, model.weights, prompt or [])
    return TokenSampler(sampler or MinK(), 1.0, 1, model.weights.n_vocab, constrainer)


def test_penalties_are_llama_cpps(smollm2: Model, rows: Row) -> None:
    history = [5, 9, 9, 100, 5, 5, 77]
    constraints = Constraints(
        repeat_penalty=1.3, frequency_penalty=0.25, presence_penalty=-0.5, penalty_last_n=5
    )
    constrainer = Constrainer(constraints, smollm2.weights, history)
    for token in (3, 77, 3):
        changed = constrainer.apply(rows[0])
        expected = reference.penalties(rows[0], history[-5:], 1.3, 0.25, -0.5)
        np.testing.assert_allclose(changed, expected, rtol=1e-6)
        constrainer.accept(token)
        history.append(token)


def test_dry_takes_from_what_would_repeat(smollm2: Model) -> None:
    """a b c … a b: c would continue a repetition of 2, so it loses 0.8 * 1.75^(2 - 1)."""
    a, b, c = 20_011, 20_012, 20_013
    n_vocab = smollm2.weights.n_vocab
    history = [a, b, c, 40, 41, a, b]
    options: dict[str, Any] = {"dry_multiplier": 0.8, "dry_allowed_length": 1}
    zeros = np.zeros(n_vocab, np.float32)
    changed = Constrainer(Constraints(**options), smollm2.weights, history).apply(zeros)
    assert changed[c] == pytest.approx(-0.8 * 1.75)
    assert np.count_nonzero(changed) == 1
    text = smollm2.weights.piece(b).decode()
    broken = Constraints(**options, dry_sequence_breakers=[text])
    assert not Constrainer(broken, smollm2.weights, history).apply(zeros).any()


def test_logit_bias_bans_and_pushes(smollm2: Model, rows: Row) -> None:
    best, second = np.argsort(-rows[0])[:2].tolist()
    banned = constrained(smollm2, Constraints(logit_bias={best: -INF}), sampler=Greedy())
    assert banned(rows[0], 1) == second
    pushed = constrained(smollm2, Constraints(logit_bias={123: 100.0}))
    assert pushed(rows[0], 1) == 123
    assert pushed.k == 1


@pytest.mark.parametrize("temperature", [1.0, 5.0])
def test_constrained_text_is_that_of_one_llama_cpp_chain(smollm2: Model, temperature: float) -> None:
    """bias, penalties, DRY, grammar, native Min-k, temp, dist, in one chain that llama.cpp samples from."""
    seed, n_tokens = 4, 50
    text = "root ::= [a-zA-Z .,\\n]*"
    weights, context = smollm2.weights, smollm2.engine.context
    constraints = Constraints(
        logit_bias={weights.tokenize(" robot", add_special=False, parse_special=False)[0]: -2.0},
        repeat_penalty=1.2,
        frequency_penalty=0.1,
        presence_penalty=0.1,
        dry_multiplier=0.8,
        grammar=text,
    )
    reply = smollm2.chat(
        STORY, temperature=temperature, seed=seed, max_tokens=n_tokens, constraints=constraints
    )
    answer = "".join(reply)
    assert re.fullmatch(r"[a-zA-Z .,\n]*", answer)

    bias = (C.llama_logit_bias * 1)(*[C.llama_logit_bias(t, b) for t, b in constraints.logit_bias.items()])
    breakers = (ctypes.c_char_p * 4)(b"\n", b":", b'"', b"*")
    chain = SamplerChain(
        C.llama_sampler_init_logit_bias(weights.n_vocab, 1, bias),
        C.llama_sampler_init_penalties(weights.n_vocab, 64, 1.2, 0.1, 0.1),
        C.llama_sampler_init_dry(weights.vocab, 0.8, 1.75, 2, 64, breakers, 4),
    )
    prompt = smollm2.tokens(STORY)
    for token in prompt:
        C.llama_sampler_accept(chain.handle, token)
    for sampler in (
        C.llama_sampler_init_grammar(weights.vocab, text.encode(), b"root"),
        cut := native_sampler(MinK(), weights.n_vocab),
        C.llama_sampler_init_temp(temperature),
        C.llama_sampler_init_dist(seed),
    ):
        C.llama_sampler_chain_add(chain.handle, sampler)
    forget(smollm2)
    tokens = list(prompt)
    k: list[int] = []
    batch = tokens
    while len(k) < len(reply.k):
        context.decode(Segment(batch, len(tokens) - len(batch)))
        batch = [C.llama_sampler_sample(chain.handle, context.handle, -1)]
        tokens += batch
        k.append(check(cut, 1))
    context.clear()
    chain.free()
    assert k == reply.k
    assert b"".join(map(weights.piece, tokens[len(prompt) :])).decode() == answer


@pytest.mark.parametrize("temperature", [0.0, 1.0, 8.0])
def test_the_end_of_a_grammar_ends_the_answer(smollm2: Model, temperature: float) -> None:
    choice = Constraints(grammar='root ::= "yes" | "no"')
    reply = smollm2.chat(STORY, temperature=temperature, seed=1, constraints=choice)
    assert "".join(reply) in ("yes", "no")
    assert reply.finish_reason == "stop"


@pytest.mark.parametrize("schema", [SCHEMA, json.dumps(SCHEMA)], ids=["dict", "text"])
def test_json_schema(smollm2: Model, schema: Any) -> None:
    for seed in range(3):
        reply = smollm2.chat(
            JSON, temperature=5.0, seed=seed, max_tokens=100, constraints=Constraints(json_schema=schema)
        )
        cat = json.loads("".join(reply))
        assert isinstance(cat["name"], str)
        assert isinstance(cat["age"], int)
        assert reply.finish_reason == "stop"


def test_greedy_over_what_is_left(smollm2: Model) -> None:
    """At temperature 0 every seed gives the same text, and it is the likeliest that the grammar has."""
    digits = Constraints(grammar="root ::= [0-9]")
    answers = {"".join(smollm2.chat(STORY, temperature=0, seed=n, constraints=digits)) for n in (1, 2)}
    forget(smollm2).engine.context.decode(Segment(smollm2.tokens(STORY), 0))
    row = smollm2.engine.context.logits().copy()
    smollm2.engine.context.clear()
    pieces = [smollm2.weights.piece(token) for token in range(row.size)]
    likeliest = max((t for t in range(row.size) if re.fullmatch(rb"[0-9]", pieces[t])), key=row.__getitem__)
    assert answers == {pieces[likeliest].decode()}


def test_constraints_that_are_off_change_nothing(smollm2: Model) -> None:
    plain, off = (
        "".join(smollm2.chat(STORY, temperature=4.0, seed=3, max_tokens=30, constraints=constraints))
        for constraints in (None, Constraints())
    )
    assert plain == off


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"repeat_penalty": 0.0}, "repeat_penalty must be a number from 1e-30 to 1e[+]30, not 0.0"),
        ({"repeat_penalty": NAN}, "repeat_penalty"),
        ({"frequency_penalty": INF}, "frequency_penalty"),
        ({"presence_penalty": NAN}, "presence_penalty"),
        ({"penalty_last_n": -1}, "penalty_last_n"),
        ({"dry_multiplier": -0.5}, "dry_multiplier"),
        ({"dry_base": 0.5}, "dry_base"),
        ({"dry_allowed_length": -1}, "dry_allowed_length"),
        ({"dry_penalty_last_n": -1}, "dry_penalty_last_n"),
        ({"dry_sequence_breakers": "\n"}, "dry_sequence_breakers must be a list"),
        ({"dry_sequence_breakers": [""]}, "dry_sequence_breakers must be a list"),
        ({"logit_bias": {5: INF}}, "the logit bias of token 5"),
        ({"logit_bias": {5: NAN}}, "the logit bias of token 5"),
        ({"grammar": " "}, "the grammar is empty"),
        ({"grammar": 'root ::= "\0"'}, "NUL"),
        ({"grammar": 'root ::= "a"', "json_schema": "{}"}, "not both"),
    ],
)
def test_options_out_of_range(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        Constraints(**options)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"logit_bias": {49152: 1.0}}, "logit_bias names token 49152: the model's are 0 to 49151"),
        ({"logit_bias": {-1: 1.0}}, "logit_bias names token -1"),
        ({"grammar": 'root ::= "a'}, "the grammar does not parse: unexpected end of input"),
    ],
)
def test_constraints_that_a_model_cannot_take(smollm2: Model, options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        smollm2.chat(STORY, constraints=Constraints(**options))


def test_large_windows_take_no_memory(smollm2: Model) -> None:
    before = rss()
    everything = Constraints(
        repeat_penalty=1.1, penalty_last_n=2**40, dry_multiplier=1.0, dry_penalty_last_n=2**40
    )
    constrainer = Constrainer(everything, smollm2.weights, [1, 2, 3])
    assert rss() - before < 20e6
    del constrainer


# mirostat


@pytest.mark.parametrize("version", [1, 2])
def test_mirostat_is_llama_cpps(smollm2: Model, llama: Llama, version: int) -> None:
    """llama-cpp-python's own mirostat knows no temperature: 1 is what it draws at."""
    answer: Any = llama.create_completion(
        smollm2.tokens(STORY), max_tokens=60, seed=5, temperature=1.0, mirostat_mode=version
    )
    sampler = Mirostat(version=version)
    reply = smollm2.chat(STORY, sampler=sampler, temperature=1.0, seed=5, max_tokens=60)
    assert "".join(reply) == answer["choices"][0]["text"]
    assert len(set(reply.k)) > 5
    assert all(1 <= k <= smollm2.weights.n_vocab for k in reply.k)


def test_mirostat_keeps_what_does_not_surprise(rows: Row) -> None:
    """Version 2 starts by keeping tokens of at most 2 tau bits of surprise, after temperature."""
    row = rows[3].astype(np.float64) / 1.5
    bits = -np.log2(np.exp(row - row.max()) / np.exp(row - row.max()).sum())
    draw = TokenSampler(Mirostat(tau=5.0), 1.5, 1, row.size)
    token = draw(rows[3], 1)
    assert bits[token] <= 10
    assert draw.k == np.count_nonzero(bits <= 10)


def test_mirostat_under_constraints(smollm2: Model) -> None:
    reply = smollm2.chat(
        STORY,
        sampler=Mirostat(),
        temperature=3.0,
        seed=2,
        constraints=Constraints(grammar='root ::= "one" | "two"'),
    )
    assert "".join(reply) in ("one", "two")


# Lifetimes


def test_ten_thousand_draws_come_and_go(rows: Row) -> None:
    """One TokenSampler is 2.1 MB at this vocabulary and one llama.cpp `dist` 5 kB: 1% leaked would show."""
    assert grown(lambda: TokenSampler(MinK(), 1.0, 1, rows.shape[1])(rows[0], 1), 10_000) < 4e6


def test_ten_thousand_constrainers_come_and_go(smollm2: Model) -> None:
    constraints = Constraints(logit_bias={1: -1.0}, repeat_penalty=1.1)
    assert grown(lambda: Constrainer(constraints, smollm2.weights, [1, 2]), 10_000) < 4e6


def test_grammars_come_and_go(smollm2: Model) -> None:
    """One grammar is 30 kB, and the sequence breakers take 25 ms: fewer cycles, a closer bound."""
    constraints = Constraints(json_schema=SCHEMA, dry_multiplier=1.0)
    assert grown(lambda: Constrainer(constraints, smollm2.weights, [1, 2]), 100) < 1e6


def test_garbage_collection_in_the_middle_of_an_answer(smollm2: Model) -> None:
    constraints = Constraints(grammar="root ::= [a-z ]*", repeat_penalty=1.2)
    options: dict[str, Any] = {"temperature": 5.0, "seed": 3, "max_tokens": 15, "constraints": constraints}
    undisturbed = "".join(smollm2.chat(STORY, **options))
    pieces = []
    for piece in smollm2.chat(STORY, **options):
        TokenSampler(MinK(), 1.0, 1, 1000)
        gc.collect()
        pieces.append(piece)
    assert "".join(pieces) == undisturbed


def test_an_answer_outlives_its_model_and_the_other_way_round() -> None:
    constraints = Constraints(grammar="root ::= [a-z ]*", dry_multiplier=0.5)
    model = load_model("smollm2-135m", n_ctx=256, n_threads=1)
    expected = "".join(model.chat(STORY, seed=1, max_tokens=20, constraints=constraints))
    reply = model.chat(STORY, seed=1, max_tokens=20, constraints=constraints)
    first = next(reply)
    del reply
    gc.collect()
    reply = model.chat(STORY, seed=1, max_tokens=20, constraints=constraints)
    assert next(reply) == first
    del model
    gc.collect()
    assert first + "".join(reply) == expected
