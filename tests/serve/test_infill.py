"""`suffix` of /v1/completions: what belongs between two texts, for models trained for that."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mink_local import Model
from tests.serve.test_answers import streamed
from tests.support.server import RunningServer, running_server

COMPLETION = "/v1/completions"
BEGIN, GAP, END = 4, 5, 6  # control tokens of the vocabulary, which play those of a coder
GREEDY = {"temperature": 0, "max_tokens": 8}


@pytest.fixture
def coder(tiny: Callable[..., Path]) -> Iterator[RunningServer]:
    """A server whose model's vocabulary has fill-in-the-middle tokens."""
    ids = {"pre": BEGIN, "suf": GAP, "mid": END}
    keys = {f"tokenizer.ggml.fim_{name}_token_id": token for name, token in ids.items()}
    with running_server("--model", str(tiny(more_keys=keys))) as server:
        yield server


def test_the_prompt_is_prefix_gap_suffix(coder: RunningServer, smollm2: Model) -> None:
    def ids(text: str) -> list[int]:
        return smollm2.weights.tokenize(text, add_special=False, parse_special=False)

    def expected(prefix: str, suffix: str) -> str:
        prompt = [BEGIN, *ids(prefix), GAP, *ids(suffix), END]
        answer = coder.post(COMPLETION, prompt=prompt, **GREEDY).json()
        assert answer["usage"]["prompt_tokens"] == len(prompt)
        return str(answer["choices"][0]["text"])

    texts = [("def f(x):\n    return ", "\n\nprint(f(1))"), ("", " + 1"), ("sea é", "日本")]
    for prefix, suffix in texts:
        answer = coder.post(COMPLETION, prompt=prefix, suffix=suffix, **GREEDY).json()
        assert answer["choices"][0]["text"] == expected(prefix, suffix)
    both = coder.post(COMPLETION, prompt=["a", "b"], suffix="c", **GREEDY).json()["choices"]
    assert [choice["text"] for choice in both] == [expected("a", "c"), expected("b", "c")]
    chunks = streamed(coder, COMPLETION, prompt="a", suffix="c", **GREEDY)
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == expected("a", "c")
    assert coder.post(COMPLETION, prompt="a", suffix="b" * 100_000).status_code == 400


@pytest.mark.parametrize("fields", [
    {"prompt": [1, 2]}, {"prompt": [[1], [2]]}, {"prompt": "a", "echo": True}, {"prompt": "a"},
])  # fmt: skip
def test_what_suffix_cannot_go_with(server: RunningServer, fields: dict[str, Any]) -> None:
    """Token ids, `echo`, and a vocabulary without such tokens."""
    response = server.post(COMPLETION, suffix="b", **fields)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "suffix"
