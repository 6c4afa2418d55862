"""
Best trials, frames and open rungs leave out invalidated trials until an undo.

Until the undo, searchers do not see the values of these trials. An invalidation of a trial that
has not ended also ends the trial.
"""

import math

import pytest
from harness.arrange import (
    SimulatedWorker,
    enqueued,
    new_request,
    new_study,
    rows,
    trial_in,
    trial_of,
    unchanged_rows,
)

from studydb.analysis.frames import results_dataframe, trials_dataframe
from studydb.domain.errors import NotAllowed, UnknownTrial
from studydb.domain.life.decisions import Action, DecidedBy, RungKey, Verdict
from studydb.domain.life.states import Reason, State, Status
from studydb.lease.trial_history import History
from studydb.operations import control
from studydb.operations.invalidate import invalidate
from studydb.operations.reads import best_trials
from studydb.operations.renew import is_requested
from studydb.operations.retry import retry
from studydb.schedulers import ASHA
from studydb.store import counters, ranking, rungs

STOP = Verdict(Action.STOP, Reason.INVALIDATED, DecidedBy.PERSON)


@pytest.fixture
def study(database):
    """A study of three ended trials; the first is the best."""
    study = new_study(database)
    worker = SimulatedWorker(database, study)
    for value in (0.1, 0.5, 0.9):
        worker.take().finish(value)
    return study


def spoil(database, study, *numbers):
    invalidate(database, study, numbers, new_request(), reason="wrong labels")


def undo(database, study, *numbers):
    invalidate(database, study, numbers, new_request(), undo=True)


def best(database, study):
    return [trial.number for trial in best_trials(database, study, limit=9)]


# --- best trials, frames and searchers


def test_invalidated_trial_is_not_best_until_undone(database, study):
    spoil(database, study, 0)
    assert best(database, study) == [1, 2]
    with database.begin(write=False) as txn:
        assert ranking.numbers(txn, study_id=study.id) == [1, 2, 0]

    undo(database, study, 0)

    assert best(database, study) == [0, 1, 2]
    assert trial_of(database, study, 0).invalidated_at is None


def test_frames_leave_out_invalidated_trials_unless_they_are_asked_for(database, study):
    spoil(database, study, 0)

    assert list(trials_dataframe(database, study).number) == [1, 2]
    assert list(results_dataframe(database, study).number) == [1, 2]
    whole = trials_dataframe(database, study, invalidated=True)
    assert list(whole.invalidated_at.isna()) == [False, True, True]
    assert list(results_dataframe(database, study, invalidated=True).number) == [0, 1, 2]
    shown = rows(database, "SELECT number FROM v_trial WHERE invalidated_at IS NOT NULL")
    assert shown == [(0,)]


def test_frames_of_a_study_whose_trials_are_all_invalidated_are_empty(database, study):
    spoil(database, study, 0, 1, 2)

    assert len(trials_dataframe(database, study)) == len(results_dataframe(database, study)) == 0


def test_searcher_does_not_see_an_invalidated_trial_until_undone(database, study):
    history = History(database, study)
    assert [one.values for one in history.changes()] == [(0.1,), (0.5,), (0.9,)]

    spoil(database, study, 1)
    (told,) = history.changes()
    assert (told.number, told.values, told.reason) == (1, None, Reason.INVALIDATED)
    fresh = History(database, study).changes()
    assert [one.values for one in fresh] == [(0.1,), None, (0.9,)]

    undo(database, study, 1)
    (told,) = history.changes()
    assert (told.number, told.values, told.reason) == (1, (0.5,), Reason.COMPLETED)


def test_parent_of_a_clone_stays_hidden_from_the_searcher_even_after_an_undo(database, study):
    history = History(database, study)
    retry(database, study, [0], new_request(), from_scratch=True)
    history.changes()

    spoil(database, study, 0)
    undo(database, study, 0)

    assert all(one.values is None for one in history.changes() if one.number == 0)
    assert next(one.values for one in History(database, study).changes()) is None


# --- rungs


def rung_of(database, study, step=1):
    with database.begin() as txn:
        return rungs.lock(txn, study_id=study.id, key=RungKey(0, step))


@pytest.fixture
def asha(database):
    """A study in which trials with the values 0.1, 0.5, 0.9, 0.3 have ended at a rung."""
    study = new_study(database, scheduler=ASHA(max_t=9, reduction_factor=3))
    worker = SimulatedWorker(database, study)
    for value in (0.1, 0.5, 0.9, 0.3):
        worker.take().finish(value)
    return study


def test_entries_leave_the_ranking_of_an_open_rung_and_the_cutoff_moves(database, asha):
    before = rung_of(database, asha)
    assert (before.cut.n, before.cut.entry[0]) == (4, 0.3)

    spoil(database, asha, 0, 3)
    after = rung_of(database, asha)
    assert (after.cut.n, after.cut.rank, after.cut.entry[0]) == (2, 0, 0.9)
    assert after.n_entries == 4

    undo(database, asha, 3, 0)
    assert rung_of(database, asha) == before


def test_all_entries_can_leave_a_rung_and_come_back(database, asha):
    before = rung_of(database, asha)
    spoil(database, asha, 0, 1, 2, 3)
    assert rung_of(database, asha).cut.entry is None
    SimulatedWorker(database, asha).take().report(0.7)

    undo(database, asha, 0, 1, 2, 3)

    assert rung_of(database, asha).cut.n == before.cut.n + 1


def test_nan_does_not_rank_after_undo(database):
    study = new_study(database, scheduler=ASHA(max_t=9, reduction_factor=3))
    for value in (0.5, math.nan):
        SimulatedWorker(database, study).take().finish(value)
    spoil(database, study, 0, 1)

    undo(database, study, 0, 1)

    assert rung_of(database, study).cut.n == 1
    assert best(database, study) == [0]


