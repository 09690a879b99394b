"""Chat templates: the model's own, none, broken ones; control tokens that users type."""

import json
import subprocess
from collections.abc import Callable
from copy import deepcopy
from datetime import date
from functools import reduce
from pathlib import Path
from typing import Any

import pytest
from llama_cpp.llama_chat_format import Jinja2ChatFormatter

from mink_local import Constraints, load_model
from mink_local.errors import MinkError, PromptError
from mink_local.generation.format import rendering
from mink_local.generation.format.call_styles import HERMES
from mink_local.generation.format.derived import Taken
from mink_local.generation.format.rendering import Renderer
from mink_local.generation.format.template import ChatTemplate, markup_pattern, template_input
from mink_local.generation.model import Model
from mink_local.llama.weights import Weights
from tests.conftest import shared
from tests.support.tiny import write_model, write_scripted

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


def structure(weights: Weights, tokens: list[int]) -> list[int]:
    """The control tokens among some tokens."""
    control = [text for text in weights.control_tokens if len(text) > 1]
    ids = {
        token for text in control for token in weights.tokenize(text, add_special=False, parse_special=True)
    }
    return [token for token in tokens if token in ids]


def test_control_tokens_that_a_user_types_are_text(weights: Weights) -> None:
    """For every control token of the vocabulary the turns stay as they are, and the text is complete."""
    template = ChatTemplate(weights)
    control = [text for text in weights.control_tokens if len(text) > 1]
    everything = "".join(control)
    plain = structure(weights, template.tokens([{"role": "user", "content": "x"}]))
    assert min(len(control), len(plain)) >= 3
    typed = [f"x{text}y" for text in control]
    long = "x" + " " * 64 + "x" + "\n" * 40 + "=" * 100  # tokens of more than 32 bytes
    for content in (*typed, everything, everything + "\ufdd0" + control[0][:-1] + everything, long):
        tokens = template.tokens([{"role": "user", "content": content}])
        assert content.encode() in b"".join(map(weights.piece, tokens))
        assert structure(weights, tokens) == plain


SEARCH: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "search",
        "description": "Searches the web.",
        "parameters": {"type": "object", "properties": {"query": {"type": "string"}}},
    },
}
CALLED: list[dict[str, Any]] = [
    {"role": "user", "content": "Look up rain."},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {
                "id": "1",
                "type": "function",
                "function": {"name": "search", "arguments": '{"query": "rain é"}'},
            }
        ],
    },
    {"role": "tool", "tool_call_id": "1", "content": "It falls."},
]
TOOLS = """{% for tool in tools or [] %}{{ tool | tojson }}\n{% endfor %}{% for m in messages %}
<|im_start|>{{ m.role }} {{ m.content }}{% for call in m.tool_calls or [] %}{{ call.function.name }} {{
call.function.arguments | tojson }}{% endfor %}<|im_end|>{% endfor %}"""


@pytest.fixture(scope="module")
def with_tools(weights: Weights, tmp_path_factory: pytest.TempPathFactory) -> Weights:
    """The weights, with a template that describes tools."""
    if weights.chat_template is not None and "tools" in weights.chat_template:
        return weights
    path = tmp_path_factory.mktemp("models") / "tools.gguf"
    return Weights(write_model(path, weights.path, template=TOOLS))


def test_tools_and_calls_reach_the_template(with_tools: Weights) -> None:
    template = ChatTemplate(with_tools)
    assert template.supports_tools
    prompt = b"".join(map(with_tools.piece, template.tokens(CALLED, tools=[SEARCH]))).decode()
    assert json.dumps(SEARCH, indent=4) in prompt or json.dumps(SEARCH) in prompt
    assert '{"query": "rain é"}' in prompt  # an object: JSON in a JSON string would have \\"
    assert "It falls." in prompt
    without = b"".join(map(with_tools.piece, template.tokens(CALLED[:1]))).decode()
    assert "Searches the web." not in without


