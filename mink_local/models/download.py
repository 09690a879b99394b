"""Downloads models from the Hugging Face Hub into its cache, where other programs find them too.

huggingface_hub's own `hf_hub_download` starts over in each process and publishes a file before its hash has
been checked. Here a file is downloaded to `blobs/SHA-256.incomplete`, where the next call resumes, is hashed
there, and only then linked into the cache. Plain HTTP is used, since Xet's protocol cannot resume.
"""

import os
import re
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from huggingface_hub import HfApi, constants, errors, get_token, hf_hub_url
from huggingface_hub.errors import HTTPError
from huggingface_hub.utils import build_hf_headers, get_session, hf_raise_for_status, tqdm

from mink_local.cli import printable
from mink_local.errors import DownloadError
from mink_local.files import locked, sha256_of, size_in_words, write_atomic
from mink_local.models import trust
from mink_local.models.catalog import CatalogEntry
from mink_local.models.gguf import MAGIC, shards
from mink_local.models.stores import commit_of, hub_cache, hub_folder, in_hub_cache, is_model, select

_ATTEMPTS = 5  # that bring nothing, before giving up
_PASSING = (408, 429, 500, 502, 503, 504)  # HTTP statuses of trouble that may pass

Report = Callable[[str], None]  # receives messages for the user


@dataclass(frozen=True)
class RemoteFile:
    """A file in a Hub repository, at one commit."""

    repository: str
    commit: str
    name: str
    size: int
    sha256: str  # empty if the Hub has none

    @property
    def blob(self) -> Path:
        return hub_folder(self.repository) / "blobs" / self.sha256

    @property
    def partial(self) -> Path:
        """The path of what has arrived so far."""
        return self.blob.with_name(f"{self.sha256}.incomplete")

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
    _check_environment()
    try:
        listed = listing(entry.repository, entry.revision)
    except (HTTPError, OSError) as error:
        if here := in_hub_cache(entry.repository, entry.revision, entry.file):
            report(f"{entry.name} is already on this machine; it was not checked: {_message(error, entry)}")
            return here
        raise DownloadError(_message(error, entry)) from None
    files = files_of(entry, listed)
    try:
        _check_space(files)
        for file in files:
            _fetch(file, report)
        for file in files:
            _publish(file)
        if entry.revision != files[0].commit:
            _refer(entry, files[0].commit)
        if entry.sha256 and len(files) == 1:
            trust.remember(files[0].pointer)  # its SHA-256 is the catalogue's
    except (HTTPError, OSError) as error:  # HTTPError is the base of the HTTP client's errors
        raise DownloadError(_message(error, entry)) from None
    return files[0].pointer


def _check_environment() -> None:
    """Raise DownloadError for a token or a proxy with which no request can be sent."""
    try:
        token = get_token() or ""
        get_session()
    except Exception as error:  # whatever the libraries make of a file that is no token, or of a proxy
        raise DownloadError(
            f"no request can be sent: check HF_TOKEN, HF_HOME and the proxy (HTTPS_PROXY): {error}"
        ) from None
    if not re.fullmatch(r"[!-~]*", token):
        raise DownloadError(
            "the Hub's token (HF_TOKEN) has spaces or characters outside ASCII: copy it again"
        )


def _refer(entry: CatalogEntry, commit: str) -> None:
    """Record the commit that a branch or tag stands for."""
    if commit_of(entry.repository, entry.revision) != commit:
        reference = hub_folder(entry.repository) / "refs" / entry.revision
        reference.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(reference, commit)


