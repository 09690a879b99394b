"""The candidates of a step and the cuts of samplers, against the slow twins of the kernels."""

from typing import Any

import httpx
import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray

from mink_local.generation.model import Model
from mink_local.samplers import MinK, TopK, TopP
from mink_local.serve.endpoints.candidates import step_candidates
from tests.support import reference
from tests.support.server import RunningServer

MESSAGES = [{"role": "user", "content": "Name a colour."}]


@pytest.fixture(scope="module", params=["start", "middle"])
def row(request: pytest.FixtureRequest, smollm2: Model) -> NDArray[np.float32]:
    """The model's logits at the start of an answer, and after one token."""
    prefix = smollm2.tokenize("The") if request.param == "middle" else []
    return smollm2.logits(MESSAGES, prefix)


def test_the_step_is_that_of_the_reference(row: NDArray[np.float32], smollm2: Model) -> None:
    row = row.copy()
    row[:100] = -np.inf
    ids, logits = reference.descending(row)
    p = reference.softmax(logits, 1.0)
    rare = int(ids[30_000])
    step = step_candidates(row, smollm2.weights, [TopK(7)], [2.0], top=200, prompt_tokens=3, sampled=rare)
    assert (step.n_vocab, step.prompt_tokens, len(ids)) == (row.size, 3, row.size - 100)
    found = step.candidates
    assert [(c.rank, c.id, c.logit) for c in found] == [(i + 1, ids[i], logits[i]) for i in range(200)]
    assert [c.p for c in found] == pytest.approx(p[:200])
    assert [c.text for c in found[:10]] == [smollm2.token_texts([c.id])[0] for c in found[:10]]
    assert step.entropy == pytest.approx(-(p[p > 0] * np.log2(p[p > 0])).sum())
    assert step.sampled is not None
    assert (step.sampled.rank, step.sampled.id, step.sampled.logit) == (30_001, rare, logits[30_000])
    assert (step.curve[0], step.curve[-1]) == ((1, logits[0]), (len(ids), logits[-1]))
    assert len(step.curve) <= 256
    assert all(logits[rank - 1] == logit for rank, logit in step.curve)
    [cut] = step.cuts
    weight = np.exp((logits[:7] - logits[0]) / 2).sum()
    assert (cut.first, cut.k) == ([1], [7])
    assert cut.weight == pytest.approx([weight])


def test_a_token_that_ends_the_answer_is_marked(row: NDArray[np.float32], smollm2: Model) -> None:
    [end, *_] = smollm2.weights.end_tokens
    row = row.copy()
    row[end] = 100.0
    [first, second] = step_candidates(row, smollm2.weights, [], [1.0], top=2).candidates
    assert (first.id, first.ends, second.ends) == (end, True, False)
    assert first.text


def test_a_candidate_completes_the_character_that_the_answer_ends_with(
    row: NDArray[np.float32], smollm2: Model
) -> None:
    *prefix, last = smollm2.tokenize("😀")
    row = row.copy()
    row[last], row[prefix[0]] = 100.0, 99.0
    [first] = step_candidates(row, smollm2.weights, [], [1.0], top=1, prefix=prefix).candidates
    assert first.text == "😀"
    [_, start] = step_candidates(row, smollm2.weights, [], [1.0], top=2).candidates
    assert (start.id, start.text) == (prefix[0], "")


def test_the_answer_is_json_at_any_temperature(row: NDArray[np.float32], smollm2: Model) -> None:
    step = step_candidates(row, smollm2.weights, [MinK(), TopP()], [1e-300, 1e300], top=5)
    assert msgspec.json.decode(msgspec.json.encode(step))["cuts"][0]["weight"][0] == 1.0


def post(server: RunningServer, **fields: Any) -> httpx.Response:
    return server.post("/candidates", **{"messages": MESSAGES, **fields})


def test_the_endpoint_tells_the_next_token_of_a_conversation(server: RunningServer, smollm2: Model) -> None:
    """The numbers are those of the model in this process."""
    tokens = smollm2.tokenize("The sky")
    answer = post(
        server,
        prefix_tokens=tokens,
        samplers=["min-k:tau=3", "top-p:p=0.9"],
        temperatures=[1.0, 5.0],
        top=5,
        sampled=smollm2.tokenize(" is")[0],
    ).json()
    row = smollm2.logits(MESSAGES, tokens)
    _, logits = reference.descending(row)
    assert answer["n_vocab"] == row.size
    assert answer["prompt_tokens"] == smollm2.count_tokens(MESSAGES) + len(tokens)
    candidates = answer["candidates"]  # with another split into batches, 4-bit logits move by up to 0.25
    assert [c["logit"] for c in candidates] == pytest.approx(logits[:5].tolist(), abs=0.5)
    assert [c["logit"] for c in candidates] == pytest.approx([row[c["id"]] for c in candidates], abs=0.5)
    assert answer["sampled"]["text"] == " is"
    assert [cut["sampler"] for cut in answer["cuts"]] == [str(MinK()), str(TopP(order="temperature-last"))]
    assert [len(cut["k"]) for cut in answer["cuts"]] == [2, 2]
    assert len(set(answer["cuts"][0]["k"])) == 1  # Min-k's does not move with temperature


@pytest.mark.parametrize(
    ("fields", "param", "value"),
    [
        ({"samplers": ["parrot"]}, "samplers", "parrot"),
        ({"samplers": ["min-k"] * 9}, "samplers", "8"),
        ({"temperatures": [0]}, "temperatures", "0"),
        ({"temperatures": [1, "inf"]}, "temperatures[1]", "308"),
        ({"temperatures": [1.0] * 33}, "temperatures", "32"),
        ({"top": 201}, "top", "200"),
        ({"sampled": 10**6}, "sampled", "1000000"),
        ({"prefix_tokens": [10**6]}, "prefix_tokens", "1000000"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name", ""),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs.messages", ""),
        ({"messages": []}, "messages", "prompt"),
        ({"messages": [{"role": "user", "content": "word " * 2000}]}, "messages", "512"),
        ({"model": "parrot"}, "model", "parrot"),
    ],
)
def test_a_wrong_field_is_named(
    server: RunningServer, fields: dict[str, Any], param: str, value: str
) -> None:
    answer = post(server, **fields)
    assert answer.status_code in (400, 404)
    error = answer.json()["error"]
    assert value in error["message"]
    assert error["param"].startswith(param)


def test_fields_that_are_not_read_are_not_published(server: RunningServer) -> None:
    schemas = httpx.get(f"{server.url}/openapi.json").json()["components"]["schemas"]
    ignored = {"temperature", "max_tokens", "logit_bias", "top_p", "grammar", "logprobs", "stream", "n"}
    assert ignored <= schemas["ChatRequest"]["properties"].keys()
    assert schemas["CandidatesRequest"]["properties"].keys().isdisjoint(ignored)
    assert post(server, top=1, **dict.fromkeys(ignored, "any")).status_code == 200


def test_the_tools_are_part_of_the_prompt(server: RunningServer) -> None:
    tools = [{"type": "function", "function": {"name": "now"}}]
    given: tuple[dict[str, Any], ...] = (
        {"tools": []},
        {"tools": tools, "tool_choice": "none"},
        {"tools": tools},
    )
    counts = [post(server, **fields, top=0).json()["prompt_tokens"] for fields in given]
    named = [{"type": "function", "name": "now"}]
    counted = server.post("/v1/responses/input_tokens", input=MESSAGES, tools=named).json()
    assert counts[0] == counts[1] < counts[2] == counted["input_tokens"]
