"""`mink-models pull` from a server on this machine that speaks the Hub's protocol, with what can go wrong."""

import hashlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import huggingface_hub
import huggingface_hub.file_download  # now, since its log keeps the standard error of its import
import pytest
from filelock import FileLock
from huggingface_hub import constants

from mink_local.models import catalog, download
from tests.models.conftest import Mink, Result
from tests.support.hub import COMMIT, REPOSITORY, Hub, serve

BIG = os.urandom(300_000)
NAME = f"hf:{REPOSITORY}:big.gguf"
FOLDER = "models--" + REPOSITORY.replace("/", "--")


@pytest.fixture(autouse=True)
def hub(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A server in place of the Hub, with small pieces of a file at a time."""
    with serve(Hub({"README.md": b"# Parrots", "big.gguf": BIG})) as hub:
        monkeypatch.setattr(time, "sleep", lambda _: None)  # the wait before another try
        monkeypatch.setattr(constants, "ENDPOINT", hub.url)
        files = hub.url + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", files)
        monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 10_000)  # most that an interruption loses
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(home / "token"))
        monkeypatch.delenv("HF_TOKEN", raising=False)
        yield hub
        huggingface_hub.close_session()


def process(home: Path, hub: Hub, limit: int, *arguments: str) -> Result:
    """Run `mink-models` in a process of its own that can write no file of more than `limit` bytes."""
    environment = {**os.environ, "HF_HUB_CACHE": str(home / "hub"), "HF_ENDPOINT": hub.url}
    program = "import resource; from mink_local.models.cli import main; "
    program += f"resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit})); main()"
    command = [sys.executable, "-c", program, *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    return Result(done.returncode, done.stdout, done.stderr)


def cache(home: Path) -> Path:
    return home / "hub" / FOLDER


def blobs(home: Path) -> dict[str, int]:
    return {path.name: path.stat().st_size for path in (cache(home) / "blobs").glob("*")}


def downloads(hub: Hub) -> list[str | None]:
    """The Range of every request for a file."""
    return [wanted for path, wanted in hub.requests if "/resolve/" in path]


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def refused(result: Result, sentence: str, status: int = 1) -> None:
    """The last line is one sentence of ours, and there is no traceback above it."""
    assert result.status == status, result.stderr
    assert "Traceback" not in result.stderr
    assert sentence in result.stderr.splitlines()[-1]
    assert result.stdout == ""


def test_a_file_is_fetched_checked_and_found(mink: Mink, hub: Hub, home: Path) -> None:
    refused(mink("path", NAME), f"{NAME} is not here yet: type  mink-models pull {NAME}", status=2)
    result = mink("pull", NAME)
    assert result.status == 0, result.stderr
    path = Path(result.stdout.strip())
    assert path == cache(home) / "snapshots" / COMMIT / "big.gguf"
    assert path.read_bytes() == BIG
    assert path.is_symlink()
    assert blobs(home) == {sha256(BIG): len(BIG)}
    assert (cache(home) / "refs" / "main").read_text() == COMMIT
    assert result.stderr.splitlines() == ["fetching big.gguf, 300 kB", "checking its SHA-256"]
    assert mink("path", NAME).stdout == mink("path", f"hf:{REPOSITORY}").stdout == f"{path}\n"
    hub.requests.clear()
    again = mink("pull", NAME)
    assert (again.status, again.stdout, again.stderr) == (
        0,
        f"{path}\n",
        "big.gguf is here: checking it\n",
    )
    assert downloads(hub) == []


def test_huggingface_hub_finds_it_too(mink: Mink) -> None:
    """The layout is the Hub's own: its library takes the file from the cache, without a network."""
    path = mink("pull", NAME).stdout.strip()
    assert huggingface_hub.hf_hub_download(REPOSITORY, "big.gguf", local_files_only=True) == path


def test_an_interrupted_connection_is_taken_up_again(mink: Mink, hub: Hub, home: Path) -> None:
    hub.cut_after = [100_000, 50_000]
    result = mink("pull", NAME)
    assert result.status == 0, result.stderr
    assert Path(result.stdout.strip()).read_bytes() == BIG
    assert downloads(hub) == [None, "bytes=100000-", "bytes=150000-"]
    hub.files["big.gguf"] = other = os.urandom(100_000)
    hub.cut_after = [50_000, *[0] * 20]  # and then nothing more ever comes
    refused(mink("pull", NAME), f"the connection to {hub.url} failed (")
    assert blobs(home)[f"{sha256(other)}.incomplete"] == 50_000
    hub.cut_after = []
    assert Path(mink("pull", NAME).stdout.strip()).read_bytes() == other
    assert set(blobs(home)) == {sha256(BIG), sha256(other)}


@pytest.mark.posix
def test_an_interrupted_process_is_taken_up_again(mink: Mink, hub: Hub, home: Path) -> None:
    """The part that an earlier process fetched is there for the next one, and not as a model."""
    interrupted = process(home, hub, 120_000, "pull", NAME)
    refused(interrupted, "could not be written or fetched: File too large")
    assert blobs(home) == {f"{sha256(BIG)}.incomplete": 120_000}
    assert mink("path", NAME).status == 2
    hub.requests.clear()
    result = mink("pull", NAME)
    assert result.status == 0, result.stderr
    assert "continuing big.gguf at 120 kB of 300 kB" in result.stderr
    assert downloads(hub) == ["bytes=120000-"]
    assert Path(result.stdout.strip()).read_bytes() == BIG


@pytest.mark.parametrize("already", [0, 100, 300_000, 400_000])
def test_corrupted_bytes_are_deleted(mink: Mink, hub: Hub, home: Path, already: int) -> None:
    """Sent by the server, or left by whoever wrote the beginning; then the next pull begins anew."""
    hub.corrupt = already == 0
    if already:
        (cache(home) / "blobs").mkdir(parents=True)
        (cache(home) / "blobs" / f"{sha256(BIG)}.incomplete").write_bytes(bytes(already))
    result = mink("pull", NAME)
    if already == 400_000:  # longer than the file: it is no beginning of it
        assert result.status == 0, result.stderr
    else:
        refused(result, "big.gguf arrived damaged and was deleted: its SHA-256 is wrong")
        assert blobs(home) == {}
        assert mink("path", NAME).status == 2
    hub.corrupt = False
    assert Path(mink("pull", NAME).stdout.strip()).read_bytes() == BIG


def test_a_file_that_was_damaged_later_is_fetched_again(mink: Mink) -> None:
    path = Path(mink("pull", NAME).stdout.strip())
    path.write_bytes(b"x" * len(BIG))
    result = mink("pull", NAME)
    assert "big.gguf is damaged: fetching it again" in result.stderr
    assert path.read_bytes() == BIG


def test_a_model_in_several_files(mink: Mink, hub: Hub, home: Path) -> None:
    names = [f"Q4_K_M/m-Q4_K_M-0000{n}-of-00003.gguf" for n in (1, 2, 3)]
    hub.files |= {name: os.urandom(40_000) for name in names}
    hub.cut_after = [40_000, 20_000]
    result = mink("pull", f"hf:{REPOSITORY}:q4_k_m")
    assert result.status == 0, result.stderr
    snapshot = cache(home) / "snapshots" / COMMIT
    assert result.stdout == f"{snapshot / names[0]}\n"
    assert [(snapshot / name).read_bytes() for name in names] == [hub.files[name] for name in names]
    (snapshot / names[2]).unlink()
    assert mink("path", f"hf:{REPOSITORY}:Q4_K_M").status == 2
    assert mink("pull", f"hf:{REPOSITORY}:Q4_K_M").status == 0
    assert mink("rm", f"hf:{REPOSITORY}:Q4_K_M", "--yes").status == 0
    assert blobs(home) == {}
    del hub.files[names[1]]
    refused(mink("pull", f"hf:{REPOSITORY}:Q4_K_M"), f"{REPOSITORY} lacks {names[1]}, a part of")


def test_a_file_is_the_one_that_the_catalogue_means(mink: Mink, home: Path) -> None:
    def line(digest: str) -> str:
        return f"parrot | hf:{REPOSITORY} | {{big,small}}.gguf | main | 0.1 | {digest} | MIT | -\n"

    models = catalog.user_catalog_path()
    models.parent.mkdir(parents=True)
    models.write_text(line("0" * 64))
    refused(mink("pull", "parrot"), "is not the file that models.txt means: its SHA-256 is " + sha256(BIG))
    assert not cache(home).exists()
    models.write_text(line(sha256(BIG)))
    result = mink("pull", "parrot:BIG")
    assert result.status == 0, result.stderr
    vetted = (home / "cache/mink-local/vetted.json").read_text()
    assert result.stdout.strip() in vetted  # so that loading it does not hash it once more


@pytest.mark.parametrize("token", [None, "hf_wrong"])
def test_a_gated_repository_is_explained(
    mink: Mink, hub: Hub, token: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.token = "hf_right"
    if token:
        monkeypatch.setenv("HF_TOKEN", token)
    refused(mink("pull", NAME), f"{hub.url}/{REPOSITORY} is gated: ask for access there, then log in")
    monkeypatch.setenv("HF_TOKEN", "hf_right")
    assert mink("pull", NAME).status == 0


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("hf:parrots/none:x.gguf", "there is no repository http://"),
        (f"hf:{REPOSITORY}:none.gguf", "no file matches 'none.gguf' (big.gguf)"),
        (f"hf:{REPOSITORY}:Q4_K_M", "no file matches 'Q4_K_M' (big.gguf)"),
        ("hf:none", "a repository is named as hf:organisation/name"),
        ("parrot", "unknown model 'parrot'"),
        ("ollama:parrot", "Ollama has no model parrot here"),
        ("hf:", "a repository is named as hf:organisation/name"),
        ("hf:../..:x", "a repository is named as hf:organisation/name"),
    ],
)
def test_what_is_not_there(mink: Mink, name: str, sentence: str) -> None:
    result = mink("pull", name)
    refused(result, sentence, status=1 if REPOSITORY in name or "none:" in name else 2)


