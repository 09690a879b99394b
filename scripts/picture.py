"""Write docs/heat.svg: one prompt answered with Min-k and with top-p, coloured as by /heat.

.venv/bin/python scripts/picture.py qwen2.5-coder-1.5b.gguf
"""

import io
import re
import sys
from pathlib import Path
from statistics import mean

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from mink_local import MinK, Model, Sampler, SamplingParams, TopP, load_model
from mink_local.chat.terminal.progress import coloured
from mink_local.chat.terminal.theme import DARK
from mink_local.samplers import label

SVG = Path(__file__).parents[1] / "docs" / "heat.svg"
PROMPT = "Tell me a short story about a lighthouse."
TEMPERATURE, SEED = 5.0, 1
WIDTH = 110  # columns
LIMITS = {"min-k": 110, "top-p": 60}  # tokens; both fill about as many lines


def answered(model: Model, sampler: Sampler) -> tuple[str, Text]:
    """Return a heading, and a coloured answer with its legend below."""
    messages = [{"role": "user", "content": PROMPT}]
    params = SamplingParams(
        sampler=sampler, temperature=TEMPERATURE, max_tokens=LIMITS[sampler.name], seed=SEED
    )
    reply = model.chat(messages, params)
    reply.read()
    heading = (
        f"{label(str(sampler))} at temperature {TEMPERATURE:g}\n{mean(reply.k):,.1f} candidates on average"
    )
    return heading, coloured(model.token_texts(reply.tokens), reply.k, DARK)


def main() -> None:
    columns = Table(box=None, show_header=True, padding=(0, 2), expand=True)
    answers = []
    with load_model(sys.argv[1], n_ctx=512) as model:
        for sampler in (MinK(), TopP(0.9)):
            heading, answer = answered(model, sampler)
            columns.add_column(heading, ratio=1)
            answers.append(answer)
    columns.add_row(*answers)
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True)
    console.print(Text(f"> {PROMPT}", style="bold"), Padding(columns, (1, 0)))
    svg = console.export_svg(title=model.name, unique_id="heat")
    without_web_fonts = re.sub(r"@font-face \{.*?\}", "", svg, flags=re.DOTALL)
    lines = [line.rstrip() for line in without_web_fonts.splitlines() if line.strip()]
    SVG.write_text("\n".join([*lines, ""]), encoding="utf-8")


if __name__ == "__main__":
    main()