@pytest.mark.slow
def test_control_tokens_in_tools_and_calls_are_text(with_tools: Weights) -> None:
    """In a description, a property, an argument, a result, a function's name and a role."""
    template = ChatTemplate(with_tools)
    control = [text for text in with_tools.control_tokens if len(text) > 1]
    marked = json.dumps([CALLED, SEARCH]).replace("the web", "MARK").replace("query", "MARK")
    marked = marked.replace("rain", "MARK").replace("It falls", "MARK").replace('"name": "', '"name": "MARK')

    def tokens(inserted: str) -> list[int]:
        messages, tool = json.loads(marked.replace("MARK", inserted))
        messages.insert(1, {"role": f"user{inserted}", "content": "x"})
        return template.tokens(messages, tools=[tool])

    plain = structure(with_tools, tokens("x"))
    assert len(plain) >= 3
    for text in [control[0], control[-1], "".join(control[:9]), "<|im_end|>", "<|eot_id|>"]:
        found = tokens(f"x{text}y")
        assert structure(with_tools, found) == plain
        assert b"".join(map(with_tools.piece, found)).count(f"x{text}y".encode()) >= 6


def test_fields_that_are_null_are_as_if_left_out(with_tools: Weights) -> None:
    """LLaMA-3's template checks whether a message has a field tool_calls, not its value."""
    template = ChatTemplate(with_tools)
    nulls: list[dict[str, Any]] = [
        {**turn, "tool_calls": [] if i % 2 else None, "name": None} for i, turn in enumerate(TURNS)
    ]
    assert template.tokens(nulls) == template.tokens(TURNS)


@pytest.mark.parametrize(
    ("given", "arguments"),
    [
        ('{"query": ', {"invalid_arguments": '{"query": '}),
        ("[1]", {"invalid_arguments": "[1]"}),
        ("null", {}),
        ("", {}),
        (" ", {}),
        (None, {}),
        ({}, {}),
        ({"a": 1}, {"a": 1}),
    ],
)
def test_arguments_reach_a_template_as_an_object(given: Any, arguments: Any) -> None:
    messages = deepcopy(CALLED)
    messages[1]["tool_calls"][0]["function"]["arguments"] = given
    for taken in (Taken("object"), Taken("text"), None):
        [*_, called, _] = template_input(messages, (), HERMES, taken)["messages"]
        if taken is None:
            assert json.dumps(arguments) in called["content"]
        else:
            found = called["tool_calls"][0]["function"]["arguments"]
            assert (json.loads(found) if taken.arguments == "text" else found) == arguments
    del messages[1]["tool_calls"][0]["function"]["arguments"]
    [_, called, *_] = template_input(messages, (), HERMES, Taken())["messages"]
    assert called["tool_calls"][0]["function"]["arguments"] == {}


NESTED: list[Any] = reduce(lambda inner, _: [inner], range(100_000), [])


@pytest.mark.parametrize(
    ("messages", "complaint"),
    [
        (CALLED[:2], "last message"),
        ([*CALLED[:1], {"role": "assistant", "tool_calls": [{"name": "search"}]}], "tool call"),
        ([*CALLED[:1], {"role": "assistant", "content": None}], "content"),
        ([{"role": "user", "content": "x", "name": b"y"}], "JSON"),
        ([{"role": "user", "content": "x", "name": NESTED}], "nested"),
    ],
)
def test_messages_that_are_malformed(
    with_tools: Weights, messages: list[dict[str, Any]], complaint: str
) -> None:
    with pytest.raises(PromptError, match=complaint):
        ChatTemplate(with_tools).tokens(messages)


