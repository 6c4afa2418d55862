"""Arrays of doubles in PostgreSQL's binary format."""

from collections.abc import Sequence
from struct import Struct

import psycopg

_HEADER = Struct(">iiIii")
_ITEM = Struct(">id")
_NULL = b"\xff\xff\xff\xff"
"""The length -1, which stands for NULL."""

_DOUBLE = psycopg.adapters.types["float8"]


class DoubleArray(bytes):
    """An array of doubles and NULLs, as the server receives it."""

    __slots__ = ()

    @classmethod
    def of(cls, values: Sequence[float | None]) -> "DoubleArray":
        """
        Write doubles and None.

        Text would take five times as many instructions. Two arrays of ten doubles, written as text,
        would take 5 % of the instructions of a trial.
        """
        header = _HEADER.pack(1, 1, _DOUBLE.oid, len(values), 1)
        items = [_NULL if value is None else _ITEM.pack(8, float(value)) for value in values]
        return cls(header + b"".join(items))


class DoubleArrayDumper(psycopg.adapt.Dumper):
    """Tells psycopg the type and the format of a `DoubleArray`."""

    oid = _DOUBLE.array_oid
    format = psycopg.pq.Format.BINARY

    def dump(self, obj: DoubleArray) -> DoubleArray:
        return obj
