"""
Kills a process at each COMMIT of an operation on an SQLite file.

Run as a program: `python -m harness.crash_target TEMPLATE FOLDER`. Each line of the input is an
operation's name; the answer is the number of its COMMITs. The program copies the SQLite file
TEMPLATE, and adds to the copy the rows that the operation needs. For each COMMIT, two forked
processes call the operation, each on its own duplicate of that copy: one is killed before the
COMMIT, the other after it. All processes make the same tokens, so a test can repeat a killed call.
"""

import gc
import os
import shutil
import signal
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import timedelta
from itertools import count
from pathlib import Path
from random import Random
from typing import Any
from uuid import UUID, uuid4

import pytest
from fleet.trainables.scheduling import Cup

from harness import arrange, duplicate_requests, upload_requests
from harness.arrange import LEASE_S, RENEWAL_S, SimulatedWorker, enqueued, new_study
from harness.asked_scheduler import described
from harness.control_requests import Arranged, Call
from harness.custom_scheduler_requests import promoting_by_a_custom_scheduler
from harness.fitting_requests import BY_CONFIG, leaving_a_draw
from harness.model_searcher import ModelSearch
from harness.rung_requests import (
    promoting_the_chosen_trial,
    promoting_to_the_end_of_a_rung,
    with_full_rung,
)
from harness.snapshot import BEGINNING
from studydb.analysis.wide import trial_view
from studydb.db import Database, connect
from studydb.db.transaction_block import TransactionBlock
from studydb.domain.custom_scheduler import work_question
from studydb.domain.deciding import DecisionFailed, Undecided
from studydb.domain.life.retention import Keep
from studydb.domain.scheduling import Idle
from studydb.lease.upload_collector import collect_uploads
from studydb.operations import proposer
from studydb.operations.checkpoints import delete_rows
from studydb.operations.delete import delete, forget_stores, stop_for_deletion
from studydb.operations.pin import pin, unpin
from studydb.operations.recover import recover, recover_host
from studydb.operations.requesting import pause_unrequested
from studydb.operations.unkept_checkpoints import remove_unkept
from studydb.operations.uploads import abandoned_uploads, begin_upload, delete_upload
from studydb.operations.user_work import pause_undecided, record_idle
from studydb.operations.wide_views import drop_views, make_views
from studydb.store import promotions

POINTS = ("before", "after")


def _recovering(database: Database) -> Call:
    """
    The call finds two lost trials in one transaction, and recovers them in two more.

    The second trial has reported `done=True`, so recovery completes this trial.
    """
    study = new_study(database)
    for done in (False, True):
        SimulatedWorker(database, study).take().report(0.5, done=done)
    advance(database, LEASE_S + 1)
    recover(database, study)

    def call(over: Database) -> None:
        advance(over, LEASE_S + RENEWAL_S + 2)
        recover(over, study)

    return call


def _recovering_a_host(database: Database) -> Call:
    study = new_study(database, max_concurrent=2)
    SimulatedWorker(database, study).take()
    given: Any = {"process": arrange.process(), "is_alive": lambda _: False}

    def call(over: Database) -> None:
        recover_host(over, study, **given)

    return call


def _promoting_from_a_rung_that_closes(database: Database) -> Call:
    """The call closes the rung, gives trials up, promotes the kept trial, and ends the rung."""
    study = with_full_rung(database, 0.5, 0.1, 0.9)
    return promoting_to_the_end_of_a_rung(study, SimulatedWorker(database, study).claimant())


def _pausing_because_no_work_was_named(database: Database) -> Call:
    study = new_study(database)
    return lambda over: pause_undecided(over, study, Undecided("it hangs"))


def _pausing_because_a_function_did_not_answer(database: Database) -> Call:
    study = new_study(database, resources=BY_CONFIG)
    return lambda over: pause_unrequested(over, study, DecisionFailed("it hangs"))


