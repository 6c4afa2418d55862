"""What an operation costs in statements and commits: the same in any study."""

import pytest
from arrange import SimulatedWorker, enqueued, new_study

from studydb.domain.records import Batch
from studydb.operations.look import look
from studydb.operations.recover import recover
from studydb.schedulers import ASHA


@pytest.fixture
def study(database):
    return new_study(database)


@pytest.fixture
def worker(database, study):
    worker = SimulatedWorker(database, study)
    for _ in range(5):
        worker.ask().finish(0.5)
    return worker


def counted(database, call):
    """How often a call wrote BEGIN, COMMIT, ROLLBACK, and how many other statements it ran."""
    seen = []
    database.observer = seen.append
    call()
    database.observer = None
    ends = [seen.count(word) for word in ("BEGIN", "COMMIT", "ROLLBACK")]
    return *ends, len(seen) - sum(ends)


def test_trial_of_ten_reports_that_fit_one_flush_takes_two_commits(database, worker):
    def live():
        worker.ask().finish(*[0.5] * 10)

    assert counted(database, live) == (2, 2, 0, 4 + 5)


@pytest.mark.parametrize("rows", [1, 10, 200])
def test_report_costs_one_commit_and_three_statements_however_many_rows(database, worker, rows):
    run = worker.ask()

    assert counted(database, lambda: run.report(*[0.5] * rows)) == (1, 1, 0, 3)


def test_claim_costs_one_commit(database, study, worker):
    enqueued(database, study)

    assert counted(database, worker.claim) == (1, 1, 0, 3)


def test_decision_at_a_rung_costs_one_commit(database):
    study = new_study(database, scheduler=ASHA(max_t=9, reduction_factor=3))
    run = SimulatedWorker(database, study).ask()

    assert counted(database, lambda: run.report(0.5)) == (1, 1, 0, 7)


def test_step_between_two_decisions_costs_what_it_costs_without_a_scheduler(database):
    study = new_study(database, scheduler=ASHA(max_t=9, reduction_factor=3))
    run = SimulatedWorker(database, study).ask()
    run.report(0.5)

    assert counted(database, lambda: run.report(0.5)) == (1, 1, 0, 3)


def test_renewal_of_many_leases_is_one_statement(database, worker):
    runs = [worker.ask() for _ in range(4)]

    assert counted(database, lambda: worker.renew(*runs)) == (1, 1, 0, 2)


def test_idle_look_commits_nothing(database, study, worker):
    assert counted(database, lambda: look(database, study)) == (1, 0, 1, 3)


def test_claim_of_nothing_commits_nothing(database, worker):
    begins, commits, rollbacks, _ = counted(database, worker.claim)

    assert (begins, commits, rollbacks) == (1, 0, 1)


def test_resend_writes_nothing(database, worker):
    run = worker.ask()
    batch = Batch(1, run.batch(0.5).results)
    run.send(batch)

    assert counted(database, lambda: run.send(batch)) == (1, 1, 0, 1)


def test_sweep_that_finds_nothing_is_one_commit(database, study):
    assert counted(database, lambda: recover(database, study)) == (1, 1, 0, 4)
