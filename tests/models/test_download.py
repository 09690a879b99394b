"""`mink-models pull` from a server on this machine that speaks the Hub's protocol, with what can go wrong."""

import errno
import hashlib
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import huggingface_hub
import huggingface_hub.file_download  # now, since its log keeps the standard error of its import
import pytest
from filelock import FileLock
from huggingface_hub import constants

from mink_local.files import read_record, user_folder
from mink_local.models import catalog
from tests.support.hub import COMMIT, REPOSITORY, Hub, serve
from tests.support.python import Finished, Mink, run_python
from tests.support.records import disk_of

BIG = b"GGUF" + os.urandom(299_996)
NAME = f"hf:{REPOSITORY}:big.gguf"
FOLDER = "models--" + REPOSITORY.replace("/", "--")


@pytest.fixture(autouse=True)
def hub(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A server in place of the Hub."""
    with serve(Hub({"README.md": b"# Parrots", "big.gguf": BIG})) as hub:
        monkeypatch.setattr(time, "sleep", lambda _: None)  # the wait before another try
        monkeypatch.setattr(constants, "ENDPOINT", hub.url)
        files = hub.url + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", files)
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(home / "token"))
        monkeypatch.delenv("HF_TOKEN", raising=False)
        yield hub
        huggingface_hub.close_session()


def cache(home: Path) -> Path:
    return home / "hub" / FOLDER


def blobs(home: Path) -> dict[str, int]:
    return {path.name: path.stat().st_size for path in (cache(home) / "blobs").glob("*")}


def downloads(hub: Hub) -> list[str | None]:
    """The Range of every request for a file."""
    return [wanted for path, wanted in hub.requests if "/resolve/" in path]


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def pulled(mink: Mink, name: str = NAME) -> Path:
    """Pull a model and return its path."""
    return Path(mink("pull", name).succeeded().stdout.strip())


def refused(result: Finished, *values: object, status: int = 1) -> None:
    """The last line is a message of ours with these values, and there is no traceback above it."""
    assert (result.status, result.stdout) == (status, ""), result.stderr
    assert "Traceback" not in result.stderr
    assert all(str(value) in result.stderr.splitlines()[-1] for value in values), result.stderr


@pytest.mark.posix
def test_a_file_is_fetched_checked_and_found(mink: Mink, hub: Hub, home: Path) -> None:
    """In the Hub's own layout: its library takes the file from the cache, without a network."""
    refused(mink("path", NAME), NAME, status=2)
    path = pulled(mink)
    assert path == cache(home) / "snapshots" / COMMIT / "big.gguf"
    assert path.read_bytes() == BIG
    assert path.is_symlink()
    assert blobs(home) == {sha256(BIG): len(BIG)}
    assert (cache(home) / "refs" / "main").read_text() == COMMIT
    assert huggingface_hub.hf_hub_download(REPOSITORY, "big.gguf", local_files_only=True) == str(path)
    assert mink("path", NAME).stdout == mink("path", f"hf:{REPOSITORY}").stdout == f"{path}\n"
    hub.requests.clear()
    assert pulled(mink) == path
    assert downloads(hub) == []


def test_an_interrupted_connection_is_taken_up_again(mink: Mink, hub: Hub, home: Path) -> None:
    hub.cut_after = [100_000, 50_000]
    assert pulled(mink).read_bytes() == BIG
    assert downloads(hub) == [None, "bytes=100000-", "bytes=150000-"]
    hub.files["big.gguf"] = other = b"GGUF" + os.urandom(99_996)
    hub.cut_after = [50_000, *[0] * 20]  # and then nothing more ever comes
    refused(mink("pull", NAME), hub.url)
    assert blobs(home)[f"{sha256(other)}.incomplete"] == 50_000
    hub.cut_after = []
    assert pulled(mink).read_bytes() == other
    assert not [name for name in blobs(home) if name.endswith(".incomplete")]


PAGE = b"<html>Log in first</html>"


@pytest.mark.parametrize(
    ("status", "page", "headers"),
    [
        (200, PAGE, {"content-type": "text/html"}),
        (200, PAGE, {}),
        (200, PAGE + bytes(300_000), {"transfer-encoding": "chunked"}),
        (200, PAGE.ljust(300_000), {}),
        (206, PAGE.ljust(200_000), {}),
    ],
)
def test_a_page_never_becomes_part_of_a_file(
    mink: Mink, hub: Hub, home: Path, status: int, page: bytes, headers: dict[str, str]
) -> None:
    """What a proxy or a hotel's network sends with status 200; what has arrived before stays."""
    hub.cut_after = [100_000, *[0] * 20]
    refused(mink("pull", NAME), hub.url)
    hub.cut_after, hub.page = [], (status, page, headers)
    refused(mink("pull", NAME), hub.url, "big.gguf")
    assert blobs(home) == {f"{sha256(BIG)}.incomplete": 100_000}
    hub.page = None
    hub.requests.clear()
    assert pulled(mink).read_bytes() == BIG
    assert downloads(hub) == ["bytes=100000-"]


def test_an_answer_that_ends_early_is_not_asked_for_for_ever(mink: Mink, hub: Hub, home: Path) -> None:
    hub.page = 200, BIG[:150_000], {"transfer-encoding": "chunked"}  # and so without a length
    refused(mink("pull", NAME), hub.url)
    assert len(downloads(hub)) < 10
    assert blobs(home) == {f"{sha256(BIG)}.incomplete": 150_000}
    hub.page = None
    assert pulled(mink).read_bytes() == BIG


@pytest.mark.parametrize("ignores_range", [False, True])
def test_a_line_that_breaks_every_few_bytes(mink: Mink, hub: Hub, ignores_range: bool) -> None:
    hub.cut_after = [100_000] if ignores_range else [1, 2, 0, 70_000, 0, 0, 0, 0, 1, 0, 0, 0, 0]
    hub.ignores_range = ignores_range
    assert pulled(mink).read_bytes() == BIG


@pytest.mark.posix
def test_what_a_full_disk_ended_is_taken_up_again(mink: Mink, hub: Hub, home: Path) -> None:
    """The part that was fetched is there for the next pull, and not as a model."""
    with disk_of(120_000):
        refused(mink("pull", NAME), os.strerror(errno.EFBIG))
    assert blobs(home) == {f"{sha256(BIG)}.incomplete": 120_000}
    assert mink("path", NAME).status == 2
    hub.requests.clear()
    assert pulled(mink).read_bytes() == BIG
    assert downloads(hub) == ["bytes=120000-"]


@pytest.mark.parametrize("already", [0, 100, 300_000, 400_000])
def test_corrupted_bytes_are_deleted(mink: Mink, hub: Hub, home: Path, already: int) -> None:
    """Sent by the server, or left by whoever wrote the beginning; then the next pull begins anew."""
    hub.corrupt = already == 0
    if already:
        (cache(home) / "blobs").mkdir(parents=True)
        (cache(home) / "blobs" / f"{sha256(BIG)}.incomplete").write_bytes(bytes(already))
    if already <= 300_000:  # more than the file is no beginning of it
        refused(mink("pull", NAME), "big.gguf", "SHA-256")
        assert blobs(home) == {}
        assert mink("path", NAME).status == 2
    hub.corrupt = False
    path = pulled(mink)
    assert path.read_bytes() == BIG
    path.write_bytes(b"x" * len(BIG))  # and damaged after that
    assert pulled(mink).read_bytes() == BIG


def test_a_model_in_several_files(mink: Mink, hub: Hub, home: Path) -> None:
    names = [f"Q4_K_M/m-Q4_K_M-0000{n}-of-00003.gguf" for n in (1, 2, 3)]
    model = f"hf:{REPOSITORY}:q4_k_m"
    hub.files |= {name: b"GGUF" + os.urandom(39_996) for name in names}
    hub.cut_after = [40_000, 20_000]
    snapshot = cache(home) / "snapshots" / COMMIT
    assert pulled(mink, model) == snapshot / names[0]
    assert [(snapshot / name).read_bytes() for name in names] == [hub.files[name] for name in names]
    (snapshot / names[2]).unlink()
    assert mink("path", model).status == 2
    pulled(mink, model)
    assert mink("rm", model, "--yes").status == 0
    assert blobs(home) == {}
    del hub.files[names[1]]
    refused(mink("pull", model), REPOSITORY, names[1])


def test_all_parts_of_a_model_have_to_fit(
    mink: Mink, hub: Hub, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is downloaded of what does not; what is here already needs no space."""
    names = [f"m-0000{n}-of-00003.gguf" for n in (1, 2, 3)]
    hub.files |= {name: b"GGUF" + os.urandom(40_000) for name in names}
    model = f"hf:{REPOSITORY}:{names[0]}"
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Mock(free=100_000))
    refused(mink("pull", model), names[0], "120.0 kB", "100.0 kB")
    assert (downloads(hub), blobs(home)) == ([], {})
    begun = cache(home) / "blobs" / f"{sha256(hub.files[names[1]])}.incomplete"
    begun.parent.mkdir(parents=True)
    begun.write_bytes(hub.files[names[1]][:30_000])
    assert pulled(mink, model).read_bytes() == hub.files[names[0]]


def test_a_file_without_a_hash_refuses_only_itself(mink: Mink, hub: Hub) -> None:
    hub.files["stories.gguf"], hub.plain = BIG, ("stories.gguf",)
    refused(mink("pull", f"hf:{REPOSITORY}:stories.gguf"), "stories.gguf", hub.url)
    assert pulled(mink).read_bytes() == BIG


def test_pieces_of_a_file_are_named(mink: Mink, hub: Hub) -> None:
    hub.files |= {"M.Q6_K.gguf.part1of2": BIG, "M.Q6_K.gguf.part2of2": BIG}
    refused(mink("pull", f"hf:{REPOSITORY}:Q6_K"), "> M.Q6_K.gguf")
    assert pulled(mink, f"hf:{REPOSITORY}").read_bytes() == BIG


def test_a_file_is_the_one_that_the_catalogue_means(mink: Mink, home: Path) -> None:
    models = catalog.user_catalog_path()
    models.parent.mkdir(parents=True)
    models.write_text(f"parrot hf:{REPOSITORY} big.gguf - {'0' * 64}\n")
    refused(mink("pull", "parrot"), sha256(BIG))
    assert not cache(home).exists()
    models.write_text(f"parrot hf:{REPOSITORY} big.gguf - {sha256(BIG).upper()}\n")
    vetted = str(pulled(mink, "parrot"))
    assert vetted in read_record(user_folder("cache") / "vetted.json")  # loading it hashes it no more


@pytest.mark.parametrize("token", ["", "hf_wrong"])
def test_a_gated_repository_is_explained(
    mink: Mink, hub: Hub, token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.token = "hf_right"
    monkeypatch.setenv("HF_TOKEN", token)
    refused(mink("pull", NAME), f"{hub.url}/{REPOSITORY}", "HF_TOKEN")
    monkeypatch.setenv("HF_TOKEN", "hf_right")
    pulled(mink)


@pytest.mark.parametrize("status", [401, 403])
def test_a_refusal_in_the_servers_own_words(mink: Mink, hub: Hub, status: int) -> None:
    """Waiting would not help, so it is not advised."""
    hub.status, hub.words = status, "Invalid credentials in Authorization header"
    refused(mink("pull", NAME), status, hub.words, "HF_TOKEN")
    assert len(hub.requests) == 1


def test_the_server_that_does_not_answer_is_named(mink: Mink, hub: Hub) -> None:
    hub.redirect = "http://127.0.0.1:9"
    refused(mink("pull", NAME), hub.redirect)


@pytest.mark.parametrize(
    ("name", "value", "commands"),
    [
        *(
            ("HF_ENDPOINT", endpoint, ("pull", "list"))
            for endpoint in (
                "http://[::1",
                "ftp://x",
                "huggingface.co",
                "http://",
                "http://a b",
                "http://a:x",
            )
        ),
        ("HF_ENDPOINT", "http://a\n", ("pull",)),
        ("HF_HUB_DOWNLOAD_TIMEOUT", "soon", ("list",)),
        ("HTTPS_PROXY", "http://[::1", ("pull",)),
        ("HTTPS_PROXY", "parrot://a", ("pull",)),
        ("HF_TOKEN_PATH", "/", ("pull",)),
    ],
)
def test_a_malformed_variable(name: str, value: str, commands: tuple[str, ...], home: Path) -> None:
    """In a process of its own, since huggingface_hub reads them when it is imported."""
    for command in commands:
        arguments = [command, NAME] if command == "pull" else [command]
        program = f"import sys; sys.argv[1:] = {arguments}; from mink_local.manage.cli import main; main()"
        environment = {**os.environ, "HF_HOME": str(home), name: value}
        refused(run_python("-c", program, env=environment), "HF_")


def test_an_empty_variable_is_as_if_unset(home: Path) -> None:
    empty = dict.fromkeys(("HF_ENDPOINT", "HF_HUB_CACHE", "HF_HUB_DOWNLOAD_TIMEOUT"), "")
    program = "import sys; sys.argv[1:] = ['list']; from mink_local.manage.cli import main; main()"
    run_python("-c", program, env={**os.environ, "HF_HOME": str(home), **empty}).succeeded()


@pytest.mark.parametrize("token", ["hf a", "hf_é"])
def test_a_malformed_token(mink: Mink, token: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", token)
    refused(mink("pull", NAME), "HF_TOKEN")


@pytest.mark.posix
@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP])
def test_a_file_system_without_locks(mink: Mink, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fcntl.flock", Mock(side_effect=OSError(number, os.strerror(number))))
    assert pulled(mink).read_bytes() == BIG
    mink("add", "parrot", NAME).succeeded()
    assert mink("path", "parrot").status == 0


def test_a_model_that_is_there_needs_no_writing_and_no_network(
    mink: Mink, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = pulled(mink)
    shutil.rmtree(home / "hub" / ".locks")
    before = {item: item.lstat().st_mtime_ns for item in (home / "hub").rglob("*")}
    assert pulled(mink) == path
    assert {item: item.lstat().st_mtime_ns for item in (home / "hub").rglob("*")} == before
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    assert pulled(mink) == path
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    huggingface_hub.close_session()
    assert pulled(mink) == path


@pytest.mark.parametrize("damaged", [b"", b"\xff\xfe", b"../../../..", b"/", b"0" * 9999])
def test_a_damaged_reference_is_written_again(mink: Mink, home: Path, damaged: bytes) -> None:
    path, reference = pulled(mink), cache(home) / "refs" / "main"
    reference.write_bytes(damaged)
    refused(mink("path", NAME), NAME, status=2)
    assert pulled(mink) == path
    assert reference.read_text() == COMMIT


@pytest.mark.posix
def test_a_pipe_in_place_of_the_beginning_of_a_file(mink: Mink, home: Path) -> None:
    (cache(home) / "blobs").mkdir(parents=True)
    os.mkfifo(cache(home) / "blobs" / f"{sha256(BIG)}.incomplete")
    assert pulled(mink).read_bytes() == BIG


@pytest.mark.parametrize(
    ("name", "status", "values"),
    [
        ("hf:parrots/none:x.gguf", 1, ["parrots/none"]),
        (f"hf:{REPOSITORY}:none.gguf", 1, ["'none.gguf'", "big.gguf"]),
        (f"hf:{REPOSITORY}:Q4_K_M", 1, ["'Q4_K_M'", "big.gguf"]),
        ("hf:a/b--c", 1, ["a/b--c"]),
        ("hf:none", 2, ["hf:none"]),
        ("parrot", 2, ["'parrot'"]),
        ("ollama:parrot", 2, ["parrot"]),
        ("hf:", 2, ["hf:"]),
        ("hf:../..:x", 2, ["hf:../..:x"]),
        ("hf:a/b@../../..:x", 2, ["hf:a/b@../../..:x"]),
        ("v9", 1, ["v9"]),
    ],
)
def test_what_is_not_there(mink: Mink, name: str, status: int, values: list[str]) -> None:
    assert mink("add", "v9", NAME, "--revision", "v9").status == 0
    refused(mink("pull", name), *values, status=status)


def test_two_at_once(mink: Mink, home: Path) -> None:
    locks = home / "hub" / ".locks" / FOLDER
    locks.mkdir(parents=True)
    with FileLock(locks / f"{sha256(BIG)}.lock"):
        refused(mink("pull", NAME), "big.gguf")
    pulled(mink)


def test_no_network(mink: Mink, monkeypatch: pytest.MonkeyPatch) -> None:
    nobody = "http://127.0.0.1:9"
    monkeypatch.setattr(constants, "ENDPOINT", nobody)
    refused(mink("pull", NAME), nobody)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    huggingface_hub.close_session()  # whether it is offline is decided when one begins
    refused(mink("pull", NAME), "HF_HUB_OFFLINE")


NO_HASH = b'{"id": "x", "sha": "%s", "siblings": [{"rfilename": "big.gguf", "size": 1}]}' % COMMIT.encode()
NO_SIZE = NO_HASH.replace(b'"size": 1', b'"blobId": "%s"' % COMMIT.encode())
GARBAGE = [
    b"<html>", b"\xff{}", b"[]", b"{}", b'{"id": "x", "siblings": [{}]}', b"null", b"[" * 100_000, NO_HASH,
    NO_SIZE,
]  # fmt: skip
EVIL = ["../../../evil.gguf", "/evil.gguf", "..\\evil.gguf", "C:evil.gguf", "\x1b[2Jevil.gguf", "evil\n.gguf"]


@pytest.mark.parametrize(
    ("attribute", "value", "named"),
    [
        ("status", 500, "500"),
        ("claimed_size", 10**18, "1.0 EB"),
        *(("garbage", garbage, REPOSITORY) for garbage in GARBAGE),
        *(("files", {name: BIG}, REPOSITORY) for name in EVIL),
    ],
)
def test_a_server_with_trouble(
    mink: Mink, hub: Hub, home: Path, attribute: str, value: Any, named: str
) -> None:
    """Or one that is no hub, or wants to write outside of the cache."""
    setattr(hub, attribute, value)
    refused(mink("pull", f"hf:{REPOSITORY}:*.gguf"), named)
    assert sum(blobs(home).values()) == 0
    assert not list(home.glob("**/evil.gguf"))


def test_without_links_the_file_itself_is_moved(
    mink: Mink, hub: Hub, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As huggingface_hub has it on Windows without developer mode."""
    monkeypatch.setattr(Path, "symlink_to", Mock(side_effect=OSError("A required privilege is not held")))
    path = pulled(mink)
    assert path.read_bytes() == BIG
    assert not path.is_symlink()
    assert blobs(home) == {}
    assert huggingface_hub.hf_hub_download(REPOSITORY, "big.gguf", local_files_only=True) == str(path)
    hub.requests.clear()
    assert pulled(mink) == path
    assert downloads(hub) == []
    path.write_bytes(b"x" * len(BIG))
    assert pulled(mink).read_bytes() == BIG
    assert mink("rm", NAME, "--yes").status == 0
    assert mink("path", NAME).status == 2
