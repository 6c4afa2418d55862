"""Ended trials are run again as clones, from their newest checkpoint or from scratch."""

import pytest
from harness.arrange import (
    SimulatedWorker,
    enqueued,
    new_request,
    new_study,
    rows,
    run_together,
    states_of,
    trial_in,
    trial_of,
    unchanged_rows,
)

from studydb.domain.errors import NotAllowed, UnknownTrial
from studydb.domain.life.decisions import RungKey
from studydb.domain.life.selections import Selection
from studydb.domain.life.states import Origin, Reason, State, Status
from studydb.lease.trial_history import History
from studydb.operations import control
from studydb.operations.checkpoints import mark_corrupt
from studydb.operations.delete import stop_for_deletion
from studydb.operations.enqueue import enqueue
from studydb.operations.retry import retry, selected
from studydb.operations.start_checkpoints import FromTrial
from studydb.operations.study_progress import read_progress
from studydb.schedulers import ASHA
from studydb.store import checkpoints, rungs
from studydb.store import pins as pins_store


@pytest.fixture
def study(database):
    return new_study(database, num_trials=4)


@pytest.fixture
def failed(database, study):
    """The number of a trial in ERROR, whose newest checkpoint is of step 2."""
    enqueue(database, study, {"lr": 0.5}, new_request(), name="best", tags=["old", "a"])
    run = SimulatedWorker(database, study).take()
    for value in (0.9, 0.8):
        run.report(value)
        run.save()
    run.finish(0.7, outcome=Reason.FAILED)
    return 0


def again(database, study, *numbers, **options):
    return retry(database, study, numbers, new_request(), **options)


def pins(database):
    return rows(database, "SELECT step, pins FROM checkpoint WHERE pins <> 0")


@pytest.mark.row("A17", "B15")
def test_clone_has_the_params_and_tags_of_its_parent_and_begins_from_the_parents_newest_checkpoint(
    database, study, failed
):
    before = trial_of(database, study, failed)

    assert again(database, study, failed) == [1]

    clone = trial_of(database, study, 1)
    assert (clone.state, clone.origin, clone.parent) == (State.PENDING, Origin.CLONE, failed)
    assert (clone.params, clone.config) == (before.params, before.config)
    assert (clone.name, clone.tags) == (None, ("a", "old"))
    run = SimulatedWorker(database, study).claim()
    assert (run.lease.number, run.lease.attempt, run.claimed.checkpoint.step) == (1, 1, 2)
    assert run.claimed.tags == ("a", "old")
    assert run.claimed.checkpoint.trial_uuid == before.uuid
    run.finish(0.6)
    assert trial_of(database, study, 1).best_value == 0.6
    assert trial_of(database, study, failed) == before


def test_clone_is_refused_if_its_checkpoint_is_of_a_study_that_is_being_deleted(
    database, study, failed
):
    """The trial of `other` began from a checkpoint of `study`, and saved no checkpoint itself."""
    other = new_study(database)
    start = FromTrial(study.id, study.name, failed)
    enqueue(database, other, {}, new_request(), start=start)
    SimulatedWorker(database, other).take().finish(0.5)
    stop_for_deletion(database, study)

    with pytest.raises(NotAllowed, match=f"{study.name}' is being deleted.*studydb resume"):
        again(database, other, 0)
    scratch = again(database, other, 0, from_scratch=True)

    assert scratch == [1]
    assert rows(database, "SELECT count(*) FROM pin") == [(0,)]


def test_clone_from_scratch_has_no_checkpoint(database, study, failed):
    again(database, study, failed, from_scratch=True)

    assert SimulatedWorker(database, study).claim().claimed.checkpoint is None
    assert pins(database) == []


def test_clone_keeps_the_config_that_a_person_has_changed(database, study):
    number = trial_in(database, study, State.PAUSED).number
    control.resume(database, study, [number], new_request(), changes={"lr": 0.25})
    SimulatedWorker(database, study).claim().finish(0.4)

    again(database, study, number)

    assert trial_of(database, study, 1).changed == {"lr": 0.25}
    assert SimulatedWorker(database, study).claim().claimed.config["lr"] == 0.25


# --- budgets


