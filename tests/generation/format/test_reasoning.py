"""Reasoning, split from the answer and joined with it, and ended at a budget."""

from collections.abc import Iterator
from typing import Any

import pytest

from mink_local import Constraints, SamplingParams, load_model
from mink_local.generation.format.reasoning_budget import CLOSING, GRACE
from mink_local.generation.format.text import THINK, THINK_END, ReasoningSplitter, ReasoningState
from mink_local.generation.model import Model
from tests.generation.conftest import answered
from tests.support.tiny import write_scripted


def split(pieces: list[str], state: ReasoningState = "start") -> tuple[str, str]:
    splitter = ReasoningSplitter(state)
    reasoning, content = zip(*map(splitter.feed, pieces), splitter.feed("", is_final=True), strict=True)
    return "".join(reasoning), "".join(content)


@pytest.mark.parametrize(
    ("text", "state", "reasoning", "answer"),
    [
        ("<think>\nLet me see.\n</think>\n\nFour.", "start", "Let me see.", "Four."),
        ("\n<think>a < b</thin </think>x", "start", "a < b</thin", "x"),
        ("<think>\n\n</think>\n\nFour.", "start", "", "Four."),
        ("Let me see.\n</think>\n\nFour.", "reasoning", "Let me see.", "Four."),
        ("<think>never ended </th", "start", "never ended </th", ""),
        ("Four. <think>no</think>", "start", "", "Four. <think>no</think>"),
        ("<thinking> is a word", "start", "", "<thinking> is a word"),
        ("  indented", "start", "", "  indented"),
        ("<think>a</think>b<think>c</think>", "start", "a", "b<think>c</think>"),
        ("<think>a</think>b", "text", "", "<think>a</think>b"),
        ("", "start", "", ""),
        ("<thi", "start", "", "<thi"),
    ],
)  # fmt: skip
def test_split(text: str, state: ReasoningState, reasoning: str, answer: str) -> None:
    assert split([text], state) == (reasoning, answer)
    assert split(list(text), state) == (reasoning, answer)


def test_nothing_certain_is_held_back() -> None:
    found = list(map(ReasoningSplitter().feed, ["<think>Well", " now", "</think>Yes", " more"]))
    assert found == [("Well", ""), (" now", ""), ("", "Yes"), ("", " more")]


# Ended at a budget: where, with which tokens, and what is known of them


WORDS = [" a", " b.", *(f" w{i}" for i in range(60))]
OPENED = "{% for m in messages %}{{ m.content }}{% endfor %}<think>"
OPENS = "{% for m in messages %}{{ m.content }}{% endfor %}<assistant>{# <think> #}"


