"""A conversation and its branches, with a real model and without a terminal."""

import contextlib
import sqlite3
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from mink_local import load_model
from mink_local.chat.conversation import session
from mink_local.chat.conversation.answer_steps import AnswerSteps
from mink_local.chat.conversation.session import AnswerStream, Session
from mink_local.chat.conversation.store import ConversationStore, DeletedError, SamplingInfo, StoredMessage
from mink_local.errors import ContextOverflowError, GenerationError, MinkError
from mink_local.generation.model import Model
from tests.chat.conftest import converse, locked, new_session
from tests.conftest import held

pytestmark = pytest.mark.usefixtures("own_files")


def said(session: Session) -> list[str]:
    return [message.content for message in session.branch]


def text_of(answer: AnswerStream) -> str:
    return "".join(piece.content for piece in answer.pieces())


def ask(session: Session, text: str) -> str:
    return text_of(session.ask(text))


def test_what_the_model_reads(smollm2: Model) -> None:
    chat = new_session(smollm2, "--system", "Be brief.")
    texts = ["Be brief.", "Hello", ask(chat, "Hello"), "And now?"]
    ask(chat, "And now?")
    messages = chat.prompt(chat.branch[:-1])
    assert [message["content"] for message in messages] == texts
    assert chat.last_answer().prompt_tokens == smollm2.count_tokens(messages)


def test_every_answer_has_a_seed_of_its_own(smollm2: Model) -> None:
    chat = new_session(smollm2, "--temp", "9", "--seed", "3", "-n", "16")
    ask(chat, "Tell me a story.")
    for given in ({}, {"temperature": 10.0}, {"seed": 8}):
        list(chat.regenerate(**given).pieces())
    answers = chat.alternatives()
    assert [(part.temperature, part.seed) for answer in answers for part in answer.parts] == [
        (9, 3), (9, 4), (10, 5), (9, 8),
    ]  # fmt: skip


def test_going_on_gives_the_answer_in_one_piece(smollm2: Model) -> None:
    whole = ask(new_session(smollm2, "-n", "24"), "Tell me a story about a dog.")
    chat = new_session(smollm2, "-n", "12")
    ask(chat, "Tell me a story about a dog.")
    text_of(chat.extend())
    answer = chat.last_answer()
    assert (answer.content, len(answer.tokens), len(answer.k)) == (whole, 24, 24)
    answer.finish_reason = "stop"
    with pytest.raises(MinkError, match="is finished"):
        chat.extend()


