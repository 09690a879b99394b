"""Constraints: llama.cpp's penalties, bias, DRY and grammars, before any sampler."""

import ctypes
import re
from typing import Any

import numpy as np
import pytest
from llama_cpp import llama_cpp as C
from numpy.typing import NDArray

from mink_local.errors import GenerationError
from mink_local.llama.constraints import Constrainer, Constraints
from mink_local.llama.context import Context, Segment
from mink_local.llama.token_data import SamplingBuffers
from mink_local.llama.token_sampler import TokenSampler
from mink_local.llama.weights import Weights
from mink_local.native import native_sampler
from mink_local.samplers import Greedy, MinK, Mirostat, Sampler
from tests.llama.conftest import Generate
from tests.support.chain import SamplerChain
from tests.support.memory import grown, rss

PROMPT = "Describe a cat as JSON with its name and age: "
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer"}},
    "required": ["name", "age"],
}
INF = float("inf")
NAN = float("nan")

Row = NDArray[np.float32]


@pytest.fixture
def prompt(weights: Weights) -> list[int]:
    return weights.tokenize(PROMPT, add_special=True, parse_special=False)


def constrained(
    weights: Weights,
    options: Constraints,
    prompt: list[int] | None = None,
    sampler: Sampler | None = None,
    temperature: float = 1.0,
    seed: int = 1,
) -> TokenSampler:
    constrainer = Constrainer(options, weights, prompt or [])
    return TokenSampler(sampler or MinK(), temperature, seed, weights.n_vocab, constrainer)


def applied(options: Constraints, weights: Weights, prompt: list[int], row: Row) -> Row:
    """A row of logits under constraints after a prompt."""
    return Constrainer(options, weights, prompt).apply(row, SamplingBuffers(row.size))


def text_of(weights: Weights, tokens: list[int]) -> str:
    return b"".join(map(weights.piece, tokens)).decode()


def test_dry_takes_from_what_would_repeat(weights: Weights) -> None:
    """a b c … a b: c would continue a repetition of 2, so it loses 0.8 * 1.75^(2 - 1)."""
    a, b, c = 20_011, 20_012, 20_013
    history = [a, b, c, 40, 41, a, b]
    options: dict[str, Any] = {"dry_multiplier": 0.8, "dry_allowed_length": 1}
    zeros = np.zeros(weights.n_vocab, np.float32)
    changed = applied(Constraints(**options), weights, history, zeros)
    assert changed[c] == pytest.approx(-0.8 * 1.75)
    assert np.count_nonzero(changed) == 1
    breaker = Constraints(**options, dry_sequence_breakers=[weights.piece(b).decode()])
    assert not applied(breaker, weights, history, zeros).any()


def test_logit_bias_bans_and_pushes(weights: Weights, rows: Row) -> None:
    best, second = np.argsort(-rows[0])[:2].tolist()
    banned = constrained(weights, Constraints(logit_bias={best: -INF}), sampler=Greedy())
    assert banned(rows[0], 1) == second
    pushed = constrained(weights, Constraints(logit_bias={123: 100.0}))
    assert pushed(rows[0], 1) == 123
    assert pushed.k == 1


def test_a_ban_does_not_hide_a_nan(weights: Weights) -> None:
    sample = constrained(weights, Constraints(logit_bias={17: -INF}))
    row = np.zeros(weights.n_vocab, np.float32)
    row[17] = NAN
    with pytest.raises(GenerationError, match=r"NaN.* step 2"):
        sample(row, 2)
    row[17] = INF  # inf - inf would be one
    assert sample(row, 3) != 17


def test_constraints_that_leave_nothing(weights: Weights) -> None:
    n_vocab = weights.n_vocab
    sample = constrained(weights, Constraints(logit_bias=dict.fromkeys(range(n_vocab), -INF)))
    with pytest.raises(GenerationError, match=r"bias.* step 6"):
        sample(np.zeros(n_vocab, np.float32), 6)
    with pytest.raises(GenerationError, match=r"finite.* step 7"):
        sample(np.full(n_vocab, -INF, np.float32), 7)


