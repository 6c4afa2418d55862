"""
An operation leaves the same rows whether it runs as a single statement or as several statements.

A single statement changes nothing if the trial or its study is not as the client expects.
"""

import pytest
from harness.arrange import LOSS, change, enqueued, results, rows, unchanged_rows

from studydb.domain.life.states import Reason
from studydb.domain.metrics import Summary
from studydb.domain.records import Batch
from studydb.operations import finish as finishing
from studydb.operations import report as reporting
from studydb.operations.renew import renew
from studydb.store import attempts, single_statement

VALUES = (0.5, float("nan"), 0.25, float("inf"), 0.75)


UNEXPECTED = {
    "request to stop": "UPDATE trial SET request = 'STOP'",
    "request to pause": "UPDATE trial SET request = 'PAUSE'",
    "paused study": "UPDATE study SET status = 'PAUSED'",
    "verdict": "UPDATE trial SET verdict = 'STOP', verdict_reason = 'CANCELLED', verdict_by = 'x'",
    "another attempt": "UPDATE trial SET attempt = attempt + 1",
    "another token": "UPDATE trial SET token = 'other'",
    "another number of results": "UPDATE trial SET n_results = n_results + 1",
    "another flush number": "UPDATE trial SET flush_no = 9",
}


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
            verdict=None,
            process=None,
        )


@pytest.mark.parametrize("write", [try_report, try_finish])
@pytest.mark.parametrize("unexpected", UNEXPECTED)
def test_trial_that_is_not_as_expected_is_not_changed(database, run, unexpected, write):
    change(database, UNEXPECTED[unexpected])

    with unchanged_rows(database):
        assert not write(run, run.batch(0.5))


@pytest.mark.parametrize("write", [try_report, try_finish])
def test_first_flush_of_a_later_attempt_is_left_to_several_statements(database, run, write):
    run.report(0.5)
    run.finish(outcome=Reason.PREEMPTED)
    later = run.worker.claim()
    batch = Batch(1, results(0.25, first=2), 1, before=summary_of(run.batch(0.5)))

    with unchanged_rows(database):
        assert not write(later, batch)


@pytest.mark.parametrize("write", [try_report, try_finish])
def test_write_to_a_trial_that_is_as_expected_succeeds(run, write):
    assert write(run, run.batch(0.5))


@pytest.fixture(params=["one statement", "several statements"])
def statements(request, monkeypatch):
    if request.param == "several statements":
        for module in (reporting, finishing):
            monkeypatch.setattr(module, "summary_if_undecided", lambda *_, **__: None)
    return request.param


FLUSHES = {
    "one flush": [VALUES],
    "a flush for each result": [(value,) for value in VALUES],
    "an end without results": [VALUES, ()],
    "no results": [()],
}


@pytest.mark.parametrize("all_flushes", FLUSHES.values(), ids=FLUSHES)
def test_finish_leaves_the_same_rows_in_one_or_several_statements(
    database, run, statements, all_flushes
):
    *flushes, last = all_flushes

    for values in flushes:
        assert run.report(*values, extra=2).verdict is None
    ending = run.finish(*last)

    numbers = [value for values in all_flushes for value in values]
    expected = Summary().add(results(*numbers), LOSS)
    trial = run.trial()
    assert repr(trial.summary) == repr(expected)
    assert (ending.state, ending.reason) == (trial.state, trial.reason)
    assert ending.reason is Reason.COMPLETED
    assert len(rows(database, "SELECT 1 FROM result")) == len(numbers)
    assert rows(database, "SELECT metric_summary IS NULL, time_total_s FROM trial") == [
        (not numbers, 0.5 * len(numbers) or None)
    ]
    assert rows(database, "SELECT ended_at IS NULL FROM attempt") == [(False,)]
    assert rows(database, "SELECT sum(running), sum(terminated) FROM counter") == [(0, 1)]
    assert rows(database, "SELECT 1 FROM trial WHERE token IS NOT NULL OR ready") == []


@pytest.mark.parametrize("saved", [False, True])
def test_claim_begins_an_attempt_with_the_trials_config_and_checkpoint(
    database, study, worker, saved
):
    enqueued(database, study, lr=0.5)
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
    renewal = renew(database, study, worker_id=worker.id, held=[claimed.lease])
    assert renewal.held.keys() == {claimed.lease.token}
    with database.begin(write=False) as txn:
        found = attempts.find(
            txn, trial_id=claimed.lease.trial_id, attempt_no=claimed.lease.attempt
        )
    assert (found.config, found.worker_id) == (claimed.config, worker.id)