def test_an_answer_that_begins_with_a_text(smollm2: Model) -> None:
    """The model goes on from there; what the user wrote is told from what was sampled."""
    chat = new_session(smollm2, "-n", "24")
    first = ask(chat, "Tell me a story about a dog.")
    before = chat.last_answer()
    text = first[: len(first) // 2] + " suddenly a ship"
    shown = text_of(chat.rewrite(text))
    answer = chat.last_answer()
    assert shown == answer.content
    assert answer.content.startswith(text)
    assert len(answer.content) > len(text) + 10
    pairs = zip(before.tokens, answer.tokens, strict=False)
    same = next(i for i, (one, other) in enumerate(pairs) if one != other)
    assert same > 0
    n_begun = len(smollm2.tokenize(text))
    assert (answer.k[: same + 1], set(answer.k[same + 1 : n_begun])) == (before.k[: same + 1], {0})
    assert answer.chosen == list(range(same, len(smollm2.tokenize(text))))
    assert chat.alternatives() == [before, answer]
    steps = AnswerSteps(chat, answer)
    assert steps.step(same - 1).k == before.k[same - 1]
    assert steps.step(len(answer.tokens) - 1).k == answer.k[len(answer.tokens) - 1]


def test_going_on_is_no_other_version(smollm2: Model) -> None:
    chat = new_session(smollm2, "-n", "12")
    ask(chat, "Tell me a story about a dog.")
    cut_off = chat.last_answer()
    text_of(chat.extend())
    text_of(chat.extend())
    assert [one.content for one in chat.alternatives()] == [chat.last_answer().content]
    assert len(chat.store.messages(1)) == 4  # they are kept all the same
    assert cut_off.id in {message.id for message in chat.store.messages(1)}
    text_of(chat.regenerate(temperature=9.0))
    assert len(chat.versions()) == 2


@pytest.mark.parametrize(("reasoning", "n"), [("Hm, so", 1), ("Well", 2)])
def test_what_was_reasoned_otherwise_is_another_version(smollm2: Model, reasoning: str, n: int) -> None:
    """Also of an answer that did not get to its text."""
    chat = new_session(smollm2)
    message, part = StoredMessage("user", "Hello"), SamplingInfo("smollm2-135m", "greedy", 0, 0)
    cut_off = StoredMessage("assistant", reasoning="Hm", parts=[part], finish_reason="length")
    other = StoredMessage("assistant", "Hi.", None, reasoning, [part] * 2, finish_reason="stop")
    for answer in (cut_off, other):
        chat.conversation = chat.store.save(chat.conversation, [message, answer], "smollm2-135m", None)
    chat.load(chat.store.find())
    assert len(chat.versions()) == n


@pytest.mark.parametrize("how", ["fails", "is interrupted", "does not fit"])
def test_an_answer_without_a_token_changes_nothing(
    smollm2: Model, tiny: Callable[..., Path], how: str
) -> None:
    model = load_model(str(tiny(scale=float("nan"))), n_ctx=256) if how == "fails" else smollm2
    chat = new_session(model)
    converse(chat.store, "Hello", "Hello!", system="word " * 2000 if how == "does not fit" else None)
    chat.load(chat.store.find())
    before = chat.branch
    for act in (partial(chat.ask, "And now?"), partial(chat.ask, "And now?", replaces=True), chat.regenerate):
        if how == "is interrupted":
            with held(chat.model):
                answer = act()
                answer.reply.interrupt()
            assert list(answer.pieces()) == []
        else:
            with pytest.raises((GenerationError, ContextOverflowError)):
                list(act().pieces())
        assert chat.branch == before
        assert chat.store.find().head == before[-1].id


def test_many_turns_in_a_small_context(tiny: Callable[..., Path]) -> None:
    """The system prompt stays, the store loses nothing, and between drops each turn extends the KV cache."""
    chat = new_session(load_model(str(tiny()), n_ctx=256), "--system", "Be brief.", "--temp", "5")
    drops = evaluated = 0
    for i in range(20):
        answer = chat.ask(f"Tell me of the number {i}.")
        list(answer.pieces())
        drops += answer.dropped
        first, *_, last = chat.prompt(chat.branch[:-1])
        assert (first["content"], last["content"]) == ("Be brief.", f"Tell me of the number {i}.")
        if not answer.dropped:
            evaluated = max(evaluated, answer.reply.evaluated_tokens) if i else 0
        assert answer.reply.prompt_tokens + answer.reply.n_tokens <= 256
    assert len(chat.branch) == 40
    assert 10 < drops < 20
    assert evaluated < 60


def test_a_file_of_version_0_2_is_read(smollm2: Model, tmp_path: Path) -> None:
    """With answers that were continued, forked, and cut off by a kill; their reasoning; and settings."""
    with contextlib.closing(sqlite3.connect(tmp_path / "c.db")) as db:
        db.executescript((Path(__file__).parent / "data" / "conversations.sql").read_text(encoding="utf-8"))
    store = ConversationStore(tmp_path / "c.db")
    chat = new_session(smollm2, store=store)
    assert chat.load(store.find("fruit")) is None
    assert (chat.settings["system"], chat.settings["reasoning"], chat.settings["seed"]) == (
        "Be brief.",
        False,
        3,
    )
    assert said(chat)[::2] == ["Name a fruit.", "notes.txt:\n```\nA leek.\n```\n\nAnd a vegetable."]
    cut_off = chat.branch[-1]
    assert (cut_off.content, cut_off.reasoning, cut_off.finish_reason) == ("A le", "Hm.", None)
    assert chat.branch[2].typed == "And a vegetable."
    chat.go_to(chat.branch[:2])
    continued, forked = chat.alternatives()  # and not what was continued
    first = store.messages(1)[1]
    assert [part.first_token for part in continued.parts] == [0, 6]
    assert [part.reasoning for part in continued.parts] == [False, False]
    assert continued.content.startswith(first.content)
    assert (forked.chosen, forked.reasoning, forked.finish_reason) == ([1], "A pear is a fruit.", "length")
    assert AnswerSteps(chat, forked).step(2).k == 1
    list(chat.extend().pieces())
    assert said(chat)[-1].startswith(forked.content)
    assert store.find().id == 1


def test_a_conversation_that_is_deleted_while_an_answer_comes(smollm2: Model) -> None:
    """It is not there again, and the chat says so until it begins another; one deleted before is refused."""
    chat = new_session(smollm2)
    pieces = chat.ask("Tell me a story.").pieces()
    next(pieces)
    chat.store.delete(1)
    others = converse(chat.store, "Another one.", "Yes.", "And another.", "No.")
    list(pieces)
    assert chat.store.messages(2) == others
    assert "/clear" in chat.flush()
    assert [one.id for one in chat.store.conversations()] == [2]
    assert chat.last_answer().content
    chat.clear()
    assert ask(chat, "Hello")
    assert chat.flush() == ""
    chat.store.delete(3)
    with pytest.raises(DeletedError):
        chat.ask("And now?")


@pytest.mark.slow
def test_a_lock_costs_nothing(smollm2: Model, tmp_path: Path) -> None:
    """Messages that could not be stored are there, and are stored when the file is free again."""
    path = tmp_path / "c.db"
    chat = new_session(smollm2, store=ConversationStore(path))
    with locked(path):
        first = ask(chat, "Hello")
    assert chat.flush() == ""
    with locked(path):
        answer = chat.ask("Tell me a story.")
        texts = [text_of(answer), text_of(chat.regenerate(temperature=5.0))]
        assert chat.flush()
        assert [one.content for one in chat.alternatives()] == texts
        chat.undo()
        chat.redo()
        assert said(chat) == ["Hello", first, "Tell me a story.", texts[1]]
    assert chat.flush() == ""
    [stored] = ConversationStore(path).conversations()
    assert ConversationStore(path).branch(stored.head) == chat.branch
    assert [one.content for one in chat.alternatives()] == texts


def test_a_lock_in_the_middle_of_an_answer(
    smollm2: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "c.db"
    chat = new_session(smollm2, "-n", "12", store=ConversationStore(path))
    answer = chat.ask("Tell me a story.")
    pieces = answer.pieces()
    text = next(pieces).content
    monkeypatch.setattr(session, "_STORE_SECONDS", 0.0)
    with locked(path):
        for _ in range(3):
            text += next(pieces).content
    text += next(pieces).content  # the next piece that can be stored brings those before it
    assert ConversationStore(path).branch(answer.message.id)[-1].content == text
    list(pieces)
    assert ConversationStore(path).branch(answer.message.id) == chat.branch


@pytest.fixture
def windows(smollm2: Model, tmp_path: Path) -> list[Session]:
    """Two sessions with one file; the first has an answer to "Hello"."""
    sessions = [new_session(smollm2, store=ConversationStore(tmp_path / "c.db")) for _ in range(2)]
    ask(sessions[0], "Hello")
    return sessions


def test_an_answer_that_another_window_is_writing(windows: list[Session]) -> None:
    """Once it has ended it is there as a whole."""
    one, two = windows
    pieces = one.ask("Tell me a story.").pieces()
    next(pieces)
    two.load(two.store.find())
    assert two.branch[-1].is_unfinished
    list(pieces)
    ask(two, "And now?")
    assert two.branch[:4] == one.branch


def test_a_message_that_another_window_is_about_to_answer(windows: list[Session]) -> None:
    """It is offered here, as if that window had been killed; an answer that comes there is kept."""
    one, two = windows
    answer = one.ask("Tell me a story.")
    unanswered = two.load(two.store.find())
    assert unanswered
    assert unanswered.typed == "Tell me a story."
    text_of(answer)
    assert two.store.branch(two.store.find().head) == one.branch
