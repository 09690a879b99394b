"""A conversation and its branches, with a real model and without a terminal."""

import contextlib
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from mink_local import load_model
from mink_local.chat.conversation.answer_steps import AnswerSteps
from mink_local.chat.conversation.session import AnswerStream, Session, drop_oldest_turns
from mink_local.chat.conversation.store import ConversationStore, DeletedError, StoredMessage
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


def test_a_conversation_is_kept(smollm2: Model) -> None:
    chat = new_session(smollm2, "--system", "Be brief.")
    first = ask(chat, "Hello")
    answer = chat.ask("And now?")
    second = text_of(answer)
    assert said(chat) == ["Hello", first, "And now?", second]
    messages = chat.prompt(chat.branch[:-1])
    assert messages[0] == {"role": "system", "content": "Be brief."}
    assert answer.message.prompt_tokens == smollm2.count_tokens(messages)
    assert answer.message.tokens == answer.reply.tokens == chat.answer_tokens(chat.last_answer())


def test_branches(smollm2: Model) -> None:
    chat = new_session(smollm2, "--temp", "9", "--seed", "3", "-n", "16")
    one, two = ask(chat, "Hello"), ask(chat, "Tell me a story.")
    other = text_of(chat.regenerate())
    assert other != two  # though the seed is fixed
    assert said(chat) == ["Hello", one, "Tell me a story.", other]
    hot = text_of(chat.regenerate(temperature=10.0, seed=8))
    [part] = chat.last_answer().parts
    assert (part.temperature, part.seed) == (10.0, 8)
    assert [answer.content for answer in chat.alternatives()] == [two, other, hot]
    chat.choose(chat.versions()[0])
    chat.undo()
    chat.redo()
    assert said(chat)[-1] == two
    edited = text_of(chat.ask("Tell me a joke.", replaces=True))
    assert said(chat) == ["Hello", one, "Tell me a joke.", edited]
    assert [[turn[-1].content for turn in chat.versions()]] == [[two, other, hot, edited]]
    assert [chat.undo().content, chat.undo().content] == ["Tell me a joke.", "Hello"]
    assert said(chat) == []
    chat.redo()
    chat.redo()
    assert said(chat) == ["Hello", one, "Tell me a joke.", edited]
    with pytest.raises(MinkError, match="nothing"):
        chat.redo()
    assert chat.conversation is not None
    kept = [message.content for message in chat.store.messages(chat.conversation)]
    assert {one, two, other, hot, edited} <= set(kept)


def test_going_on_gives_the_answer_in_one_piece(smollm2: Model) -> None:
    whole = ask(new_session(smollm2, "-n", "24"), "Tell me a story about a dog.")
    chat = new_session(smollm2, "-n", "12")
    ask(chat, "Tell me a story about a dog.")
    text_of(chat.extend())
    answer = chat.last_answer()
    assert (answer.content, len(answer.tokens), len(answer.k)) == (whole, 24, 24)
    converse(chat.store, "Say hello.", "Hello!")
    chat.load(chat.store.find("2"))
    chat.branch[-1].finish_reason = "stop"
    with pytest.raises(MinkError, match="is finished"):
        chat.extend()


@pytest.mark.parametrize("how", ["fails", "is interrupted", "does not fit"])
def test_an_answer_without_a_token_changes_nothing(
    smollm2: Model, tiny: Callable[..., Path], how: str
) -> None:
    model = load_model(str(tiny(scale=float("nan"))), n_ctx=256) if how == "fails" else smollm2
    store = ConversationStore()
    converse(store, "Hello", "Hello!")
    chat = new_session(model, store=store)
    chat.load(store.find())
    before = said(chat)
    text = "word " * 2000 if how == "does not fit" else "And now?"
    acts: list[Callable[[], AnswerStream]] = [lambda: chat.ask(text), lambda: chat.ask(text, replaces=True)]
    for act in acts if how == "does not fit" else [*acts, chat.regenerate]:
        if how == "is interrupted":
            with held(chat.model):
                answer = act()
                answer.reply.interrupt()
            assert list(answer.pieces()) == []
            assert (answer.message.id, answer.message.finish_reason) == (0, "interrupted")
        else:
            with pytest.raises((GenerationError, ContextOverflowError)):
                list(act().pieces())
        assert said(chat) == before == ["Hello", "Hello!"]
        assert store.find().head == chat.branch[-1].id


