"""Fetch models from the Hugging Face Hub into its cache, where other programs find them, too.

huggingface_hub's own `hf_hub_download` begins anew after an earlier process was interrupted, and shows a
file before anybody has hashed it. So its functions are used here in another order: a file is fetched to
`blobs/SHA-256.incomplete`, where the next call continues, is hashed there, and only then becomes part of
the cache. Plain HTTP is used, since Xet's protocol does not continue.
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
from mink_local.models.catalog import CatalogEntry
from mink_local.models.gguf import shards
from mink_local.models.stores import hub_cache, hub_folder, select

_LOG_IN = "log in (type  hf auth login) or set HF_TOKEN"


@dataclass(frozen=True)
class RemoteFile:
    """A file of a repository on the Hub at one commit."""

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
        """The path for programs: a link to the blob, or the file itself if there are no links."""
        return hub_folder(self.repository) / "snapshots" / self.commit / self.name


def pull(entry: CatalogEntry, report: Callable[[str], None]) -> Path:
    """Fetch the missing files of a model into the Hub's cache, and return the path of the first.

    The source of `entry` is `hf:…`, and `report` is called with sentences for the person who waits. Raises
    DownloadError if the model cannot be fetched. The part that is here is kept for the next time, except a
    file whose SHA-256 is wrong.
    """
    repository = entry.source.partition(":")[2]
    try:
        files = _files(entry, repository, _listing(repository, entry.revision))
        for file in files:
            _fetch(file, report)
        for file in files:
            _publish(file)
        if entry.revision != files[0].commit:
            reference = hub_folder(repository) / "refs" / entry.revision
            reference.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(reference, files[0].commit)
    except (HTTPError, OSError) as error:  # the first is the base of what the HTTP client raises
        raise DownloadError(_sentence(error, f"{constants.ENDPOINT}/{repository}", entry.revision)) from None
    return files[0].pointer


def _listing(repository: str, revision: str) -> dict[str, RemoteFile]:
    """Return the GGUF files of a repository by name."""
    no_hub = DownloadError(
        f"{constants.ENDPOINT}/{repository} does not answer as the Hugging Face Hub does: "
        "is HF_ENDPOINT right?"
    )
    try:
        info = HfApi().model_info(repository, revision=revision, files_metadata=True)
    except errors.HFValidationError:
        raise DownloadError(f"{repository} is not a name that the Hugging Face Hub allows") from None
    except (AttributeError, KeyError, TypeError, ValueError):  # from parsing the answer
        raise no_hub from None
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
            raise no_hub
        files[name] = RemoteFile(repository, info.sha, name, size, sha256)
    return files


def _leads_out(name: str) -> bool:
    """Return whether the name of a file leads out of its folder, on any system."""
    path = PurePosixPath(name)
    return path.is_absolute() or ".." in path.parts or "\\" in name or ":" in name


def _files(entry: CatalogEntry, repository: str, listing: dict[str, RemoteFile]) -> list[RemoteFile]:
    """Return the files of a model in a repository."""
    try:
        first = select(listing, entry.file)[0]
    except ValueError as error:
        raise DownloadError(f"{entry.name} in {repository}: {error}") from None
    names = [path.as_posix() for path in shards(Path(first))]
    if missing := [name for name in names if name not in listing]:
        raise DownloadError(f"{repository} lacks {missing[0]}, a part of {entry.name}")
    if entry.sha256 not in (None, listing[first].sha256) and len(names) == 1:
        raise DownloadError(
            f"{first} in {repository} is not the file that models.txt means: its SHA-256 is "
            f"{listing[first].sha256}; if you trust it, add a line with that (mink-models add)"
        )
    return [listing[name] for name in names]


def _fetch(file: RemoteFile, report: Callable[[str], None]) -> None:
    """Bring a file into the cache, whole and hashed."""
    blob = file.blob
    lock = hub_cache() / ".locks" / blob.parents[1].name / f"{blob.name}.lock"  # huggingface_hub's own
    for folder in (blob.parent, lock.parent):
        folder.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(lock, timeout=0):
            for here in (blob, file.pointer):
                if here.is_file():
                    report(f"{file.name} is here: checking it")
                    if _is_right(here, file):
                        return
                    report(f"{file.name} is damaged: fetching it again")
                    here.unlink()
            partial = blob.with_name(f"{blob.name}.incomplete")
            _download(file, partial, report)
            report("checking its SHA-256")
            if not _is_right(partial, file):
                partial.unlink()
                raise DownloadError(
                    f"{file.name} arrived damaged and was deleted: its SHA-256 is wrong; pull again"
                )
            partial.replace(blob)
    except Timeout:
        raise DownloadError(f"{file.name} is being fetched by another process") from None


def _download(file: RemoteFile, partial: Path, report: Callable[[str], None]) -> None:
    """Append to `partial` the missing end of a file; try again if a broken connection brought some of it."""
    if _size(partial) > file.size:
        partial.unlink()
    missing, free = file.size - _size(partial), shutil.disk_usage(partial.parent).free
    if free < missing:
        raise DownloadError(
            f"{file.name} takes {size_in_words(missing)} and {size_in_words(free)} are free: make room, or "
            "set HF_HOME to another disk"
        )
    while True:
        have, size = _size(partial), size_in_words(file.size)
        beginning = f"continuing {file.name} at {size_in_words(have)} of {size}"
        report(beginning if have else f"fetching {file.name}, {size}")
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
            report("interrupted: the part that is here is kept, and the next pull continues")
            raise
        except HTTPError as error:
            if isinstance(error, errors.HfHubHTTPError) or _size(partial) == have:
                raise
        except ValueError as error:  # larger than plain HTTP may be
            raise DownloadError(f"{file.repository}: {' '.join(str(error).split())}") from None


def _size(path: Path) -> int:
    """Return the size of a file in bytes, 0 if there is no such file."""
    return path.stat().st_size if path.exists() else 0


def _is_right(path: Path, file: RemoteFile) -> bool:
    return path.stat().st_size == file.size and sha256_of(path) == file.sha256


def _publish(file: RemoteFile) -> None:
    """Link a blob into the cache's folder of its commit, or move it there if there are no links."""
    if not file.blob.exists():  # it was moved by an earlier pull
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


def _sentence(error: HTTPError | OSError, place: str, revision: str) -> str:
    match error:
        case errors.GatedRepoError():
            return f"{place} is gated: ask for access there, then {_LOG_IN}"
        case errors.RepositoryNotFoundError():
            return f"there is no repository {place}, or it is private: then {_LOG_IN}"
        case errors.RevisionNotFoundError():
            return f"{place} has no revision {revision}"
        case errors.RemoteEntryNotFoundError():
            return f"{place} no longer has the file"
        case errors.OfflineModeIsEnabled():
            return "HF_HUB_OFFLINE is set: unset it to fetch a model"
        case errors.HfHubHTTPError():
            return f"{place} answers with an error, {error.response.status_code}: try later"
    reason = getattr(error, "strerror", None) or " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, HTTPError):
        return f"the connection to {constants.ENDPOINT} failed ({reason}): pull again, it continues"
    return f"the model could not be written or fetched: {reason}"
