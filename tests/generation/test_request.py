"""Requests: checked when they are made, and kept as they were asked."""

import enum
import json
from collections import ChainMap, UserList, deque
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal

import numpy as np
import pytest

from mink_local import Constraints, MinkError, OptionError, Request, SamplingParams, load_model
from mink_local.generation.function_tools import tool_of
from mink_local.generation.model import Model
from mink_local.generation.request import Prompt, RequestOptions

USER: list[dict[str, Any]] = [{"role": "user", "content": "Hi"}]
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


class Text(str, enum.Enum):  # noqa: UP042  (as older programs have it)
    HI = "Hi"


class Whole(enum.IntEnum):
    ONE = 1


class Sub(dict[str, Any]):
    """A dict that is none of the built-in ones."""


ODD: list[Any] = [
    None, True, False, 0, 1, -1, 1.0, 0.5, float("nan"), float("inf"), 10**400, 1j, "", "Hi", b"Hi",
    bytearray(b"Hi"), "\ud800", Text.HI, Whole.ONE, np.int64(1), np.float32(0.5), np.bool_(True),
    np.str_("Hi"), np.array(1), np.array([1, 2]), np.array([[1]]), np.array(["Hi"]), np.ma.array([1, 2],
    mask=[True, False]), [], [1], ["Hi"], [None], [[1]], [True], (), {}, {"a": 1}, {1: 2}, set(), {1},
    deque([1]), UserList([1]), range(2), iter([1]), (i for i in [1]), MappingProxyType({"a": 1}),
    ChainMap({"a": 1}), Sub(a=1), {}.items(), object(), object, int, len, lambda: 1, lambda row: row,
    partial(len), Exception("x"), Path("x"), USER, [TOOL], TOOL, memoryview(b"Hi"),
]  # fmt: skip

OWNERS: list[tuple[Callable[..., Any], str]] = [
    *((partial(Request, USER), field.name) for field in fields(Request) if field.name != "prompt"),
    (lambda prompt: Request(prompt), "prompt"),
    *((SamplingParams, field.name) for field in fields(SamplingParams)),
    *((Constraints, field.name) for field in fields(Constraints)),
]


@pytest.fixture(scope="module")
def model(tiny_path: Path) -> Any:
    with load_model(tiny_path, n_ctx=256, n_parallel=2, trust=True) as model:
        yield model


def test_the_keywords_of_chat_are_the_fields() -> None:
    keywords = [field.name for field in fields(Request) if field.kw_only]
    keywords += [field.name for field in fields(SamplingParams)]
    assert set(RequestOptions.__annotations__) == set(keywords)


@pytest.mark.parametrize(("make", "name"), OWNERS, ids=[name for _, name in OWNERS])
def test_what_is_taken_can_be_used_and_all_else_is_refused_by_name(
    model: Model, make: Callable[..., Any], name: str
) -> None:
    """Values that are wrong, or that imitate or subclass right ones; the model answers afterwards."""
    params = SamplingParams(max_tokens=1, seed=1)
    refused: list[tuple[str, object]] = []
    for value in ODD:
        try:
            made = make(value) if name == "prompt" else make(**{name: value})
        except ValueError as error:
            refused.append((str(error), value))
            continue
        if isinstance(made, Constraints):
            made = replace(params, constraints=made)
        if isinstance(made, SamplingParams):
            made = Request(USER, made)
        if name not in ("max_tokens", "min_tokens"):
            made = replace(made, params=replace(made.params, max_tokens=1))
        for answer in model.answer_all([made]):
            assert answer.finish_reason is not None
            assert isinstance(answer.error, MinkError | ValueError | TypeError | None), (value, answer.error)
    assert [each for each in refused if name not in each[0]] == []
    assert model.chat("Hi", params).read() is not None


def test_one_wrong_request_takes_no_neighbour_down(model: Model) -> None:
    wrongs: list[Any] = [{}, None, 1]
    for wrong in wrongs:
        with pytest.raises(OptionError, match="params"):
            Request("x", wrong)
    answers = list(model.generate(["Hi", 5, None, b"x", "Ho"], n=2, max_tokens=1))  # type: ignore[list-item]
    assert [answer.finish_reason for answer in answers] == ["length"] * 2 + ["error"] * 6 + ["length"] * 2
    assert [(answer.prompt_index, answer.sample) for answer in answers] == [
        (i, j) for i in range(5) for j in range(2)
    ]