@pytest.fixture(scope="module", params=[OPENED, OPENS], ids=["the template opens", "the model opens"])
def thinker(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    """A model that reasons with WORDS, and goes on from a forced closing with "Four."."""
    opening = {THINK: WORDS} if request.param == OPENED else {"<assistant>": [THINK, *WORDS]}
    path = tmp_path_factory.mktemp("thinker") / "thinker.gguf"
    scripts = {**opening, THINK_END: ["x"], "\n\n": ["Four."]}
    with load_model(write_scripted(path, request.param, scripts), n_ctx=1024, n_threads=1) as model:
        yield model


@pytest.mark.parametrize(
    ("budget", "n_words"), [(0, 0), (1, 2), (2, 2), (3, 3 + GRACE), (20, 20 + GRACE), (62, 62), (-1, 62)]
)
def test_it_ends_to_the_token(thinker: Model, budget: int, n_words: int) -> None:
    """With the sentence that goes on, or 32 tokens later; whoever opens the reasoning."""
    answer = answered(thinker, "2 + 2?", temperature=0, reasoning_budget=budget, logprobs=0)
    opens = "<assistant>" in str(thinker.chat_template)  # so the model begins with the tag
    sampled = [*[THINK] * opens, *WORDS[:n_words]]
    is_cut = 0 <= budget < len(WORDS)
    assert answer.reasoning_cut is is_cut
    closing = (f"{CLOSING}\n" if budget else "") + f"{THINK_END}\n\n" if is_cut else ""
    assert answer.text == "".join(sampled) + closing + ("Four." if is_cut else "")
    n_forced = len(thinker.weights.tokenize(closing, add_special=False, parse_special=True)) if closing else 0
    n_after = answer.n_tokens - len(sampled) - n_forced
    assert answer.k == [1] * len(sampled) + [0] * n_forced + [1] * n_after
    assert answer.content == ("Four." if is_cut else "")
    assert answer.reasoning == answer.text.removeprefix(THINK).partition(THINK_END)[0].strip()
    texts = ["".join(thinker.token_texts(answer.tokens[: i + 1])) for i in range(answer.n_tokens)]
    assert answer.n_reasoning == sum(THINK_END not in text for text in texts)
    assert len(answer.logprobs) == answer.n_tokens
    assert all(logprob < -1 for logprob in answer.logprobs[len(sampled) : len(sampled) + n_forced - 1])


@pytest.mark.parametrize("budget", [0, 1, None])
@pytest.mark.parametrize("stop", [" b.", "\n\n", THINK_END, "w3", "time"])
def test_a_stop_string_does_not_end_the_reasoning(thinker: Model, budget: int | None, stop: str) -> None:
    """Neither the model's nor what is forced."""
    options: dict[str, Any] = {"temperature": 0, "reasoning_budget": budget}
    free, reply = thinker.chat("x", **options), thinker.chat("x", **options, stop=[stop, "r."])
    assert reply.read() == free.read().removesuffix("r.")
    assert reply.stopped_by == (None if budget is None else "r.")
    assert reply.reasoning == free.reasoning
    tokens = thinker.chat("x", **options, stop_token_ids=thinker.tokenize(stop))
    assert tokens.read() == free.text


@pytest.mark.parametrize("constraints", [None, Constraints(choice=["no more"])])
def test_an_answer_that_continues_another(thinker: Model, constraints: Constraints | None) -> None:
    """From any of its tokens, forced ones included, the rest is the same."""
    asked = SamplingParams(temperature=0, reasoning_budget=1, constraints=constraints)
    whole = answered(thinker, "2 + 2?", asked)
    for at in range(1, whole.n_tokens, 5):
        assert answered(thinker, "2 + 2?", asked, prefix=whole.tokens[:at]).tokens == whole.tokens[at:]


def test_answers_of_a_batch_have_budgets_of_their_own(thinker: Model) -> None:
    budgets = [None, 0, 2]
    texts = [thinker.chat("2 + 2?", temperature=0, reasoning_budget=budget).read() for budget in budgets]
    thinker.reserve(256, 3)
    prompts = ["2 + 2?"] * 3
    for budget, text in zip(budgets, texts, strict=True):
        answers = thinker.generate(prompts, temperature=0, reasoning_budget=budget)
        assert {answer.text for answer in answers} == {text}


def test_penalties_see_forced_tokens(thinker: Model) -> None:
    """As they see sampled ones: those of a text are the same, whoever chose its tokens."""
    ban = Constraints(presence_penalty=1e6, penalty_last_n=256)
    answer = answered(thinker, "x", temperature=0, reasoning_budget=0, constraints=ban, max_tokens=20)
    assert answer.reasoning_cut
    assert len(set(answer.tokens)) == answer.n_tokens


@pytest.mark.parametrize("options", [{"grammar": 'root ::= "no more"'}, {"choice": ["no more"]}])
@pytest.mark.parametrize("budget", [0, 1, 3])
def test_what_an_answer_conforms_to_comes_after_its_reasoning(
    thinker: Model, options: dict[str, Any], budget: int
) -> None:
    asked = SamplingParams(temperature=0, reasoning_budget=budget)
    free = answered(thinker, "x", asked)
    answer = answered(thinker, "x", asked, constraints=Constraints(**options))
    opens = thinker.opens_reasoning([{"role": "user", "content": "x"}])
    assert (answer.content, answer.finish_reason) == ("no more", "stop")
    assert answer.reasoning == (free.reasoning if opens or budget else "")
    assert answer.reasoning_cut is (opens or budget > 0)


@pytest.mark.parametrize("budget", [0, 1])
@pytest.mark.parametrize("beginning", ["hm", ""])
def test_what_follows_another_beginning_conforms_alone(thinker: Model, budget: int, beginning: str) -> None:
    constraints = Constraints(choice=["no more"])
    asked = SamplingParams(temperature=0, reasoning_budget=budget, constraints=constraints)
    other = thinker.tokenize(f"{beginning}{THINK_END}Yes, ")
    assert thinker.chat("x", asked, prefix=other).read() == "no more"


def test_reasoning_has_no_end_but_its_tag(thinker: Model) -> None:
    """Neither an end token ends it, nor a text that is what the answer conforms to."""
    only = Constraints(choice=["x"])
    answer = answered(thinker, "x", temperature=9, seed=1, max_tokens=30, constraints=only)
    assert answer.finish_reason == "length" or answer.content == "x"


def test_a_grammar_may_end_the_reasoning_itself(thinker: Model) -> None:
    opens = thinker.opens_reasoning([{"role": "user", "content": "x"}])
    whole = Constraints(grammar=f'root ::= "{"" if opens else THINK}hm{THINK_END}\\n" [0-9]')
    answer = answered(thinker, "x", temperature=5, seed=1, constraints=whole)
    assert answer.reasoning == "hm"
    assert answer.content.isdigit()


def test_a_text_that_is_no_reasoning_is_not_cut(smollm2: Model) -> None:
    asked = ("Tell me a story.", SamplingParams(temperature=0, max_tokens=12))
    assert smollm2.chat(*asked, reasoning_budget=0).read() == smollm2.chat(*asked).read()
