"""Random commands, interrupts and kills: what was typed, begun and set can be reached again."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from mink_local.chat.chat import Draft
from mink_local.chat.conversation.session import AnswerStream, Branch, Session
from mink_local.chat.conversation.store import ConversationStore
from mink_local.chat.settings import BY_KEY, Settings
from mink_local.errors import MinkError
from mink_local.generation.answer import Piece
from tests.chat.conftest import Typist, context, load_once
from tests.conftest import held
from tests.support.effort import examples

SET = {
    "temp": ["0.5", "3", "10"],
    "sampler": ["top-k:k=5", "min-k:tau=1,floor=2"],
    "floor": ["0.5", "1.25"],
    "repeat-penalty": ["1.5"],
    "loop-guard": ["on", "off"],
    "logit-bias": ["5=-inf 6=1.5"],
}
STAGES = ("no", "prompt", "text", "kill at the prompt", "kill in the text")
# What is answered: often a new question; an empty line sends what is offered.
LINES = ["Question {}?"] * 3 + ["", "", "/regen", "/regen 8", "/continue"]
Begun = set[tuple[str, str]]


class Killed(BaseException):
    """The program ends at once."""


class Stream(AnswerStream):
    """An answer that is interrupted, or whose program is killed, at a stage."""

    stage = "no"
    begun: Begun

    def pieces(self, waiting: Callable[[int], None] = lambda _: None) -> Iterator[Piece]:  # type: ignore[override]
        for piece in super().pieces(waiting):
            self.begun.add((self._branch[-2].content, self.message.content))
            if self.stage == "text":
                self.reply.interrupt()
            elif self.stage == "kill in the text":
                kill(self._session)
            yield piece
        if self.message.content:
            self.begun.add((self._branch[-2].content, self.message.content))


def kill(session: Session) -> None:
    session.store.close()
    session.store = ConversationStore()  # what is written from now on is lost
    raise Killed


class Stopped(Session):
    """A session whose next answer is stopped at a stage."""

    stage = "no"
    begun: Begun

    def _answer(self, *arguments: Any) -> AnswerStream:
        if self.stage == "kill at the prompt":
            kill(self)
        with held(self.model):
            stream = super()._answer(*arguments)
            if self.stage == "prompt":
                stream.reply.interrupt()
        stream.__class__ = Stream
        assert isinstance(stream, Stream)
        stream.stage, stream.begun = self.stage, self.begun
        return stream


class Person(RuleBasedStateMachine):
    """Types into a chat, and remembers what was typed, what was shown, and what was set."""

    model: Any
    new_path: Iterator[Path]
    capsys: pytest.CaptureFixture[str]

    @initialize()
    def begin(self) -> None:
        self.path = next(self.new_path)
        self.typed: set[str] = set()
        self.begun: Begun = set()
        self.numbers = count()
        self.set: dict[int, dict[str, str]] = {}
        self.start(None)

    def start(self, *arguments: str | None) -> None:
        """Start the program, with the last conversation if there are arguments."""
        store = ConversationStore(self.path)
        self.session = Stopped(self.model, Settings(context(*filter(None, arguments))), store)
        self.session.begun = self.begun
        self.typist = Typist(self.session, self.capsys)
        self.chat = self.typist.chat
        with suppress(MinkError):
            if arguments != (None,):
                unanswered = self.session.load(store.find())
                self.chat.draft = Draft(unanswered) if unanswered else None
        self.arguments = arguments
        self.settings_are_those_shown()

    def settings_are_those_shown(self) -> None:
        """Of a conversation that goes on, they are its own, unless the command line overrides them."""
        now = {key: self.session.settings.shown(BY_KEY[key]) for key in SET}
        if "--temp" in self.arguments:
            assert now.pop("temp") == "7"
        if (known := self.set.get(self.session.conversation or 0)) is not None:
            assert known | now == known
        self.remember()

    def remember(self) -> None:
        if number := self.session.conversation:
            self.set[number] = {key: self.session.settings.shown(BY_KEY[key]) for key in SET}

    def say(self, text: str, stage: str = "no") -> None:
        self.session.stage = stage
        offered = self.chat.draft.message.typed if self.chat.draft else ""
        if not text.startswith("/") and (text or offered):
            self.typed.add(text or offered)
        try:
            self.typist.say(text)
        except Killed:
            self.start()
            return
        self.session.stage = "no"
        if text.startswith("/load"):
            self.settings_are_those_shown()
        self.remember()

    @rule(line=st.sampled_from(LINES), stage=st.sampled_from(STAGES))
    def answer(self, line: str, stage: str) -> None:
        self.say(line.format(next(self.numbers)), stage)

    @rule(stage=st.sampled_from(STAGES))
    def edit(self, stage: str) -> None:
        if self.session.branch:
            self.say("/edit")
            self.say(f"Question {next(self.numbers)}?", stage)

    @rule(command=st.sampled_from(["/undo", "/undo 2", "/redo", "/pick 1", "/pick 2", "/pick 3", "/clear"]))
    def go(self, command: str) -> None:
        self.say(command)

    @rule(data=st.data(), key=st.sampled_from(sorted(SET)))
    def change(self, data: st.DataObject, key: str) -> None:
        value = data.draw(st.sampled_from(SET[key]))
        before = {key: self.session.settings.shown(BY_KEY[key]) for key in SET}
        self.say(f"/set {key} {value}")
        if key not in ("sampler", "floor"):  # which change each other
            now = {key: self.session.settings.shown(BY_KEY[key]) for key in SET}
            assert now == before | {key: value}

    @rule(data=st.data())
    def load(self, data: st.DataObject) -> None:
        if self.set:
            self.say(f"/load {data.draw(st.sampled_from(sorted(self.set)))}")

    @rule(end=st.sampled_from(["leaves", "is killed"]), arguments=st.sampled_from([(), ("--temp", "7")]))
    def continue_after(self, end: str, arguments: tuple[str, ...]) -> None:
        if end == "leaves":
            self.session.end()
        self.session.store.close()
        self.start(*arguments)

    def teardown(self) -> None:
        """Everything is found by /load, /undo, /redo, /pick and Enter."""
        if not hasattr(self, "session"):
            return
        self.session.end()
        self.session.store.close()
        found: Begun = set()
        store = ConversationStore(self.path)
        for conversation in store.conversations():
            session = Session(self.model, Settings(context("-n", "1")), store)
            unanswered = session.load(conversation)
            found.update(texts([unanswered] if unanswered else []))
            while session.branch:
                session.undo()
            found.update(reached(session))
            session.end()
        for message, text in self.begun:
            assert any(message == other and answer.startswith(text) for other, answer in found)
        assert self.typed <= {message for message, _ in found}


def texts(turn: Branch) -> Begun:
    return {(turn[0].content, turn[1].content if turn[1:] else "")} if turn else set()


def reached(session: Session) -> Begun:
    """Return the messages and answers after the branch of a session, which is the same afterwards."""
    before = session.branch
    found: Begun = set()
    session._undone.clear()  # as after a start
    try:
        unanswered = session.redo()
    except MinkError:
        return found
    if unanswered:  # it and others are versions of the turn once it is answered
        found.update(texts([unanswered]))
        list(session.ask(unanswered.content).pieces())
        assert len(session.branch) > len(before)
    for turn in session.versions():
        found.update(texts(turn))
        if not session.choose(turn):
            found.update(reached(session))
        else:
            session.redo()
        assert len(session.branch) == len(before) + 2
    session.undo()
    return found


@pytest.mark.usefixtures("own_files")
def test_nothing_is_lost(
    tiny_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MINK_MAX_TOKENS", "4")
    monkeypatch.setenv("MINK_STATUS", "0")
    Person.capsys = capsys
    Person.model = load_once(str(tiny_path), n_ctx=2048)
    Person.new_path = (tmp_path / f"{i}.db" for i in count())
    run_state_machine_as_test(Person, settings=settings(examples(30), stateful_step_count=12))
