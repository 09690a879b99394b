"""The kernels of samplers are compiled beside the person, once."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mink_local.chat import chat
from mink_local.chat.chat import compiling
from mink_local.samplers import MinK, default_samplers, parse
from mink_local.samplers.compile import cached_names


def test_what_is_missing_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every sampler can be, alone and in a chain."""
    compiling.cache_clear()
    monkeypatch.setattr(chat, "cached_names", set)
    chain = parse("top-k:k=3+min-k")
    is_compiling = compiling(*default_samplers(), chain)
    while is_compiling():
        pass
    assert {"min_k", "top_k"} <= cached_names()
    assert compiling(*default_samplers(), chain) is is_compiling


def test_what_is_cached_is_not() -> None:
    MinK().cutoff([0.0])
    compiling.cache_clear()
    assert not compiling(MinK())()


@pytest.mark.slow
@pytest.mark.terminal
@pytest.mark.usefixtures("own_files")
def test_the_first_answer_says_what_it_waits_for(opened: Callable[..., Any], tmp_path: Path) -> None:
    terminal = opened("-n", "4", NUMBA_CACHE_DIR=str(tmp_path))
    terminal.send("Hello\r")
    terminal.until_shown("compiling min-k")
    terminal.until_shown("4 tokens")
    assert "compiling" not in terminal.screen
    assert "compiling" not in terminal.say("Hello")
