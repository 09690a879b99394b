"""Rendering a chat template in a child process, with a limit of time and memory.

A template is a stranger's program: Jinja's sandbox keeps it from files and code, but not from a loop that
never ends, nor from `'a' * 10**10`. A limit inside this process could not stop the second, and one try
beforehand would prove nothing: the template sees the conversation, and can wait for its tenth turn. So all of
a model's prompts are rendered by one child, `python -m mink_local.generation.rendering`, which costs a tenth
of a millisecond each time. It reads and writes JSON, one object a line.
"""

import contextlib
import json
import signal
import subprocess
import sys
import weakref
from collections.abc import Mapping, Sequence
from datetime import date, datetime
from pathlib import Path
from typing import Any

SECONDS = 5  # an honest template takes less than a millisecond
_MEMORY = 1 << 30
_MOST_CHARACTERS = 1 << 26


class TemplateError(Exception):
    """What is wrong with a template, as the end of a sentence that begins with the template."""


class Renderer:
    """A child process that renders one template; it starts at once and is waited for when it is needed."""

    def __init__(self, template: str, today: date | None = None, **constants: str) -> None:
        """today: what the template is told when it asks for the date, by default the truth. constants: names
        that it may use, such as `bos_token`."""
        self._begin = {
            "template": template,
            "today": today and today.isoformat(),
            "constants": constants,
        }
        self._start()

    def _start(self) -> None:
        self._child = subprocess.Popen(
            [sys.executable, "-m", "mink_local.generation.rendering"],
            cwd=Path(__file__).parents[2],  # -m looks there first: nothing else is to be found
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C in the terminal is not meant for it
        )
        self._end = weakref.finalize(self, _end, self._child)
        self._send(self._begin)

    def __call__(self, messages: Sequence[Mapping[str, str]], **options: Any) -> str:
        """The prompt of a conversation. options: further names that the template may use.

        Raises TemplateError where the template is broken, refuses the conversation or does not end.
        """
        if not self._end.alive:
            self._start()
        try:
            self._send({"messages": list(messages), "options": options})
            line = self._child.stdout.readline()  # type: ignore[union-attr]
        except BaseException:  # an answer that nobody waited for would be taken for the next one
            self._end()
            raise
        if not line:
            died_of = self._child.wait()
            self._end()
            if died_of == -signal.SIGALRM:
                raise TemplateError(f"was stopped: it was not done after {SECONDS} seconds")
            raise TemplateError(f"was stopped: it ended its process (status {died_of})")
        answer = json.loads(line)
        if "error" in answer:
            raise TemplateError(answer["error"])
        return str(answer["text"])

    def _send(self, value: Mapping[str, Any]) -> None:
        with contextlib.suppress(BrokenPipeError):  # the child is dead: reading from it will tell
            self._child.stdin.write(json.dumps(value).encode() + b"\n")  # type: ignore[union-attr]
            self._child.stdin.flush()  # type: ignore[union-attr]


def _end(child: "subprocess.Popen[bytes]") -> None:
    child.kill()
    for stream in (child.stdin, child.stdout):
        with contextlib.suppress(OSError):
            stream.close()  # type: ignore[union-attr]
    child.wait()


def _environment(today: str | None) -> Any:
    """Jinja as Hugging Face's transformers sets it up, for which chat templates are written."""
    from jinja2.ext import Extension, loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """{% generation %} marks what a model is trained on: nothing to do."""

        tags = {"generation"}  # noqa: RUF012

        def parse(self, parser: Any) -> Any:
            parser.stream.skip(1)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    def tojson(value: Any, ensure_ascii: bool = False, **options: Any) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, **options)

    def raise_exception(message: str) -> None:
        raise ValueError(message)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    now = datetime.fromisoformat(today) if today else None
    environment.globals["strftime_now"] = lambda form: (now or datetime.now()).strftime(form)
    return environment


def _answer(template: Any, constants: dict[str, str], request: dict[str, Any]) -> dict[str, str]:
    signal.alarm(SECONDS)  # nothing handles it: it ends the process in the middle of whatever it does
    try:
        text = template.render(
            messages=request["messages"],
            add_generation_prompt=True,
            tools=None,
            **constants,
            **request["options"],
        )
    except MemoryError:
        return {"error": f"was stopped: it wanted more than {_MEMORY >> 30} GiB of memory"}
    except Exception as error:
        return {"error": f"refuses this conversation: {error}"}
    finally:
        signal.alarm(0)
    if len(text) > _MOST_CHARACTERS:
        return {"error": f"was stopped: it wrote {len(text):,} characters"}
    return {"text": text}


def _serve() -> None:
    import resource

    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    begin = json.loads(sys.stdin.buffer.readline())
    broken = None
    signal.alarm(SECONDS)
    try:
        template = _environment(begin["today"]).from_string(begin["template"])
    except Exception as error:
        template, broken = None, {"error": f"is broken: {error}"}
    signal.alarm(0)
    for line in sys.stdin.buffer:
        answer = broken or _answer(template, begin["constants"], json.loads(line))
        sys.stdout.buffer.write(json.dumps(answer).encode() + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    _serve()
