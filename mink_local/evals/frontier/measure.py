"""Measure noise against variety: stream the logits of a model and its reference over the same texts."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mink_local.errors import DataError, ModelError
from mink_local.evals.frontier.report import report
from mink_local.evals.frontier.sums import PositionFigures
from mink_local.evals.frontier.texts import MeasuredText, chosen, read_answers, read_paragraphs
from mink_local.evals.measurement import Results, carry_out
from mink_local.evals.settings import SamplerSetting, SettingsMeasurement, sweep
from mink_local.evals.store import Store, file_sha256
from mink_local.generation.model import Model
from mink_local.generation.rows import N_OUTPUTS
from mink_local.models.catalog import resolve


@dataclass(frozen=True)
class TextSums:
    """A text with one setting.

    Attributes:
        text: The text's key.
        temperature: As text, because JSON has no infinity.
        sums: Of FIGURES, over the positions.
    """

    text: str
    sampler: str
    temperature: str
    positions: int
    sums: list[float]

    @property
    def key(self) -> tuple[str, str, str]:
        return self.text, self.sampler, self.temperature


def run_frontier(
    *,
    model: str,
    reference: str,
    texts: Path | None,
    text: Path | None,
    out: Path,
    limit: int = 100,
    temperatures: Sequence[float] = (1.0, 2.0, 5.0, float("inf")),
    wanted: Sequence[float] = (0.5, 1.0, 2.0, 5.0),
    quiet: bool = False,
    **placement: Any,
) -> None:
    """Measure the sweep of every sampler, write the report to the folder `out` and print its main table.

    Args:
        model: Name or path of the model.
        reference: Name or path of a larger model with the same vocabulary.
        texts: A folder of `mink-eval run` with answers of the reference; or else give `text`.
        text: A file whose paragraphs, separated by empty lines, are the texts.
        limit: Most texts, chosen at random; a larger number adds to them.
        wanted: Noise in percentage points above greedy's, at which samplers are compared.
        placement: Options of `load_model`, for both models.

    Raises:
        MinkError: The measurement cannot go on.
        KeyboardInterrupt: After Ctrl-C or SIGTERM.
    """
    carry_out(
        Frontier(model, reference, texts, text, limit, temperatures, wanted, placement), out, quiet=quiet
    )


class Frontier(SettingsMeasurement[TextSums, MeasuredText]):
    """The sums of every text with every setting; see `run_frontier` for the arguments."""

    measures, noun, row_type = "frontier", "settings of texts", TextSums

    def __init__(
        self,
        model: str,
        reference: str,
        texts: Path | None,
        text: Path | None,
        limit: int,
        temperatures: Sequence[float],
        wanted: Sequence[float],
        placement: dict[str, Any],
    ) -> None:
        files = {"model": resolve(model), "reference": resolve(reference)}
        if text is not None:
            found = read_paragraphs(text)
            source = {"source": text.name, "path": str(text), "sha256": file_sha256(text)}
        else:
            assert texts is not None
            found = read_answers(texts, file_sha256(files["reference"].path))
            source = {"source": texts.resolve().name, "path": str(texts)}
        super().__init__(chosen(found, limit), sweep(temperatures), files, placement)
        self.settings["texts"] = source
        self._wanted = list(wanted)

    def prepare(self, store: Store[TextSums]) -> None:
        store.note(wanted=self._wanted)

    def measure_units(
        self,
        units: Sequence[tuple[MeasuredText, list[SamplerSetting]]],
        models: Sequence[Model],
        opened: ExitStack,
    ) -> Iterator[TextSums]:
        model, reference = models
        n_vocab = common_vocabulary(model, reference)
        streams = []
        for one in models:
            sequences = [text.sequence(one, reference) for text, _ in units]
            longest = _longest(one, [text for text, _ in units], sequences)
            reader = self.reader(opened, one, longest, 1, N_OUTPUTS)
            streams.append(reader(sequence for sequence in sequences if sequence[1] > 0))
        for (text, settings), (_, n_positions) in zip(units, sequences, strict=True):
            figures = PositionFigures(settings, n_vocab)
            for _ in range(n_positions):
                row, reference_row = (next(stream) for stream in streams)
                figures.add(row.logits, reference_row.logits)
                if self.interrupted:
                    return
            for setting, sums in zip(settings, figures.sums.tolist(), strict=True):
                yield TextSums(text.key, *setting.as_text, n_positions, sums)

    @classmethod
    def report(cls, results: Results) -> None:
        report(results)


def _longest(model: Model, texts: Sequence[MeasuredText], sequences: Sequence[tuple[list[int], int]]) -> int:
    """Return the length of the longest sequence. Raises DataError if the context cannot hold it."""
    longest, name = max((len(tokens), text.name) for text, (tokens, _) in zip(texts, sequences, strict=True))
    most = model.weights.n_ctx_train
    if longest > most:
        raise DataError(
            f"{name} has {longest:,} tokens and the context of {model.name} holds {most:,}: "
            "split it into paragraphs, or leave it out"
        )
    return max(1, longest)


def common_vocabulary(model: Model, reference: Model) -> int:
    """Return how many tokens two models have in common: all but the padding of the longer vocabulary.

    The texts of all tokens are compared. Padding is "[PAD151643]" and the like, which llama.cpp's converter
    makes of rows without a token.

    Raises:
        ModelError: The vocabularies differ; the text says where first.
    """
    a, b = model.weights, reference.weights
    longer = a if a.n_vocab > b.n_vocab else b
    common = min(a.n_vocab, b.n_vocab)
    for token in range(longer.n_vocab):
        texts = [one.token_text(token) if token < one.n_vocab else f"[PAD{token}]" for one in (a, b)]
        if texts[0] != texts[1]:
            raise ModelError(
                f"{reference.name} has another vocabulary than {model.name}: token {token} is {texts[1]!r} "
                f"in it and {texts[0]!r} in {model.name}. Name a reference of the same family"
            )
    return common
