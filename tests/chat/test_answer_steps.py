"""Steps of stored answers, recomputed with the settings of the answer and not today's."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mink_local import load_model
from mink_local.chat.conversation.answer_steps import AnswerSteps
from mink_local.chat.conversation.session import Session
from mink_local.chat.conversation.store import ConversationStore, default_path
from mink_local.chat.settings import BY_KEY
from mink_local.errors import MinkError
from mink_local.generation.model import Model
from tests.chat.conftest import load_once, new_session

pytestmark = pytest.mark.usefixtures("own_files")

BRANCHED = ("--temp", "5", "--tau", "60", "--seed", "4", "-n", "6")  # several candidates at some steps


def ask(session: Session, text: str) -> AnswerSteps:
    list(session.ask(text).pieces())
    return AnswerSteps(session, session.last_answer())


def change(session: Session, **texts: str) -> None:
    for key, text in texts.items():
        session.settings = session.settings.changed(BY_KEY[key.replace("_", "-")], text)


def shown(steps: AnswerSteps) -> list[tuple[Any, ...]]:
    """Return what a view shows of every step, without the last bits of the sums."""
    found: list[tuple[Any, ...]] = []
    for at in range(len(steps.tokens)):
        step = steps.step(at)
        p = round(float(step.p_sampled[step.sampled]), 3)
        found.append((step.k, step.sampled, str(step.sampler), step.temperature, p, steps.remarks(at, step)))
    return found


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        BRANCHED,
        (*BRANCHED, "--repeat-penalty", "1.5", "--presence-penalty", "2", "--dry-multiplier", "0.8"),
        (*BRANCHED, "--logit-bias", "504=-inf", "--logit-bias", "45=9"),
        (*BRANCHED, "--sampler", "top-p:p=0.3,order=temperature-last", "--system", "Be brief."),
        (*BRANCHED, "--sampler", "mirostat"),
    ],
)
def test_every_step_is_as_it_was_sampled(smollm2: Model, arguments: tuple[str, ...]) -> None:
    steps = ask(new_session(smollm2, *arguments), "What is the capital of France?")
    assert steps.k == steps.answer.k[: len(steps.tokens)]
    for at, token in enumerate(steps.tokens):
        step = steps.step(at)
        assert step.k == steps.k[at]
        assert step.ids[step.sampled] == token
        assert step.sampled < step.k
        assert step.p_sampled.sum() == pytest.approx(1)
        assert step.p_sampled[step.sampled] > 0
        assert (504 in step.ids) == ("504=-inf" not in arguments)
        remarks = steps.remarks(at, step)
        assert len(remarks) == (2 if steps.sampling_info(at).constraints else 1)  # nothing differs


def test_a_grammar(smollm2: Model, tmp_path: Path) -> None:
    (tmp_path / "it.gbnf").write_text('root ::= "Paris" | "Rome" | "I do not know"')
    chat = new_session(smollm2, "--grammar", str(tmp_path / "it.gbnf"), "--temp", "3")
    steps = ask(chat, "Name a town.")
    for at in (*range(len(steps.tokens)), 0):
        step = steps.step(at)
        assert step.k == (steps.k[at] or 1)  # forced
        assert len(step.ids) < 20
    (tmp_path / "it.gbnf").write_text('root ::= "no"')  # the text is kept, not the path
    assert AnswerSteps(chat, steps.answer).step(0).k == (steps.k[0] or 1)


def test_todays_settings_change_nothing(smollm2: Model) -> None:
    store = ConversationStore(default_path())
    chat = new_session(smollm2, *BRANCHED, "--system", "You are a pirate.", store=store)
    ask(chat, "Hello")
    steps = ask(chat, "Where do you live?")
    before = shown(steps)
    assert any(row[0] != 1 for row in before)
    change(chat, sampler="top-p", temp="2", repeat_penalty="1.3", logit_bias="504=-inf", reasoning="off")
    change(chat, max_tokens="300")
    chat.set_system("Answer in French.", "here")
    chat._start = 2
    assert shown(AnswerSteps(chat, chat.last_answer())) == before
    again = new_session(smollm2, store=ConversationStore(default_path()))
    again.load(again.store.find())
    assert shown(AnswerSteps(again, again.last_answer())) == before


@pytest.mark.slow
def test_an_answer_after_turns_were_left_out() -> None:
    chat = new_session(load_once("smollm2-135m", n_ctx=256), "-n", "4")
    for _ in range(3):
        steps = ask(chat, "Dogs are animals. " * 20)
    assert steps.sampling_info(0).first_message
    before = shown(steps)
    chat._start = 0
    assert shown(AnswerSteps(chat, chat.last_answer())) == before


def test_an_answer_that_was_continued_otherwise(smollm2: Model, tmp_path: Path) -> None:
    chat = new_session(smollm2, "--seed", "1", "-n", "4")
    ask(chat, "Tell me a story.")
    (tmp_path / "it.gbnf").write_text('root ::= " and " [a-z]{8}')
    change(chat, temp="5", grammar=str(tmp_path / "it.gbnf"))
    list(chat.extend().pieces())
    steps = AnswerSteps(chat, chat.last_answer())
    assert [steps.sampling_info(at).temperature for at in (0, 3, 4)] == [0, 0, 5]
    assert [len(steps.step(at).ids) < 100 for at in (0, 3, 4)] == [False, False, True]
    assert [steps.step(at).k for at in range(len(steps.tokens))] == [k or 1 for k in steps.k]
    assert [part.first_token for part in chat.store.branch(steps.answer.id)[-1].parts] == [0, 4]


def test_another_model_is_refused(smollm2: Model, tiny: Callable[..., Path]) -> None:
    chat = new_session(smollm2)
    ask(chat, "Hello")
    with load_model(str(tiny()), n_ctx=512) as other:
        chat.model = other
        with pytest.raises(MinkError, match=smollm2.name):
            AnswerSteps(chat, chat.last_answer())
        list(chat.extend().pieces())  # by the other model
        steps = AnswerSteps(chat, chat.last_answer())
        assert steps.k[0] == 0
        with pytest.raises(MinkError, match=smollm2.name):
            steps.step(0)
        assert steps.step(len(steps.tokens) - 1).k == steps.k[-1]


@pytest.mark.parametrize("changed", ["the message", "the digest"])
def test_a_prompt_that_cannot_be_rebuilt_is_refused(smollm2: Model, changed: str) -> None:
    chat = new_session(smollm2)
    ask(chat, "Hello")
    question, answer = chat.branch
    if changed == "the message":
        question.content = "Hi"
    else:
        answer.parts = [replace(answer.parts[0], prompt="")]
    with pytest.raises(MinkError, match="/regen"):
        AnswerSteps(chat, answer).step(0)


def test_an_answer_that_was_cut_off(smollm2: Model) -> None:
    """Only its text is known."""
    chat = new_session(smollm2)
    whole = ask(chat, "Count.")
    steps = AnswerSteps(chat, replace(whole.answer, tokens=[], k=[]))
    assert (steps.tokens, set(steps.k)) == (whole.tokens, {0})
    assert len(steps.remarks(0, steps.step(0))) == 2


def test_a_token_that_the_user_chose(smollm2: Model) -> None:
    chat = new_session(smollm2)
    steps = ask(chat, "Hello")
    steps = AnswerSteps(chat, replace(steps.answer, k=[7, *steps.k[1:]], chosen=[1]))
    said = [" ".join(steps.remarks(at, steps.step(at))) for at in (0, 1)]
    assert ["You chose" in remarks for remarks in said] == [False, True]
    assert ["there were 7:" in remarks for remarks in said] == [True, False]
