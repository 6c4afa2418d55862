"""Ask the user's code that decides, such as a custom stop rule, in a child process."""

import itertools
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from msgspec import msgpack

from studydb.child.channel import Frame, FrameError
from studydb.child.decider import (
    Decided,
    FromDecider,
    Question,
    Raised,
    Ready,
    Unready,
    read_from_decider,
    write_begin,
    write_question,
)
from studydb.child.forking import ChildKind, Outdated
from studydb.child.job import TrainableImport
from studydb.domain.deciding import DECISION_S, DecisionFailed, NotAsked
from studydb.domain.errors import TrainableError
from studydb.domain.failures import Failure, bounded_failure, type_name
from studydb.domain.life.alike_failures import last_place, short_text
from studydb.worker.attempt_output import AttemptOutput, OutputPump
from studydb.worker.children import ChildProcess
from studydb.worker.fork_server_client import ForkServer

IMPORT_TIMEOUT_S = 120.0
"""A process whose import of the code takes longer is killed."""

_TRIES = 3
"""
A question is asked at most this many times in total. It is asked again, in a new process, for two
reasons: the process had to be replaced (see `child/staleness.py`), or no answer came. For the
second reason, it is asked again only once.
"""

_TICK_S = 0.25
_END_S = 5.0


class _Unanswered(Exception):
    """The process cannot be started, has died, or did not answer in time."""


class _Replaced(Exception):
    """The process has refused the question, because it must be replaced."""


