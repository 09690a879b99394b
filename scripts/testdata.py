"""Download the test data into the folder `shared` next to the checkout; existing files are kept.

GSM8K, AQuA and MATH500 come from their owners, vocabularies and chat templates from llama.cpp's repository.
Real logits (shared/logits) cannot be downloaded: without them, tests use the embedded model's.
"""

import shutil
import sys
from pathlib import Path

import click

from mink_local.errors import DataError
from mink_local.evals.run.questions import fetch
from mink_local.evals.tasks import TASKS
from mink_local.evals.tasks.base import Published

SHARED = Path(__file__).parents[2] / "shared"
LLAMA_CPP = "https://raw.githubusercontent.com/ggml-org/llama.cpp/master/models"
VOCABULARIES = {
    "ggml-vocab-llama-bpe.gguf": Published(
        f"{LLAMA_CPP}/ggml-vocab-llama-bpe.gguf",
        7_818_140,
        "97272e430d53bc7688f52d5e0ad8ea8f163ede9f1bbd1694feaa504797d5d96e",
    ),
    "ggml-vocab-qwen2.gguf": Published(
        f"{LLAMA_CPP}/ggml-vocab-qwen2.gguf",
        5_928_681,
        "44c2f46b715f585c6ab513970e8a006bfa5badd6108560054921cf598d154d8c",
    ),
    "Qwen-Qwen3-0.6B.jinja": Published(
        f"{LLAMA_CPP}/templates/Qwen-Qwen3-0.6B.jinja",
        4_116,
        "87a2728cb8dc9fe424d624542f6060ec05a1d285ebbec578bb078900e33396b5",
    ),
    "meta-llama-Llama-3.1-8B-Instruct.jinja": Published(
        f"{LLAMA_CPP}/templates/meta-llama-Llama-3.1-8B-Instruct.jinja",
        4_614,
        "e10ca381b1ccc5cf9db52e371f3b6651576caee0a630b452e2816b2d404d4b65",
    ),
}


@click.command()
def main() -> None:
    """Download the public data that some tests need, and print its sources."""
    sources = {f"data/{name}_test.jsonl": task.source for name, task in TASKS.items()}
    sources |= {f"vocab/{name}": source for name, source in VOCABULARIES.items()}
    failures = []
    for name, source in sources.items():
        path = SHARED / name
        if path.exists() or not isinstance(source, Published):
            continue
        try:
            downloaded = fetch(source, path.stem)
        except DataError as error:
            failures.append(str(error))
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(downloaded, path)
        print(f"{path}  from {source.url}")
    if failures:
        sys.exit("\n".join(failures))


if __name__ == "__main__":
    main()
