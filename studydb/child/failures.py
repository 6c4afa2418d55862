"""What is told of an exception in the user's code."""

import importlib
import traceback
from pathlib import Path

from studydb.domain.records import Failure

TRACEBACK_BYTES = 64 << 10
MESSAGE_BYTES = 8 << 10

_PACKAGE = str(Path(__file__).parents[1])
_EXAMPLES = str(Path(__file__).parents[1] / "examples")


def failure_of(error: BaseException) -> Failure:
    """Type, message and traceback of an exception, bounded, and without frames of studydb's."""
    return Failure(
        type=_type_name(type(error)),
        message=bounded(_message(error), MESSAGE_BYTES),
        traceback=bounded(_traceback(error), TRACEBACK_BYTES),
    )


def bounded(text: str, limit_bytes: int) -> str:
    """Keep the beginning and the longer end of a text, as what every database can hold."""
    data = text.replace("\0", "\\x00").encode(errors="backslashreplace")
    if len(data) <= limit_bytes:
        return data.decode()
    mark = b"\n[...]\n"
    head = limit_bytes // 4
    tail = limit_bytes - head - len(mark)
    return (data[:head] + mark + data[-tail:]).decode(errors="ignore")


def _type_name(kind: type) -> str:
    if kind.__module__ in {"builtins", "__main__"}:
        return kind.__qualname__
    return f"{kind.__module__}.{kind.__qualname__}"


def _message(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as second:  # noqa: BLE001  the user's __str__ may raise anything
        return f"<its message raised {type(second).__name__}>"


def _traceback(error: BaseException) -> str:
    try:
        told = traceback.TracebackException.from_exception(error, compact=True)
        waiting: list[traceback.TracebackException | None] = [told]
        while waiting:
            part = waiting.pop()
            if part is None:
                continue
            part.stack[:] = [frame for frame in part.stack if not _is_ours(frame.filename)]
            waiting += [part.__cause__, part.__context__, *(part.exceptions or ())]
        return "".join(told.format())
    except Exception as second:  # noqa: BLE001  as above
        return f"<the traceback could not be written: {type(second).__name__}>"


def _is_ours(file: str) -> bool:
    ours = file.startswith(_PACKAGE) and not file.startswith(_EXAMPLES)
    return ours or file == importlib.__file__ or file.startswith("<frozen importlib")
