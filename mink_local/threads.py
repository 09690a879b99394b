"""Calls of functions in threads of their own, whose results others wait for."""

import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import TypeVar

T = TypeVar("T")

WAIT_SECONDS = 0.25  # on Windows, an endless wait ignores Ctrl-C
LOADING = "loading"
"""The name of a thread that is inside llama.cpp's loader."""


def run(future: "Future[T]", function: Callable[[], T]) -> None:
    """Call a function; its result, or what it raises, becomes that of a future."""
    try:
        future.set_result(function())
    except BaseException as error:  # for whoever waits
        future.set_exception(error)


def in_background(function: Callable[[], T], name: str, *, daemon: bool = False) -> "Future[T]":
    """Call a function in a new thread; the end of the program waits for it unless it is a daemon."""
    future: Future[T] = Future()
    threading.Thread(target=run, args=(future, function), name=name, daemon=daemon).start()
    return future


def result_of(future: "Future[T]", waiting: Callable[[], object] = lambda: None) -> T:
    """Wait for a future, and let Ctrl-C interrupt that; `waiting` is called now and then."""
    while not wait([future], WAIT_SECONDS).done:
        waiting()
    return future.result()
