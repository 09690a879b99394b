"""`mink-eval candidates`: the candidates of one token."""

from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from mink_local.errors import MinkError
from mink_local.evals import candidates
from mink_local.evals.candidates import next_step, plot
from mink_local.generation.model import Model
from mink_local.generation.sampling_step import sampling_step
from mink_local.samplers import MinK, TopP, default_samplers
from tests.conftest import forget
from tests.support.mink_eval import MinkEval

PROMPT, ANSWER = "Tell me a story about a dog.", "Once upon a time, there was a"


def test_the_methods_keep_what_they_keep_of_these_logits(
    mink_eval: MinkEval, smollm2: Model, tmp_path: Path
) -> None:
    options = ["--answer", ANSWER, "-t", "1", "-t", "5", "-s", "min-k:tau=90", "-s", "top-p"]
    result = mink_eval("candidates", PROMPT, *options, "--plot", tmp_path / "step.svg")
    # What is left in the KV cache changes the last bits of the logits, and with them what top-p keeps.
    logits = forget(smollm2).logits([{"role": "user", "content": PROMPT}], smollm2.tokenize(ANSWER))
    best = smollm2.token_texts([int(logits.argmax())])[0]
    rows = [
        [cell.strip() for cell in line.split("│")[1:-1]] for line in result.stdout.splitlines() if "│" in line
    ]
    assert rows[0][:2] == ["1", repr(best)]
    kept = [
        [name, *(f"{method.cutoff(logits, t):,}" for t in (1, 5))]
        for name, method in (("min-k:tau=90", MinK(tau=90)), ("top-p:p=0.9 (T first)", TopP()))
    ]
    assert rows[-2:] == kept
    assert result.status == 0
    assert (tmp_path / "step.svg").read_text().startswith("<?xml")


def test_the_answer_goes_on(smollm2: Model) -> None:
    one, other = next_step(smollm2, PROMPT), next_step(smollm2, PROMPT, ANSWER)
    assert not np.array_equal(one.row, other.row)
    # every sampler is compared by default
    assert set(one.compared) == {sampler for sampler in default_samplers() if not sampler.is_stateful}


@pytest.mark.slow
def test_a_picture_of_any_text(logits: NDArray[np.float32], tmp_path: Path) -> None:
    step = sampling_step(logits[0], int(logits[0].argmax()), 5.0)
    plot(step, ["$x_1", "日本語", "\n"], tmp_path / "step.svg")
    assert (tmp_path / "step.svg").read_text().startswith("<?xml")
    for path in (tmp_path / "step.parrot", tmp_path / "no" / "step.png"):
        with pytest.raises(MinkError, match=path.name):
            plot(step, ["a"], path)


def test_tokens_are_shown_as_they_are(
    smollm2: Model, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A token's text may be what Rich takes for markup or for an emoji."""
    step = next_step(smollm2, PROMPT, ANSWER)
    monkeypatch.setattr(candidates, "load_model", lambda *_, **__: nullcontext(smollm2))
    monkeypatch.setattr(candidates, "next_step", lambda *_: step)
    texts = iter(["[/x]", "[red]", ":smile:"])
    monkeypatch.setattr(candidates, "token_name", lambda *_: next(texts, "a"))
    candidates.show_candidates(PROMPT, "any", ANSWER, [], [1.0], None)
    shown = capsys.readouterr().out
    assert all(text in shown for text in ("'[/x]'", "'[red]'", "':smile:'"))
