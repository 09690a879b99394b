"""The commands that show how answers are sampled: /explain, /heat, /stats."""

from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path

from mink_local.chat import explain as steps
from mink_local.chat.chat import Chat
from mink_local.chat.progress import candidates
from mink_local.chat.screen import counted, one_line
from mink_local.chat.store import StoredMessage
from mink_local.generation.sampling_step import METHODS, sampling_step

_CANDIDATES = 12  # rows of /explain


def explain(chat: Chat, argument: str) -> None:
    """Show the candidates of one token of the last answer, and what each method keeps."""
    wanted, plot, path = (part.strip() for part in argument.partition("--plot"))
    if plot and not path:
        raise ValueError("--plot needs a file, such as step.png")
    answer, tokens, texts = _last_tokens(chat)
    at = _index(answer, texts, wanted)
    temperature = answer.how.temperature if answer.how and answer.how.temperature > 0 else 1.0
    session = chat.session
    messages = session.prompt(session.branch[:-1])
    logits = session.model.logits(messages, tokens[:at], session.settings["think"])
    own = session.settings.sampler
    methods = [own if own.name == method.name else method for method in METHODS]
    step = sampling_step(logits, tokens[at], temperature, methods)
    shown = [int(step.ids[rank]) for rank in step.shown_ranks(_CANDIDATES)]
    names = [session.model.texts([token])[0] for token in shown]
    before = "".join(texts[max(0, at - 12) : at])
    chat.note(f"token {at + 1} of {len(tokens)}, after …{one_line(before, 50)}")
    chat.screen.show(steps.table(step, names))
    chat.note(f"The cliff is after number {step.cliff} of {len(step.ids):,}; ◀ was sampled.")
    if path:
        steps.plot(step, names, Path(path).expanduser())
        chat.note(f"(written to {path})")


def heat(chat: Chat, _: str) -> None:
    """Show the last answer coloured by the number of candidates of each token."""
    answer, _tokens, texts = _last_tokens(chat)
    if answer.outcome is None or not answer.outcome.k:
        raise ValueError("the figures of this answer were lost when the program ended")
    render = steps.plain_heat if chat.screen.is_plain else steps.heat
    chat.screen.show(render(texts, answer.outcome.k))


def stats(chat: Chat, _: str) -> None:
    """Show figures of the model, the conversation and the last answer."""
    session = chat.session
    model, settings = session.model, session.settings
    answers = [message for message in session.branch if message.role == "assistant"]
    messages = session.prompt(session.branch)
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
        rows += [("last answer", figures), ("", candidates(outcome.k) if outcome.k else "")]
    if k := [n for answer in answers if answer.outcome for n in answer.outcome.k]:
        rows.append(("all answers", candidates(k)))
    chat.screen.table(rows)


def _index(answer: StoredMessage, texts: Sequence[str], wanted: str) -> int:
    """Return the index of a token: by number, by its text, or the one with the most candidates."""
    if not wanted:
        k = (answer.outcome.k if answer.outcome else [])[: len(texts)]
        return k.index(max(k)) if k else 0
    if wanted.lstrip("-").isdecimal():
        number = int(wanted)
        if not 1 <= abs(number) <= len(texts):
            raise ValueError(f"the last answer has {counted(len(texts), 'token')}")
        return number - 1 if number > 0 else len(texts) + number
    start = "".join(texts).find(wanted)
    if start < 0:
        raise ValueError(f"{wanted!r} is not in the last answer")
    ends = accumulate(map(len, texts))
    return next(at for at, end in enumerate(ends) if end > start)


def _last_tokens(chat: Chat) -> tuple[StoredMessage, list[int], list[str]]:
    """Return the last answer, its token ids, and what each token adds to the text."""
    answer = chat.session.last_answer()
    tokens = chat.session.answer_tokens(answer)
    if not tokens:
        raise ValueError("the last answer is empty")
    return answer, tokens, chat.session.model.texts(tokens)
