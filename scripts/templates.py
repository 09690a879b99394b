"""Show what is derived from the chat templates that llama.cpp ships, and how its examples are read.

LLAMA_CPP_SOURCE names the folder with llama.cpp's source, as in llama-cpp-python's source archive. Printed
for each template: how many of llama.cpp's own examples of model outputs are read as it reads them, the marks
around reasoning, a call, and what goes wrong with conversations; then how many templates are fully right.
"""

import sys
from collections import Counter

from mink_local.generation.format.call_styles import BY_HAND as STYLES_BY_HAND
from mink_local.generation.format.derived import BY_HAND as MARKS_BY_HAND
from mink_local.generation.format.template import ChatTemplate
from tests.support.llama_templates import NAMES, Example, examples, faults, read, template_of


def is_right(template: ChatTemplate, example: Example) -> bool:
    """Return whether an example is read as llama.cpp reads it."""
    switch = {"enable_thinking": example.enable_thinking} if template.has_thinking_switch else {}
    try:
        return read(template, example.text, example.tools, **switch) == example.expected
    except Exception:  # one row of the table
        return False


def is_by_hand(template: ChatTemplate) -> bool:
    """Return whether more is known of a template than it shows."""
    source = template._weights.chat_template or ""
    return any(sign in source for sign in (*STYLES_BY_HAND, *MARKS_BY_HAND))


def main() -> None:
    """Print the table."""
    if not NAMES:
        sys.exit("set LLAMA_CPP_SOURCE to a folder with llama.cpp's source")
    templates = {name: template_of(name) for name in NAMES}
    wrongs: dict[str, list[str]] = {}
    counts: Counter[tuple[str, bool]] = Counter(
        (example.template, is_right(templates[example.template], example)) for example in examples()
    )
    for name, template in templates.items():
        right, wrong = counts[name, True], counts[name, False]
        wrongs[name], found = faults(template), template.conventions
        print(
            f"{name:48} {right:3}/{right + wrong:<3} {found}{''.join(f'; {each}' for each in wrongs[name])}"
        )
    total = sum(counts.values())
    by_hand = [name for name in NAMES if not wrongs[name] and is_by_hand(template_of(name))]
    n_right = sum(not each for each in wrongs.values())
    print(
        f"{n_right} of {len(NAMES)} templates are fully right, {len(by_hand)} of them by a row of their own"
    )
    print(f"{sum(counts[name, True] for name in NAMES)} of {total} examples are read as llama.cpp reads them")


if __name__ == "__main__":
    main()
