"""The grid of an evaluation: which responses are wanted, with which seeds."""

from mink_local.evals.run.grid import TaskSettings, TaskWork, Variant, variants
from mink_local.evals.tasks import TASKS
from mink_local.evals.tasks.base import Question
from mink_local.samplers import Greedy, MinK, TopP

QUESTIONS = [Question(str(i), f"What is {i} + {i}?", str(2 * i)) for i in range(3)]


def test_greedy_is_wanted_once() -> None:
    assert variants([MinK()], [1], repeats=1) == [Variant(Greedy(), 0, 0), Variant(MinK(), 1, 0)]
    assert variants([MinK(), Greedy()], [0], repeats=2) == [Variant(Greedy(), 0, 0)]
    wanted = variants([MinK(), Greedy(), TopP(), MinK()], [1, 5, 0, 1.0], repeats=2)
    assert wanted == [
        Variant(Greedy(), 0, 0),
        *(Variant(MinK(), t, repeat) for t in (1, 5) for repeat in (0, 1)),
        *(Variant(TopP(), t, repeat) for t in (1, 5) for repeat in (0, 1)),
    ]


def test_greedy_can_be_refused() -> None:
    assert variants([MinK()], [1], 1, greedy=False) == [Variant(MinK(), 1, 0)]
    assert variants([MinK()], [1, 0], 1, greedy=False) == [Variant(Greedy(), 0, 0), Variant(MinK(), 1, 0)]
    assert variants([Greedy()], [1], 1, greedy=False) == [Variant(Greedy(), 0, 0)]


def test_only_missing_responses_are_work() -> None:
    settings = TaskSettings(TASKS["gsm8k"], 16)
    work = TaskWork.of("tiny", settings, QUESTIONS, variants([MinK()], [5], repeats=1))
    assert len(set(work.keys)) == 6
    assert {key[:4] for key in work.keys} == {
        ("tiny", "gsm8k", str(MinK()), 5.0),
        ("tiny", "gsm8k", "greedy", 0.0),
    }
    left = work.without({work.keys[0], work.keys[4], work.keys[5]})
    assert left.prompts == tuple(question.prompt for question in QUESTIONS)
    assert left.keys == work.keys[1:4]
    assert [item.question.id for item in left.items] == ["0", "1"]


def test_examples_are_earlier_turns() -> None:
    settings = TaskSettings(TASKS["gsm8k"], 16, (("1 + 1?", "2."), ("2 + 2?", "4.")))
    turns = [(turn["role"], turn["content"]) for turn in settings.messages("3 + 3?")]
    assert turns == [
        ("user", "1 + 1?"), ("assistant", "2."), ("user", "2 + 2?"), ("assistant", "4."), ("user", "3 + 3?")
    ]  # fmt: skip
