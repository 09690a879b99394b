"""Questions a minute of llama.cpp's own server and of mink-eval, on the same questions, in one run:

    python scripts/server_bench.py path/to/llama-server --task gsm8k --data gsm8k_test.jsonl

One cell (top-p at T = 1) and eight (top-p and min-p, temperature last, at T = 1, 2, 5 and 10). The server has
as many slots as it has clients, which ask for one cell after the other, as an evaluation through it would.
Both are loaded before the clock starts. Build the server from the source that llama-cpp-python carries
(vendor/llama.cpp) with the same options: otherwise two versions of llama.cpp are compared.
"""

import json
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from statistics import median

import click

from mink_local.cli import run
from mink_local.evals.run.data import locate
from mink_local.evals.run.grid import Variant, WorkItem
from mink_local.evals.run.worker import Worker
from mink_local.evals.tasks import TASKS
from mink_local.evals.tasks.base import Question
from mink_local.models.catalog import resolve
from mink_local.models.options import model_option
from mink_local.samplers import MinP, Sampler, TopP

ONE_CELL = [Variant(TopP(p=0.9), 1.0, 0)]
EIGHT_CELLS = [
    Variant(sampler, temperature, 0)
    for sampler in (TopP(p=0.9, order="temperature-last"), MinP(p=0.1, order="temperature-last"))
    for temperature in (1.0, 2.0, 5.0, 10.0)
]
LOADING_S, ANSWER_S = 300, 3600
POSITIVE = click.IntRange(min=1)

Took = tuple[float, int, int]  # seconds, answers, tokens


class Server:
    """llama-server with `n_slots` slots of `n_ctx` tokens."""

    def __init__(self, program: Path, model: Path, n_slots: int, n_ctx: int, n_threads: int) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self._url = f"http://127.0.0.1:{port}"
        self._n_slots = n_slots
        options = {"-np": n_slots, "-c": n_slots * n_ctx, "-t": n_threads, "-tb": n_threads, "--port": port}
        flat = [str(item) for option in options.items() for item in option]
        self._process = subprocess.Popen(
            [program, "-m", model, *flat], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

    def wait(self) -> None:
        deadline = time.monotonic() + LOADING_S
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                raise click.ClickException(f"the server ended with status {self._process.returncode}")
            try:
                urllib.request.urlopen(f"{self._url}/health", timeout=5).close()
            except OSError:
                time.sleep(0.2)
            else:
                return
        raise click.ClickException(f"the server was not ready after {LOADING_S} s")

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()

    def time(self, questions: Sequence[Question], cells: Sequence[Variant], max_tokens: int) -> Took:
        asked = [(question, cell) for cell in cells for question in questions]
        began = time.perf_counter()
        with ThreadPoolExecutor(self._n_slots) as clients:
            tokens = list(clients.map(lambda job: self._ask(job[0], job[1], max_tokens), asked))
        return time.perf_counter() - began, len(tokens), sum(tokens)

    def _ask(self, question: Question, cell: Variant, max_tokens: int) -> int:
        body = {
            "messages": [{"role": "user", "content": question.prompt}],
            "max_tokens": max_tokens,
            "temperature": cell.temperature,
            "top_k": 0,
            "top_p": 1.0,
            "min_p": 0.0,
            **_parameter(cell.sampler),
        }
        request = urllib.request.Request(
            f"{self._url}/v1/chat/completions",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=ANSWER_S) as answer:
            return int(json.load(answer)["usage"]["completion_tokens"])


def _parameter(sampler: Sampler) -> dict[str, float]:
    assert isinstance(sampler, TopP | MinP)
    return {"top_p": sampler.p} if isinstance(sampler, TopP) else {"min_p": sampler.p}


@contextmanager
def started(server: Server) -> Iterator[Server]:
    try:
        server.wait()
        yield server
    finally:
        server.stop()


def time_ours(
    worker: Worker, task: str, questions: Sequence[Question], cells: Sequence[Variant], max_tokens: int
) -> Took:
    worker.model.forget()
    jobs = [WorkItem("", task, question, max_tokens, tuple(cells)) for question in questions]
    began = time.perf_counter()
    tokens = [record.n_tokens for record in worker.answer(jobs)]
    return time.perf_counter() - began, len(tokens), sum(tokens)


@click.command(help=__doc__.split("\n\n")[0])
@click.argument("llama_server", type=click.Path(exists=True, dir_okay=False, executable=True, path_type=Path))
@model_option
@click.option("--task", type=click.Choice(sorted(TASKS)), default="sample-math", show_default=True)
@click.option("--data", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="The task's data.")
@click.option(
    "--questions",
    "limits",
    type=POSITIVE,
    nargs=2,
    default=(64, 24),
    show_default=True,
    help="Of one cell, of eight.",
)
@click.option("--clients", type=POSITIVE, default=16, show_default=True, help="And slots of the server.")
@click.option("--max-tokens", type=POSITIVE, default=96, show_default=True, help="Of an answer.")
@click.option("--threads", type=POSITIVE, default=2, show_default=True, help="Of either.")
@click.option("--rounds", type=POSITIVE, default=3, show_default=True)
def main(
    llama_server: Path,
    model: str,
    task: str,
    data: Path | None,
    limits: tuple[int, int],
    clients: int,
    max_tokens: int,
    threads: int,
    rounds: int,
) -> None:
    file = resolve(model)
    worker = Worker(str(file.path), 0, "auto", None, "auto", threads)
    questions = TASKS[task].read(locate(TASKS[task], data), 0)
    n_ctx = worker.context_for([question.prompt for question in questions[: max(limits)]], max_tokens)
    worker.reserve(n_ctx)
    for name, cells, limit in (("one cell", ONE_CELL, limits[0]), ("eight cells", EIGHT_CELLS, limits[1])):
        ratios = []
        for _ in range(rounds):
            with started(Server(llama_server, file.path, clients, n_ctx, threads)) as server:
                theirs = server.time(questions[:limit], cells, max_tokens)
            ours = time_ours(worker, task, questions[:limit], cells, max_tokens)
            ratios.append(theirs[0] / ours[0])
            for who, (seconds, answers, tokens) in (("llama-server", theirs), ("mink-eval", ours)):
                click.echo(
                    f"{name}: {who} {answers} answers of {tokens} tokens in {seconds:.1f} s: "
                    f"{60 * answers / seconds:.1f} a minute, {tokens / seconds:.1f} tokens/s"
                )
        click.echo(f"{name}: {median(ratios):.2f} x, median of {rounds} rounds ({ratios})")


if __name__ == "__main__":
    run(main, "server_bench")
