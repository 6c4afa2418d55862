"""Exceptions of the user's code as texts of bounded length that every database can store."""

import importlib
import traceback
from pathlib import Path

from msgspec import Struct

TYPE_BYTES = 1 << 10
MESSAGE_BYTES = 8 << 10
TRACEBACK_BYTES = 64 << 10

MOST_BASES = 32
_EVERY_BASE = (BaseException, object)

_PACKAGE = str(Path(__file__).parents[1])
_EXAMPLES = str(Path(__file__).parents[1] / "examples")


class Failure(Struct, frozen=True):
    """
    Why an attempt failed, for its row and for `studydb show`.

    Attributes:
        type: The qualified name of the exception's class.
        bases: The qualified names of the base classes of the exception's class, without
            BaseException and object; at most 32.
    """

    type: str
    message: str
    traceback: str = ""
    bases: tuple[str, ...] = ()


def failure_of(error: BaseException, *, whole: bool = False) -> Failure:
    """
    Describe an exception by its type, message and traceback, each of bounded length.

    Args:
        whole: Whether to keep the frames of studydb and of Python's import system; users need
            only the frames of their code.
    """
    trace = _traceback(error, whole=whole)
    kind = type(error)
    bases = tuple(type_name(each) for each in kind.__mro__[1:] if each not in _EVERY_BASE)
    return bounded_failure(Failure(type_name(kind), _message(error), trace, bases))


def short_type(name: str) -> str:
    """Return the name of an exception's class without its module, as people know it."""
    return name.rpartition(".")[2]


def bounded_failure(failure: Failure) -> Failure:
    """Shorten a failure's texts to the limits of an attempt's row."""
    return Failure(
        type=bounded(failure.type, TYPE_BYTES),
        message=bounded(failure.message, MESSAGE_BYTES),
        traceback=bounded(failure.traceback, TRACEBACK_BYTES),
        bases=tuple(bounded(each, TYPE_BYTES) for each in failure.bases[:MOST_BASES]),
    )


def bounded(text: str, limit_bytes: int) -> str:
    """Escape what databases cannot store, and cut the middle out of a text over `limit_bytes`."""
    data = text.replace("\0", "\\x00").encode(errors="backslashreplace")
    if len(data) <= limit_bytes:
        return data.decode()
    mark = b"\n[...]\n"
    head = limit_bytes // 4
    tail = limit_bytes - head - len(mark)
    return (data[:head] + mark + data[-tail:]).decode(errors="ignore")


def type_name(kind: type) -> str:
    """Return a class's qualified name, without the module for built-ins and for `__main__`."""
    try:
        if kind.__module__ in {"builtins", "__main__"}:
            return kind.__qualname__
        return f"{kind.__module__}.{kind.__qualname__}"
    except Exception:  # noqa: BLE001  the user's metaclass may raise anything
        return type.__repr__(kind)


def _message(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as second:  # noqa: BLE001  the user's __str__ may raise anything
        return f"<its message raised {type(second).__name__}>"


def _traceback(error: BaseException, *, whole: bool) -> str:
    try:
        trace = traceback.TracebackException.from_exception(error, compact=True)
        waiting = [] if whole else [trace]
        while waiting:
            part = waiting.pop()
            part.stack[:] = [frame for frame in part.stack if not _is_ours(frame.filename)]
            linked = (part.__cause__, part.__context__, *(part.exceptions or ()))
            waiting += [each for each in linked if each is not None]
        return "".join(trace.format())
    except Exception as second:  # noqa: BLE001  the user's __str__ may raise anything
        return f"<the traceback could not be written: {type(second).__name__}>"


def _is_ours(file: str) -> bool:
    ours = file.startswith(_PACKAGE) and not file.startswith(_EXAMPLES)
    return ours or file == importlib.__file__ or file.startswith("<frozen importlib")
