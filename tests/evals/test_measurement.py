"""A measurement carried out in a folder: what is missing is measured, whatever ended the session before."""

import json
import logging
import math
import os
import re
import signal
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import pytest

from mink_local import load_model
from mink_local.errors import GenerationError, ModelError, ReportError
from mink_local.evals import measurement as module
from mink_local.evals.measurement import (
    Measurement,
    Results,
    carry_out,
    progress,
)
from mink_local.evals.report.report import Report
from mink_local.evals.settings import sweep
from mink_local.evals.store import ROWS, Store
from mink_local.samplers import SAMPLERS
from scripts.lab.coverage.measure import Walks
from tests.support.http import until
from tests.support.mink_eval import MinkEval


@dataclass(frozen=True)
class Square:
    number: int
    square: int

    @property
    def key(self) -> int:
        return self.number


class Squares(Measurement[Square]):
    """The squares of the numbers below n; `fails_at` raises an error, and `kills_at` sends a signal."""

    measures, noun, row_type = "squares", "numbers", Square

    def __init__(self, n: int, fails_at: int = -1, kills_at: int = -1, number: int = signal.SIGINT) -> None:
        self.settings = {"power": 2}
        self.n, self.fails_at, self.kills_at, self.signal = n, fails_at, kills_at, number
        self.measured: list[int] = []

    def plan(self) -> Sequence[int]:
        return range(self.n)

    def measure(self, keys: Sequence[int], store: Store[Square]) -> Generator[Square, None, None]:
        store.begin_session(threads=1)
        for key in keys:
            if key == self.fails_at:
                raise ModelError(f"{key} is no number")
            if key == self.kills_at:
                os.kill(os.getpid(), self.signal)
                while not self.interrupted:
                    time.sleep(0.001)
            if self.interrupted:
                return
            self.measured.append(key)
            yield Square(key, key * key)

    @staticmethod
    def report(results: Results) -> Report:
        total = pd.DataFrame({"sum": [results.frame["square"].sum()]})
        return Report("squares", "Squares", [], [], [], ["all are squares"], frames={"total": total})

    def status(self) -> str:
        return f"last {self.measured[-1] if self.measured else 0}"


def test_only_what_is_missing_is_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for n, measured in ((3, [0, 1, 2]), (5, [3, 4]), (2, [])):
        squares = Squares(n)
        carry_out(squares, tmp_path)
        assert squares.measured == measured
    assert json.loads((tmp_path / "squares.json").read_text())["total"] == [{"sum": 30}]  # of all it holds
    out, err = capsys.readouterr()
    assert out.count("all are squares") == 3
    assert "5 of 5 numbers, last 4" in err
    carry_out(Squares(6), tmp_path, quiet=True)
    assert capsys.readouterr().err == ""


@pytest.mark.posix
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_and_the_same_command_continues(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], number: int
) -> None:
    with pytest.raises(KeyboardInterrupt):
        carry_out(Squares(5, kills_at=3, number=number), tmp_path)
    assert "3 of 5" in capsys.readouterr().out
    squares = Squares(5)
    carry_out(squares, tmp_path)
    assert squares.measured == [3, 4]


def test_an_error_keeps_what_was_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ModelError):
        carry_out(Squares(5, fails_at=2), tmp_path)
    assert "2 of 5" in capsys.readouterr().out
    results = Results(tmp_path, Squares)
    assert results.frame.to_dict("list") == {"number": [0, 1], "square": [0, 1]}
    assert (results.manifest["power"], len(results.manifest["sessions"])) == (2, 1)
    (tmp_path / ROWS).write_text('{"number": 1}\n')
    for folder, named in ((tmp_path, "line 1"), (tmp_path / "empty", "empty")):
        with pytest.raises(ReportError, match=named):
            _ = Results(folder, Squares).rows


class Shown(Squares):
    """Beside the number of rows, a question's id, which is whatever its author wrote."""

    def status(self) -> str:
        return "42% [/x] [red] :smile: \x1b[2J"


SHOWN = "42% [/x] [red] :smile: ␛[2J"  # neither markup nor what a terminal obeys


def test_a_log_has_a_sign_of_life_before_the_first_row_and_one_at_the_end(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_FIRST_LOG_SECONDS", 0.1)
    monkeypatch.setattr(module, "_TICK_SECONDS", 0.01)
    with progress(Shown(0), 10, done=4) as advance:
        until(lambda: f"4 of 10 numbers, {SHOWN}, ? left" in capsys.readouterr().err)
        for _ in range(6):
            advance()
    assert capsys.readouterr().err.splitlines()[-1] == f"10 of 10 numbers, {SHOWN}, 0:00:00 left"


def test_a_terminal_has_a_bar_with_the_log_above(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"FORCE_COLOR": "1", "TERM": "xterm", "COLUMNS": "90"}.items():
        monkeypatch.setenv(name, value)
    assert logging.lastResort
    monkeypatch.setattr(logging.getLogger(), "handlers", [logging.lastResort])  # as `cli.run` does
    with progress(Shown(0), 2000, done=1998) as advance:
        advance()
        logging.getLogger("mink_local").warning("beware")
        time.sleep(0.7)
    written = capsys.readouterr().err
    assert "\x1b[2J" not in written
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", written)
    assert f"1,999 of 2,000 numbers, {SHOWN}" in shown
    assert "beware\n" in shown.replace("\r", "")


# Measurements of settings that read rows


def test_the_sweep_has_every_default_once_and_no_setting_twice() -> None:
    settings = sweep([1.0, 5.0, math.inf, 5.0])
    keys = [one.key for one in settings]
    assert len(set(keys)) == len(keys)
    assert not any(one.sampler.order == "temperature-first" for one in settings if one.temperature != 5)
    stateless = {name for name, sampler in SAMPLERS.items() if not sampler.is_stateful}
    for temperature in (1.0, 5.0, math.inf):
        defaults = [one for one in settings if one.is_default and one.temperature == temperature]
        assert {one.sampler.name for one in defaults} == stateless
        assert len({one.curve for one in defaults}) == len(defaults)


@pytest.mark.parametrize(
    "command",
    [
        ["frontier", "--text", __file__, "--limit", 1, "--model", "TINY", "--reference", "MODEL"],
        ["quants", "TINY", "MODEL", "--chunk", 16, "--positions", 14],
    ],
)
def test_a_damaged_model_is_named(
    command: list[object], mink_eval: MinkEval, tiny: Callable[..., Path], tiny_path: Path, tmp_path: Path
) -> None:
    paths: dict[object, object] = {"MODEL": tiny("broken.gguf", scale=math.nan), "TINY": tiny_path}
    given = [paths.get(one, one) for one in command]
    mink_eval(*given, "--threads", 1, "-q", "-o", tmp_path / "out").refused(1, "NaN")


def test_an_interrupt_while_a_model_loads_ends_its_first_rows(tiny_path: Path) -> None:
    measurement, model = Walks(str(tiny_path)), load_model(tiny_path, n_ctx=64, trust=True)
    with ExitStack() as opened:
        measurement.reserve(opened, model, [(8, "a text")])
        assert len(list(measurement.logits_of(model, [1, 2, 3], 2))) == 2
    measurement.interrupt()
    with ExitStack() as opened:
        measurement.reserve(opened, model, [(8, "a text")])
        with pytest.raises(GenerationError):
            list(measurement.logits_of(model, [1, 2, 3], 1))
