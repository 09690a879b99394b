"""A walk along an answer, token by token: what the keys of the full-screen /explain do."""

from collections.abc import Iterator
from dataclasses import dataclass

from mink_local.chat.answer_steps import AnswerSteps
from mink_local.errors import MinkError
from mink_local.generation.model import Model
from mink_local.generation.sampling_step import SamplingStep

TEMPERATURES = (0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 7.0, 10.0, 15.0, 20.0, 50.0, 100.0)
_REMEMBERED = 12  # steps, each with several numbers for every token of the vocabulary

Key = tuple[int, float | None]  # the index of a token, and a temperature; None for that of the answer


@dataclass(frozen=True)
class Computed:
    """A step, if it can be had, and what is to be said of it."""

    step: SamplingStep | None
    remark: str


class Walk:
    """A place in an answer, a temperature, and the candidate that is selected there.

    Steps take time. `step` is that of the place if it is computed: `missing` says what to `compute` next, in
    another thread if need be, and `add` takes the result.

    Attributes:
        at: The index of the token.
        temperature: What the step is shown at; None for the temperature of the answer.
        forks: The indexes of the tokens that had several candidates.
        pieces: What each token adds to the answer.
        has_picture: Whether the picture of the logits is shown instead of the candidates.
        rows: How many candidates there is space for; the view sets it.
        row: The row that is selected; None for that of the sampled token.
        message: A sentence about the last key.
    """

    def __init__(self, steps: AnswerSteps, model: Model, at: int = 0) -> None:
        self.steps = steps
        self.model = model
        self.at = at
        self.temperature: float | None = None
        self.forks = [i for i, k in enumerate(steps.k) if k > 1]
        self.pieces = model.texts(steps.tokens)
        self.has_picture = False
        self.rows = 1
        self.row: int | None = None
        self.message = ""
        self._computed: dict[Key, Computed] = {}  # the newest last

    def go(self, at: int) -> None:
        """Go to a token; beyond an end of the answer, to its first or last one."""
        self.at, self.row = min(max(at, 0), len(self.steps.tokens) - 1), None

    def go_to_fork(self, direction: int) -> None:
        """Go to the next fork, or with -1 to the one before."""
        beyond = [at for at in self.forks if (at - self.at) * direction > 0]
        if beyond:
            self.go(min(beyond) if direction > 0 else max(beyond))
        else:
            self.message = (
                f"no token {'after' if direction > 0 else 'before'} this one had several candidates"
            )

    def heat(self, direction: int) -> None:
        """Go to the next higher temperature, or with -1 to the next lower one."""
        self.temperature = self._neighbour(direction)

    def switch(self) -> None:
        """Show the picture, or the candidates again."""
        self.has_picture = not self.has_picture

    @property
    def step(self) -> SamplingStep | None:
        """The step of the place; None if it is not computed yet, or cannot be had."""
        computed = self._computed.get((self.at, self.temperature))
        return computed.step if computed else None

    @property
    def remark(self) -> str:
        """Say in words what is special about the step."""
        computed = self._computed.get((self.at, self.temperature))
        return computed.remark if computed else "computing …"

    @property
    def shown(self) -> list[int]:
        """The ranks of the candidates that are shown."""
        return self.step.shown_ranks(self.rows) if self.step else []

    @property
    def selected(self) -> int | None:
        """The rank of the selected candidate; None if there is no step."""
        if self.step is None:
            return None
        if self.row is None:
            return self.step.sampled
        return self.shown[min(self.row, len(self.shown) - 1)]

    def select(self, row: int) -> None:
        """Select a candidate by its row, the first one after the last one."""
        if self.shown:
            self.row = row % len(self.shown)

    def select_next(self, direction: int) -> None:
        """Select the next candidate, or with -1 the one before."""
        if self.selected is not None:
            self.select(self.shown.index(self.selected) + direction)

    def fork(self) -> int | None:
        """Return the selected token if the answer can go on from it; if it cannot, `message` says why."""
        if self.step is None or self.selected is None:
            return None
        token = int(self.step.ids[self.selected])
        if self.selected == self.step.sampled:
            self.message = "the answer goes on from this token: select another one with Tab or its number"
        elif self.model.weights.ends_generation(token):
            self.message = "this token ends the answer: nothing comes after it"
        else:
            return token
        return None

    def missing(self) -> Key | None:
        """Return what to compute next: the step of the place, or of a place that one key leads to."""
        return next((key for key in self._near() if key not in self._computed), None)

    def compute(self, key: Key) -> Computed:
        """Compute a step with all that is shown of it."""
        try:
            step = self.steps.step(*key)
            _ = step.cuts, step.p_hot, step.p_sampled  # are computed when they are first read
            return Computed(step, " ".join(self.steps.remarks(key[0])))
        except (MinkError, ValueError) as error:
            return Computed(None, str(error))

    def add(self, key: Key, computed: Computed) -> None:
        """Take what was computed."""
        self._computed[key] = computed
        if len(self._computed) > _REMEMBERED:
            near = set(self._near())
            del self._computed[next(old for old in self._computed if old not in near)]

    def _near(self) -> Iterator[Key]:
        yield self.at, self.temperature
        for direction in (1, -1):
            yield self.at, self._neighbour(direction)
        for at in (self.at + 1, self.at - 1):
            if 0 <= at < len(self.steps.tokens):
                yield at, self.temperature

    def _neighbour(self, direction: int) -> float | None:
        """Return the next higher temperature, or with -1 the next lower one."""
        own = self.steps.how(self.at).temperature or 1.0
        now = self.temperature or own
        beyond = [t for t in (*TEMPERATURES, own) if (t - now) * direction > 0]
        found = (min(beyond) if direction > 0 else max(beyond)) if beyond else now
        return None if found == own else found
