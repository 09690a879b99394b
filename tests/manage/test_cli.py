"""`mink-models` as its users meet it: what it prints, what it refuses, and how it ends."""

import json
import os
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import click
import gguf
import pytest

from mink_local import cli
from mink_local.errors import ModelNotFoundError
from mink_local.llama.devices import Gpu
from mink_local.manage import table
from mink_local.manage.info import model_info
from mink_local.models import catalog, memory, stores
from mink_local.models.gguf import Metadata, Tensor
from mink_local.models.memory import Budget, choose_placement
from mink_local.models.options import complete_model
from tests.support.python import Finished, Mink
from tests.support.tiny import Shape, write_gguf

GB = 10**9


def cached(home: Path, content: bytes, *names: str) -> Path:
    """Files of the repository me/parrot as the Hub's cache has them; the folder of their commit.

    Where links need a privilege, as on Windows, the files themselves are there.
    """
    folder = home / "hub/models--me--parrot"
    snapshot = folder / "snapshots" / ("c" * 40)
    for place in (folder / "blobs", folder / "refs", snapshot):
        place.mkdir(parents=True)
    (folder / "refs/main").write_text("c" * 40)
    for i, name in enumerate(names):
        (folder / "blobs" / f"{i:064}").write_bytes(content)
        try:
            (snapshot / name).symlink_to(folder / "blobs" / f"{i:064}")
        except OSError:
            (folder / "blobs" / f"{i:064}").rename(snapshot / name)
    return snapshot


def adapter(path: Path) -> None:
    """Write the beginning of a LoRA adapter."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_type("adapter")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()


def rows(mink: Mink, *options: str) -> dict[str, dict[str, Any]]:
    listed = json.loads(mink("list", "--json", *options).succeeded().stdout)
    return {row["name"]: row for row in listed}


def test_list(mink: Mink, home: Path, tiny: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU with 8 GB to spare, a machine with 20: what is here by its header, what is not by its size."""
    monkeypatch.setattr(memory, "memory_budget", lambda: Budget(20 * GB, 8 * GB))
    monkeypatch.setattr(table, "gpus", lambda: [Gpu("Parrot 3000", 10 * GB, 12 * GB)])
    whole = tiny().read_bytes()
    snapshot = cached(home, whole, "m-Q8_0.gguf", "m-Q4_K_M.gguf")
    (snapshot / "m-Q2_K.gguf").write_bytes(whole[:5000])
    found = rows(mink)
    parrot = "hf:me/parrot:m-{}.gguf"
    fits = {
        "smollm2-135m": "GPU",
        "llama-3-8b:Q4_K_M": "GPU",
        "llama-3-8b:Q8_0": "GPU and CPU",
        "qwen3-30b-a3b-instruct:Q6_K": "GPU and CPU",
        "llama-3-70b:Q4_K_M": "no",
        parrot.format("Q2_K"): "damaged",
    }
    assert {name: found[name]["fits"] for name in fits} == fits
    places = {
        "smollm2-135m": (98_362_432, str(catalog.resolve("smollm2-135m").path)),
        "llama-3-8b:Q4_K_M": (4_920_000_000, None),
        parrot.format("Q8_0"): (len(whole), str(snapshot / "m-Q8_0.gguf")),
    }
    assert {name: (found[name]["size"], found[name]["path"]) for name in places} == places
    assert {"name", "source", "licence", "note"} < found["smollm2-135m"].keys()
    assert mink("add", "parrot", "hf:me/parrot:Q8_0").status == 0
    here = rows(mink, "--here")
    assert list(here) == ["parrot", "smollm2-135m", parrot.format("Q2_K"), parrot.format("Q4_K_M")]

    output = mink("list").stdout
    for line in (
        r"smollm2-135m +98\.4 MB +GPU ",
        r"llama-3-8b +4\.9\+ +5\.7\+ +6\.6\+ +8\.5~ +Llama-3 *$",
        r"llama-3-70b +42\.5x ",
        r"20\.0 GB of memory free; Parrot 3000: 10\.0 GB of 12\.0 GB free",
    ):
        assert re.search(f"^{line}", output, re.MULTILINE)
    assert not re.search(" $", output, re.MULTILINE)
    assert str(catalog.user_catalog_path()) in output.replace("\n", "")