def test_undo_does_not_rank_a_trial_that_was_run_again(database, asha):
    retry(database, asha, [0], new_request(), from_scratch=True)
    spoil(database, asha, 0)

    undo(database, asha, 0)

    assert rung_of(database, asha).cut.n == 3


def test_closed_rung_keeps_its_cutoff(database, asha):
    with database.begin() as txn:
        txn.raw(
            "UPDATE rung SET closed_at = (SELECT max(created_at) FROM trial), closed_cutoff = 0.3"
        )

    spoil(database, asha, 0)

    rung = rung_of(database, asha)
    assert (rung.is_closed, rung.closed_cutoff) == (True, 0.3)


# --- trials that have not ended


@pytest.mark.parametrize("state", [State.PENDING, State.PAUSED])
def test_invalidated_pending_or_paused_trial_ends_at_once(database, study, state):
    number = trial_in(database, study, state).number

    spoil(database, study, number)

    trial = trial_of(database, study, number)
    assert (trial.state, trial.reason) == (State.TERMINATED, Reason.INVALIDATED)
    with database.begin(write=False) as txn:
        counted = counters.read(txn, study_id=study.id)
    assert (counted.pending, counted.paused, counted.terminated) == (0, 0, 4)


def flush(run):
    return run.report(0.01).verdict


def renew(run):
    return run.worker.renew(run).held[run.lease.token]


@pytest.mark.parametrize("receive", [flush, renew])
def test_running_trial_is_stopped_with_the_reason_invalidated(database, study, receive):
    run = SimulatedWorker(database, study).take()
    run.report(0.05)
    spoil(database, study, run.lease.number)
    assert best(database, study) == [0, 1, 2]

    assert receive(run) == STOP
    run.finish(outcome=Reason.PREEMPTED)

    trial = run.trial()
    assert (trial.state, trial.reason) == (State.TERMINATED, Reason.INVALIDATED)
    assert best(database, study) == [0, 1, 2]
    undo(database, study, trial.number)
    assert best(database, study)[0] == trial.number


def test_results_of_an_invalidated_trial_are_stored_but_enter_no_rung(database, asha):
    run = SimulatedWorker(database, asha).take()
    spoil(database, asha, run.lease.number)

    assert run.report(0.01).verdict == STOP

    assert run.trial().summary.n_results == 1
    assert rung_of(database, asha).n_entries == 4


def test_completion_of_an_invalidated_trial_does_not_rank_it(database, study):
    run = SimulatedWorker(database, study).take()
    spoil(database, study, run.lease.number)

    run.finish(0.01)

    assert run.trial().reason is Reason.COMPLETED
    assert best(database, study) == [0, 1, 2]


def test_undo_before_the_trial_has_stopped_lets_it_go_on(database, study):
    run = SimulatedWorker(database, study).take()
    spoil(database, study, run.lease.number)
    assert renew(run) == STOP

    undo(database, study, run.lease.number)

    assert renew(run) is None
    run.finish(0.01)
    assert best(database, study) == [3, 0, 1, 2]


def test_undo_withdraws_an_earlier_request_for_an_immediate_stop(database, study):
    run = SimulatedWorker(database, study).take()
    control.stop(database, study, [run.lease.number], new_request(), now=True)
    spoil(database, study, run.lease.number)

    undo(database, study, run.lease.number)

    assert renew(run) is None
    assert not is_requested(database, held=[run.lease], worker_id=run.worker.id)
    control.set_status(database, study, Status.STOPPED, new_request())
    assert not renew(run).at_once


@pytest.mark.parametrize("request_", [control.pause, control.resume])
def test_invalidated_running_trial_cannot_be_paused_or_resumed(database, study, request_):
    run = SimulatedWorker(database, study).take()
    spoil(database, study, run.lease.number)

    with unchanged_rows(database), pytest.raises(NotAllowed, match="is invalidated"):
        request_(database, study, [run.lease.number], new_request())
    control.stop(database, study, [run.lease.number], new_request())
    assert renew(run) == STOP


# --- requests


def test_request_for_an_unknown_trial_and_undo_for_a_valid_trial_change_no_trial(database, study):
    with unchanged_rows(database), pytest.raises(UnknownTrial):
        spoil(database, study, 0, 17)
    spoil(database, study, 0)
    with unchanged_rows(database), pytest.raises(NotAllowed, match="is not invalidated"):
        undo(database, study, 0, 1)


def test_late_duplicate_of_an_invalidation_does_not_reverse_its_undo(database, study):
    first = new_request()
    invalidate(database, study, [0], first, reason="wrong labels")
    undo(database, study, 0)

    with unchanged_rows(database):
        invalidate(database, study, [0], first, reason="wrong labels")


def test_reason_is_a_note_of_the_trial(database, study):
    spoil(database, study, 0)
    undo(database, study, 0)

    noted = rows(database, "SELECT author, text FROM note ORDER BY id")
    assert noted == [
        ("ada@laptop", "Invalidated: wrong labels"),
        ("ada@laptop", "Invalidation undone."),
    ]


def test_many_trials_are_invalidated_in_several_transactions(database, study, monkeypatch):
    monkeypatch.setattr("studydb.operations.invalidate.MOST", 2)
    enqueued(database, study)

    spoil(database, study, *range(4))

    assert ranked(database, study) == []
    kinds = rows(database, "SELECT count(*) FROM event WHERE kind = 'invalidated'")
    assert kinds == [(2,)]


def ranked(database, study):
    with database.begin(write=False) as txn:
        return ranking.best(txn, study_id=study.id)
