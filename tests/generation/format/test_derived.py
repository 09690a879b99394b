"""What chat templates tell about themselves when they are rendered: reasoning, and how it is switched."""

import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mink_local import Constraints, load_model
from mink_local.generation.format.derived import BY_HAND, Reasoning, is_mark, reasoning_of
from mink_local.generation.format.harmony import HARMONY, splitter_of
from mink_local.generation.format.rendering import Renderer
from mink_local.generation.format.text import THINK_MARKS, Marks
from tests.support.effort import examples
from tests.support.tiny import write_scripted

USER = {"role": "user", "content": "2 + 2?"}
TURNS = "{% for m in messages %}<{{ m.role }}>REASON{{ m.content }}{% endfor %}<assistant>"


def template(field: str, start: str, end: str, tail: str = "") -> str:
    shown = f"{{% if m.{field} %}}{start}{{{{ m.{field} }}}}{end}{{% endif %}}"
    return TURNS.replace("REASON", shown) + tail


def derived(source: str) -> Reasoning:
    render = Renderer(source, bos_token="", eos_token="", in_process=True)
    return reasoning_of(render, source)


PARTS = (
    "{% for m in messages %}<{{ m.role }}>{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for c in m.content %}{{ '[THINK]' ~ c.thinking ~ '[/THINK]' if c.type == 'thinking' else c.text }}"
    "{% endfor %}{% endif %}{% endfor %}<assistant>"
)


@pytest.mark.parametrize(
    ("source", "marks", "field"),
    [
        (template("reasoning_content", "<r:x>\n", "\n</r:x>\n\n"),
         ("<r:x>\n", "\n</r:x>\n\n"), "reasoning_content"),
        (template("reasoning", "<|think|>", "<|done|>"), ("<|think|>", "<|done|>"), "reasoning"),
        (template("thinking", "[T:1]", "[/T:1]"), ("[T:1]", "[/T:1]"), "thinking"),
        (template("thinking", "<seed>", "</seed>", "<seed>"), ("<seed>", "</seed>"), "thinking"),
        (PARTS, ("[THINK]", "[/THINK]"), "parts"),
        (template("reasoning", "a", "b"), THINK_MARKS[:2], "reasoning"),
        (template("reasoning", "<a", "b>"), THINK_MARKS[:2], "reasoning"),
        (TURNS.replace("REASON", ""), THINK_MARKS[:2], "reasoning_content"),
        (TURNS.replace("REASON", "") + "{# <|channel|>analysis #}", HARMONY[:2], "reasoning_content"),
    ],
)  # fmt: skip
def test_reasoning_is_found_by_rendering(source: str, marks: tuple[str, str], field: str) -> None:
    found = derived(source)
    assert (found.marks[:2], found.field) == (marks, field)


@pytest.mark.parametrize("text", ["a", "ab cd", "    ", "<a>", "word", "日本語で"])
def test_what_people_write_is_no_mark(text: str) -> None:
    assert not is_mark(text)


@pytest.mark.parametrize(
    ("shown", "switch"),
    [
        ("{{ 'x' if enable_thinking else 'y' }}", {"enable_thinking": False}),
        ("{{ 'x' if thinking else 'y' }}", {"thinking": False}),
        ("{{ '<think>' if reasoning_effort != 'no_think' else '' }}", {"reasoning_effort": "no_think"}),
        ("{{ 'x' if thinking_mode == 'disabled' else 'y' }}", {"thinking_mode": "disabled"}),
        ("{% set enable_thinking = true %}{{ enable_thinking }}", None),
        ("", None),
    ],
)
def test_a_switch_counts_if_it_changes_the_prompt(shown: str, switch: Any) -> None:
    found = derived(TURNS.replace("REASON", "") + shown).switch
    assert (found and found[1]) == switch


def test_an_effort_is_no_switch() -> None:
    assert derived("{{ reasoning_effort }}" + TURNS.replace("REASON", "")).switch is None


THOUGHT = ["[THINK]", "Hm", ", yes.", "[/THINK]", "Four", "."]