def test_info_of_the_real_model(mink: Mink) -> None:
    facts = json.loads(mink("info", "smollm2-135m", "--ctx", 4096, "--json").stdout)
    expected = {
        "architecture": "llama",
        "size": 98_362_432,
        "parameters": 134_515_008,
        "layers": 30,
        "heads": 9,
        "kv_heads": 3,
        "context_length": 8192,
        "vocabulary": {"tokens": 49152, "kind": "gpt2", "split": "smollm"},
        "chat_template": True,
        "reasoning": "no",
    }
    assert {key: facts[key] for key in expected} == expected
    mix = [(row["type"], row["tensors"]) for row in facts["tensor_types"]]
    assert mix == [("Q4_1", 210), ("Q8_0", 1), ("F32", 61)]
    assert sum(row["parameters"] for row in facts["tensor_types"]) == facts["parameters"]
    # layers, KV heads, their dimensions, keys and values, bytes
    assert facts["memory"]["kv_per_token"] == 30 * 3 * 64 * 2 * 2
    assert facts["memory"]["cpu"]["kv"] == 4096 * 23040
    output = mink("info", "smollm2-135m", "--ctx", 2048, "--parallel", 2).stdout
    types = "Q4_1      210 tensors      106,168,320 parameters    66.4 MB"
    for text in (types, "2,048 tokens for each of 2", "23,040 bytes", "94.4 MB KV cache"):
        assert text in output


def test_memory_in_info(mink: Mink) -> None:
    def memory(*options: object) -> Any:
        return json.loads(mink("info", "smollm2-135m", "--ctx", 4096, "--json", *options).stdout)["memory"]

    half = memory("--gpu-layers", 16)
    assert half["gpu_layers"] == 16
    assert half["gpu"]["kv"] == half["cpu"]["kv"] == 15 * 4096 * 768
    three = memory("--parallel", 3, "--kv-type", "q8_0", "--gpu-layers", 0)
    assert (three["ctx"], three["parallel"], three["kv_per_token"]) == (4096, 3, 12240)
    assert three["cpu"]["kv"] == 3 * 4096 * 12240


