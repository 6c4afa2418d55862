"""
Recover the trials of workers that died. Any worker does this; a sweep recovers at most 100 trials.

After an outage of the database every lease has expired, also that of an attempt that still runs. So
a sweep first marks an expired lease, and a renewal, report or save of the attempt removes the mark.
The attempt is lost if the mark is still there one renewal period later. Each lost attempt is ended
in a separate transaction, by the same code as a finish. If the holder has written meanwhile, the
attempt is not ended.

If a trial's values make the separate transaction fail, a second try ends the attempt without
summing up results. If the values make the second try fail, too, an event is recorded, and the sweep
goes on.
"""

import threading
from collections.abc import Callable
from contextlib import suppress

from studydb.db import Database
from studydb.db.faults import Duplicate, is_of_values
from studydb.domain.errors import StorageError
from studydb.domain.failures import Failure, failure_of
from studydb.domain.life.event_kinds import Actor, EventKind
from studydb.domain.life.states import Reason
from studydb.domain.records import Lease, Process, Study
from studydb.operations import summing
from studydb.operations.attempt_end import end_attempt
from studydb.operations.flushing import unchanged
from studydb.store import events, sweeps


def recover(database: Database, study: Study) -> int:
    """
    Mark expired leases, and end lost attempts.

    The sweep also makes two kinds of trials runnable: trials whose back-off is over, and trials
    that were paused together with their study, after the study was resumed.

    Returns:
        How many trials were recovered.
    """
    with database.begin(write=False, single=True) as txn:
        if not sweeps.any_due(txn, study_id=study.id):
            return 0
    with database.begin() as txn:
        sweeps.wake(txn, study_id=study.id)
        sweeps.suspect(txn, study_id=study.id)
        sweeps.unpause(txn, study_id=study.id)
        lost = sweeps.lost(txn, study_id=study.id)
    return sum(_recover_one(database, study, lease=lease, known_dead=False) for lease in lost)


def awaits_recovery(database: Database, study: Study, *, worker_id: int) -> bool:
    """Tell whether another worker's trial has an expired lease and sweeps will soon recover it."""
    with database.begin(write=False, single=True) as txn:
        return sweeps.any_awaited(txn, study_id=study.id, worker_id=worker_id)


def recover_host(
    database: Database, study: Study, *, process: Process, is_alive: Callable[[Process], bool]
) -> int:
    """
    Recover the trials of dead processes of this host, without waiting until their leases expire.

    Args:
        process: A process of this host; holders with another boot id or pid namespace are skipped.
        is_alive: Tells whether a process of this host still runs.
    """
    with database.begin(write=False, single=True) as txn:
        held = sweeps.of_host(txn, study_id=study.id, process=process)
    return sum(
        _recover_one(database, study, lease=lease, known_dead=True)
        for lease, holder in held
        if not is_alive(holder)
    )


def _recover_one(
    database: Database, study: Study, *, lease: Lease, known_dead: bool, why: Failure | None = None
) -> bool:
    """End an attempt if it is lost; False if it was not ended. For `why` see `_end`."""
    try:
        return _end(database, study, lease=lease, known_dead=known_dead, why=why)
    except Exception as error:
        if not is_of_values(error):
            raise
        cause = failure_of(error, whole=True)
        if why is not None:
            _record_unrecoverable(database, lease, cause)
            return False
    return _recover_one(database, study, lease=lease, known_dead=known_dead, why=cause)


def _end(
    database: Database, study: Study, *, lease: Lease, known_dead: bool, why: Failure | None
) -> bool:
    """End a lost attempt. If `why` is given, store that cause, and do not sum up the results."""
    with database.begin() as txn:
        held = sweeps.hold_lost(txn, lease=lease, known_dead=known_dead)
        if held is None:
            return False

        ended = end_attempt(
            txn,
            study,
            unchanged(held),
            lease=lease,
            outcome=Reason.LOST,
            flush_no=held.flush_no,
            failure=why,
            actor=Actor.SWEEP,
            summed=why is None,
        )
    if ended.unsummed:  # in a thread, so that renewals and a worker's start do not wait
        _sum_up_later(database, study, trial_id=lease.trial_id)
    return True


_one_at_a_time = threading.Lock()
"""
One thread at a time sums up. A sweep may start 100 threads, which share one or two connections.
"""


def _sum_up_later(database: Database, study: Study, *, trial_id: int) -> None:
    def work() -> None:
        with _one_at_a_time, suppress(Exception):  # an error leaves the trial without a summary
            summing.after_end(database, study, trial_id=trial_id)

    threading.Thread(target=work, name=f"studydb-summary-{trial_id}", daemon=True).start()


def _record_unrecoverable(database: Database, lease: Lease, failure: Failure) -> None:
    """Record, once for each attempt, that recovery cannot end the attempt."""
    with suppress(Duplicate, StorageError), database.begin() as txn:
        events.append(
            txn,
            study_id=lease.study_id,
            lease=lease,
            kind=EventKind.RECOVERY_FAILED,
            actor=Actor.SWEEP,
            data={"error": f"{failure.type}: {failure.message}", "traceback": failure.traceback},
            token=f"recovery of {lease.token}",
        )