def listing(repository: str, revision: str) -> dict[str, RemoteFile]:
    """Return the GGUF files of a repository by name.

    Raises:
        DownloadError: There is no such repository, or the server is not the Hub.
    """
    not_a_hub = DownloadError(
        f"{constants.ENDPOINT}/{repository} does not respond like the Hugging Face Hub: check HF_ENDPOINT"
    )
    try:
        info = HfApi().model_info(
            repository, revision=revision, timeout=constants.HF_HUB_DOWNLOAD_TIMEOUT, files_metadata=True
        )
    except errors.HFValidationError:
        raise DownloadError(f"{repository} is not a valid repository name on the Hugging Face Hub") from None
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError):  # from parsing the answer
        raise not_a_hub from None
    files = {}
    for sibling in info.siblings or ():
        name, size = sibling.rfilename, sibling.size
        if not isinstance(name, str) or not is_model(name):
            continue
        sha256 = str(sibling.lfs.sha256) if sibling.lfs else ""
        if (
            not re.fullmatch("[0-9a-f]{40}", str(info.sha))
            or not re.fullmatch("[0-9a-f]{64}|", sha256)
            or not isinstance(size, int)
            or not name.isprintable()
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
    if unhashed := [name for name in names if name in listing and not listing[name].sha256]:
        raise DownloadError(
            f"{unhashed[0]} in {repository} has no SHA-256 (it is not stored with LFS): download it in a "
            f"browser ({constants.ENDPOINT}/{repository}), and name the file"
        )
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
    if _is_here(file, report):  # also in a cache that cannot be written
        return
    blob = file.blob
    lock = hub_cache() / ".locks" / blob.parents[1].name / f"{blob.name}.lock"  # huggingface_hub's own
    for folder in (blob.parent, lock.parent):
        folder.mkdir(parents=True, exist_ok=True)
    try:
        with locked(lock, timeout=0):
            for damaged in (blob, file.pointer):
                damaged.unlink(missing_ok=True)
            _download(file, file.partial, report)
            report("checking its SHA-256")
            if not file.is_whole(file.partial):
                file.partial.unlink()
                raise DownloadError(
                    f"{file.name} arrived damaged (wrong SHA-256) and was deleted: download it again"
                )
            file.partial.replace(blob)
    except TimeoutError:
        raise DownloadError(f"{file.name} is being downloaded by another process: wait for it") from None


def _is_here(file: RemoteFile, report: Report) -> bool:
    """Return whether a file is in the cache, with the right hash."""
    here = next(filter(Path.is_file, (file.blob, file.pointer)), None)
    if here is None:
        return False
    report(f"{file.name} is already on this machine: checking it")
    if file.is_whole(here):
        return True
    report(f"{file.name} is damaged: downloading it again")
    return False


def _download(file: RemoteFile, partial: Path, report: Report) -> None:
    """Append the missing end of a file to `partial`; go on as long as attempts make progress."""
    if not partial.is_file():  # opening a pipe would wait for its reader
        partial.unlink(missing_ok=True)
        partial.touch()
    if partial.stat().st_size > file.size:
        partial.write_bytes(b"")
    failures = 0
    while (have := partial.stat().st_size) < file.size:
        size = size_in_words(file.size)
        resuming = f"resuming {file.name} at {size_in_words(have)} of {size}"
        report(resuming if have else f"downloading {file.name}, {size}")
        try:
            _append(file, partial, have)
        except KeyboardInterrupt:
            report("interrupted: the next pull resumes here")
            raise
        except HTTPError as error:
            failures = 0 if partial.stat().st_size > have else failures + 1
            has_answered = isinstance(error, errors.HfHubHTTPError)  # otherwise the connection has broken
            if failures == _ATTEMPTS or (has_answered and error.response.status_code not in _PASSING):
                raise
            time.sleep(2**failures)


def _check_space(files: Sequence[RemoteFile]) -> None:
    """Raise DownloadError unless there is space for what is missing of a model's files."""
    missing = sum(file.size - _size_here(file) for file in files)
    folder = next(folder for folder in files[0].blob.parents if folder.exists())
    if (free := shutil.disk_usage(folder).free) < missing:
        raise DownloadError(
            f"{files[0].name} needs {size_in_words(missing)}, but only {size_in_words(free)} are free: "
            "free up space, or set HF_HOME to another disk"
        )


def _size_here(file: RemoteFile) -> int:
    """Return how many bytes of a file are on this machine already."""
    here = next(filter(Path.is_file, (file.blob, file.pointer, file.partial)), None)
    return min(here.stat().st_size, file.size) if here else 0


def _append(file: RemoteFile, partial: Path, have: int) -> None:
    """Append what the server sends of a file from byte `have` on; all that has arrived is kept."""
    url = hf_hub_url(file.repository, file.name, revision=file.commit)
    headers = build_hf_headers() | {"Accept-Encoding": "identity"}
    if have:
        headers["Range"] = f"bytes={have}-"
    request = get_session().stream(
        "GET", url, headers=headers, follow_redirects=True, timeout=constants.HF_HUB_DOWNLOAD_TIMEOUT
    )
    name = PurePosixPath(file.name).name
    with request as response, partial.open("ab") as stream:
        hf_raise_for_status(response)
        # A server may ignore the range, and something else than the Hub may answer with any status.
        at = have if response.status_code == 206 and "content-range" in response.headers else 0
        _check_answer(file, response.headers, at)
        with tqdm(total=file.size, initial=have, desc=name, unit="B", unit_scale=True) as progress:
            for block in response.iter_raw():
                if at == 0 and block[: len(MAGIC)] != MAGIC[: len(block)]:
                    raise _not_the_file(file)
                new = block[max(have - at, 0) : file.size - at]
                stream.write(new)
                stream.flush()
                progress.update(len(new))
                at += len(block)
        if at < file.size:  # without a length the end of an answer is that of the connection
            raise HTTPError("it ended early")
        os.fsync(stream.fileno())


def _check_answer(file: RemoteFile, headers: Mapping[str, str], at: int) -> None:
    """Refuse an answer that is not the file from byte `at` on, such as the login page of a proxy."""
    expected = {
        "content-length": str(file.size - at),
        "content-range": f"bytes {at}-{file.size - 1}/{file.size}",
    }
    is_page = "html" in headers.get("content-type", "")
    if is_page or any(headers.get(name, value) != value for name, value in expected.items()):
        raise _not_the_file(file)


def _not_the_file(file: RemoteFile) -> DownloadError:
    return DownloadError(
        f"{constants.ENDPOINT} sent something else in place of {file.name}, perhaps a network's login page: "
        "open a web page, then pull again; what has arrived so far is kept"
    )


def _publish(file: RemoteFile) -> None:
    """Link a blob into the cache's folder for its commit, or move it there if links are unavailable."""
    pointer = file.pointer
    if not file.blob.exists() or pointer.exists():  # an earlier pull moved or linked it
        return
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
        errors.OfflineModeIsEnabled: "HF_HUB_OFFLINE is set: unset it to download models",
        errors.GatedRepoError: f"{place} is gated: request access there, then {log_in}",
        errors.RepositoryNotFoundError: f"there is no repository {place}; if it is private, {log_in}",
        errors.RevisionNotFoundError: f"{place} has no revision {entry.revision}",
        errors.RemoteEntryNotFoundError: f"{place} no longer has the file",
    }
    for kind, message in messages.items():
        if isinstance(error, kind):
            return message
    if isinstance(error, errors.HfHubHTTPError):
        return _status_message(error, place)
    reason = getattr(error, "strerror", None) or " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, HTTPError):
        return (
            f"the connection to {_host(error)} failed ({reason}): "
            f"check the network, then type  mink-models pull {entry.name}"
        )
    where = f" ({filename})" if (filename := getattr(error, "filename", None)) else ""
    return f"the model could not be downloaded or written: {reason}{where}"


def _status_message(error: errors.HfHubHTTPError, place: str) -> str:
    status = error.response.status_code
    words = printable(" ".join((error.server_message or "").split()))
    said = f"HTTP status {status}" + (f", {words}" if words else "")
    if status in (401, 403):
        return f"{place} refuses access ({said}): check HF_TOKEN, or type  hf auth login"
    advice = "try again later" if status >= 500 or status in _PASSING else "check HF_ENDPOINT"
    return f"{place} responds with {said}: {advice}"


def _host(error: HTTPError) -> str:
    """Return the server that a request was sent to, which the Hub may have redirected."""
    try:
        url = error.request.url
    except (AttributeError, RuntimeError):  # it failed before there was a request
        return str(constants.ENDPOINT)
    return f"{url.scheme}://{url.host}" + (f":{url.port}" if url.port else "")
