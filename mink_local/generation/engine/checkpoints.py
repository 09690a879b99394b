"""Checkpoints: what recurrent models and hybrids go back to, whose sequences cannot forget just their end."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

BEFORE_END = 8  # tokens that begin the answer: the next prompt may write them otherwise
EVERY = 2048  # tokens of a long prompt
_N_BORDERS = 4  # of messages, counted from the end of a prompt: the first is before the last two turns
_LEAST_TEXT = 8  # tokens between the control tokens around a message


@dataclass(eq=False)
class Checkpoint:
    """A place in a sequence that can be restored; sequences with the same beginning share it.

    Attributes:
        state: See `Context.checkpoint`.
        last_used: How many tokens the context had evaluated when it was made, or restored last.
    """

    state: NDArray[np.uint8]
    last_used: int


def places_in(tokens: Sequence[int], n_outputs: int, control: Sequence[int]) -> list[int]:
    """Return where in a prompt to make checkpoints, as numbers of tokens before them, in ascending order.

    They are at its end, before what begins the answer, where the first message and the last ones end, and
    every few thousand tokens.

    Args:
        n_outputs: Number of tokens at the end that are always evaluated, for their logits.
        control: Ids of control tokens, which stand around messages.
    """
    end = len(tokens) - n_outputs
    found = np.flatnonzero(np.isin(tokens, control))
    borders = found[np.diff(found, prepend=0) > _LEAST_TEXT].tolist()
    wanted = {end + 1 - BEFORE_END, *range(EVERY, end, EVERY), *borders[:1], *borders[-_N_BORDERS:]}
    places = [end]
    for place in sorted(wanted, reverse=True):
        if 0 < place < places[-1] + 2 - BEFORE_END:
            places.append(place)
    return places[::-1]


def unique(sequences: Iterable[dict[int, Checkpoint]]) -> list[Checkpoint]:
    """Return the checkpoints of some sequences, each once, the least recently used first."""
    found = {each for checkpoints in sequences for each in [*checkpoints.values()]}
    return sorted(found, key=lambda each: each.last_used)


def size(checkpoints: Iterable[Checkpoint]) -> int:
    """Return how many bytes checkpoints take."""
    return sum(each.state.nbytes for each in checkpoints)
