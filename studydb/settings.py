"""Read the settings that all commands share: environment variables, defaults, signing keys."""

# The argument `environ` holds the environment variables; by default, those of the process.

import hashlib
import hmac
import os
import secrets
import struct
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from msgspec import Struct

from studydb.domain.errors import UsageError
from studydb.domain.sizes import size_of

STORAGE = "STUDYDB_STORAGE"
"""The database's URL; it may hold a password."""

SIGNING_KEY = "STUDYDB_SIGNING_KEY"
"""A signing key in hexadecimal; it takes precedence over the key file."""

KEY_FILE = "STUDYDB_KEY_FILE"
"""The path of the key file; by default it is in the user's configuration directory."""

PARENT = "STUDYDB_PARENT"
"""
A worker's parent process, as PID@NAMESPACE. When that process ends, so does the worker.

In another namespace of pids, as in a container, the pid says nothing.
"""

CACHE_SIZE = "STUDYDB_CACHE_SIZE"
"""The limit of this host's cache of remote checkpoints, such as 10GB; with 0 there is no cache."""

CACHE_DIR = "STUDYDB_CACHE_DIR"
"""The folder of the cache of remote checkpoints; by default in the user's cache directory."""

DEFAULT_CACHE_BYTES = 10 << 30

LOCK_DIR = "STUDYDB_LOCK_DIR"
"""The directory of the locks of devices, for containers that share the devices of a host."""

DEFAULT_STORAGE = "sqlite:///studydb.db"

KEY_BYTES = 32
_SHORTEST_KEY_BYTES = 16
_LARGEST_KEY_FILE_BYTES = 1 << 20
_OTHERS_MODE_BITS = 0o077


def storage_url(explicit: str | None = None, environ: Mapping[str, str] = os.environ) -> str:
    """
    Choose the database's URL: the explicit one, else the environment's, else the default.

    Raises:
        UsageError: The URL was copied from a message, in which *** stands for the password.
    """
    url = explicit or environ.get(STORAGE) or DEFAULT_STORAGE
    if ":***@" in url:
        raise UsageError(
            "The storage URL contains ***, which studydb prints instead of a password. Write the "
            "password, or put it into ~/.pgpass."
        )
    return url


