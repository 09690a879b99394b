"""The steps of a stored answer, computed again with what it was sampled with: what all views of it show."""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mink_local.chat.session import Session, as_messages, prompt_digest
from mink_local.chat.store import SamplingInfo, StoredMessage
from mink_local.generation.sampling_step import (
    ConstrainedRows,
    SamplingStep,
    TokenFigures,
    compared_with,
    sampling_step,
    token_figures,
)
from mink_local.generation.text_stream import token_name
from mink_local.llama.constraints import Constraints
from mink_local.samplers import Sampler, parse

_REMEMBERED = 16  # steps, of 40 bytes for each token of the vocabulary


class AnswerSteps:
    """The steps of an answer of the session's branch, or of any message of its conversation.

    The model, the prompt, the sampler and the constraints are those of the answer, not today's.

    Attributes:
        tokens: Token ids of the answer, without the one that ended it.
        texts: The text of each token, bytes that are part of a character as `<0xE7>`.
        k: The number of candidates of each token when it was sampled, 0 if that is not known.

    Raises:
        ValueError: The answer is empty, or another model wrote it.
    """

    def __init__(self, session: Session, answer: StoredMessage) -> None:
        self.answer = answer
        self._session, self._model = session, session.model
        self._branch = session.store.branch(answer.parent)  # now: the store knows one thread
        self._hows = answer.hows
        if not self._hows:
            raise ValueError("how this answer was sampled is not known: /regen answers anew")
        self._require_model(self._hows[-1], "this answer")
        self.tokens = session.answer_tokens(answer)
        if not self.tokens:
            raise ValueError("the answer is empty")
        outcome = answer.outcome
        known = outcome.k if outcome and self.tokens is outcome.tokens else []
        self.k = [*known, *[0] * len(self.tokens)][: len(self.tokens)]
        self.texts = [self.text(token) for token in self.tokens]
        self._prompts: dict[int, tuple[list[int], ConstrainedRows | None]] = {}
        self._figures: dict[int, TokenFigures] = {}
        self._step = lru_cache(_REMEMBERED)(self._compute)

    def text(self, token: int) -> str:
        """Return the text of any token of the vocabulary, as in `texts`."""
        return token_name(self._model.weights, token)

    def how(self, at: int) -> SamplingInfo:
        """Return how a token was sampled: the parts of a continued answer may differ."""
        return [how for how in self._hows if how.first_token <= at][-1]

    def sampler(self, at: int) -> Sampler:
        """Return the sampler of a token."""
        return parse(self.how(at).sampler)

    def step(self, at: int, temperature: float | None = None) -> SamplingStep:
        """Return a step, as it was or at another temperature > 0. The last ones are remembered.

        Raises:
            ValueError: What the step was sampled with cannot be had any more; the message says why.
            GenerationError: The model is in use by another thread, or was interrupted.
        """
        step = self._step(at)
        return step if temperature is None else step.at(temperature)

    def figures(self, at: int) -> TokenFigures:
        """Return what the model's own distribution says of a token. Raises as `step` does."""
        if at not in self._figures:
            self._figures[at] = token_figures(self._own_row(at), self.tokens[at])
        return self._figures[at]

    def remarks(self, at: int) -> list[str]:
        """Return sentences on what of a step is not as it was sampled, for the user."""
        step, how, k = self._step(at), self.how(at), self.k[at]
        outcome, found = self.answer.outcome, []
        if outcome and at in outcome.chosen:
            found.append("You chose this token, no sampler did.")
        if how.first_message is None:
            found.append(
                "An earlier version kept neither system prompt nor penalties with the answer: "
                "they are taken to be today's."
            )
        if k == 0:
            found.append("The program ended during the answer: its tokens are read anew from the text.")
        elif k != step.k:
            found.append(f"The sampler kept {k:,} when the token was sampled, and {step.k:,} now.")
        return found

    def _compute(self, at: int) -> SamplingStep:
        how, own = self.how(at), self._own_row(at)
        constrained = self._prompt(how)[1]
        row = own if constrained is None else constrained.row(own, at - how.first_token)
        token, sampler = self.tokens[at], parse(how.sampler)
        if not np.isfinite(row[token]):
            raise ValueError(f"token {at + 1} has no finite logit: the answer was sampled in another way")
        return sampling_step(
            row,
            token,
            how.temperature,
            compared_with(sampler),
            sampler=sampler,
            k=self.k[at] or None,
            own=own,
        )

    def _own_row(self, at: int) -> NDArray[np.float32]:
        """Return the model's own logits (V,) of a step."""
        prompt, _ = self._prompt(self.how(at))
        if len(prompt) + at > self._model.n_ctx:
            raise ValueError(f"the context of {self._model.n_ctx} tokens is now too short for this answer")
        return self._model.logits(prompt, self.tokens[:at])

    def _prompt(self, how: SamplingInfo) -> tuple[list[int], ConstrainedRows | None]:
        """Return the prompt of a part of the answer, and its rows under constraints if it has any."""
        if how.first_token not in self._prompts:
            self._require_model(how, "this part of the answer")
            session, model = self._session, self._model
            branch = self._branch
            if how.first_message is None:
                messages, thinking = session.prompt(branch), session.settings["think"]
                constraints = session.settings.constraints
            else:
                messages, thinking = as_messages(how.system, branch[how.first_message :]), how.thinking
                constraints = _constraints(how.constraints)
            prompt = model.tokens(messages, thinking)
            if how.prompt and prompt_digest(prompt) != how.prompt:
                raise ValueError(
                    "the prompt of this answer cannot be made again: the chat template has changed, or it "
                    "tells the date; /regen answers anew"
                )
            rows = None
            if constraints:
                before = [*prompt, *self.tokens[: how.first_token]]
                rows = ConstrainedRows(constraints, model.weights, before, self.tokens[how.first_token :])
            self._prompts[how.first_token] = prompt, rows
        return self._prompts[how.first_token]

    def _require_model(self, how: SamplingInfo, what: str) -> None:
        if how.model != self._model.name:
            raise ValueError(
                f"{self._model.name} did not write {what}: {how.model} did; "
                "/model loads it, and then its steps can be shown"
            )


def _constraints(stored: Mapping[str, Any]) -> Constraints | None:
    """Return constraints from what `SamplingInfo` stores; JSON has made texts of the token ids."""
    if not stored:
        return None
    bias = {int(token): value for token, value in stored.get("logit_bias", {}).items()}
    return Constraints(**{**stored, "logit_bias": bias})
