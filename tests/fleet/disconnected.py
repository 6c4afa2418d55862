"""
Disconnects a worker from its database, and checks what the worker does after its reconnection.

The worker must change no row of its recovered attempts, and must begin another attempt.
"""

from contextlib import suppress
from typing import Any

import sqlalchemy as sa
from harness.proxy import Proxy

import studydb
from fleet.workers import WorkerProcess
from studydb.db import Txn
from studydb.db.schema import attempt, counter, result, worker
from studydb.db.schema import study as of
from studydb.domain.errors import StorageTransient

_CHANGED_BY_OTHERS = {"live_through"}
"""The first flush of a later attempt changes these columns of an ended attempt."""


def holder_of_a_trial(study: studydb.Study, pid: int) -> int | None:
    """The id of the worker with this pid; None if the worker holds no trial, or in an outage."""
    newest = (
        sa.select(worker.c.id)
        .where(worker.c.pid == pid, worker.c.study_id == study.record.id)
        .order_by(worker.c.id.desc())
        .limit(1)
    )
    with suppress(StorageTransient), study.database.begin(write=False) as txn:
        found = txn.first(newest)
        return found.id if found is not None and _open_attempts(txn, found.id) else None
    return None


def is_writable(study: studydb.Study) -> bool:
    """Whether a transaction can write now; on SQLite a frozen worker can block other writers."""
    with suppress(StorageTransient), study.database.begin() as txn:
        txn.abandon()
        return True
    return False


def still_holds(study: studydb.Study, worker_id: int) -> bool:
    """Whether an attempt of this worker has not ended; True in an outage."""
    with suppress(StorageTransient), study.database.begin(write=False) as txn:
        return bool(_open_attempts(txn, worker_id))
    return True


def _open_attempts(txn: Txn, worker_id: int) -> list[Any]:
    return txn.all(
        sa.select(attempt.c.trial_id, attempt.c.attempt).where(
            attempt.c.worker_id == worker_id, attempt.c.ended_at.is_(None)
        )
    )


def unstarted_trials(study: studydb.Study) -> int | None:
    """How many trials of the budget are PENDING or not yet created; None in an outage."""
    waiting = sa.select(sa.func.sum(counter.c.pending)).where(counter.c.study_id == of.c.id)
    not_created = of.c.num_trials - of.c.n_counted
    query = sa.select((not_created + waiting.scalar_subquery()).label("n"))
    with suppress(StorageTransient), study.database.begin(write=False) as txn:
        return int(txn.all(query.where(of.c.id == study.record.id))[0].n)
    return None


class DisconnectedWorker:
    """
    A worker that cannot reach its database until `reconnect`.

    Args:
        how: "SIGSTOP" stops all processes of the worker, as if its host slept. A "frozen line"
            delivers no data before `reconnect`; a "cut line" closes and refuses connections.
    """

    def __init__(self, study: studydb.Study, worker: WorkerProcess, how: str) -> None:
        self.worker = worker
        self._study, self._how = study, how
        if how == "SIGSTOP":
            worker.freeze()
        elif how == "frozen line":
            _line_of(worker).freeze()
        else:
            _line_of(worker).sever()
        self._id = holder_of_a_trial(study, worker.pid)
        self._before: dict[Any, Any] = {}

    def holds_a_recoverable_trial(self) -> bool:
        """Whether this worker holds a trial that other workers can recover."""
        return self._id is not None and (self._how != "SIGSTOP" or is_writable(self._study))

    def was_recovered(self) -> bool:
        """
        Whether all trials of this worker are recovered; False in an outage.

        If they are recovered, remember the rows of the worker's attempts: `changes` compares later
        rows with these rows.
        """
        assert self._id is not None
        if still_holds(self._study, self._id):
            return False
        with suppress(StorageTransient):
            self._before = self._read()
            return True
        return False

    def reconnect(self) -> None:
        if self._how == "SIGSTOP":
            self.worker.thaw()
        else:
            _line_of(self.worker).mend()

    @property
    def claimed_again(self) -> bool:
        """Whether this worker has begun another attempt; False in an outage."""
        with suppress(StorageTransient):
            return len(self._read()) > len(self._before)
        return False

    def changes(self) -> list[str]:
        """Return what is wrong: an attempt changed after recovery, or the worker made no new claim."""
        now = self._read()
        changed = [
            f"trial id {trial_id}, attempt {number}: {rows} became {now.get((trial_id, number))}"
            for (trial_id, number), rows in self._before.items()
            if now.get((trial_id, number)) != rows
        ]
        if len(now) == len(self._before):
            changed.append(f"the worker with id {self._id} began no attempt after its reconnection")
        return changed

    def _read(self) -> dict[tuple[int, int], tuple[Any, list[Any]]]:
        with self._study.database.begin(write=False) as txn:
            attempts = txn.all(sa.select(attempt).where(attempt.c.worker_id == self._id))
            return {
                (row.trial_id, row.attempt): (_fixed(row), _results(txn, row)) for row in attempts
            }


def _line_of(worker: WorkerProcess) -> Proxy:
    assert worker.line is not None
    return worker.line


def _fixed(row: Any) -> dict[str, str]:
    return {
        name: repr(value) for name, value in row._asdict().items() if name not in _CHANGED_BY_OTHERS
    }


def _results(txn: Txn, row: Any) -> list[str]:
    of_attempt = sa.select(result).where(
        result.c.trial_id == row.trial_id, result.c.attempt == row.attempt
    )
    return [repr(tuple(one)) for one in txn.all(of_attempt.order_by(result.c.step))]