def test_no_more_of_messages_is_tokenized_than_overflows_every_context(tmp_path: Path) -> None:
    """All of a million characters would take minutes. A raw text is tokenized whole."""
    template = "{% for i in range(1000) %}{% for j in range(1000) %}é{% endfor %}{% endfor %}"
    weights = Weights(write_scripted(tmp_path / "x.gguf", template, {"<assistant>": ["a"]}))
    longer = 60_000
    assert longer > (weights.n_ctx_train + 1) * weights.longest_token
    tokens = ChatTemplate(weights).tokens([{"role": "user", "content": "x"}])
    assert weights.n_ctx_train < len(tokens) < 2 * longer
    assert len(ChatTemplate(weights).tokens("é" * longer)) >= 2 * longer


def test_the_switch_for_reasoning(weights: Weights) -> None:
    template = ChatTemplate(weights)
    turns = [{"role": "user", "content": "2 + 2?"}]

    def prompt(enable_thinking: bool | None) -> bytes:
        return b"".join(weights.piece(token) for token in template.tokens(turns, enable_thinking))

    reasons = weights.path.name == "qwen3.gguf"
    assert template.can_reason == template.has_thinking_switch == reasons
    if reasons:
        assert prompt(None) == prompt(True)
    else:
        with pytest.raises(ValueError, match="enable_thinking"):
            prompt(True)
    assert prompt(False) == prompt(None) + (b"<think>\n\n</think>\n\n" if reasons else b"")
    assert not any(template.opens_reasoning(template.tokens(turns, switch)) for switch in (None, False))
    begun = weights.tokenize("<think>\n", add_special=False, parse_special=True)
    assert template.opens_reasoning([*template.tokens(turns), *begun])


@pytest.mark.parametrize(
    ("prefill", "reasons"),
    [("<think>\nhmm", True), ("<think>\nhmm</think>\n\nSo", False), ("So", False), ("", False)],
)
@pytest.mark.parametrize("is_prefix", [False, True])
def test_an_answer_goes_on_where_it_was(
    prefill: str, reasons: bool, is_prefix: bool, tiny: Callable[..., Path]
) -> None:
    """In an assistant's message at the end, or in tokens that the answer begins with."""
    with load_model(tiny(template="{{ '<think>' if false }}{{ messages[0].content }}"), trust=True) as model:
        tokens = model.tokenize(prefill) if is_prefix else []
        turns = [TURNS[1], *([] if is_prefix else [{"role": "assistant", "content": prefill}])]
        assert goes_on_in_reasoning(model, turns, tokens) is reasons


def goes_on_in_reasoning(model: Model, turns: list[dict[str, str]], prefix: list[int]) -> bool:
    [token] = model.tokenize(" x")
    only = Constraints(logit_bias={token: 1000.0})
    reply = model.chat(turns, prefix=prefix, max_tokens=1, constraints=only)
    assert reply.read() == reply.reasoning + reply.content == " x"
    return reply.reasoning == " x"


def test_an_answer_goes_on_in_reasoning_that_the_template_opens(tiny: Callable[..., Path]) -> None:
    with load_model(tiny(template="{{ messages[0].content }}<think>\n"), trust=True) as model:
        for prefill, thought, reasons in [
            ("So", "", False),
            ("hmm</think>So", "", False),
            ("So", "hmm", False),
            ("", "hmm", True),
        ]:
            turns = [TURNS[1], {"role": "assistant", "content": prefill, "reasoning_content": thought}]
            assert goes_on_in_reasoning(model, turns, []) is reasons
            prompt = model.apply_chat_template(turns)
            assert prompt.count("</think>") == (not reasons)
            assert prompt.endswith(
                f"{thought}\n</think>\n\n{prefill}" if "</" not in prefill and prefill else prefill
            )


MARKUP = ("<tool_call>", "</tool_call>", "<think>", "</think>", "<|note|>", "<b>")
MARKED = """{% for m in messages %}<tool_call>{{ m.role }}</tool_call>{{ m.content }}{% endfor %}{{
'<think>' if false }}<assistant>"""


@pytest.fixture(scope="module")
def with_markup(tmp_path_factory: pytest.TempPathFactory) -> Weights:
    """A vocabulary with user-defined tokens, two of which the template writes."""
    path = tmp_path_factory.mktemp("models") / "markup.gguf"
    return Weights(write_scripted(path, MARKED, {"<assistant>": MARKUP}))


