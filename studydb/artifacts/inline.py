"""Checkpoints whose bytes are in a row of the database; each has at most 16 MiB by default."""

import io
import os
import tarfile
from pathlib import Path

from studydb.artifacts.tree import scan
from studydb.domain.errors import CheckpointError

INLINE = "inline:"
"""The URL of the database as a store, and of every checkpoint in that store."""

INLINE_LIMIT_BYTES = 16 << 20

_TAR_BLOCK_BYTES = 512


def check_inline_size(size_bytes: int, limit_bytes: int = INLINE_LIMIT_BYTES) -> None:
    """
    Refuse a checkpoint that is too large for a row.

    Raises:
        CheckpointError: The checkpoint is too large.
    """
    if size_bytes > limit_bytes:
        raise CheckpointError(
            f"The checkpoint has {size_bytes / 2**20:.1f} MiB, and the database takes at most "
            f"{limit_bytes / 2**20:g} MiB per checkpoint. Training continues without it. Name "
            "a directory that all workers see: `studydb set NAME checkpoints=URL`."
        )


def pack_directory(source: Path, *, limit_bytes: int = INLINE_LIMIT_BYTES) -> bytes:
    """
    Pack a directory into a tar archive; equal directories give equal bytes.

    Raises:
        CheckpointError: The directory is too large, `scan` refuses it, or it cannot be read.
    """
    contents = scan(source)
    packed = io.BytesIO()
    try:
        check_inline_size(
            contents.size_bytes() + _TAR_BLOCK_BYTES * len(contents.files), limit_bytes
        )
        with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive:
            for name in contents.directories:
                archive.addfile(_member(name, tarfile.DIRTYPE, 0o755, 0))
            for file in contents.files:
                data = file.path.read_bytes()
                member = _member(file.name, tarfile.REGTYPE, 0o644, len(data))
                archive.addfile(member, io.BytesIO(data))
    except OSError as cause:
        raise CheckpointError(f"The checkpoint {source} cannot be read: {cause}.") from cause
    check_inline_size(packed.tell(), limit_bytes)
    return packed.getvalue()


def _member(name: str, kind: bytes, mode: int, size_bytes: int) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.mode, member.size = kind, mode, size_bytes
    return member


def _checked(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """Refuse a member that `pack_directory` does not write, such as a link or an absolute path."""
    parts = member.name.split("/")
    if not (member.isreg() or member.isdir()) or member.issparse():
        raise tarfile.ExtractError(f"{member.name!r} is neither a file nor a directory")
    if not all(parts) or ".." in parts or "." in parts:
        raise tarfile.ExtractError(f"{member.name!r} is not a name within a checkpoint")
    return member


def unpack_directory(data: bytes, target: Path) -> Path:
    """
    Unpack an archive of `pack_directory` into a new directory.

    Raises:
        CheckpointError: `pack_directory` cannot have made these bytes.
        OSError: The target cannot be written.
    """
    target.mkdir()
    try:
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as archive:
            members = [_checked(member) for member in archive]
            archive.extractall(target, members, filter="data")
    except (tarfile.TarError, ValueError) as cause:
        raise CheckpointError(
            f"The checkpoint cannot be unpacked to {os.fspath(target)}: {cause}."
        ) from cause
    return target
