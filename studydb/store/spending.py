"""A study's limits and best values, its stop by a limit or rule, and its trials' running time."""

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

import sqlalchemy as sa
from msgspec import Struct

from studydb.db import Prepared, Txn
from studydb.db.dialect import is_listed, now
from studydb.db.schema import attempt, study, trial
from studydb.db.types import Json
from studydb.domain.life.decisions import DecidedBy
from studydb.domain.life.plateau import BestValues, read_best_values
from studydb.domain.life.states import Status
from studydb.domain.limits import Limits
from studydb.store.studies import THIS, existing

_LIMITS = sa.select(
    *(study.c.status, study.c.paused_by, study.c.settings, study.c.best_values),
    study.c.started_at,
    now(),
).where(THIS)
_READ = {False: Prepared(_LIMITS), True: Prepared(_LIMITS.with_for_update(key_share=True))}

_STOP = Prepared(
    sa.update(study)
    .where(THIS, study.c.status != Status.STOPPED)
    .values(status=Status.STOPPED, paused_by=DecidedBy.LIMIT, pause_reason=sa.bindparam("why"))
    .returning(study.c.id)
)

_STORE_BEST = Prepared(
    sa.update(study).where(THIS).values(best_values=sa.bindparam("to_best", type_=Json))
)

_FORGET_BEST = Prepared(sa.update(study).where(THIS).values(best_values=sa.null()))

_RUNNING_TIMES = Prepared(
    sa.select(
        *(trial.c.id, trial.c.running_s, trial.c.running_until, trial.c.lease_s),
        *(attempt.c.started_at, now()),
    )
    .join(attempt, sa.and_(attempt.c.trial_id == trial.c.id, attempt.c.attempt == trial.c.attempt))
    .where(is_listed(trial.c.id, "ids"))
)

_SET_RUNNING_TIME = Prepared(
    sa.update(trial)
    .where(trial.c.id == sa.bindparam("trial"))
    .values(
        running_s=sa.bindparam("to_running_s", type_=sa.Double),
        running_until=sa.bindparam("to_until", type_=trial.c.running_until.type),
    )
)


class LimitedStudy(Struct, frozen=True):
    """
    The limits of a study as its row has them now, with its stored status and its age.

    Attributes:
        is_spent: Whether a limit or a stop rule has stopped the study.
        age_s: Seconds since the study's first worker or own loop started; 0 before that.
        best: For each rule that stops the whole study, the best values of the results stored since
            `forget_best` or `studies.set_status` last deleted these values.
    """

    status: Status
    is_spent: bool
    limits: Limits
    age_s: float
    best: tuple[BestValues, ...] = ()


class RunningTime(NamedTuple):
    """
    The running time of a RUNNING trial over its attempts.

    Attributes:
        counted_s: The part that is stored already.
        since_s: The seconds since that part was stored or the current attempt started, whichever
            was later. At most the length of a lease is counted: if an attempt was silent for
            longer, its host slept or could not reach the database.
    """

    trial_id: int
    counted_s: float
    since_s: float
    now: datetime

    @property
    def total_s(self) -> float:
        return self.counted_s + self.since_s


def read(txn: Txn, *, study_id: int, lock: bool = False) -> LimitedStudy:
    """
    Read a study's limits; `lock` locks the study's row until the transaction ends.

    Raises:
        UnknownStudy: The study was deleted.
    """
    row = existing(txn.first(_READ[lock], study=study_id))
    status, paused_by, settings, best_values, started_at, at = row
    return LimitedStudy(
        status=Status(status),
        is_spent=status == Status.STOPPED and paused_by == DecidedBy.LIMIT,
        limits=Limits.of(settings or {}),
        age_s=0.0 if started_at is None else (at - started_at).total_seconds(),
        best=read_best_values(best_values),
    )


def stop(txn: Txn, *, study_id: int, why: str) -> bool:
    """Stop a study because of a limit or a stop rule; False if it was stopped or deleted before."""
    return txn.count(_STOP, study=study_id, why=why) == 1


def store_best(txn: Txn, *, study_id: int, best: Sequence[BestValues]) -> None:
    """
    Store the best values of each rule that stops the whole study.

    The caller has locked the study's row.
    """
    txn.run(_STORE_BEST, study=study_id, to_best=[list(each) for each in best])


def forget_best(txn: Txn, *, study_id: int) -> None:
    """Let the rules that stop the whole study compare only results stored from now on."""
    txn.run(_FORGET_BEST, study=study_id)


def running_times(txn: Txn, *, trial_ids: Sequence[int]) -> list[RunningTime]:
    """Read the running times of RUNNING trials, up to now."""
    found = []
    for trial_id, running_s, until, lease_s, started_at, at in txn.all(
        _RUNNING_TIMES, ids=trial_ids
    ):
        since = started_at if until is None else max(until, started_at)
        since_s = min(max(0.0, (at - since).total_seconds()), lease_s)
        found.append(RunningTime(trial_id, running_s or 0.0, since_s, at))
    return found


def store_running_time(txn: Txn, time: RunningTime) -> None:
    """Store the running time of a trial whose row the caller has locked."""
    txn.run(_SET_RUNNING_TIME, trial=time.trial_id, to_running_s=time.total_s, to_until=time.now)