def test_constrained_tokens_are_those_of_one_llama_cpp_chain(
    weights: Weights, generate: Generate, prompt: list[int]
) -> None:
    """bias, penalties, DRY, grammar, native Min-k, temp, dist, in one chain that llama.cpp samples from."""
    seed, temperature = 4, 5.0
    text = "root ::= [a-zA-Z .,\\n]*"
    biased = weights.tokenize(" cat", add_special=False, parse_special=False)[0]
    options = Constraints(
        logit_bias={biased: -2.0},
        repeat_penalty=1.2,
        frequency_penalty=0.1,
        presence_penalty=-0.1,
        penalty_last_n=9,
        dry_multiplier=0.8,
        grammar=text,
    )
    sample = constrained(weights, options, prompt, temperature=temperature, seed=seed)
    tokens = generate(sample, prompt, 25)
    assert re.fullmatch(r"[a-zA-Z .,\n]*", text_of(weights, tokens))

    bias = (C.llama_logit_bias * 1)(C.llama_logit_bias(biased, -2.0))
    breakers = (ctypes.c_char_p * 4)(b"\n", b":", b'"', b"*")
    chain = SamplerChain(
        C.llama_sampler_init_logit_bias(weights.n_vocab, 1, bias),
        C.llama_sampler_init_penalties(weights.n_vocab, 9, 1.2, 0.1, -0.1),
        C.llama_sampler_init_dry(weights.vocab, 0.8, 1.75, 2, 64, breakers, 4),
    )
    for token in prompt:
        C.llama_sampler_accept(chain.handle, token)
    for part in (
        C.llama_sampler_init_grammar(weights.vocab, text.encode(), b"root"),
        native_sampler(MinK(), weights.n_vocab),
        C.llama_sampler_init_temp(temperature),
        C.llama_sampler_init_dist(seed),
    ):
        C.llama_sampler_chain_add(chain.handle, part)
    context = Context(weights, 512, 1)
    expected: list[int] = []
    batch = prompt
    while len(expected) < len(tokens):
        context.decode(Segment(batch, len(prompt) + len(expected) - 1 if expected else 0))
        batch = [C.llama_sampler_sample(chain.handle, context.handle, -1)]
        expected += batch
    assert tokens == expected


def penalized(constrainer: Constrainer, n_vocab: int) -> dict[int, float]:
    """Return by how much each token's logit is lowered."""
    row = np.ones(n_vocab, np.float32)
    after = constrainer.apply(row, SamplingBuffers(n_vocab)).copy()
    return {int(token): float(1 - after[token]) for token in np.flatnonzero(after != 1)}


@pytest.mark.parametrize(
    ("options", "lowered"),
    [
        ({"frequency_penalty": 0.5}, {7: 0.5 * 80, 8: 0.5, 9: 0.5}),
        ({"presence_penalty": 0.5}, {7: 0.5, 8: 0.5, 9: 0.5}),
        ({"frequency_penalty": 0.5, "penalty_last_n": 3}, {7: 1.0, 9: 0.5}),
        ({"frequency_penalty": 0.5, "penalty_last_n": -1}, {5: 1.0, 6: 0.5, 7: 40.0, 8: 0.5, 9: 0.5}),
        ({"repeat_penalty": 2.0}, {7: 0.5, 9: 0.5}),
        ({"repeat_penalty": 2.0, "penalty_last_n": -1}, dict.fromkeys((5, 6, 7, 8, 9), 0.5)),
    ],
)
def test_what_penalties_look_at(
    tiny_weights: Weights, options: dict[str, Any], lowered: dict[int, float]
) -> None:
    """OpenAI's two look at the whole answer with its prefix; `penalty_last_n` is llama.cpp's window."""
    constrainer = Constrainer(Constraints(**options), tiny_weights, [5, 6, 5], prefix=[8])
    for token in [7] * 78 + [9, 7, 7]:
        constrainer.accept(token)
    assert penalized(constrainer, tiny_weights.n_vocab) == pytest.approx(lowered)


@pytest.mark.parametrize("options", [
    {"repeat_penalty": 2.0}, {"frequency_penalty": 1.0, "penalty_last_n": 64}, {"dry_multiplier": 1.0},
])  # fmt: skip
def test_turns_that_ended_do_not_keep_the_answer_from_ending(
    tiny_weights: Weights, options: dict[str, Any]
) -> None:
    ends = sorted(tiny_weights.end_tokens)
    prompt = [5, 6, *ends] * 3
    constrainer = Constrainer(Constraints(**options), tiny_weights, prompt)
    assert not penalized(constrainer, tiny_weights.n_vocab).keys() & {*ends}
    constrainer.accept(ends[0])  # of the answer, with ignore_eos
    if "dry_multiplier" not in options:
        assert penalized(constrainer, tiny_weights.n_vocab).keys() & {*ends}


