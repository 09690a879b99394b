"""Render a chat template, in a child process with a limit of time and memory.

A template is a stranger's program: Jinja's sandbox keeps it from files and code, but not from a loop that
never ends, nor from `'a' * 10**10`. A limit inside this process could not stop the second, and one trial
beforehand would prove nothing: the template sees the conversation, and can wait for its tenth turn. So one
child renders all prompts of a model.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import date as Date
from datetime import datetime
from functools import lru_cache, partial
from typing import Any

from mink_local.sandbox import GIB, SandboxError, Server, serve

SECONDS = 5  # an honest template takes less than a millisecond
_MOST_CHARACTERS = 1 << 26
_MOST_OF_A_REASON = 300  # characters: a template may raise a whole conversation


class TemplateError(Exception):
    """A template gives no prompt; the text ends a sentence whose subject is the template."""


class Renderer:
    """Renders a chat template, in a child process that starts with the first prompt.

    The template, Jinja source, is told `date`, None for today's. `in_process` renders in this process and
    without limits: for a template that is trusted.
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
        self.close: Callable[[], None] = lambda: None
        if in_process:
            self._answer = _begin(constants)
        else:
            server = Server(__name__, memory=GIB, first=constants)
            self._answer = lambda question: server.ask(question, SECONDS)
            self.close = server.close

    def __call__(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> str:
        """Return the prompt of a conversation.

        `options` are further names that the template may use, such as `enable_thinking`. Raises TemplateError
        if the template is broken, refuses the conversation or does not end.
        """
        try:
            answer = self._answer([list(messages), options])
        except SandboxError as error:
            raise TemplateError(f"was stopped: it {error}") from None
        if "error" in answer:
            raise TemplateError(answer["error"])
        return str(answer["text"])


def _begin(constants: Sequence[Any]) -> Any:
    return partial(_answer, *constants)


def _answer(
    template: str, date: str | None, bos_token: str, eos_token: str, question: Sequence[Any]
) -> dict[str, str]:
    """Return the text of a prompt, or what is wrong; both within the limits of a question."""
    messages, options = question
    try:
        formatter = _formatter(template, date, bos_token, eos_token)
    except Exception as error:
        return {"error": f"is broken: {_reason(error)}"}
    try:
        text = str(formatter(messages=messages, **options).prompt)
    except MemoryError:
        raise
    except Exception as error:
        return {"error": f"refuses this conversation: {_reason(error)}"}
    if len(text) > _MOST_CHARACTERS:
        return {"error": f"was stopped: it wrote {len(text):,} characters"}
    return {"text": text}


def _reason(error: Exception) -> str:
    """Return the text of an error in one short line."""
    text = " ".join(str(error).split())
    return text if len(text) <= _MOST_OF_A_REASON else f"{text[:_MOST_OF_A_REASON]}…"


@lru_cache(maxsize=8)
def _formatter(template: str, date: str | None, bos_token: str, eos_token: str) -> Any:
    from llama_cpp.llama_chat_format import Jinja2ChatFormatter  # half a second, which only the child needs

    formatter = Jinja2ChatFormatter(template, eos_token, bos_token)
    if date:
        formatter.strftime_now = datetime.fromisoformat(date).strftime
    return formatter


if __name__ == "__main__":
    import llama_cpp.llama_chat_format  # noqa: F401  # now, not within the time of the first prompt

    serve(_begin)
