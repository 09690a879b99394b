"""The chat templates of real models that llama.cpp ships: rendered, and read as its own tests read them."""

from collections import defaultdict
from typing import Any

import pytest

from mink_local.generation.format.call_derivation import TOOLS
from mink_local.generation.format.rendering import RefusalError
from tests.support.llama_templates import NAMES, examples, faults, read, template_of

pytestmark = pytest.mark.skipif(not NAMES, reason="LLAMA_CPP_SOURCE names no folder of llama.cpp's source")

USER = {"role": "user", "content": "What is it like in Rome?"}
CALL = {
    "id": "call_0123456789abcdef01234567",
    "type": "function",
    "function": {"name": "get_weather", "arguments": '{"city": "Oslo"}'},
}
HISTORY: list[dict[str, Any]] = [
    USER,
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": CALL["id"], "content": "It snows."},
]
WANTED = (
    *("openai-gpt-oss-120b", "google-gemma-4-31B-it", "google-gemma-4-31B-it-interleaved", "Qwen3.5-4B"),
    *("mistralai-Ministral-3-14B-Reasoning-2512", "LFM2.5-8B-A1B", "LFM2.5-Instruct", "GLM-4.7-Flash"),
    *(
        "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16",
        "ibm-granite-granite-4.0",
        "Kimi-K2-Instruct",
        "Kimi-K2-Thinking",
    ),
    *("deepseek-ai-DeepSeek-V4", "deepseek-ai-DeepSeek-V4-Flash-0731"),
)
"""What people run this year."""


OTHERS = {
    "LFM2.5-8B-A1B": "it does not escape the quotes of texts",
    "MiniMax-M3": "elements are named by the keys of arguments",
    "google-gemma-2-2b-it": "it refuses system messages, and shows no tools",
    "llama-cpp-deepseek-r1": "it drops calls beside text",
    "meetkai-functionary-medium-v3.2": "the prompt opens the first call",
    "muse-glimmer": "a call's name is written twice, and each call is a message",
    "openai-gpt-oss-120b": "it shows text before a call as reasoning",
}


@pytest.mark.parametrize("name", NAMES)
def test_conversations_and_calls_are_fully_right(name: str) -> None:
    """Or they are named here, with the reason."""
    assert bool(faults(template_of(name))) is (name in OTHERS)


@pytest.mark.parametrize("name", NAMES)
def test_a_history_with_a_call_is_rendered(name: str) -> None:
    try:
        prompt = template_of(name).text(HISTORY, tools=TOOLS)
    except RefusalError:  # by the template's own will
        assert name not in WANTED
        return
    for text in (USER["content"], "get_weather", "Oslo", "It snows."):
        assert text in prompt
    assert prompt.index("Oslo") < prompt.index("It snows.")


@pytest.mark.parametrize("name", WANTED)
def test_what_people_run_is_read_as_llama_cpp_reads_it(name: str) -> None:
    template, found = template_of(name), defaultdict(list)
    assert template.style is not None
    for example in examples():
        # Some want reasoning to stay in the content.
        if example.template == name and template.marks.start.strip() not in example.expected.content:
            switch = {"enable_thinking": example.enable_thinking} if template.has_thinking_switch else {}
            got = read(template, example.text, example.tools, **switch)
            found[got == example.expected].append((example.line, example.expected, got))
    assert not found[False]
