"""`mink-chat`: a conversation with a GGUF model in the terminal, or one answer to one prompt."""

import contextlib
import queue
import re
import signal
import sys
import threading
from collections.abc import Generator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TextIO

import click

from mink_local import __version__
from mink_local.cli import INTERRUPTED, GpuLayers, finite, model_option, run
from mink_local.errors import MinkError

if TYPE_CHECKING:
    from mink_local.model import Model, Reply, Sampling
    from mink_local.samplers import Sampler

PROGRAM = "mink-chat"

# What a terminal would obey instead of show: everything below a space but tab and newline, and C1.
_CONTROL_CHARACTERS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def note(text: str) -> None:
    """Say something that is not part of an answer."""
    click.echo(click.style(text, dim=True), err=True)


def drop_oldest_turns(
    messages: list[dict[str, str]], model: "Model", max_tokens: int | None
) -> tuple[list[dict[str, str]], int]:
    """`messages` that leave room for an answer, and how many turns were dropped for it.

    A turn is a user's message and its answer. Where the conversation has outgrown the context, the
    oldest turns go until half of it is free: dropping one at a time would change the beginning of the
    prompt, and with it the whole KV cache, at every turn. System messages and the last turn stay.
    """
    room = model.n_ctx // 4 if max_tokens is None else min(max_tokens, model.n_ctx // 4)
    if model.count_tokens(messages) <= model.n_ctx - room:
        return messages, 0
    system = [message for message in messages if message["role"] == "system"]
    others = [message for message in messages if message["role"] != "system"]
    starts = [i for i, message in enumerate(others) if message["role"] == "user"]
    for dropped, start in enumerate(starts):
        kept = system + others[start:]
        if dropped and model.count_tokens(kept) <= model.n_ctx // 2:
            break
    return kept, dropped


class Chat:
    """A conversation: its messages, and how the next answer is to be drawn."""

    def __init__(
        self, model: "Model", sampler: "Sampler", system: str | None, options: dict[str, Any]
    ) -> None:
        self.model = model
        self.sampler = sampler
        self.options = options
        self.messages = [{"role": "system", "content": system}] if system else []

    def answer(self, text: str) -> "Reply":
        """Print the answer to `text` as it comes and keep both. Nothing is kept where it fails, or
        where it is interrupted before its first token."""
        turn = {"role": "user", "content": text}
        max_tokens = self.options["max_tokens"]
        messages, dropped = drop_oldest_turns([*self.messages, turn], self.model, max_tokens)
        if dropped:
            note(f"(the conversation outgrew the context: {dropped} oldest turns were dropped)")
        reply = self.model.chat(messages, sampler=self.sampler, **self.options)
        pieces = []
        terminal = sys.stdout.isatty()
        with contextlib.closing(in_background(reply)) as stream:
            for piece in stream:
                pieces.append(piece)
                sys.stdout.write(_CONTROL_CHARACTERS.sub("", piece) if terminal else piece)
                sys.stdout.flush()
        if terminal or not pieces or not pieces[-1].endswith("\n"):
            sys.stdout.write("\n")
            sys.stdout.flush()
        if pieces:
            self.messages = [*messages, {"role": "assistant", "content": "".join(pieces)}]
        if reply.finish_reason == "interrupted":
            note("(interrupted)")
        elif reply.finish_reason == "length" and reply.n_tokens == max_tokens:
            note(f"(cut after {max_tokens} tokens: --max-tokens)")
        elif reply.finish_reason == "length":
            note(f"(cut: the context of {self.model.n_ctx} tokens is full)")
        return reply

    def run(self) -> None:
        """Read and answer messages until the end of the input or /exit."""
        with contextlib.suppress(ImportError):
            import readline  # noqa: F401  (gives input() editing and history)
        while True:
            try:
                text = input("> ").strip()
            except EOFError:
                print()
                return
            except KeyboardInterrupt:
                note("\n(Ctrl-D or /exit leaves)")
                continue
            if text == "/exit":
                return
            if not text:
                continue
            if re.fullmatch(r"/\w+", text):
                note(f"(there is no command {text}; /exit leaves)")
                continue
            try:
                self.answer(_without_surrogates(text))
            except (MinkError, ValueError) as error:
                note(f"({error})")
            except KeyboardInterrupt:
                note("(interrupted)")
            print()


