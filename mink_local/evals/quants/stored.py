"""The base's distributions in files of a measurement's folder, against which every other file is read.

A chunk has two files: CHUNK-tokens.npy with the kept tokens of all positions, and CHUNK-positions.npy, which
is written last.
"""

import io
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from mink_local.evals.quants.divergence import Position
from mink_local.evals.store import write_file
from mink_local.samplers import Sampler


class StoredBase:
    """The base's distributions.

    Args:
        folder: Folder of the files.
        samplers: The samplers whose candidates are compared, as for all rows of the measurement.
    """

    def __init__(self, folder: Path, samplers: Sequence[Sampler]) -> None:
        self._folder = folder
        self._names = [str(sampler) for sampler in samplers]
        of_sets = [("digest", "<u8", len(self._names)), ("is_single", "?", len(self._names))]
        self._dtype = np.dtype(
            [("n", "<u4"), ("n_most", "<u4"), ("rest", "<f8"), ("logprob", "<f8"), *of_sets]
        )

    def write(self, chunk: int, positions: Sequence[Position]) -> None:
        """Keep a chunk's positions. Raises RunError if they cannot be written."""
        table = np.empty(len(positions), self._dtype)
        for i, position in enumerate(positions):
            digests, singles = zip(*(position.sets[name] for name in self._names), strict=True)
            numbers = len(position.tokens), position.n_most, position.rest, position.logprob
            table[i] = (*numbers, digests, singles)
        self._save(chunk, "tokens", np.concatenate([position.tokens for position in positions]))
        self._save(chunk, "positions", table)

    def read(self, chunk: int) -> list[Position] | None:
        """Return a chunk's positions; None if they are missing or damaged."""
        with suppress(OSError, ValueError, EOFError):
            table = np.load(self._path(chunk, "positions"))
            tokens = np.load(self._path(chunk, "tokens"), mmap_mode="r")
            if table.dtype == self._dtype and len(tokens) == table["n"].sum():
                return list(self._positions(table, tokens))
        return None

    def _positions(self, table: Any, tokens: Any) -> Iterator[Position]:
        ends = np.cumsum(table["n"])
        for row, end in zip(table, ends, strict=True):
            sets = zip(row["digest"].tolist(), row["is_single"].tolist(), strict=True)
            yield Position(
                tokens[end - row["n"] : end],
                int(row["n_most"]),
                float(row["rest"]),
                float(row["logprob"]),
                dict(zip(self._names, sets, strict=True)),
            )

    def _path(self, chunk: int, part: str) -> Path:
        return self._folder / f"{chunk:05}-{part}.npy"

    def _save(self, chunk: int, part: str, array: Any) -> None:
        buffer = io.BytesIO()
        np.save(buffer, array)
        write_file(self._path(chunk, part), buffer.getvalue())
