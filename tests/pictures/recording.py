"""Write docs/chat.svg: a real chat in a terminal, recorded from mink-chat.

The SVG plays once and stops at the last screen, which is also what a viewer without animation shows.

.venv/bin/python -m tests.pictures.recording qwen2.5-coder-1.5b.gguf
"""

import os
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from html import escape
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from scripts.picture import on_both_grounds
from tests.support.terminal import Cell, Terminal

SVG = Path(__file__).parents[2] / "docs" / "chat.svg"
ROWS, COLUMNS = 24, 92
X, Y = 8.4, 18  # pixels per character
DARK = {
    "paper": "#1d2128", "default": "#d8dee9", "dim": "#8a93a3", "green": "#8fbf7f", "cyan": "#7fb8c4",
    "brown": "#d9b26a", "red": "#d97a7a",
}  # fmt: skip
LIGHT = {
    "paper": "#ffffff", "default": "#24292f", "dim": "#6e7781", "green": "#1a7f37", "cyan": "#2f5fd0",
    "brown": "#8a6100", "red": "#cf222e",
}  # fmt: skip
KEY, PAUSE = 0.06, 1.5  # seconds between keys, and at most between frames


class Frame(NamedTuple):
    """The screen's content from a time (s) on."""

    time: float
    rows: Sequence[Sequence[Cell]]


def record(chat: Terminal, keys: Sequence[str]) -> list[Frame]:
    """Type lines, each when the chat is waiting for one; return the screens, without the loading time."""
    frames = [Frame(0, chat.cells)]
    last = time.monotonic()

    def watch(seconds: float) -> None:
        nonlocal last
        chat.settle(seconds)
        if frames[-1].rows != chat.cells:
            now = time.monotonic()
            frames.append(Frame(frames[-1].time + min(now - last, PAUSE), chat.cells))
            last = now

    for line in keys:
        for key in line:
            chat.send(key)
            watch(KEY)
        quiet = 0
        while quiet < 15 or "computing" in chat.screen:  # until nothing changes for three seconds
            before = len(frames)
            watch(0.2)
            quiet = quiet + 1 if len(frames) == before else 0
    return frames


def drawn(frames: Sequence[Frame], colours: Mapping[str, str]) -> str:
    """Return the frames as an SVG; rows that stay the same are drawn once."""
    end = frames[-1].time
    body = []
    for y in range(ROWS):
        for row, group in groupby(frames, key=lambda frame: frame.rows[y]):
            times = [frame.time for frame in group]
            later = next((frame.time for frame in frames if frame.time > times[-1]), None)
            if text := spans(row, colours):
                place = f'y="{Y * (y + 1.2):.1f}" xml:space="preserve"'
                body.append(f"<text {place}{shown(times[0], later)}{text}</text>")
    size = f"{X * COLUMNS + 20:.0f} {Y * (ROWS + 0.8):.0f}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size}" '
        f'font-family="ui-monospace, Menlo, Consolas, monospace" font-size="14">\n'
        f"<!-- {end:.1f} s of a real chat, written by tests/pictures/recording.py -->\n"
        f'<rect width="100%" height="100%" rx="6" fill="{colours["paper"]}"/>\n'
        + "\n".join(body)
        + "\n</svg>\n"
    )


def shown(first: float, later: float | None) -> str:
    """Return the rest of a tag that shows a row from one time on, until another if given."""
    if later is None:
        return f'><set attributeName="visibility" to="hidden" begin="0s" dur="{first:.2f}s"/>'
    until = f'begin="{first:.2f}s" dur="{later - first:.2f}s"'
    return f' visibility="hidden"><set attributeName="visibility" to="visible" {until}/>'


def spans(row: Sequence[Cell], colours: Mapping[str, str]) -> str:
    """Return a row as text spans, one per run of equal style, without trailing blanks."""
    text = ""
    x = 0
    for (colour, bold), run in groupby(row, key=lambda cell: (cell.colour, cell.is_bold)):
        letters = "".join(cell.text for cell in run)
        weight = ' font-weight="bold"' if bold else ""
        if letters.strip():
            fill = colours.get(colour, f"#{colour}" if len(colour) == 6 else colours["dim"])
            text += f'<tspan x="{10 + x * X:.1f}" fill="{fill}"{weight}>{escape(letters.rstrip())}</tspan>'
        x += len(letters)
    return text


def main() -> None:
    with tempfile.TemporaryDirectory() as home:
        os.environ |= {"XDG_DATA_HOME": home, "XDG_CONFIG_HOME": home, "MINK_MODEL": sys.argv[1]}
        options = ("--temp", "5", "--seed", "3", "--max-tokens", "90", "--ctx", "2048", "--theme", "dark")
        chat = Terminal(*options, rows=ROWS, columns=COLUMNS)
        try:
            frames = record(chat, ["Tell me a short story about a lighthouse.\r", "/explain\r", "n"])
        finally:
            chat.close()
    SVG.write_text(on_both_grounds(drawn(frames, DARK), drawn(frames, LIGHT)), encoding="utf-8")


if __name__ == "__main__":
    main()
