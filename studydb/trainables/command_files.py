"""The files of a command's attempt: config, checkpoints, socket, stop file and report file."""

import contextlib
import json
import os
import shutil
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol, Self

from studydb.domain.command_line import Paths
from studydb.domain.errors import CheckpointError, InvalidReport
from studydb.domain.given_directory import GivenDirectory, UnmadeDirectory
from studydb.report_client import SOCKET
from studydb.settings import scrubbed_environment
from studydb.temporary import TemporaryDirectory
from studydb.trainables.calling import ReportingTrial
from studydb.trainables.command_reports import CommandReport

_SOCKET_PATH_BYTES = 100
"""The longest path of a unix socket that every system accepts, rounded down."""


class CommandTrial(ReportingTrial, Protocol):
    """The part of a trial that a command needs."""

    number: int
    attempt: int
    seed: int
    start_step: int
    grace_s: float
    study_name: str
    scratch: Path
    runs_in_directory: bool

    @property
    def directory(self) -> Path:
        """The directory that the trial keeps on this host."""

    @property
    def has_reported(self) -> bool:
        """Whether a result was reported in this attempt."""

    def check(self) -> None:
        """Raise TrialStopped or LeaseLost if the trial is to end before its next report."""

    def why_ended(self) -> str:
        """After TrialStopped or LeaseLost, return why: "stop", "pause", "preempt" or "lost"."""


class CommandFiles:
    """
    The files of one attempt; creating this object makes all but the stop file and the report file.

    Args:
        keeps: Whether the command names `{checkpoint_dir}`. For such a command, a report without a
            checkpoint saves this directory as its checkpoint if the directory's files have changed.
    """

    def __init__(self, trial: CommandTrial, config: Mapping[str, Any], *, keeps: bool) -> None:
        self._trial, self._keeps = trial, keeps
        root = trial.scratch
        self.config, self.save, self.stop = root / "config.json", root / "save", root / "stop"
        self.checkpoint_dir, self._next_save = root / "checkpoint_dir", root / "next-save"
        self._root, self._n_saved = root, 0
        self.config.write_text(json.dumps(config, ensure_ascii=False), encoding="utf-8")
        for directory in (self.save, self.checkpoint_dir):
            directory.mkdir()
        self.checkpoint = None if trial.checkpoint is None else str(trial.checkpoint.path)
        if self.checkpoint is not None and keeps:
            shutil.copytree(self.checkpoint, self.checkpoint_dir, dirs_exist_ok=True)
        self._stamps = self._stamps_now()
        self._socket_folder: TemporaryDirectory | None = None
        self.listener = socket.socket(socket.AF_UNIX)
        try:
            self.socket_path = self._listen()
        except OSError:
            self.__exit__()
            raise

    def _listen(self) -> str:
        path = str(self._root / "socket")
        if len(os.fsencode(path)) > _SOCKET_PATH_BYTES:
            self._socket_folder = TemporaryDirectory(parent="/tmp")  # noqa: S108
            path = f"{self._socket_folder.path}/socket"
        self.listener.bind(path)
        self.listener.listen()
        return path

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.listener.close()
        if self._socket_folder is not None:
            self._socket_folder.remove()

    @property
    def paths(self) -> Paths:
        return Paths(str(self.config), str(self.checkpoint_dir), scrubbed_environment())

    def environment(self) -> dict[str, str]:
        trial = self._trial
        given = scrubbed_environment()
        given.pop("STUDYDB_CHECKPOINT", None)
        given |= {
            "STUDYDB_CONFIG": str(self.config),
            "STUDYDB_STUDY": trial.study_name,
            "STUDYDB_TRIAL": str(trial.number),
            "STUDYDB_ATTEMPT": str(trial.attempt),
            "STUDYDB_SEED": str(trial.seed),
            "STUDYDB_DIRECTORY": str(trial.directory),
            "STUDYDB_STEP": str(trial.start_step),
            "STUDYDB_SAVE": str(self.save),
            SOCKET: self.socket_path,
            "STUDYDB_STOP": str(self.stop),
            "PYTHONUNBUFFERED": "1",
        }
        if self.checkpoint is not None:
            given["STUDYDB_CHECKPOINT"] = self.checkpoint
        return given

    @contextlib.contextmanager
    def taken(
        self, report: CommandReport, *, is_answered: bool
    ) -> Iterator[Path | GivenDirectory | UnmadeDirectory | None]:
        """
        Yield the checkpoint that comes with a report; None if there is none.

        The checkpoint is the directory that the report names, what the command has written to
        `$STUDYDB_SAVE`, or a copy of `{checkpoint_dir}`. The files in `$STUDYDB_SAVE` are moved
        away, so that the command can write its next checkpoint. If the report is refused, the files
        are moved back for a later report, unless the command has written new files there already.
        If this host cannot make a new `$STUDYDB_SAVE`, the files are not moved.

        Args:
            is_answered: Whether the command waits for an answer to the report.

        Raises:
            InvalidReport: The checkpoint that the report announces is missing or cannot be moved;
                or a report that is not answered names a directory.
        """
        if isinstance(report.checkpoint, str):
            yield _directory(report.checkpoint, is_answered=is_answered)
            return
        self._n_saved += 1
        taken = self._root / f"saved-{self._n_saved}"
        if not report.checkpoint:
            before = self._stamps
            copied = self._copied(taken) if self._keeps and self._has_new_state() else None
            try:
                yield copied
            except (InvalidReport, CheckpointError):
                self._stamps = before  # so that a later report saves the state
                raise
            finally:
                shutil.rmtree(taken, ignore_errors=True)
            return
        if (unmade := self._take_save(taken)) is not None:
            yield unmade
            return
        try:
            yield GivenDirectory(taken)
        except (InvalidReport, CheckpointError):
            with contextlib.suppress(OSError):
                self.save.rmdir()  # fails if the command has written to it already
                taken.rename(self.save)
            raise
        finally:
            shutil.rmtree(taken, ignore_errors=True)

    def _take_save(self, taken: Path) -> UnmadeDirectory | None:
        """Move the files in `$STUDYDB_SAVE` to `taken`, unless no new directory can be made."""
        try:
            if not any(self.save.iterdir()):
                raise InvalidReport(
                    "The report says that it saves a checkpoint, but $STUDYDB_SAVE is empty."
                )
            try:
                self._next_save.mkdir(exist_ok=True)
            except OSError as cause:  # for example a full disk: a fault of this host
                return UnmadeDirectory.because(cause)
            self.save.rename(taken)
            self._next_save.rename(self.save)
        except OSError as cause:
            raise InvalidReport(f"The files in $STUDYDB_SAVE cannot be moved: {cause}.") from None
        return None

    def ask_to_stop(self, why: str) -> None:
        """Make the stop file; it has its whole content as soon as it exists."""
        being_written = self.stop.with_name("stop-")
        being_written.write_text(f"{why}\n")
        being_written.rename(self.stop)

    def _stamps_now(self) -> set[tuple[str, int, int, int]]:
        found = set()
        for folder, _, names in os.walk(self.checkpoint_dir):
            for name in names:
                with contextlib.suppress(OSError):  # it was removed, or is a link to nothing
                    file = Path(folder, name)
                    facts = file.stat()
                    found.add((str(file), facts.st_ino, facts.st_size, facts.st_mtime_ns))
        return found

    def _has_new_state(self) -> bool:
        return self._stamps_now() != self._stamps

    def _copied(self, target: Path) -> GivenDirectory | UnmadeDirectory | None:
        """Copy `{checkpoint_dir}`; return None if it is empty or changes meanwhile."""
        before, failure = self._stamps_now(), None
        try:
            shutil.copytree(self.checkpoint_dir, target)
        except shutil.Error as cause:  # it has a triple of source, target and reason for each file
            source, _, why = cause.args[0][0]
            failure = OSError(f"{source} cannot be copied: {why}")
        except OSError as cause:
            failure = cause
        if not before or self._stamps_now() != before:
            shutil.rmtree(target, ignore_errors=True)
            return None
        if failure is not None:
            return UnmadeDirectory.because(failure)
        self._stamps = before
        return GivenDirectory(target)


