"""`logs`: print the output of a trial."""

import codecs
import os
import stat
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
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
_KEPT = "of each stream the last 5 to 10 MiB are kept, so its beginning may be missing"


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
    Print the output of trial TRIAL of study NAME: stdout to stdout, stderr to stderr.

    Of each stream the last 5 to 10 MiB are kept. If the output's files are not on this host, the
    last bytes of the output are printed from the database. For a terminal, colours are removed and
    control characters escaped. A pipe gets the bytes of the files unchanged.
    """
    with opened_study(storage, name) as study, ExitStack() as stack:
        number = study.number_of(trial)
        found = _find_attempt(study, number, attempt)
        folder = _directory(study, number, found)
        tails = [stack.enter_context(closing(Tail(folder / stream))) for stream in _STREAMS]
        for stream in _STREAMS:
            if sys.stderr.isatty() and (folder / f"{stream}.1").exists():
                click.echo(f"studydb: {stream} is long; {_KEPT}", err=True)
        has_printed = _print_files(tails)
        if follow:
            has_printed |= _follow(study, number, found.attempt, tails)
            found = _find_attempt(study, number, found.attempt)
    if not has_printed:
        _print_stored(found, number)


class Tail:
    """
    Reads a growing file `x`, which its writer renames to `x.1` when the file is full.

    The file that was read last stays open until a newer file is read, or until `close`. So no newer
    file gets the inode of the open file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: BinaryIO | None = None
        self._decode = codecs.getincrementaldecoder("utf-8")("backslashreplace").decode

    def read(self) -> Iterator[bytes]:
        """Yield the bytes that were written since the last call and are still in `x` or `x.1`."""
        yield from self._rest()
        newest = _open_if_readable(self._path)
        if newest is None and self._file is not None:
            return
        if not self._is_open(newest):
            yield from self._rest()  # what the last file got before it was renamed
            before = self._path.with_name(f"{self._path.name}.1")
            yield from self._go_on_with(_open_if_readable(before))
        yield from self._go_on_with(newest)

    def shown(self, data: bytes) -> str:
        """Decode and escape bytes for a terminal; keep an incomplete character for a later call."""
        return printed(self._decode(data))

    def close(self) -> None:
        """Close the file that was read last."""
        if self._file is not None:
            self._file.close()

    def _rest(self) -> Iterator[bytes]:
        with suppress(OSError):
            while self._file is not None and (data := self._file.read(_READ_BYTES)):
                yield data

    def _is_open(self, file: BinaryIO | None) -> bool:
        if file is None or self._file is None:
            return False
        with suppress(OSError):  # a network file system may have lost the open file
            return os.path.samestat(os.fstat(file.fileno()), os.fstat(self._file.fileno()))
        return False

    def _go_on_with(self, file: BinaryIO | None) -> Iterator[bytes]:
        if file is None:
            return
        if self._is_open(file):
            file.close()
            return
        self.close()
        self._file = file
        yield from self._rest()


def _open_if_readable(path: Path) -> BinaryIO | None:
    """
    Open a regular file; return None if the file cannot be read.

    A link is refused, because it may lead to any file. A pipe is refused, because it may never end.
    """
    with suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            return os.fdopen(descriptor, "rb")
        os.close(descriptor)
    return None


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
            f"attempt {attempt.attempt} of trial {number} is running; so far this host has no "
            "output of it"
        )
    else:
        note = f"attempt {attempt.attempt} of trial {number} has printed nothing"
    click.echo(f"({note})", err=True)
    if attempt.log_tail:
        tail = printed(attempt.log_tail) if sys.stdout.isatty() else attempt.log_tail
        click.echo(tail, nl=not tail.endswith("\n"))
