"""A KV cache on disk: a conversation goes on as if the model had stayed loaded."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mink_local import SamplingParams, load_model
from mink_local.generation.model import Model
from tests.conftest import forget

TURNS = [{"role": "user", "content": "Tell me a story about a dog and a cat."}]
GREEDY = SamplingParams(temperature=0, max_tokens=12)
LARGE = 1 << 30


@pytest.fixture(scope="module")
def saved(smollm2: Model, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int, list[int]]:
    """A file with an answered conversation, its number of tokens, and how the model went on with it."""
    path = tmp_path_factory.mktemp("kv") / "cache"
    forget(smollm2).chat(TURNS, GREEDY).read()
    assert smollm2.save_cache(path, LARGE)
    next_answer = smollm2.chat([*TURNS, *_more(smollm2)], GREEDY)
    next_answer.read()
    return path, smollm2.load_cache(path), next_answer.tokens


def _more(model: Model) -> list[dict[str, str]]:
    answer = model.chat(TURNS, GREEDY).read()
    return [{"role": "assistant", "content": answer}, {"role": "user", "content": "And then?"}]


def test_another_process_goes_on_with_it(smollm2: Model, saved: tuple[Path, int, list[int]]) -> None:
    path, n_tokens, expected = saved
    more = _more(smollm2)
    smollm2.reserve(512)  # an empty cache, of another length
    try:
        assert smollm2.load_cache(path) == n_tokens
        answer = smollm2.chat([*TURNS, *more], GREEDY)
        answer.read()
        assert answer.tokens == expected
        assert answer.evaluated_tokens < answer.prompt_tokens - 20
        assert smollm2.load_cache(path) == n_tokens
        other = smollm2.chat("Tell me a joke.", GREEDY)  # only the beginning is the same
        assert other.read() == forget(smollm2).chat("Tell me a joke.", GREEDY).read()
    finally:
        smollm2.reserve(1024)


def test_what_does_not_fit_is_ignored(
    smollm2: Model, saved: tuple[Path, int, list[int]], tiny: Callable[..., Path], tmp_path: Path
) -> None:
    path, _, _ = saved
    data = path.read_bytes()
    damaged = {
        "missing": None,
        "empty": b"",
        "text": b"no cache at all" * 99,
        "cut": data[: len(data) // 2],
        "header": b"\0" * 8 + data[8:],
        "count": data[:8] + b"\xff\xff\xff\x7f" + data[12:],
    }
    for name, content in damaged.items():
        file = tmp_path / name
        if content is not None:
            file.write_bytes(content)
        assert smollm2.load_cache(file) == 0, name
    smollm2.chat("word " * 300, max_tokens=1).read()
    assert smollm2.save_cache(tmp_path / "long", LARGE)
    cases: tuple[tuple[Path, dict[str, Any]], ...] = (
        (path, {"model": tiny()}),
        (path, {"kv_type": "q8_0"}),
        (tmp_path / "long", {}),
    )
    for file, options in cases:
        with load_model(**{"model": "smollm2-135m", "n_ctx": 256, **options}) as other:
            assert other.load_cache(file) == 0, options
            assert other.chat("Hi", max_tokens=1).evaluated_tokens > 4


def test_what_is_not_written(smollm2: Model, tmp_path: Path) -> None:
    path = tmp_path / "cache"
    assert not forget(smollm2).save_cache(path, LARGE)
    smollm2.chat(TURNS, GREEDY).read()
    assert not smollm2.save_cache(path, 1000)
    with pytest.raises(OSError, match="no-folder"):
        smollm2.save_cache(tmp_path / "no-folder" / "cache", LARGE)
    assert list(tmp_path.iterdir()) == []