@pytest.mark.parametrize("temperature", [1.0, 8.0])
@pytest.mark.parametrize("sampler", [MinK(), Greedy(), Mirostat()], ids=str)
def test_the_end_of_a_grammar_ends_the_text(
    weights: Weights, generate: Generate, prompt: list[int], sampler: Sampler, temperature: float
) -> None:
    choice = Constraints(grammar='root ::= "yes" | "no"')
    sample = constrained(weights, choice, sampler=sampler, temperature=temperature)
    assert text_of(weights, generate(sample, prompt, 20)) in ("yes", "no")


def test_greedy_takes_the_largest_logit_that_is_left(weights: Weights, rows: Row) -> None:
    sample = constrained(weights, Constraints(grammar="root ::= [0-9]"), sampler=Greedy(), temperature=0)
    row = rows[2]
    digits = [token for token in range(row.size) if re.fullmatch(rb"[0-9]", weights.piece(token))]
    assert sample(row, 1) == max(digits, key=row.__getitem__)


def test_constraints_that_are_off_change_nothing(weights: Weights, rows: Row) -> None:
    off = constrained(weights, Constraints(), sampler=MinK(1000), temperature=4.0)
    plain = TokenSampler(MinK(1000), 4.0, 1, weights.n_vocab)
    assert [off(row, 1) for row in rows] == [plain(row, 1) for row in rows]


@pytest.mark.parametrize(
    "options",
    [
        {"repeat_penalty": 0.0},
        {"repeat_penalty": NAN},
        {"frequency_penalty": INF},
        {"presence_penalty": NAN},
        {"penalty_last_n": -2},
        {"dry_multiplier": -0.5},
        {"dry_base": 0.5},
        {"dry_allowed_length": -1},
        {"dry_penalty_last_n": -2},
        {"dry_sequence_breakers": "\n"},
        {"dry_sequence_breakers": [""]},
        {"logit_bias": {5: INF}},
        {"logit_bias": {5: NAN}},
        {"grammar": " "},
        {"grammar": 'root ::= "a"', "json_schema": "{}"},
        {"choice": []},
        {"choice": "yes"},
        {"choice": ["a"], "regex": "a"},
    ],
)
def test_options_out_of_range(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        Constraints(**options)


@pytest.mark.parametrize(
    ("options", "wrong"),
    [
        ({"logit_bias": {49152: 1.0}}, "49152.* 49151"),
        ({"logit_bias": {-1: 1.0}}, "-1"),
        ({"json_schema": "{"}, "json_schema"),
        ({"grammar": 'root ::= "a'}, "grammar"),
        ({"regex": "(?=a)"}, "regex.*look"),
        ({"choice": ["\ud800"]}, "choice"),
    ],
)
def test_constraints_that_a_model_cannot_take(
    tiny_weights: Weights, options: dict[str, Any], wrong: str
) -> None:
    with pytest.raises(ValueError, match=wrong):
        Constrainer(Constraints(**options), tiny_weights, [])


def test_large_windows_take_no_memory(tiny_weights: Weights) -> None:
    everything = Constraints(
        repeat_penalty=1.1, penalty_last_n=2**40, dry_multiplier=1.0, dry_penalty_last_n=2**40
    )
    before = rss()
    constrainer = Constrainer(everything, tiny_weights, [1, 2, 3])
    assert rss() - before < 20e6
    del constrainer


@pytest.mark.parametrize(("options", "cycles", "limit"), [
    ({"json_schema": SCHEMA}, 70, 1e6),  # one grammar is 30 kB: half of them leaked would show
    ({"logit_bias": {1: -1.0}, "repeat_penalty": 1.1}, 5000, 2e6),  # one is 3 kB; arenas grow by 1 MB
])  # fmt: skip
def test_constrainers_come_and_go(
    tiny_weights: Weights, options: dict[str, Any], cycles: int, limit: float
) -> None:
    assert grown(lambda: Constrainer(Constraints(**options), tiny_weights, [1, 2]), cycles) < limit
