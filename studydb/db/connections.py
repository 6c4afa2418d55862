"""The few connections of a database: opened when they are needed, and kept for the next."""

from collections.abc import Callable
from contextlib import suppress
from queue import Empty, LifoQueue
from typing import Any

from studydb.domain.errors import StorageBusy

WAIT_S = 30.0


class Connections:
    """
    Cursors, each on a connection of its own; safe to share among threads, not across a fork.

    Cursors, because a driver's cursor that runs the statement of last time again does so in less
    time than a new one.
    """

    def __init__(self, open_cursor: Callable[[], Any], *, most: int, url: str) -> None:
        """
        Open nothing yet.

        Args:
            most: How many there may be at a time.
            url: The database's, with its password masked.
        """
        self._open, self._most, self._url = open_cursor, most, url
        self.forget()

    def forget(self) -> None:
        """Begin anew without a word to the server: after a fork they are the parent's."""
        self._free: LifoQueue[Any] = LifoQueue()
        for _ in range(self._most):
            self._free.put(None)  # a place without a connection

    def take(self) -> Any:
        """
        Take the cursor that was used last; nobody else has it until it is given back.

        Raises:
            StorageBusy: All were taken for too long.
        """
        try:
            cursor = self._free.get(timeout=WAIT_S)
        except Empty:
            raise StorageBusy(f"All connections of this process to {self._url} are busy.") from None
        if cursor is not None:
            return cursor
        try:
            return self._open()
        except BaseException:
            self._free.put(None)
            raise

    def give_back(self, cursor: Any) -> None:
        """Keep a connection, on which no transaction is open, for the next."""
        self._free.put(cursor)

    def discard(self, cursor: Any) -> None:
        """Close a connection that may be of no more use."""
        try:
            with suppress(Exception):
                cursor.connection.close()
        finally:
            self._free.put(None)

    def close(self) -> None:
        """Close those that nobody has taken."""
        free: list[Any] = []
        with suppress(Empty):
            while len(free) < self._most:
                free.append(self._free.get_nowait())
        for cursor in free:
            if cursor is None:
                self._free.put(None)
            else:
                self.discard(cursor)