def test_what_came_before_a_failure_is_kept(smollm2: Model) -> None:
    chat = new_session(smollm2)
    answer = chat.ask("Tell me a story.")
    pieces = answer.pieces()
    first = next(pieces)
    pieces.close()
    assert said(chat)[-1].startswith(first.content)


def turns(n: int) -> list[dict[str, str]]:
    return [
        {"role": role, "content": f"{role} {i} " + "word " * 40}
        for i in range(n)
        for role in ("user", "assistant")
    ]


def test_oldest_turns_are_dropped(smollm2: Model) -> None:
    system = [{"role": "system", "content": "You are brief."}]
    last = {"role": "user", "content": "the last"}
    short = [*system, *turns(3), last]
    assert drop_oldest_turns(short, smollm2, None, None) == short
    kept = drop_oldest_turns([*system, *turns(12), last], smollm2, None, None)
    dropped = 26 - len(kept)
    assert 12 <= dropped < 24
    assert kept == [*system, *turns(12)[dropped:], last]
    assert smollm2.count_tokens(kept) <= smollm2.n_ctx // 2
    huge = {"role": "user", "content": "word " * 2000}
    assert drop_oldest_turns([*system, *turns(3), huge], smollm2, None, None) == [*system, huge]


def test_many_turns_in_a_small_context(tiny: Callable[..., Path]) -> None:
    """Nothing of it is lost from the store, and between the drops every turn extends the KV cache."""
    chat = new_session(load_model(str(tiny()), n_ctx=256), "--system", "Be brief.", "--temp", "5")
    drops = evaluated = 0
    for i in range(20):
        answer = chat.ask(f"Tell me of the number {i}.")
        list(answer.pieces())
        drops += answer.dropped
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
    first, continued, forked = chat.alternatives()
    assert [part.first_token for part in continued.parts] == [0, 6]
    assert [part.reasoning for part in continued.parts] == [False, False]
    assert continued.content.startswith(first.content)
    assert (forked.chosen, forked.reasoning, forked.finish_reason) == ([1], "A pear is a fruit.", "length")
    assert AnswerSteps(chat, forked).step(2).k == 1
    list(chat.extend().pieces())
    assert said(chat)[-1].startswith(forked.content)
    assert store.find().id == 1


def test_continuing_overwrites_nothing(smollm2: Model) -> None:
    """Two windows may continue the same answer: both get an answer of their own."""
    store = ConversationStore()
    one, two = new_session(smollm2, "-n", "3", store=store), new_session(smollm2, "-n", "3", store=store)
    ask(one, "Tell me a story.")
    two.load(store.find())
    cut = said(one)[-1]
    list(one.extend().pieces())
    with pytest.raises(MinkError, match="another window"):
        two.extend()
    list(two.extend().pieces())
    texts = [answer.content for answer in two.alternatives()]
    assert texts[0] == cut
    assert texts[1] == texts[2] == said(two)[-1] == said(one)[-1] != cut


def test_a_conversation_that_is_deleted_while_an_answer_comes(smollm2: Model) -> None:
    """The branch is kept as a new conversation; one that was deleted before is refused."""
    chat = new_session(smollm2)
    ask(chat, "Hello")
    answer = chat.ask("Tell me a story.")
    pieces = answer.pieces()
    next(pieces)
    assert chat.conversation == 1
    chat.store.delete(1)
    others = converse(chat.store, "Another one.", "Yes.", "And another.", "No.")
    list(pieces)
    assert chat.conversation == 3
    assert chat.store.messages(2) == others
    kept = chat.store.branch(chat.store.get(3).head)
    assert kept == chat.branch
    assert kept[-1].finish_reason is not None
    chat.store.delete(3)
    with pytest.raises(DeletedError):
        chat.ask("And now?")
    chat.clear()
    assert ask(chat, "Hello")


