"""Checkpoints in an object store or on another host, through fsspec."""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar
from urllib.parse import urlsplit

from msgspec import Struct

from studydb.artifacts import tree
from studydb.artifacts.remote_faults import (
    READ_PATIENCE_S,
    WRITE_PATIENCE_S,
    described,
    is_of_credentials,
    retry_transient,
)
from studydb.artifacts.store import (
    Place,
    Stored,
    check_digest,
    check_uuid,
    digest_of,
    known_parts_of,
)
from studydb.domain.errors import CheckpointError, UsageError

_Moved = TypeVar("_Moved")

PART_BYTES = 8 << 20
"""The least size of a part of an upload. About three parts of a file are in memory at a time."""

_FILES_AT_A_TIME = 4
"""How many files of a directory are sent or fetched at a time."""

_MOST_PARTS = 9_000
"""
S3 takes at most 10,000 parts per object, so the parts of a file above 70 GiB exceed `PART_BYTES`.
"""

_MARKERS = ("KeyMarker", "UploadIdMarker")
"""The parameters of S3 that say where the next page of a list of multipart uploads begins."""

_TRAINS_ON = " Training continues, and any earlier checkpoint is kept."

_MANIFEST, _FILES = "manifest", "files"
_MANIFEST_BYTES = 256 << 20
_PATTERN_CHARACTERS = frozenset("*?[]#{}")
"""Characters that mark a pattern, a query or a fragment; a store's URL must not contain them."""


class Scheme(Struct, frozen=True):
    """
    How studydb uses a kind of store.

    Attributes:
        extra: The extra of studydb that installs the library; None if fsspec is enough.
        options: The options of the file system that are set to False. No option holds credentials:
            the library finds them on the host, for example in environment variables.
        get_options: The options of a download that limit how much memory the download uses.
        renames: Whether an object appears with its first byte, so that it is written under another
            name and then renamed. Object stores show an object only once it is whole.
        user: Whether the URL may name a user, or, for Azure, a container.
        cure: What a person must do so that a host gets access, for messages.
    """

    extra: str | None
    cure: str
    options: tuple[str, ...] = ("use_listings_cache",)
    get_options: tuple[tuple[str, int], ...] = ()
    renames: bool = False
    user: bool = False


_S3 = Scheme(
    "s3",
    "Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, AWS_PROFILE, or give the host a role",
    get_options=(("max_concurrency", 1),),  # several requests would hold whole parts in memory
)
_GS = Scheme(
    "gs",
    "Set GOOGLE_APPLICATION_CREDENTIALS, or run `gcloud auth application-default login`",
)
_ABFS = Scheme("abfs", "Set AZURE_STORAGE_CONNECTION_STRING or AZURE_STORAGE_KEY", user=True)
_SFTP = Scheme("sftp", "Add the user's key to ssh's agent", options=(), renames=True, user=True)

SCHEMES: dict[str, Scheme] = {
    "s3": _S3,
    "gs": _GS,
    "abfs": _ABFS,
    "sftp": _SFTP,
    "memory": Scheme(None, "", options=()),
}
"""The stores by the scheme of their URL; "memory" is for tests within one process."""


def check_remote_url(url: str) -> str:
    """
    Return the URL of a remote store without a slash at its end.

    Raises:
        UsageError: The URL holds a password or a user (see `Scheme.user`), names no bucket or host,
            contains one of `_PATTERN_CHARACTERS`, or has an empty part or a part "." or "..".
    """
    parsed = urlsplit(url)
    scheme = SCHEMES[parsed.scheme]
    shown = f"{parsed.scheme}://{parsed.netloc.rpartition('@')[2]}{parsed.path}"
    if parsed.password is not None or (parsed.username is not None and not scheme.user):
        raise UsageError(
            f"The checkpoint URL {shown!r} was given with a user or password. The database keeps "
            f"the URL in plain text, so it must not hold credentials. {scheme.cure}."
        )
    if not parsed.netloc and parsed.scheme != "memory":
        raise UsageError(f"{shown!r} names no bucket or host; write {parsed.scheme}://NAME/PREFIX.")
    if wrong := sorted(_PATTERN_CHARACTERS.intersection(url)):
        raise UsageError(
            f"The checkpoint URL {shown!r} contains {''.join(wrong)!r}; use letters, digits, "
            "'-', '_', '.' and '/'."
        )
    if any(part in ("", ".", "..") for part in parsed.path.rstrip("/").split("/")[1:]):
        raise UsageError(
            f"The checkpoint URL {shown!r} has an empty part, '.' or '..'; leave it out."
        )
    return url.rstrip("/")


