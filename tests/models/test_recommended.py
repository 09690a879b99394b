"""The sampling that a file recommends: what it says, nothing else, in every program alike."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mink_local import load_model
from mink_local.bench.cli import main as bench
from mink_local.errors import ModelError
from mink_local.evals.cli import main as evaluate
from mink_local.llama.constraints import Constraints
from mink_local.llama.library import C
from mink_local.manage.cli import main as models
from mink_local.models.gguf import Array, Metadata
from mink_local.models.recommended import _RANGES, recommended, recommended_by, require_recommended
from mink_local.samplers import Mirostat, Xtc, parse
from tests.support.effort import examples
from tests.support.mink_eval import read_responses
from tests.support.python import Finished

RunMain = Callable[..., Finished]

QWEN3 = {"temp": 0.6, "top_k": 20, "top_p": 0.95}
QWEN3_CUTS = "top-k:k=20+top-p:p=0.95,order=temperature-last"
FIRST = "order=temperature-first"


def keys(values: dict[str, Any]) -> dict[str, Any]:
    return {f"general.sampling.{name}": value for name, value in values.items()}


def metadata(values: dict[str, Any]) -> Metadata:
    return Metadata(Path("model.gguf"), keys(values), (), 0)


def test_the_keys_are_those_of_llama_cpp() -> None:
    theirs = {C.llama_model_meta_key_str(number).decode() for number in range(12)}
    assert theirs == set(keys(dict.fromkeys([*_RANGES, "sequence"])))


@pytest.mark.parametrize(
    ("values", "sampler", "temperature"),
    [
        (QWEN3, QWEN3_CUTS, 0.6),
        ({"temp": 0.15}, "min-p:p=0,order=temperature-last", 0.15),
        ({"top_k": 64}, "top-k:k=64", 1.0),
        ({"temp": 1.5, "top_k": 0, "top_p": 1.0, "min_p": 0.1}, "min-p:p=0.1,order=temperature-last", 1.5),
        ({"top_p": 0.949999988079071}, "top-p:p=0.95,order=temperature-last", 1.0),
        ({**QWEN3, "sequence": "top_p;top_k"}, "top-p:p=0.95,order=temperature-last+top-k:k=20", 1.0),
        ({**QWEN3, "sequence": "temp;top-k;nucleus;top_p"}, f"top-k:k=20+top-p:p=0.95,{FIRST}", 0.6),
        ({**QWEN3, "sequence": "temperature;" + "top_k;" * 9999}, "top-k:k=20", 0.6),
        ({"xtc_probability": 0.5, "xtc_threshold": 0.2}, str(Xtc(0.5, 0.2, "temperature-last")), 1.0),
        ({"xtc_probability": 0.0, "top_k": 5}, "top-k:k=5", 1.0),
        ({"mirostat": 2, "mirostat_tau": 4.0, "top_k": 5}, str(Mirostat(tau=4.0)), 1.0),
        ({"temp": 0, "top_k": 1}, "top-k:k=1", 0.0),
    ],
)  # fmt: skip
def test_what_a_file_says(values: dict[str, Any], sampler: str, temperature: float) -> None:
    found = recommended(metadata(values))
    assert found is not None
    assert (found.sampler, found.temperature, found.penalties) == (parse(sampler), temperature, {})


def test_penalties_are_recommended_only_with_a_penalty() -> None:
    found = recommended(metadata({"penalty_repeat": 1.05, "penalty_last_n": -1}))
    assert found is not None
    assert Constraints(**found.penalties) == Constraints(repeat_penalty=1.05, penalty_last_n=-1)
    for none in (
        {"penalty_repeat": 1.0},
        {"penalty_last_n": 64},
        {"penalty_repeat": 1.1, "sequence": "top_k"},
    ):
        assert recommended(metadata(none)).penalties == {}  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "bad",
    [
        {"temp": float("nan")}, {"temp": float("inf")}, {"temp": -0.5}, {"temp": "hot"}, {"temp": True},
        {"top_k": 2**31}, {"top_k": -7}, {"top_k": 2.5}, {"top_p": 1.5}, {"min_p": -1.0},
        {"penalty_repeat": 0.0}, {"mirostat": 3}, {"mirostat_tau": 0.0}, {"top_p": Array(1, (0.9,))},
    ],
)  # fmt: skip
def test_what_is_no_number_in_its_range_is_ignored_and_named(bad: dict[str, Any]) -> None:
    assert recommended(metadata(bad)) is None
    found = recommended(metadata({"min_p" if "top_k" in bad else "top_k": 1, **bad}))
    assert found is not None
    assert [*found.ignored] == [*bad]


ANY = st.one_of(st.floats(), st.integers(), st.booleans(), st.text(), st.floats(0, 1), st.integers(0, 100))


@given(st.dictionaries(st.sampled_from([*_RANGES, "sequence"]), ANY))
@examples(200)
def test_no_file_is_too_strange(values: dict[str, Any]) -> None:
    if (found := recommended(metadata(values))) is not None:
        assert parse(str(found.sampler)) == found.sampler
        assert found.sampler.comes_last or found.sampler.cutoff([1.0, 2.0, 3.0], found.temperature or 1.0)
        Constraints(**found.penalties)
        assert str(found)


def test_a_file_that_recommends_nothing(tiny_path: Path, tmp_path: Path) -> None:
    assert recommended_by(tiny_path) is None
    assert recommended_by(tmp_path / "missing.gguf") is None
    with pytest.raises(ModelError, match=tiny_path.name):
        require_recommended(tiny_path)


@pytest.fixture
def qwen(tiny: Callable[..., Path]) -> Path:
    """A model that recommends what Qwen3's files do."""
    return tiny("qwen.gguf", more_keys=keys(QWEN3))


