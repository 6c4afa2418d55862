"""Describe the code that an attempt runs, for the attempt's row."""

import hashlib
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from studydb.domain.trainable import Trainable, TrainableKind


def provenance(trainable: Trainable, workdirs: Sequence[str]) -> dict[str, str]:
    """
    Describe a trainable by its kind, name and UUID, and by a SHA-256 if there is one.

    `studydb set NAME trainable=…` stores the new trainable under a new UUID. For an import path,
    the SHA-256 is computed from the module's file in the first working directory that has the file;
    modules that this file imports do not count. For any other trainable, the SHA-256 is computed
    from the stored source.

    Args:
        workdirs: The working directories that are searched for the module, in this order.
    """
    described = {"kind": trainable.kind, "name": trainable.name, "uuid": trainable.uuid}
    sha256 = (
        _of_module(trainable.name, workdirs)
        if trainable.kind == TrainableKind.IMPORT
        else hashlib.sha256(trainable.source or b"").hexdigest()
    )
    return described if sha256 is None else described | {"sha256": sha256}


def _of_module(name: str, workdirs: Sequence[str]) -> str | None:
    """Return the digest of the file of `module:function`; None if no directory has the file."""
    parts = name.partition(":")[0].split(".")
    for workdir in workdirs:
        module = Path(workdir, *parts)
        for file in (module / "__init__.py", module.with_name(f"{module.name}.py")):
            try:
                found = file.stat()
                return _of_file(file, found.st_mtime_ns, found.st_size)
            except (OSError, ValueError):  # ValueError: a NUL in the name
                continue
    return None


@lru_cache(maxsize=8)
def _of_file(file: Path, _mtime_ns: int, _size_bytes: int) -> str:
    """Return the digest of a file, from a cache while mtime and size are unchanged."""
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
