"""
Trials that wait at rungs: find the best trials, and promote a chosen trial.

The module also reads which trials are underway, that is, can still reach a rung.

The report that pauses a trial at a rung sets `rung_entry.waiting`. The column stays true until the
trial is promoted, becomes PENDING by a person's request, or ends.
"""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from studydb.db import Prepared, Txn
from studydb.db.decision_schema import rung, rung_entry
from studydb.db.dialect import is_listed, now
from studydb.db.schema import PAUSED_BY_STUDY, in_state, is_still, study, trial
from studydb.domain.life.decisions import DecidedBy, RungKey
from studydb.domain.life.states import State, Status
from studydb.domain.limits import Spending
from studydb.domain.quantile import Cut, exact_cutoff
from studydb.domain.scheduling import RungView, TrialCanBeClaimed, WaitingTrial
from studydb.store import claims, counters, resource_classes, spending, studies
from studydb.store.claims import NOTHING_FITTING_WAITS, NOTHING_WAITS
from studydb.store.rungs import NONE_KEPT
from studydb.store.studies import HAS_ROOM, Budget

_STUDY = sa.bindparam("study", type_=sa.BigInteger)
_ENTRIES = rung_entry.c.rung_id == rung.c.id
_PAUSED_BY_SCHEDULER = (
    trial.c.study_id == _STUDY,
    is_still(State.PAUSED),
    trial.c.paused_by == DecidedBy.SCHEDULER,
)

BETTER_THAN_CUT = (
    sa.select(rung_entry.c.score)
    .where(
        _ENTRIES,
        rung_entry.c.ranked,
        sa.tuple_(rung_entry.c.score, rung_entry.c.trial_id)
        < sa.tuple_(rung.c.cut_score, rung.c.cut_trial_id),
    )
    .order_by(rung_entry.c.score.desc(), rung_entry.c.trial_id.desc())
    .limit(1)
    .correlate(rung)
    .scalar_subquery()
)


_place = sa.tuple_(rung_entry.c.score, rung_entry.c.ordinal)
IS_KEPT = _place <= sa.tuple_(
    sa.func.coalesce(rung.c.closed_cutoff, sa.bindparam("worst", math.inf, sa.Double)),
    sa.func.coalesce(rung.c.closed_ordinal, sa.bindparam("last", 2**62, sa.BigInteger)),
)
"""True if the trial of an entry may be resumed: the rung is open, or has kept the trial."""

_IS_NOT_KEPT = _place > sa.tuple_(rung.c.closed_cutoff, rung.c.closed_ordinal)
"""True if a closed rung has not kept the trial of an entry; NULL at an open rung."""


def _is_paused_by_scheduler(*conditions: sa.ColumnElement[bool]) -> sa.ScalarSelect[Any]:
    return (
        sa.select(sa.and_(*_PAUSED_BY_SCHEDULER, *conditions))
        .where(trial.c.id == rung_entry.c.trial_id)
        .correlate(rung_entry)
        .scalar_subquery()
    )


_IS_PAUSED_BY_SCHEDULER = _is_paused_by_scheduler()
"""
True if the trial of an entry is PAUSED by the scheduler. This is a subquery, not a join, because
PostgreSQL would begin the join at the trials, and read all entries of a rung to find one entry.
"""

IS_TO_GIVE_UP = (
    rung_entry.c.waiting,
    _IS_NOT_KEPT,
    *_PAUSED_BY_SCHEDULER,
)
"""
Conditions on an entry: its trial waits at a closed rung that has not kept it, and is PAUSED by the
scheduler.
"""

IN_ORDER = (rung_entry.c.score, rung_entry.c.ordinal)
"""
The order of the index of waiting entries. A query with a LIMIT but without an order would use the
primary key on PostgreSQL, and read all entries of the rung if none meets the query's conditions.
"""

_any_waiting = (
    sa.select(rung_entry.c.trial_id)
    .where(_ENTRIES, rung_entry.c.waiting)
    .order_by(*IN_ORDER)
    .limit(1)
    .correlate(rung)
)
"""LIMIT instead of EXISTS: PostgreSQL would plan EXISTS as a hash of all waiting entries."""

