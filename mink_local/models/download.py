"""Fetching models from the Hugging Face Hub into its cache, where other programs find them, too.

huggingface_hub's own `hf_hub_download` begins anew where an earlier process was interrupted, and shows a
file before anybody has hashed it. So its parts are put together here in another order: what is fetched
goes to `blobs/SHA-256.incomplete`, where the next call continues, is hashed there, and only then
becomes part of the cache. Plain HTTP is used, since Xet's protocol does not continue.
"""

import fcntl
import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from mink_local.errors import DownloadError
from mink_local.files import sha256_of
from mink_local.models.catalog import CatalogEntry
from mink_local.models.gguf import shards
from mink_local.models.info import size_in_words
from mink_local.models.stores import hub_folder, select

Say = Callable[[str], None]


@dataclass(frozen=True)
class RemoteFile:
    """A file of a repository at one commit. sha256 is None where the Hub does not know it."""

    repository: str
    commit: str
    name: str
    size: int
    blob: str
    sha256: str | None


def pull(entry: CatalogEntry, say: Say) -> Path:
    """Fetch the files of `entry`, an `hf:` one, as far as they are not here; returns the first one's path.

    `say` takes a sentence for the person who waits. Raises DownloadError; what was fetched until then is
    kept for the next time, but for a file whose SHA-256 is wrong.
    """
    repository = entry.source.partition(":")[2]
    with _errors(repository, entry.revision):
        files = _listed(entry, repository)
        for file in files:
            _fetch(file, say)
        return _publish(files, entry.revision)


def remove(path: Path) -> int:
    """Delete a model, given by its first file in the Hub's cache, and return how many bytes that freed."""
    freed = 0
    for pointer in shards(path):
        blob = pointer.resolve()
        freed += blob.stat().st_size
        repository = _snapshots(pointer).parent
        for other in repository.glob("snapshots/*/**/*"):
            if other.is_symlink() and other.resolve() == blob:
                other.unlink()
        pointer.unlink(missing_ok=True)  # a copy, where the file system has no links
        blob.unlink(missing_ok=True)
    return freed


def _snapshots(pointer: Path) -> Path:
    return next(folder for folder in pointer.parents if folder.name == "snapshots")


def _listed(entry: CatalogEntry, repository: str) -> list[RemoteFile]:
    """What the Hub says of the files that `entry` names."""
    from huggingface_hub import HfApi

    info = HfApi().model_info(repository, revision=entry.revision, files_metadata=True)
    siblings = {sibling.rfilename: sibling for sibling in info.siblings or ()}
    try:
        names = select(siblings, "" if entry.file == "-" else entry.file)
    except ValueError as error:
        raise DownloadError(f"{entry.name} in {repository}: {error}") from None
    wanted = [str(path) for path in shards(Path(names[0]))]
    if missing := [name for name in wanted if name not in siblings]:
        raise DownloadError(f"{repository} lacks {missing[0]}, a part of {entry.name}")
    files = []
    for sibling in map(siblings.__getitem__, wanted):
        sha256 = sibling.lfs.sha256 if sibling.lfs else None
        if entry.sha256 and len(wanted) == 1:
            if sha256 not in (None, entry.sha256):
                raise DownloadError(
                    f"{sibling.rfilename} in {repository} is not the file that models.txt vouches for: its "
                    f"SHA-256 is {sha256}; if you trust it, add a line with that (mink-models add)"
                )
            sha256 = entry.sha256
        file = RemoteFile(
            repository, info.sha, sibling.rfilename, sibling.size, sha256 or sibling.blob_id, sha256
        )
        if not re.fullmatch("[0-9a-f]{40,64}", file.blob) or not re.fullmatch("[0-9a-f]{40}", file.commit):
            raise TypeError("what the server gives for a hash is none")
        if ".." in Path(file.name).parts or Path(file.name).is_absolute():
            raise TypeError("a file's name leads out of the repository")
        files.append(file)
    return files


def _fetch(file: RemoteFile, say: Say) -> None:
    """Have the file as a blob of the cache, whole and hashed."""
    blob = hub_folder(file.repository) / "blobs" / file.blob
    blob.parent.mkdir(parents=True, exist_ok=True)
    if blob.exists():
        say(f"{file.name} is here: checking it")
        if _is_right(blob, file):
            return
        say(f"{file.name} is damaged: fetching it again")
        blob.unlink()
    partial = blob.with_name(f"{blob.name}.incomplete")
    with partial.open("ab") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DownloadError(f"{file.name} is being fetched by another process") from None
        try:
            _download(file, stream, say)
        except KeyboardInterrupt:
            say("interrupted: what is here is kept, and the next pull continues")
            raise
        os.fsync(stream.fileno())
        say("checking its SHA-256" if file.sha256 else "its SHA-256 is not known: checking its size alone")
        if not _is_right(partial, file):
            partial.unlink()
            raise DownloadError(
                f"{file.name} arrived damaged and was deleted: its SHA-256 is wrong; pull again"
            )
        partial.replace(blob)