class GrowingFile:
    """
    Reads the new lines of a file to which another process appends.

    Creating this object deletes the file that an earlier attempt has left.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._offset, self._rest = path, 0, b""
        with contextlib.suppress(OSError):
            if path.is_file():
                path.unlink()

    def read(self, *, last: bool = False) -> list[bytes]:
        """
        Read the lines that were completed since the last call.

        If the file has become shorter, it is read from its start.

        Args:
            last: Whether to return a last line without a newline, too.
        """
        data = b""
        with contextlib.suppress(OSError):
            if self._path.is_file():  # a FIFO would block
                with self._path.open("rb") as file:
                    if file.seek(0, os.SEEK_END) < self._offset:
                        self._offset, self._rest = 0, b""
                    file.seek(self._offset)
                    data = file.read()
        self._offset += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [*lines, self._rest] if last else lines


def _directory(path: str, *, is_answered: bool) -> Path:
    """Check the path of a checkpoint; only a report that is answered may name a path."""
    if not is_answered:
        raise InvalidReport(
            f"The report's checkpoint is {path!r}, but a report on stdout or in a file cannot name "
            'a directory. Write the checkpoint to $STUDYDB_SAVE, and report "checkpoint": true.'
        )
    # Unlike `pathlib`, these functions raise no error, whatever the text is.
    if not os.path.isabs(path) or not os.path.isdir(path):  # noqa: PTH112, PTH117
        raise InvalidReport(
            f"The report's checkpoint {path!r} is not the full path of a directory. Write the "
            "checkpoint to a directory, and report its full path."
        )
    return Path(path)
