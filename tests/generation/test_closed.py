"""Nothing that Python does with something closed, or with values of any kind, reaches llama.cpp."""

import contextlib
import inspect
from collections import ChainMap, UserList, deque
from collections.abc import Callable, Iterator
from decimal import Decimal
from http import HTTPStatus
from itertools import islice, product
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

from mink_local import Constraints, load_model
from mink_local.errors import MinkError, ModelError
from mink_local.generation.model import Model
from mink_local.generation.request import Request, SamplingParams
from mink_local.llama.constraints import Constrainer
from mink_local.llama.context import Segment
from mink_local.llama.token_data import SamplingBuffers
from mink_local.llama.weights import Weights

PLAIN: dict[str, Any] = {  # by the name of a parameter
    "messages": [{"role": "user", "content": "Hi"}],
    "prompt": "Hi",
    "prompts": ["Hi"],
    "request": Request("Hi", SamplingParams(max_tokens=1)),
    "requests": [Request("Hi", SamplingParams(max_tokens=1))],
    "pairs": [([1], [2])],
    "sequences": [([1, 2], 1)],
    "text": "Hi",
    "tokens": [500, 501],
    "token": 500,
    "path": Path("cache"),
    "most_bytes": 10**9,
    "n_ctx": 256,
    "name": "tokens",
    "add_special": True,
    "parse_special": True,
    "logits": np.zeros(49152, np.float32),
    "length": 1,
    "source": 0,
    "target": 0,
    "user": "an object",
    "snapshot": np.ones(8, np.uint8),
    "checkpoint": np.ones(8, np.uint8),
}
# These do not reach llama.cpp.
HARMLESS = {"close", "ids", "interrupt", "is_copied", "may_restore"}


def public_methods(thing: object) -> Iterator[tuple[str, Callable[..., Any]]]:
    for name, member in inspect.getmembers(type(thing)):
        if not name.startswith("_") and inspect.isfunction(member) and name not in HARMLESS:
            yield name, getattr(thing, name)


def plain_arguments(method: Callable[..., Any]) -> dict[str, Any]:
    parameters = inspect.signature(method).parameters.values()
    needed = [one for one in parameters if one.default is one.empty and one.kind != one.VAR_KEYWORD]
    return {one.name: PLAIN[one.name] for one in needed if one.kind != one.VAR_POSITIONAL}


def use(name: str, method: Callable[..., Any]) -> None:
    found = method(**plain_arguments(method))
    if isinstance(found, contextlib.AbstractContextManager):
        with found:
            pass
    elif hasattr(found, "__next__"):
        list(found)
    pytest.fail(f"{name} works")


def test_every_method_of_what_is_closed_raises_one_error(tiny: Callable[..., Path], tmp_path: Path) -> None:
    model = load_model(tiny(), n_ctx=256, trust=True)
    path, weights, context = tmp_path / "kv", Weights(tiny("other.gguf")), model.core.engine.context
    model.chat("Hi", max_tokens=1).read()
    assert model.save_cache(path, 10**9)
    model.close()
    weights.close()
    for thing in (model, weights, context):
        methods = list(public_methods(thing))
        assert len(methods) > 5
        for name, method in methods:
            with pytest.raises(ModelError, match="is closed: load it again"):
                use(name, method)
    with pytest.raises(ModelError, match="is closed"):
        context.decode(Segment([1], 0))
    with pytest.raises(ModelError, match="is closed"), model:
        pass


def test_what_is_read_outlives_the_model(tiny: Callable[..., Path]) -> None:
    """A grammar's guide, and a thread that uses the vocabulary, keep it."""
    model = load_model(tiny(), n_ctx=256, trust=True)
    constrainer = Constrainer(
        Constraints(grammar='root ::= ("yes" | "yet") " indeed it is"'), model.weights, []
    )
    with model.weights.in_use():
        model.close()
        n_vocab = model.weights.n_vocab
        row = constrainer.apply(np.zeros(n_vocab, np.float32), SamplingBuffers(n_vocab))
        assert 0 < np.isfinite(row).sum() < row.size
        constrainer.forced()
    with pytest.raises(ModelError), model.weights.in_use():
        pass


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


STRANGE: list[Any] = [
    None, True, -1, 10**6, 2**31, 2**63, 1.5, float("nan"), "x", "", b"Hi", [], ["x"], [-1], [10**6], [2**40],
    [1.5], [[]], {}, {"a": 1}, [{}], [{"role": 5, "content": "x"}], object(), np.array([-1]),
    np.zeros((2, 2), int), [([1], [10**6])], [([1], [-1])], [("text", "x")], [([1, 2], 99)], type,
    # What imitates a right value, or subclasses it
    np.ma.array([1, 2], mask=[True, False]), np.bool_(True), np.float16(1), np.str_("x"), np.array(1),
    HTTPStatus.OK, MappingProxyType({"a": 1}), [ChainMap({"role": "user", "content": "x"})], UserList([1]),
    deque(["x"]), range(3), {"a": 1}.items(), Decimal(1), Path("x"), (each for each in "ab"), len,
    lambda row: row,
]  # fmt: skip


def test_every_method_takes_or_refuses_any_value(tiny: Callable[..., Path]) -> None:
    """With an error that a program can expect; the model works afterwards."""
    with load_model(tiny(), n_ctx=256, trust=True) as model:
        for _, method in public_methods(model):
            parameters = inspect.signature(method).parameters
            given = plain_arguments(method) | ({"max_tokens": 1} if "max_tokens" in parameters else {})
            for name, value in product(parameters, STRANGE):
                with contextlib.suppress(MinkError, ValueError, TypeError, OSError):
                    found = method(**{**given, name: value})
                    if hasattr(found, "__next__"):
                        list(islice(found, 2))
        assert model.chat("Hi", max_tokens=1).read() is not None


def test_numbers_of_numpy_are_numbers(smollm2: Model) -> None:
    ids: Any = np.array(smollm2.tokenize("Once upon a time"))
    options: dict[str, Any] = {"temperature": np.float32(0), "max_tokens": np.int64(3), "seed": np.uint32(1)}
    assert smollm2.detokenize(ids) == smollm2.detokenize(ids.tolist()) == "Once upon a time"
    text = smollm2.complete(ids, **options).read()
    prompt: Any
    for prompt in (ids.tolist(), [*ids], tuple(ids), ids.astype(np.uint16)):
        assert smollm2.complete(prompt, temperature=0, max_tokens=3).read() == text
