"""KV caches on disk: what is kept, found again, and not read."""

import os
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from mink_local import Model, Reply, Request, SamplingParams, load_model
from mink_local.errors import ModelError
from mink_local.generation.engine import engine
from mink_local.generation.engine.kept import CacheFiles, KeptCaches, own_folder

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
    """Return an answer to a prompt of at least LEAST_TOKENS."""
    reply = model.complete(prompt, temperature=0, max_tokens=4)
    assert reply.read()
    return reply


def test_a_cache_is_read_after_a_restart_and_by_its_owner_alone(model: Model, tmp_path: Path) -> None:
    first = asked(restarted(model, tmp_path / "new"), PROMPT)
    assert first.evaluated_tokens == first.prompt_tokens > 300
    longer = asked(restarted(model, tmp_path / "new"), PROMPT + "And then")
    assert longer.evaluated_tokens < 10
    restarted(model, tmp_path / "new")  # the longer one takes the place of the shorter
    [path] = (tmp_path / "new").glob("*.kv")
    assert os.name != "posix" or path.stat().st_mode & 0o777 == 0o600
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
    size = max(path.stat().st_size for path in tmp_path.glob("*.kv"))
    asked(restarted(model, tmp_path, int(1.5 * size)), OTHER)
    keep(model)
    assert len([*tmp_path.glob("*.kv")]) == 2
    assert asked(restarted(model, tmp_path), PROMPT).evaluated_tokens > 300


@pytest.mark.parametrize("damage", [b"", b"\xff" * 100, None])
def test_a_damaged_file_is_not_read(model: Model, tmp_path: Path, damage: bytes | None) -> None:
    first = asked(restarted(model, tmp_path), PROMPT)
    keep(model)
    [path] = tmp_path.glob("*.kv")
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
    assert not [*tmp_path.glob("*.kv")]


def used_by(model: Model, client: str, prompt: str = PROMPT) -> int:
    """Return how many tokens of a client's prompt are evaluated."""
    params = SamplingParams(temperature=0, max_tokens=1)
    decoding = model.core.engine.prepare(Request(prompt, params), client=client)
    ended = Event()

    def hear(_: object) -> None:
        if decoding.answer.finish_reason is not None:
            ended.set()

    model.core.thread.generate([decoding], hear)
    assert ended.wait(60)
    return decoding.answer.evaluated_tokens


def test_a_client_finds_its_own_caches_alone(model: Model, tmp_path: Path) -> None:
    restarted(model, tmp_path)
    n_tokens = used_by(model, "alice")
    assert used_by(restarted(model, tmp_path), "bob") == n_tokens
    for client in ("alice", "bob"):
        assert used_by(restarted(model, tmp_path), client) < 10
    assert len([*tmp_path.glob("*.kv")]) == 2  # bob's did not take the place of alice's
    restarted(model, tmp_path)
    kept = model.core.engine.kept
    assert kept is not None
    kept.keep_only(["bob", "carol"])
    assert [used_by(model, client) < 10 for client in ("alice",)] == [False]
    assert used_by(restarted(model, tmp_path), "bob") < 10


def test_another_clients_file_under_ones_own_name_is_not_read(model: Model, tmp_path: Path) -> None:
    n_tokens = used_by(restarted(model, tmp_path), "alice")
    keep(model)
    [path] = tmp_path.glob("*.kv")
    files = CacheFiles(model.core.engine.context, (tmp_path / "secret").read_bytes())
    path.rename(path.with_name(path.name.replace(files.tag("alice"), files.tag("bob"))))
    assert used_by(restarted(model, tmp_path), "bob") == n_tokens


def test_a_file_sealed_with_another_secret_is_not_read(model: Model, tmp_path: Path) -> None:
    """Its settings are public; the secret is not."""
    n_tokens = used_by(restarted(model, tmp_path / "theirs"), "alice")
    keep(model)
    restarted(model, tmp_path / "ours")
    [path] = (tmp_path / "theirs").glob("*.kv")
    ours = CacheFiles(model.core.engine.context, (tmp_path / "ours" / "secret").read_bytes())
    path.rename(tmp_path / "ours" / f"{ours.settings}-{ours.tag('alice')}-{'0' * 16}.kv")
    assert used_by(restarted(model, tmp_path / "ours"), "alice") == n_tokens
    secret = tmp_path / "ours" / "secret"
    assert len(secret.read_bytes()) == 32
    assert os.name != "posix" or secret.stat().st_mode & 0o777 == 0o600


def test_a_file_for_another_number_of_slots_is_no_candidate(
    model: Model, smollm2_path: Path, tmp_path: Path
) -> None:
    used_by(restarted(model, tmp_path), "alice", OTHER)
    keep(model)
    with load_model(str(smollm2_path), n_ctx=1024, n_parallel=2) as other:
        restarted(other, tmp_path)
        kept = other.core.engine.kept
        assert kept is not None
        assert kept.n_other == 1
        assert kept.find(other.tokenize(OTHER), 0, "alice") is None


def test_a_file_that_fails_leaves_the_tokens_of_its_slot(model: Model, tmp_path: Path) -> None:
    used_by(restarted(model, tmp_path), "alice")
    keep(model)
    [path] = tmp_path.glob("*.kv")
    restarted(model, tmp_path)
    begun = PROMPT[: len(PROMPT) // 20]
    n_begun = used_by(model, "alice", begun)
    path.write_bytes(path.read_bytes()[:-1])
    assert used_by(model, "alice") < len(model.tokenize(PROMPT)) - n_begun + 5


def test_files_that_are_not_used_are_deleted_after_some_days(model: Model, tmp_path: Path) -> None:
    used_by(restarted(model, tmp_path), "alice")
    keep(model)
    [path] = tmp_path.glob("*.kv")
    for days, is_kept in ((2.0, True), (0.5, False)):
        os.utime(path, (time.time() - 86400,) * 2)
        KeptCaches(tmp_path, 10**9, model.core.engine.context, days).close()
        assert path.exists() == is_kept


@pytest.mark.posix
@pytest.mark.parametrize("mode", [0o770, 0o707, 0o777, 0o1777])
def test_a_folder_that_others_can_write_to_is_refused(tmp_path: Path, mode: int) -> None:
    own_folder(tmp_path / "new")
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o700
    (tmp_path / "new").chmod(mode)
    with pytest.raises(ModelError, match="others can write"):
        own_folder(tmp_path / "new")
    (tmp_path / "new").chmod(0o755)
    own_folder(tmp_path / "new")
