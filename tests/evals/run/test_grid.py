"""The grid of an evaluation: which responses are wanted, with which seeds."""

import click

from mink_local.evals.cli import run_command
from mink_local.evals.run.grid import Variant, keys, seed_of, task_work, variants
from mink_local.evals.run.records import Cell
from mink_local.evals.tasks.base import Question
from mink_local.llama.context import MAX_SEED
from mink_local.samplers import Greedy, MinK, TopP

QUESTIONS = [Question(str(i), f"What is {i} + {i}?", str(2 * i)) for i in range(3)]


def test_greedy_is_asked_for_once() -> None:
    wanted = variants([MinK(), Greedy(), TopP(), MinK()], [1, 5, 0, 1.0], repeats=2)
    assert wanted == [
        *(Variant(MinK(), t, repeat) for t in (1, 5) for repeat in (0, 1)),
        Variant(Greedy(), 0, 0),
        *(Variant(TopP(), t, repeat) for t in (1, 5) for repeat in (0, 1)),
    ]


def test_seeds() -> None:
    seeds = {seed_of(run, task, question, repeat) for run in (0, 1) for task in ("a", "b")
             for question in ("1", "11") for repeat in (0, 1)}  # fmt: skip
    assert len(seeds) == 16
    assert all(0 <= seed <= MAX_SEED for seed in seeds)
    assert seed_of(0, "gsm8k", "0", 0) == 2826138680  # of records that exist


def test_only_missing_responses_are_work() -> None:
    wanted = variants([MinK(), TopP()], [5], repeats=1)
    everything = list(keys("tiny", "gsm8k", QUESTIONS, wanted))
    assert len(set(everything)) == 6
    assert {key.cell for key in everything} == {
        Cell("tiny", "gsm8k", str(sampler), 5.0) for sampler in (MinK(), TopP())
    }
    done = {everything[0], everything[2], everything[5]}
    work = task_work("tiny", "gsm8k", QUESTIONS, 16, wanted, done)
    assert work.prompts == tuple(question.prompt for question in QUESTIONS)
    assert [(item.question.id, [v.sampler for v in item.variants]) for item in work.items] == [
        ("0", [TopP()]), ("1", [MinK(), TopP()]),
    ]  # fmt: skip


def test_the_command_takes_every_seed_that_llama_cpp_does() -> None:
    (option,) = (option for option in run_command.params if option.name == "seed")
    assert isinstance(option.type, click.IntRange)
    assert (option.type.min, option.type.max) == (0, MAX_SEED)