@pytest.mark.parametrize("is_opened", [False, True])
def test_marks_that_are_control_tokens(is_opened: bool, tmp_path: Path) -> None:
    """They have no text in the vocabulary, and split, end and open reasoning nevertheless."""
    start = "[THINK]" if is_opened else "<assistant>"
    source = template("reasoning", "[THINK]", "[/THINK]", "[THINK]" if is_opened else "")
    script = {start: THOUGHT[1:] if is_opened else THOUGHT}
    path = write_scripted(tmp_path / "x.gguf", source, script, ("[THINK]", "[/THINK]"))
    with load_model(path, trust=True) as model:
        reply = model.chat([USER], temperature=0.0)
        assert (reply.read(), reply.reasoning, reply.content) == (
            "".join(THOUGHT[is_opened:]),
            "Hm, yes.",
            "Four.",
        )
        assert reply.n_reasoning == 3 - is_opened
        for at in range(1, reply.n_tokens):  # also from any of its tokens on
            rest = model.chat([USER], temperature=0.0, prefix=reply.tokens[:at])
            assert rest.read() == "".join(THOUGHT[is_opened:][at:])
            assert rest.message == reply.message
        for pattern in ("Four\\.", "[A-Z][a-z]+\\."):
            reply = model.chat([USER], temperature=0.0, constraints=Constraints(regex=pattern))
            assert (reply.read() and reply.reasoning, reply.content) == ("Hm, yes.", "Four.")
        reply = model.chat([USER], temperature=0.0, reasoning_budget=0)
        assert (reply.read() and reply.reasoning, reply.content) == ("", "Four.")
        prompt = model.apply_chat_template([USER, {"role": "assistant", "content": "F"}])
        assert prompt.endswith("[/THINK]F" if is_opened else "<assistant>F")
        earlier = {"role": "assistant", "content": "F", "reasoning_content": "So"}
        assert "[THINK]So[/THINK]F" in model.apply_chat_template([USER, earlier, USER])


PIECES = {
    "gpt-oss": (
        HARMONY,
        [
            ("<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>So.",
             "Hm.", "So."),
            ("<|channel|>commentary<|message|>So.", "", "So."),
            ("<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary<|message|>"
             "I look.<|end|><|start|>assistant<|channel|>analysis<|message|> Ah.<|end|>",
             "Hm.Ah.", "I look."),
            ("<|channel|>commentary to=assistant<|channel|>analysis<|message|>Hm.", "Hm.", ""),
            ("<|channel|>final <|constrain|>json<|message|>{}", "", "{}"),
            ("<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary to=python code"
             "<|message|>1<|call|>", "Hm.", ""),
            ("So to=him <|channel", "", "So to=him <|channel"),
        ],
    ),
    "Gemma 4": (
        BY_HAND["<|channel>thought"],
        [
            ("<|channel>thought\nHm.\n<channel|>So.", "Hm.", "So."),
            ("<|channel>thought\n<channel|>So.<|channel>thought\n<channel|><channel|>", "", "So."),
            ("<|channel><|channel>thought\nHm.<channel|>So.", "Hm.", "So."),
            ("So.<|channel>thought\nAh.<channel|> Then.", "Ah.", "So.Then."),
            ("<think>Hm.</think>So. <channel|>", "Hm.", "So. <channel|>"),
        ],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PIECES)
def test_formats_by_hand_are_split(name: str) -> None:
    marks, cases = PIECES[name]
    for text, reasoning, content in cases:
        for cut in range(len(text) + 1):
            assert split(marks, [text[:cut], text[cut:]]) == (reasoning, content)
        assert split(marks, list(text)) == (reasoning, content)


def split(marks: Marks, pieces: list[str]) -> tuple[str, str]:
    splitter = splitter_of(marks)
    found = [splitter.feed(piece) for piece in pieces] + [splitter.feed("", is_final=True)]
    assert splitter.n_held == 0
    return "".join(pair[0] for pair in found), "".join(pair[1] for pair in found)


ALL = [HARMONY, *BY_HAND.values(), THINK_MARKS, Marks("<seed:think>", "</seed:think>\n")]


@examples(300)
@given(st.sampled_from(ALL), st.data(), st.randoms(use_true_random=False))
def test_pieces_do_not_matter(marks: Marks, data: st.DataObject, rng: random.Random) -> None:
    words = [
        marks.start,
        marks.end,
        *marks.frame,
        marks.text,
        "<think>",
        "</think>",
        " to=functions.f",
        "<|",
        "a",
        "\n",
    ]
    text = "".join(data.draw(st.lists(st.sampled_from(words), max_size=12)))
    cuts = sorted(rng.randint(0, len(text)) for _ in range(5))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert split(marks, pieces) == split(marks, list(text)) == split(marks, [text])