def _download(file: RemoteFile, stream: BinaryIO, say: Say) -> None:
    """Append to `stream` what it lacks of the file, for as long as a broken connection brings some of it."""
    from huggingface_hub import errors, hf_hub_url
    from huggingface_hub.errors import HTTPError
    from huggingface_hub.file_download import http_get
    from huggingface_hub.utils import build_hf_headers, disable_progress_bars

    if not sys.stderr.isatty():
        disable_progress_bars()
    have = stream.tell()
    if have > file.size:
        have = stream.truncate(0)
    missing, free = file.size - have, shutil.disk_usage(hub_folder(file.repository)).free
    if free < missing:
        raise DownloadError(
            f"{file.name} takes {size_in_words(missing)} and {size_in_words(free)} are free: make room, or "
            "set HF_HOME to another disk"
        )
    while True:
        place = f"at {size_in_words(have)} of {size_in_words(file.size)}"
        say(
            f"continuing {file.name} {place}" if have else f"fetching {file.name}, {size_in_words(file.size)}"
        )
        try:
            http_get(
                hf_hub_url(file.repository, file.name, revision=file.commit),
                stream,
                resume_size=have,
                headers=build_hf_headers(),
                expected_size=file.size,
                displayed_filename=Path(file.name).name,
            )
        except HTTPError as error:
            stream.flush()
            size = os.fstat(stream.fileno()).st_size
            if isinstance(error, errors.HfHubHTTPError) or size == have:
                raise
            have = size
        else:
            stream.flush()
            return


def _is_right(path: Path, file: RemoteFile) -> bool:
    return path.stat().st_size == file.size and file.sha256 in (None, sha256_of(path))


def _publish(files: list[RemoteFile], revision: str) -> Path:
    """Enter the blobs into the cache's folder of their commit, and the commit as what `revision` means."""
    folder = hub_folder(files[0].repository)
    snapshot = folder / "snapshots" / files[0].commit
    for file in files:
        pointer = snapshot / file.name
        pointer.parent.mkdir(parents=True, exist_ok=True)
        unfinished = pointer.with_name(f"{pointer.name}.{os.getpid()}")
        unfinished.symlink_to(os.path.relpath(folder / "blobs" / file.blob, pointer.parent))
        unfinished.replace(pointer)
    if revision != files[0].commit:
        reference = folder / "refs" / revision
        reference.parent.mkdir(parents=True, exist_ok=True)
        unfinished = reference.with_name(f"{reference.name}.{os.getpid()}")
        unfinished.write_text(files[0].commit, encoding="utf-8")
        unfinished.replace(reference)
    return snapshot / files[0].name


@contextmanager
def _errors(repository: str, revision: str) -> Iterator[None]:
    """Make one sentence of whatever goes wrong between here and the Hub."""
    from huggingface_hub import constants, errors
    from huggingface_hub.errors import HTTPError

    log_in = "log in (type  hf auth login) or set HF_TOKEN"
    place = f"{constants.ENDPOINT}/{repository}"
    try:
        yield
    except errors.GatedRepoError:
        raise DownloadError(f"{repository} is gated: ask for access at {place}, then {log_in}") from None
    except errors.RepositoryNotFoundError:
        raise DownloadError(f"there is no repository {place}, or it is private: then {log_in}") from None
    except errors.RevisionNotFoundError:
        raise DownloadError(f"{place} has no revision {revision}") from None
    except errors.RemoteEntryNotFoundError:
        raise DownloadError(f"{place} no longer has the file") from None
    except errors.OfflineModeIsEnabled:
        raise DownloadError("HF_HUB_OFFLINE is set: unset it to fetch a model") from None
    except errors.HfHubHTTPError as error:
        raise DownloadError(
            f"{place} answers with an error, {error.response.status_code}: try later"
        ) from None
    except HTTPError as error:  # the base of what the HTTP client raises without an answer
        reason = str(error) or type(error).__name__
        raise DownloadError(
            f"the connection to {constants.ENDPOINT} failed ({reason}): pull again, it continues"
        ) from None
    except (AttributeError, KeyError, TypeError, json.JSONDecodeError):
        raise DownloadError(
            f"{place} does not answer as the Hugging Face Hub does: is HF_ENDPOINT right?"
        ) from None
    except ValueError as error:  # larger than plain HTTP may be
        raise DownloadError(f"{repository}: {' '.join(str(error).split())}") from None
    except OSError as error:
        reason = error.strerror or " ".join(str(error).split())
        raise DownloadError(f"the model could not be written or fetched: {reason}") from None
