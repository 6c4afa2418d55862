"""Worker processes on this machine, for `study.run`: `python -m studydb worker`, nothing else."""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType
from typing import IO, Any, Self

from studydb.settings import STORAGE

TERMINATE_S = 60.0
"""Longer than a worker's grace for its children."""

WORDS_BYTES = 4000


class WorkerProcesses:
    """Some workers of one study; leaving the `with` block ends them in order."""

    def __init__(self, *, storage: str, study: str, workers: int) -> None:
        """
        Prepare workers; entering the `with` block starts them.

        Args:
            storage: The URL; it reaches the workers through their environment, never their argv.
        """
        self._storage, self._study, self._number = storage, study, workers
        self._running: list[tuple[subprocess.Popen[bytes], IO[Any]]] = []

    def __enter__(self) -> Self:
        """Start them, all or none."""
        try:
            for _ in range(self._number):
                self._start()
        except BaseException:
            self.__exit__(*sys.exc_info())
            raise
        return self

    def _start(self) -> None:
        words = tempfile.TemporaryFile()  # noqa: SIM115  closed on exit
        popen = subprocess.Popen(
            [sys.executable, "-m", "studydb", "worker", "--study", self._study],
            env={**os.environ, STORAGE: self._storage},
            stdin=subprocess.DEVNULL,
            stdout=words,
            stderr=words,
            start_new_session=True,  # Ctrl-C is ours to pass on, once
        )
        self._running.append((popen, words))

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Have those that still run give their trials back and end."""
        for popen, _ in self._running:
            if popen.poll() is None:
                with suppress(ProcessLookupError):
                    popen.send_signal(signal.SIGTERM)
        for popen, words in self._running:
            try:
                popen.wait(TERMINATE_S)
            except subprocess.TimeoutExpired:
                popen.kill()
                popen.wait()
            words.close()

    @property
    def pids(self) -> Sequence[int]:
        """Of those that were started."""
        return [popen.pid for popen, _ in self._running]

    @property
    def alive(self) -> int:
        """How many still run."""
        return sum(popen.poll() is None for popen, _ in self._running)

    @property
    def failed(self) -> str | None:
        """The last words of one, if all have ended with an error; None otherwise."""
        if any(popen.poll() in (None, 0) for popen, _ in self._running):
            return None
        for popen, words in self._running:
            if popen.poll() not in (None, 0):
                size_bytes = words.seek(0, os.SEEK_END)
                words.seek(max(0, size_bytes - WORDS_BYTES))
                last = bytes(words.read()).decode(errors="replace").strip()
                return last or f"A worker ended with code {popen.returncode}."
        return None
