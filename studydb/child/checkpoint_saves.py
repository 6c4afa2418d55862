"""Saves the checkpoints of an attempt: while the trial waits, or beside its training."""

import shutil
import threading
from contextlib import suppress
from pathlib import Path

from studydb.artifacts import tree
from studydb.artifacts.checkpoint_files import Saver
from studydb.artifacts.checkpoint_records import Saved, Upload
from studydb.child.messages import Reported, UploadAsked
from studydb.child.supervisor_connection import SupervisorConnection
from studydb.domain.errors import CheckpointError

_LOOK_S = 0.2
"""The time between two looks for messages of the worker while the trial waits for an upload."""

Outcome = tuple[Saved | None, str | None]
"""The record of a stored checkpoint, or why it was not stored; neither if the trial is lost."""


class CheckpointSaves:
    """
    Saves the checkpoints of one attempt, one after another.

    To a remote store, a thread sends a copy of the checkpoint while the trial trains on. At most
    one such upload is under way, so one copy at most is on disk or in memory. The thread only sends
    messages; the trial's thread receives them.

    Args:
        scratch: A directory of this attempt for the copies of directories.
    """

    def __init__(self, saver: Saver, supervisor: SupervisorConnection, scratch: Path) -> None:
        self._saver, self._supervisor, self._scratch = saver, supervisor, scratch
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
        try:
            self._saver.connect()
            upload = self._begin(step)
        except CheckpointError as failure:
            self._report((None, str(failure)))
            return
        if self._supervisor.lost or upload is None:
            return
        try:
            copy = self._taken(prepared, is_given=is_given)
        except (OSError, CheckpointError):  # without room, or changed since it was checked
            self._send(prepared, step, upload)
            return
        self._thread = threading.Thread(
            target=self._send, args=(copy, step, upload), name="studydb-upload", daemon=True
        )
        self._thread.start()

    def _begin(self, step: int) -> Upload | None:
        upload = self._saver.begin(step=step)
        if upload is not None:
            self._supervisor.ask(UploadAsked(self._supervisor.next_id(), upload))
        return upload

    def _taken(self, prepared: bytes | Path, *, is_given: bool) -> bytes | Path:
        """
        Copy a directory: a hard link would show what the user's code writes to it later.

        A given directory is moved, unless it has links: they may name their targets by its path.
        """
        if isinstance(prepared, bytes):
            return prepared
        copy = self._scratch / "upload"
        try:
            if is_given and not tree.has_links(prepared):
                return prepared.rename(copy)
            tree.take_copy(prepared, copy)
        except BaseException:
            shutil.rmtree(copy, ignore_errors=True)
            raise
        return copy

    def _send(self, copy: bytes | Path, step: int, upload: Upload) -> None:
        try:
            outcome: Outcome = self._saver.save(copy, step=step, upload=upload), None
        except CheckpointError as failure:
            outcome = None, str(failure)
        except Exception as failure:  # noqa: BLE001  no caller above the thread would report it
            outcome = None, f"The checkpoint of step {step} could not be sent: {failure!r}."
        shutil.rmtree(self._scratch / "upload", ignore_errors=True)
        with suppress(SystemExit):  # the trial's thread notices that the worker has ended
            self._report(outcome)

    def _report(self, outcome: Outcome) -> None:
        self._supervisor.send(Reported(None, None, *outcome))
