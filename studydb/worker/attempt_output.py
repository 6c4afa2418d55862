"""One thread reads the output of all children; it keeps bounded parts on disk and in memory."""

import os
import selectors
import socket
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

OUTPUT_LIMIT_BYTES = 10 << 20
"""How much of one stream is kept on disk at most, in two files: the current and the previous."""

TAIL_BYTES = 64 << 10
"""How much of both streams together is kept in memory, in order of arrival."""

_READ_BYTES = 1 << 16
_LARGEST_PIPE_BYTES = 1 << 20


class _Stream:
    """A pipe and its two files; for example, `stdout`, and `stdout.1` with the older bytes."""

    def __init__(self, path: Path, limit_bytes: int, tail: bytearray, *, append: bool) -> None:
        self.reader, self.writer = os.pipe()
        os.set_blocking(self.reader, False)
        self.closed = threading.Event()
        self._path = path
        self._segment_bytes = max(1, limit_bytes // 2)
        self._tail = tail
        self._file = -1
        self._written_bytes = 0
        self._appends = append

    def pump(self) -> int | None:
        """Read and keep bytes; return their number, 0 at the end, None if the pipe is empty."""
        try:
            data = os.read(self.reader, _READ_BYTES)
        except BlockingIOError:
            return None
        self._tail += data
        del self._tail[:-TAIL_BYTES]
        self._write(data)
        return len(data)

    def drain(self) -> None:
        """Read what is in the pipe; stop after 1 MiB, because a process may write without end."""
        for _ in range(_LARGEST_PIPE_BYTES // _READ_BYTES):
            if not self.pump():
                return

    def release(self) -> None:
        if self.writer >= 0:
            os.close(self.writer)
            self.writer = -1

    def close(self) -> None:
        os.close(self.reader)
        self._close_file()
        self.closed.set()

    def _close_file(self) -> None:
        """Close the file; some file systems say only now that they could not store all bytes."""
        file, self._file = self._file, -1
        if file >= 0:
            with suppress(OSError):
                os.close(file)

    def _write(self, data: bytes) -> None:
        """Write to the file; drop the bytes if that fails, for example because the disk is full."""
        with suppress(OSError):
            while data:
                data = data[self._write_some(data) :]

    def _write_some(self, data: bytes) -> int:
        if self._file < 0 or self._written_bytes >= self._segment_bytes:
            self._begin_segment()
        count = os.write(self._file, data[: self._segment_bytes - self._written_bytes])
        self._written_bytes += count
        return count

    def _begin_segment(self) -> None:
        if self._file >= 0:
            self._close_file()
            self._path.replace(self._path.with_name(f"{self._path.name}.1"))
        self._path.parent.mkdir(parents=True, exist_ok=True)
        how = os.O_APPEND if self._appends else os.O_TRUNC
        self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | how, 0o666)
        self._written_bytes, self._appends = os.fstat(self._file).st_size, False


class AttemptOutput:
    """The output of an attempt's process or another child; a file is created at its first byte."""

    def __init__(
        self, pump: "OutputPump", streams: tuple[_Stream, _Stream], tail: bytearray
    ) -> None:
        self._pump = pump
        self._streams = streams
        self._tail = tail

    @property
    def stdout(self) -> int:
        return self._streams[0].writer

    @property
    def stderr(self) -> int:
        return self._streams[1].writer

    def release(self) -> None:
        """Close this process's writing ends of the pipes, so that only the child can write."""
        for stream in self._streams:
            stream.release()

    def tail(self, size_bytes: int = 8 << 10) -> bytes:
        """Return the last bytes of both streams together, in order of arrival."""
        return bytes(self._tail[-size_bytes:])

    def settle(self, timeout_s: float = 1.0) -> None:
        """Read what a process has written so far; the process may write more."""
        settled = threading.Event()
        self._pump.settle(self._streams, settled)
        settled.wait(timeout_s)

    def finish(self, timeout_s: float = 1.0) -> None:
        """
        Read the rest of the output, and close the files.

        Call this when the child has ended; or, if the child is reused, when it has the pipes of its
        next attempt and no longer writes to these.

        Args:
            timeout_s: How long to wait for each pipe while other processes have it open.
        """
        self.release()
        for stream in self._streams:
            if not stream.closed.wait(timeout_s):
                self._pump.drop(stream)
                stream.closed.wait(timeout_s)


class OutputPump:
    def __init__(self, *, limit_bytes: int = OUTPUT_LIMIT_BYTES) -> None:
        self._limit_bytes = limit_bytes
        self._selector = selectors.DefaultSelector()
        self._waker, self._woken = socket.socketpair()
        self._selector.register(self._woken, selectors.EVENT_READ, None)
        self._calls: deque[Callable[[], None]] = deque()
        self._open = True
        self._thread = threading.Thread(target=self._work, name="studydb-output", daemon=True)
        self._thread.start()

    def open(self, directory: Path, *, append: bool = False) -> AttemptOutput:
        """
        Open the pipes of one child; their bytes go to `stdout` and `stderr` in the directory.

        Args:
            append: Whether to keep the present bytes of the files, and write after them.

        Raises:
            OSError: No pipe can be opened.
        """
        tail = bytearray()
        out = _Stream(directory / "stdout", self._limit_bytes, tail, append=append)
        try:
            err = _Stream(directory / "stderr", self._limit_bytes, tail, append=append)
        except OSError:
            out.release()
            out.close()
            raise
        self._call(lambda: self._watch(out))
        self._call(lambda: self._watch(err))
        return AttemptOutput(self, (out, err), tail)

    def settle(self, streams: Sequence[_Stream], settled: threading.Event) -> None:
        """Have the thread read what is in the streams' pipes, then set the event."""

        def read() -> None:
            for stream in streams:
                if not stream.closed.is_set():
                    stream.drain()
            settled.set()

        self._call(read)

    def drop(self, stream: _Stream) -> None:
        """Stop reading a stream to which a process may still write."""
        self._call(lambda: self._unwatch(stream))

    def close(self) -> None:
        """Read the rest of the pipes, close all files and end the thread."""
        self._call(self._stop)
        self._thread.join()
        self._waker.close()

    def _call(self, call: Callable[[], None]) -> None:
        """Queue a call for the pump's thread, the only thread that may use the selector."""
        self._calls.append(call)
        self._waker.send(b".")

    def _work(self) -> None:
        while self._open:
            for key, _ in self._selector.select():
                if key.data is None:
                    self._run_calls()
                elif not key.data.closed.is_set() and key.data.pump() == 0:
                    self._unwatch(key.data)
        self._selector.close()
        self._woken.close()

    def _run_calls(self) -> None:
        self._woken.recv(4096)
        while self._calls:
            self._calls.popleft()()

    def _watch(self, stream: _Stream) -> None:
        self._selector.register(stream.reader, selectors.EVENT_READ, stream)

    def _unwatch(self, stream: _Stream) -> None:
        if not stream.closed.is_set():
            self._selector.unregister(stream.reader)
            stream.drain()
            stream.close()

    def _stop(self) -> None:
        self._open = False
        for key in list(self._selector.get_map().values()):
            if key.data is not None:
                self._unwatch(key.data)