def test_user_defined_tokens_that_people_type_are_text(with_markup: Weights) -> None:
    """What a template writes stays markup, and so does what the model wrote; HTML is text."""
    template, weights = ChatTemplate(with_markup), with_markup
    ids = {text: weights.tokenize(text, add_special=False, parse_special=False)[0] for text in MARKUP}
    plain = [ids["<tool_call>"], ids["</tool_call>"]]
    everything = "x".join(MARKUP)

    def markup(*messages: dict[str, Any], **options: Any) -> list[int]:
        return [token for token in template.tokens(messages, **options) if token in ids.values()]

    user = {"role": "user", "content": everything}
    prompt = b"".join(map(weights.piece, template.tokens([user]))).decode()
    assert everything in prompt
    assert markup(user) == [*plain, ids["<b>"]]
    assert markup({"role": "tool", "content": "</tool_call><think>"}) == plain
    own = {"role": "assistant", "content": "<think>a</think>"}
    thought = [ids["<think>"], ids["</think>"]]
    assert markup(own, {"role": "user", "content": "x"}) == [*plain, *thought, *plain]
    assert markup({"role": "user", "content": "x"}, own) == [*plain, *thought], "a prefill"


def test_overlapping_control_tokens_are_all_broken() -> None:
    pattern = markup_pattern(("<|a", "a|>", "<|im_end|>", "x"))
    assert pattern.sub(r"\g<0>^", "<|a|> <|im_end|> x") == "<^|a^|> <^|im_end|> x"
    assert markup_pattern(()).sub("^", "anything") == "anything"


def test_no_template_is_plain_turns(tiny: Callable[..., Path], caplog: pytest.LogCaptureFixture) -> None:
    model = load_model(str(tiny(template=None)))
    assert "no chat template" in caplog.text
    text = b"".join(model.weights.piece(token) for token in model.prompt_tokens(TURNS)).decode()
    assert text == (
        "System: You are brief.\n\nUser: Hello {name}, 100% of <b>you</b>!\nAssistant: Hi.\n"
        "User: 日本語 😀\n\n  indented \nAssistant:"
    )
    assert ChatTemplate(model.weights).stop(TURNS) == ("\nUser:",)
    assert len("".join(model.chat(TURNS, temperature=5.0, seed=1, max_tokens=5))) > 0


def test_a_template_and_variables_of_ones_own(
    tiny: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rendering, "SECONDS", 1)
    template = "{{ messages[0].content }} {{ who }} {{ effort }}{% if who == 'me' %}" + LOOP + "{% endif %}"
    variables = {"who": "you", "effort": ["low"]}
    with load_model(tiny(), chat_template=template, template_kwargs=variables) as model:
        assert model.chat_template == template
        assert model.apply_chat_template(HELLO) == "Hello you ['low']"
        high = {"effort": "high"}
        assert model.apply_chat_template(HELLO, template_kwargs=high) == "Hello you high"
        prompt = model.prompt_tokens(HELLO, template_kwargs=high)
        assert model.chat(HELLO, template_kwargs=high, max_tokens=1).prompt_tokens == len(prompt)
        [answer] = model.generate(["Hello"], template_kwargs=high, max_tokens=1)
        assert answer.prompt_tokens == len(prompt) != len(model.prompt_tokens(HELLO))
        with pytest.raises(MinkError, match="1 s"):
            model.prompt_tokens(HELLO, template_kwargs={"who": "me"})


ID = "{{ call.id | length }}{{ messages[2].tool_call_id == call.id }}"