def _recording_that_a_scheduler_is_idle(database: Database) -> Call:
    study = new_study(database, scheduler=described(Cup()))
    with database.begin(write=False) as txn:
        queues = promotions.Queues(txn, study_id=study.id)
        question = work_question(queues, [], 1)
    return lambda over: record_idle(over, study, question, Idle.WAIT)


def _deleting_rows(database: Database) -> Call:
    run = SimulatedWorker(database, new_study(database)).take()
    removed = [older for _ in range(3) for older in run.save()]
    return lambda over: delete_rows(over, removed=removed)


def _removing_unkept(database: Database) -> Call:
    """The call removes a checkpoint whose pin was removed, in a study with a quota."""
    study = new_study(database, keep=Keep(quota=99))
    run = SimulatedWorker(database, study).take()
    run.save()
    pin(database, study, 0, arrange.new_request())
    for _ in range(2):
        run.save()
    unpin(database, study, 0, arrange.new_request())
    return lambda over: remove_unkept(over, study, 0)


def _deleting_an_upload(database: Database) -> Call:
    study = new_study(database)
    run = SimulatedWorker(database, study).take()
    begin_upload(database, lease=run.lease, uuid=str(uuid4()), url="file:///store/x")
    run.finish(0.5)
    (left,) = abandoned_uploads(database, study)
    return lambda over: delete_upload(over, upload_id=left.id)


def _collecting_uploads(database: Database) -> Call:
    """The call deletes the rows of two uploads of an ended attempt, in two transactions."""
    study = new_study(database)
    run = SimulatedWorker(database, study).take()
    for _ in range(2):
        begin_upload(database, lease=run.lease, uuid=str(uuid4()), url="file:///store/x")
    run.finish(0.5)

    def call(over: Database) -> None:
        collect_uploads(over, study)

    return call


def _closing(database: Database) -> Call:
    study = new_study(database)
    return lambda over: stop_for_deletion(over, study)


def _forgetting_stores(database: Database) -> Call:
    study = new_study(database)
    return lambda over: forget_stores(over, study)


def _deleting(database: Database) -> Call:
    study = new_study(database)
    run = SimulatedWorker(database, study).take()
    run.report(0.5)
    run.save()
    run.finish(0.4)
    enqueued(database, study)
    return lambda over: delete(over, study)


def _making_views(database: Database) -> Call:
    study = new_study(database)
    return lambda over: make_views(over, study, [trial_view(study)])


def _dropping_views(database: Database) -> Call:
    study = new_study(database)
    make_views(database, study, [trial_view(study)])

    def call(over: Database) -> None:
        drop_views(over, study)

    return call


def _releasing_the_lease_of_a_dead_process(database: Database) -> Call:
    study = new_study(database, searcher=ModelSearch())
    holder = SimulatedWorker(database, study).id
    given: Any = {
        "token": arrange.token(),
        "worker_id": holder,
        "lease_s": duplicate_requests.LEASE_OF_PROPOSER_S,
    }
    proposer.take_lease(database, study, **given)
    return lambda over: proposer.release_lease_of_dead(over, study, is_alive=lambda _: False)


OPERATIONS: dict[str, Arranged] = {
    **duplicate_requests.OPERATIONS,
    "recover": _recovering,
    "recover_host": _recovering_a_host,
    "promote_from_a_rung_that_closes": _promoting_from_a_rung_that_closes,
    "promote_the_chosen_trial": promoting_the_chosen_trial,
    "promote_by_a_custom_scheduler": promoting_by_a_custom_scheduler,
    "release_lease_of_dead": _releasing_the_lease_of_a_dead_process,
    "pause_undecided": _pausing_because_no_work_was_named,
    "record_idle": _recording_that_a_scheduler_is_idle,
    "delete_rows": _deleting_rows,
    "remove_unkept": _removing_unkept,
    "delete_upload": _deleting_an_upload,
    "leave_draw": leaving_a_draw,
    "pause_unrequested": _pausing_because_a_function_did_not_answer,
    "collect_uploads": _collecting_uploads,
    "close": _closing,
    "delete": _deleting,
    "forget_stores": _forgetting_stores,
    "make_views": _making_views,
    "drop_views": _dropping_views,
}