NONE_WAITS = _any_waiting.scalar_subquery().is_(None)
"""True if no trial waits at the rung."""

ANY_TO_GIVE_UP = (
    sa.select(rung_entry.c.trial_id)
    .where(
        _ENTRIES,
        rung.c.closed_at.is_not(None),
        rung_entry.c.waiting,
        _IS_NOT_KEPT,
        _IS_PAUSED_BY_SCHEDULER,
    )
    .order_by(*IN_ORDER)
    .limit(1)
    .correlate(rung)
    .scalar_subquery()
    .is_not(None)
)
"""True if at least one trial is to be given up at the rung."""


def _best_waiting(column: sa.Column[Any], is_paused: sa.ColumnElement[Any]) -> sa.ScalarSelect[Any]:
    return (
        sa.select(column)
        .where(_ENTRIES, rung_entry.c.waiting, IS_KEPT, is_paused)
        .order_by(*IN_ORDER)
        .limit(1)
        .correlate(rung)
        .scalar_subquery()
    )


_FITS = is_listed(trial.c.resource_class, "fitting")
_rung_columns = (
    rung.c.bracket,
    rung.c.step,
    rung.c.quantile,
    rung.c.n_entries,
    rung.c.n_ranked,
    rung.c.closed_at,
    rung.c.closed_cutoff,
    rung.c.closed_ordinal,
    rung.c.cut_rank,
    rung.c.cut_score,
    rung.c.cut_trial_id,
    ANY_TO_GIVE_UP.label("any_to_give_up"),
    _any_waiting.where(rung.c.closed_at.is_not(None)).scalar_subquery().label("waiting_id"),
    BETTER_THAN_CUT.label("better"),
)


def _rungs_with_best(is_paused: sa.ColumnElement[Any]) -> tuple[Prepared, Prepared]:
    """
    Make two statements: one reads all rungs that are not over, the other reads one rung.

    A closed rung is marked as over when no trial waits there any more.
    """
    rungs = sa.select(
        *_rung_columns,
        _best_waiting(rung_entry.c.trial_id, is_paused).label("best_id"),
        _best_waiting(rung_entry.c.score, is_paused).label("best_score"),
    ).where(rung.c.study_id == _STUDY)
    of_key = (rung.c.bracket == sa.bindparam("of_bracket"), rung.c.step == sa.bindparam("at_step"))
    return Prepared(rungs.where(~rung.c.is_over)), Prepared(rungs.where(*of_key))


_QUEUES, _ONE_RUNG = _rungs_with_best(_IS_PAUSED_BY_SCHEDULER)
_FITTING_QUEUES, _ONE_FITTING_RUNG = _rungs_with_best(_is_paused_by_scheduler(_FITS))
"""In these two statements, a rung's best waiting trial is the best that the worker can start."""

_IS_UNDERWAY = (
    in_state(State.RUNNING),
    sa.and_(in_state(State.PENDING), ~trial.c.ready),
    PAUSED_BY_STUDY,
)
"""
A trial that meets one of these conditions is underway. PENDING trials that are ready are left out:
the caller has checked that none of them fits the worker, and `_UNDERWAY_ELSEWHERE` reads those that
would fit a live worker. So about as many trials are read here as there are running trials, however
many trials were enqueued.
"""
_UNDERWAY = Prepared(
    sa.union_all(
        *(
            sa.select(trial.c.bracket, sa.func.coalesce(trial.c.last_step, 0).label("step")).where(
                trial.c.study_id == _STUDY, condition
            )
            for condition in _IS_UNDERWAY
        )
    )
)

