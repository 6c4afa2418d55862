"""What a worker that was shut out has left behind, and whether it changes that when it is back."""

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
    """Whether nobody bars the way to all writers, as a frozen transaction does on SQLite."""
    try:
        with study.database.begin() as txn:
            txn.abandon()
    except StorageTransient:
        return False
    return True


def still_holds(study: studydb.Study, worker_id: int) -> bool:
    """Whether an attempt of this worker is still open, or the database does not tell."""
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
    """How many trials of the budget nobody runs or has run; None while the database is away."""
    waiting = sa.select(sa.func.sum(counter.c.pending)).where(counter.c.study_id == of.c.id)
    unborn = of.c.num_trials - of.c.n_counted
    query = sa.select((unborn + waiting.scalar_subquery()).label("n"))
    try:
        with study.database.begin(write=False) as txn:
            return int(txn.all(query.where(of.c.id == study.record.id))[0].n)
    except StorageTransient:
        return None


class ShutOut:
    """
    A worker that cannot reach its database, from now on until it comes back.

    Args:
        how: "SIGSTOP" stops all of it, as a host does that sleeps. On a "frozen line" nothing
            arrives before the end, and on a "cut line" nothing ever.
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

    def is_robbable(self) -> bool:
        """Whether it holds a trial that others can take."""
        return self._id is not None and (self._how != "SIGSTOP" or is_writable(self._study))

    def is_robbed(self) -> bool:
        """Whether others have taken all that it held; what it has left is known from then on."""
        assert self._id is not None
        if still_holds(self._study, self._id):
            return False
        try:
            self._before = self._read()
        except StorageTransient:
            return False
        return True

    def come_back(self) -> None:
        """Let it reach the database again."""
        if self._how == "SIGSTOP":
            self.worker.thaw()
        else:
            _line_of(self.worker).mend()

    @property
    def works_on(self) -> bool:
        """Whether it has begun an attempt since; False while the database is away."""
        try:
            return len(self._read()) > len(self._before)
        except StorageTransient:
            return False

    def changes(self) -> list[str]:
        """What is different now, and whether it never worked again."""
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
