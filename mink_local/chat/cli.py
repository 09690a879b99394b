"""`mink-chat`: a conversation with a GGUF model in the terminal, or one answer to one prompt."""

import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from mink_local.chat.settings import (
    RARE,
    SETTINGS,
    config_path,
    model_name,
    read_config,
    warn_of_variables,
)
from mink_local.cli import command_line_text, decoded, run
from mink_local.errors import MinkError
from mink_local.models.catalog import is_named, resolve
from mink_local.version import __version__

if TYPE_CHECKING:
    from mink_local.chat.conversation.store import ConversationStore

PROGRAM = "mink-chat"

EPILOG = """\b
Examples:
  mink-chat --preset creative
  mink-chat "What is a haiku?"
  mink-chat --prompt "Write a haiku about rain." --temp 2 --seed 7
  mink-chat ~/models/Qwen3-4B-Q4_K_M.gguf --ctx 8192
  mink-chat --file notes.txt --file plan.md "What is missing in the plan?"
  git log -5 | mink-chat "Summarise this in one sentence."
  while read -r line; do mink-chat "$line" < /dev/null; done < questions.txt
  mink-chat --continue
  mink-chat --resume recipes --export recipes.md

\b
Settings: every option except those under "What to do" is also an environment
variable (MINK_MAX_TOKENS for --max-tokens; MINK_CONFIG is --config) and a key
of the table [chat] in
  {config}
The command line overrides the environment, the environment overrides the
file. While chatting, /set changes a setting and /show says where each value
comes from. A conversation keeps its sampling settings and its model.

\b
What this program does not do: images, tools and MCP, retrieval. llm, oterm
and Open WebUI do, with mink-serve as their server (see docs/clients.md).

\b
Completion: add one line to the start-up file of your shell.
  bash: eval "$(_MINK_CHAT_COMPLETE=bash_source mink-chat)"
  zsh:  eval "$(_MINK_CHAT_COMPLETE=zsh_source mink-chat)"
  fish: _MINK_CHAT_COMPLETE=fish_source mink-chat | source

Exit status: 0 success, 1 failure, also if there is no answer or if --json-schema
or --grammar cut it off, 2 wrong usage or unknown model, 130 interrupted.
"""


def _with_standard_input(prompt: str | None) -> str | None:
    """Return standard input with the prompt after it; None if there is neither."""
    is_piped = sys.stdin is not None and not sys.stdin.isatty()
    if not is_piped and prompt != "-":
        return prompt
    piped = decoded(sys.stdin.buffer.read(), "standard input").rstrip("\r\n")
    return "\n\n".join(part for part in (piped, prompt) if part and part != "-")


def _without_model(ctx: click.Context, texts: tuple[str, ...]) -> tuple[str, ...]:
    """Make a model that is named in place of a prompt, or before one, that of --model; return the rest."""
    if not (texts and is_named(texts[0])):
        return texts
    if ctx.get_parameter_source("model") is ParameterSource.COMMANDLINE:
        raise click.UsageError(f"give {texts[0]!r} or --model, not both.")
    ctx.params["model"] = model_name(texts[0])
    ctx.set_parameter_source("model", ParameterSource.COMMANDLINE)
    return texts[1:]


