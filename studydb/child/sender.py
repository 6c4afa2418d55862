"""
The sender: a process that sends the large checkpoints of an attempt to a remote store.

It is a process because a thread would share the interpreter's lock with the training, and slow the
training. The trial's process starts the sender at its first large save and sends it requests over a
socket pair, one checkpoint at a time. The sender is in the trial's process group, and ends with the
attempt.
"""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from weakref import WeakSet

from msgspec import Struct, msgpack

import studydb
from studydb.artifacts.checkpoint_files import Saver
from studydb.artifacts.checkpoint_records import Saved, Upload
from studydb.artifacts.restore_cache import open_cache
from studydb.child.channel import Channel, Frame, FrameError, decode
from studydb.domain.errors import CheckpointError
from studydb.processes import IMPORT_STUDYDB

# The sender ignores the signals by which a person, a terminal or a batch system ends all processes:
# the trial's process handles them, and may first let the sender store its checkpoint. The sender is
# started with these signals blocked, so that no signal ends the sender before the sender ignores
# it. The signals stay blocked.
# With -P and IMPORT_STUDYDB, neither a file in the working directory nor another installed studydb
# hides a module that the sender imports.
_START = (
    "import signal, sys; "
    "[signal.signal(getattr(signal, name), signal.SIG_IGN) for name in sys.argv[3:]]; "
    + IMPORT_STUDYDB
    + "from studydb.child.sender_program import main; main(int(sys.argv[2]))"
)
_IGNORED = ("SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1", "SIGUSR2")

_END_TIMEOUT_S = 5.0
"""How long to wait for the end of a sender; only a hanging disk delays a killed sender so long."""

Outcome = tuple[Saved | None, str | None]
"""
The record of a stored checkpoint, or why a checkpoint was not stored. (None, None) if there is no
checkpoint, or the attempt has lost its lease.
"""


class Destination(Struct, frozen=True):
    """
    The attempt whose checkpoints are sent, and the store to which they are sent.

    Attributes:
        store: The URL of the study's store.
        cache_bytes: The limit of the host's cache of checkpoints.
    """

    store: str
    study_uuid: str
    trial_uuid: str
    attempt: int
    cache_bytes: int

    def saver(self, *, inline_limit_bytes: int) -> Saver:
        """Make the saver; `inline_limit_bytes` limits checkpoints in the database only."""
        return Saver(
            self.store,
            study_uuid=self.study_uuid,
            trial_uuid=self.trial_uuid,
            attempt=self.attempt,
            inline_limit_bytes=inline_limit_bytes,
            cache=open_cache(self.cache_bytes),
        )


class Request(Struct, frozen=True):
    """
    Asks the sender to send one checkpoint.

    Attributes:
        path: The absolute path of a directory, or of a file that holds the pickle of a dict.
    """

    destination: Destination
    path: str
    step: int
    upload: Upload


class Answer(Struct, frozen=True):
    """What became of a request: the checkpoint's record, or why the checkpoint was not stored."""

    saved: Saved | None
    error: str | None


_answers = msgpack.Decoder(Answer)


def outcome_of(save: Callable[[], Saved], *, step: int) -> Outcome:
    """Call `save`; return the stored checkpoint's record, or an error's text, ready to be sent."""
    try:
        return save(), None
    except CheckpointError as failure:
        return None, str(failure)
    except Exception as failure:  # noqa: BLE001  the library of a store may raise anything
        return None, f"The checkpoint of step {step} could not be sent: {failure!r}."


class Sender:
    """
    The sender of one attempt, as the trial's process sees it.

    One thread at a time calls `start` and `save`. Another thread may call `end`; then `save` fails.
    """

    def __init__(self, destination: Destination) -> None:
        self._destination = destination
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: Channel | None = None
        _senders.add(self)

    def start(self) -> None:
        """
        Start the process unless it runs.

        The process gets the present environment, because user code may have set credentials there.

        Raises:
            OSError: The process cannot be started.
        """
        if self._process is not None and self._process.poll() is None:
            return
        self.end()
        ours, theirs = socket.socketpair()
        with theirs:
            blocked = signal.pthread_sigmask(signal.SIG_BLOCK, map(_number, _IGNORED))
            try:
                self._process = subprocess.Popen(
                    _command(), stdin=theirs.fileno(), stdout=subprocess.DEVNULL
                )
            except BaseException:
                ours.close()
                raise
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        self._channel = Channel(ours)

    def save(self, prepared: Path, *, step: int, upload: Upload) -> Saved:
        """
        Have the process send a checkpoint, and wait for its answer; other threads run meanwhile.

        Args:
            prepared: A directory, or a file with the pickle of a dict.

        Raises:
            CheckpointError: The store fails, or the process has ended.
        """
        process, channel = self._process, self._channel
        if process is None or channel is None:
            raise _ended(step, None)
        request = Request(self._destination, str(prepared.absolute()), step, upload)
        asking = Frame(msgpack.encode(request))
        try:
            channel.send(asking)
            frame = channel.receive()
            assert frame is not None
            answer = decode(_answers, frame, sender="sender")
        except (EOFError, OSError, ValueError, FrameError) as cause:
            if (code := _exit_of(process)) is not None:
                raise _ended(step, code) from cause
            process.kill()  # it lives, but its answer cannot be read
            _exit_of(process)
            raise CheckpointError(
                f"The process that sends checkpoints gave no readable answer for step {step}, and "
                f"was killed: {cause}. Training continues, and any earlier checkpoint is kept. "
                "The next save starts another process."
            ) from cause
        if answer.saved is None:
            raise CheckpointError(answer.error or "")
        return answer.saved

    def end(self) -> None:
        """
        Kill the process, even while it sends, and wait for its end.

        The process answers a request once its checkpoint is stored, so the kill loses no checkpoint
        that was reported as stored.
        """
        process, channel = self._process, self._channel
        self._process = self._channel = None
        if process is not None:
            process.kill()
            _exit_of(process)
        if channel is not None:
            channel.close()

    def disown(self) -> None:
        """
        Forget the sender's process, in a fork of the trial's process.

        The fork must neither end the sender nor keep its socket open.
        """
        if self._channel is not None:
            self._channel.close()
        self._process = self._channel = None


_senders: WeakSet[Sender] = WeakSet()


def _disown_all() -> None:
    for sender in list(_senders):
        sender.disown()


os.register_at_fork(after_in_child=_disown_all)


def _number(name: str) -> signal.Signals:
    return signal.Signals[name]


def _command() -> tuple[str, ...]:
    root = Path(studydb.__file__).parents[1]
    return (sys.executable, "-P", "-c", _START, str(root), str(os.getpid()), *_IGNORED)


def _exit_of(process: "subprocess.Popen[bytes]") -> int | None:
    with suppress(subprocess.TimeoutExpired):
        return process.wait(_END_TIMEOUT_S)
    return None


def _ended(step: int, code: int | None) -> CheckpointError:
    how = "" if code is None else f" ({f'signal {-code}' if code < 0 else f'exit code {code}'})"
    return CheckpointError(
        f"The process that sent the checkpoint of step {step} has ended{how}. Training continues, "
        "and any earlier checkpoint is kept. The next save starts another process. If that one "
        "ends, too, read the trial's log, and check whether the host is short of memory."
    )
