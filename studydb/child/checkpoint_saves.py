"""Saves the checkpoints of an attempt: while the trial waits, or beside its training."""

import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from studydb.artifacts import tree
from studydb.artifacts.checkpoint_files import Saver
from studydb.artifacts.checkpoint_records import Saved, Upload
from studydb.artifacts.directory import discard
from studydb.child.messages import Reported, UploadAsked
from studydb.child.sender import Outcome, Sender, outcome_of
from studydb.child.supervisor_connection import SupervisorConnection
from studydb.domain.errors import CheckpointError

_LOOK_S = 0.2
"""The time between two looks for messages of the worker while the trial waits for an upload."""

LARGE_BYTES = 32 << 20
"""
From this size on, another process sends a checkpoint. A thread that sends shares the interpreter's
lock with the training: it costs 0.1 s for 32 MiB, and 0.65 s for 200 MB. The process takes a second
of CPU time to start, and holds 100 MB of memory.
"""


class CheckpointSaves:
    """
    Saves the checkpoints of one attempt, one after another.

    To a remote store, a thread sends a copy of the checkpoint while the trial trains on, or has
    the sender do it if the checkpoint is large. At most one such upload is under way, so one copy
    at most is on disk or in memory. The thread only sends messages to the worker; the trial's
    thread receives them.

    Args:
        sender: Sends large checkpoints; not started.
        scratch: A directory of this attempt for the copies of directories and of large dicts.
    """

    def __init__(
        self, saver: Saver, sender: Sender, supervisor: SupervisorConnection, scratch: Path
    ) -> None:
        self._saver, self._sender, self._supervisor = saver, sender, supervisor
        self._copy = scratch / "upload"
        self._thread: threading.Thread | None = None

    @property
    def may_run_beside(self) -> bool:
        """Whether training goes on while a checkpoint is sent to the study's store."""
        return self._saver.is_remote

    def wait(self) -> None:
        """Wait until no upload is under way, or until the attempt has lost its trial."""
        while (thread := self._thread) is not None and not self._supervisor.lost:
            thread.join(_LOOK_S)
            if thread.is_alive():
                self._supervisor.listen()
            else:
                self._thread = None

    def settle(self) -> None:
        """End the sender after the last checkpoint is stored, or at once if the trial is lost."""
        try:
            self.wait()
        finally:
            self._sender.end()

    def store(self, prepared: bytes | Path, *, step: int) -> Outcome:
        """Store a checkpoint; the caller sends the outcome to the worker."""
        self.wait()
        try:
            upload = self._begin(step)
            if self._supervisor.lost:
                return None, None  # no process would delete the bytes
            return self._saver.save(prepared, step=step, upload=upload), None
        except CheckpointError as failure:
            return None, str(failure)

    def store_beside(self, prepared: bytes | Path, *, step: int, is_given: bool) -> None:
        """
        Copy a checkpoint, and send the copy from a thread, which reports the outcome to the worker.

        If the copy fails, the checkpoint is sent while the trial waits.

        Args:
            is_given: Whether the directory may be moved instead of copied.
        """
        self.wait()
        if self._supervisor.lost:
            return
        is_apart = self._is_large(prepared) and self._has_sender()
        try:
            if not is_apart:
                self._saver.connect()
            upload = self._begin(step)
        except CheckpointError as failure:
            self._report((None, str(failure)))
            return
        if self._supervisor.lost or upload is None:
            return
        try:
            copy = self._taken(prepared, is_given=is_given, is_apart=is_apart)
        except (OSError, CheckpointError):  # without room, or changed since it was checked
            self._send(lambda: self._saver.save(prepared, step=step, upload=upload), step)
            return
        self._thread = threading.Thread(
            target=self._send,
            args=(self._saving(copy, step, upload, is_apart=is_apart), step),
            name="studydb-upload",
            daemon=True,
        )
        self._thread.start()

    def _is_large(self, prepared: bytes | Path) -> bool:
        if isinstance(prepared, bytes):
            return len(prepared) >= LARGE_BYTES
        try:
            return tree.scan(prepared).size_bytes() >= LARGE_BYTES
        except (OSError, CheckpointError):  # changed since it was checked; its copy will fail, too
            return False

    def _has_sender(self) -> bool:
        try:
            self._sender.start()
        except OSError:  # no further process may be started here: a thread sends
            return False
        return True

    def _saving(
        self, copy: bytes | Path, step: int, upload: Upload, *, is_apart: bool
    ) -> Callable[[], Saved]:
        if is_apart and isinstance(copy, Path):
            return lambda: self._sender.save(copy, step=step, upload=upload)
        return lambda: self._saver.save(copy, step=step, upload=upload)

    def _begin(self, step: int) -> Upload | None:
        upload = self._saver.begin(step=step)
        if upload is not None:
            self._supervisor.ask(UploadAsked(self._supervisor.next_id(), upload))
        return upload

    def _taken(self, prepared: bytes | Path, *, is_given: bool, is_apart: bool) -> bytes | Path:
        """
        Copy a directory: a hard link would show what the user's code writes to it later.

        A given directory is moved, unless it has links: they may name their targets by its path.
        The bytes of a dict are written to a file for another process.
        """
        if isinstance(prepared, bytes) and not is_apart:
            return prepared
        try:
            if isinstance(prepared, bytes):
                self._copy.write_bytes(prepared)
            elif is_given and not tree.has_links(prepared):
                return prepared.rename(self._copy)
            else:
                tree.take_copy(prepared, self._copy)
        except BaseException:
            discard(self._copy)
            raise
        return self._copy

    def _send(self, save: Callable[[], Saved], step: int) -> None:
        outcome = outcome_of(save, step=step)
        discard(self._copy)
        if self._supervisor.lost:  # and so the sender may have been killed
            return
        with suppress(SystemExit):  # the trial's thread notices that the worker has ended
            self._report(outcome)

    def _report(self, outcome: Outcome) -> None:
        self._supervisor.send(Reported(None, None, *outcome))