class RemoteStore:
    """
    Objects below a URL; a checkpoint's object is `<study>/<trial>/<attempt>/<step>-<checkpoint>`.

    A dict is one object. A directory is the objects `files/0`, `files/1`, … below that name, and
    `manifest`, which is written last and lists names, sizes and digests. So a directory without a
    manifest counts as missing. Before any name in the manifest is used, the digest of the files'
    names and digests is compared with the digest in the checkpoint's row.

    The library of the scheme is imported by `connect`, or at the first access to an object. The
    library starts a thread, so a process that will be forked must not use the store before the
    fork.
    """

    is_remote = True

    def __init__(self, url: str) -> None:
        self._url = check_remote_url(url)
        self._scheme = SCHEMES[urlsplit(url).scheme]

    @property
    def url(self) -> str:
        return self._url

    def has_study(self, study_uuid: str) -> bool:  # noqa: ARG002
        return True

    def check_study(self, study_uuid: str) -> None:
        """Do nothing: the names of objects need no folders."""

    def add_study(self, study_uuid: str) -> None:
        """Do nothing: the names of objects need no folders."""

    def remove_folder(self, study_uuid: str) -> None:
        """Do nothing: the names of objects need no folders."""

    def connect(self) -> None:
        with self._explaining(f"Checkpoints cannot be written to {self._url}", _TRAINS_ON):
            files = self._files
            if self._scheme is _S3:
                files.connect()  # imports more modules

    def put_bytes(self, place: Place, data: bytes) -> Stored:
        with self._writing(place) as path:
            self._upload(lambda: _parts_of(data), path, size_bytes=len(data))
        return Stored(self._url_of(place), digest_of(data), len(data))

    def put_directory(self, place: Place, source: Path) -> Stored:
        contents = tree.scan(source)
        with self._writing(place) as path:
            entries = self._upload_files(contents.files, path)
            manifest = _encode(contents.directories, entries)
            self._upload(lambda: _parts_of(manifest), _manifest(path), size_bytes=len(manifest))
        digest = tree.digest_of_files((entry.name, entry.digest) for entry in entries)
        return Stored(self._url_of(place), digest, sum(entry.size_bytes for entry in entries))

    def get_bytes(self, url: str, *, digest: str) -> bytes:
        with self._reading(url):
            path = self._locate(url)
            data: bytes = retry_transient(
                lambda: self._files.cat_file(path), patience_s=READ_PATIENCE_S
            )
        check_digest(url, digest_of(data), digest)
        return data

    def get_directory(self, url: str, *, digest: str, target: Path) -> Path:
        with self._reading(url):
            path = self._locate(url)
            data = retry_transient(
                lambda: self._files.cat_file(_manifest(path), end=_MANIFEST_BYTES),
                patience_s=READ_PATIENCE_S,
            )
        directories, entries = _decode(url, data)
        check_digest(url, tree.digest_of_files((one.name, one.digest) for one in entries), digest)
        _check_names(url, directories, entries)
        with tree.new_directory(target):
            for name in directories:
                (target / name).mkdir(parents=True, exist_ok=True)
            self._move_files(
                lambda index, entry: self._download(
                    url, _file(path, index), entry, target / entry.name
                ),
                range(len(entries)),
                entries,
            )
        return target

    def exists(self, url: str) -> bool:
        with suppress(CheckpointError), self._reading(url):
            path = self._locate(url)
            found = retry_transient(
                lambda: self._is_object(path) or self._is_object(_manifest(path)),
                patience_s=READ_PATIENCE_S,
            )
            if not found:
                raise FileNotFoundError(path)  # `_reading` tells a missing object from its bucket
            return True
        return False

    def delete(self, url: str) -> None:
        with self._removing(url):
            self._remove(self._locate(url))

    def delete_unfinished(self, url: str) -> None:
        with self._removing(url):
            path = self._locate(url)
            self._remove(path)
            self._abort_uploads(path)
            if self._scheme.renames:
                self._remove_one(_temporary(path))

    def delete_study(self, study_uuid: str) -> None:
        name = check_uuid(study_uuid, noun="study")
        with self._removing(f"{self.url}/{name}"):
            path = f"{self._root}/{name}"
            self._remove(path)
            self._abort_uploads(f"{path}/")

    @cached_property
    def _opened(self) -> tuple[Any, str]:
        try:
            from fsspec.core import url_to_fs  # noqa: PLC0415  only remote stores need fsspec

            options = dict.fromkeys(self._scheme.options, False)
            files, root = url_to_fs(self._url, **options)
        except ImportError as cause:
            extra = self._scheme.extra or "s3"
            raise _NotInstalled(
                f"{self._url} needs a library that this host lacks ({described(cause)}). "
                f"Install it: pip install 'studydb[{extra}]'"
            ) from cause
        return files, root.rstrip("/")

    @property
    def _files(self) -> Any:
        return self._opened[0]

    @property
    def _root(self) -> str:
        return self._opened[1]

    def _url_of(self, place: Place) -> str:
        return "/".join((self._url, *place.parts))

    def _locate(self, url: str) -> str:
        return "/".join((self._root, *known_parts_of(url, store=self._url)))

    def _upload_files(self, files: Sequence[tree.File], path: str) -> "list[_Entry]":
        targets = [_file(path, index) for index in range(len(files))]
        return self._move_files(self._upload_file, files, targets)

    def _move_files(self, move: Callable[..., _Moved], *arguments: Sequence[Any]) -> list[_Moved]:
        """
        Send or fetch a few files at a time.

        The results are read in the order of the files. Once an error is read, no further file is
        begun.
        """
        n_threads = 1 if self._scheme.renames else _FILES_AT_A_TIME  # SFTP has one connection
        pool = ThreadPoolExecutor(n_threads, thread_name_prefix="studydb-files")
        try:
            return list(pool.map(move, *arguments))
        finally:
            pool.shutdown(cancel_futures=True)

    def _upload_file(self, file: tree.File, target: str) -> "_Entry":
        digest, length = self._upload(
            lambda: tree.chunks_of(file.path), target, size_bytes=file.path.stat().st_size
        )
        return _Entry(file.name, length, digest)

    def _upload(self, read: Any, target: str, *, size_bytes: int) -> tuple[bytes, int]:
        return retry_transient(
            lambda: self._write(read(), target, size_bytes=size_bytes), patience_s=WRITE_PATIENCE_S
        )

    def _write(self, chunks: Iterable[bytes], target: str, *, size_bytes: int) -> tuple[bytes, int]:
        """Write one object in parts; it exists once it is whole. Return its digest and length."""
        content, length = hashlib.sha256(), 0
        path = _temporary(target) if self._scheme.renames else target
        if self._scheme.renames:
            self._files.makedirs(path.rpartition("/")[0], exist_ok=True)
        part_bytes = max(PART_BYTES, size_bytes // _MOST_PARTS)
        file = self._files.open(path, "wb", block_size=part_bytes)
        try:
            for chunk in chunks:
                content.update(chunk)
                file.write(chunk)
                length += len(chunk)
            file.close()
        except BaseException:
            _abandon(file)
            raise
        if self._scheme.renames:
            self._files.mv(path, target)
        if length >= part_bytes:
            self._abort_leftover_uploads(target)
        return content.digest(), length

    def _abort_leftover_uploads(self, target: str) -> None:
        """
        After an object is stored, abort its multipart uploads that were never completed.

        If the reply to the request that begins an upload is lost, the library sends the request
        again, and the first upload stays open. This method then aborts the first upload. It ignores
        errors: a host may lack the permission to list uploads.
        """
        with suppress(Exception):
            self._abort_uploads(target, is_prefix=False)

    def _download(self, url: str, path: str, entry: "_Entry", target: Path) -> None:
        target.parent.mkdir(parents=True, exist_ok=True)
        options = dict(self._scheme.get_options)
        with self._reading(url):
            retry_transient(
                lambda: self._files.get_file(path, str(target), **options),
                patience_s=READ_PATIENCE_S,
            )
        content = hashlib.sha256()
        for chunk in tree.chunks_of(target):
            content.update(chunk)
        check_digest(f"{url}, file {entry.name!r}", content.hexdigest(), entry.digest.hex())

    def _is_object(self, path: str) -> bool:
        try:
            return bool(self._files.info(path)["type"] == "file")
        except FileNotFoundError:
            return False

    def _remove(self, path: str) -> None:
        """
        Remove all objects at the path of a checkpoint or of a study.

        A checkpoint's manifest is removed first, so that a crash leaves the checkpoint missing, not
        damaged. The objects of a study are removed in any order.
        """
        retry_transient(lambda: self._try_to_remove(path), patience_s=WRITE_PATIENCE_S)

    def _try_to_remove(self, path: str) -> None:
        self._remove_one(_manifest(path))
        paths = self._files.find(path)
        if not paths and not self._has_container():
            raise FileNotFoundError("The bucket or directory does not exist, or cannot be seen")
        if self._scheme is _S3 and paths:
            self._files.rm(paths)  # 1,000 objects per request
            return
        for one in paths:
            self._remove_one(one)
        if self._scheme.renames:
            with suppress(FileNotFoundError):
                self._files.rm(path, recursive=True)

    def _remove_one(self, path: str) -> None:
        with suppress(FileNotFoundError):
            self._files.rm_file(path)

    def _abort_uploads(self, path: str, *, is_prefix: bool = True) -> None:
        """
        Abort multipart uploads of S3; other object stores drop unfinished uploads by themselves.

        Args:
            is_prefix: Whether to abort the uploads of all objects whose names begin with the path,
                or only those of the object at the path.
        """
        if self._scheme is not _S3:
            return
        bucket, _, prefix = path.partition("/")

        def abort() -> None:
            markers: dict[str, str] = {}
            while True:  # a page has up to 1,000 uploads
                found = self._files.call_s3(
                    "list_multipart_uploads", Bucket=bucket, Prefix=prefix, **markers
                )
                for upload in found.get("Uploads") or ():
                    if not is_prefix and upload["Key"] != prefix:
                        continue
                    with suppress(FileNotFoundError):
                        self._files.abort_mpu(bucket, upload["Key"], upload["UploadId"])
                if not found.get("IsTruncated"):
                    return
                markers = {name: found[f"Next{name}"] for name in _MARKERS}

        retry_transient(abort, patience_s=WRITE_PATIENCE_S)

    @contextmanager
    def _writing(self, place: Place) -> Iterator[str]:
        parts = place.parts
        what = f"The checkpoint of step {place.step} could not be written to {self._url}"
        with self._explaining(what, _TRAINS_ON):
            yield "/".join((self._root, *parts))

    def _removing(self, url: str) -> AbstractContextManager[None]:
        return self._explaining(f"The checkpoint {url} cannot be removed")

    @contextmanager
    def _explaining(self, what: str, consequence: str = "") -> Iterator[None]:
        """Raise CheckpointError if the store fails; the message says what has failed, and why."""
        try:
            yield
        except CheckpointError:
            raise
        except Exception as cause:
            raise CheckpointError(f"{what}: {self._explained(cause)}{consequence}") from cause

    @contextmanager
    def _reading(self, url: str) -> Iterator[None]:
        """Raise CheckpointError if the object is missing, OSError if the store cannot be read."""
        try:
            yield
        except FileNotFoundError as cause:
            if self._has_container():
                raise CheckpointError(f"The checkpoint {url} is missing.") from cause
            raise FileNotFoundError(
                f"The checkpoint store {self._url} does not exist, or this host may not see it: "
                f"{described(cause)}."
            ) from cause
        except CheckpointError:
            raise
        except Exception as cause:
            raise OSError(
                f"The checkpoint store {self._url} cannot be read on this host: "
                f"{self._explained(cause)}"
            ) from cause

    def _has_container(self) -> bool:
        """Whether this host sees the store's bucket or, for SFTP, directory; False on any error."""
        container = self._root if self._scheme.renames else self._root.partition("/")[0]
        with suppress(Exception):
            return bool(self._files.exists(container))
        return False

    def _explained(self, cause: Exception) -> str:
        text = f"{described(cause)}."
        if isinstance(cause, _NotInstalled):
            return text
        if is_of_credentials(cause):
            return f"{text} {self._scheme.cure}."
        if isinstance(cause, FileNotFoundError):
            return (
                f"{text} Make the bucket or directory. To save new checkpoints in another store, "
                "type: `studydb set NAME checkpoints=URL`."
            )
        return text


class _NotInstalled(ImportError):
    """The library of a store is not installed on this host; another host may have it."""


class _Entry(Struct, frozen=True):
    """A manifest's entry for one file of a directory; `digest` is the SHA-256 of the bytes."""

    name: str
    size_bytes: int
    digest: bytes


def _manifest(path: str) -> str:
    return f"{path}/{_MANIFEST}"


def _file(path: str, index: int) -> str:
    return f"{path}/{_FILES}/{index}"


def _temporary(path: str) -> str:
    folder, _, name = path.rpartition("/")
    return f"{folder}/.{name}.part"


def _parts_of(data: bytes) -> Iterator[bytes]:
    for start in range(0, len(data), PART_BYTES):
        yield data[start : start + PART_BYTES]


def _abandon(file: Any) -> None:
    """Drop what was written of an object; `close` would complete a truncated object."""
    with suppress(Exception):
        file.discard()
    file.closed = True


def _encode(directories: Iterable[str], entries: Iterable[_Entry]) -> bytes:
    files = [[one.name, one.size_bytes, one.digest.hex()] for one in entries]
    return json.dumps({"version": 1, "directories": list(directories), "files": files}).encode()


def _decode(url: str, data: bytes) -> tuple[list[str], list[_Entry]]:
    try:
        manifest = json.loads(data)
        entries = [
            _Entry(str(name), int(size_bytes), bytes.fromhex(digest))
            for name, size_bytes, digest in manifest["files"]
        ]
        return [str(name) for name in manifest["directories"]], entries
    except (ValueError, TypeError, LookupError) as cause:
        raise CheckpointError(
            f"The checkpoint {url} is damaged: its manifest cannot be read ({described(cause)})."
        ) from cause


def _check_names(url: str, directories: Iterable[str], entries: Iterable[_Entry]) -> None:
    """Refuse names that are not plain relative paths, occur twice, or name both file and folder."""
    files = [entry.name for entry in entries]
    above = {
        str(parent) for name in (*files, *directories) for parent in PurePosixPath(name).parents
    }
    names = [*files, *directories]
    is_wrong = any(
        not name or "\0" in name or any(part in ("", ".", "..") for part in name.split("/"))
        for name in names
    )
    if is_wrong or len(set(names)) < len(names) or above.intersection(files):
        raise CheckpointError(
            f"The checkpoint {url} is damaged: its manifest names files that no directory can hold."
        )
