"""Queues of results that wait for the database, and their limits of memory and disk."""

import json
import os
import tempfile
import threading
from collections import deque
from collections.abc import Callable
from typing import IO

from studydb.domain.metrics import Result

MEMORY_BYTES = 96 << 20
"""The limit of memory for all attempts of a worker together; further results go into files."""

SPILL_BYTES = 4 << 30
"""The limit of all files of a worker together; at this limit, reports wait for the database."""

SPARE_BYTES = 64 << 10
"""The memory that an attempt may keep reserved for its next results."""

READ_BYTES = 8 << 20
"""How many bytes of a file are read at a time."""


def silent(_line: str) -> None:
    """Discard a line of text."""


class Room:
    """Counts the bytes of waiting results in memory and on disk; threads may share a room."""

    def __init__(
        self,
        *,
        memory_bytes: int = MEMORY_BYTES,
        spill_bytes: int = SPILL_BYTES,
        say: Callable[[str], None] = silent,
    ) -> None:
        """Set the limits; `say` is called with one line of text for people."""
        self._lock = threading.Lock()
        self._left = {"memory": memory_bytes, "disk": spill_bytes}
        self._say, self._has_complained = say, False

    def take(self, kind: str, size: int, *, force: bool = False) -> bool:
        """Take `size` bytes of "memory" or "disk"; False if too few are left, unless `force`."""
        with self._lock:
            if self._left[kind] < size and not force:
                return False
            self._left[kind] -= size
            return True

    def free(self, kind: str, size: int) -> None:
        """Give `size` bytes back."""
        with self._lock:
            self._left[kind] += size

    def complain(self, error: OSError) -> None:
        """Say once that results cannot be written to a file."""
        if not self._has_complained:
            self._has_complained = True
            self._say(
                f"results that wait for the database cannot be written to {tempfile.gettempdir()}: "
                f"{error.strerror or error}. Reports wait until the database is back. Free space "
                "there, or set TMPDIR to another directory."
            )


UNLIMITED = Room(memory_bytes=1 << 62, spill_bytes=0)
"""The room of own loops. Few results wait there, because `report` flushes every 200 results."""


class SpillFile:
    """
    Results in a file, first in, first out.

    The file has no name, other users cannot read it, and the system removes it when this process
    ends.
    """

    def __init__(self, room: Room) -> None:
        self._room = room
        self._file: IO[bytes] | None = None
        self._begin = self._end = self._n_rows = 0

    def __len__(self) -> int:
        """Count the results that were appended and not read yet."""
        return self._n_rows

    def append(self, result: Result) -> bool:
        """Append a result; False if the limit is reached or the file cannot be written."""
        metrics = dict(result.metrics)
        row = [result.step, result.value, metrics, result.time_total_s, result.is_last]
        line = json.dumps(row, separators=(",", ":")).encode() + b"\n"
        if not self._room.take("disk", len(line)):
            return False
        try:
            self._write(line)
        except OSError as error:
            self._room.free("disk", len(line))
            self._room.complain(error)
            return False
        self._end += len(line)
        self._n_rows += 1
        return True

    def _write(self, line: bytes) -> None:
        if self._file is None:
            self._file = tempfile.TemporaryFile(  # noqa: SIM115  closed with the attempt
                prefix="studydb-spill-", buffering=0
            )
        written = 0
        while written < len(line):  # after an error, the next result overwrites the partial line
            written += os.pwrite(self._file.fileno(), line[written:], self._end + written)

    def read(self) -> list[Result]:
        """Remove and return the first results: as many as fit `READ_BYTES`, but at least one."""
        if not self._n_rows:
            return []
        data = self._first_lines()
        results = [_read(line) for line in data.splitlines()]
        self._begin += len(data)
        self._n_rows -= len(results)
        if not self._n_rows:
            self.close()
        return results

    def _first_lines(self) -> bytes:
        assert self._file is not None
        size = READ_BYTES
        while True:
            data = os.pread(self._file.fileno(), min(size, self._end - self._begin), self._begin)
            whole = data.rfind(b"\n") + 1
            if whole:
                return data[:whole]
            size *= 2

    def close(self) -> None:
        """Drop the results, and free their disk space."""
        if self._file is not None:
            self._file.close()
            self._file = None
        self._room.free("disk", self._end)
        self._begin = self._end = self._n_rows = 0


