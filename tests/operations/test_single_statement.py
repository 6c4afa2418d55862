"""The operations of one statement do what the long way does, and leave alone what is not theirs."""

import pytest
from harness.arrange import (
    LOSS,
    SimulatedWorker,
    change,
    dump,
    enqueued,
    new_request,
    new_study,
    results,
    rows,
)

from studydb.domain.life.states import Reason, Status
from studydb.domain.metrics import Summary
from studydb.domain.records import Batch
from studydb.operations import claim as claiming
from studydb.operations import control
from studydb.operations import finish as finishing
from studydb.operations import report as reporting
from studydb.operations.renew import renew
from studydb.store import attempts, single_statement

VALUES = (0.5, float("nan"), 0.25, float("inf"), 0.75)


@pytest.fixture
def study(database):
    return new_study(database)


@pytest.fixture
def run(database, study):
    return SimulatedWorker(database, study).ask()


def requested(run, action):
    control_of = {"stop": control.stop, "pause": control.pause}[action]
    worker = run.worker
    control_of(worker.database, worker.study, [run.lease.number], new_request())


def ask_to_stop(run):
    requested(run, "stop")


def ask_to_pause(run):
    requested(run, "pause")


def pause_the_study(run):
    worker = run.worker
    control.set_status(worker.database, worker.study, Status.PAUSED, new_request())


def judge(run):
    requested(run, "stop")
    run.worker.renew(run)  # the request becomes a verdict
    change(run.worker.database, "UPDATE trial SET request = NULL")


def be_another_attempt(run):
    change(run.worker.database, "UPDATE trial SET attempt = attempt + 1")


def have_another_token(run):
    change(run.worker.database, "UPDATE trial SET token = 'other'")


def have_more_results(run):
    change(run.worker.database, "UPDATE trial SET n_results = n_results + 1")


def have_flushed_it(run):
    change(run.worker.database, "UPDATE trial SET flush_no = 9")


SURPRISES = [
    ask_to_stop,
    ask_to_pause,
    pause_the_study,
    judge,
    be_another_attempt,
    have_another_token,
    have_more_results,
    have_flushed_it,
]


def summary_of(*batches):
    summary = Summary()
    for batch in batches:
        summary = summary.add(batch.results, LOSS)
    return summary


def try_report(run, batch):
    with run.worker.database.begin(single=True) as txn:
        return single_statement.report(txn, lease=run.lease, batch=batch, summary=summary_of(batch))


def try_finish(run, batch):
    with run.worker.database.begin(single=True) as txn:
        return single_statement.finish(
            txn,
            lease=run.lease,
            batch=batch,
            summary=summary_of(batch),
            metric_summary=None,
            process=None,
        )


@pytest.mark.parametrize("write", [try_report, try_finish])
@pytest.mark.parametrize("surprise", SURPRISES)
def test_trial_that_is_not_as_expected_is_not_changed(database, run, surprise, write):
    batch = run.batch(0.5)
    surprise(run)
    before = dump(database)

    assert not write(run, batch)
    assert dump(database) == before


@pytest.mark.parametrize("write", [try_report, try_finish])
def test_first_flush_of_a_later_attempt_is_not_stored(database, study, run, write):
    run.report(0.5)
    run.finish(outcome=Reason.PREEMPTED)
    again = run.worker.claim()
    before = dump(database)

    # What it would send if it took its predecessor's summary for its own.
    batch = Batch(1, results(0.25, first=2), 1, summary_of(run.batch(0.5)))

    assert not write(again, batch)
    assert dump(database) == before


@pytest.mark.parametrize("write", [try_report, try_finish])
def test_trial_as_expected_is_written(run, write):
    assert write(run, run.batch(0.5))


@pytest.fixture(params=["one statement", "the long way"])
def way(request, monkeypatch):
    if request.param == "the long way":
        for room in (reporting, finishing):
            monkeypatch.setattr(room, "summary_if_undecided", lambda *_: None)
        monkeypatch.setattr(claiming, "_is_plain", lambda *_: False)
    return request.param


LIVES = {
    "one flush": [VALUES],
    "flush by flush": [(value,) for value in VALUES],
    "an end without results": [VALUES, ()],
    "no results": [()],
}


@pytest.mark.parametrize("life", LIVES.values(), ids=LIVES)
def test_finish_leaves_the_same_rows_in_one_or_several_statements(database, study, run, way, life):
    *flushes, last = life

    for values in flushes:
        assert run.report(*values, extra=2).verdict is None
    ending = run.finish(*last)

    numbers = [value for values in life for value in values]
    expected = Summary().add(results(*numbers), LOSS)
    trial = run.trial()
    assert repr(trial.summary) == repr(expected)
    assert (ending.state, ending.reason) == (trial.state, trial.reason)
    assert ending.reason is Reason.COMPLETED
    assert len(rows(database, "SELECT 1 FROM result")) == len(numbers)
    assert one(database, "SELECT metric_summary IS NULL FROM trial") == (not numbers)
    assert one(database, "SELECT time_total_s FROM trial") == (0.5 * len(numbers) or None)
    assert one(database, "SELECT ended_at IS NULL FROM attempt") == 0
    assert one(database, "SELECT sum(running) FROM counter") == 0
    assert one(database, "SELECT sum(terminated) FROM counter") == 1
    assert one(database, "SELECT count(*) FROM trial WHERE token IS NOT NULL OR ready") == 0


@pytest.mark.parametrize("saved", [False, True])
def test_claim_gives_the_same_attempt_in_one_or_several_statements(database, study, way, saved):
    enqueued(database, study, lr=0.5)
    worker = SimulatedWorker(database, study)
    if saved:
        before = worker.claim()
        before.report(0.5, 0.4)
        before.save()
        before.finish(outcome=Reason.PREEMPTED)

    claimed = worker.claim().claimed

    begun = (
        "SELECT attempt, start_step, restored_id IS NOT NULL, token FROM attempt ORDER BY attempt"
    )
    expected = (saved + 1, 3 if saved else 1, saved, claimed.lease.token)
    assert rows(database, begun)[-1] == expected
    assert claimed.config == {"lr": 0.5, "epochs": 27}
    assert (claimed.checkpoint is not None) == saved
    assert rows(database, "SELECT sum(pending), sum(running) FROM counter") == [(0, 1)]
    assert renew(database, worker_id=worker.id, held=[claimed.lease]).held.keys() == {
        claimed.lease.token
    }
    with database.begin(write=False) as txn:
        found = attempts.find(
            txn, trial_id=claimed.lease.trial_id, attempt_no=claimed.lease.attempt
        )
    assert (found.config, found.worker_id) == (claimed.config, worker.id)


def one(database, sql):
    return rows(database, sql)[0][0]
