"""The samplers of scripts/lab: as slow plain references cut, known to its program alone."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import ArrayLike

from mink_local.errors import OptionError
from mink_local.samplers import SAMPLERS, Sampler, parse
from scripts.lab.rivals import DiffSampling, PStep
from tests.support import reference
from tests.support.effort import examples
from tests.support.methods import JIT, Method, Row, check, rows
from tests.support.python import output_of, run_python

_unit = st.floats(0, 1) | st.sampled_from([0.0, 0.1, 0.9, 1.0])
METHODS: dict[type[Sampler], Method] = {
    DiffSampling: Method(
        reference.diff_sampling,
        st.builds(DiffSampling, _unit) | st.builds(DiffSampling, st.just(0.0), _unit),
        (DiffSampling(), DiffSampling(0.9), DiffSampling(min_p=0.1)),
    ),
    PStep: Method(reference.p_step, st.builds(PStep, _unit), (PStep(), PStep(0.1), PStep(0.9999))),
}
EXAMPLES = [sampler for method in METHODS.values() for sampler in method.examples]


@pytest.mark.parametrize("kind", METHODS)
@examples(120 if JIT else 25)
@given(st.data())
def test_agrees_with_its_twin(kind: type[Sampler], data: st.DataObject) -> None:
    check(data.draw(METHODS[kind].samplers), data.draw(rows()), methods=METHODS)


@pytest.mark.parametrize("sampler", EXAMPLES, ids=str)
def test_agrees_with_its_twin_on_real_logits(logits: Row, sampler: Sampler) -> None:
    check(sampler, logits[0], methods=METHODS)


QUARTERS = np.log([0.5, 0.25, 0.125, 0.125])
INF = float("inf")


@pytest.mark.parametrize(("sampler", "row", "k"), [
    (DiffSampling(), QUARTERS, 1),  # drops of 1/4, 1/8, 0 and, after the last, 1/8
    (DiffSampling(), [0.0, 0.0, 0.0], 3),
    (DiffSampling(0.6), np.log([0.5, 0.2, 0.18, 0.12]), 4),  # 0.3 no longer counts: 0.02, 0.06, 0.12
    (DiffSampling(0.6), np.log([0.4, 0.3, 0.2, 0.06, 0.04]), 3),  # 0.1, 0.14, 0.02, 0.04
    (DiffSampling(min_p=0.4), np.log([0.4, 0.3, 0.2, 0.06, 0.04]), 3),  # above 0.16 are three
    (DiffSampling(min_p=0.01), QUARTERS, 4),
    (PStep(0.6), QUARTERS, 1),  # ratios of 1/2, 1/2, 1
    (PStep(0.4), QUARTERS, 4),
    (PStep(0.5), [0.0, 0.0, -0.6, -1.2, -2.0, -9.0], 4),  # from a gap of log(2) = 0.69 on
    (PStep(0.0), [9.0, 0.0, -9.0], 3),
    (PStep(1.0), [9.0, 9.0, 8.9999, -INF], 2),
])  # fmt: skip
def test_by_hand(sampler: Sampler, row: ArrayLike, k: int) -> None:
    assert sampler.cutoff(row) == k
    check(sampler, np.asarray(row, np.float32), methods=METHODS)


def test_options() -> None:
    with pytest.raises(OptionError):
        PStep(math.nan)
    with pytest.raises(ValueError, match="min_p"):
        DiffSampling(p=0.5, min_p=0.1)


def test_only_the_labs_program_knows_them(tiny_path: Path, tmp_path: Path) -> None:
    for sampler in (DiffSampling(), PStep()):
        assert sampler.name not in SAMPLERS
        with pytest.raises(ValueError, match=r"scripts\.lab\.rivals"):
            parse(str(sampler))
    options = ["run", "sample-math", "--model", tiny_path, "--limit", "1", "--max-tokens", "4", "--no-greedy"]
    options += ["--sampler", "p-step:step=0.9", "--sampler", "diff-sampling", "--quiet", "--out", tmp_path]
    assert run_python("-m", "mink_local.evals.cli", *options).status == 2
    output_of("-m", "scripts.lab.rivals", *options)
    records = [json.loads(line) for line in (tmp_path / "records.jsonl").read_text().splitlines()]
    assert {record["sampler"] for record in records} >= {"p-step:step=0.9", "diff-sampling:p=0"}
    page = output_of("-m", "mink_local.evals.cli", "report", tmp_path)  # where the name is text
    assert "p-step:step=0.9" in page + (tmp_path / "report/report.md").read_text()
