"""Renders chat templates, in a child process with limits on time and memory.

A template is a stranger's program: Jinja's sandbox keeps it from files and code, but not from an endless loop
or from `'a' * 10**10`. A limit inside this process could not stop the latter, and a trial beforehand would
prove nothing: the template sees the conversation, and can wait for its tenth turn. So one child process
renders all of a model's prompts.
"""

import codecs
import json
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from datetime import date as Date
from datetime import datetime
from functools import lru_cache, partial
from typing import Any

from jinja2 import Template, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import SandboxedEnvironment

from mink_local.checks import shown
from mink_local.errors import MinkError, OptionError
from mink_local.sandbox import GIB, Child, SandboxError, in_a_line, serve

SECONDS = 5  # an honest template takes less than a millisecond
_MOST_CHARACTERS = 1 << 26
_NOTHING: tuple[Any, ...] = (None, [], "[]")  # for no tools: some templates refuse None, or want text
codecs.lookup("unicode_escape")  # Jinja's lexer imports it while Numba is imported: see `load_model`


def check_template(source: str) -> None:
    """Raise OptionError unless a text is Jinja source that reads messages."""
    if not isinstance(source, str) or "messages" not in source:
        raise OptionError("chat_template", f"must be Jinja source that uses `messages`, not {shown(source)}")
    try:
        _compiled(source)
    except Exception as error:
        raise OptionError("chat_template", f"is broken: {in_a_line(str(error))}") from None


class RefusalError(MinkError):
    """A chat template refuses a conversation."""


class Renderer:
    """Renders a chat template in a child process, which starts with the first prompt.

    Args:
        template: Jinja source.
        date: The date given to the template; None for today.
        bos_token, eos_token: Texts of the tokens that begin and end a sequence.
        in_process: Render in this process, without limits: for trusted templates.
    """

    def __init__(
        self,
        template: str,
        date: Date | None = None,
        *,
        bos_token: str,
        eos_token: str,
        in_process: bool = False,
    ) -> None:
        constants = [template, date and date.isoformat(), bos_token, eos_token]
        self._is_closed = False
        self._child = None if in_process else Child(__name__, memory=GIB, first=constants)
        self._render = _begin(constants)

    def close(self) -> None:
        """End the child process, if there is one; nothing is rendered any more."""
        self._is_closed = True
        if self._child is not None:
            self._child.close()

    def __call__(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> str:
        """Return the prompt for a conversation.

        `options` are further variables for the template, such as `enable_thinking`. Raises MinkError if
        the template is broken or does not end, RefusalError if it refuses the conversation.
        """
        if self._is_closed:
            raise MinkError("the chat template is closed with its model")
        try:
            question = [list(messages), options]
            answer = self._child.ask(question, SECONDS) if self._child else self._render(question)
        except SandboxError as error:
            raise MinkError(f"the chat template was stopped: it {error}") from None
        if "refusal" in answer:
            raise RefusalError(f"the chat template refuses this conversation: {answer['refusal']}")
        if "error" in answer:
            raise MinkError(f"the chat template {answer['error']}")
        return str(answer["text"])


def _begin(constants: Sequence[Any]) -> Any:
    return partial(_answer, *constants)


def _answer(
    source: str, date: str | None, bos_token: str, eos_token: str, question: Sequence[Any]
) -> dict[str, str]:
    """Return a prompt's text, or what is wrong, within the limits of a question."""
    messages, options = question
    today = datetime.fromisoformat(date) if date else datetime.now()
    try:
        template = _compiled(source)
    except Exception as error:
        return {"error": f"is broken: {in_a_line(str(error))}"}
    given = {"messages": messages, "bos_token": bos_token, "eos_token": eos_token, **options}
    text, refusal = "", ""
    listed = json.dumps(options["tools"], indent=4, ensure_ascii=False) if options.get("tools") else ""
    for nothing in _NOTHING:
        names = {
            "functions": listed or nothing,
            "datetime": today.strftime("%b %d %Y"),
            "function_call": None,
        }
        names |= {"tools": nothing, "tool_choice": None}
        # Copied, since templates change what they are given: Kimi K2's appends to its lists.
        names |= deepcopy(given)
        try:
            text = template.render(
                add_generation_prompt=True, raise_exception=_refuse, strftime_now=today.strftime, **names
            )
            break
        except MemoryError:
            raise
        except Exception as error:
            refusal = refusal or in_a_line(str(error)) or type(error).__name__
    else:
        return {"refusal": refusal}
    if len(text) > _MOST_CHARACTERS:
        return {"error": f"was stopped: it wrote {len(text):,} characters"}
    return {"text": text}


def _refuse(message: str) -> None:
    raise ValueError(message)


def _listed(value: Any) -> list[Any]:
    """Return the items of what Jinja's filters, such as `map`, yield."""
    if isinstance(value, Iterator):
        return list(value)
    raise TypeError(f"Object of type {type(value).__name__} is not JSON serializable")


class _GenerationTag(Extension):
    """Ignores `{% generation %}`, which marks the text that models are trained on."""

    tags = {"generation"}  # noqa: RUF012  # as in the base class

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        parser.stream.skip(1)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


@lru_cache(maxsize=8)
def _compiled(source: str) -> Template:
    """Compile a template the way Hugging Face's transformers and llama-cpp-python do."""
    environment = SandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, loopcontrols]
    )
    environment.filters["tojson"] = partial(json.dumps, ensure_ascii=False, default=_listed)
    return environment.from_string(source)


if __name__ == "__main__":
    serve(_begin)