def advance(database: Database, seconds: float) -> None:
    """Set a database's clock to this number of seconds after `BEGINNING`."""
    database.clock = lambda: BEGINNING + timedelta(seconds=seconds)


@contextmanager
def stopped(path: Path) -> Iterator[Database]:
    """Open an SQLite file, with the clock stopped."""
    with closing(connect(f"sqlite:///{path}")) as database:
        advance(database, 0)
        yield database


@contextmanager
def seeded_tokens(seed: str) -> Iterator[None]:
    """Within this block, the tokens of an operation are the same in every process."""
    rng = Random(seed)
    with pytest.MonkeyPatch.context() as patch:
        for module in (arrange, duplicate_requests, upload_requests):
            patch.setattr(module, "uuid4", lambda: UUID(int=rng.getrandbits(128), version=4))
        yield


def arranged_in(database: Database, operation: str) -> Call:
    """Arrange an operation; return its call. The clock is stopped."""
    advance(database, 0)
    with seeded_tokens(operation):
        return OPERATIONS[operation](database)


def file_of(folder: Path, operation: str, point: str, nth: int) -> Path:
    return folder / f"{operation}-{point}-{nth}.db"


def count_commits(call: Call, path: Path) -> int:
    """
    Make a call, and count its COMMITs.

    The call compiles its statements; the processes that are forked later inherit them.
    """
    end, commits = TransactionBlock._end, []

    def note(block: TransactionBlock, *, commit: bool) -> None:
        commits.append(commit)
        end(block, commit=commit)

    with pytest.MonkeyPatch.context() as patch, stopped(path) as database:
        patch.setattr(TransactionBlock, "_end", note)
        call(database)
    return sum(commits)


def die_at(point: str, nth: int) -> None:
    """Kill this process "before" or "after" its n-th COMMIT from now on."""
    end, commits = TransactionBlock._end, count(1)

    def end_or_die(block: TransactionBlock, *, commit: bool) -> None:
        is_nth = commit and next(commits) == nth
        if is_nth and point == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        end(block, commit=commit)
        if is_nth:
            os.kill(os.getpid(), signal.SIGKILL)

    # `_end` is replaced, because `Database.observer` is called only before a COMMIT, never after.
    setattr(TransactionBlock, "_end", end_or_die)  # noqa: B010


def kill(call: Call, path: Path, point: str, nth: int) -> None:
    """Fork a process that makes a call, and check that it was killed at its n-th COMMIT."""
    pid = os.fork()
    if pid == 0:
        with stopped(path) as database:
            die_at(point, nth)
            call(database)
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL


def kill_at_each_commit(template: Path, folder: Path, operation: str) -> int:
    """
    Kill one process before each COMMIT and another after it; return the number of COMMITs.

    Each process leaves its SQLite file, which `file_of` names.
    """
    arranged = shutil.copyfile(template, folder / f"{operation}.db")
    with stopped(arranged) as database:
        call = arranged_in(database, operation)
    n_commits = count_commits(call, shutil.copyfile(arranged, folder / f"{operation}-whole.db"))
    for point in POINTS:
        for nth in range(1, n_commits + 1):
            path = shutil.copyfile(arranged, file_of(folder, operation, point, nth))
            kill(call, path, point, nth)
    return n_commits


def main(template: Path, folder: Path) -> None:
    """For each operation in the input, kill processes, and print the number of its COMMITs."""
    gc.freeze()
    for line in sys.stdin:
        n_commits = kill_at_each_commit(template, folder, line.strip())
        print(n_commits, flush=True)  # noqa: T201  the answer


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