def _read(line: bytes) -> Result:
    return Result(*json.loads(line))


class Queue:
    """
    Results in the order in which they came: the first are in memory, the next in a file.

    If neither memory nor file has room, further results stay in memory all the same, and `is_full`
    is True.

    Attributes:
        n_waiting: The number of results in the queue.
        memory_bytes: The bytes of the results in memory.
    """

    def __init__(self, room: Room, weigh: Callable[[Result], int]) -> None:
        self._room, self._weigh = room, weigh
        self._first: deque[tuple[Result, int]] = deque()
        self._spilled = SpillFile(room)
        self._stuck: deque[tuple[Result, int]] = deque()  # results that the file could not take
        self.n_waiting = self.memory_bytes = 0
        self._spare_bytes = 0

    @property
    def is_full(self) -> bool:
        """Whether results should be taken before more are added."""
        return bool(self._stuck)

    def holds_more_than(self, rows: int, size_bytes: int) -> bool:
        """
        Whether one batch within these limits may be too small for all results in the queue.

        Always True if a file holds results, because one batch does not mix results from memory with
        results from the file.
        """
        n = self.n_waiting
        return (
            n > max(1, rows) or len(self._first) < n or (n > 1 and self.memory_bytes > size_bytes)
        )

    def add(self, result: Result) -> None:
        """Add a result, even if neither the memory nor the file has room for it."""
        size = self._weigh(result)
        all_in_memory = len(self._first) == self.n_waiting
        self.n_waiting += 1
        if all_in_memory and (size <= self._spare_bytes or self._reserve(size)):
            self._spare_bytes -= size
            self._first.append((result, size))
            self.memory_bytes += size
        elif self._stuck or not self._spilled.append(result):
            self._force(self._stuck, result, size)

    def _reserve(self, size: int) -> bool:
        """Reserve `size` bytes and, if possible, spare bytes for the next results."""
        for wanted in (size + SPARE_BYTES, size):
            if self._room.take("memory", wanted - self._spare_bytes):
                self._spare_bytes = wanted
                return True
        return False

    def _force(self, where: "deque[tuple[Result, int]]", result: Result, size: int) -> None:
        self._room.take("memory", size, force=True)
        where.append((result, size))
        self.memory_bytes += size

    def take(self, rows: int, size_bytes: int) -> tuple[tuple[Result, ...], int]:
        """
        Remove the first results: as many as these limits allow, but at least one.

        Returns:
            The results and their size in bytes. Call `free` with this size to free their memory.
        """
        if not self._first:
            self._refill()
        n, total = self.n_waiting, self.memory_bytes
        if len(self._first) == n <= rows and total <= size_bytes:  # the usual case
            batch = [result for result, _ in self._first]
            self._first.clear()
        else:
            batch, total = self._take_some(rows, size_bytes)
        self.memory_bytes -= total
        self.n_waiting -= len(batch)
        return tuple(batch), total

    def _take_some(self, rows: int, size_bytes: int) -> tuple[list[Result], int]:
        batch: list[Result] = []
        total = 0
        while self._first and len(batch) < rows:
            result, size = self._first[0]
            if batch and total + size > size_bytes:
                break
            self._first.popleft()
            batch.append(result)
            total += size
        return batch, total

    def _refill(self) -> None:
        for result in self._spilled.read():
            self._force(self._first, result, self._weigh(result))
        if not self._first:
            self._first, self._stuck = self._stuck, deque()

    def free(self, size: int) -> None:
        """Free the memory of removed results, but keep up to `SPARE_BYTES` for the next results."""
        self._spare_bytes += size
        if self._spare_bytes > SPARE_BYTES:
            self._room.free("memory", self._spare_bytes - SPARE_BYTES)
            self._spare_bytes = SPARE_BYTES

    def close(self) -> None:
        """Drop all results."""
        self._room.free("memory", self.memory_bytes + self._spare_bytes)
        self._spare_bytes = 0
        self.n_waiting = self.memory_bytes = 0
        self._first.clear()
        self._stuck.clear()
        self._spilled.close()
