"""`logs`: print the output of a trial."""

import codecs
import os
import stat
import sys
import time
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import click

from studydb.cli.opening import opened_study
from studydb.cli.options import POSITIVE, Storage, storage_option, study_argument, trial_argument
from studydb.domain.errors import NotFound, StorageTransient
from studydb.domain.records import Lease
from studydb.domain.text.display import printed, visible

if TYPE_CHECKING:
    from studydb.study import Study

FOLLOW_EVERY_S = 0.5
LOOK_EVERY_S = 2.0
"""The time between two reads of the database that check whether the attempt has ended."""

_READ_BYTES = 1 << 16
_STREAMS = ("stdout", "stderr")


@click.command()
@study_argument
@trial_argument
@click.option("-f", "--follow", is_flag=True, help="Keep printing until the trial's attempt ends.")
@click.option("--attempt", type=POSITIVE, metavar="N", help="Which attempt.  [default: the newest]")
@storage_option
def logs(
    *, name: str, trial: int | str, follow: bool, attempt: int | None, storage: Storage
) -> None:
    """
    Print the output of TRIAL of NAME: its stdout to stdout, its stderr to stderr.

    If the output's files are not on this host, the last bytes of the output are printed from the
    database. For a terminal, colours are removed and control characters escaped. A pipe gets every
    byte.
    """
    with opened_study(storage, name) as study:
        number = study.number_of(trial)
        found = _find_attempt(study, number, attempt)
        tails = [Tail(_directory(study, number, found) / stream) for stream in _STREAMS]
        has_printed = _print_files(tails)
        if follow:
            has_printed |= _follow(study, number, found.attempt, tails)
            found = _find_attempt(study, number, found.attempt)
    if not has_printed:
        _print_stored(found, number)


class Tail:
    """Reads a growing file `x`, which its writer renames to `x.1` when it is full."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._before = path.with_name(f"{path.name}.1")
        self._inode: int | None = None
        self._offset = 0
        self._decode = codecs.getincrementaldecoder("utf-8")("backslashreplace").decode

    def read(self) -> Iterator[bytes]:
        """
        Yield the bytes that were written since the last call.

        Between the renaming and the next byte only `x.1` exists. If the last call has read another
        file than the present `x`, that file may be `x.1` now, and more bytes of it may follow.
        """
        current = _open_if_readable(self._path)
        with current or nullcontext():
            if current is None or _inode(current) != self._inode:
                yield from self._rest_of(_open_if_readable(self._before))
            yield from self._rest_of(current)

    def shown(self, data: bytes) -> str:
        """Decode bytes for a terminal; keep an incomplete character for the next call."""
        return printed(self._decode(data))

    def _rest_of(self, file: BinaryIO | None) -> Iterator[bytes]:
        if file is None:
            return
        with file, suppress(OSError):
            if _inode(file) != self._inode:
                self._inode, self._offset = _inode(file), 0
            file.seek(self._offset)
            while data := file.read(_READ_BYTES):
                self._offset += len(data)
                yield data


def _inode(file: BinaryIO) -> int:
    return os.fstat(file.fileno()).st_ino


def _open_if_readable(path: Path) -> BinaryIO | None:
    try:
        return _open_file(path)
    except OSError:
        return None


def _open_file(path: Path) -> BinaryIO:
    """
    Open a regular file.

    A link is refused, because it may lead to any file. A pipe is refused, because it may never end.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(f"{path} is not a regular file.")
    return os.fdopen(descriptor, "rb")


def _find_attempt(study: "Study", number: int, wanted: int | None) -> Any:
    from studydb.operations.reads import trial_attempts

    attempts = trial_attempts(study.database, study.record, number)
    if not attempts:
        raise NotFound(f"Trial {number} of {study.name!r} has not run yet: there is no output.")
    if wanted is None:
        return attempts[-1]
    for attempt in attempts:
        if attempt.attempt == wanted:
            return attempt
    n = len(attempts)
    raise NotFound(
        f"Trial {number} of {study.name!r} has no attempt {wanted}; it has {n} "
        f"attempt{'' if n == 1 else 's'}."
    )


def _directory(study: "Study", number: int, attempt: Any) -> Path:
    """Return the folder of an attempt's output, even if the attempt's row names none yet."""
    lease = Lease(study.record.id, attempt.trial_id, number, 0, attempt.attempt, attempt.token)
    return study.database.locations.recorded_log_dir(study.record, lease, attempt.log_dir)


def _print_files(tails: list[Tail]) -> bool:
    has_printed = False
    for tail, stream in zip(tails, (sys.stdout, sys.stderr), strict=True):
        for data in tail.read():
            click.echo(tail.shown(data) if stream.isatty() else data, nl=False, file=stream)
            has_printed = True
    return has_printed


def _follow(study: "Study", number: int, attempt: int, tails: list[Tail]) -> bool:
    next_look_s = 0.0
    has_printed = ended = False
    while not ended:
        if time.monotonic() >= next_look_s:
            ended = _has_ended(study, number, attempt)
            next_look_s = time.monotonic() + LOOK_EVERY_S
        has_printed |= _print_files(tails)
        if not ended:
            time.sleep(FOLLOW_EVERY_S)
    return has_printed


def _has_ended(study: "Study", number: int, attempt: int) -> bool:
    try:
        return _find_attempt(study, number, attempt).ended_at is not None
    except StorageTransient:
        return False


def _print_stored(attempt: Any, number: int) -> None:
    if attempt.log_tail:
        note = (
            "the last bytes of the output, as the database keeps them; the files are in "
            f"{visible(attempt.log_dir or '?')}, which cannot be read on this host"
        )
    elif attempt.ended_at is None:
        note = (
            f"attempt {attempt.attempt} of trial {number} is running; no output of it can be read "
            "on this host"
        )
    else:
        note = f"attempt {attempt.attempt} of trial {number} has printed nothing"
    click.echo(f"({note})", err=True)
    if attempt.log_tail:
        tail = printed(attempt.log_tail) if sys.stdout.isatty() else attempt.log_tail
        click.echo(tail, nl=not tail.endswith("\n"))
