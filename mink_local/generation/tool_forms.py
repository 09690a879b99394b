"""Forms in which models write calls of tools, and grammars that force a call."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mink_local.generation.tool_calls import CLOSE, OPEN
from mink_local.llama.grammar import from_json_schema

NO_PARAMETERS = {"type": "object", "properties": {}}
_RULE_NAME = re.compile(  # after texts and classes of characters, which may look like one
    r'"(?:\\.|[^"\\])*"|\[(?:\\.|[^\]\\])*\]|(?P<name>[a-zA-Z0-9-]+)'
)


@dataclass(frozen=True)
class CallForm:
    """The texts before the name, between name and arguments, and after them; what is between two calls.

    Without a separator there is one call in a message.
    """

    before: str
    between: str
    after: str
    separator: str | None = None

    def write(self, name: str, arguments: str) -> str:
        """Return a call as the model writes it; the arguments are JSON."""
        return f"{self.before}{name}{self.between}{arguments}{self.after}"


HERMES = CallForm(f'{OPEN}\n{{"name": "', '", "arguments": ', f"}}\n{CLOSE}", separator="\n")
LLAMA = CallForm('{"name": "', '", "parameters": ', "}")


def form_of(chat_template: str) -> CallForm | None:
    """Return the form of calls in a chat template that shows tools, or None if it is another one."""
    if OPEN in chat_template:
        return None if "<function=" in chat_template else HERMES  # Qwen3-Coder writes no JSON
    return LLAMA if '"parameters": ' in chat_template else None


def calls_grammar(
    form: CallForm,
    parameters: Mapping[str, Mapping[str, Any]],
    *,
    is_parallel: bool,
    answer: Mapping[str, Any] | None = None,
) -> str:
    """Return a GBNF grammar of calls of tools.

    Args:
        form: How the model writes them.
        parameters: The JSON schemas of the tools' parameters by name.
        is_parallel: Whether there may be several calls, if the form has them.
        answer: A JSON schema of an answer that may come in place of a call.

    Raises:
        ValueError: A schema cannot be converted; the text begins with the tool's name.
    """
    calls, rules = [], []
    for i, (name, schema) in enumerate(parameters.items()):
        try:
            rules.append(_prefixed(from_json_schema(schema or NO_PARAMETERS), f"tool-{i}-"))
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from error
        before, after = json.dumps(f"{form.before}{name}{form.between}"), json.dumps(form.after)
        calls.append(f"{before} tool-{i}-root {after}")
    root = "call"
    if is_parallel and form.separator is not None:
        root += f" ({json.dumps(form.separator)} call)*"
    if answer is not None:
        root += " | answer-root"
        rules.append(_prefixed(from_json_schema(answer), "answer-"))
    return "\n".join([f"root ::= {root}", f"call ::= {' | '.join(calls)}", *rules])


def _prefixed(grammar: str, prefix: str) -> str:
    """Return a grammar whose rules' names begin with a prefix, so that it fits beside others."""
    return _RULE_NAME.sub(lambda match: f"{prefix}{match[0]}" if match["name"] else match[0], grammar)
