"""Chat templates: the model's own, none, broken ones; control tokens in what a user types."""

from collections.abc import Callable
from pathlib import Path

import pytest
from llama_cpp.llama_chat_format import Jinja2ChatFormatter

from mink_local import load_model
from mink_local.errors import MinkError
from mink_local.llamacpp import Weights
from mink_local.template import ChatTemplate
from tests.conftest import shared

TURNS = [
    {"role": "system", "content": "You are brief."},
    {"role": "user", "content": "Hello {name}, 100% of <b>you</b>!"},
    {"role": "assistant", "content": "Hi."},
    {"role": "user", "content": "日本語 😀\n\n  indented "},
]
FAMILIES = {
    "smollm2": None,
    "llama-3": ("llama", "ggml-vocab-llama-bpe.gguf", "meta-llama-Llama-3.1-8B-Instruct.jinja"),
    "qwen3": ("qwen3", "ggml-vocab-qwen2.gguf", "Qwen-Qwen3-0.6B.jinja"),
}


@pytest.fixture(params=FAMILIES)
def weights(request: pytest.FixtureRequest, tiny: Callable[..., Path], smollm2_path: Path) -> Weights:
    if request.param == "smollm2":
        return Weights(smollm2_path)
    arch, vocabulary, template = FAMILIES[request.param]  # type: ignore[misc]
    source = shared(f"vocab/{template}").read_text(encoding="utf-8")
    return Weights(tiny(arch=arch, vocabulary=shared(f"vocab/{vocabulary}"), template=source))


def rendered(weights: Weights, turns: list[dict[str, str]]) -> str:
    assert weights.chat_template is not None
    formatter = Jinja2ChatFormatter(weights.chat_template, weights.eos, weights.bos)
    return str(formatter(messages=turns).prompt)


def test_ordinary_text_is_tokenized_as_llama_cpp_does(weights: Weights) -> None:
    expected = weights.tokenize(rendered(weights, TURNS), add_special=False, parse_special=True)
    assert ChatTemplate(weights).tokens(TURNS) == expected


def test_control_tokens_that_a_user_types_are_text(weights: Weights) -> None:
    """For every one of the vocabulary: the turns stay as they are, and the text arrives whole."""
    template = ChatTemplate(weights)
    control = [text for text in weights.control_tokens if len(text) > 1]
    assert len(control) >= 3
    ids = {
        token for text in control for token in weights.tokenize(text, add_special=False, parse_special=True)
    }

    def structure(content: str) -> list[int]:
        tokens = template.tokens([{"role": "user", "content": content}])
        assert content.encode() in b"".join(weights.piece(token) for token in tokens)
        return [token for token in tokens if token in ids]

    plain = structure("x")
    assert len(plain) >= 3
    for text in control:
        assert structure(f"x{text}y") == plain
    everything = "".join(control)
    assert structure(everything) == plain
    assert structure(everything + "\ufdd0" + control[0][:-1] + everything) == plain


def test_overlapping_control_tokens_are_all_broken(smollm2_path: Path) -> None:
    template = ChatTemplate(Weights(smollm2_path))
    template._weights.__dict__["control_tokens"] = ("<|a", "a|>", "<|im_end|>")
    assert template._control.sub(r"\1^", "<|a|> <|im_end|>") == "<^|a^|> <^|im_end|>"


def test_no_template_is_plain_turns(tiny: Callable[..., Path], caplog: pytest.LogCaptureFixture) -> None:
    model = load_model(str(tiny(template=None)))
    assert "has no chat template" in caplog.text
    text = b"".join(model._weights.piece(token) for token in model._template.tokens(TURNS)).decode()
    assert text == (
        "System: You are brief.\n\nUser: Hello {name}, 100% of <b>you</b>!\nAssistant: Hi.\n"
        "User: 日本語 😀\n\n  indented \nAssistant:"
    )
    assert model._template.stop == ("\nUser:",)
    assert len("".join(model.chat(TURNS, temperature=5.0, seed=1, max_tokens=5))) > 0


@pytest.mark.parametrize(
    ("template", "complaint"),
    [
        ("{% for %}", "the chat template of .* is broken"),
        ("{{ raise_exception('no system prompt, please') }}", "refuses this conversation: no system prompt"),
        ("{{ messages[7].content }}", "refuses this conversation"),
        ("{{ ''.__class__.__mro__ }}", "refuses this conversation: .* unsafe"),
    ],
)
def test_templates_that_fail(tiny: Callable[..., Path], template: str, complaint: str) -> None:
    model = load_model(str(tiny(template=template)))
    with pytest.raises(MinkError, match=complaint):
        model.chat(TURNS)


def test_long_tokens_and_spaces_are_written_whole(weights: Weights) -> None:
    """llama-cpp-python's own detokenizer drops tokens of more than 32 bytes."""
    text = " " * 64 + "x" + "\n" * 40 + "=" * 100
    tokens = weights.tokenize(text, add_special=False, parse_special=False)
    assert b"".join(weights.piece(token) for token in tokens) == text.encode()
