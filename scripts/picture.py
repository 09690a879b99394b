"""Write docs/heat.svg: one prompt answered with three samplers, coloured as by /heat, on both grounds.

.venv/bin/python scripts/picture.py qwen2.5-coder-1.5b.gguf
"""

import io
import re
from collections.abc import Sequence
from pathlib import Path
from statistics import mean

import click
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.terminal_theme import DEFAULT_TERMINAL_THEME, SVG_EXPORT_THEME, TerminalTheme
from rich.text import Text

from mink_local import LlamaDefault, MinK, Model, Reply, Sampler, SamplingParams, TopP, load_model
from mink_local.chat.terminal.progress import coloured
from mink_local.chat.terminal.screen import DARK, LIGHT, Theme
from mink_local.samplers import label

SVG = Path(__file__).parents[1] / "docs" / "heat.svg"
PROMPT = "Tell me a short story about a lighthouse."
TEMPERATURE, SEED = 5.0, 1
WIDTH = 132  # columns
LIMITS = {"min-k": 72, "llama-default": 64, "top-p": 36}  # tokens; all fill about as many lines


def on_both_grounds(dark: str, light: str) -> str:
    """Return one SVG of two of the same size, of which a browser shows the one for its colour scheme."""
    box = re.search('viewBox="[^"]+"', dark)
    assert box
    style = (
        ".light{display:none}@media(prefers-color-scheme:light){.dark{display:none}.light{display:inline}}"
    )
    drawings = f'<g class="dark">{dark}</g>\n<g class="light">{light}</g>'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {box[0]}><style>{style}</style>\n{drawings}\n</svg>\n'


def answered(model: Model, sampler: Sampler) -> tuple[str, Reply]:
    """Return a heading and an answer."""
    messages = [{"role": "user", "content": PROMPT}]
    params = SamplingParams(
        sampler=sampler, temperature=TEMPERATURE, max_tokens=LIMITS[sampler.name], seed=SEED
    )
    reply = model.chat(messages, params)
    reply.read()
    heading = (
        f"{label(str(sampler))} at temperature {TEMPERATURE:g}\n{mean(reply.k):,.1f} candidates on average"
    )
    return heading, reply


def drawn(model: Model, answers: Sequence[tuple[str, Reply]], theme: Theme, ground: TerminalTheme) -> str:
    """Return the answers beside each other, with their legends, as an SVG."""
    columns = Table(box=None, show_header=True, padding=(0, 2), expand=True)
    for heading, _ in answers:
        columns.add_column(heading, ratio=1)
    columns.add_row(*(coloured(model.token_texts(reply.tokens), reply.k, theme) for _, reply in answers))
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True)
    console.print(Text(f"> {PROMPT}", style=theme.accent), Padding(columns, (1, 0)))
    svg = console.export_svg(title=model.name, unique_id=f"heat-{theme.code}", theme=ground)
    without_web_fonts = re.sub(r"@font-face \{.*?\}", "", svg, flags=re.DOTALL)
    return "\n".join(line.rstrip() for line in without_web_fonts.splitlines() if line.strip())


@click.command(help=__doc__)
@click.argument("model")
def main(model: str) -> None:
    with load_model(model, n_ctx=512) as loaded:
        answers = [answered(loaded, sampler) for sampler in (MinK(), LlamaDefault(), TopP(0.9))]
        grounds = (DARK, SVG_EXPORT_THEME), (LIGHT, DEFAULT_TERMINAL_THEME)
        SVG.write_text(on_both_grounds(*(drawn(loaded, answers, *one) for one in grounds)), encoding="utf-8")


if __name__ == "__main__":
    main()
