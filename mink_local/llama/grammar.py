"""GBNF grammars: made from JSON schemas, and tried in a child process before llama.cpp gets them.

llama.cpp refuses most broken grammars, but some end the process: `"a"{2,1}` takes all memory, a left
recursion behind a rule that can be empty is followed for ever, a rule that is nothing but recursion leaves no
token to compare, thousands of nested parentheses overflow the stack. The child process, which runs this
module too, finds out.
"""

import ctypes
import json
import os
import re
import tempfile
import threading
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from llama_cpp import llama_cpp as C
from llama_cpp.llama_grammar import json_schema_to_gbnf

from mink_local.llama.json_schema import tidied
from mink_local.sandbox import GIB, SandboxError, ask, serve

ROOT = b"root"
_SECONDS = 20.0  # an honest grammar takes a few milliseconds, a large vocabulary half a second
_LONGEST_COMPLAINT = 300  # characters
_NEGATED = re.compile(r'"(?:\\.|[^"\\])*"|(\[\^)')  # after texts, which may contain it
_TRYING = [threading.Lock() for _ in range(16)]
_RULE = re.compile(r"([a-zA-Z0-9-]+)\s*::=")


def from_json_schema(schema: str | Mapping[str, Any]) -> str:
    """Return the grammar of the JSON texts that a schema allows, by llama-cpp-python's own converter.

    Raises ValueError if the schema cannot be converted, or its grammar would be too large.
    """
    try:
        members = json.loads(schema) if isinstance(schema, str) else schema
        converted = str(json_schema_to_gbnf(json.dumps(tidied(members))))
        # The converter lets line breaks into strings, and quotes if a pattern has a dot.
        return _NEGATED.sub(lambda match: r'[^"\\\x00-\x1F' if match[1] else match[0], converted)
    except (AssertionError, ValueError) as error:
        reason = str(error)
    except RecursionError:
        reason = "it is nested too deep"
    except Exception:  # the converter's Python trips over a list for an object, for example
        reason = "it is malformed"
    raise ValueError(f"json_schema cannot be made into a grammar: {_in_a_line(reason)}")


def check(grammar: str, model: Path) -> None:
    """Try a grammar over the vocabulary of a model file in a child process; any thread may.

    Raises ValueError if the grammar does not parse, or makes llama.cpp crash; ChildStartError if the child
    process does not start.
    """
    try:
        # Threads that come with one grammar wait for the first of them, and those with others seldom.
        with _TRYING[hash(grammar) % len(_TRYING)]:
            complaint = _tried(grammar, model)
    except SandboxError as error:
        raise ValueError(f"the grammar cannot be used: llama.cpp {error}") from None
    if complaint is not None:
        raise ValueError(f"the grammar does not parse: {complaint}")


@lru_cache(maxsize=64)
def _tried(grammar: str, model: Path) -> str | None:
    """Return the complaint of a child process about a grammar, or None."""
    complaint: str | None = ask(
        "mink_local.llama.grammar", [str(model.absolute()), grammar], seconds=_SECONDS, memory=2 * GIB
    )
    return complaint


def _complaint(question: tuple[str, str]) -> str | None:
    """Return llama.cpp's first complaint about a grammar, or None."""
    model, grammar = question[0], question[1].encode("utf-8", "replace")
    params = C.llama_model_default_params()
    params.vocab_only = True
    no_device = (ctypes.c_void_p * 1)(None)
    params.devices = ctypes.cast(no_device, ctypes.c_void_p)
    vocab = C.llama_model_get_vocab(C.llama_model_load_from_file(os.fsencode(model), params))
    with tempfile.TemporaryFile() as log:
        os.dup2(log.fileno(), 2)  # where llama.cpp complains
        if C.llama_sampler_init_grammar(vocab, grammar, ROOT):
            # Starting at a rule follows it to its first characters, and so finds a recursion without end. If
            # there are no first characters, applying it ends the process, whatever the tokens are.
            no_tokens = C.llama_token_data_array()
            for rule in set(_RULE.findall(question[1])):
                if sampler := C.llama_sampler_init_grammar(vocab, grammar, rule.encode()):
                    C.llama_sampler_apply(sampler, ctypes.byref(no_tokens))
            return None
        log.seek(0)
        lines = log.read().decode("utf-8", "replace").splitlines()
    first = next((line for line in lines if "grammar" in line), "llama.cpp gives no reason")
    return _in_a_line(re.sub(r"^(parse: )?(error parsing grammar: )?", "", first))


def _in_a_line(text: str) -> str:
    """Return a complaint in one short line: it may quote a whole schema or grammar."""
    text = " ".join(text.split())
    return text if len(text) <= _LONGEST_COMPLAINT else f"{text[:_LONGEST_COMPLAINT]}…"


if __name__ == "__main__":
    os.environ["GGML_NO_BACKTRACE"] = "1"  # a crash starts no debugger
    serve(lambda _: _complaint)
