"""Sizes in bytes, as people write them."""

import re
from typing import Any

from studydb.domain.canonical import is_integral
from studydb.domain.errors import InvalidSpec

_SIZES_END = 2**63
"""The smallest number of bytes that is too large for an integer column (PostgreSQL and SQLite)."""

_SIZE = re.compile(r"([0-9]{1,19})\s*(?:([KMGT])?(?:I?B)?)")


def size_of(text: str) -> int | None:
    """Read a size such as "500M" or "10GB", in powers of 1024; None if the text is not a size."""
    found = _SIZE.fullmatch(text.strip().upper())
    return None if found is None else int(found[1]) << 10 * " KMGT".index(found[2] or " ")


def read_size(name: str, value: Any) -> int:
    """
    Read a number of bytes, or its text such as "10GB".

    Raises:
        InvalidSpec: The value is neither, or it is 2**63 bytes or more.
    """
    size_bytes = size_of(value) if isinstance(value, str) else None
    if size_bytes is None and is_integral(value) and value >= 0:
        size_bytes = int(value)
    if size_bytes is None or size_bytes >= _SIZES_END:
        raise InvalidSpec(
            f"{name} is {value!r}, which is not a size; write 500M, 10GB or a number of bytes "
            "below 2**63."
        )
    return size_bytes


def size_word(size_bytes: int) -> str:
    """Write a size of less than 2**63 bytes so that `size_of` reads the same number again."""
    for power, unit in ((40, "TB"), (30, "GB"), (20, "MB"), (10, "KB")):
        if size_bytes and size_bytes % (1 << power) == 0:
            return f"{size_bytes >> power}{unit}"
    return str(size_bytes)