def in_background(reply: "Reply") -> Generator[str, None, None]:
    """The pieces of a reply, generated in another thread, with Ctrl-C interrupting the reply.

    Python runs a signal's handler in the main thread only, which must not be inside llama.cpp then.
    """
    pieces: queue.SimpleQueue[str | BaseException | None] = queue.SimpleQueue()

    def generate() -> None:
        try:
            for piece in reply:
                pieces.put(piece)
        except BaseException as error:
            pieces.put(error)
        else:
            pieces.put(None)

    worker = threading.Thread(target=generate)
    before = signal.signal(signal.SIGINT, lambda *_: reply.interrupt())
    worker.start()
    try:
        while (piece := pieces.get()) is not None:
            if isinstance(piece, BaseException):
                raise piece
            yield piece
    finally:
        reply.interrupt()
        worker.join()
        signal.signal(signal.SIGINT, before)


def _without_surrogates(text: str) -> str:
    """Text as the terminal gave it, with U+FFFD for bytes that are no UTF-8."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _bias(text: str) -> tuple[int, float]:
    token, _, bias = text.partition("=")
    try:
        return int(token), float(bias)
    except ValueError:
        raise click.BadParameter(f"{text!r} is not TOKEN=BIAS, such as 198=-inf.") from None


def _constraints(asked_for: dict[str, Any]) -> dict[str, Any]:
    """The option of `Model.chat`, where there are any: without, the candidates need not all be laid out."""
    if not asked_for:
        return {}
    from mink_local.constraints import Constraints

    try:
        return {"constraints": Constraints(**asked_for)}
    except ValueError as error:
        raise click.UsageError(f"{error}.") from None


EXAMPLES = """\b
Examples:
  mink-chat --temp 5
  mink-chat --prompt "Write a haiku about rain." --temp 2 --seed 7
  mink-chat --model ~/models/Qwen3-4B-Q4_K_M.gguf --ctx 8192
  git log -5 | mink-chat --system "Summarise this in one sentence."

