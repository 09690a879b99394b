"""Token ids of prompts, whatever form they have."""

from collections.abc import Sequence
from copy import deepcopy
from typing import cast

from mink_local.generation.request import Message, Prompt, is_token_ids
from mink_local.generation.template import ChatTemplate
from mink_local.llama.weights import Weights


class PromptEncoder:
    """Makes token ids of messages, texts and token ids.

    Args:
        weights: The model whose vocabulary it is.
        template: Makes a prompt of messages.
    """

    def __init__(self, weights: Weights, template: ChatTemplate) -> None:
        self.weights = weights
        self.template = template
        self._last: tuple[object, list[int]] | None = None  # the messages encoded last, and their tokens

    def tokens(self, prompt: Prompt, enable_thinking: bool | None = None) -> list[int]:
        """Return the token ids of a prompt.

        Args:
            prompt: Messages, to which the chat template adds the beginning of the answer; a text, to which
                what the vocabulary begins texts with is added unless it is there; or token ids.
            enable_thinking: See `Request`.

        Raises:
            ValueError: The prompt is empty, or has token ids that the vocabulary does not have.
            MinkError: The chat template refuses the messages.
        """
        if isinstance(prompt, str):
            has_bos = bool(self.weights.bos) and prompt.startswith(self.weights.bos)
            tokens = self.weights.tokenize(prompt, add_special=not has_bos, parse_special=True)
        elif is_token_ids(prompt):
            tokens = list(prompt)
        else:
            return self._of_messages(cast(Sequence[Message], prompt), enable_thinking)
        if not tokens:
            raise ValueError("the prompt is empty")
        if not 0 <= min(tokens) <= max(tokens) < self.weights.n_vocab:
            raise ValueError(f"the prompt's token ids must be from 0 to {self.weights.n_vocab - 1}")
        return tokens

    def stop(self, prompt: Prompt) -> tuple[str, ...]:
        """Return the strings that end an answer to a prompt, besides the request's own."""
        return () if isinstance(prompt, str) or is_token_ids(prompt) else self.template.stop

    def _of_messages(self, messages: Sequence[Message], enable_thinking: bool | None) -> list[int]:
        """Render and tokenize messages; requests that follow each other often have the same."""
        asked = list(messages), enable_thinking
        if self._last is None or self._last[0] != asked:
            tokens = self.template.tokens(messages, enable_thinking)
            self._last = deepcopy(asked), tokens  # a caller may append to its messages
        return list(self._last[1])
