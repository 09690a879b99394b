"""Print questions that ask for functions of Python's standard library, used for docs/results.md.

.venv/bin/python scripts/python_functions.py > python_functions.jsonl
mink-eval run python_functions.jsonl --model REFERENCE …
mink-eval frontier --texts mink-eval-run …
"""

import inspect
import json
from collections.abc import Iterator
from importlib import import_module

MODULES = """
statistics heapq bisect textwrap functools shutil posixpath random re difflib calendar colorsys fractions
json keyword linecache tokenize ast dis string shlex fnmatch glob tempfile hashlib hmac base64 binascii
quopri html urllib.parse ipaddress uuid copy pprint reprlib operator contextlib inspect types collections
itertools datetime math zlib struct csv configparser timeit traceback unicodedata stat filecmp pickle gzip
bz2 locale getopt
"""
SHORTEST, LONGEST = 60, 600  # docstring length in characters


def prompts() -> Iterator[str]:
    """Yield a prompt for every public function with a docstring of suitable length, once per name."""
    seen = set()
    for module in map(import_module, MODULES.split()):
        for name, function in sorted(vars(module).items()):
            if name.startswith("_") or not inspect.isfunction(function) or name in seen:
                continue
            text = inspect.getdoc(function) or ""
            signature = str(inspect.signature(function))
            shows_objects = "<" in signature or ("=" in signature and "object" in signature)
            if (
                function.__module__ == module.__name__
                and SHORTEST <= len(text) <= LONGEST
                and not shows_objects
            ):
                seen.add(name)
                body = "\n".join(f"    {line}" if line else line for line in text.split("\n")).strip()
                head = f'def {name}{signature}:\n    """{body}\n    """\n'
                yield f"Write this Python function. Answer with the code.\n\n{head}"


if __name__ == "__main__":
    for prompt in prompts():
        print(json.dumps({"question": prompt}))