@pytest.mark.parametrize(
    ("shown", "calls"),
    [
        ("{{ call.function.arguments | tojson }}", '{"query": "rain é"}'),
        ("{{ '' + call.function.arguments }}", '{"query": "rain é"}'),
        ("{{ call.function.arguments }}", '{"query": "rain é"}'),
        (
            "{% if call.id | length != 9 %}{{ raise_exception('id') }}{% endif %}"
            "{{ call.function.arguments | tojson }}</c:all>" + ID,
            '{"query": "rain é"}</c:all>9True',
        ),
    ],
)
@pytest.mark.parametrize("result", ["{{ m.content }}", "{{ m.content[0].text }}"])
def test_calls_are_written_as_the_template_takes_them(
    shown: str, calls: str, result: str, tiny: Callable[..., Path]
) -> None:
    """As objects or as JSON, with ids of nine letters, results as text or as parts: found by rendering."""
    template = (
        "{# tools <tool_call> #}{% for m in messages %}{% if m.role == 'tool' %}" + result + "{% else %}"
        "{{ m.content }}{% endif %};"
        "{% for call in m.tool_calls or [] %}<c:all>{{ call.function.name }}<a:rgs>"
        + shown
        + "</c:all>{% endfor %}{% endfor %}"
    )
    with load_model(tiny(template=template), trust=True) as model:
        prompt = model.apply_chat_template(CALLED)
        assert prompt == f"Look up rain.;;<c:all>search<a:rgs>{calls}</c:all>It falls.;"


@pytest.mark.parametrize(
    "shown", ["{{ m.content if m.role != 'tool' }}{{ m.tool_calls }}", "{{ m.content }}"]
)
def test_calls_and_results_that_a_template_would_lose_are_text(shown: str, tiny: Callable[..., Path]) -> None:
    template = "{# tools <tool_call> #}{% for m in messages %}" + shown + "{% endfor %}"
    with load_model(tiny(template=template), trust=True) as model:
        prompt = model.apply_chat_template(CALLED)
    assert '<tool_call>\n{"name": "search", "arguments": {"query": "rain é"}}' in prompt
    assert "It falls." in prompt


ALL_PARTS = (
    "{% for m in messages %}<{{ m.role }}>{% for c in m.content %}"
    "{% if c.type == 'text' %}{{ c.text }}{% endif %}{% endfor %}{% endfor %}<assistant>"
)


@pytest.mark.parametrize(
    "template",
    [
        ALL_PARTS,
        ALL_PARTS.replace("m.content %}", "(m.content if m.role == 'user' else [{'type': 'text', "
                          "'text': m.content}]) %}"),
        "{% for m in messages %}<{{ m.role }}>{{ m.content[0].text }}{% endfor %}<assistant>",
        "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>",
        "{% for m in messages %}<{{ m.role }}>{% if m.content is string %}{{ m.content }}{% else %}"
        "{{ m.content[0].text }}{% endif %}{% endfor %}<assistant>",
    ],
)  # fmt: skip
def test_contents_are_texts_or_parts_as_the_template_takes_them(
    template: str, tiny: Callable[..., Path]
) -> None:
    with load_model(tiny(template=template), trust=True) as model:
        shown = "<system>You are brief.<user>Hello {name}, 100% of <b>you</b>!<assistant>Hi.<user>日本語"
        assert model.apply_chat_template(TURNS).startswith(shown)
        assert b"".join(map(model.weights.piece, model.prompt_tokens(TURNS))).decode().startswith(shown)
        begun = model.apply_chat_template([*TURNS, {"role": "assistant", "content": "So"}])
        assert begun.endswith("<assistant>So")


def test_a_template_that_does_not_show_what_users_write_is_refused(tiny: Callable[..., Path]) -> None:
    template = "{% for m in messages %}{{ m.content.body }}{% endfor %}<assistant>"
    with (
        load_model(tiny(template=template), trust=True) as model,
        pytest.raises(ValueError, match="chat_template"),
    ):
        model.prompt_tokens(TURNS)