class Decider:
    """
    Asks the user's objects that decide, in one process; threads that share a Decider take turns.

    The first call of `reads` or `decide` starts the process. After any failure, also an exception
    of the user's code, the process is killed, and the next call starts another process, which
    imports the code as it is then.

    Args:
        objects: The code of the objects that decide; `check_trusted` has accepted it.
        directory: The folder for the output of the process.
        is_stopping: Whether the caller's process is stopping; if so, no import is begun or awaited.
    """

    def __init__(
        self,
        forkserver: ForkServer,
        pump: OutputPump,
        *,
        objects: Sequence[TrainableImport],
        directory: Path,
        is_stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        self._forkserver, self._pump, self._directory = forkserver, pump, directory
        self._objects, self._is_stopping = tuple(objects), is_stopping
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._process: ChildProcess | None = None
        self._output: AttemptOutput | None = None
        self._reads: tuple[int, ...] = ()

    def reads(self) -> tuple[int, ...]:
        """
        Start the process if none runs; return how many results each object reads (see `Ready`).

        Raises:
            DecisionFailed: The process cannot be started or dies, the code cannot be imported, or
                an object cannot be made.
            NotAsked: The caller's process is stopping.
        """
        with self._lock:
            try:
                self._running_process(self._is_stopping)
            except _Unanswered as cause:
                raise DecisionFailed(f"{cause}.") from cause
            return self._reads

    def decide(
        self,
        position: int,
        method: str,
        arguments: Mapping[str, Any],
        answer: Any,
        *,
        is_moot: Callable[[], bool] = lambda: False,
    ) -> Any:
        """
        Call a method of the object at a position; return the method's answer.

        Each process has `DECISION_S` to answer, after its import. If the process dies or does not
        answer, a new process is asked once, because the host may have been suspended.

        Args:
            arguments: Plain data, which JSON can hold.
            answer: The type that the answer must have.
            is_moot: Whether the answer has become useless; if so, this call no longer waits for its
                turn or for an import.

        Raises:
            DecisionFailed: The code raised an exception, gave an answer of another type, died, took
                too long, or cannot be imported.
            NotAsked: The caller's process is stopping, or the answer has become useless.
        """

        def gives_up() -> bool:
            return is_moot() or self._is_stopping()

        unanswered: _Unanswered | None = None
        with self._turn(is_moot):
            for _ in range(_TRIES):
                try:
                    question = Question(next(self._numbers), position, method)
                    return self._ask(self._running_process(gives_up), question, arguments, answer)
                except _Replaced:
                    self._end()
                except _Unanswered as cause:
                    self._end()
                    if unanswered is not None:
                        break
                    unanswered = cause
                except BaseException:  # also an interrupt: no later call may get this answer
                    self._end()
                    raise
        raise DecisionFailed(f"{unanswered or 'its source files change all the time'}.")

    def close(self) -> None:
        """End the process."""
        with self._lock:
            self._end()

    @contextmanager
    def _turn(self, is_moot: Callable[[], bool]) -> Iterator[None]:
        """Wait until no other thread asks; raise NotAsked if the answer has become useless."""
        while not self._lock.acquire(timeout=_TICK_S):
            if is_moot():
                raise NotAsked
        try:
            yield
        finally:
            self._lock.release()

    def _ask(
        self, process: ChildProcess, question: Question, arguments: Mapping[str, Any], answer: Any
    ) -> Any:
        try:
            process.channel.send(write_question(question, arguments))
        except FrameError as cause:
            raise DecisionFailed(f"what it reads is too large: {cause}") from cause
        except OSError as cause:
            raise _Unanswered(self._how_it_ended(process)) from cause
        match self._receive(process, DECISION_S):
            case None:
                raise _Unanswered(f"it took more than {DECISION_S:g} s")
            case Decided(id=question.id, value=value):
                return self._decoded(value, answer)
            case Raised(id=question.id, failure=failure):
                raise _failed("it raised ", failure)
            case Outdated(id=question.id):
                raise _Replaced
        raise DecisionFailed("its process has sent a message that does not answer the question.")

    def _decoded(self, value: msgspec.Raw, answer: Any) -> Any:
        try:
            return msgpack.decode(value, type=answer)
        except Exception as cause:  # a decoder may raise anything for hostile bytes
            raise DecisionFailed(f"its answer cannot be read: {cause}.") from cause

    def _running_process(self, gives_up: Callable[[], bool]) -> ChildProcess:
        if self._process is not None and self._process.exit is not None:
            self._end()
        if self._process is None:
            self._start(gives_up)
        assert self._process is not None
        return self._process

    def _start(self, gives_up: Callable[[], bool]) -> None:
        if gives_up():
            raise NotAsked
        try:
            process, output = self._fork()
        except OSError as cause:
            why = (cause.strerror or str(cause)).rstrip(".")
            raise _Unanswered(f"this host cannot start its process: {why}") from cause
        self._process, self._output = process, output
        try:
            self._reads = self._await_ready(process, gives_up)
        except BaseException:
            self._end()
            raise

    def _fork(self) -> tuple[ChildProcess, AttemptOutput]:
        output = self._pump.open(self._directory, append=True)  # other workers write there, too
        try:
            process = self._forkserver.fork(
                ChildKind.DECIDER,
                partial(write_begin, self._objects),
                stdout=output.stdout,
                stderr=output.stderr,
            )
        except BaseException:
            output.finish()
            raise
        output.release()
        return process, output

    def _await_ready(self, process: ChildProcess, gives_up: Callable[[], bool]) -> tuple[int, ...]:
        deadline_s = time.monotonic() + IMPORT_TIMEOUT_S
        while time.monotonic() < deadline_s:
            if gives_up():
                raise NotAsked
            match self._receive(process, _TICK_S):
                case None:
                    continue
                case Ready(reads=reads) if len(reads) == len(self._objects):
                    return reads
                case Unready(position=position, failure=failure) if position < len(self._objects):
                    name = self._objects[position].trainable.name
                    raise _failed(f"{name} cannot be made: ", failure)
            raise DecisionFailed("its process has sent a wrong first message.")
        raise DecisionFailed(f"its import took more than {IMPORT_TIMEOUT_S:g} s.")

    def _receive(self, process: ChildProcess, timeout_s: float) -> FromDecider | None:
        """Receive a message; None if no message came in time."""
        try:
            frame: Frame | None = process.channel.receive(timeout_s)
            return None if frame is None else read_from_decider(frame)
        except (EOFError, OSError) as cause:
            raise _Unanswered(self._how_it_ended(process)) from cause
        except FrameError as cause:
            raise DecisionFailed(
                f"its process has sent bytes that are no message: {cause}"
            ) from cause

    def _how_it_ended(self, process: ChildProcess) -> str:
        return f"its process {process.wait(_END_S) or 'closed its channel and hung'}"

    def _end(self) -> None:
        process, output = self._process, self._output
        self._process = self._output = None
        if process is not None and output is not None:
            process.kill()
            process.wait(_END_S)
            process.channel.close()
            output.finish()


def _failed(what: str, failure: Failure) -> DecisionFailed:
    known = bounded_failure(failure)
    if known.type == type_name(TrainableError):  # its message names the mistake in the code
        return DecisionFailed(" ".join(known.message.split()))
    place = last_place(known)
    where = f" ({Path(place[0]).name}, line {place[1]})" if place else ""
    return DecisionFailed(f"{what}{short_text(known)}{where}", traceback=known.traceback)
