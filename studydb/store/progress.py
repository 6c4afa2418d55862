"""Read a study's signs, which processes poll, and its progress: budget, counts, waiting trials."""

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from msgspec import Struct

from studydb.db import Prepared, Txn
from studydb.db.dialect import is_listed
from studydb.db.schema import PAUSED_BY_STUDY, in_state, study, trial
from studydb.domain.life.states import State
from studydb.domain.records import Counts
from studydb.store import counters, studies, sweeps, workers
from studydb.store.claims import ANY_RUNNABLE, NOTHING_FITTING_WAITS
from studydb.store.proposals import NEXT_CLASS
from studydb.store.set_aside import FIRST_WAITING, N_WAITING
from studydb.store.studies import Budget

_counts = counters.SUMS.subquery("counts")
_OF_STUDY = trial.c.study_id == sa.bindparam("study")

_paused_with_study = sa.select(trial.c.id).where(_OF_STUDY, PAUSED_BY_STUDY).limit(1)
_running = sa.select(trial.c.id).where(_OF_STUDY, in_state(State.RUNNING)).limit(1)


def _signs(has_runnable: sa.ColumnElement[bool], *more: sa.ColumnElement[Any]) -> Prepared:
    return Prepared(
        sa.select(
            *more,
            study.c.status,
            study.c.paused_by,
            studies.HAS_BUDGET.label("open"),
            studies.IS_SPENT.label("spent"),
            studies.HAS_ROOM.label("has_room"),
            has_runnable.label("has_runnable"),
            sweeps.HAS_WAITED.label("has_waited"),
            _running.scalar_subquery().is_not(None).label("has_running"),
            workers.REQUEST.label("request"),
        ).where(studies.THIS)
    )


def _progress(has_runnable: sa.ColumnElement[bool], *more: sa.ColumnElement[Any]) -> Prepared:
    return Prepared(
        sa.select(
            *more,
            *studies.BUDGET,
            *_counts.c,
            has_runnable.label("has_runnable"),
            sweeps.HAS_WAITED.label("has_waited"),
            _paused_with_study.scalar_subquery().is_not(None).label("is_resuming"),
        )
        .select_from(study)
        .join(_counts, sa.true())
        .where(studies.THIS)
    )


_ANY_RUNNABLE = ANY_RUNNABLE.scalar_subquery().is_not(None)
_SIGNS, _PROGRESS = _signs(_ANY_RUNNABLE), _progress(_ANY_RUNNABLE)
_FITTING_WAITS = sa.not_(NOTHING_FITTING_WAITS)
_next_class = NEXT_CLASS.label("next_class")
# CASE evaluates in order, so nothing is counted if the next trial fits.
_n_waiting = sa.case((is_listed(NEXT_CLASS, "fitting"), 0), else_=N_WAITING)
_SIGNS_OF_FITTING = {
    False: _signs(_FITTING_WAITS),
    True: _signs(_FITTING_WAITS, _next_class, FIRST_WAITING.label("first_waiting")),
}
_PROGRESS_OF_FITTING = {
    False: _progress(_FITTING_WAITS),
    True: _progress(_FITTING_WAITS, _next_class, _n_waiting.label("n_waiting")),
}
"""The statements for a reader that gives `fits`. A key says whether `next_class` is read, too."""


class Progress(Struct, frozen=True):
    """
    A study's budget and counts, as one statement sees them.

    Attributes:
        has_runnable: Whether a PENDING trial of a class that fits is ready (not in back-off). The
            study's status does not matter.
        has_waited: Whether a PENDING trial's back-off is over, so that a sweep makes it runnable.
        is_resuming: Whether trials are still PAUSED because the study was paused.
        next_class: The resource class of the next draw's trial; None if the draw has no proposal
            yet, or if the class is not read.
        n_waiting: How many trials of `next_class` wait, up to `count_to`; 0 if this class fits, is
            not known or is not read.
    """

    budget: Budget
    counts: Counts
    has_runnable: bool
    has_waited: bool
    is_resuming: bool
    next_class: str | None = None
    n_waiting: int = 0


def read(
    txn: Txn, *, study_id: int, fits: Sequence[str] | None = None, count_to: int | None = None
) -> Progress:
    """
    Read a study's progress in one statement, so that no trial moves between two reads.

    Args:
        fits: The resource classes whose trials the reader can start now; None for all classes.
        count_to: The most waiting trials of `next_class` that are counted; None to read neither
            `next_class` nor `n_waiting`. Only with `fits`.

    Raises:
        UnknownStudy: The study was deleted.
    """
    has_next = fits is not None and count_to is not None
    if fits is None:
        found = txn.first(_PROGRESS, study=study_id)
    else:
        limit = {"most": count_to} if has_next else {}
        found = txn.first(_PROGRESS_OF_FITTING[has_next], study=study_id, fitting=fits, **limit)
    row = studies.existing(found)
    return Progress(
        budget=studies.budget_of(row),
        counts=Counts(*(int(getattr(row, column.key)) for column in _counts.c)),
        has_runnable=bool(row.has_runnable),
        has_waited=bool(row.has_waited),
        is_resuming=bool(row.is_resuming),
        next_class=row.next_class if has_next else None,
        n_waiting=row.n_waiting if has_next else 0,
    )


class Signs(Struct, frozen=True):
    """
    What a process reads at each look, that is, each time it polls a study.

    Attributes:
        of_study: The signs of the study. If they differ from those of the last look, the study's
            progress may have changed.
        request: What a person requests of the worker that looks.
    """

    of_study: tuple[Any, ...]
    request: str | None


def signs(
    txn: Txn,
    *,
    study_id: int,
    worker_id: int | None,
    fits: Sequence[str] | None = None,
    with_next: bool = False,
) -> Signs:
    """
    Read what shows whether a study's progress may have changed; the caller compares two reads.

    The signs are the study's status, who paused the study, whether its limits allow a trial,
    whether a trial runs, whether a PENDING trial is ready, whether PENDING trials are in back-off,
    and whether the first of these back-offs is over. The statement also reads what a person
    requests of the worker.

    Idle workers send the statement every 1.7 to 1.9 s. It reads the study's row, the worker's row,
    and one entry of each of three indexes. To read the 32 rows of the counters, too, would take a
    third more of the server's time.

    Args:
        fits: See `read`. Which classes fit is a sign, too: more classes fit when a trial of this
            worker has ended.
        with_next: Whether two more values are signs: the resource class of the next draw's trial,
            and the number of the first trial of this class that waits. Only with `fits`.

    Raises:
        UnknownStudy: The study was deleted.
    """
    binds = {"study": study_id, "worker": worker_id}
    if fits is None:
        *of_study, request = studies.existing(txn.first(_SIGNS, **binds))
        return Signs(tuple(of_study), request)
    found = txn.first(_SIGNS_OF_FITTING[with_next], fitting=fits, **binds)
    *of_study, request = studies.existing(found)
    return Signs((*of_study, *fits), request)