def test_clones_do_not_count_for_num_trials_but_count_for_max_concurrent(database):
    study = new_study(database, num_trials=1, max_concurrent=1)
    worker = SimulatedWorker(database, study)
    worker.take().finish(0.5)
    assert read_progress(database, study).status is Status.FINISHED

    again(database, study, 0, from_scratch=True)

    assert read_progress(database, study).status is Status.RUNNING
    assert worker.ask() is None
    control.extend(database, study, new_request(), n_more=1)
    assert worker.claim() is not None
    assert worker.ask() is None
    counts = "SELECT next_number, n_counted, n_running FROM study"
    assert rows(database, counts) == [(2, 1, 1)]


# --- pins


def ends(outcome):
    return lambda database, study: (
        SimulatedWorker(database, study).claim().finish(0.4, outcome=outcome)
    )


def stop_pending(database, study):
    control.stop(database, study, [1], new_request())


ENDS = {"completed": ends(Reason.COMPLETED), "failed": ends(Reason.FAILED), "stopped": stop_pending}


@pytest.mark.parametrize("end", ENDS)
def test_source_checkpoint_is_pinned_until_the_clone_has_ended(database, study, failed, end):
    again(database, study, failed)
    assert pins(database) == [(2, 1)]
    SimulatedWorker(database, study).claim().finish(outcome=Reason.PREEMPTED)
    assert pins(database) == [(2, 1)]

    ENDS[end](database, study)

    assert trial_of(database, study, 1).ended_at is not None
    assert pins(database) == rows(database, "SELECT id FROM pin") == []


def test_clone_that_completes_in_its_first_attempt_releases_its_pin(database, study, failed):
    again(database, study, failed)

    SimulatedWorker(database, study).claim().finish(0.4)

    assert pins(database) == rows(database, "SELECT id FROM pin") == []


def test_clone_that_saves_its_own_checkpoints_does_not_remove_the_source(database, study, failed):
    again(database, study, failed)
    run = SimulatedWorker(database, study).claim()
    for value in (0.7, 0.6, 0.5):
        run.report(value)
        run.save()
    run.finish(outcome=Reason.PREEMPTED)

    assert SimulatedWorker(database, study).claim().claimed.checkpoint.step == 5
    kept = rows(database, "SELECT step FROM checkpoint WHERE removed_at IS NULL ORDER BY step")
    assert kept == [(1,), (2,), (4,), (5,)]


def test_clone_falls_back_to_the_source_and_then_to_the_checkpoint_before_it(
    database, study, failed
):
    again(database, study, failed)
    worker = SimulatedWorker(database, study)
    run = worker.claim()
    run.report(0.7)
    run.save()
    run.finish(outcome=Reason.PREEMPTED)

    run = worker.claim()
    source = mark_corrupt(database, lease=run.lease, checkpoint=run.claimed.checkpoint)
    assert (source.step, pins(database)) == (2, [(2, 1)])
    older = mark_corrupt(database, lease=run.lease, checkpoint=source)
    assert (older.step, pins(database)) == (1, [(1, 1)])
    with unchanged_rows(database):
        assert mark_corrupt(database, lease=run.lease, checkpoint=source) == older
    assert mark_corrupt(database, lease=run.lease, checkpoint=older) is None

    assert pins(database) == []
    run.finish(outcome=Reason.PREEMPTED)
    assert worker.claim().claimed.checkpoint is None


def test_clone_of_a_clone_begins_from_an_older_checkpoint_if_that_of_its_parent_is_corrupt(
    database, study, failed
):
    worker = SimulatedWorker(database, study)
    again(database, study, failed)
    first = worker.claim()
    mark_corrupt(database, lease=first.lease, checkpoint=first.claimed.checkpoint)
    assert rows(database, "SELECT checkpoint_id, reason FROM pin") == [(1, "clone")]
    first.finish(0.4, outcome=Reason.FAILED)
    with database.begin() as txn:  # as if trial 1 had not found the damage
        txn.raw("UPDATE trial SET checkpoint_id = 2, source_checkpoint_id = 2 WHERE number = 1")

    again(database, study, 1)

    assert worker.claim().claimed.checkpoint.step == 1
    assert pins(database) == [(1, 1)]


def test_clone_of_a_clone_without_checkpoints_begins_from_the_same_source(database, study, failed):
    again(database, study, failed)
    SimulatedWorker(database, study).claim().finish(0.4, outcome=Reason.FAILED)

    again(database, study, 1)

    assert pins(database) == [(2, 1)]
    assert SimulatedWorker(database, study).claim().claimed.checkpoint.step == 2