def test_info_shows_it(qwen: Path, tiny_path: Path, run_main: RunMain) -> None:
    facts = json.loads(run_main(models, "info", qwen, "--json").succeeded().stdout)["sampling"]
    assert (facts["sampler"], facts["temperature"], facts["values"]) == (QWEN3_CUTS, 0.6, QWEN3)
    assert "T = 0.6, top-k 20, top-p 0.95" in run_main(models, "info", qwen).stdout
    assert json.loads(run_main(models, "info", tiny_path, "--json").stdout)["sampling"] is None


def test_python(qwen: Path, tiny_path: Path) -> None:
    with load_model(qwen, n_ctx=256) as model:
        assert model.recommended is not None
        same = replace(model.recommended, max_tokens=8, seed=1)
        by_hand = model.chat("Hi", sampler=QWEN3_CUTS, temperature=0.6, max_tokens=8, seed=1).read()
        assert model.chat("Hi", same).read() == by_hand
    with load_model(tiny_path, n_ctx=256) as model:
        assert model.recommended is None


def test_eval_records_the_samplers_text(qwen: Path, tmp_path: Path, run_main: RunMain) -> None:
    options = [
        "run",
        "sample-math",
        "--model",
        qwen,
        "--limit",
        1,
        "--max-tokens",
        4,
        "--out",
        tmp_path / "run",
    ]
    run_main(
        evaluate, *options, "--sampler", "model", "--sampler", "min-k", "--temp", "1", "--no-greedy"
    ).succeeded()
    found = {(one.sampler, one.temperature) for one in read_responses(tmp_path / "run")}
    assert found == {(QWEN3_CUTS, 1.0), ("min-k:tau=3", 1.0)}  # the user's temperature
    run_main(evaluate, *options, "--sampler", "model", "--no-greedy").succeeded()
    found = {(one.sampler, one.temperature) for one in read_responses(tmp_path / "run")}
    assert found == {(QWEN3_CUTS, 1.0), ("min-k:tau=3", 1.0), (QWEN3_CUTS, 0.6)}


def test_eval_says_what_it_does_not_apply(
    tiny: Callable[..., Path], tmp_path: Path, run_main: RunMain
) -> None:
    path = tiny("penalty.gguf", more_keys=keys({**QWEN3, "penalty_repeat": 1.1}))
    options = ["run", "sample-math", "--sampler", "model", "--out", tmp_path / "run"]
    run_main(evaluate, *options, "--model", path).refused(2, QWEN3_CUTS)
    run_main(evaluate, *options, "--model", path, "--model", "smollm2-135m").refused(2)
    assert not (tmp_path / "run").exists()


def test_bench(qwen: Path, tiny_path: Path, run_main: RunMain) -> None:
    options = ["sampler", "--sampler", "model", "--rounds", 1, "--json", "--model"]
    rows = json.loads(run_main(bench, *options, qwen).succeeded().stdout)
    assert QWEN3_CUTS in {row["method"] for row in rows}
    run_main(bench, *options, tiny_path).refused(1, tiny_path.name)