def test_no_such_revision(mink: Mink) -> None:
    assert mink("add", "parrot", NAME, "--revision", "v9").status == 0
    refused(mink("pull", "parrot"), "has no revision v9")


def test_a_disk_that_is_too_small(mink: Mink, hub: Hub, home: Path) -> None:
    hub.claimed_size = 10**18
    refused(mink("pull", NAME), "big.gguf takes 1000000000.0 GB and ")
    assert sum(blobs(home).values()) == 0


def test_two_at_once(mink: Mink, home: Path) -> None:
    locks = home / "hub" / ".locks" / FOLDER
    locks.mkdir(parents=True)
    with FileLock(locks / f"{sha256(BIG)}.lock"):
        refused(mink("pull", NAME), "big.gguf is being fetched by another process")
    assert mink("pull", NAME).status == 0


def test_no_network(mink: Mink, monkeypatch: pytest.MonkeyPatch) -> None:
    nobody = "http://127.0.0.1:9"
    monkeypatch.setattr(constants, "ENDPOINT", nobody)
    refused(mink("pull", NAME), f"the connection to {nobody} failed (")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    huggingface_hub.close_session()  # whether it is offline is decided when one begins
    refused(mink("pull", NAME), "HF_HUB_OFFLINE is set")


NO_HASH = b'{"id": "x", "sha": "%s", "siblings": [{"rfilename": "big.gguf", "size": 1}]}' % COMMIT.encode()
NO_SIZE = NO_HASH.replace(b'"size": 1', b'"blobId": "%s"' % COMMIT.encode())


