"""What attempts print: read by one thread for all of them, kept on disk within bounds."""

import os
import selectors
import socket
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path

OUTPUT_LIMIT_BYTES = 10 << 20
"""Of one stream: two segments of half of it, the current one and the one before."""

TAIL_BYTES = 64 << 10
"""What is kept in memory, of both streams together in the order in which it came."""

_READ_BYTES = 1 << 16
_LARGEST_PIPE_BYTES = 1 << 20


class _Stream:
    """A pipe that is read, and the files that it goes to: `stdout`, before it `stdout.1`."""

    def __init__(self, path: Path, limit_bytes: int, tail: bytearray) -> None:
        self.reader, self.writer = os.pipe()
        os.set_blocking(self.reader, False)
        self.closed = threading.Event()
        self.lost_bytes = 0
        self._path = path
        self._segment_bytes = max(1, limit_bytes // 2)
        self._tail = tail
        self._file = -1
        self._written_bytes = 0

    def pump(self) -> int | None:
        """Take one read's worth: its size, 0 when all writers are gone, None if nothing came."""
        try:
            data = os.read(self.reader, _READ_BYTES)
        except BlockingIOError:
            return None
        self._tail += data
        del self._tail[:-TAIL_BYTES]
        self._write(data)
        return len(data)

    def drain(self) -> None:
        """Take all that is in the pipe now; who still writes shall not hold this up."""
        for _ in range(_LARGEST_PIPE_BYTES // _READ_BYTES):
            if not self.pump():
                return

    def release(self) -> None:
        if self.writer >= 0:
            os.close(self.writer)
            self.writer = -1

    def close(self) -> None:
        os.close(self.reader)
        if self._file >= 0:
            os.close(self._file)
        self.closed.set()

    def _write(self, data: bytes) -> None:
        """A full disk costs output, never the trial: what cannot be written is dropped."""
        try:
            while data:
                data = data[self._write_some(data) :]
        except OSError:
            self.lost_bytes += len(data)

    def _write_some(self, data: bytes) -> int:
        if self._file < 0 or self._written_bytes >= self._segment_bytes:
            self._begin_segment()
        count = os.write(self._file, data[: self._segment_bytes - self._written_bytes])
        self._written_bytes += count
        return count

    def _begin_segment(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
            self._path.replace(self._path.with_name(f"{self._path.name}.1"))
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
        self._written_bytes = 0


class AttemptOutput:
    """The output of one attempt; the files are made when something is printed."""

    def __init__(
        self, pump: "OutputPump", streams: tuple[_Stream, _Stream], tail: bytearray
    ) -> None:
        """Hold what the pump reads."""
        self._pump = pump
        self._streams = streams
        self._tail = tail

    @property
    def stdout(self) -> int:
        """The descriptor for the child's output."""
        return self._streams[0].writer

    @property
    def stderr(self) -> int:
        """The descriptor for the child's errors."""
        return self._streams[1].writer

    @property
    def lost_bytes(self) -> int:
        """What the disk did not take."""
        return sum(stream.lost_bytes for stream in self._streams)

    def release(self) -> None:
        """Close both descriptors, once the child has them: else the end is never seen."""
        for stream in self._streams:
            stream.release()

    def tail(self, size_bytes: int = 8 << 10) -> bytes:
        """The last bytes of both streams together, in the order in which they came."""
        return bytes(self._tail[-size_bytes:])

    def finish(self, timeout_s: float = 1.0) -> None:
        """
        Close the output of a child that has ended, after the last of what it printed.

        Args:
            timeout_s: How long a process that escaped may keep the pipes open.
        """
        self.release()
        for stream in self._streams:
            if not stream.closed.wait(timeout_s):
                self._pump.drop(stream)
                stream.closed.wait(timeout_s)


class OutputPump:
    """One thread that reads the output of all attempts of a worker."""

    def __init__(self, *, limit_bytes: int = OUTPUT_LIMIT_BYTES) -> None:
        """
        Start the thread.

        Args:
            limit_bytes: What is kept of each stream, at most.
        """
        self._limit_bytes = limit_bytes
        self._selector = selectors.DefaultSelector()
        self._waker, self._woken = socket.socketpair()
        self._selector.register(self._woken, selectors.EVENT_READ, None)
        self._orders: deque[Callable[[], None]] = deque()
        self._open = True
        self._thread = threading.Thread(target=self._work, name="studydb-output", daemon=True)
        self._thread.start()

    def open(self, directory: Path) -> AttemptOutput:
        """
        Make the pipes of an attempt; the files `stdout` and `stderr` go to the directory.

        Raises:
            OSError: There are none to be had.
        """
        tail = bytearray()
        out = _Stream(directory / "stdout", self._limit_bytes, tail)
        try:
            err = _Stream(directory / "stderr", self._limit_bytes, tail)
        except OSError:
            out.release()
            out.close()
            raise
        self._order(lambda: self._watch(out))
        self._order(lambda: self._watch(err))
        return AttemptOutput(self, (out, err), tail)

    def drop(self, stream: _Stream) -> None:
        """Stop reading a stream although somebody may still write to it."""
        self._order(lambda: self._unwatch(stream))

    def close(self) -> None:
        """Take what is left in the pipes, close all files and end the thread."""
        self._order(self._stop)
        self._thread.join()
        self._waker.close()

    def _order(self, order: Callable[[], None]) -> None:
        """Have the thread do something: a selector belongs to one thread."""
        self._orders.append(order)
        self._waker.send(b".")

    def _work(self) -> None:
        while self._open:
            for key, _ in self._selector.select():
                if key.data is None:
                    self._obey()
                elif not key.data.closed.is_set() and key.data.pump() == 0:
                    self._unwatch(key.data)
        self._selector.close()
        self._woken.close()

    def _obey(self) -> None:
        self._woken.recv(4096)
        while self._orders:
            self._orders.popleft()()

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
