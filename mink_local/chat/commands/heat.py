"""The commands that show figures of answers: /heat and /stats."""

from mink_local.chat.chat import Chat
from mink_local.chat.conversation.answer_steps import AnswerSteps
from mink_local.chat.terminal.progress import candidates, coloured
from mink_local.chat.terminal.screen import counted


def heat(chat: Chat, _: str) -> None:
    """Colour the tokens of the last answer by how many candidates each had.

    /set heat on colours answers while they are generated. /explain N shows the candidates of token N.
    """
    session, screen = chat.session, chat.screen
    steps = AnswerSteps(session, session.last_answer())
    if not any(steps.k):
        raise ValueError("the figures of this answer were lost when the program ended")
    screen.show(coloured(session.model.token_texts(steps.tokens), steps.k, screen.is_plain), "")


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
    if answers and answers[-1].finish_reason:
        last = answers[-1]
        tokens, rest = counted(len(last.tokens), "token"), last.seconds - last.first_token_s
        figures = (
            f"{tokens}; {last.evaluated_tokens} of {last.prompt_tokens} prompt "
            f"tokens evaluated, first token after {last.first_token_s:.2f} s, the rest in {rest:.2f} s"
        )
        rows.append(("last answer", figures))
        if how := last.parts:
            rows.append(("", f"{how[-1].model}, {how[-1].sampler}, temperature {how[-1].temperature:g}"))
        if k := [n for n in last.k if n]:
            rows.append(("", candidates(k)))
    if k := [n for answer in answers for n in answer.k if n]:
        rows.append(("all answers", candidates(k)))
    chat.screen.table(rows)