@pytest.mark.parametrize(
    "garbage",
    [b"<html>", b"\xff{}", b"[]", b"{}", b'{"id": "x", "siblings": [{}]}', b"null", NO_HASH, NO_SIZE],
)
def test_a_server_that_is_no_hub(mink: Mink, hub: Hub, garbage: bytes) -> None:
    hub.garbage = garbage
    result = mink("pull", NAME)
    assert result.status == 1
    assert "Traceback" not in result.stderr
    assert any(
        words in result.stderr for words in ("does not answer as the Hugging Face Hub does", "has no .gguf")
    )


def test_a_name_that_the_hub_does_not_allow(mink: Mink) -> None:
    refused(mink("pull", "hf:a/b--c"), "a/b--c is not a name that the Hugging Face Hub allows")


def test_an_error_of_our_own_is_not_the_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: download.RemoteFile) -> None:
        raise TypeError("a mistake in the program")

    monkeypatch.setattr(download, "_publish", broken)
    with pytest.raises(TypeError, match="a mistake in the program"):
        download.pull(catalog.store_entry(NAME), lambda _: None)


def test_without_links_the_file_itself_is_moved(
    mink: Mink, hub: Hub, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As huggingface_hub has it on Windows without developer mode."""

    def refuse(*_: object) -> None:
        raise OSError("A required privilege is not held by the client")

    monkeypatch.setattr(Path, "symlink_to", refuse)
    path = Path(mink("pull", NAME).stdout.strip())
    assert path.read_bytes() == BIG
    assert not path.is_symlink()
    assert blobs(home) == {}
    assert huggingface_hub.hf_hub_download(REPOSITORY, "big.gguf", local_files_only=True) == str(path)
    hub.requests.clear()
    assert mink("pull", NAME) == Result(0, f"{path}\n", "big.gguf is here: checking it\n")
    assert downloads(hub) == []
    path.write_bytes(b"x" * len(BIG))
    assert "big.gguf is damaged: fetching it again" in mink("pull", NAME).stderr
    assert path.read_bytes() == BIG
    assert mink("rm", NAME, "--yes").status == 0
    assert mink("path", NAME).status == 2


@pytest.mark.parametrize("name", ["../../../evil.gguf", "/evil.gguf", "..\\evil.gguf", "C:evil.gguf"])
def test_names_that_lead_out_of_the_cache(mink: Mink, hub: Hub, home: Path, name: str) -> None:
    hub.files = {name: BIG}
    refused(mink("pull", f"hf:{REPOSITORY}:*evil.gguf"), "does not answer as the Hugging Face Hub does")
    assert not list(home.glob("**/evil.gguf"))


def test_a_server_with_trouble(mink: Mink, hub: Hub) -> None:
    hub.status = 500
    refused(mink("pull", NAME), "answers with an error, 500: try later")
