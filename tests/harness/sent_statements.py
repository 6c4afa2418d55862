"""The statements that a call sends, each with its function of operations/ and of store/."""

import operator
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any
from unittest import mock

from studydb.db.dialect import NOW
from studydb.db.transaction import Txn
from studydb.db.transaction_block import TransactionBlock


@dataclass(frozen=True)
class Sender:
    """A function that sends statements: module, name, and the first line of its docstring."""

    module: str
    name: str
    summary: str

    def __str__(self) -> str:
        return f"{path_of(self.module)} {self.name}"


UNKNOWN = Sender("", "", "")


@dataclass(frozen=True)
class Sent:
    """
    One statement, and two functions that were on the stack when it was sent; both have docstrings.

    Attributes:
        sql: The statement, with named binds in the driver's syntax.
        operation: The outermost function of operations/, or of db/ if there is none.
        store: The innermost function of store/, or the outermost of db/ if there is none.
        constants: The binds that have the same value at each execution.
    """

    sql: str
    operation: Sender = UNKNOWN
    store: Sender = UNKNOWN
    constants: tuple[tuple[str, Any], ...] = ()


def path_of(module: str) -> str:
    return f"{module.replace('.', '/')}.py"


@contextmanager
def recorded() -> Iterator[list[Sent]]:
    """Collect the statements that this process sends to any database within the block."""
    sent: list[Sent] = []

    def observe(_: object, sql: str) -> None:
        sent.append(_sent(sql, sys._getframe(1)))

    with (
        mock.patch.object(Txn, "_observe", observe),
        mock.patch.object(TransactionBlock, "_observe", observe),
    ):
        yield sent


def _sent(sql: str, frame: FrameType) -> Sent:
    stack = list(_frames(frame))
    values = stack[0].f_locals
    params, compiled = values.get("params", {}), values.get("compiled")
    defaults = {} if compiled is None else compiled.defaults
    constants = {name: defaults[name] for name in defaults if name not in params and name != NOW}
    return Sent(
        sql,
        operation=_first(stack[::-1], "operations") or _first(stack[::-1], "db") or UNKNOWN,
        store=_first(stack, "store") or _first(stack[::-1], "db") or UNKNOWN,
        constants=tuple(sorted(constants.items())),
    )


def _frames(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _first(frames: Iterable[FrameType], package: str) -> Sender | None:
    """The first function with a docstring in the package `studydb.<package>`."""
    for frame in frames:
        module, name = frame.f_globals.get("__name__", ""), frame.f_code.co_qualname
        if module.startswith(f"studydb.{package}."):
            found = operator.attrgetter(name)(sys.modules[module]) if "<" not in name else None
            found = found.fget if isinstance(found, property) else found
            if found is not None and found.__doc__:
                return Sender(module, name, found.__doc__.strip().splitlines()[0])
    return None
