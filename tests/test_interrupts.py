"""Ctrl-C as a call instead of an exception, and where Python would lose it."""

import ctypes
import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from mink_local import interrupts
from mink_local.interrupts import lost_interrupts_repeated, on_interrupt

press_ctrl_c = ctypes.CFUNCTYPE(None)(lambda: signal.raise_signal(signal.SIGINT))


class HalfMade:
    """An object whose finalizer fails."""

    def __del__(self) -> None:
        raise AttributeError("not made yet")


def test_ctrl_c_in_a_callback_of_c_is_heard_soon(capsys: pytest.CaptureFixture[str]) -> None:
    before = sys.unraisablehook

    def work() -> None:
        press_ctrl_c()
        HalfMade()
        time.sleep(60)

    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt), lost_interrupts_repeated():
        work()
    assert time.monotonic() - began < 30  # not only after the sleep
    assert capsys.readouterr().err == ""
    assert sys.unraisablehook is before


def test_other_errors_without_effect_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[BaseException | None] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda error: shown.append(error.exc_value))
    with lost_interrupts_repeated():
        HalfMade()
    assert list(map(str, shown)) == ["not made yet"]


def test_ctrl_c_that_is_lost_at_the_end_is_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interrupts, "_REPEAT_SECONDS", 60)
    with lost_interrupts_repeated():
        press_ctrl_c()
        (repeat,) = (thread for thread in threading.enumerate() if isinstance(thread, threading.Timer))
    repeat.join(30)
    assert not repeat.is_alive()


@pytest.mark.parametrize("terminate", [True, False])
def test_signals_are_handled_for_a_while(terminate: bool) -> None:
    stops = []
    before = signal.getsignal(signal.SIGTERM)
    with on_interrupt(lambda: stops.append(1), terminate=terminate):
        signal.raise_signal(signal.SIGINT)
        assert (signal.getsignal(signal.SIGTERM) is before) is not terminate
        if terminate:
            signal.raise_signal(signal.SIGTERM)
    assert len(stops) == 1 + terminate
    assert signal.getsignal(signal.SIGTERM) is before
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


@pytest.mark.posix
def test_ctrl_break_ends_a_program_on_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signal, "SIGBREAK", signal.SIGUSR1, raising=False)
    stops = []
    with on_interrupt(lambda: stops.append(1), terminate=True):
        signal.raise_signal(signal.SIGUSR1)
    assert stops == [1]


@pytest.mark.skipif(sys.platform != "win32", reason="Windows closes windows in this way")
def test_the_closing_of_windows_window_is_heard_as_ctrl_break(monkeypatch: pytest.MonkeyPatch) -> None:
    """The window, the user's leaving, and a shutdown; Ctrl-C and Ctrl-Break themselves are left alone."""
    monkeypatch.setattr(interrupts, "_WINDOWS_SECONDS", 0)
    stops: list[int] = []
    with on_interrupt(lambda: stops.append(1), terminate=True), ThreadPoolExecutor(1) as pool:
        hear = vars(interrupts)["close_as_ctrl_break"]()
        assert [*pool.map(hear, range(7))] == [0, 0, 1, 0, 0, 1, 1]
    assert stops == [1] * 3


def test_in_another_thread_nothing_is_installed() -> None:
    def handler() -> object:
        with on_interrupt(lambda: None):
            return signal.getsignal(signal.SIGINT)

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(handler).result() == signal.default_int_handler
