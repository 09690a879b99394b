"""The commands that show how answers are sampled: /explain, /heat, /stats."""

from collections.abc import Sequence
from itertools import accumulate

from rich.text import Text

from mink_local.chat import explain as step_view
from mink_local.chat import explain_view
from mink_local.chat.advice import HINT
from mink_local.chat.answer_steps import AnswerSteps
from mink_local.chat.braille import axis, curve
from mink_local.chat.chat import Chat
from mink_local.chat.heat import SCALES, Scale, number
from mink_local.chat.heat import heat as heat_text
from mink_local.chat.progress import candidates
from mink_local.chat.screen import counted, one_line
from mink_local.files import user_path
from mink_local.generation import step_plot

_CANDIDATES = 12  # rows of /explain
_PICTURE_COLUMNS, _PICTURE_ROWS = 60, 5  # of the curve below its table
_FORKS = 5  # tokens that /heat lists
_OTHERS = 6  # candidates of each


def explain(chat: Chat, argument: str) -> None:
    """Walk along the last answer in the whole window, and see what each token was sampled from.

    The arrows left and right go from token to token, n and p to those that had several candidates. Up and
    down change the temperature: the cuts of other methods move. Tab or a digit selects another candidate,
    and Enter has the model go on from it, in another answer to the message. g shows the sorted logits, q
    leaves.

    With the number of a token, or a word of the answer: print its candidates as a table; --plot F plots them.
    """
    if not argument and explain_view.opened(chat):
        return
    wanted, plot, path = (part.strip() for part in argument.partition("--plot"))
    if plot and not path:
        raise ValueError("--plot needs a file, such as step.png")
    steps = AnswerSteps(chat.session, chat.session.last_answer())
    at = _index(steps, wanted)
    step = steps.step(at)
    shown = [int(step.ids[rank]) for rank in step.shown_ranks(_CANDIDATES)]
    names = [steps.text(token) for token in shown]
    before = "".join(steps.texts[max(0, at - 12) : at])
    chat.note(f"token {at + 1} of {len(steps.tokens)}, after …{one_line(before, 50)}")
    chat.screen.show(step_view.table(step, names, chat.screen.width))
    if not chat.screen.is_plain and chat.screen.width >= _PICTURE_COLUMNS:
        chat.screen.show(*curve(step, chat.screen.width, _PICTURE_ROWS), axis(step, chat.screen.width))
    for sentence in [*step_view.sentences(step), *steps.remarks(at), HINT]:
        chat.note(sentence)
    if path:
        step_plot.plot(step, names, user_path(path))
        chat.note(f"(written to {path})")


def heat(chat: Chat, argument: str) -> None:
    """Colour the last answer by its numbers of candidates, and list the tokens with the most.

    SCALE is another number: surprise, entropy, rank, or top-p: whether top-p 0.9 would have cut the token.
    """
    name = argument or "k"
    if name not in SCALES:
        raise ValueError(f"there is no scale {name!r}: the scales are {', '.join(SCALES)}")
    scale, steps = SCALES[name], AnswerSteps(chat.session, chat.session.last_answer())
    if name == "k" and not any(steps.k):
        raise ValueError("the figures of this answer were lost when the program ended")
    numbers = []
    for at, k in enumerate(steps.k):
        if chat.stopped:
            chat.screen.progress()
            raise ValueError("interrupted")
        if name != "k":
            chat.screen.progress(f"token {at + 1} of {len(steps.tokens)}")
        numbers.append(number(name, k, None if name == "k" else steps.figures(at)))
    chat.screen.progress()
    texts = chat.session.model.texts(steps.tokens)
    chat.screen.show(heat_text(texts, numbers, scale, chat.screen.is_plain), "")
    _list_forks(chat, steps, scale, numbers)


def _list_forks(chat: Chat, steps: AnswerSteps, scale: Scale, numbers: Sequence[float]) -> None:
    """List the tokens with the largest numbers on a scale, each with what else could have been sampled."""
    forks = [at for at, value in enumerate(numbers) if scale.level(value)]
    forks = sorted(sorted(forks, key=lambda at: numbers[at], reverse=True)[:_FORKS])
    lines = []
    for at in reversed(forks):  # backward, so that the KV cache has what is before
        if chat.stopped:
            return
        step = steps.step(at)
        others = [step_plot.quoted(steps.text(int(token))) for token in step.ids[:_OTHERS]]
        more = " …" if step.k > _OTHERS else ""
        lines.append(
            f"token {at + 1} {step_plot.quoted(steps.texts[at])}, {scale.about} "
            f"{scale.shown(numbers[at])}, of {' '.join(others[: step.k])}{more}"
        )
    for line in reversed(lines):
        chat.screen.show(Text(line))


def stats(chat: Chat, _: str) -> None:
    """Show figures of the model, the conversation and the last answer."""
    session = chat.session
    model, settings = session.model, session.settings
    answers = [message for message in session.branch if message.role == "assistant"]
    messages = session.messages(session.branch)
    used = model.count_tokens(messages) if messages else 0
    rows = [
        ("model", f"{model.name} {model.placement}"),
        ("sampler", f"{settings.sampler}, temperature {settings['temp']:g}"),
        ("conversation", counted(len(answers), "answer")),
        ("context", f"{used} of {model.n_ctx} tokens"),
    ]
    if answers and (outcome := answers[-1].outcome):
        rest = outcome.seconds - outcome.first_token_s
        tokens = counted(len(outcome.tokens), "token")
        figures = (
            f"{tokens}; {outcome.evaluated_tokens} of {outcome.prompt_tokens} prompt "
            f"tokens evaluated, first token after {outcome.first_token_s:.2f} s, the rest in {rest:.2f} s"
        )
        rows.append(("last answer", figures))
        if how := answers[-1].hows:
            rows.append(("", f"{how[-1].model}, {how[-1].sampler}, temperature {how[-1].temperature:g}"))
        if k := [n for n in outcome.k if n]:
            rows.append(("", candidates(k)))
    if k := [n for answer in answers if answer.outcome for n in answer.outcome.k if n]:
        rows.append(("all answers", candidates(k)))
    chat.screen.table(rows)


def _index(steps: AnswerSteps, wanted: str) -> int:
    """Return the index of a token: by number, by its text, or the one with the most candidates."""
    texts = steps.texts
    if not wanted:
        return steps.k.index(max(steps.k))
    if wanted.lstrip("-").isdecimal():
        index = int(wanted)
        if not 1 <= abs(index) <= len(texts):
            raise ValueError(f"the last answer has {counted(len(texts), 'token')}")
        return index - 1 if index > 0 else len(texts) + index
    start = "".join(texts).find(wanted)
    if start < 0:
        raise ValueError(f"{wanted!r} is not in the last answer")
    ends = accumulate(map(len, texts))
    return next(at for at, end in enumerate(ends) if end > start)
