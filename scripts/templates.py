"""Show what is derived from the chat templates that llama.cpp ships, and how its examples are read.

LLAMA_CPP_SOURCE names the folder with llama.cpp's source, as in llama-cpp-python's source archive. Printed
for each template: how many of llama.cpp's own examples of model outputs are read as it reads them, the marks
around reasoning, and the form of calls.
"""

import sys
from collections import Counter

from mink_local.generation.format.template import ChatTemplate
from tests.support.llama_templates import NAMES, Example, examples, read, template_of


def is_right(template: ChatTemplate, example: Example) -> bool:
    """Return whether an example is read as llama.cpp reads it."""
    switch = {"enable_thinking": example.enable_thinking} if template.has_thinking_switch else {}
    try:
        return read(template, example.text, example.tools, **switch) == example.expected
    except Exception:  # one row of the table
        return False


def main() -> None:
    """Print the table."""
    if not NAMES:
        sys.exit("set LLAMA_CPP_SOURCE to a folder with llama.cpp's source")
    templates = {name: template_of(name) for name in NAMES}
    counts: Counter[tuple[str, bool]] = Counter(
        (example.template, is_right(templates[example.template], example)) for example in examples()
    )
    for name, template in templates.items():
        right, wrong = counts[name, True], counts[name, False]
        style = template.style
        marks = "".join(template.marks[:2]).split() if template.can_reason else []
        form = "not understood" if style is None else f"{style.kind} {style.opening + style.before!r}"
        print(f"{name:48} {right:3}/{right + wrong:<3} {' '.join(marks):48} {form}")
    total = sum(counts.values())
    print(f"{sum(counts[name, True] for name in NAMES)} of {total} examples are read as llama.cpp reads them")


if __name__ == "__main__":
    main()