class GroupedCommand(click.Command):
    """A command whose help has a section for each group of settings, and one for the other options."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        groups: dict[str, list[tuple[str, str]]] = {}
        for option in self.get_params(ctx):
            group = getattr(option, "group", "What to do")
            if isinstance(option, click.Option) and (record := option.get_help_record(ctx)):
                groups.setdefault(group, []).append(record)
        last = groups.pop(RARE, [])
        for group, records in {**groups, RARE: last}.items():
            with formatter.section(group):
                formatter.write_dl(records)


def _stored() -> "ConversationStore":
    """Return the conversations on disk: none, rather than a new file, if there is no file."""
    from mink_local.chat.conversation.store import ConversationStore, default_path

    return ConversationStore(default_path() if default_path().exists() else None)


def _list(text: str) -> None:
    """Print the conversations that contain a text."""
    from mink_local.chat.listing import show_conversations
    from mink_local.chat.terminal.screen import Screen

    show_conversations(Screen(), _stored(), text)


def _export(name: str, path: Path) -> None:
    """Write a conversation to a file, which must not be there yet unless the user says so."""
    from mink_local.chat.conversation.export import FORMATS, export
    from mink_local.chat.terminal.screen import Screen

    if path.suffix not in FORMATS:
        raise click.UsageError(f"--export {path}: the file must end in {' or '.join(FORMATS)}.")
    store = _stored()
    conversation = store.find(name)
    if path.exists() and not (
        sys.stdin.isatty() and click.confirm(f"{path} exists: overwrite it?", err=True)
    ):
        raise MinkError(f"{path} was not overwritten: name another file")
    export(store, conversation, path)
    Screen().note(f"{conversation.label} is in {path}")


def _complete_conversation(_: click.Context, __: click.Parameter, incomplete: str) -> list[str]:
    with suppress(MinkError):  # completion is no place for complaints
        names = [conversation.name for conversation in _stored().conversations()]
        return [name for name in names if name and name.startswith(incomplete)]
    return []


@click.command(
    cls=GroupedCommand,
    params=list(SETTINGS),
    epilog=EPILOG.format(config=config_path()),
    context_settings={"help_option_names": ["-h", "--help"], "show_default": True},
)
@click.argument("texts", nargs=-1, metavar="[MODEL] [PROMPT]")
@click.option(
    "--prompt",
    "-p",
    type=command_line_text,
    metavar="TEXT",
    help="Print the answer to TEXT and exit; the same as PROMPT. Standard input, if it is not a terminal, is "
    "read to its end and goes before TEXT; - also reads it from a terminal.",
)
@click.option(
    "--file",
    "files",
    multiple=True,
    metavar="FILE",
    type=click.Path(path_type=Path, exists=True, dir_okay=False, allow_dash=True),
    help="Put a text file before the prompt, or before the first message of a chat; repeatable.",
)
@click.option(
    "--preset",
    metavar="NAME",
    help="Begin with the settings of a preset, unless they are given: creative, prose, code, mathematics, or "
    "a table [preset.NAME] of the configuration file, which /preset save NAME writes.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the answer to a prompt as a JSON object.")
@click.option("--continue", "-c", "continued", is_flag=True, help="Continue the last conversation.")
@click.option(
    "--resume",
    "-r",
    type=command_line_text,
    metavar="NAME",
    shell_complete=_complete_conversation,
    help="Continue a conversation by its name or number, which --list shows.",
)
@click.option(
    "--list",
    "listed",
    is_flag=True,
    help="List the last 20 conversations (all of them into a pipe), or those that contain PROMPT, and exit.",
)
@click.option(
    "--export",
    "export_path",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write the last conversation, or the one of --resume, to FILE.md or FILE.json and exit.",
)
@click.option(
    "--config",
    metavar="FILE",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    envvar="MINK_CONFIG",
    is_eager=True,
    callback=read_config,
    help="TOML file with settings.  [default: see below]",
)
@click.option(
    "--verbose",
    is_flag=True,
    help="Show llama.cpp's log while the model loads; with a prompt, also which model answers.",
)
@click.version_option(__version__, prog_name=PROGRAM)
@click.pass_context
def cli(
    ctx: click.Context,
    /,
    texts: tuple[str, ...],
    prompt: str | None,
    files: tuple[Path, ...],
    as_json: bool,
    continued: bool,
    resume: str | None,
    listed: bool,
    export_path: Path | None,
    **_: Any,
) -> int:
    """Chat with a GGUF model. Min-k chooses the candidates of each token before temperature is applied.

    Temperature does not change the candidates: at --temp 5 or 10 the text stays coherent. Ctrl-C stops an
    answer, Ctrl-D or /exit quits, /help lists the commands. Conversations are saved; one-shot answers only
    with --continue or --resume.
    """
    if Path("-") in files:
        raise click.UsageError("standard input goes before the prompt by itself: leave out --file -.")
    texts = tuple(map(command_line_text, texts if listed else _without_model(ctx, texts)))
    if len(texts) > 1:
        raise click.UsageError(f'a prompt of several words needs quotes: "{" ".join(texts)}"')
    text = texts[0] if texts else None
    warn_of_variables()
    if continued and resume:
        raise click.UsageError("give --continue or --resume, not both.")
    if text is not None and prompt is not None:
        raise click.UsageError(f"give {text!r} or --prompt, not both.")
    if export_path and (listed or text or prompt):
        raise click.UsageError(f"--export {export_path}: give no prompt, and no --list, with it.")
    if as_json and (listed or export_path):
        raise click.UsageError("--json prints an answer: it changes nothing for --list and --export.")
    if listed:
        _list(text or prompt or "")
    elif export_path:
        _export(resume or "", export_path)
    else:
        given = prompt if text is None else text
        prompt = _with_standard_input(given)
        if prompt is not None and not prompt.strip():
            resolve(ctx.params["model"])  # that there is no such model comes first
            raise click.UsageError(f"{'the prompt' if given else 'standard input'} is empty.")
        if as_json and prompt is None:
            raise click.UsageError("--json needs a prompt.")
        from mink_local.chat.startup import Startup

        startup = Startup(ctx, "" if continued else resume, is_chat=prompt is None, files=files)
        if prompt is not None:
            return startup.answer(prompt, as_json)
        startup.chat()
    return 0


def main() -> None:
    """Run the program."""
    run(cli, PROGRAM)