def scrubbed_environment(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """
    Return the environment for processes that run the user's code.

    The database's credentials and the signing key are left out. The credentials of checkpoint
    stores stay, because trials save checkpoints. This environment does not isolate the user's code,
    which runs as the same user and can read the key file.
    """
    return {
        name: value
        for name, value in environ.items()
        if name not in (STORAGE, SIGNING_KEY) and not name.startswith("PG")
    }


def cache_size_bytes(environ: Mapping[str, str] = os.environ) -> int:
    """
    Return the limit of the cache of remote checkpoints, in bytes; 0 means no cache.

    Raises:
        UsageError: The value of `STUDYDB_CACHE_SIZE` is not a size.
    """
    text = environ.get(CACHE_SIZE) or str(DEFAULT_CACHE_BYTES)
    size_bytes = size_of(text)
    if size_bytes is None:
        raise UsageError(f"{CACHE_SIZE} is {text!r}; write 500M, 10GB, a number of bytes, or 0.")
    return size_bytes


def cache_folder(environ: Mapping[str, str] = os.environ) -> Path | None:
    """
    Return the folder of the cache of remote checkpoints.

    Returns:
        None if no variable names the folder, and no home directory is known.

    Raises:
        UsageError: `STUDYDB_CACHE_DIR` begins with "~", and no home directory is known.
    """
    if named := environ.get(CACHE_DIR):
        return expanded(named).absolute()
    configured = environ.get("XDG_CACHE_HOME", "")
    try:
        home = expanded(configured if configured.startswith("/") else "~/.cache")
    except UsageError:
        return None
    return home / "studydb" / "checkpoints"


def key_file_path(environ: Mapping[str, str] = os.environ) -> Path:
    """
    Return the path of this user's key file, whether the file exists or not.

    Returns:
        A relative path if no variable names the file or its folder, and no home directory is known.

    Raises:
        UsageError: `STUDYDB_KEY_FILE` begins with "~", and no home directory is known.
    """
    if named := environ.get(KEY_FILE):
        return expanded(named).absolute()
    configured = environ.get("XDG_CONFIG_HOME", "")
    # The XDG specification says to ignore relative paths.
    if not configured.startswith("/"):
        configured = "~/.config"
    try:
        return expanded(configured) / "studydb" / "keys"
    except UsageError:
        return Path(configured) / "studydb" / "keys"


def expanded(path: str | os.PathLike[str]) -> Path:
    """
    Replace "~" in a path by the home directory.

    Raises:
        UsageError: The home directory is unknown, for example in a container without HOME.
    """
    try:
        return Path(path).expanduser()
    except RuntimeError as cause:
        raise UsageError(
            f"{os.fspath(path)!r} cannot be found: the home directory that '~' stands for is "
            "unknown. Set HOME, or write the path without '~'."
        ) from cause


def frame(*fields: str | bytes) -> bytes:
    """
    Join fields into bytes to be signed; write each field's length before the field.

    Without lengths, bytes could move from one field to the next under the same signature.
    """
    encoded = [text.encode() if isinstance(text, str) else text for text in fields]
    return b"".join(struct.pack("!Q", len(data)) + data for data in encoded)


@dataclass(frozen=True, slots=True)
class Key:
    """
    A secret for signatures.

    Attributes:
        id: The key's public name: a fingerprint, which does not reveal the secret.
    """

    secret: bytes = field(repr=False)
    id: str = field(init=False)

    def __post_init__(self) -> None:
        fingerprint = hmac.digest(self.secret, b"studydb key id", hashlib.sha256).hex()[:16]
        object.__setattr__(self, "id", fingerprint)

    def mac(self, payload: bytes) -> str:
        """Return the HMAC-SHA256 of a payload in hexadecimal."""
        return hmac.digest(self.secret, payload, hashlib.sha256).hex()


class Keyring(Struct, frozen=True):
    """The keys of this user: `sign` chooses one, and `verify` accepts signatures by any of them."""

    keys: tuple[Key, ...]
    path: Path

    def sign(self, payload: bytes, *, prefer: Collection[str] = ()) -> tuple[str, str]:
        """
        Sign with the first key whose id is in `prefer`; if there is none, with the first key.

        Workers of several users exchange checkpoints, so they must sign with a key that they share.
        A caller prefers the keys that signed the study's trainable, because the other workers
        usually have one of these keys.

        Returns:
            The key's id and the MAC.

        Raises:
            UsageError: The keyring has no key.
        """
        if not self.keys:
            raise UsageError(
                f"There is no key to sign with in {self.path}. Set {SIGNING_KEY}, or remove the "
                "file if it exists: studydb then makes a new one."
            )
        key = next((key for key in self.keys if key.id in prefer), self.keys[0])
        return key.id, key.mac(payload)

    def verify(self, payload: bytes, signatures: Mapping[str, str]) -> bool:
        """
        Whether a key of this keyring signed a payload.

        Args:
            signatures: The MACs by key id; they may come from an untrusted source.
        """
        return any(
            hmac.compare_digest(
                key.mac(payload).encode(), signatures[key.id].encode(errors="replace")
            )
            for key in self.keys
            if key.id in signatures
        )

    def holds(self, key_ids: Collection[str]) -> bool:
        """Whether the keyring has one of these keys."""
        return any(key.id in key_ids for key in self.keys)


def load_keyring(environ: Mapping[str, str] = os.environ, *, create: bool = True) -> Keyring:
    """
    Read the environment's key and the key file.

    Args:
        create: Whether to make a key file if it is missing and the environment has no key.

    Raises:
        UsageError: The environment's key is not valid; the key file is damaged, is open to other
            users, or cannot be read or made; or the path of the key file is unknown and the
            environment has no key.
    """
    path = key_file_path(environ)
    given = [_environment_key(environ[SIGNING_KEY])] if environ.get(SIGNING_KEY) else []
    if not path.is_absolute():
        if not given:
            raise UsageError(
                "The path of the key file is unknown, because this user has no home directory. "
                f"Set HOME, set {KEY_FILE} to a path, or set {SIGNING_KEY} to a key in hexadecimal."
            )
        return Keyring(tuple(given), path)
    try:
        if create and not given:
            _make_key_file(path)
        stored = list(_read_key_file(path))
    except OSError as cause:
        raise UsageError(
            f"The key file {path} cannot be used: {cause.strerror or cause}. Set {KEY_FILE} to a "
            f"path that you can write, or {SIGNING_KEY} to a key in hexadecimal."
        ) from cause
    return Keyring(tuple(dict.fromkeys(given + stored)), path)


def _environment_key(text: str) -> Key:
    key = _parse_key(text)
    if key is None:
        raise UsageError(
            f"{SIGNING_KEY} is not a valid key: give at least {_SHORTEST_KEY_BYTES} bytes in "
            "hexadecimal, such as 'openssl rand -hex 32' prints."
        )
    return key


def _parse_key(text: str) -> Key | None:
    named, _, digits = text.strip().rpartition(":")
    try:
        key = Key(bytes.fromhex(digits))
    except ValueError:
        return None
    if len(key.secret) < _SHORTEST_KEY_BYTES or named not in ("", key.id):
        return None
    return key


def _make_key_file(path: Path) -> None:
    """
    Write a key to a temporary file, and hard-link that file to `path`.

    So no process reads half a file. If several processes make the file at the same time, the first
    key stays.
    """
    if path.exists():
        return
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    key = Key(secrets.token_bytes(KEY_BYTES))
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(f"{key.id}:{key.secret.hex()}\n")
            file.flush()
            os.fsync(file.fileno())
        os.link(temporary, path)
    except FileExistsError:
        pass  # another process made the file first; its key is used
    finally:
        temporary.unlink()


def _read_key_file(path: Path) -> Iterator[Key]:
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return
    with os.fdopen(descriptor, encoding="utf-8", errors="replace") as file:
        if os.fstat(descriptor).st_mode & _OTHERS_MODE_BITS:
            raise UsageError(
                f"The key file {path} is open to other users, who could sign in your name. "
                f"Run: chmod 600 {path}"
            )
        lines = file.read(_LARGEST_KEY_FILE_BYTES).splitlines()
    for number, line in enumerate(lines, start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        key = _parse_key(line)
        if key is None:
            raise UsageError(
                f"Line {number} of the key file {path} is not a key ('key_id:hexadecimal'). "
                "Copy the line again from its source, or remove the line."
            )
        yield key
