"""The streams stdout and stderr of a child process."""

import ctypes
import faulthandler
import io
import os
import sys
from contextlib import suppress


def prepare_streams() -> None:
    """
    Replace stdout and stderr by line-buffered streams, and have Python print the stack at a crash.

    The inherited streams are not kept, because they cache properties of the fork server's streams.
    """
    # typeshed declares `__stdout__` and `__stderr__` final
    sys.stdout = sys.__stdout__ = _stream(1)  # type: ignore[misc]
    sys.stderr = sys.__stderr__ = _stream(2)  # type: ignore[misc]
    faulthandler.enable()


def flush_streams() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):  # the user's code may have replaced the streams
            stream.flush()


def settle_streams() -> None:
    """
    Undo replacements of the streams by the user's code, and write all that the buffers hold.

    Call this in a process with one Python thread. Otherwise another thread may hold the lock of one
    of C's streams, and the call may hang.
    """
    flush_streams()
    if not all(_is_usable(stream) for stream in _own_streams()):
        prepare_streams()
    sys.stdout, sys.stderr = _own_streams()
    flush_streams()
    ctypes.CDLL(None).fflush(None)  # the buffers of C's stdio


def redirect_streams(stdout: int, stderr: int) -> None:
    """
    Settle the streams, then duplicate these descriptors to stdout and stderr.

    The descriptors themselves are closed.
    """
    settle_streams()
    for stream, descriptor in ((1, stdout), (2, stderr)):
        os.dup2(descriptor, stream)
        os.close(descriptor)


def _own_streams() -> "tuple[io.TextIOWrapper[io.BufferedWriter], ...]":
    return (sys.__stdout__, sys.__stderr__)  # type: ignore[return-value]


def _is_usable(stream: "io.TextIOWrapper[io.BufferedWriter]") -> bool:
    try:
        stream.flush()
    except Exception:  # noqa: BLE001  the stream is closed, or its buffer cannot be written
        return False
    return True


def _stream(descriptor: int) -> "io.TextIOWrapper[io.BufferedWriter]":
    binary = io.FileIO(descriptor, "w", closefd=False)
    return io.TextIOWrapper(
        io.BufferedWriter(binary), errors="backslashreplace", line_buffering=True
    )
