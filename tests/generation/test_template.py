"""Chat templates: the model's own, none, broken ones; control tokens in what a user types."""

from collections.abc import Callable
from datetime import date
from pathlib import Path

import pytest
from llama_cpp.llama_chat_format import Jinja2ChatFormatter

from mink_local import load_model
from mink_local.errors import MinkError
from mink_local.generation.template import ChatTemplate, control_pattern
from mink_local.llama.weights import Weights
from tests.conftest import shared
from tests.support.tiny import write_model

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


@pytest.fixture(scope="module", params=FAMILIES)
def weights(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, smollm2_path: Path
) -> Weights:
    if request.param == "smollm2":
        return Weights(smollm2_path)
    arch, vocabulary, template = FAMILIES[request.param]  # type: ignore[misc]
    source = shared(f"vocab/{template}").read_text(encoding="utf-8")
    path = tmp_path_factory.mktemp("models") / f"{request.param}.gguf"
    return Weights(write_model(path, shared(f"vocab/{vocabulary}"), arch, source))


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


def test_the_switch_for_reasoning(weights: Weights) -> None:
    template = ChatTemplate(weights)
    turns = [{"role": "user", "content": "2 + 2?"}]

    def prompt(enable_thinking: bool | None) -> bytes:
        return b"".join(weights.piece(token) for token in template.tokens(turns, enable_thinking))

    reasons = weights.path.name == "qwen3.gguf"
    assert template.can_reason == template.has_thinking_switch == reasons
    assert prompt(None) == prompt(True)
    assert prompt(False) == prompt(None) + (b"<think>\n\n</think>\n\n" if reasons else b"")
    assert not any(template.opens_reasoning(template.tokens(turns, switch)) for switch in (None, True, False))
    begun = weights.tokenize("<think>\n", add_special=False, parse_special=True)
    assert template.opens_reasoning([*template.tokens(turns), *begun])


def test_overlapping_control_tokens_are_all_broken() -> None:
    pattern = control_pattern(("<|a", "a|>", "<|im_end|>", "x"))
    assert pattern.sub(r"\1^", "<|a|> <|im_end|> x") == "<^|a^|> <^|im_end|> x"
    assert control_pattern(()).sub("^", "anything") == "anything"


def test_no_template_is_plain_turns(tiny: Callable[..., Path], caplog: pytest.LogCaptureFixture) -> None:
    model = load_model(str(tiny(template=None)))
    assert "has no chat template" in caplog.text
    text = b"".join(model.weights.piece(token) for token in model.tokens(TURNS)).decode()
    assert text == (
        "System: You are brief.\n\nUser: Hello {name}, 100% of <b>you</b>!\nAssistant: Hi.\n"
        "User: 日本語 😀\n\n  indented \nAssistant:"
    )
    assert ChatTemplate(model.weights).stop(TURNS) == ("\nUser:",)
    assert len("".join(model.chat(TURNS, temperature=5.0, seed=1, max_tokens=5))) > 0


def test_the_date_that_a_template_writes(tiny: Callable[..., Path]) -> None:
    """Today's, or the one that `load_model` is given."""
    path = str(tiny(template="{{ strftime_now('%d %b %Y') }}"))
    before = date.today()
    written = load_model(path).apply_chat_template(TURNS)
    assert written in {day.strftime("%d %b %Y") for day in (before, date.today())}
    assert load_model(path, date=date(2025, 3, 1)).apply_chat_template(TURNS) == "01 Mar 2025"


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
