"""The few connections of a database: opened when they are needed, and kept for the next."""

import threading
from collections.abc import Callable
from contextlib import suppress
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
        self._free: list[Any] = [None] * self._most  # places without a connection
        self._lock = threading.Lock()
        self._given_back = threading.Condition(self._lock)
        self._n_waiting = 0

    def take(self) -> Any:
        """
        Take the cursor that was used last; nobody else has it until it is given back.

        Raises:
            StorageBusy: All were taken for too long.
        """
        with self._lock:
            if not self._free:
                self._wait()
            cursor = self._free.pop()
        if cursor is not None:
            return cursor
        try:
            return self._open()
        except BaseException:
            self.give_back(None)
            raise

    def _wait(self) -> None:
        self._n_waiting += 1
        try:
            if not self._given_back.wait_for(lambda: self._free, WAIT_S):
                raise StorageBusy(
                    f"All connections of this process to {self._url} are busy. Use the study in "
                    "fewer threads at a time, or load it anew for some of them."
                )
        finally:
            self._n_waiting -= 1

    def give_back(self, cursor: Any) -> None:
        """Keep a connection, on which no transaction is open, for the next."""
        with self._lock:
            self._free.append(cursor)
            if self._n_waiting:  # nearly never, and a notification costs more than all of this
                self._given_back.notify()

    def discard(self, cursor: Any) -> None:
        """Close a connection that may be of no more use."""
        try:
            _hang_up(cursor)
        finally:
            self.give_back(None)

    def close(self) -> None:
        """Close those that nobody has taken."""
        with self._lock:
            free, self._free = self._free, [None] * len(self._free)
        for cursor in free:
            if cursor is not None:
                _hang_up(cursor)


def _hang_up(cursor: Any) -> None:
    with suppress(Exception):
        cursor.connection.close()
