"""Advice on settings for kinds of text, with the figures that support it."""

from typing import NamedTuple

from mink_local.chat.screen import Screen
from mink_local.samplers import Greedy, MinK, Sampler


class Advice(NamedTuple):
    """Settings for a kind of text.

    Attributes:
        floor: Of Min-k, in nats; None at temperature 0.
        noise: The probability, in percent, of tokens to which a larger model gives less than 1%.
        usual: The noise of llama.cpp's default cuts at this temperature; at 1 if it is 0.
        results: The folder in docs/results that both are from.
    """

    kind: str
    temperature: float
    floor: float | None
    noise: float
    usual: float
    results: str

    @property
    def sampler(self) -> Sampler:
        return Greedy() if self.floor is None else MinK(floor=self.floor)

    def settings(self, prefix: str) -> str:
        """Return the settings as options, if the prefix is `--`, or as commands of the chat, if it is `/`."""
        found = [] if self.floor is None else [f"{prefix}floor {self.floor:g}"]
        found.append(f"{prefix}temp {self.temperature:g}")
        return (", " if prefix == "/" else " ").join(found)


ADVICE = (
    Advice("prose", 1, 1.8, 5.5, 8.0, "frontier-open"),
    Advice("prose, hot", 5, 1.4, 5.5, 14.0, "frontier-open"),
    Advice("code", 1, 0, 0.7, 1.7, "frontier-code"),
    Advice("mathematics", 1, 0, 1.2, 2.0, "frontier-math"),
    Advice("mathematics, one answer", 0, None, 0.9, 2.0, "frontier-math"),
)
HINT = "(/help advice: which settings suit prose, code and mathematics, and by which figures)"


def show_advice(screen: Screen) -> None:
    """Print which settings suit prose, code and mathematics, and by which figures."""
    rows = [(one.kind, one.settings("/"), f"{one.noise:.1f}%", f"{one.usual:.1f}%") for one in ADVICE]
    screen.table(rows, "for", "type", "noise", "usual")
    screen.note(
        "(noise: the probability of tokens that a larger model all but excludes, in texts of "
        "Qwen2.5-Coder-0.5B; usual: that of llama.cpp's default cuts at the same temperature, at 1 beside "
        "/temp 0. docs/results.md has the measurements)"
    )
