"""Progress, in a log and on a terminal."""

import logging
import re
import time

import pytest

from mink_local.evals.measurement import duration, progress


def test_a_log_has_a_line_every_half_minute_and_at_the_end(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    with progress("texts", 10, done=4) as advance:
        for seconds in (10, 20, 31, 40, 50, 55):
            now[0] = seconds
            advance("42%")
    assert capsys.readouterr().err.splitlines() == [
        "7 of 10 texts, 42%, 0:00:31 left",
        "10 of 10 texts, 42%, 0:00:00 left",
    ]


def test_quiet_shows_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with progress("texts", 1, quiet=True) as advance:
        advance("")
    assert capsys.readouterr() == ("", "")


def test_a_terminal_has_a_bar_with_the_log_above(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"FORCE_COLOR": "1", "TERM": "xterm", "COLUMNS": "60"}.items():
        monkeypatch.setenv(name, value)
    handler = logging.StreamHandler()
    root = logging.getLogger()
    root.addHandler(handler)
    try:
        with progress("texts", 2000, done=1998) as advance:
            advance("42%")
            logging.getLogger("mink_local").warning("beware")
            assert handler.stream is not None
    finally:
        root.removeHandler(handler)
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", capsys.readouterr().err)
    assert "1,999 of 2,000 texts, 42%" in shown
    assert "beware\n" in shown.replace("\r", "")


def test_duration() -> None:
    assert duration(3723.4) == "1:02:03"
