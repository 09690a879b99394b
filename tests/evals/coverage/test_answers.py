"""Which texts are valid answers, which can become one, and by which tokens."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mink_local.evals.coverage.answers import AnswerSet, Invalid, Open, Step, Valid, Vocabulary, normalise
from mink_local.generation.model import Model
from mink_local.llama.weights import Weights

NAMES = (
    ("Ivory Coast", "Côte d'Ivoire"), ("The Gambia",), ("Guinea",), ("Guinea-Bissau",), ("St. Lucia",),
    ("St",), ("Niger",), ("Nigeria",), ("USA", "U.S.A."), ("1",), ("12",), ("α",),
)  # fmt: skip
ANSWERS = AnswerSet(NAMES)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("Niger", 6), ("Nigeria", 7), (" nigeria.", 7), ("**NIGERIA**", 7), ('"Nigeria."', 7),
        ("`Niger`\n", 6),
        ("Nigeria\nIt is in Africa.", 7), ("\n\nNiger", 6), ("Niger \r\nNo", 6), ("Niger!", 6),
        ("Gambia", 1), ("the gambia", 1), ("The Niger", 6), ("Cote d’Ivoire", 0), ("CÔTE D'IVOIRE", 0),
        ("Guinea‑Bissau", 3), ("Guinea – Bissau", None), ("st. lucia", 4), ("St.", 5), ("usa", 8),
        ("U.S.A.", 8),
        ("u.s.a", 8), ("12", 10), ("1.", 9), ("1.2", None), ("Α", 11), ("", None), ("\n", None), ("**", None),
        ("Nïger", None), ("Nigeri", None), ("Nigeria is", None), ("Niger, Nigeria", None), ("the", None),
        ("    Niger", 6), ("     Niger", None), ("Niger....", 6), ("Niger.....", None), (".Niger", None),
    ],
)  # fmt: skip
def test_texts_as_a_person_takes_them(text: str, answer: int | None) -> None:
    assert ANSWERS.classify(text) == (Invalid() if answer is None else Valid(answer))


def test_normalised_names() -> None:
    assert normalise("The Gambia.") == normalise("gambia") == "gambia"
    assert normalise("Co\u0302te d’Ivoire") == normalise("Côte d'Ivoire") == "cote d'ivoire"
    assert normalise("...!") == normalise(" * ") == ""


PARTS = st.sampled_from(
    [*"nigeraNIGE .\n*'-“ô’the", "Niger", "The ", "st. ", "guinea", "ivoire", "Côte d", "1", "é"]
)


@given(st.lists(PARTS, max_size=8).map("".join))
@example("Guinea‑Bissau.\n")
@example("“Niger”. ")
def test_byte_by_byte_a_text_is_what_it_is_as_a_whole(text: str) -> None:
    """A text that is invalid on the way is invalid at its end."""
    step: Step = Open()
    for byte in text.encode():
        step = ANSWERS.advance(step, bytes([byte])) if isinstance(step, Open) else step
    assert (ANSWERS.end(step) if isinstance(step, Open) else step) == ANSWERS.classify(text)


@given(st.lists(PARTS, max_size=6).map("".join))
def test_what_is_not_invalid_can_become_valid(text: str) -> None:
    state = ANSWERS.advance(Open(), text.encode())
    if isinstance(state, Open):
        names = [name for names in NAMES for name in names]
        tails = ["", *(name[i:] for name in map(normalise, names) for i in range(len(name) + 1))]
        ends = [*tails, *(name.lower()[i:] for name in names for i in range(len(name)))]
        ends += [
            text[i:] + name for i in range(len(text)) for name in map(normalise, names) if text[i:] in "the "
        ]
        starts = [f"{'the '[i:]}{name}" for i in range(4) for name in map(normalise, names)]
        assert any(isinstance(ANSWERS.classify(text + end), Valid) for end in [*ends, *starts])


@pytest.fixture(scope="module")
def weights(smollm2: Model) -> Weights:
    return smollm2.weights


@pytest.fixture(scope="module")
def vocabulary(weights: Weights) -> Vocabulary:
    return Vocabulary(weights)


@pytest.mark.parametrize("prefix", ["", "N", "Niger", "the", "St", "Guinea.", "Co", "“"])
def test_continuations_are_those_of_every_token_tried(
    prefix: str, weights: Weights, vocabulary: Vocabulary
) -> None:
    for data in {prefix.encode(), prefix.encode()[:-1]}:
        state = ANSWERS.advance(Open(), data)
        assert isinstance(state, Open)
        goes_on, ended = vocabulary.continuations(ANSWERS, state)
        tried = {
            token: ANSWERS.advance(state, weights.piece(token))
            for token in range(weights.n_vocab)
            if weights.piece(token) and token not in weights.end_tokens
        }
        assert goes_on == {token: after for token, after in tried.items() if isinstance(after, Open)}
        ends = {token: after.number for token, after in tried.items() if isinstance(after, Valid)}
        if isinstance(whole := ANSWERS.end(state), Valid):
            ends |= dict.fromkeys(weights.end_tokens, whole.number)
        assert ended == ends


def test_a_tokens_half_character_is_completed_or_invalid(weights: Weights, vocabulary: Vocabulary) -> None:
    half = AnswerSet([["ô"], ["x"]]).advance(Open(), "ô".encode()[:1])
    assert half == Open(partial="ô".encode()[:1])
    assert AnswerSet([["o"], ["x"]]).advance(Open(), "世".encode()[:2]) == Invalid()
    assert isinstance(half, Open)
    goes_on, _ = vocabulary.continuations(AnswerSet([["ô"], ["x"]]), half)
    assert "ô".encode()[1:] in {weights.piece(token) for token in goes_on}