def test_info_of_a_mixture(mink: Mink, tiny: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """What it needs with all of it on the GPU, and with its experts on the CPU, whatever fits."""
    path = tiny(shape=Shape("qwen3moe", layers=2, experts=4))
    monkeypatch.setattr(memory, "memory_budget", lambda: Budget(20 * GB, 8 * GB))
    whole = json.loads(mink("info", path, "--json").stdout)["memory"]
    assert whole["n_cpu_moe"] == 0
    assert whole["gpu"] == whole["all_on_gpu"]["gpu"]
    both = [whole["all_on_gpu"], whole["experts_on_cpu"]]
    experts = 2 * 3 * 4 * 64 * 64 * 2  # layers, matrices, experts, numbers of 2 bytes
    assert both[0]["gpu"]["weights"] - both[1]["gpu"]["weights"] == experts
    assert both[1]["cpu"]["weights"] - both[0]["cpu"]["weights"] == experts
    assert "experts on the CPU: " in mink("info", path).stdout
    monkeypatch.setattr(memory, "memory_budget", lambda: Budget(20 * GB, whole["gpu"]["total"] - 1))
    assert json.loads(mink("info", path, "--json").stdout)["memory"]["n_cpu_moe"] == 1
    assert "experts_on_cpu" not in json.loads(mink("info", tiny(), "--json").stdout)["memory"]
    assert re.search(r" 1 layer of 64\n.* 2 heads", mink("info", tiny()).stdout)


def test_info_of_a_hybrid_mixture() -> None:
    """Its checkpoints take memory wherever its experts are."""
    sizes = {"block_count": 1, "embedding_length": 64, "ssm.inner_size": 64, "ssm.state_size": 16}
    values = {"general.architecture": "x", **{f"x.{key}": size for key, size in sizes.items()}}
    tensors = (Tensor("blk.0.ssm_a", "F32", 1, 4), Tensor("blk.0.ffn_up_exps.weight", "F32", 1, 4))
    metadata = Metadata(Path(), values, tensors, 8)
    found = model_info(metadata, choose_placement(metadata, Budget(20 * GB), n_ctx=4096))["memory"]
    cpu = [ways["cpu"]["checkpoints"] for ways in (found, found["all_on_gpu"], found["experts_on_cpu"])]
    assert cpu == [512 * 10**6] * 3


@pytest.mark.parametrize(
    ("template", "reasons"),
    [
        ("{{ messages }}", "no"),
        ("<think>{{ messages }}", "yes"),
        ("{{ messages }}{% if enable_thinking %}<think>{% endif %}", "optional"),
        (None, "no"),
    ],
)
def test_info_says_whether_a_model_reasons(
    mink: Mink, tiny: Callable[..., Path], template: str | None, reasons: str
) -> None:
    facts = json.loads(mink("info", tiny(template=template), "--json").stdout)
    assert (facts["reasoning"], facts["chat_template"]) == (reasons, template is not None)


def test_what_a_file_says_cannot_command_the_terminal(mink: Mink, tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "x.gguf", "\x1b[2Jparrot\x07\x9b", {}, {})
    for options in ([], ["--json"]):
        output = mink("info", path, *options).stdout
        assert "parrot" in output
        assert not {"\x1b", "\x07", "\x9b"} & set(output)


@pytest.mark.posix
def test_rm(mink: Mink, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    snapshot = cached(home, b"GGUF" * 1000, "m-Q8_0.gguf", "m-Q4_K_M.gguf")
    other = snapshot.parent / ("d" * 40) / "m-Q8_0.gguf"  # the same file at an earlier commit
    other.parent.mkdir()
    other.symlink_to((snapshot / "m-Q8_0.gguf").readlink())
    monkeypatch.setattr("click.termui.visible_prompt_func", lambda _: "n")
    assert mink("rm", "hf:me/parrot:Q8_0").status == cli.INTERRUPTED
    assert (snapshot / "m-Q8_0.gguf").exists()
    result = mink("rm", "hf:me/parrot:Q8_0", "--yes")
    assert (result.status, result.stdout) == (0, "")
    assert "4.0 kB" in result.stderr
    assert [path.name for path in snapshot.parent.glob("*/*")] == ["m-Q4_K_M.gguf"]
    assert (snapshot / "m-Q4_K_M.gguf").read_bytes() == b"GGUF" * 1000
    assert len(list(snapshot.parents[1].glob("blobs/*"))) == 1
    catalog.choose_model("hf:me/parrot:Q4_K_M")
    assert catalog.EMBEDDED in mink("rm", "hf:me/parrot:Q4_K_M", "--yes").stderr
    assert catalog.chosen_model() == catalog.EMBEDDED
    mink("rm", "smollm2-135m", "--yes").refused(2, "smollm2-135m")
    assert catalog.resolve("smollm2-135m").path.exists()


@pytest.mark.posix
def test_rm_keeps_what_another_name_has_too(mink: Mink, home: Path) -> None:
    snapshot = cached(home, b"GGUF" * 1000, "m-Q8_0.gguf")
    (snapshot / "n-Q4_K_M.gguf").symlink_to((snapshot / "m-Q8_0.gguf").readlink())
    assert "4.0 kB" in mink("rm", "hf:me/parrot:Q8_0", "--yes").succeeded().stderr
    assert [path.name for path in snapshot.iterdir()] == ["n-Q4_K_M.gguf"]
    assert (snapshot / "n-Q4_K_M.gguf").stat().st_size == 4000
    mink("rm", "hf:me/parrot:Q4_K_M", "--yes").succeeded()
    assert not [*snapshot.iterdir(), *snapshot.parents[1].glob("blobs/*")]


def test_add(mink: Mink, tiny: Callable[..., Path]) -> None:
    path = tiny("parrot.gguf")
    assert mink("add", "parrot", path, "--licence", "MIT", "--note", "a bird").status == 0
    assert mink("path", "parrot") == Finished(0, f"{path}\n", "")
    assert mink("add", "parrot", "hf:me/parrot:Q8_0", "--revision", "v1", "--size", "1.5").status == 0
    added = catalog.CatalogEntry("parrot", "hf:me/parrot@v1", "Q8_0", 1_500_000_000)
    assert catalog.user_catalog_path().read_text().count("\n") == 1
    assert catalog.own_entries() == [added]
    assert mink("path", "parrot").refused(2, "parrot").stdout == ""


def test_add_all_models_in_a_folder(mink: Mink, home: Path, tiny: Callable[..., Path]) -> None:
    """By the names of their files; projectors, other parts and what is no model are left out."""
    model = tiny("a model.gguf")
    folder = home / "my models"
    names = (
        "parrot-Q8_0.gguf",
        "two/parrot-Q8_0.gguf",
        "mmproj-parrot.gguf",
        "smollm2-135m.gguf",
        "b c (1).gguf",
        "too/two/parrot-Q8_0.gguf",
    )
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).hardlink_to(model)
    adapter(folder / "lora.gguf")
    (folder / "empty.gguf").touch()
    for _ in range(2):  # the second time changes nothing
        added = mink("add", folder).succeeded().stderr
        assert [name for name in ("empty.gguf", "lora.gguf") if name not in added] == []
        found = {entry.name: entry.source for entry in catalog.own_entries()}
        places = {
            "parrot-Q8_0": names[0],
            "two-parrot-Q8_0": names[1],
            "my-models-smollm2-135m": names[3],
            "b-c-1-": names[4],
            "too-two-parrot-Q8_0": names[5],
        }
        assert found == {name: f"file:{folder / path}" for name, path in places.items()}
    assert mink("path", "parrot-Q8_0").stdout == f"{folder / names[0]}\n"
    assert mink("add", model).status == 0
    assert mink("path", "a-model").stdout == f"{model}\n"
    (home / "none").mkdir()
    mink("add", home / "none").refused(2, "none")
    mink("add", home / "nowhere").refused(2, "nowhere")


def test_files_where_people_keep_them(mink: Mink, home: Path, tiny: Callable[..., Path]) -> None:
    """They are listed by a path that every command takes, and found by the name of the file."""
    model = tiny("a model.gguf")
    places = ("Downloads/my7b.gguf", "models/me/parrot/parrot.gguf", ".cache/llama.cpp/x.gguf")
    for place in places:
        (home / place).parent.mkdir(parents=True)
        (home / place).hardlink_to(model)
    with suppress(OSError):  # on Windows links need a privilege
        (home / "Downloads/broken.gguf").symlink_to(home / "nothing")
    here = rows(mink, "--here")
    assert [name for name in here if name.startswith("~")] == [f"~/{place}" for place in places]
    for name in ("my7b", "~/Downloads/my7b.gguf"):
        assert mink("path", name).stdout == f"{home / places[0]}\n"
    assert mink("path", "parrot").stdout == f"{home / places[1]}\n"


def test_rm_of_a_name_of_ones_own(mink: Mink, home: Path, tiny: Callable[..., Path]) -> None:
    """The line goes, and with it what was pulled, but no other file."""
    snapshot = cached(home, b"GGUF", "m-Q8_0.gguf", "m-Q4_K_M.gguf")
    path = tiny("parrot.gguf")
    for name, model in (("a:Q8", "hf:me/parrot:Q8_0"), ("a:Q4", "hf:me/parrot:Q2_K"), ("b", path)):
        assert mink("add", name, model).status == 0
    lines = catalog.user_catalog_path().read_text().splitlines(keepends=True)
    for name, files in (("b", 2), ("a:Q4", 2), ("a", 1)):  # the second was never pulled
        assert mink("rm", name, "--yes").status == 0
        assert len(list(snapshot.iterdir())) == files
        lines.pop()
        assert catalog.user_catalog_path().read_text() == "".join(lines)
    assert path.exists()
    mink("rm", "b", "--yes").refused(2, "'b'")


def test_rm_where_the_embedded_model_is_not_installed(
    mink: Mink, tiny: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is chosen: the first chat will still offer a model."""
    assert mink("add", "parrot", tiny()).status == 0
    monkeypatch.setattr(stores, "in_package", Mock(side_effect=ModelNotFoundError))
    assert "default" not in mink("rm", "parrot").succeeded().stderr
    assert catalog.chosen_model() is None


def test_completion_offers_what_is_here_first(mink: Mink, tiny: Callable[..., Path]) -> None:
    assert mink("add", "smollm2-mine", tiny()).status == 0
    assert mink("add", "smollm2-lost", "hf:me/parrot").status == 0
    command = click.Command("x", params=[click.Argument(["model"])])
    completed = [item.value for item in complete_model(click.Context(command), command.params[0], "smollm2-")]
    assert completed[:3] == ["smollm2-mine", "smollm2-135m", "smollm2-lost"]
    assert completed[3:] == ["smollm2-360m", "smollm2-1.7b"]


@pytest.mark.parametrize(
    ("arguments", "status", "complaint"),
    [
        (["info", "parrot"], 2, "'parrot'"),
        (["path", "no/such.gguf"], 2, "no/such.gguf"),
        (["info", "llama-3-8b"], 2, "llama-3-8b:Q4_K_M"),
        (["info", "smollm2-135m", "--ctx", "0"], 2, "--ctx"),
        (["add", "a b", "hf:o/r"], 1, "'a b'"),
        (["add", "a", "no/such.gguf"], 2, "no/such.gguf"),
        (["add", "a", "hf:o/r", "--sha256", "abc"], 1, "'abc'"),
        (["add", "a", "hf:o/r", "--size", "inf"], 2, "--size"),
        (["add", "a", "hf:o/r", "--size", "1e300"], 2, "--size"),
        (["add", "a", "~/x.gguf", "--revision", "v1"], 2, "--revision"),
        (["add", "a", "ollama:x", "--revision", "v1"], 2, "--revision"),
        (["add", "~", "--note", "mine"], 2, "NAME"),
        (["pull", "qwen3-4b-instrukt"], 2, "qwen3-4b-instruct"),
        (["rm", "parrot"], 2, "'parrot'"),
        (["info", "~/x.gguf"], 1, "x.gguf"),
        (["fly"], 2, "'fly'"),
        (["pull"], 2, "NAME"),
    ],
)
def test_bad_input(mink: Mink, home: Path, arguments: list[str], status: int, complaint: str) -> None:
    (home / "x.gguf").write_bytes(b"GGUF\3")
    assert mink(*arguments).refused(status, complaint).stdout == ""


def test_a_users_catalogue_that_is_utf_16_only_at_its_beginning(mink: Mink) -> None:
    """As cmd's >> leaves one that PowerShell 5.1 wrote."""
    catalog.user_catalog_path().parent.mkdir(parents=True)
    catalog.user_catalog_path().write_bytes("# mine\n".encode("utf-16") + b"a file:/b\n\n")
    mink("path", "smollm2-135m").refused(1, "models.txt", "UTF-16")


@pytest.mark.posix
def test_a_pipe_in_place_of_the_users_catalogue(mink: Mink) -> None:
    catalog.user_catalog_path().parent.mkdir(parents=True)
    os.mkfifo(catalog.user_catalog_path())
    mink("path", "smollm2-135m").refused(1, "models.txt")


def test_default(mink: Mink, tiny: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    path = tiny("parrot.gguf")
    assert mink("default") == Finished(0, "smollm2-135m\n", "")
    assert mink("add", "parrot", path).status == 0
    monkeypatch.chdir(path.parent)
    for name, kept in (("parrot", "parrot"), (path, str(path)), (f"./{path.name}", str(path))):
        assert mink("default", name) == Finished(0, f"{kept}\n", "")
        assert mink("default").stdout == f"{kept}\n"
    for name in ("canary", "llama-3-8b"):  # unknown, and not downloaded
        assert mink("default", name).refused(2, name).stdout == ""
    assert catalog.default_model() == str(path)


def test_default_takes_only_what_can_be_loaded(mink: Mink, home: Path, tiny: Callable[..., Path]) -> None:
    whole = tiny("parrot.gguf").read_bytes()
    (home / "empty.gguf").touch()
    (home / "cut.gguf").write_bytes(whole[:-1000])
    (home / "part-00002-of-00003.gguf").write_bytes(whole)
    adapter(home / "lora.gguf")
    for name in ("empty.gguf", "cut.gguf", "part-00002-of-00003.gguf", "lora.gguf"):
        assert mink("default", home / name).refused(1, name).stdout == ""
    assert catalog.chosen_model() is None


@pytest.mark.linux
def test_a_file_name_that_is_not_utf_8(mink: Mink, tiny: Callable[..., Path]) -> None:
    """It is given a name, made the default and found again."""
    path = tiny("parrot.gguf")
    path = path.rename(os.fsdecode(os.fsencode(path.parent) + b"/my \xff parrot.gguf"))
    assert mink("default", path).status == 0
    assert catalog.resolve(catalog.default_model()).path == path
    assert mink("add", "parrot", path).status == 0
    assert catalog.resolve("parrot").path == path
    for command in ("path", "info"):
        assert mink(command, path).status == 0