Exit status: 0 done, 1 failed, 2 wrong usage, 130 interrupted.
"""


@click.command(epilog=EXAMPLES, context_settings={"help_option_names": ["-h", "--help"]})
@model_option
@click.option(
    "--prompt",
    "-p",
    metavar="TEXT",
    help="Answer TEXT and exit, printing only the answer. Text on standard input does the same.",
)
@click.option("--system", metavar="TEXT", help="System prompt.")
@click.option(
    "--temp",
    "-t",
    type=click.FloatRange(min=0),
    default=1.0,
    show_default=True,
    callback=finite,
    metavar="T",
    help="Temperature, applied after the cut; 0 takes the likeliest token.",
)
@click.option(
    "--sampler",
    default="min-k",
    show_default=True,
    metavar="NAME[:OPTION=VALUE,…]",
    help="Which tokens may be drawn: min-k, top-p:p=0.9, min-p, top-k, top-n-sigma, eta, p-less, mirostat, "
    "greedy.",
)
@click.option(
    "--tau",
    type=click.FloatRange(min=0),
    callback=finite,
    metavar="TAU",
    help="Min-k's fallback for flat distributions; 0 switches it off.  [default: 3]",
)
@click.option(
    "--seed",
    type=click.IntRange(0, 2**32 - 2),
    metavar="N",
    help="Repeat an answer: same seed, same text.  [default: random]",
)
@click.option(
    "--repeat-penalty",
    type=click.FloatRange(min=0, min_open=True),
    metavar="X",
    help="Above 1: repeated tokens lose logits.",
)
@click.option("--frequency-penalty", type=float, metavar="X", help="For every repetition.")
@click.option("--presence-penalty", type=float, metavar="X", help="Once for what was there.")
@click.option("--dry-multiplier", type=float, metavar="X", help="Above 0: DRY, for phrases.")
@click.option(
    "--logit-bias", multiple=True, metavar="TOKEN=BIAS", help="Added to a token's logit; -inf bans it."
)
@click.option("--grammar", metavar="FILE", type=click.File(encoding="utf-8"), help="GBNF to answer in.")
@click.option(
    "--json-schema", metavar="FILE", type=click.File(encoding="utf-8"), help="Answer in JSON of this schema."
)
@click.option(
    "--max-tokens",
    "-n",
    type=click.IntRange(min=1),
    metavar="N",
    help="Longest answer.  [default: as far as the context goes]",
)
@click.option(
    "--ctx",
    type=click.IntRange(min=1),
    metavar="N",
    help="Tokens that the conversation may have, the answer included.  [default: 4096]",
)
@click.option(
    "--gpu-layers",
    type=GpuLayers(),
    default="auto",
    show_default=True,
    help="Layers on the GPU; auto puts there what fits.",
)
@click.option(
    "--sampling",
    type=click.Choice(["auto", "host", "graph"]),
    default="auto",
    show_default=True,
    help="Where tokens are drawn: in llama.cpp's graph, so that no logits leave the GPU, or on the host.",
)
@click.option(
    "--threads",
    type=click.IntRange(min=1),
    metavar="N",
    help="CPU threads.  [default: one for every physical core]",
)
@click.option("--verbose", is_flag=True, help="Show llama.cpp's log on standard error.")
@click.version_option(__version__, prog_name=PROGRAM)
def cli(
    model: str,
    prompt: str | None,
    system: str | None,
    temp: float,
    sampler: str,
    tau: float | None,
    seed: int | None,
    repeat_penalty: float | None,
    frequency_penalty: float | None,
    presence_penalty: float | None,
    dry_multiplier: float | None,
    logit_bias: Sequence[str],
    grammar: TextIO | None,
    json_schema: TextIO | None,
    max_tokens: int | None,
    ctx: int | None,
    gpu_layers: Any,
    sampling: "Sampling",
    threads: int | None,
    verbose: bool,
) -> None:
    """Chat with a GGUF model, its next token cut by Min-k before temperature is applied.

    The cut does not move with temperature: at --temp 5 or 10 the text stays coherent. Ctrl-C stops an
    answer, Ctrl-D or /exit leaves.
    """
    from mink_local.loading import load_model  # here, so that --help is quick
    from mink_local.samplers import MinK, parse

    try:
        chosen = parse(sampler)
    except ValueError as error:
        raise click.BadParameter(f"{error}.", param_hint="'--sampler'") from None
    if tau is not None:
        if not isinstance(chosen, MinK):
            raise click.UsageError(f"--tau is min-k's, not {chosen.name}'s.")
        chosen = replace(chosen, tau=tau)
    constraints = {
        "logit_bias": dict(map(_bias, logit_bias)),
        "repeat_penalty": repeat_penalty,
        "frequency_penalty": frequency_penalty,
        "presence_penalty": presence_penalty,
        "dry_multiplier": dry_multiplier,
        "grammar": grammar.read() if grammar else None,
        "json_schema": json_schema.read() if json_schema else None,
    }
    options: dict[str, Any] = {"temperature": temp, "max_tokens": max_tokens, "seed": seed}
    options |= _constraints({name: value for name, value in constraints.items() if value})
    if prompt is None and not sys.stdin.isatty():
        prompt = sys.stdin.buffer.read().decode("utf-8", "replace")
    if prompt is not None and not prompt.strip():
        raise click.UsageError("the prompt is empty.")

    signal.signal(signal.SIGINT, signal.SIG_DFL)  # nothing to save yet: Ctrl-C leaves at once
    loaded = load_model(
        model,
        n_ctx=ctx,
        n_gpu_layers=gpu_layers,
        n_threads=threads,
        sampling=sampling,
        verbose=verbose,
    )
    signal.signal(signal.SIGINT, signal.default_int_handler)
    note(f"{loaded.name} {loaded.placement}")
    chat = Chat(loaded, chosen, _without_surrogates(system) if system else None, options)
    if prompt is None:
        note(f"{chosen}, temperature {temp:g}. Ctrl-C stops an answer, Ctrl-D or /exit leaves.")
        chat.run()
        return
    try:
        reply = chat.answer(_without_surrogates(prompt))
    except ValueError as error:  # what only the model could tell of an option: its grammar, its tokens
        raise click.UsageError(f"{error}.") from None
    if reply.finish_reason == "interrupted":
        sys.exit(INTERRUPTED)


def main() -> None:
    run(cli, PROGRAM)


if __name__ == "__main__":
    main()
