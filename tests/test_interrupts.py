"""Iterating in another thread, and Ctrl-C as a call instead of an exception."""

import _thread
import ctypes
import signal
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count

import pytest

from mink_local import interrupts
from mink_local.interrupts import lost_interrupts_repeated, on_interrupt, until_interrupted


class Source:
    """Counts until it is interrupted; fails at a number if one is given."""

    def __init__(self, fails_at: int | None = None) -> None:
        self.fails_at = fails_at
        self.interrupts = 0
        self.threads: set[threading.Thread] = set()

    def interrupt(self) -> None:
        self.interrupts += 1

    def __iter__(self) -> Iterator[int]:
        for i in count():
            if self.interrupts:
                return
            self.threads.add(threading.current_thread())
            if i == self.fails_at:
                raise LookupError("failed")
            yield i


def test_items_come_in_order() -> None:
    source = iter([0, None, "", ValueError("an item, not raised")])
    items = list(until_interrupted(source, lambda: pytest.fail("interrupted")))
    assert items[:3] == [0, None, ""]
    assert isinstance(items[3], ValueError)


def test_an_error_of_the_other_thread_comes_after_the_items_and_interrupts_nobody() -> None:
    """An interrupt after the end would end what is generated next."""
    source = Source(fails_at=3)
    items: list[int] = []
    with pytest.raises(LookupError, match="failed"):
        items.extend(until_interrupted(source, source.interrupt))
    assert (items, source.interrupts) == ([0, 1, 2], 0)
    assert threading.current_thread() not in source.threads


def test_leaving_early_ends_the_iteration_and_waits_for_it() -> None:
    source = Source()
    items = until_interrupted(source, source.interrupt)
    assert [next(items), next(items)] == [0, 1]
    items.close()
    assert source.interrupts == 1
    assert not any(thread.is_alive() for thread in source.threads)


def test_waiting_is_called_while_nothing_comes() -> None:
    """An error in it ends the iteration."""
    calls: list[float] = []
    stopped = threading.Event()

    def slow() -> Iterator[int]:
        assert stopped.wait(30)
        yield 1

    def waiting() -> None:
        calls.append(time.monotonic())
        if len(calls) == 2:
            raise RuntimeError("the window is gone")

    with pytest.raises(RuntimeError, match="window"):
        list(until_interrupted(slow(), stopped.set, waiting))


def test_ctrl_c_ends_a_source_without_an_exception() -> None:
    source = Source()
    items = []
    for item in until_interrupted(source, source.interrupt):
        items.append(item)
        if item == 5:
            _thread.interrupt_main()
    assert items[:6] == [0, 1, 2, 3, 4, 5]
    assert source.interrupts == 1
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


class HalfMade:
    """An object whose finalizer fails."""

    def __del__(self) -> None:
        raise AttributeError("not made yet")


def test_ctrl_c_in_a_callback_of_c_is_heard_soon(capsys: pytest.CaptureFixture[str]) -> None:
    callback = ctypes.CFUNCTYPE(None)(lambda: signal.raise_signal(signal.SIGINT))
    before = sys.unraisablehook

    def work() -> None:
        callback()
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
    callback = ctypes.CFUNCTYPE(None)(lambda: signal.raise_signal(signal.SIGINT))
    with lost_interrupts_repeated():
        callback()
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


def test_a_handler_that_python_did_not_install_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """`signal.signal` returns None for one of C's."""
    installed: list[object] = []
    monkeypatch.setattr(signal, "signal", lambda _, handler: installed.append(handler))
    with on_interrupt(lambda: None):
        pass
    assert installed[-1] == signal.SIG_DFL


def test_in_another_thread_nothing_is_installed() -> None:
    def handler() -> object:
        with on_interrupt(lambda: None):
            return signal.getsignal(signal.SIGINT)

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(handler).result() == signal.default_int_handler
