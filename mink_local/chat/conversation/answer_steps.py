"""The steps of a stored answer, recomputed with the settings it was sampled with."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mink_local.chat.comparing import compared_with
from mink_local.chat.conversation.session import Session, as_messages, prompt_digest
from mink_local.chat.conversation.store import SamplingInfo, StoredMessage
from mink_local.errors import MinkError
from mink_local.generation.answer import is_reasoning
from mink_local.generation.format.reasoning_budget import before_constrained
from mink_local.generation.format.text import token_name
from mink_local.generation.request import Request
from mink_local.generation.sampling_step import SamplingStep, constrained_row, sampling_step
from mink_local.llama.constraints import Constraints
from mink_local.samplers import AdaptiveP, DynamicTemperature, Greedy, parse


class AnswerSteps:
    """The steps of the last answer: of its model, prompt, sampler and constraints, not of today's settings.

    Attributes:
        tokens: Token ids of the answer, without the one that ended it.
        texts: The text of each token, bytes that are part of a character as `<0xE7>`.
        k: How many candidates each token had when it was sampled, 0 if it was not, or if that is unknown.
        forks: The indices of the tokens that had several candidates.

    Raises:
        MinkError: The answer is empty, or another model wrote it.
    """

    def __init__(self, session: Session, answer: StoredMessage) -> None:
        self.answer = answer
        self.model = session.model
        self._branch = session.branch[:-1]
        if not answer.parts:
            raise MinkError("how this answer was sampled is not known: /regen answers again")
        self._require_model(answer.parts[-1], "this answer")
        self.tokens = session.answer_tokens(answer)
        if not self.tokens:
            raise MinkError("the answer is empty")
        known = answer.k if self.tokens is answer.tokens else []
        self.k = [*known, *[0] * len(self.tokens)][: len(self.tokens)]
        self.texts = [self.text(token) for token in self.tokens]
        self.forks = [at for at, k in enumerate(self.k) if k > 1]
        self._prompts: dict[int, tuple[list[int], Callable[..., NDArray[np.float32]] | None]] = {}

    def text(self, token: int) -> str:
        """Return the text of any token of the vocabulary, as in `texts`."""
        return token_name(self.model.weights, token)

    def sampling_info(self, at: int) -> SamplingInfo:
        """Return how a token was sampled: the parts of a continued answer may differ, and its phases."""
        part = [part for part in self.answer.parts if part.first_token <= at][-1]
        sampler, temperature = part.reasoning_sampler, part.reasoning_temperature
        if sampler is None or temperature is None or not is_reasoning(self.answer.borders, at):
            return part
        return replace(part, sampler=sampler, temperature=temperature)

    def step(self, at: int) -> SamplingStep:
        """Return a step, evaluating the tokens before it.

        Raises:
            MinkError: The step cannot be recomputed; the message says why.
            GenerationError: The model is in use by another thread, or was interrupted.
        """
        part = self.sampling_info(at)
        prompt, constrained = self._prompt(part)
        if len(prompt) + at > self.model.n_ctx:
            raise MinkError(f"the answer needs a context of more than {self.model.n_ctx} tokens: /set ctx N")
        token, logits = self.tokens[at], self.model.logits(prompt, self.tokens[:at])
        if constrained:
            logits = constrained(logits, self.tokens[:at])
        if not np.isfinite(logits[token]):
            raise MinkError(f"token {at + 1} cannot be sampled with the stored settings")
        sampler = parse(part.sampler) if part.temperature else Greedy()
        return sampling_step(
            logits, token, part.temperature, compared_with(sampler), sampler=sampler, k=self.k[at] or None
        )

    def remarks(self, at: int, step: SamplingStep) -> list[str]:
        """Return remarks on a step, first on what differs from when it was sampled."""
        part, k = self.sampling_info(at), self.k[at]
        remarks = []
        if at in self.answer.chosen:
            remarks.append("You chose this token, not the sampler.")
        if k == 0:
            remarks.append("This token was forced, or recovered after a crash.")
        elif k != step.k and step.temperature == (part.temperature or 1):
            remarks.append(f"When it was sampled there were {k:,}: llama.cpp's last bits vary.")
        if part.constraints:
            remarks.append("Logits are after bias, penalties and grammar.")
        remarks.append(f"{step.sampler} keeps {step.k:,} of {len(step.ids):,} tokens.")
        if isinstance(step.sampler.members[-1], AdaptiveP | DynamicTemperature):
            remarks.append(f"What {step.sampler.members[-1].name} does to their probabilities is not shown.")
        return remarks

    def _prompt(self, part: SamplingInfo) -> tuple[list[int], Callable[..., NDArray[np.float32]] | None]:
        """Return the prompt of a part of the answer, and what applies its constraints, if it has any."""
        if part.first_token not in self._prompts:
            self._require_model(part, "this part of the answer")
            messages = as_messages(part.system, self._branch[part.first_message :])
            prompt = self.model.prompt_tokens(messages, part.reasoning)
            if prompt_digest(prompt) != part.prompt:
                raise MinkError(
                    "the prompt of this answer cannot be rebuilt: the chat template has changed, or contains "
                    "the date; /regen answers again"
                )
            rows = None
            if part.constraints:
                template, constraints = self.model.core.engine.template, _constraints(part.constraints)
                splitter, _ = template.reasoning(Request(messages, enable_thinking=part.reasoning), prompt)
                before = before_constrained(constraints, splitter, template.texts, part.reasoning)
                rows = partial(
                    constrained_row, constraints, self.model.weights, prompt, part.first_token, before
                )
            self._prompts[part.first_token] = prompt, rows
        return self._prompts[part.first_token]

    def _require_model(self, part: SamplingInfo, what: str) -> None:
        if part.model != self.model.name:
            raise MinkError(f"{part.model} wrote {what}, not {self.model.name}: /model loads it")


def _constraints(stored: Mapping[str, Any]) -> Constraints:
    """Return constraints from what `SamplingInfo` stores: JSON keys are strings, also token ids."""
    bias = {int(token): value for token, value in stored.get("logit_bias", {}).items()}
    return Constraints(**{**stored, "logit_bias": bias})
