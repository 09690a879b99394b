"""The settings of a run, and the responses that cannot be of it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mink_local.evals.run.folder import MANIFEST
from mink_local.evals.run.grid import seed_of
from mink_local.evals.run.records import Response


@dataclass(frozen=True)
class RunSettings:
    """Settings that all responses of a run have in common.

    `limits` has the most tokens of a response by task, and `n_ctx` is the fewest tokens of a context.
    """

    seed: int
    models: frozenset[str]
    limits: Mapping[str, int]
    n_ctx: int

    @classmethod
    def of(cls, manifest: Mapping[str, Any]) -> "RunSettings | None":
        """Return the settings in a manifest, or None if it does not have them."""
        try:
            return cls(
                int(manifest["seed"]),
                frozenset(manifest["models"].keys()),
                {name: int(task["max_tokens"]) for name, task in manifest["tasks"].items()},
                min((int(session["n_ctx_seq"]) for session in manifest["sessions"]), default=0),
            )
        except (KeyError, TypeError, ValueError, AttributeError):
            return None

    def misfit(self, response: Response) -> str | None:
        """Return why the response is of another run, or None."""
        if response.model not in self.models:
            return f"model {response.model} is not in {MANIFEST}"
        if response.task not in self.limits:
            return f"task {response.task} is not in {MANIFEST}"
        wanted = seed_of(self.seed, response.task, response.question_id, response.repeat)
        if response.seed and response.seed != wanted:  # records need not have a seed
            return f"of a run with another --seed than {self.seed}"
        limit = self.limits[response.task]
        cut_off_early = (
            response.finish_reason == "length"
            and response.n_tokens < limit
            and response.prompt_tokens + response.n_tokens < self.n_ctx - 1  # the context was not full
        )
        if cut_off_early or response.n_tokens > limit:
            return f"of a run with another --max-tokens than {limit}"
        return None