_FITS_ELSEWHERE = is_listed(trial.c.resource_class, "elsewhere")
_ready_elsewhere = (
    sa.select(trial.c.bracket, sa.func.coalesce(trial.c.last_step, 0).label("step"))
    .where(trial.c.study_id == _STUDY, in_state(State.PENDING), trial.c.ready, _FITS_ELSEWHERE)
    .order_by(trial.c.resource_class, trial.c.priority, trial.c.number)
    .limit(sa.bindparam("most", type_=sa.BigInteger))
    .subquery()
)
_UNDERWAY_ELSEWHERE = Prepared(
    sa.union_all(
        sa.select(_ready_elsewhere, sa.func.count().label("n")).group_by(*_ready_elsewhere.c),
        sa.select(rung.c.bracket, rung.c.step, sa.literal_column("1").label("n")).where(
            rung.c.study_id == _STUDY,
            ~rung.c.is_over,
            rung.c.closed_at.is_not(None),
            _best_waiting(rung_entry.c.trial_id, _is_paused_by_scheduler(_FITS_ELSEWHERE)).is_not(
                None
            ),
        ),
    )
)
"""
Reads trials that this worker cannot start now, but that would fit a live worker if nothing ran on
it: at most `most` PENDING trials, and one trial of each closed rung that has kept such trials. A
later rung must not close before these trials have reached it; one trial is enough to keep it open.
The PENDING trials are read in the order of the index `trial_claim`, which has only PENDING trials.
Without an order, PostgreSQL would not use this index, and would read trials of all states.
"""

MOST_ELSEWHERE = 1000
"""
How many trials that this worker cannot start now are taken into account, over all classes: as many
as `set_aside.MOST` allows in one class. With 64 classes of 1,000 trials, to read 1,000 trials takes
1.7 ms on PostgreSQL and 1.9 ms on SQLite; to read all 64,000 takes 120 ms and 180 ms.

If there are more, some may not be read, and these may belong to any bracket. So every bracket is
treated as if it had one more trial, at step 0; no rung then closes too early. The unread trials
will be claimed by workers that they fit, so a rung waits only while those workers are busy.
"""

_rung = (
    sa.select(rung.c.id)
    .where(
        rung.c.study_id == _STUDY,
        rung.c.bracket == sa.bindparam("of_bracket"),
        rung.c.step == sa.bindparam("at_step"),
    )
    .scalar_subquery()
)
IS_WAITING = sa.func.coalesce(rung_entry.c.waiting, sa.false())
"""
True if the trial of an entry waits at the rung. COALESCE keeps the planner from using the index
`rung_entry_waiting`, so the planner finds an entry by its key.
"""

_OF_TRIAL = (rung_entry.c.trial_id == sa.bindparam("trial"), IS_WAITING)


def _promoting(*conditions: sa.ColumnElement[bool]) -> Prepared:
    return Prepared(
        sa.update(trial)
        .where(
            trial.c.id == sa.bindparam("trial"),
            *_PAUSED_BY_SCHEDULER,
            sa.exists().where(rung_entry.c.rung_id == _rung, *_OF_TRIAL),
            sa.exists().where(study.c.id == _STUDY, study.c.status == Status.RUNNING, HAS_ROOM),
            *conditions,
        )
        .values(state=State.PENDING, ready=True, ready_at=None, paused_by=None)
        .returning(trial.c.id)
    )


_PROMOTE = _promoting(NOTHING_WAITS)
_PROMOTE_FITTING = _promoting(NOTHING_FITTING_WAITS, _FITS)
_MARK_PROMOTED = Prepared(
    sa.update(rung_entry)
    .where(rung_entry.c.rung_id == _rung, rung_entry.c.trial_id == sa.bindparam("trial"))
    .values(waiting=False, promoted_at=now())
)

_of_study = sa.select(rung.c.id).where(rung.c.study_id == _STUDY)
_ENTRIES_OF_TRIAL = (rung_entry.c.rung_id.in_(_of_study), *_OF_TRIAL)
_LEAVE = Prepared(sa.update(rung_entry).where(*_ENTRIES_OF_TRIAL).values(waiting=False))
_WAITS = Prepared(sa.select(rung_entry.c.rung_id).where(*_ENTRIES_OF_TRIAL).limit(1))


