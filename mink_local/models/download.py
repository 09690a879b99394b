"""Downloads models from the Hugging Face Hub into its cache, where other programs find them too.

huggingface_hub's own `hf_hub_download` starts over in each process and publishes a file before its hash has
been checked. Here a file is downloaded to `blobs/SHA-256.incomplete`, where the next call resumes, is hashed
there, and only then linked into the cache. The library's undocumented parts, `http_get` and its lock names,
are confined to `_fetch`. Plain HTTP is used, since Xet's protocol cannot resume.
"""

import os
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from filelock import FileLock, Timeout
from huggingface_hub import HfApi, constants, errors, hf_hub_url
from huggingface_hub.errors import HTTPError
from huggingface_hub.file_download import http_get
from huggingface_hub.utils import build_hf_headers

from mink_local.errors import DownloadError
from mink_local.files import sha256_of, size_in_words, write_atomic
from mink_local.models import trust
from mink_local.models.catalog import CatalogEntry
from mink_local.models.gguf import shards
from mink_local.models.stores import hub_cache, hub_folder, select

Report = Callable[[str], None]  # receives messages for the user


@dataclass(frozen=True)
class RemoteFile:
    """A file in a Hub repository, at one commit."""

    repository: str
    commit: str
    name: str
    size: int
    sha256: str

    @property
    def blob(self) -> Path:
        return hub_folder(self.repository) / "blobs" / self.sha256

    @property
    def pointer(self) -> Path:
        """The path for programs: a link to the blob, or the file itself where links are unavailable."""
        return hub_folder(self.repository) / "snapshots" / self.commit / self.name

    def is_whole(self, path: Path) -> bool:
        return path.stat().st_size == self.size and sha256_of(path) == self.sha256


def pull(entry: CatalogEntry, report: Report) -> Path:
    """Download a model's missing files from `hf:…` into the Hub's cache; return the first one's path.

    Raises:
        DownloadError: The model cannot be downloaded. Partial files are kept for the next attempt, but not a
            file whose SHA-256 is wrong.
    """
    try:
        files = files_of(entry, listing(entry.repository, entry.revision))
        for file in files:
            _fetch(file, report)
        for file in files:
            _publish(file)
        if entry.revision != files[0].commit:
            reference = hub_folder(entry.repository) / "refs" / entry.revision
            reference.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(reference, files[0].commit)
        if entry.sha256 and len(files) == 1:
            trust.remember(files[0].pointer)  # its SHA-256 is the catalogue's
    except (HTTPError, OSError) as error:  # HTTPError is the base of the HTTP client's errors
        raise DownloadError(_message(error, entry)) from None
    return files[0].pointer


def listing(repository: str, revision: str) -> dict[str, RemoteFile]:
    """Return the GGUF files of a repository by name.

    Raises:
        DownloadError: There is no such repository, or the server is not the Hub.
    """
    not_a_hub = DownloadError(
        f"{constants.ENDPOINT}/{repository} does not respond like the Hugging Face Hub: check HF_ENDPOINT"
    )
    try:
        info = HfApi().model_info(repository, revision=revision, files_metadata=True)
    except errors.HFValidationError:
        raise DownloadError(f"{repository} is not a valid repository name on the Hugging Face Hub") from None
    except (AttributeError, KeyError, TypeError, ValueError):  # from parsing the answer
        raise not_a_hub from None
    files = {}
    for sibling in info.siblings or ():
        name, size = sibling.rfilename, sibling.size
        if not isinstance(name, str) or not name.lower().endswith(".gguf"):
            continue
        sha256 = str(sibling.lfs.sha256 if sibling.lfs else None)
        if (
            not re.fullmatch("[0-9a-f]{40}", str(info.sha))
            or not re.fullmatch("[0-9a-f]{64}", sha256)
            or not isinstance(size, int)
            or _leads_out(name)
        ):
            raise not_a_hub
        files[name] = RemoteFile(repository, info.sha, name, size, sha256)
    return files


def _leads_out(name: str) -> bool:
    """Return whether a file name leads out of its folder, on any OS."""
    path = PurePosixPath(name)
    return path.is_absolute() or ".." in path.parts or "\\" in name or ":" in name


def files_of(entry: CatalogEntry, listing: dict[str, RemoteFile]) -> list[RemoteFile]:
    """Return a model's files from its repository's listing.

    Raises:
        DownloadError: They are missing, or differ from those listed in the catalogue.
    """
    repository = entry.repository
    try:
        first = select(listing, entry.file)[0]
    except ValueError as error:
        raise DownloadError(f"{entry.name} in {repository}: {error}") from None
    names = [path.as_posix() for path in shards(Path(first))]
    if missing := [name for name in names if name not in listing]:
        raise DownloadError(f"{repository} lacks {missing[0]}, a part of {entry.name}")
    if entry.sha256 not in (None, listing[first].sha256) and len(names) == 1:
        raise DownloadError(
            f"{first} in {repository} is not the file listed in models.txt: its SHA-256 is "
            f"{listing[first].sha256}; if you trust it, add an entry with that hash (mink-models add)"
        )
    return [listing[name] for name in names]


