"""KV caches on disk: what is kept, found again, and not read."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mink_local import Model, Reply, load_model
from mink_local.generation import engine
from mink_local.generation.kept import KeptCaches

PROMPT = "".join(f"The quick brown fox {i} jumps over the lazy dog. " for i in range(30))
OTHER = "".join(f"In village {i} there was a mill by the river. " for i in range(30))


@pytest.fixture
def model(smollm2_path: Path) -> Iterator[Model]:
    with load_model(str(smollm2_path), n_ctx=1024) as model:
        yield model


def restarted(model: Model, folder: Path, most_bytes: int = 10**9) -> Model:
    """Forget what is in memory, as a restart does, and take the caches of a folder; return the model."""
    keep(model)
    model.forget()
    model.core.engine.kept = KeptCaches(folder, most_bytes, model.core.engine.context)
    return model


def keep(model: Model) -> None:
    if model.core.engine.kept is not None:
        model.core.thread.call_when_idle(model.core.engine.keep_all)
        model.core.engine.kept.close()
        model.core.engine.kept = None


def asked(model: Model, prompt: str) -> Reply:
    reply = model.complete(prompt, temperature=0, max_tokens=4)
    assert reply.read()
    return reply


def test_a_cache_is_read_after_a_restart_and_by_its_owner_alone(model: Model, tmp_path: Path) -> None:
    first = asked(restarted(model, tmp_path / "new"), PROMPT)
    assert first.evaluated_tokens == first.prompt_tokens > 300
    longer = asked(restarted(model, tmp_path / "new"), PROMPT + "And then")
    assert longer.evaluated_tokens < 10
    restarted(model, tmp_path / "new")  # the longer one takes the place of the shorter
    [path] = (tmp_path / "new").iterdir()
    assert path.stat().st_mode & 0o777 == 0o600
    again = asked(model, PROMPT)
    assert (again.text, again.evaluated_tokens < 10) == (first.text, True)


def test_a_cache_is_kept_when_another_conversation_takes_its_slot(model: Model, tmp_path: Path) -> None:
    restarted(model, tmp_path)
    for prompt in (PROMPT, OTHER):
        asked(model, prompt)
    assert asked(model, PROMPT).evaluated_tokens < 10


@pytest.mark.parametrize("most", [0, 1 << 30])
def test_nobody_waits_for_a_large_copy(
    smollm2_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    monkeypatch.setattr(engine, "MOST_BESIDE", most)
    with load_model(str(smollm2_path), n_ctx=1024, n_parallel=2) as model:
        asked(restarted(model, tmp_path), PROMPT)
        running = model.complete("Once", max_tokens=1000, ignore_eos=True)
        next(running)
        for prompt in (OTHER, PROMPT):
            evaluated = asked(model, prompt).evaluated_tokens
        running.close()
    assert (evaluated > 300) == (most == 0)


def test_the_oldest_are_deleted_beyond_the_limit_and_nothing_else(model: Model, tmp_path: Path) -> None:
    (tmp_path / "mine.kv").write_bytes(b"x" * 100)
    os.utime(tmp_path / "mine.kv", (0, 0))
    asked(restarted(model, tmp_path), PROMPT)
    keep(model)
    size = max(path.stat().st_size for path in tmp_path.iterdir())
    asked(restarted(model, tmp_path, int(1.5 * size)), OTHER)
    keep(model)
    assert len([*tmp_path.iterdir()]) == 2
    assert asked(restarted(model, tmp_path), PROMPT).evaluated_tokens > 300


@pytest.mark.parametrize("damage", [b"", b"\xff" * 100, None])
def test_a_damaged_file_is_not_read(model: Model, tmp_path: Path, damage: bytes | None) -> None:
    first = asked(restarted(model, tmp_path), PROMPT)
    keep(model)
    [path] = tmp_path.iterdir()
    data = bytearray(path.read_bytes())
    data[-1000] ^= 1
    path.write_bytes(data if damage is None else damage)
    assert asked(restarted(model, tmp_path), PROMPT).evaluated_tokens == first.prompt_tokens


def test_a_file_of_another_type_is_not_read(model: Model, smollm2_path: Path, tmp_path: Path) -> None:
    asked(restarted(model, tmp_path), PROMPT)
    keep(model)
    with load_model(str(smollm2_path), n_ctx=1024, kv_type="q8_0") as other:
        assert asked(restarted(other, tmp_path), PROMPT).evaluated_tokens > 300


def test_a_file_deleted_after_it_was_found_is_evaluated_again(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked(restarted(model, tmp_path), PROMPT)
    restarted(model, tmp_path)
    kept = model.core.engine.kept
    assert kept is not None
    find = kept.find

    def found_and_deleted(*args: Any) -> tuple[Path, int, int] | None:
        found = find(*args)
        if found:
            found[0].unlink()
        return found

    monkeypatch.setattr(kept, "find", found_and_deleted)
    assert asked(model, PROMPT).evaluated_tokens > 300
    assert not [*tmp_path.iterdir()]
