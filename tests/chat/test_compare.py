"""/compare: what is compared, and what is shown."""

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from mink_local.chat.commands import compare
from mink_local.chat.commands.compare import parsed
from mink_local.chat.comparing import CommonNumbers
from mink_local.chat.terminal.screen import Screen
from mink_local.generation.answer import Answer
from mink_local.generation.engine.slots import common_prefix
from mink_local.generation.loading import load_model
from mink_local.generation.model import Model
from mink_local.samplers import MinK, MinP, Mirostat, Order, Sampler, TopK, TopP, parse
from tests.chat.conftest import Typist
from tests.support.terminal import Terminal
from tests.support.tiny import write_scripted

pytestmark = pytest.mark.usefixtures("own_files")

Begin = Callable[..., Typist]
LAST: Order = "temperature-last"
ALL = ["min-k", "top-n-sigma", "top-k", "top-a", "typical", "top-p", "min-p", "eta"]


@pytest.mark.parametrize("own", [MinK(), MinK(tau=1), TopK(7), MinP(p=0.2, order=LAST)])
def test_what_is_compared_by_default(own: Sampler) -> None:
    """One's own sampler first, then llama.cpp's default and min-p."""
    temperature, samplers, text = parsed("", 2.0, own)
    assert (temperature, text) == (2.0, "")
    assert samplers == [own, parse("llama-default"), MinP(order=LAST)]


def test_what_is_compared() -> None:
    own = MinP()  # in the papers' order
    assert parsed("", 2.0, own)[1][0] == own
    assert MinP(order=LAST) in parsed("", 2.0, own)[1]
    assert parsed("", 2.0, Mirostat())[1] == parsed("", 2.0, MinK())[1]
    samplers = [MinK(), MinP(0.2, order=LAST), TopK(3)]
    argument = "T=5 min-k min-p:p=0.2 top-k:k=3 min-k  Two  words\nand a line"
    assert parsed(argument, 2.0, MinK()) == (5.0, samplers, "Two  words\nand a line")
    for text in (f"top-p:order={LAST}", "top-p"):  # as in llama.cpp
        assert parsed(text, 2.0, MinK())[1] == [TopP(order=LAST)]
    assert parsed("-- greedy people", 2.0, MinK())[2] == "greedy people"


@pytest.mark.parametrize(
    ("argument", "complaint"),
    [
        ("Hi", "T=5"),
        ("T=0 Hi", "T=5"),
        ("T=hot Hi", "'hot'"),
        ("T=1 min-p:q=1 Hi", "'q'"),
        ("T=1 mirostat Hi", "mirostat"),
        ("T=5 " + "word " * 1200, "1024"),
    ],
)
def test_what_cannot_be_compared(typist: Begin, argument: str, complaint: str) -> None:
    assert complaint in typist().say(f"/compare {argument}")


def test_a_comparison_changes_nothing(typist: Begin) -> None:
    typed = typist("--temp", "5", "--tau", "2", "-n", "6", "--seed", "1")
    assert "/compare TEXT" in typed.say("/compare")
    compared = f"/compare min-k:tau=2 {' '.join(ALL[1:])} Name a colour."
    shown = typed.say(compared)
    assert "temperature 5, seed 1," in shown
    assert re.findall(r"^(\d+)  (\S+?)[:\n]", shown, re.M) == [
        (str(i), name) for i, name in enumerate(ALL, 1)
    ]
    assert re.search(r"^1  min-k:tau=2\n", shown, re.M)
    assert re.search(r"^\d  .*\ndiffers .* token \d+: .* \(rank [\d,]+\),\swhich\sanswer\s1's ", shown, re.M)
    assert typed.chat.session.branch == []
    assert typed.say(compared) == shown


def test_equal_texts_are_shown_once(typist: Begin) -> None:
    shown = typist("--temp", "1").say("/compare greedy top-k:k=1 -- Say hello.")
    assert shown.count("Hello") == 1
    assert "2  top-k:k=1\nthe same text as 1\n" in shown


def test_the_last_message_is_answered_again(typist: Begin) -> None:
    typed = typist("--temp", "5", "-n", "4", "--seed", "1")
    typed.say("Name a colour.", "And another.")
    before = typed.chat.session.branch
    shown = typed.say("/compare min-k top-k")
    assert shown.startswith("> And another.")
    assert before[-1].content.split()[0] in shown
    assert typed.chat.session.branch == before


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Answer, CommonNumbers]]:
    """The answers that are shown, with their samplers."""
    found, show = [], compare._show

    def keep(screen: Screen, model: Model, answer: Answer, samplers: Sequence[CommonNumbers]) -> None:
        found.append((answer, samplers[answer.index]))
        show(screen, model, answer, samplers)

    monkeypatch.setattr(compare, "_show", keep)
    return found


def test_a_place_counts_all_tokens(
    typist: Begin, tmp_path: Path, shown: list[tuple[Answer, CommonNumbers]]
) -> None:
    """Also those that a schema forced, which nobody sampled."""
    schema = {"type": "object", "properties": {"colour": {"type": "string"}}, "required": ["colour"]}
    (tmp_path / "colour.json").write_text(json.dumps(schema))
    typed = typist("--json-schema", str(tmp_path / "colour.json"), "--temp", "5", "--seed", "1", "-n", "12")
    said = typed.say("/compare min-k top-k Name a colour.")
    first, other = (answer for answer, _ in shown)
    at = common_prefix(first.tokens, other.tokens)
    assert 0 in first.k[:at]
    assert f"at token {at + 1}: " in said
    common = "".join(typed.chat.session.model.token_texts(first.tokens[:at]))
    assert f"…{common} ▸{other.text[len(common) :]}" in said


def test_the_compared_samplers_sample_the_reasoning_too(
    typist: Begin, tmp_path: Path, shown: list[tuple[Answer, CommonNumbers]]
) -> None:
    path = write_scripted(
        tmp_path / "thinker.gguf",
        "{# <think> #}{{ messages[-1].content }}<|told|>",
        {"<|told|>": ["<think>", "Two", " and", " two", "</think>", "It is", " four"]},
    )
    typed = typist("--temp", "2", "--reasoning-sampler", "greedy", model=load_model(path, n_ctx=256))
    typed.say("/compare min-k -- Hi")
    [(answer, sampler)] = shown
    assert answer.content == "It is four"
    assert sampler.tokens[: answer.n_tokens] == answer.tokens


@pytest.mark.terminal
@pytest.mark.posix
def test_ctrl_c(opened: Callable[..., Terminal]) -> None:
    """What came until then is shown."""
    terminal = opened("--temp", "5", "--seed", "1")
    terminal.send("/compare min-k top-k Tell me a long story about a dog.\r")
    terminal.until_shown(r"2 answers to come, \d\d tokens")
    shown = terminal.press("\x03")
    assert "interrupted" in shown
    assert "1  min-k" in shown