def _fetch(file: RemoteFile, report: Report) -> None:
    """Put a file into the cache, complete and with the right hash."""
    blob = file.blob
    lock = hub_cache() / ".locks" / blob.parents[1].name / f"{blob.name}.lock"  # huggingface_hub's own
    for folder in (blob.parent, lock.parent):
        folder.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(lock, timeout=0):
            for here in (blob, file.pointer):
                if here.is_file():
                    report(f"{file.name} is already on this machine: checking it")
                    if file.is_whole(here):
                        return
                    report(f"{file.name} is damaged: downloading it again")
                    here.unlink()
            partial = blob.with_name(f"{blob.name}.incomplete")
            _download(file, partial, report)
            report("checking its SHA-256")
            if not file.is_whole(partial):
                partial.unlink()
                raise DownloadError(
                    f"{file.name} arrived damaged (wrong SHA-256) and was deleted: download it again"
                )
            partial.replace(blob)
    except Timeout:
        raise DownloadError(f"{file.name} is being downloaded by another process: wait for it") from None


def _download(file: RemoteFile, partial: Path, report: Report) -> None:
    """Append the missing end of a file to `partial`; retry as long as each attempt makes progress.

    huggingface_hub 2 retries by itself; 1 gives up when a connection breaks.
    """
    partial.touch()
    if partial.stat().st_size > file.size:
        partial.write_bytes(b"")
    missing, free = file.size - partial.stat().st_size, shutil.disk_usage(partial.parent).free
    if free < missing:
        raise DownloadError(
            f"{file.name} needs {size_in_words(missing)}, but only {size_in_words(free)} are free: "
            "free up space, or set HF_HOME to another disk"
        )
    while True:
        have, size = partial.stat().st_size, size_in_words(file.size)
        resuming = f"resuming {file.name} at {size_in_words(have)} of {size}"
        report(resuming if have else f"downloading {file.name}, {size}")
        try:
            with partial.open("ab") as stream:
                http_get(
                    hf_hub_url(file.repository, file.name, revision=file.commit),
                    stream,
                    resume_size=have,
                    headers=build_hf_headers(),
                    expected_size=file.size,
                    displayed_filename=PurePosixPath(file.name).name,
                )
                stream.flush()
                os.fsync(stream.fileno())
                return
        except KeyboardInterrupt:
            report("interrupted: the next pull resumes here")
            raise
        except HTTPError as error:
            if isinstance(error, errors.HfHubHTTPError) or partial.stat().st_size == have:
                raise
        except ValueError as error:  # too large for plain HTTP
            raise DownloadError(f"{file.repository}: {' '.join(str(error).split())}") from None


def _publish(file: RemoteFile) -> None:
    """Link a blob into the cache's folder for its commit, or move it there if links are unavailable."""
    if not file.blob.exists():  # an earlier pull moved it
        return
    pointer = file.pointer
    pointer.parent.mkdir(parents=True, exist_ok=True)
    unfinished = pointer.with_name(f"{pointer.name}.{os.getpid()}")
    unfinished.unlink(missing_ok=True)
    try:
        unfinished.symlink_to(os.path.relpath(file.blob, pointer.parent))
    except OSError:  # Windows without developer mode, and some file systems
        unfinished = file.blob
    unfinished.replace(pointer)


def _message(error: HTTPError | OSError, entry: CatalogEntry) -> str:
    place = f"{constants.ENDPOINT}/{entry.repository}"
    log_in = "log in (type  hf auth login) or set HF_TOKEN"
    messages: dict[type[Exception], str] = {  # GatedRepoError is a RepositoryNotFoundError
        errors.GatedRepoError: f"{place} is gated: request access there, then {log_in}",
        errors.RepositoryNotFoundError: f"there is no repository {place}; if it is private, {log_in}",
        errors.RevisionNotFoundError: f"{place} has no revision {entry.revision}",
        errors.RemoteEntryNotFoundError: f"{place} no longer has the file",
        errors.OfflineModeIsEnabled: "HF_HUB_OFFLINE is set: unset it to download models",
    }
    for kind, message in messages.items():
        if isinstance(error, kind):
            return message
    if isinstance(error, errors.HfHubHTTPError):
        return f"{place} responds with HTTP status {error.response.status_code}: try again later"
    reason = getattr(error, "strerror", None) or " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, HTTPError):
        return (
            f"the connection to {constants.ENDPOINT} failed ({reason}): "
            f"check the network, then type  mink-models pull {entry.name}"
        )
    return f"the model could not be downloaded or written: {reason}"
