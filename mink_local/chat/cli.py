"""`mink-chat`: a conversation with a GGUF model in the terminal, or one answer to one prompt."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mink_local.chat.options import SETTINGS, in_groups
from mink_local.chat.screen import Screen, note
from mink_local.chat.settings import Settings, config_path, read_config
from mink_local.chat.store import Conversation, Store, default_path
from mink_local.cli import INTERRUPTED, run
from mink_local.errors import MinkError, ModelNotFoundError
from mink_local.version import __version__

if TYPE_CHECKING:
    from mink_local.chat.answer_stream import Answer
    from mink_local.chat.session import Session
    from mink_local.generation.model import Model

PROGRAM = "mink-chat"

EPILOG = """\b
Examples:
  mink-chat --temp 5
  mink-chat --prompt "Write a haiku about rain." --temp 2 --seed 7
  mink-chat --model ~/models/Qwen3-4B-Q4_K_M.gguf --ctx 8192
  git log -5 | mink-chat --system "Summarise this in one sentence."
  mink-chat --continue
  mink-chat --resume recipes --export recipes.md

\b
Settings: every option of the first four groups is also an environment variable,
--max-tokens being MINK_MAX_TOKENS, and a key of the table [chat] of
  {config}
The command line goes before the environment, the environment before the file.
/set changes a setting while chatting, /show says where each value is from.

\b
Completion, for bash (zsh, fish) in ~/.bashrc (~/.zshrc, config.fish):
  eval "$(_MINK_CHAT_COMPLETE=bash_source mink-chat)"
  eval "$(_MINK_CHAT_COMPLETE=zsh_source mink-chat)"
  _MINK_CHAT_COMPLETE=fish_source mink-chat | source

Exit status: 0 done, 1 failed, 2 wrong usage, 130 interrupted.
"""


class Grouped(click.Command):
    """A command whose help shows the settings in their groups."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for group, settings in in_groups().items():
            self._section(ctx, formatter, group, settings)
        others = [parameter for parameter in self.get_params(ctx) if parameter not in SETTINGS]
        self._section(ctx, formatter, "What to do", others)

    def _section(self, ctx: click.Context, formatter: click.HelpFormatter, title: str, options: Any) -> None:
        records = [record for option in options if (record := option.get_help_record(ctx))]
        with formatter.section(title):
            formatter.write_dl(records)


def _complete_conversation(_: click.Context, __: click.Parameter, incomplete: str) -> list[str]:
    if not default_path().exists():
        return []
    names = [conversation.name for conversation in Store(default_path()).conversations()]
    return [name for name in names if name and name.startswith(incomplete)]


@click.command(
    cls=Grouped,
    params=list(SETTINGS),
    epilog=EPILOG.format(config=config_path()),
    context_settings={"help_option_names": ["-h", "--help"], "show_default": True},
)
@click.option(
    "--prompt",
    "-p",
    metavar="TEXT",
    help="Answer TEXT and exit, printing only the answer; - reads it from standard input, as is done "
    "where that is no terminal.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the answer to a prompt as one JSON object.")
@click.option("--continue", "-c", "continued", is_flag=True, help="Go on with the last conversation.")
@click.option(
    "--resume",
    "-r",
    metavar="NAME",
    shell_complete=_complete_conversation,
    help="Go on with a conversation, by the name or number that --list shows.",
)
@click.option("--list", "listed", is_flag=True, help="List the conversations and exit.")
@click.option(
    "--export",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write the last conversation, or that of --resume, to FILE.md or FILE.json and exit.",
)
@click.option(
    "--config",
    metavar="FILE",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    envvar="MINK_CONFIG",
    is_eager=True,
    expose_value=False,
    callback=read_config,
    help="TOML file of settings.  [default: the one named below]",
)
@click.option("--verbose", is_flag=True, help="Show llama.cpp's log on standard error.")
@click.version_option(__version__, prog_name=PROGRAM)
def cli(
    prompt: str | None,
    as_json: bool,
    continued: bool,
    resume: str | None,
    listed: bool,
    export: Path | None,
    verbose: bool,
    **_: Any,
) -> None:
    """Chat with a GGUF model, its next token cut by Min-k before temperature is applied.

    The cut does not move with temperature: at --temp 5 or 10 the text stays coherent. Ctrl-C stops an
    answer, Ctrl-D or /exit leaves, /help lists the commands. Conversations are kept; a single answer to a
    prompt is not, unless it goes on with one.
    """
    settings = Settings(click.get_current_context())
    settings.check()
    if settings["system"]:
        settings["system"] = _without_surrogates(settings["system"])
    if continued and resume:
        raise click.UsageError("--continue and --resume exclude each other.")
    if listed or export:
        _list_or_export(resume, export)
        return
    prompt = _prompt(prompt)
    if as_json and prompt is None:
        raise click.UsageError("--json wants a prompt.")

    conversation = None
    store = _open_store(settings, needed=continued or resume is not None, one_shot=prompt is not None)
    if continued or resume:
        conversation = store.latest() if resume is None else store.find(resume)
        if not settings.given("model"):
            settings.put("model", conversation.model, "the conversation")

    load = _loader(settings, verbose)
    _begin(settings, store, conversation, load, prompt, as_json)


