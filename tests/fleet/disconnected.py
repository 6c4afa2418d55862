"""Disconnects a worker from its database, and checks that as a zombie it changes nothing."""

from typing import Any

import sqlalchemy as sa
from harness.proxy import Proxy

import studydb
from fleet.workers import WorkerProcess
from studydb.db import Txn
from studydb.db.schema import attempt, counter, result, worker
from studydb.db.schema import study as of
from studydb.domain.errors import StorageTransient

_MOVES_BY_OTHERS = {"live_through"}
"""A later attempt's first flush lowers it; nothing else of an attempt that has ended may move."""


def holder_of_a_trial(study: studydb.Study, pid: int) -> int | None:
    """The id of the worker of that pid if it holds a trial; None too while the database is away."""
    newest = (
        sa.select(worker.c.id)
        .where(worker.c.pid == pid, worker.c.study_id == study.record.id)
        .order_by(worker.c.id.desc())
        .limit(1)
    )
    try:
        with study.database.begin(write=False) as txn:
            found = txn.first(newest)
            return found.id if found is not None and _open_attempts(txn, found.id) else None
    except StorageTransient:
        return None


def is_writable(study: studydb.Study) -> bool:
    """Whether writers are not blocked, as a frozen transaction blocks them on SQLite."""
    try:
        with study.database.begin() as txn:
            txn.abandon()
    except StorageTransient:
        return False
    return True


def still_holds(study: studydb.Study, worker_id: int) -> bool:
    """Whether an attempt of this worker is open; True too while the database is away."""
    try:
        with study.database.begin(write=False) as txn:
            return bool(_open_attempts(txn, worker_id))
    except StorageTransient:
        return True


def _open_attempts(txn: Txn, worker_id: int) -> list[Any]:
    return txn.all(
        sa.select(attempt.c.trial_id, attempt.c.attempt).where(
            attempt.c.worker_id == worker_id, attempt.c.ended_at.is_(None)
        )
    )


def to_come(study: studydb.Study) -> int | None:
    """How many trials of the budget have not begun; None while the database is away."""
    waiting = sa.select(sa.func.sum(counter.c.pending)).where(counter.c.study_id == of.c.id)
    not_created = of.c.num_trials - of.c.n_counted
    query = sa.select((not_created + waiting.scalar_subquery()).label("n"))
    try:
        with study.database.begin(write=False) as txn:
            return int(txn.all(query.where(of.c.id == study.record.id))[0].n)
    except StorageTransient:
        return None


class DisconnectedWorker:
    """
    A worker that cannot reach its database until `reconnect`.

    Args:
        how: "SIGSTOP" stops all of it, as on a host that sleeps. A "frozen line" delivers
            nothing before `reconnect`; a "cut line" loses everything.
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
        """Whether it holds a trial that other workers can recover."""
        return self._id is not None and (self._how != "SIGSTOP" or is_writable(self._study))

    def was_recovered(self) -> bool:
        """Whether other workers have recovered all its trials; from then on its rows are fixed."""
        assert self._id is not None
        if still_holds(self._study, self._id):
            return False
        try:
            self._before = self._read()
        except StorageTransient:
            return False
        return True

    def reconnect(self) -> None:
        """Let the worker reach the database again."""
        if self._how == "SIGSTOP":
            self.worker.thaw()
        else:
            _line_of(self.worker).mend()

    @property
    def claimed_again(self) -> bool:
        """Whether it has begun another attempt; False while the database is away."""
        try:
            return len(self._read()) > len(self._before)
        except StorageTransient:
            return False

    def changes(self) -> list[str]:
        """Each row that changed since, and whether the worker claimed no other trial."""
        now = self._read()
        changed = [
            f"trial id {trial_id}, attempt {number}: {rows} became {now.get((trial_id, number))}"
            for (trial_id, number), rows in self._before.items()
            if now.get((trial_id, number)) != rows
        ]
        if len(now) == len(self._before):
            changed.append(f"the worker of id {self._id} began no other trial")
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
        name: repr(value) for name, value in row._asdict().items() if name not in _MOVES_BY_OTHERS
    }


def _results(txn: Txn, row: Any) -> list[str]:
    of_attempt = sa.select(result).where(
        result.c.trial_id == row.trial_id, result.c.attempt == row.attempt
    )
    return [repr(tuple(one)) for one in txn.all(of_attempt.order_by(result.c.step))]
