"""
Processes that are killed while they commit to an SQLite file: one fork for every operation and point.

Run as a program: `python victim.py TEMPLATE FOLDER`. Each fork arranges its operation in a copy of
the template, calls it, and is killed by SIGKILL before or after its n-th COMMIT, or ends. Prints as
JSON which have been killed. Arrangements are the same in every process, down to their tokens, so
that another one can make the same call again.
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

import arrange
import pytest
import resends
from arrange import LEASE_S, RENEWAL_S, SimulatedWorker, new_study
from picture import BEGINNING

from studydb.db import Database, connect
from studydb.operations.recover import recover, recover_host
from studydb.operations.save import forget

MOST_COMMITS = 4
POINTS = ("before", "after")


def recovering(database: Database) -> resends.Call:
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


def recovering_a_host(database: Database) -> resends.Call:
    study = new_study(database, max_concurrent=2)
    SimulatedWorker(database, study).take()
    given: Any = {"process": arrange.process(), "is_alive": lambda _: False}

    def call(over: Database) -> None:
        recover_host(over, study, **given)

    return call


def forgetting(database: Database) -> resends.Call:
    run = SimulatedWorker(database, new_study(database)).take()
    removed = [older for _ in range(3) for older in run.save()]
    return lambda over: forget(over, removed=removed)


OPERATIONS = (*resends.OPERATIONS, recovering, recovering_a_host, forgetting)


def advance(database: Database, seconds: float) -> None:
    """Set a database's clock, counted from where all tests begin."""
    database.clock = lambda: BEGINNING + timedelta(seconds=seconds)


@contextmanager
def determined(seed: str) -> Iterator[None]:
    """Let an arrangement draw the same tokens wherever it is made."""
    rng = Random(seed)
    with pytest.MonkeyPatch.context() as patch:
        for room in (arrange, resends):
            patch.setattr(room, "uuid4", lambda: UUID(int=rng.getrandbits(128), version=4))
        yield


def arranged_in(
    database: Database, arranged: Callable[[Database], resends.Call], *, seed: str = ""
) -> resends.Call:
    """The call, on a clock that stands still; the same for the same seed."""
    advance(database, 0)
    with determined(f"{arranged.__name__} {seed}"):
        return arranged(database)


def file_of(folder: Path, name: str, point: str, nth: int) -> Path:
    """Where a victim has left its database."""
    return folder / f"{name}-{point}-{nth}.db"


def die_at(database: Database, point: str, nth: int) -> None:
    """Kill this very process at its n-th COMMIT from now on."""
    end, seen = database._end, iter(range(1, MOST_COMMITS + 1))

    def end_or_die(connection: Any, *, commit: bool) -> None:
        is_it = commit and next(seen) == nth
        if is_it and point == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        end(connection, commit=commit)
        if is_it:
            os.kill(os.getpid(), signal.SIGKILL)

    setattr(database, "_end", end_or_die)  # noqa: B010  the observer is told before, never after


def is_killed(template: Path, path: Path, arranged: Any, point: str, nth: int) -> bool:
    """Fork a victim; whether it came to the point where it dies."""
    pid = os.fork()
    if pid == 0:
        shutil.copyfile(template, path)
        database = connect(f"sqlite:///{path}")
        call = arranged_in(database, arranged)
        die_at(database, point, nth)
        call(database)
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) in (0, -signal.SIGKILL)
    return os.WIFSIGNALED(status)


def main(template: Path, folder: Path) -> None:
    """Kill a process at every COMMIT of every operation."""
    killed: dict[str, list[tuple[str, int]]] = {one.__name__: [] for one in OPERATIONS}
    for arranged in OPERATIONS:
        for point in POINTS:
            for nth in range(1, MOST_COMMITS + 1):
                path = file_of(folder, arranged.__name__, point, nth)
                if not is_killed(template, path, arranged, point, nth):
                    break
                killed[arranged.__name__].append((point, nth))
    json.dump(killed, sys.stdout)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
