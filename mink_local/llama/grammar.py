"""GBNF grammars: made from JSON schemas, and tried in a child process before llama.cpp gets them.

llama.cpp refuses most broken grammars, but some bring the process down: `"a"{2,1}` takes all the memory
there is, a left recursion behind a rule that can be empty is followed for ever, thousands of nested
parentheses overflow the stack. `python -m mink_local.llama.grammar MODEL` is the child that finds out, with
the grammar on its standard input and llama.cpp's complaint, if any, on its standard error.
"""

import json
import re
import subprocess
import sys
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from llama_cpp import llama_cpp as C
from llama_cpp.llama_grammar import json_schema_to_gbnf

from mink_local.models.trust import limit_memory, run_in_child

ROOT = "root"
_SECONDS = 20.0  # an honest grammar takes a few milliseconds, a large vocabulary half a second
_RULE = re.compile(r"([a-zA-Z0-9-]+)\s*::=")
_REFUSED = 3


def from_json_schema(schema: str | Mapping[str, Any]) -> str:
    """The grammar of the JSON texts that `schema` allows, by llama-cpp-python's own converter.

    Raises ValueError where it cannot convert the schema.
    """
    try:
        text = schema if isinstance(schema, str) else json.dumps(schema)
        return str(json_schema_to_gbnf(text))
    except Exception as error:  # the converter raises whatever its Python trips over
        raise ValueError(f"json_schema cannot be made into a grammar: {error or repr(error)}") from error


@lru_cache(maxsize=64)
def vet(grammar: str, model: Path) -> None:
    """Return if llama.cpp can be trusted with this grammar over the vocabulary of `model`.

    Raises ValueError with the reason if not.
    """
    try:
        child = run_in_child("mink_local.llama.grammar", model, _SECONDS, grammar.encode("utf-8", "replace"))
    except subprocess.TimeoutExpired:
        raise ValueError(
            f"the grammar was refused: llama.cpp was not done with it after {_SECONDS:.0f} s"
        ) from None
    if child.returncode == _REFUSED:
        raise ValueError(f"the grammar does not parse: {_reason(child.stderr.decode('utf-8', 'replace'))}")
    if child.returncode:
        raise ValueError("the grammar was refused: it makes llama.cpp crash or run out of memory")


def _reason(complaints: str) -> str:
    """llama.cpp's first complaint, without the name of the function that it is from."""
    lines = [line for line in complaints.splitlines() if line.strip()]
    first = next((line for line in lines if "grammar" in line), "llama.cpp gave no reason")
    return re.sub(r"^(parse: )?(error parsing grammar: )?", "", first)


def _try(grammar: bytes, model: Path) -> bool:
    """Whether llama.cpp takes the grammar, after having started at every one of its rules.

    Starting at a rule follows it to its first characters, and so finds a recursion that never ends.
    """
    params = C.llama_model_default_params()
    params.vocab_only = True
    vocab = C.llama_model_get_vocab(C.llama_model_load_from_file(bytes(model), params))
    if not C.llama_sampler_init_grammar(vocab, grammar, ROOT.encode()):
        return False
    for rule in set(_RULE.findall(grammar.decode("utf-8"))):
        C.llama_sampler_init_grammar(vocab, grammar, rule.encode())
    return True


if __name__ == "__main__":
    limit_memory(0)
    if not _try(sys.stdin.buffer.read(), Path(sys.argv[1])):
        sys.exit(_REFUSED)
