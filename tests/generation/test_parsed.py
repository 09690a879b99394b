"""`parsed`: objects of the types that a `json_schema` may be."""

import enum
import pickle
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import pytest

from mink_local import Constraints, GenerationError, OptionError, load_model
from mink_local.generation.answer import Answer
from mink_local.generation.model import Model
from mink_local.generation.request import Request, SamplingParams

pydantic = pytest.importorskip("pydantic")


@dataclass
class Point:
    x: int
    y: float


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class City(pydantic.BaseModel):  # type: ignore[name-defined, misc]
    name: str
    colour: Colour | None = None

    @pydantic.field_validator("name")  # type: ignore[untyped-decorator]
    @classmethod
    def _check(cls, name: str) -> str:
        if name == "Atlantis":
            raise ValueError("no city")
        return name


TYPES: list[tuple[Any, str, Any]] = [
    (City, '{"name": "Rome"}', City(name="Rome")),
    (list[City], '[{"name": "Rome", "colour": "red"}]', [City(name="Rome", colour=Colour.RED)]),
    (City | None, "null", None),
    (Point, '{"x": 1, "y": 2.5}', Point(1, 2.5)),
    (dict[str, int], '{"a": 1}', {"a": 1}),
    (tuple[int, bool], "[1, true]", (1, True)),
    (Literal["a", "b"], '"b"', "b"),
    (Colour, '"blue"', Colour.BLUE),
    (Annotated[int, pydantic.Field(ge=3, le=9)], "5", 5),
    (pydantic.TypeAdapter(list[int]), "[1]", [1]),
    (int, "7", 7),
    (str, '"Hi"', "Hi"),
    (bool, "true", True),
    ({"type": "object"}, '{"a": 1}', {"a": 1}),
    ('{"type": "integer"}', "3", 3),
    (True, "[1]", [1]),
]


def answer_with(content: str, schema: Any, finish_reason: Any = "stop") -> Answer:
    answer = Answer(Request("x", SamplingParams(constraints=Constraints(json_schema=schema))))
    answer._content.write(content)
    answer.finish_reason = finish_reason
    return answer


@pytest.mark.parametrize(("kind", "text", "wanted"), TYPES, ids=[str(kind) for kind, _, _ in TYPES])
def test_the_content_as_an_object(kind: Any, text: str, wanted: Any) -> None:
    assert answer_with(text, kind).parsed == wanted
    assert type(answer_with(text, kind).parsed) is type(wanted)


@pytest.mark.parametrize(
    ("text", "reason", "says"),
    [
        ('{"name": "Ro', "length", "cut off"),
        ('{"name": "Ro', None, "not finished"),
        ('{"name": "Ro', "interrupted", "failed"),
        ('{"name": "Atlantis"}', "stop", "no city"),
        ("Rome", "stop", "JSON"),
    ],
)
def test_what_is_not_whole_or_not_of_the_type_is_an_error(text: str, reason: Any, says: str) -> None:
    with pytest.raises(GenerationError, match=says):
        _ = answer_with(text, City, reason).parsed


def test_without_a_schema_there_is_nothing_to_parse() -> None:
    with pytest.raises(GenerationError, match="json_schema"):
        _ = Answer(Request("x")).parsed


@pytest.mark.parametrize("wrong", [object(), [], 5, lambda: 1, Callable[[], int], {1, 2}, b"{}"])
def test_what_has_no_schema_is_refused(wrong: Any) -> None:
    with pytest.raises(OptionError, match=r"json_schema.*type"):
        Constraints(json_schema=wrong)


def test_a_reply_waits_and_an_answer_travels(smollm2: Model) -> None:
    options: dict[str, Any] = {"temperature": 0.0, "seed": 1, "max_tokens": 60}
    found = smollm2.chat("Rome", constraints=Constraints(json_schema=City), **options).parsed
    assert isinstance(found, City)

    @dataclass
    class Local:
        a: bool

    reply = smollm2.chat("Yes or no?", constraints=Constraints(json_schema=Local), **options)
    assert isinstance(reply.parsed, Local)
    assert pickle.loads(pickle.dumps(reply.answer)).parsed == {"a": reply.parsed.a}
    with pytest.raises(GenerationError, match="cut off after 2 tokens"):
        _ = smollm2.chat("Rome", constraints=Constraints(json_schema=City), max_tokens=2).parsed


def test_pydantic_is_optional(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pydantic", None)
    assert Constraints(json_schema=int).schema == {"type": "integer"}
    assert answer_with("1", {"type": "integer"}).parsed == 1
    with pytest.raises(OptionError, match="install pydantic"):
        Constraints(json_schema=Point)


# Other forms of an answer


def test_as_dict_has_the_log_probabilities(smollm2: Model) -> None:
    reply = smollm2.chat("Hi", max_tokens=5, seed=1, logprobs=3)
    reply.read()
    content = reply.as_dict()["choices"][0]["logprobs"]["content"]
    assert b"".join(bytes(each["bytes"]) for each in content).decode() == reply.text
    assert [each["logprob"] for each in content] == reply.logprobs
    for each, top in zip(content, reply.top_logprobs, strict=True):
        assert [one["logprob"] for one in each["top_logprobs"]] == [logprob for _, logprob in top]
        assert [one["token"] for one in each["top_logprobs"]] == [
            smollm2.detokenize([token]) for token, _ in top
        ]
    plain = smollm2.chat("Hi", max_tokens=5, seed=1)
    plain.read()
    assert plain.as_dict()["choices"][0]["logprobs"] is None


def test_an_edit_changes_what_is_sampled_and_nothing_else(tiny_path: Any) -> None:
    import numpy as np

    with load_model(tiny_path, n_ctx=256, n_parallel=2, trust=True) as model:
        options: dict[str, Any] = {"temperature": 0.0, "max_tokens": 4, "seed": 1, "ignore_eos": True}

        def only_seven(row: Any) -> None:
            row[:] = -np.inf
            row[7] = 0

        def doubled(row: Any) -> Any:
            return row.astype(np.float64) * 2

        seen: list[Any] = []
        free = model.chat("Hi", logprobs=0, **options)
        free.read()
        edited = model.chat("Hi", edit=only_seven, watch=seen.append, logprobs=0, **options)
        edited.read()
        assert edited.tokens == [7] * 4
        assert edited.logprobs[0] < free.logprobs[0]
        assert np.isfinite(seen[0]).all()
        same = model.chat("Hi", edit=doubled, **options)
        same.read()
        assert same.tokens == free.tokens
        together = list(model.generate(["Hi", "Hi"], edit=only_seven, **options))
        assert [answer.tokens for answer in together] == [[7] * 4] * 2
        wrongs: list[Callable[[Any], Any]] = [
            lambda row: row[:5],
            lambda _: "x",
            lambda row: row * np.nan,
            lambda row: row - np.inf,
            lambda _: [[1], [1, 2]],
        ]
        for wrong in wrongs:
            with pytest.raises((OptionError, GenerationError)):
                model.chat("Hi", edit=wrong, **options).read()
        with pytest.raises(OptionError, match="edit"):
            model.chat("Hi", edit=5)  # type: ignore[arg-type]
