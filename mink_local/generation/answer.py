"""Answers: their text as far as it is generated, with tokens, cutoffs and log-probabilities."""

from typing import Literal

from mink_local.generation.request import Request

FinishReason = Literal["stop", "length", "interrupted", "overflow", "error"]
TopLogprobs = tuple[tuple[int, float], ...]


class Piece(str):
    """The text that one step adds to an answer, perhaps none, with what is known of the step.

    A piece without a token gives out text that was held back.

    Attributes:
        token: Id of the sampled token, or None.
        k: Number of candidates of the step; 0 without a token.
        logprob: See `SamplingParams.logprobs`; in nats.
        top_logprobs: Pairs of token id and log-probability, most probable first.
    """

    token: int | None = None
    k: int = 0
    logprob: float | None = None
    top_logprobs: TopLogprobs = ()


class Answer:
    """The answer to a request, which grows while it is generated.

    Attributes:
        request: The request.
        index: Number of the request among those that were given together.
        seed: The seed of its random numbers.
        prompt_tokens: Length of the prompt in tokens.
        evaluated_tokens: Tokens of the prompt that were not in the KV cache and are evaluated.
        text: The text so far.
        tokens: Ids of the tokens so far, without the one that ends the answer.
        k: Number of candidates at every step so far, including the step that ends the answer.
        logprobs: Log-probability of each of `tokens` in nats, if asked for (`SamplingParams.logprobs`).
        top_logprobs: For each of `tokens` the most probable ones as (token id, log-probability) pairs.
        prompt_logprobs: Log-probability of each token of the prompt, None for the first, if asked for
            (`SamplingParams.prompt_logprobs`).
        prompt_top_logprobs: For each token of the prompt the most probable ones, none for the first.
        finish_reason: "stop" (the model, a stop string or a stop token ended the answer), "length"
            (max_tokens, or the context is full), "interrupted", "overflow" (the prompt does not fit the
            context), "error" (see `error`); None while it goes on.
        error: What went wrong and what to do, if finish_reason is "error".
        seconds: Time from when it got a slot to its end.
    """

    def __init__(self, request: Request, index: int = 0) -> None:
        self.request = request
        self.index = index
        self.seed = 0
        self.prompt_tokens = 0
        self.evaluated_tokens = 0
        self.text = ""
        self.tokens: list[int] = []
        self.k: list[int] = []
        self.logprobs: list[float] = []
        self.top_logprobs: list[TopLogprobs] = []
        self.prompt_logprobs: list[float | None] = []
        self.prompt_top_logprobs: list[TopLogprobs] = []
        self.finish_reason: FinishReason | None = None
        self.error: str | None = None
        self.seconds = 0.0

    @property
    def n_tokens(self) -> int:
        """Number of tokens so far."""
        return len(self.tokens)

    def __repr__(self) -> str:
        return (
            f"<{type(self).__name__} {self.index}: {self.n_tokens} tokens, "
            f"{self.finish_reason or 'not finished'}, {self.text!r}>"
        )