def _list_or_export(resume: str | None, path: Path | None) -> None:
    from mink_local.chat.inspect import list_conversations

    store = Store(default_path())
    if path is None:
        list_conversations(Screen(), store.conversations())
        return
    from mink_local.chat.export import KINDS, export

    if path.suffix not in KINDS:
        raise click.UsageError(f"--export wants a file that ends in {' or '.join(KINDS)}, not {path}.")
    export(store, store.latest() if resume is None else store.find(resume), path)


def _prompt(text: str | None) -> str | None:
    """What is to be answered once; None for a chat."""
    if text == "-" or (text is None and not sys.stdin.isatty()):
        text = sys.stdin.buffer.read().decode("utf-8", "replace")
    if text is not None and not text.strip():
        raise click.UsageError("the prompt is empty.")
    return None if text is None else _without_surrogates(text)


def _open_store(settings: Settings, needed: bool, one_shot: bool) -> Store:
    """The conversations on disk, or a place in memory where nothing is to be kept or can be."""
    if needed:
        return Store(default_path())
    if one_shot or not settings["store"]:
        return Store()
    try:
        return Store(default_path())
    except MinkError as error:
        note(f"({error}; this one is not being kept)")
        return Store()


def _loader(settings: Settings, verbose: bool) -> "Callable[[], Model]":
    from mink_local.generation.loading import load_model  # here, so that --help is quick

    return lambda: load_model(
        settings["model"],
        n_ctx=settings["ctx"],
        n_gpu_layers=settings["gpu_layers"],
        n_threads=settings["threads"],
        backend_sampling={"host": False, "auto": None}.get(settings["sampling"], True),
        verbose=verbose,
    )


def _begin(
    settings: Settings,
    store: Store,
    conversation: Conversation | None,
    load: "Callable[[], Model]",
    prompt: str | None,
    as_json: bool,
) -> None:
    import signal

    signal.signal(signal.SIGINT, signal.SIG_DFL)  # nothing to save yet: Ctrl-C leaves at once
    try:
        model = load()
    except ModelNotFoundError as error:
        if conversation is None or settings.given("model"):
            raise
        raise ModelNotFoundError(f"{error} (it held the conversation; --model names another)") from None
    signal.signal(signal.SIGINT, signal.default_int_handler)
    from mink_local.chat.session import Session

    note(f"{model.name} {model.placement}")
    session = Session(model, settings, store)
    system = settings["system"]
    unanswered = session.load(conversation) if conversation else None
    if settings.given("system"):
        session.set_system(system)
    if prompt is not None:
        _answer_once(session, prompt, as_json)
    else:
        _chat(session, load, unanswered)


def _answer_once(session: "Session", prompt: str, as_json: bool) -> None:
    from mink_local.chat.repl import tell_end

    settings = session.settings
    try:
        answer = session.ask(prompt)
        if as_json:
            pieces = list(answer)
            print(json.dumps(_as_json(answer, pieces), ensure_ascii=False))
        else:
            Screen(settings["plain"], settings["thoughts"]).stream(answer)
    except ValueError as error:  # what only the model could tell of an option: its grammar, its tokens
        raise click.UsageError(f"{error}.") from None
    if not as_json:
        tell_end(answer, settings["max_tokens"], session.model.n_ctx)
    if answer.reply.finish_reason == "interrupted":
        sys.exit(INTERRUPTED)


def _as_json(answer: "Answer", pieces: list[Any]) -> dict[str, Any]:
    outcome = answer.outcome
    assert outcome
    return {
        **vars(answer.how),
        "text": "".join(piece.text for piece in pieces if not piece.thinking),
        "thinking": "".join(piece.text for piece in pieces if piece.thinking),
        "finish_reason": outcome.finish_reason,
        "prompt_tokens": outcome.prompt_tokens,
        "evaluated_tokens": outcome.evaluated_tokens,
        "n_tokens": len(outcome.tokens),
        "tokens": outcome.tokens,
        "k": outcome.k,
        "timings": {
            "first_token_s": round(outcome.first_token_s, 4),
            "total_s": round(outcome.seconds, 4),
        },
    }


def _chat(session: "Session", load: "Callable[[], Model]", unanswered: str | None) -> None:
    from mink_local.chat.commands import recall
    from mink_local.chat.repl import Chat
    from mink_local.chat.terminal import LineInput, PlainInput

    settings = session.settings
    screen = Screen(settings["plain"], settings["thoughts"])
    chat = Chat(session, screen, load)
    note(
        f"{settings.sampler}, temperature {settings['temp']:g}. Ctrl-C stops an answer, Ctrl-D or /exit "
        "leaves, /help lists the commands."
    )
    chat.prefill = unanswered or ""
    if session.conversation is not None:
        recall(chat)
    if settings["plain"] or not screen.is_terminal or screen.is_dumb:
        chat.run(PlainInput())
    else:
        chat.run(LineInput(chat.complete, settings["keys"], settings["store"]))


def _without_surrogates(text: str) -> str:
    """Text as the terminal gave it, with U+FFFD for bytes that are no UTF-8."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def main() -> None:
    run(cli, PROGRAM)