def saved_by_a_clone(database, study, failed):
    """Clone a trial, let the clone save a checkpoint and fail; return the clone's number."""
    again(database, study, failed)
    run = SimulatedWorker(database, study).claim()
    run.report(0.7)
    run.save()
    run.finish(outcome=Reason.FAILED)
    return run.lease.number


def test_clone_of_a_clone_falls_back_to_the_source_of_its_parent(database, study, failed):
    clone = saved_by_a_clone(database, study, failed)
    again(database, study, clone)
    run = SimulatedWorker(database, study).claim()
    assert run.claimed.checkpoint.step == 3

    older = mark_corrupt(database, lease=run.lease, checkpoint=run.claimed.checkpoint)

    assert (older.step, pins(database)) == (2, [(2, 1)])


@pytest.fixture
def count_of_pins(monkeypatch):
    """Return two lists: the ids of locked checkpoints, and SQL to run before the next lock."""
    locked, before, count = [], [], pins_store.count

    def counted(txn, *, checkpoint_id):
        locked.append(checkpoint_id)
        if before:
            txn.raw(before.pop())
        return count(txn, checkpoint_id=checkpoint_id)

    monkeypatch.setattr(pins_store, "count", counted)
    return locked, before


def test_checkpoints_are_locked_by_ascending_id_even_if_the_newest_was_removed(
    database, study, count_of_pins
):
    worker = SimulatedWorker(database, study)
    first, second = worker.take(), worker.take()
    for run in (first, second, first):  # checkpoints 1, 2 and 3
        run.report(0.9)
        run.save()
    for run in (first, second):
        run.finish(outcome=Reason.FAILED)
    again(database, study, 0)
    clone = worker.claim()
    mark_corrupt(database, lease=clone.lease, checkpoint=clone.claimed.checkpoint)
    clone.finish(outcome=Reason.FAILED)
    locked, _ = count_of_pins
    locked.clear()

    again(database, study, 0, 1)

    assert locked == sorted(locked)
    assert sorted(pins(database)) == [(1, 1), (1, 1)]


def test_retry_begins_again_if_a_checkpoint_was_removed_before_it_was_locked(
    database, study, failed, count_of_pins
):
    locked, before = count_of_pins
    before.append("UPDATE checkpoint SET removed_at = created_at")

    assert again(database, study, failed) == [1]

    assert len(locked) == 2
    assert pins(database) == [(2, 1)]


def test_clone_of_a_clone_whose_checkpoint_was_removed_begins_from_the_source_of_its_parent(
    database, study, failed
):
    clone = saved_by_a_clone(database, study, failed)
    with database.begin() as txn:
        txn.raw("UPDATE checkpoint SET removed_at = created_at WHERE step = 3")

    again(database, study, clone)

    assert SimulatedWorker(database, study).claim().claimed.checkpoint.step == 2
    assert pins(database) == [(2, 1)]


# --- refusals and duplicates


@pytest.mark.parametrize("state", [State.PENDING, State.RUNNING, State.PAUSED])
def test_trial_that_has_not_ended_is_refused(database, study, failed, state):
    number = trial_in(database, study, state).number
    with unchanged_rows(database), pytest.raises(NotAllowed, match=f"is {state}; only an ended"):
        again(database, study, failed, number)


def test_unknown_trial_is_refused(database, study, failed):
    with unchanged_rows(database), pytest.raises(UnknownTrial):
        again(database, study, failed, 7)


def test_trial_is_refused_until_its_clone_has_ended(database, study, failed):
    again(database, study, failed)
    with unchanged_rows(database), pytest.raises(NotAllowed, match="run again as trial 1"):
        again(database, study, failed)
    SimulatedWorker(database, study).claim().finish(0.4)

    assert again(database, study, failed) == [2]


def test_two_people_who_retry_a_trial_at_the_same_time_make_one_clone(database, study, failed):
    def call():
        try:
            return again(database, study, failed)
        except NotAllowed:
            return "refused"

    assert sorted(run_together([call, call]), key=str) == [[1], "refused"]
    assert states_of(database, study).count(State.PENDING) == 1


def test_duplicate_request_makes_no_second_clone(database, study, failed):
    request = new_request()
    assert retry(database, study, [failed], request) == [1]
    SimulatedWorker(database, study).claim().finish(0.4)

    with unchanged_rows(database):
        assert retry(database, study, [failed], request) == [1]