_NO_RUNG = RungView(n=0, cutoff=None)


class Queues:
    """
    Implements `QueueView`: the rungs of a study, and the best trial that waits at each rung.

    Rungs that are over, the budget, the spending and the trials that are underway are read when the
    scheduler asks for them, in the same snapshot.

    Attributes:
        has_trials_to_give_up: Whether closed rungs still have work for `give_up`: trials to end, or
            a rung to mark as over.
    """

    def __init__(
        self,
        txn: Txn,
        *,
        study_id: int,
        is_limited: bool = False,
        fits: Sequence[str] | None = None,
    ) -> None:
        """
        Read the rungs that are not over, each with its best waiting trial, without locks.

        Args:
            is_limited: Whether the study has limits, so that `spent` must be read.
            fits: The resource classes whose trials the worker can start; None for all classes.
        """
        self._txn, self._study_id, self._fits = txn, study_id, fits
        self._budget: Budget | None = None
        self._spent: float | None = None if is_limited else 0.0
        self._underway: Underway | None = None
        if fits is None:
            rows = txn.all(_QUEUES, study=study_id)
        else:
            rows = txn.all(_FITTING_QUEUES, study=study_id, fitting=fits)
        self._rows = {RungKey(row.bracket, row.step): row for row in rows}
        self._others: dict[RungKey, Any] = {}
        self.has_trials_to_give_up = any(_has_trials_to_give_up(row) for row in rows)

    # No cached_property: up to Python 3.11 its lock makes all threads wait for one thread's read.
    def _read_budget(self) -> Budget:
        if self._budget is None:
            self._budget = studies.budget(self._txn, study_id=self._study_id)
        return self._budget

    @property
    def next_draw(self) -> int:
        return self._read_budget().next_draw

    @property
    def may_start(self) -> bool:
        return not self._read_budget().is_spent

    @property
    def spent(self) -> float:
        if self._spent is None:
            limited = spending.read(self._txn, study_id=self._study_id)
            spent = Spending()
            if limited.limits.count_spending:
                spent = counters.spent(self._txn, study_id=self._study_id)
            self._spent = limited.limits.share(spent, age_s=limited.age_s)
        return self._spent

    def rungs(self) -> Sequence[RungKey]:
        """Return the rungs that have entries and are not over, in ascending order."""
        return sorted(key for key, row in self._rows.items() if row.n_entries)

    def rung(self, key: RungKey) -> RungView:
        """Return a rung; if it is over, read it first. A rung that has no row is empty."""
        row = self._rows.get(key) or self._read_other(key)
        if row is None:
            return _NO_RUNG
        entry = None if row.cut_trial_id is None else (row.cut_score, row.cut_trial_id)
        cut = Cut(n=row.n_ranked, rank=row.cut_rank, entry=entry)
        return RungView(
            n=cut.n,
            cutoff=exact_cutoff(cut, row.better, row.quantile),
            n_entries=row.n_entries,
            is_closed=row.closed_at is not None,
            closed_cutoff=None if row.closed_ordinal == NONE_KEPT else row.closed_cutoff,
        )

    def _read_other(self, key: RungKey) -> Any:
        if key not in self._others:
            binds = {"study": self._study_id, "of_bracket": key.bracket, "at_step": key.step}
            if self._fits is None:
                self._others[key] = self._txn.first(_ONE_RUNG, **binds)
            else:
                self._others[key] = self._txn.first(_ONE_FITTING_RUNG, fitting=self._fits, **binds)
        return self._others[key]

    def best_waiting(self, key: RungKey) -> WaitingTrial | None:
        """Return the best trial that waits at a rung, may be resumed, and fits the worker."""
        row = self._rows.get(key)
        if row is None or row.best_id is None:
            return None
        return WaitingTrial(key, row.best_id, row.best_score)

    def underway(self, bracket: int) -> Sequence[int]:
        """
        Return the last steps of a bracket's trials that are underway; see `QueueView.underway`.

        Raises:
            TrialCanBeClaimed: A trial of any bracket is PENDING and ready, and fits the worker.
        """
        if self._underway is None:
            if claims.any_runnable(self._txn, study_id=self._study_id, fits=self._fits):
                raise TrialCanBeClaimed
            self._underway = underway(self._txn, study_id=self._study_id, fits=self._fits)
        return self._underway.of(bracket)


