"""Storage URLs: read them, mask their passwords, and refuse unfit files and databases."""

import os
import re
import shlex
from collections.abc import Callable
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.engine import URL

from studydb.db.dialect import FEATURES, Features
from studydb.domain.errors import StorageError, UsageError
from studydb.domain.text.display import visible
from studydb.settings import expanded

_NETWORK_FILE_SYSTEMS = (
    *("9p", "afpfs", "afs", "beegfs", "ceph", "cifs", "fuse.glusterfs", "fuse.sshfs", "gfs2"),
    *("glusterfs", "gpfs", "lustre", "ncpfs", "nfs", "nfs4", "ocfs2", "orangefs", "pvfs2"),
    *("smb2", "smb3", "smbfs", "virtiofs"),
)

_PASSWORD = re.compile(r"(password\s*=\s*)('[^']*'|[^&\s]*)", re.IGNORECASE)

_USER_AND_PASSWORD = re.compile(r"(://[^/@:?\[]*:)(?!\d+(?:[/?,]|$))[^@]+$")
"""A password without a host behind it, as in `postgresql://me:secret`; digits are a port."""


def read_url(text: str) -> URL:
    """
    Read a storage URL: `sqlite:///file.db`, `postgresql://…` or `postgres://…`.

    Raises:
        UsageError: The text is no URL, its host contains an "@", or it names neither a PostgreSQL
            database nor an SQLite file; or an SQLite URL has options, such as `?mode=ro`.
    """
    try:
        url = sa.make_url(text)
    except (sa.exc.ArgumentError, ValueError):  # ValueError: the port is not a number
        raise UsageError(
            f"{mask_text(text)!r} is no storage URL. "
            "Write sqlite:///studydb.db or postgresql://user@host/database."
        ) from None
    if "@" in (url.host or ""):
        raise UsageError(
            f"The host of {mask_text(text)!r} holds an '@'. Write an '@' in a password as %40."
        )
    backend = url.get_backend_name()
    if backend in ("postgres", "postgresql"):
        return url.set(drivername="postgresql+psycopg")
    if backend != "sqlite":
        raise UsageError(f"studydb keeps studies in PostgreSQL or SQLite, not in {backend!r}.")
    if url.host:
        path = f"{url.host}/{url.database}" if url.database else url.host
        raise UsageError(
            f"{mask_text(text)!r} lacks a slash. Write sqlite:///{path} for a file in this "
            f"directory, or sqlite:////{path} for /{path}."
        )
    if not url.database or ":memory:" in url.database or "mode=memory" in text:
        raise UsageError(
            "An SQLite database in memory is lost with its process, and workers cannot see it. "
            "Give a file: sqlite:///studydb.db."
        )
    if "?" in text:
        options = text.partition("?")[2].split("&")
        names = ", ".join(sorted({option.partition("=")[0] for option in options}))
        raise UsageError(
            f"An SQLite URL takes no options, and {mask_text(text)!r} has {names!r}. Write "
            "sqlite:///studydb.db; write a '?' in a file's name as %3F. To protect the file, "
            "change its rights: a database that may only be read is opened for reading."
        )
    return url.set(drivername="sqlite", database=str(expanded(url.database).absolute()))


def features_of(url: URL) -> Features:
    """Return what the database of a URL can do."""
    return FEATURES[url.get_backend_name()]


def mask_text(text: str) -> str:
    """Mask everything that could be a password in a text that need not be a valid URL."""
    text = _USER_AND_PASSWORD.sub(r"\1***", _PASSWORD.sub(r"\1***", text))
    head, at, tail = text.rpartition("@")
    scheme = head.partition("://")[0] + "://" if "://" in head else ""
    return f"{scheme}***@{tail}" if at else text


def mask(url: URL) -> str:
    """Write a URL without the driver's name and with all passwords masked."""
    shown = url.set(drivername=url.get_backend_name())
    secrets = {name: "xxx" for name in shown.query if "password" in name}
    shown = shown.update_query_dict(secrets)
    return shown.render_as_string(hide_password=True)


def file_system_of(path: Path, mounts: Path = Path("/proc/self/mounts")) -> str:
    """Return the type of the file system of a path; empty if the host has no list of mounts."""
    try:
        lines = mounts.read_text().splitlines()
    except OSError:
        return ""
    innermost, innermost_kind = "", ""
    resolved = path.resolve()
    for line in lines:
        _, mount, kind, *_ = line.split()
        mount = re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), mount)  # a space is \040
        if resolved.is_relative_to(mount) and len(mount) >= len(innermost):
            innermost, innermost_kind = mount, kind
    return innermost_kind


def refuse_network_file_system(path: Path, kind_of: Callable[[Path], str] = file_system_of) -> None:
    """
    Refuse an SQLite file on a network file system.

    SQLite's WAL mode needs memory that all processes share, so the processes must be on one host.

    Raises:
        StorageError: The file's folder is on a network file system.
    """
    kind = kind_of(path.parent)
    if kind in _NETWORK_FILE_SYSTEMS:
        raise StorageError(
            f"{path} is on a network file system ({kind}), where SQLite's locks do not hold. "
            "Put the file on a local disk, or use PostgreSQL for several machines."
        )


def check_file(path: Path) -> None:
    """
    Refuse a path that cannot be an SQLite file.

    Raises:
        StorageError: The path is a folder, or its folder is missing, may not be entered or is on a
            network file system.
    """
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        pass
    except (OSError, ValueError) as cause:  # ValueError: the path holds a NUL
        why = cause.strerror if isinstance(cause, OSError) else str(cause)
        raise StorageError(
            f"{visible(os.fspath(path))} cannot be used: {why}. Give another path, or correct the "
            "rights of its folders."
        ) from cause
    refuse_network_file_system(path)
    if not path.parent.is_dir():
        raise StorageError(
            f"The folder {path.parent} of the database does not exist. Make it first."
        )
    if path.is_dir():
        raise StorageError(f"{os.fspath(path)} is a folder; name a file in it.")


def check_encoding(encoding: str | None, url: URL) -> None:
    """
    Refuse a PostgreSQL database that cannot hold every text.

    Args:
        encoding: The database's encoding, by PostgreSQL's name; None if a pooler hides it.

    Raises:
        StorageError: The encoding is not UTF-8.
    """
    if encoding in (None, "UTF8"):
        return
    raise StorageError(
        f"{mask(url)} is encoded in {encoding}, which cannot hold every text. "
        f"Name another database in the URL. This command makes one in UTF-8: {create_line(url)}"
    )


def create_line(url: URL) -> str:
    """Return the shell line that makes a UTF-8 database on a server of any locale."""
    places = {
        "--host": url.host or url.query.get("host"),
        "--port": url.port or url.query.get("port"),
        "--username": url.username or url.query.get("user"),
    }
    given = [word for flag, value in places.items() if value for word in (flag, str(value))]
    encoding = ["--encoding", "UTF8", "--locale", "C", "--template", "template0"]
    return shlex.join(["createdb", *given, *encoding, f"{url.database or 'studies'}_utf8"])