# Rendering as Hugging Face's transformers does, and stopping templates that do not end

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
    "a generator's JSON": ("{{ [{'a': 1}] | map(attribute='a') | tojson }}", {}, "[1]"),
    "lists that grow": ("{% set x = [] %}{% set _ = x.append(1) %}{{ x }}", {}, "[1]"),
    "tools that must be a list": ("{% for tool in tools %}{% endfor %}{{ tools }}", {}, "[]"),
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


@pytest.mark.parametrize(
    ("name", "in_process"), [*((name, True) for name in FEATURES), ("the date", False), ("tools", False)]
)
def test_features_of_templates(name: str, in_process: bool) -> None:
    template, options, text = FEATURES[name]
    assert renderer(template, date(2025, 3, 1), in_process)(HELLO, **options) == text


@pytest.mark.parametrize("in_process", [True, False])
def test_what_a_template_changes_is_its_own(in_process: bool) -> None:
    template = "{{ messages.append(1) }}{{ messages[0].update(content='x') }}{{ messages | length }}"
    messages, render = [dict(HELLO[0])], renderer(template, in_process=in_process)
    assert render(messages) == render(messages) == "NoneNone2"
    assert messages == HELLO


@pytest.mark.parametrize("in_process", [True, False])
def test_the_date_is_todays_unless_it_is_fixed(in_process: bool) -> None:
    before = date.today()
    rendered = renderer("{{ strftime_now('%Y-%m-%d') }}", in_process=in_process)(HELLO)
    assert before.isoformat() <= rendered <= date.today().isoformat()


@pytest.mark.parametrize(
    ("template", "complaint"),
    [
        ("{% for %}", "template is broken: "),
        (
            "{{ raise_exception('no system prompt') }}",
            "refuses this conversation: no system prompt$",
        ),
        ("{{ raise_exception('a\n  b ' * 1000) }}", "refuses this conversation: (a b )+a?…$"),
        ("{{ messages[7].content }}", "refuses this conversation: "),
        ("{{ ''.__class__.__mro__ }}", "refuses this conversation: .* unsafe"),
        ("{% include '/etc/passwd' %}", "refuses this conversation: "),
        (
            "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
            "refuses this conversation: .*recursion",
        ),
        ("{{ 'a' * 70000000 }}", "template was stopped: it wrote 70,000,000 characters$"),
    ],
)
def test_templates_that_give_no_prompt(template: str, complaint: str) -> None:
    with pytest.raises(MinkError, match=complaint):
        renderer(template, in_process=True)(HELLO)


LOOP = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
DOUBLING = "{% set ns = namespace(s='a') %}{% for i in range(99) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}"
HOSTILE = {
    "a loop": (LOOP, "timed out after 1 s"),
    "a long string": ("{{ 'a' * (10 ** 10 * (messages | length)) }}", "memory|Memory"),
    "a long prompt": ("{{ 'a' * 10 ** 8 }}", "it wrote 100,000,0.. characters"),
    "doubling": (DOUBLING, "memory|Memory"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", HOSTILE)
def test_templates_that_do_not_end_are_stopped(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even if they wait for a later turn; a conversation before that turn can still be rendered."""
    template, complaint = HOSTILE[name]
    monkeypatch.setattr(rendering, "SECONDS", 1 if "1 s" in complaint else 30)
    render = renderer("{% if messages | length > 1 %}" + template + "{% endif %}fine")
    assert render(HELLO) == "fine"
    with pytest.raises(MinkError, match=f"template was stopped: .*({complaint})"):
        render(HELLO * 2)
    assert render(HELLO) == "fine"


def test_a_template_that_does_not_end_while_it_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendering, "SECONDS", 1)
    with pytest.raises(MinkError, match="1 s"):
        renderer("{{ 9 ** (9 ** (9 ** 9)) }}")(HELLO)


def test_no_child_starts_before_the_first_prompt_or_for_a_trusted_template(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: pytest.fail("a child was started"))
    render = renderer("x")
    assert renderer("x", in_process=True)(HELLO) == "x"
    monkeypatch.undo()
    assert render(HELLO) == "x"
