"""
Invalidate trials whose values are wrong, or undo their invalidation.

An invalidated trial keeps its rows. It is left out of the best trials, the frames and the ranking
of its rungs, and searchers do not see its values. Decisions that were based on its values stand,
and closed rungs do not open again. Rules that stop the whole study compare stored best values.
These values are deleted, because no row says from which trial a value came.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

from msgspec import Struct, structs

from studydb.db import Database, Txn
from studydb.domain.errors import NotAllowed
from studydb.domain.life.event_kinds import EventKind
from studydb.domain.life.states import FINAL, Reason, State
from studydb.domain.records import Request, Study, TrialRow
from studydb.operations import summing
from studydb.operations.reads import find_trial
from studydb.operations.rung_locks import lock_with_rungs, try_until_locked
from studydb.store import (
    clones,
    counters,
    events,
    notes,
    pins,
    promotions,
    rung_ranks,
    spending,
    trials,
)

MOST = 100
"""The most trials that one transaction invalidates."""

UNDONE = "Invalidation undone."
"""The note on a trial whose invalidation is undone, if no reason is given."""


def invalidate(
    database: Database,
    study: Study,
    numbers: Sequence[int],
    request: Request,
    *,
    reason: str = "",
    undo: bool = False,
) -> None:
    """
    Invalidate trials, or undo their invalidation, up to 100 in a transaction.

    A PENDING or PAUSED trial ends now, and a RUNNING trial at its next flush or renewal. Undoing
    does not start an ended trial again; a RUNNING trial that was to end goes on. A transaction that
    raises an error changes nothing; the changes of earlier transactions remain.

    Args:
        reason: The reason in the note that each trial gets.

    Raises:
        UnknownTrial: No such trial.
        NotAllowed: `undo` is set, and one of the trials is not invalidated.
        StorageBusy: See `try_until_locked`.
    """
    ordered = sorted(set(numbers))
    for first in range(0, len(ordered), MOST):
        part = structs.replace(request, token=f"{request.token}.{first}") if first else request
        some = ordered[first : first + MOST]
        change = _Change(study=study, request=part, numbers=some, reason=reason, undo=undo)
        try_until_locked(partial(change.run, database))
        for number in some if not undo else ():
            trial = find_trial(database, study, number)
            if trial.state in FINAL:
                summing.after_end(database, study, trial_id=trial.id)


class _Change(Struct, frozen=True, kw_only=True):
    """One transaction of an invalidation or its undoing."""

    study: Study
    request: Request
    numbers: Sequence[int]
    reason: str
    undo: bool

    def run(self, database: Database) -> bool | None:
        """Change the trials, and return True; return None if their rungs must be locked again."""
        study, request = self.study, self.request
        with database.begin() as txn:
            found = lock_with_rungs(txn, study, self.numbers)
            is_duplicate = bool(events.data_of(txn, token=request.token))
            if found is None or is_duplicate:
                txn.abandon()
                return is_duplicate or None

            locked, rungs = found
            kind = EventKind.REINSTATED if self.undo else EventKind.INVALIDATED
            data: dict[str, Any] = {"numbers": list(self.numbers), "reason": self.reason}
            events.append_request(txn, study_id=study.id, kind=kind, request=request, data=data)
            if self.undo:
                ranked = [trial.id for trial in locked if self._reinstate(txn, trial)]
                rung_ranks.rank(txn, rungs=rungs, trial_ids=ranked)
            else:
                for trial in locked:
                    trials.invalidate(txn, trial_id=trial.id)
                    self._note(txn, trial, f"Invalidated: {self.reason}")
                rung_ranks.unrank(txn, rungs=rungs, trial_ids=[trial.id for trial in locked])
                self._end_waiting(txn, locked)
        return True

    def _end_waiting(self, txn: Txn, locked: Sequence[TrialRow]) -> None:
        """
        End the PENDING and PAUSED trials.

        If any trial of `locked` has results, also delete the best values that the rules for the
        whole study compare. These rules then compare only results that are stored from now on.
        """
        ended = [trial for trial in locked if trial.state in (State.PENDING, State.PAUSED)]
        for trial in ended:
            trials.move(txn, trial_id=trial.id, target=State.TERMINATED, reason=Reason.INVALIDATED)
            if trial.state is State.PAUSED and self.study.scheduler.resumes:
                promotions.leave_rungs(txn, study_id=self.study.id, trial_id=trial.id)
        if ended:
            pins.release(txn, trial_ids=[trial.id for trial in ended])
        if self.study.stops_by_rule and any(trial.summary.n_results for trial in locked):
            spending.forget_best(txn, study_id=self.study.id)  # lock order: before the counters
        for state in (State.PENDING, State.PAUSED):
            n = sum(trial.state is state for trial in ended)
            if n:
                counters.move(
                    txn,
                    study_id=self.study.id,
                    key=0,
                    out_of=state,
                    into=State.TERMINATED,
                    n=n,
                )

    def _reinstate(self, txn: Txn, trial: TrialRow) -> bool:
        """Undo an invalidation; True if the trial has no clone, so that its entries can rank."""
        if trial.invalidated_at is None:
            raise NotAllowed(
                f"Trial {trial.number} of {self.study.name!r} is not invalidated; there is nothing "
                "to undo."
            )
        trials.reinstate(txn, trial_id=trial.id, rank_score=trial.summary.rank_score)
        self._note(txn, trial, self.reason or UNDONE)
        return not clones.of_trial(txn, study_id=self.study.id, trial_id=trial.id)

    def _note(self, txn: Txn, trial: TrialRow, text: str) -> None:
        notes.insert(
            txn,
            study_id=self.study.id,
            trial_id=trial.id,
            author=self.request.actor,
            text=text,
        )
