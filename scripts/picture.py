"""Write docs/heat.svg: one prompt answered with Min-k and with top-p, coloured as /heat does.

.venv/bin/python scripts/picture.py
"""

import io
from pathlib import Path

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from mink_local import MinK, Model, Sampler, TopP, load_model
from mink_local.chat.explain import heat

SVG = Path(__file__).parents[1] / "docs" / "heat.svg"
PROMPT = "Tell me a short story about a lighthouse."
TEMPERATURE, SEED = 5.0, 1
WIDTH = 110  # columns
LIMITS = {"min-k": 110, "top-p": 60}  # tokens; both fill about as many lines


def coloured(model: Model, sampler: Sampler) -> Text:
    """Return an answer, coloured, and below it the meaning of the colours."""
    messages = [{"role": "user", "content": PROMPT}]
    options = {"sampler": sampler, "temperature": TEMPERATURE, "seed": SEED}
    reply = model.chat(messages, max_tokens=LIMITS[sampler.name], **options)
    reply.read()
    return heat([text.replace("\n\n", "\n") for text in model.texts(reply.tokens)], reply.k)


def main() -> None:
    columns = Table(box=None, show_header=True, padding=(0, 2), expand=True)
    answers = []
    with load_model("smollm2-135m", n_ctx=512) as model:
        for sampler in (MinK(), TopP(0.9)):
            columns.add_column(f"{sampler} at temperature {TEMPERATURE:g}", ratio=1)
            answers.append(coloured(model, sampler))
    columns.add_row(*answers)
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True)
    console.print(Text(f"you> {PROMPT}", style="bold"), Padding(columns, (1, 0)))
    SVG.write_text(console.export_svg(title="SmolLM2-135M-Instruct", unique_id="heat"), encoding="utf-8")


if __name__ == "__main__":
    main()