def test_many_trials_are_cloned_in_several_transactions_each_once(database, monkeypatch):
    monkeypatch.setattr("studydb.operations.retry.MOST", 3)
    study, request = new_study(database, num_trials=8), new_request()
    for _ in range(8):
        SimulatedWorker(database, study).take().finish(0.5)

    made = retry(database, study, range(8), request)

    assert made == list(range(8, 16))
    with unchanged_rows(database):
        assert retry(database, study, range(8), request) == made
    events = rows(database, "SELECT count(*) FROM event WHERE kind = 'retried'")
    assert events == [(3,)]


# --- selections


@pytest.fixture
def ended(database):
    """A study with an errored, a cancelled, a completed and a PENDING trial."""
    study = new_study(database)
    worker = SimulatedWorker(database, study)
    worker.take().finish(0.5, outcome=Reason.FAILED)
    enqueued(database, study)
    control.stop(database, study, [1], new_request())
    worker.take().finish(0.5)
    enqueued(database, study)
    return study


@pytest.mark.row("A17")
@pytest.mark.parametrize(
    ("selection", "numbers"),
    [("errored", [0]), ("cancelled", [1]), ("finished", [2]), ("all", [0, 1, 2])],
)
def test_selection_has_the_ended_trials_of_its_kind(database, ended, selection, numbers):
    assert selected(database, ended, Selection(selection)) == numbers


def test_selection_leaves_out_trials_with_clones_and_invalidated_trials(database, ended):
    again(database, ended, 0)
    with database.begin() as txn:
        txn.raw("UPDATE trial SET invalidated_at = created_at WHERE number = 2")

    assert selected(database, ended, Selection.ALL) == [1]


def test_trial_that_was_cloned_after_the_selection_was_read_is_skipped(database, ended):
    again(database, ended, 0)

    assert again(database, ended, 0, 1, skips_cloned=True) == [5]


# --- rungs and searchers


def asha(database, **options):
    return new_study(database, scheduler=ASHA(max_t=9, reduction_factor=3, **options))


def cut_of(database, study, step):
    with database.begin() as txn:
        return rungs.lock(txn, study_id=study.id, key=RungKey(0, step)).cut


def test_clone_enters_only_rungs_above_the_step_of_its_checkpoint(database):
    study = asha(database)
    run = SimulatedWorker(database, study).take()
    run.report(0.5, 0.4)
    run.save()
    run.finish(0.3, outcome=Reason.FAILED)

    again(database, study, 0)
    run = SimulatedWorker(database, study).claim()
    assert run.claimed.next_decision_step == 3
    run.report(0.2, first=1)
    run.report(0.3, 0.2, first=2)

    entered = rows(
        database,
        "SELECT t.number, g.step FROM rung_entry e JOIN trial t ON t.id = e.trial_id "
        "JOIN rung g ON g.id = e.rung_id ORDER BY 1, 2",
    )
    assert entered == [(0, 1), (0, 3), (1, 3)]


def test_entries_of_a_retried_trial_no_longer_rank_and_the_cutoff_moves(database):
    study = asha(database)
    worker = SimulatedWorker(database, study)
    for value in (0.1, 0.5, 0.9):
        worker.take().finish(value)
    assert (cut_of(database, study, 1).n, cut_of(database, study, 1).entry[0]) == (3, 0.5)

    again(database, study, 0, from_scratch=True)

    cut = cut_of(database, study, 1)
    assert (cut.n, cut.rank, cut.entry[0]) == (2, 0, 0.9)


def test_searcher_learns_the_value_of_the_clone_instead_of_that_of_its_parent(database, study):
    worker, history = SimulatedWorker(database, study), History(database, study)
    worker.take().finish(0.5)
    assert [(one.number, one.values) for one in history.changes()] == [(0, (0.5,))]

    again(database, study, 0, from_scratch=True)
    told = [(one.number, one.values, one.reason) for one in history.changes()]
    assert told == [(0, None, Reason.INVALIDATED), (1, None, None)]
    worker.claim().finish(0.25)
    assert [(one.number, one.values) for one in history.changes()] == [(1, (0.25,))]

    fresh = History(database, study).changes()
    assert [(one.number, one.values) for one in fresh] == [(0, None), (1, (0.25,))]


def test_clone_does_not_begin_from_a_removed_checkpoint(database, study, failed):
    with database.begin() as txn:
        txn.raw("UPDATE checkpoint SET removed_at = created_at WHERE step = 2")
        newest = checkpoints.find(txn, checkpoint_id=2)
    assert newest.step == 2

    again(database, study, failed)

    assert SimulatedWorker(database, study).claim().claimed.checkpoint.step == 1
