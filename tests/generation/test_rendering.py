"""Rendering chat templates as Hugging Face's transformers does, and stopping those that do not end."""

import subprocess
from datetime import date
from typing import Any

import pytest

from mink_local.generation import rendering
from mink_local.generation.rendering import Renderer, TemplateError

HELLO = [{"role": "user", "content": "Hello"}]


def renderer(template: str, today: date | None = None, in_process: bool = False) -> Renderer:
    return Renderer(template, today, bos_token="<s>", eos_token="</s>", in_process=in_process)


FEATURES: dict[str, tuple[str, dict[str, Any], str]] = {
    "tokens of the model": ("{{ bos_token }}x{{ eos_token }}", {}, "<s>x</s>"),
    "blocks take no lines": ("{% if true %}\n  {# #}\n  x\n  {% endif %}\n", {}, "  x\n"),
    "generation": ("{% generation %}x{% endgeneration %}y", {}, "xy"),
    "break": ("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}", {}, "01"),
    "continue": ("{% for i in [1, 2] %}{% if i == 1 %}{% continue %}{% endif %}{{ i }}{% endfor %}", {}, "2"),
    "JSON": ("{{ {'b': 'é<', 'a': [none]} | tojson }}", {}, '{"b": "é<", "a": [null]}'),
    "indented JSON": ("{{ {'a': 1} | tojson(indent=2) }}", {}, '{\n  "a": 1\n}'),
    "the answer is asked for": ("{% if add_generation_prompt %}go on{% endif %}", {}, "go on"),
    "no tools": ("{{ tools is none }} {{ tools is defined }}", {}, "True True"),
    "tools": ("{{ tools[0].name }}", {"tools": [{"name": "search"}]}, "search"),
    "no switch": ("{{ enable_thinking is defined }}", {}, "False"),
    "a switch": ("{{ enable_thinking is false }}", {"enable_thinking": False}, "True"),
    "the date": ("{{ strftime_now('%d %b %Y') }}", {}, "01 Mar 2025"),
    "the date in a macro": ("{% macro f() %}{{ strftime_now('%Y') }}{% endmacro %}{{ f() }}", {}, "2025"),
    "text": ("{{ messages[0]['content'] }}", {}, "Hello"),
}  # fmt: skip


@pytest.mark.parametrize("name", FEATURES)
@pytest.mark.parametrize("in_process", [True, False])
def test_features_of_templates(name: str, in_process: bool) -> None:
    if not in_process and name not in ("the date", "tools", "JSON"):
        pytest.skip("the child runs the same code")
    template, options, text = FEATURES[name]
    assert renderer(template, date(2025, 3, 1), in_process)(HELLO, **options) == text


@pytest.mark.parametrize("in_process", [True, False])
def test_the_date_is_todays_unless_it_is_fixed(in_process: bool) -> None:
    render = renderer("{{ strftime_now('%Y-%m-%d') }}", in_process=in_process)
    assert date.today().isoformat() <= render(HELLO) <= date.today().isoformat()
    assert renderer("{{ strftime_now('%Y-%m-%d') }}", date(2024, 7, 26), in_process)(HELLO) == "2024-07-26"
    assert date.today().isoformat() <= render(HELLO) <= date.today().isoformat()


@pytest.mark.parametrize(
    ("template", "complaint"),
    [
        ("{% for %}", "^is broken: "),
        ("{{ raise_exception('no system prompt') }}", "^refuses this conversation: no system prompt$"),
        ("{{ raise_exception('a\n  b ' * 1000) }}", "^refuses this conversation: (a b )+a?…$"),
        ("{{ messages[7].content }}", "^refuses this conversation: "),
        ("{{ ''.__class__.__mro__ }}", "^refuses this conversation: .* unsafe"),
        ("{{ messages.append(1) }}", "^refuses this conversation: .* unsafe"),
        ("{% include '/etc/passwd' %}", "^refuses this conversation: "),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "^refuses this conversation: .*recursion"),
        ("{{ 'a' * 70000000 }}", "^was stopped: it wrote 70,000,000 characters$"),
    ],
)
def test_templates_that_give_no_prompt(template: str, complaint: str) -> None:
    with pytest.raises(TemplateError, match=complaint):
        renderer(template, in_process=True)(HELLO)


LOOP = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
DOUBLING = "{% set ns = namespace(s='a') %}{% for i in range(99) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}"
HOSTILE = {
    "a loop": (LOOP, "it timed out after 1 s"),
    "a long string": ("{{ 'a' * (10 ** 10 * (messages | length)) }}", "memory|Memory"),
    "a long prompt": ("{{ 'a' * 10 ** 8 }}", "it wrote 100,000,0.. characters"),
    "doubling": (DOUBLING, "memory|Memory"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", HOSTILE)
def test_templates_that_do_not_end_are_stopped(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if they wait for a later turn, and the turns before that are not lost."""
    template, complaint = HOSTILE[name]
    monkeypatch.setattr(rendering, "SECONDS", 1 if name == "a loop" else 30)
    render = renderer("{% if messages | length > 1 %}" + template + "{% endif %}fine")
    assert render(HELLO) == "fine"
    with pytest.raises(TemplateError, match=f"^was stopped: .*({complaint})"):
        render(HELLO * 2)
    assert render(HELLO) == "fine"


def test_a_template_that_does_not_end_while_it_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendering, "SECONDS", 1)
    with pytest.raises(TemplateError, match="it timed out after 1 s"):
        renderer("{{ 9 ** (9 ** (9 ** 9)) }}")(HELLO)


def test_no_child_starts_before_the_first_prompt_or_for_a_trusted_template(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: pytest.fail("a child was started"))
    render = renderer("x")
    assert renderer("x", in_process=True)(HELLO) == "x"
    monkeypatch.undo()
    assert render(HELLO) == "x"
