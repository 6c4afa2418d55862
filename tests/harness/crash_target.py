"""
Processes that are killed while they commit to an SQLite file: one fork for every COMMIT.

Run as a program: `python -m harness.crash_target TEMPLATE FOLDER`. It reads an operation's name and
"before" or "after" from each line, and answers with a list. Each fork arranges the operation in a copy of the
template, calls it, and is killed by SIGKILL at its n-th COMMIT, or ends. Arrangements are the same in
every process, down to their tokens, so that another one can make the same call again.
"""

import json
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Any
from uuid import UUID

import pytest

from harness import arrange, duplicate_requests
from harness.arrange import LEASE_S, RENEWAL_S, SimulatedWorker, enqueued, new_study
from harness.snapshot import BEGINNING
from studydb.analysis.wide import trial_view
from studydb.db import Database, connect
from studydb.db.transaction_block import TransactionBlock
from studydb.operations.checkpoints import delete_rows
from studydb.operations.delete import close, delete
from studydb.operations.recover import recover, recover_host
from studydb.operations.wide_views import drop_views, make_views

MOST_COMMITS = 8
POINTS = ("before", "after")


def recovering(database: Database) -> duplicate_requests.Call:
    """One transaction that looks and one for each of two trials."""
    study = new_study(database)
    for _ in range(2):
        SimulatedWorker(database, study).take().report(0.5)
    advance(database, LEASE_S + 1)
    recover(database, study)

    def call(over: Database) -> None:
        advance(over, LEASE_S + RENEWAL_S + 2)
        recover(over, study)

    return call


def recovering_a_host(database: Database) -> duplicate_requests.Call:
    study = new_study(database, max_concurrent=2)
    SimulatedWorker(database, study).take()
    given: Any = {"process": arrange.process(), "is_alive": lambda _: False}

    def call(over: Database) -> None:
        recover_host(over, study, **given)

    return call


def forgetting(database: Database) -> duplicate_requests.Call:
    run = SimulatedWorker(database, new_study(database)).take()
    removed = [older for _ in range(3) for older in run.save()]
    return lambda over: delete_rows(over, removed=removed)


def closing(database: Database) -> duplicate_requests.Call:
    study = new_study(database)
    return lambda over: close(over, study)


def deleting(database: Database) -> duplicate_requests.Call:
    """Rows of a trial that has ended, of one that waits, and of the study."""
    study = new_study(database)
    run = SimulatedWorker(database, study).take()
    run.report(0.5)
    run.save()
    run.finish(0.4)
    enqueued(database, study)
    return lambda over: delete(over, study)


def making_views(database: Database) -> duplicate_requests.Call:
    study = new_study(database)
    return lambda over: make_views(over, study, [trial_view(study)])


def dropping_views(database: Database) -> duplicate_requests.Call:
    study = new_study(database)
    make_views(database, study, [trial_view(study)])

    def call(over: Database) -> None:
        drop_views(over, study)

    return call


OPERATIONS = (
    *duplicate_requests.OPERATIONS,
    recovering,
    recovering_a_host,
    forgetting,
    closing,
    deleting,
    making_views,
    dropping_views,
)


def advance(database: Database, seconds: float) -> None:
    """Set a database's clock, counted from where all tests begin."""
    database.clock = lambda: BEGINNING + timedelta(seconds=seconds)


@contextmanager
def determined(seed: str) -> Iterator[None]:
    """Let an arrangement draw the same tokens in every process."""
    rng = Random(seed)
    with pytest.MonkeyPatch.context() as patch:
        for room in (arrange, duplicate_requests):
            patch.setattr(room, "uuid4", lambda: UUID(int=rng.getrandbits(128), version=4))
        yield


def arranged_in(
    database: Database, arranged: Callable[[Database], duplicate_requests.Call], *, seed: str = ""
) -> duplicate_requests.Call:
    """The call, on a clock that stands still; the same for the same seed."""
    advance(database, 0)
    with determined(f"{arranged.__name__} {seed}"):
        return arranged(database)


def file_of(folder: Path, name: str, point: str, nth: int) -> Path:
    """The database file of a killed process."""
    return folder / f"{name}-{point}-{nth}.db"


def die_at(point: str, nth: int) -> None:
    """Kill this very process at its n-th COMMIT from now on."""
    end, seen = TransactionBlock._end, iter(range(1, MOST_COMMITS + 1))

    def end_or_die(block: TransactionBlock, *, commit: bool) -> None:
        is_it = commit and next(seen) == nth
        if is_it and point == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        end(block, commit=commit)
        if is_it:
            os.kill(os.getpid(), signal.SIGKILL)

    setattr(TransactionBlock, "_end", end_or_die)  # noqa: B010  the observer is called before, never after


def is_killed(template: Path, path: Path, arranged: Any, point: str, nth: int) -> bool:
    """Fork a process; whether it was killed at its n-th COMMIT."""
    pid = os.fork()
    if pid == 0:
        shutil.copyfile(template, path)
        database = connect(f"sqlite:///{path}")
        call = arranged_in(database, arranged)
        die_at(point, nth)
        call(database)
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) in (0, -signal.SIGKILL)
    return os.WIFSIGNALED(status)


def main(template: Path, folder: Path) -> None:
    """For each line of standard input, print at which COMMITs the operation was killed."""
    by_name = {one.__name__: one for one in OPERATIONS}
    for line in sys.stdin:
        name, point = line.split()
        killed = []
        for nth in range(1, MOST_COMMITS + 1):
            if not is_killed(
                template, file_of(folder, name, point, nth), by_name[name], point, nth
            ):
                break
            killed.append(nth)
        print(json.dumps(killed), flush=True)  # noqa: T201  the answer


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
