"""Worker processes on this machine, for `study.run`: each is `python -m studydb worker`."""

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType, TracebackType
from typing import IO, Any, Self

from studydb.processes import pid_namespace
from studydb.settings import PARENT, STORAGE
from studydb.worker.cores import thread_limits

TERMINATE_S = 60.0
"""How long all workers together may take to end; longer than their children's default grace."""

OUTPUT_BYTES = 4000
"""An error shows this many bytes from the end of a worker's output."""

_COMMON_CAUSES = {"SIGKILL": "; perhaps a person killed it, or memory ran out"}


class WorkerProcesses:
    """
    Workers of one study: entering the `with` block starts them, leaving it ends them.

    Args:
        storage: The URL; workers get it in their environment, never in their arguments.
    """

    def __init__(self, *, storage: str, study: str, workers: int) -> None:
        self._storage, self._study, self._number = storage, study, workers
        self._running: list[tuple[subprocess.Popen[bytes], IO[Any]]] = []

    def __enter__(self) -> Self:
        """Start the workers; if one cannot start, end the others."""
        try:
            for _ in range(self._number):
                self._start()
        except BaseException:
            self.__exit__(*sys.exc_info())
            raise
        return self

    def _start(self) -> None:
        output = tempfile.TemporaryFile()  # noqa: SIM115  closed on exit
        with _without_interrupts():
            popen = subprocess.Popen(
                [sys.executable, "-m", "studydb", "worker", f"--study={self._study}"],
                env=dict(os.environ)
                | thread_limits(os.environ, parts=self._number)
                | {STORAGE: self._storage, PARENT: f"{os.getpid()}@{pid_namespace()}"},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,  # Ctrl-C reaches only this process, which sends SIGTERM
            )
            self._running.append((popen, output))

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """
        Have the workers give back their trials and end.

        Workers that still run after 60 s are killed. A second Ctrl-C, or any Ctrl-C while this
        method waits, kills all workers immediately.
        """
        is_second = isinstance(error, KeyboardInterrupt) and isinstance(
            error.__context__, KeyboardInterrupt
        )
        try:
            if not is_second:
                self._release()
        finally:
            self._send(signal.SIGKILL)
            for popen, output in self._running:
                popen.wait()
                output.close()

    def _release(self) -> None:
        self._send(signal.SIGTERM)
        deadline_s = time.monotonic() + TERMINATE_S
        for popen, _ in self._running:
            with suppress(subprocess.TimeoutExpired):
                popen.wait(max(0.0, deadline_s - time.monotonic()))

    def _send(self, number: int) -> None:
        for popen, _ in self._running:
            if popen.poll() is None:
                with suppress(ProcessLookupError):
                    popen.send_signal(number)

    @property
    def pids(self) -> Sequence[int]:
        return [popen.pid for popen, _ in self._running]

    @property
    def alive(self) -> int:
        return sum(popen.poll() is None for popen, _ in self._running)

    def wait(self, timeout_s: float) -> None:
        """Wait for the end of the first worker that still runs, for at most `timeout_s`."""
        for popen, _ in self._running:
            if popen.poll() is None:
                with suppress(subprocess.TimeoutExpired):
                    popen.wait(timeout_s)
                return

    @property
    def failed(self) -> str | None:
        """Why the first worker failed, if all workers have ended with an error; else None."""
        codes = [popen.poll() for popen, _ in self._running]
        if any(code in (None, 0) for code in codes):
            return None
        popen, output = self._running[0]
        if popen.returncode < 0:
            name = signal.Signals(-popen.returncode).name
            return f"a worker was killed by {name}{_COMMON_CAUSES.get(name, '')}."
        size_bytes = output.seek(0, os.SEEK_END)
        output.seek(max(0, size_bytes - OUTPUT_BYTES))
        last = bytes(output.read()).decode(errors="replace").strip()
        return last or f"a worker ended with code {popen.returncode}."


@contextmanager
def _without_interrupts() -> Iterator[None]:
    """
    Handle Ctrl-C only after the block, so that the block does not lose a process that it starts.

    A mask of signals would not do, because the started process would inherit the mask.
    """
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield  # no handler can interrupt: handlers run in the main thread, or SIGINT has none
        return
    frames: list[FrameType | None] = []
    signal.signal(signal.SIGINT, lambda _, frame: frames.append(frame))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if frames:
            handler(signal.SIGINT, frames[0])