def test_what_was_asked_is_what_is_kept(model: Model) -> None:
    """Though the caller changes lists and dicts of lists afterwards."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}]
    schema: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "integer"}}}
    tools, kwargs, prefix = [json.loads(json.dumps(TOOL))], {"a": [1]}, [5]
    request = Request(
        messages,
        SamplingParams(constraints=Constraints(json_schema=schema)),
        tools=tools,
        template_kwargs=kwargs,
        prefix=prefix,
    )
    before = repr(request)
    messages[0]["content"][0]["text"] = "Ho"
    messages.append(USER[0])
    schema["properties"]["a"]["type"] = "string"
    tools[0]["function"]["name"] = "g"
    kwargs["a"].append(2)
    prefix.append(6)
    assert repr(request) == before
    again: list[dict[str, Any]] = [*USER]
    reply = model.chat(again, max_tokens=1)
    again.append(reply.message)
    assert reply.request.prompt == USER


def test_circles_are_refused() -> None:
    circle: list[Any] = [{"role": "user", "content": []}]
    circle[0]["content"].append(circle)
    with pytest.raises(OptionError, match="nested"):
        Request(circle)


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "f"}}])
@pytest.mark.parametrize(
    "form", [{"regex": "a"}, {"choice": ["a"]}, {"grammar": 'root ::= "a"'}, {"json_schema": {}}]
)
def test_a_forced_call_and_another_form_exclude_each_other(
    choice: str | Mapping[str, Any], form: dict[str, Any]
) -> None:
    params = SamplingParams(constraints=Constraints(**form))
    with pytest.raises(OptionError, match=rf"tool_choice and {next(iter(form))}"):
        Request(USER, params, tools=[TOOL], tool_choice=choice)
    Request(USER, params, tools=[TOOL])
    Request(
        USER, SamplingParams(constraints=Constraints(presence_penalty=1)), tools=[TOOL], tool_choice=choice
    )


def test_tools_are_for_messages() -> None:
    prompts: list[Prompt] = ["raw", [1, 2]]
    for raw in prompts:
        with pytest.raises(OptionError, match="tools"):
            Request(raw, tools=[TOOL])


# Functions as tools


def get_weather(
    city: str, days: int = 1, unit: Literal["C", "F"] = "C", tags: list[str] | None = None
) -> str:
    """Return the weather forecast
    of a city.

    More about it.

    Args:
        city: Its name, which
            may be long.
        days (int): How many days ahead: 1 to 9.

    Returns:
        unit: is nothing of the arguments
    """
    return f"{city} {days} {unit} {tags}"


def test_a_function_is_described_by_its_signature_and_docstring(smollm2: Model) -> None:
    pytest.importorskip("pydantic")
    function = tool_of(get_weather)["function"]
    assert (function["name"], function["description"]) == (
        "get_weather",
        "Return the weather forecast of a city.",
    )
    properties = function["parameters"]["properties"]
    assert properties["city"] == {"type": "string", "description": "Its name, which may be long."}
    assert properties["days"] == {"type": "integer", "description": "How many days ahead: 1 to 9."}
    assert properties["unit"]["enum"] == ["C", "F"]
    assert "description" not in properties["unit"]
    assert function["parameters"]["required"] == ["city"]
    reply = smollm2.chat("Rain?", tools=[get_weather], tool_choice="required", max_tokens=120, seed=1)
    reply.read()
    [call] = reply.tool_calls
    assert get_weather(**json.loads(call["function"]["arguments"]))
    assert reply.request.tool_choice == "required"
    assert reply.request.params.constraints is None


def test_functions_that_json_cannot_call_are_refused() -> None:
    def positional(a: int, /) -> None: ...
    def several(*a: int) -> None: ...
    def untyped(a) -> None: ...  # type: ignore[no-untyped-def]
    def odd(a: Callable[[], None]) -> None: ...
    def unknown(a: "Nowhere") -> None: ...  # type: ignore[name-defined]  # noqa: F821
    def described(a: Annotated[int, "some"], b: float = 1.0) -> None: ...

    for function in (positional, several, untyped, odd, unknown, len, print):
        with pytest.raises(OptionError, match=f"tools.*{function.__name__}"):
            Request(USER, tools=[function])
    properties = tool_of(described)["function"]["parameters"]["properties"]
    assert {name: each["type"] for name, each in properties.items()} == {"a": "integer", "b": "number"}
