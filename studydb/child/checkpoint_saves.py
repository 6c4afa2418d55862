"""Save the checkpoints of an attempt while the trial waits, or while it trains on."""

import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec

from studydb.artifacts import tree
from studydb.artifacts.checkpoint_records import Saved, Upload
from studydb.artifacts.directory import discard
from studydb.child.messages import Reported, UploadAsked
from studydb.child.sender import Destination, Outcome, Sender, outcome_of
from studydb.child.supervisor_connection import SupervisorConnection
from studydb.domain.errors import CheckpointError

_LISTEN_EVERY_S = 0.2
"""How often the trial looks for messages of the worker while it waits for an upload."""

LARGE_BYTES = 32 << 20
"""
While the trial trains on, a checkpoint of this size or more is sent by another process, the sender.
A thread would share the interpreter's lock with the training, and so delay the training by 0.1 s
for 32 MiB, and by 0.65 s for 200 MB. The sender takes a second of CPU time to start, and 100 MB of
memory.
"""


class CheckpointSaves:
    """
    Saves the checkpoints of one attempt, one after another.

    If the store is remote, a thread sends a copy of the checkpoint while the trial trains on. If
    the checkpoint is large, the thread lets the sender send the copy. `store` saves a checkpoint
    while the trial waits, for example the last checkpoint. At most one upload is under way, so at
    most one copy is on disk or in memory. The thread sends messages to the worker, but only the
    trial's own thread receives messages.

    Args:
        destination: The attempt and its store. If the worker answers the start of an upload with
            another store, this and the later checkpoints are saved there (`Answered.store`).
        inline_limit_bytes: The largest checkpoint in the database.
        scratch: A directory of this attempt for the copies of directories and of large dicts.
    """

    def __init__(
        self,
        destination: Destination,
        supervisor: SupervisorConnection,
        scratch: Path,
        *,
        inline_limit_bytes: int,
    ) -> None:
        self._destination, self._supervisor = destination, supervisor
        self._inline_limit_bytes = inline_limit_bytes
        self._saver = destination.saver(inline_limit_bytes=inline_limit_bytes)
        self._sender = Sender(destination)
        self._copy = scratch / "upload"
        self._thread: threading.Thread | None = None

    @property
    def may_upload_during_training(self) -> bool:
        """Whether training may go on while a checkpoint is sent to the study's store."""
        return self._saver.is_remote

    def wait(self) -> None:
        """Wait until no upload is under way, or until the attempt has lost its trial."""
        while (thread := self._thread) is not None and not self._supervisor.lost:
            thread.join(_LISTEN_EVERY_S)
            if thread.is_alive():
                self._supervisor.listen()
            else:
                self._thread = None

    def settle(self) -> None:
        """Wait until the last upload has ended or the trial is lost; then end the sender."""
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
                return None, None  # perhaps the upload has no row, so its bytes would stay for ever
            return self._saver.save(prepared, step=step, upload=upload), None
        except CheckpointError as failure:
            return None, str(failure)

    def store_during_training(self, prepared: bytes | Path, *, step: int, is_given: bool) -> None:
        """
        Copy a checkpoint, and send the copy from a thread, which reports the outcome to the worker.

        If the copy fails, or no thread can be started, the checkpoint is sent while the trial
        waits.

        Args:
            is_given: Whether `prepared` is a directory that studydb itself has made
                (`GivenDirectory`), so that it may be moved instead of copied.
        """
        self.wait()
        if self._supervisor.lost:
            return
        uses_sender = self._is_large(prepared) and self._has_sender()
        try:
            if not uses_sender:
                self._saver.connect()
            upload = self._begin(step)
        except CheckpointError as failure:
            self._report((None, str(failure)))
            return
        if self._supervisor.lost or upload is None:
            return
        try:
            copy = self._take_copy(prepared, is_given=is_given, uses_sender=uses_sender)
        except (OSError, CheckpointError):  # no room is left, or the directory has changed
            self._send(lambda: self._saver.save(prepared, step=step, upload=upload), step)
            return
        saving = self._saving(copy, step, upload, uses_sender=uses_sender)
        thread = threading.Thread(
            target=self._send, args=(saving, step), name="studydb-upload", daemon=True
        )
        try:
            thread.start()
        except RuntimeError:  # this host starts no more threads
            self._send(saving, step)
        else:
            self._thread = thread

    def _is_large(self, prepared: bytes | Path) -> bool:
        if isinstance(prepared, bytes):
            return len(prepared) >= LARGE_BYTES
        try:
            return tree.scan(prepared).size_bytes() >= LARGE_BYTES
        except (OSError, CheckpointError):  # the directory has changed, so the copy will fail, too
            return False

    def _has_sender(self) -> bool:
        try:
            self._sender.start()
        except OSError:  # this host cannot start the process, so a thread sends the copy
            return False
        return True

    def _saving(
        self, copy: bytes | Path, step: int, upload: Upload, *, uses_sender: bool
    ) -> Callable[[], Saved]:
        if uses_sender and isinstance(copy, Path):
            return lambda: self._sender.save(copy, step=step, upload=upload)
        return lambda: self._saver.save(copy, step=step, upload=upload)

    def _begin(self, step: int) -> Upload | None:
        while (upload := self._saver.begin(step=step)) is not None:
            answer = self._supervisor.ask(UploadAsked(self._supervisor.next_id(), upload))
            if answer.store is None:
                return upload
            self._save_in(answer.store)
        return None

    def _save_in(self, store: str) -> None:
        destination = msgspec.structs.replace(self._destination, store=store)
        self._saver = destination.saver(inline_limit_bytes=self._inline_limit_bytes)
        self._destination = destination
        self._sender.end()
        self._sender = Sender(destination)

    def _take_copy(
        self, prepared: bytes | Path, *, is_given: bool, uses_sender: bool
    ) -> bytes | Path:
        """
        Return a copy of the checkpoint, so that later changes by the user's code are not sent.

        A directory is copied without hard links, because a change to a file changes its hard links,
        too. If `is_given`, the directory is moved, unless it contains symbolic links: the links may
        name their targets by the directory's old path. The pickle of a dict needs no copy, and is
        written to a file only if the sender is to send it.
        """
        if isinstance(prepared, bytes) and not uses_sender:
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
        if self._supervisor.lost:  # the save may have failed because `settle` killed the sender
            return
        with suppress(SystemExit):  # the trial's thread notices that the worker has ended
            self._report(outcome)

    def _report(self, outcome: Outcome) -> None:
        self._supervisor.send(Reported(None, None, *outcome))
