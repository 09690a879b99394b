"""The answer to one prompt, without a conversation."""

import sys
from collections.abc import Sequence
from typing import Any

import click

from mink_local.chat.answer_stream import AnswerStream
from mink_local.chat.export import dumps
from mink_local.chat.progress import note_end, show_answer
from mink_local.chat.screen import Screen
from mink_local.chat.session import Session
from mink_local.cli import INTERRUPTED
from mink_local.generation.reasoning import TextPart


def answer(session: Session, screen: Screen, prompt: str, as_json: bool) -> None:
    """Print the answer to a prompt, or all that is known of it as a JSON object. Ctrl-C ends the program."""
    try:
        answer = session.ask(prompt)
        if as_json:
            sampling = session.model.sampling(session.params())
            screen.write(dumps(_as_json(answer, list(answer), sampling)) + "\n")
        else:
            show_answer(screen, answer)
    except ValueError as error:  # an option that does not suit this model: a grammar, a token id
        raise click.UsageError(f"{error}.") from None
    if not as_json:
        options = "--temp 2, --dry-multiplier 0.8 or --no-loop-guard"
        note_end(screen, answer, session.settings["max_tokens"], session.model.n_ctx, options)
    if answer.outcome and answer.outcome.finish_reason == "interrupted":
        sys.exit(INTERRUPTED)


def _as_json(answer: AnswerStream, parts: Sequence[TextPart], sampling: str) -> dict[str, Any]:
    outcome, how = answer.outcome, answer.draft.how
    assert outcome
    return {
        "model": how.model,
        "sampler": how.sampler,
        "temperature": how.temperature,
        "sampling": sampling,
        "seed": how.seed,
        "text": "".join(part.text for part in parts if not part.is_reasoning),
        "thinking": "".join(part.text for part in parts if part.is_reasoning),
        "finish_reason": outcome.finish_reason,
        "prompt_tokens": outcome.prompt_tokens,
        "evaluated_tokens": outcome.evaluated_tokens,
        "n_tokens": len(outcome.tokens),
        "tokens": outcome.tokens,
        "k": outcome.k,
        "timings": {"first_token_s": round(outcome.first_token_s, 4), "total_s": round(outcome.seconds, 4)},
    }
