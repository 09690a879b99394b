"""`mink-models` as its users meet it: what it prints, what it refuses, and how it ends."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mink_local import cli
from mink_local.llama.devices import Gpu
from mink_local.models import catalog, info, memory
from mink_local.models.cli import cli as command_group
from mink_local.models.memory import Budget
from tests.models.conftest import Mink, Result

GB = 10**9


def cached(home: Path, content: bytes, *names: str) -> Path:
    """Files of the repository me/parrot as the Hub's cache has them; the folder of their commit."""
    folder = home / "hub/models--me--parrot"
    snapshot = folder / "snapshots" / ("c" * 40)
    for place in (folder / "blobs", folder / "refs", snapshot):
        place.mkdir(parents=True)
    (folder / "refs/main").write_text("c" * 40)
    for i, name in enumerate(names):
        (folder / "blobs" / f"{i:064}").write_bytes(content)
        (snapshot / name).symlink_to(folder / "blobs" / f"{i:064}")
    return snapshot


def rows(mink: Mink, *options: str) -> dict[str, dict[str, Any]]:
    result = mink("list", "--json", *options)
    assert result.status == 0
    return {row["name"]: row for row in json.loads(result.stdout)}


def test_list(mink: Mink, home: Path, tiny: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU with 10 GB, a machine with 20: what is here by its header, what is not by its size."""
    monkeypatch.setattr(memory, "memory_budget", lambda: Budget(20 * GB, 9 * GB))
    monkeypatch.setattr(info, "gpus", lambda: [Gpu("Parrot 3000", 10 * GB, 12 * GB)])
    whole = tiny().read_bytes()
    snapshot = cached(home, whole, "m-Q8_0.gguf", "m-Q4_K_M.gguf")
    (snapshot / "m-Q2_K.gguf").write_bytes(whole[:5000])
    found = rows(mink)
    assert found["smollm2-135m"]["fits"] == "GPU"
    assert found["smollm2-135m"]["size"] == 98_362_432
    assert found["smollm2-135m"]["path"] == str(catalog.resolve("smollm2-135m").path)
    assert found["llama-3-8b:Q8_0"]["fits"] == "GPU and CPU"
    assert found["llama-3-8b:Q4_K_M"] == {
        "name": "llama-3-8b:Q4_K_M",
        "size": 4_920_000_000,
        "path": None,
        "fits": "GPU",
        "source": "hf:bartowski/Meta-Llama-3-8B-Instruct-GGUF",
        "licence": "Llama 3",
        "note": "context of 8192 tokens",
    }
    assert found["qwen3-30b-a3b-instruct:Q6_K"]["fits"] == "GPU and CPU"
    assert found["llama-3-70b:Q4_K_M"]["fits"] == "no"
    assert found["hf:me/parrot:m-Q8_0.gguf"]["path"] == str(snapshot / "m-Q8_0.gguf")
    assert found["hf:me/parrot:m-Q2_K.gguf"]["fits"] == "damaged"
    assert mink("add", "parrot", "hf:me/parrot:Q8_0").status == 0
    here = rows(mink, "--here")
    assert list(here) == ["smollm2-135m", "parrot", "hf:me/parrot:m-Q2_K.gguf", "hf:me/parrot:m-Q4_K_M.gguf"]

    output = mink("list").stdout
    lines = output.splitlines()
    (embedded,) = (line for line in lines if line.startswith("smollm2-135m"))
    assert embedded.split()[:4] == ["smollm2-135m", "98", "MB", "GPU"]
    (llama,) = (line for line in lines if line.startswith("llama-3-8b"))
    assert llama.split() == ["llama-3-8b", "4.9+", "5.7+", "6.6+", "8.5~", "Llama", "3"]
    (large,) = (line for line in lines if line.startswith("llama-3-70b"))
    assert large.split()[1] == "42.5x"
    assert "20.0 GB of memory are free; Parrot 3000: 10.0 GB of 12.0 GB free." in output
    assert str(catalog.user_catalog_path()) in output.replace("\n", "")


def test_info_of_the_real_model(mink: Mink) -> None:
    facts = json.loads(mink("info", "smollm2-135m", "--ctx", 4096, "--json").stdout)
    assert {key: facts[key] for key in ("architecture", "parameters", "layers", "heads", "kv_heads")} == {
        "architecture": "llama",
        "parameters": 134_515_008,
        "layers": 30,
        "heads": 9,
        "kv_heads": 3,
    }
    assert (facts["size"], facts["context_length"]) == (98_362_432, 8192)
    assert facts["vocabulary"] == {"tokens": 49152, "kind": "gpt2", "split": "smollm"}
    assert (facts["chat_template"], facts["thinking"]) == (True, "no")
    mix = [(row["type"], row["tensors"]) for row in facts["tensor_types"]]
    assert mix == [("Q4_1", 210), ("Q8_0", 1), ("F32", 61)]
    assert sum(row["parameters"] for row in facts["tensor_types"]) == facts["parameters"]
    # layers, KV heads, their dimensions, keys and values, bytes
    assert facts["memory"]["kv_per_token"] == 30 * 3 * 64 * 2 * 2
    assert facts["memory"]["cpu"]["kv"] == 4096 * 23040
    output = mink("info", "smollm2-135m", "--ctx", 2048, "--parallel", 2).stdout
    assert "Q4_1      210 tensors      106,168,320 parameters       66.4 MB" in output
    assert "with 2,048 tokens for each of 2 answers, 23,040 bytes of KV cache per token:" in output
    assert "CPU: 210 MB = 97 MB weights + 94 MB KV cache + about 19 MB to compute with" in output


def test_info_of_a_model_that_is_partly_on_the_gpu(mink: Mink) -> None:
    options = ("--ctx", 4096, "--gpu-layers", 16, "--json")
    memory = json.loads(mink("info", "smollm2-135m", *options).stdout)["memory"]
    assert memory["gpu_layers"] == 16
    assert memory["gpu"]["kv"] == memory["cpu"]["kv"] == 15 * 4096 * 768


def test_info_with_a_quantized_cache(mink: Mink) -> None:
    for n_answers in (1, 3):
        options = ("--ctx", 4096, "--parallel", n_answers, "--kv-type", "q8_0", "--gpu-layers", 0, "--json")
        memory = json.loads(mink("info", "smollm2-135m", *options).stdout)["memory"]
        assert (memory["ctx"], memory["parallel"], memory["kv_per_token"]) == (4096, n_answers, 12240)
        assert memory["cpu"]["kv"] == n_answers * 4096 * 12240


def test_info_says_whether_a_model_thinks(mink: Mink, tiny: Callable[..., Path]) -> None:
    for template, thinks in (
        ("{{ messages }}", "no"),
        ("<think>{{ messages }}", "yes"),
        ("{% if enable_thinking %}<think>{% endif %}", "can be switched"),
        (None, "no"),
    ):
        facts = json.loads(mink("info", tiny(template=template), "--json").stdout)
        assert (facts["thinking"], facts["chat_template"]) == (thinks, template is not None)


def test_what_a_file_says_cannot_command_the_terminal(mink: Mink, tmp_path: Path) -> None:
    import gguf

    writer = gguf.GGUFWriter(tmp_path / "x.gguf", "llama")
    writer.add_name("\x1b[2Jparrot\x07\x9b")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    for options in ([], ["--json"]):
        output = mink("info", tmp_path / "x.gguf", *options).stdout
        assert "parrot" in output
        assert not {"\x1b", "\x07", "\x9b"} & set(output)


def test_rm(mink: Mink, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    snapshot = cached(home, b"GGUF" * 1000, "m-Q8_0.gguf", "m-Q4_K_M.gguf")
    other = snapshot.parent / ("d" * 40) / "m-Q8_0.gguf"  # the same file at an earlier commit
    other.parent.mkdir()
    other.symlink_to((snapshot / "m-Q8_0.gguf").readlink())
    monkeypatch.setattr("click.termui.visible_prompt_func", lambda _: "n")
    assert mink("rm", "hf:me/parrot:Q8_0").status == cli.INTERRUPTED
    assert (snapshot / "m-Q8_0.gguf").exists()
    assert mink("rm", "hf:me/parrot:Q8_0", "--yes") == Result(0, "", "4 kB are free again\n")
    assert [path.name for path in snapshot.parent.glob("*/*")] == ["m-Q4_K_M.gguf"]
    assert (snapshot / "m-Q4_K_M.gguf").read_bytes() == b"GGUF" * 1000
    assert len(list(snapshot.parents[1].glob("blobs/*"))) == 1
    result = mink("rm", "smollm2-135m", "--yes")
    assert result.status == 2
    assert "smollm2-135m was not pulled: its file is" in result.stderr
    assert catalog.resolve("smollm2-135m").path.exists()


def test_add(mink: Mink, tiny: Callable[..., Path]) -> None:
    path = tiny("parrot.gguf")
    assert mink("add", "parrot", path, "--licence", "MIT", "--note", "a bird").status == 0
    assert mink("path", "parrot") == Result(0, f"{path}\n", "")
    assert mink("add", "parrot", "hf:me/parrot:Q8_0", "--revision", "v1", "--size", "1.5").status == 0
    assert catalog.user_catalog_path().read_text().splitlines()[1:] == [
        "parrot | hf:me/parrot | Q8_0 | v1 | 1.5 | - | - | -"
    ]
    complaint = "mink-models: parrot is not here yet: type  mink-models pull parrot\n"
    assert mink("path", "parrot") == Result(2, "", complaint)


@pytest.mark.parametrize(
    ("arguments", "status", "complaint"),
    [
        (["info", "parrot"], 2, "unknown model 'parrot': name a .gguf file or one of smollm2-135m, "),
        (["path", "no/such.gguf"], 2, "there is no file no/such.gguf"),
        (["info", "llama-3-8b"], 2, "is not here yet: type  mink-models pull llama-3-8b:Q4_K_M"),
        (["info", "smollm2-135m", "--ctx", "0"], 2, "0 is not in the range"),
        (["add", "a b", "hf:o/r"], 1, "mink-models: invalid model name 'a b'"),
        (["add", "a", "no/such.gguf"], 2, "there is no file no/such.gguf"),
        (["add", "a", "hf:o/r", "--sha256", "abc"], 1, "the SHA-256 'abc' is not"),
        (["rm", "parrot"], 2, "unknown model 'parrot'"),
        (["fly"], 2, "No such command 'fly'"),
        (["pull"], 2, "Missing argument"),
    ],
)
def test_bad_input(mink: Mink, arguments: list[str], status: int, complaint: str) -> None:
    result = mink(*arguments)
    assert (result.status, result.stdout) == (status, "")
    assert complaint in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_damaged_file(mink: Mink, tmp_path: Path) -> None:
    (tmp_path / "x.gguf").write_bytes(b"GGUF\3")
    result = mink("info", tmp_path / "x.gguf")
    assert result.status == 1
    assert result.stderr.endswith("x.gguf is damaged: it ends within its metadata\n")


def test_help(mink: Mink) -> None:
    for arguments in ([], ["--help"], ["-h"]):
        result = mink(*arguments)
        assert (result.status, result.stderr) == (0, "")
        assert "mink-models pull llama-3-8b:Q5_K_M" in result.stdout
    for command in command_group.commands:
        assert mink(command, "--help").status == 0