def _has_trials_to_give_up(row: Any) -> bool:
    """Tell whether `give_up` has something to do at a rung."""
    return row.closed_at is not None and (row.any_to_give_up or row.waiting_id is None)


@dataclass(slots=True)
class Underway:
    """
    The trials that are underway.

    Attributes:
        steps: Their last steps, by bracket.
        is_crowded: Whether more than `MOST_ELSEWHERE` trials wait for other workers. Then some may
            not have been read, and these may belong to any bracket.
    """

    steps: Mapping[int, list[int]]
    is_crowded: bool = False

    def of(self, bracket: int) -> Sequence[int]:
        """Return the last steps of a bracket's trials; if `is_crowded`, also a step 0."""
        found = self.steps.get(bracket, [])
        return [0, *found] if self.is_crowded else found


def underway(txn: Txn, *, study_id: int, fits: Sequence[str] | None = None) -> Underway:
    """
    Read the last steps of trials that run, are in back-off, or are PAUSED with the study.

    With `fits`, also read the trials that do not fit the worker now, but would fit a live worker if
    nothing ran on it; see `_UNDERWAY_ELSEWHERE`. PENDING trials that are ready and fit the worker
    are not read: the caller has seen that there are none. A ready trial that would fit no live
    worker is not underway: no process can tell when it will run.
    """
    found: dict[int, list[int]] = defaultdict(list)
    for row in txn.all(_UNDERWAY, study=study_id):
        found[row.bracket].append(row.step)
    elsewhere = None if fits is None else _elsewhere(txn, study_id, fits)
    if not elsewhere:
        return Underway(found)
    for row in elsewhere:
        found[row.bracket] += [row.step] * row.n
    return Underway(found, is_crowded=sum(row.n for row in elsewhere) > MOST_ELSEWHERE)


def _elsewhere(txn: Txn, study_id: int, fits: Sequence[str]) -> Sequence[Any]:
    classes = resource_classes.fitting_elsewhere(txn, study_id=study_id, fits=fits)
    if not classes:
        return ()
    most = MOST_ELSEWHERE + 1
    return txn.all(_UNDERWAY_ELSEWHERE, study=study_id, elsewhere=classes, most=most)


def promote(
    txn: Txn, *, study_id: int, chosen: WaitingTrial, fits: Sequence[str] | None = None
) -> bool:
    """
    Move a waiting trial to PENDING.

    The trial's entry at the rung gets the time of the promotion, and its column `waiting` becomes
    false.

    Args:
        fits: The resource classes whose trials the worker can start; None in a study without
            classes.

    Returns:
        False if the trial does not wait at the rung any more or does not fit, a person has paused
        it, another trial that fits can be claimed, the study is not RUNNING, or `max_concurrent`
        trials run.
    """
    binds = {
        "study": study_id,
        "trial": chosen.trial_id,
        "of_bracket": chosen.rung.bracket,
        "at_step": chosen.rung.step,
    }
    if fits is None:
        is_promoted = txn.count(_PROMOTE, **binds) > 0
    else:
        is_promoted = txn.count(_PROMOTE_FITTING, fitting=fits, **binds) > 0
    if not is_promoted:
        return False
    txn.run(_MARK_PROMOTED, **binds)
    return True


def waits(txn: Txn, *, study_id: int, trial_id: int) -> bool:
    """Tell whether a trial waits at a rung, also if a person has paused it there."""
    return txn.first(_WAITS, study=study_id, trial=trial_id) is not None


def leave_rungs(txn: Txn, *, study_id: int, trial_id: int) -> None:
    """Record that a trial waits at no rung: it has ended, or a person has made it PENDING."""
    txn.run(_LEAVE, study=study_id, trial=trial_id)