@pytest.mark.slow
def test_a_lock_costs_nothing(smollm2: Model, tmp_path: Path) -> None:
    """Messages that could not be stored are there, and are stored when the file is free again."""
    path = tmp_path / "c.db"
    chat = new_session(smollm2, store=ConversationStore(path))
    began = time.monotonic()
    with locked(path):
        first = ask(chat, "Hello")
        assert time.monotonic() - began < 10  # it is waited for once, not for each token
    assert chat.flush() == ""
    with locked(path):
        answer = chat.ask("Tell me a story.")
        texts = [text_of(answer), text_of(chat.regenerate(temperature=5.0))]
        assert chat.flush()
        assert [one.content for one in chat.alternatives()] == texts
        chat.undo()
        chat.redo()
        assert said(chat) == ["Hello", first, "Tell me a story.", texts[1]]
        assert time.monotonic() - began < 20
    assert chat.flush() == ""
    [stored] = ConversationStore(path).conversations()
    assert ConversationStore(path).branch(stored.head) == chat.branch
    assert [one.content for one in chat.alternatives()] == texts


def test_a_lock_in_the_middle_of_an_answer(smollm2: Model, tmp_path: Path) -> None:
    path = tmp_path / "c.db"
    chat = new_session(smollm2, "-n", "12", store=ConversationStore(path))
    answer = chat.ask("Tell me a story.")
    pieces = answer.pieces()
    text = next(pieces).content
    with locked(path):
        for _ in range(3):
            text += next(pieces).content
    text += next(pieces).content  # the next piece that can be stored brings those before it
    assert ConversationStore(path).branch(answer.message.id)[-1].content == text
    list(pieces)
    assert ConversationStore(path).branch(answer.message.id) == chat.branch


def test_an_answer_that_another_window_is_writing(smollm2: Model, tmp_path: Path) -> None:
    """It is not continued, answered or replaced until it has ended; then it is there as a whole."""
    stores = [ConversationStore(tmp_path / "c.db") for _ in range(2)]
    one, two = (new_session(smollm2, store=store) for store in stores)
    ask(one, "Hello")
    answer = one.ask("Tell me a story.")
    pieces = answer.pieces()
    next(pieces)
    two.load(stores[1].find())
    refused: list[Callable[[], object]] = [two.extend, two.regenerate, two.undo, lambda: two.ask("And?")]
    for act in refused:
        with pytest.raises(MinkError, match="being written"):
            act()
    list(pieces)
    two.check_unchanged()
    assert two.branch == one.branch
    ask(two, "And now?")
    assert said(two)[:4] == said(one)


def test_a_message_that_another_window_is_about_to_answer(smollm2: Model, tmp_path: Path) -> None:
    """It is not taken into the input line; what is asked meanwhile is another branch."""
    stores = [ConversationStore(tmp_path / "c.db") for _ in range(2)]
    one, two = (new_session(smollm2, store=store) for store in stores)
    first = ask(one, "Hello")
    answer = one.ask("Tell me a story.")
    assert two.load(stores[1].find()) is None
    assert said(two) == ["Hello", first]
    text = text_of(answer)
    assert said(one)[-2:] == ["Tell me a story.", text]
    assert stores[1].branch(stores[1].find().head) == one.branch
    stores[0].close()
    stores[0].save(1, [*one.branch, StoredMessage("user", "And now?")], "model", None)
    stores[0].close()  # as if killed
    unanswered = two.load(stores[1].find())
    assert unanswered
    assert unanswered.typed == "And now?"
