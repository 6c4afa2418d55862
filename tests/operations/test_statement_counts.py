"""How many statements and commits operations take; the numbers must not grow with the study."""

from functools import partial

import pytest
from harness.arrange import LEASE_S, SimulatedWorker, enqueued, new_study

from studydb.domain.life.retention import Keep
from studydb.domain.life.states import Reason
from studydb.domain.space.search_space import Space, choice, constant, uniform
from studydb.lease.acquire import Acquirer
from studydb.operations.recover import recover
from studydb.operations.renew import is_requested
from studydb.operations.save import save
from studydb.operations.study_progress import read_progress
from studydb.operations.uploads import begin_upload
from studydb.schedulers import ASHA, FIFO

ENDS = ("COMMIT", "ROLLBACK")

PROMOTION = ASHA(max_t=9, reduction_factor=3, type="promotion")


@pytest.fixture
def worker(worker):
    for _ in range(5):
        worker.ask().finish(0.5)
    return worker


def counted(database, call):
    """
    Count a call's transactions, its transactions that end in a ROLLBACK, and its statements.

    A statement outside BEGIN and COMMIT counts as a transaction, too. BEGIN, COMMIT and ROLLBACK do
    not count as statements.
    """
    seen = sent(database, call)
    inside, transactions, statements = False, 0, 0
    for what in seen:
        transactions += what == "BEGIN" or (not inside and what not in ENDS)
        statements += what not in ("BEGIN", *ENDS)
        inside = what == "BEGIN" or (inside and what not in ENDS)
    return transactions, seen.count("ROLLBACK"), statements


def sent(database, call):
    """Return the texts of a call's statements; BEGIN, COMMIT and ROLLBACK are included."""
    seen = []
    database.observer = seen.append
    call()
    database.observer = None
    return seen


def by_dialect(database, *, postgresql, sqlite):
    """Choose a number by the dialect; a chain is one statement on PostgreSQL, several on SQLite."""
    return postgresql if database.postgresql else sqlite


@pytest.mark.row("A20", "D4")
@pytest.mark.parametrize("done", [False, True])
def test_trial_of_ten_reports_that_fit_one_flush_takes_two_commits(database, worker, done):
    statements = by_dialect(database, postgresql=1 + 1, sqlite=4 + 4)

    seen = counted(database, lambda: worker.ask().finish(*[0.5] * 10, done=done))

    assert seen == (2, 0, statements)


@pytest.mark.parametrize("rows", [1, 10, 200])
def test_cost_of_a_report_does_not_depend_on_its_number_of_results(database, worker, rows):
    run = worker.ask()

    statements = by_dialect(database, postgresql=1, sqlite=2)
    assert counted(database, lambda: run.report(*[0.5] * rows)) == (1, 0, statements)


@pytest.mark.parametrize(
    ("keep", "reads", "statements"),
    [
        (Keep(), False, 4),
        (Keep(last=2), False, 4),
        (Keep(last=3), True, 5),
        (Keep(last=9), True, 4),  # the save reads checkpoints, and removes none
    ],
)
def test_save_reads_the_kept_checkpoints_only_if_a_policy_needs_them(
    database, worker, keep, reads, statements
):
    run = worker.ask()
    for step in range(1, 5):
        run.save(run.checkpoint(step=step), keep=Keep(last=4))
    checkpoint = run.checkpoint(step=5)

    seen = sent(database, lambda: run.save(checkpoint, keep=keep))

    assert [len(seen), *map(seen.count, ENDS)] == [statements + 2, 1, 0]
    assert any("FROM checkpoint" in text and "result.value" in text for text in seen) is reads


def test_upload_costs_one_statement_and_one_commit_before_the_save(database, worker):
    run = worker.ask()
    checkpoint = run.checkpoint(step=1)
    begin = partial(
        begin_upload, database, lease=run.lease, uuid=checkpoint.uuid, url="file:///store/x"
    )

    assert counted(database, begin) == (1, 0, 1)
    assert counted(database, lambda: save(database, lease=run.lease, checkpoint=checkpoint)) == (
        1,
        0,
        5,
    )


def test_claim_costs_one_commit(database, study, worker):
    enqueued(database, study)

    statements = by_dialect(database, postgresql=1, sqlite=4)
    assert counted(database, worker.claim) == (1, 0, statements)


@pytest.mark.parametrize("max_concurrent", [None, 9])
@pytest.mark.parametrize(
    "space",
    [
        {"model": {"lr": uniform(0.0, 1.0), "kind": constant("mlp")}},
        {"text": choice(["x" * 2000, "y"])},
    ],
    ids=["nested space", "long params"],
)
def test_ask_and_claim_cost_one_commit_each_in_every_space(database, space, max_concurrent):
    study = new_study(database, space=Space.read(space), max_concurrent=max_concurrent)
    worker = SimulatedWorker(database, study)
    worker.ask()
    enqueued(database, study)

    asked = counted(database, worker.ask)
    claimed = counted(database, worker.claim)

    more = max_concurrent is not None
    assert asked == (1, 0, by_dialect(database, postgresql=1, sqlite=4))
    assert claimed == (1, 0, by_dialect(database, postgresql=1, sqlite=4 + more))


@pytest.mark.row("A1", "A8")
def test_decision_at_a_rung_costs_one_commit(database):
    study = new_study(database, scheduler=ASHA(max_t=9, reduction_factor=3))
    run = SimulatedWorker(database, study).ask()

    statements = by_dialect(database, postgresql=5, sqlite=7)
    assert counted(database, lambda: run.report(0.5)) == (1, 0, statements)


def test_report_between_two_rungs_costs_the_same_as_without_a_scheduler(database):
    study = new_study(database, scheduler=ASHA(max_t=9, reduction_factor=3))
    run = SimulatedWorker(database, study).ask()
    run.report(0.5)

    statements = by_dialect(database, postgresql=1, sqlite=2)
    assert counted(database, lambda: run.report(0.5)) == (1, 0, statements)


def test_renewal_of_many_leases_costs_one_commit_and_two_statements(database, worker):
    runs = [worker.ask() for _ in range(4)]

    assert counted(database, lambda: worker.renew(*runs)) == (1, 0, 2)


@pytest.mark.row("A2")
def test_progress_is_a_single_statement(database, study, worker):
    assert counted(database, lambda: read_progress(database, study)) == single(database)


def test_sweep_that_finds_nothing_is_a_single_statement(database, study):
    assert counted(database, lambda: recover(database, study)) == single(database)


def test_look_for_requests_about_many_trials_is_a_single_statement(database, worker):
    leases = [worker.ask().lease for _ in range(4)]

    def look():
        return is_requested(database, held=leases, worker_id=worker.id)

    assert counted(database, look) == single(database)


def test_worker_that_got_a_promoted_trial_asks_the_scheduler_before_it_claims(database):
    study = new_study(database, scheduler=PROMOTION, num_trials=6)
    worker = SimulatedWorker(database, study)
    for value in (0.1, 0.2, 0.3, 0.4, 0.5, 0.6):
        run = worker.ask()
        run.report(value)
        run.finish(outcome=Reason.PREEMPTED)
    acquirer = Acquirer(database, study, worker_id=worker.id, lease_s=LEASE_S)
    assert acquirer.acquire().lease.attempt == 2

    seen = counted(database, acquirer.acquire)

    # One statement reads what the scheduler needs, four promote the trial, the others claim it.
    by_reading = by_dialect(database, postgresql=0, sqlite=1)  # a read on SQLite ends in a ROLLBACK
    assert seen == (3, by_reading, by_dialect(database, postgresql=6, sqlite=9))


@pytest.mark.parametrize("scheduler", [FIFO(), PROMOTION], ids=["fifo", "promotion"])
def test_idle_look_is_a_single_statement_and_sweeps_are_rare(database, study, scheduler):
    study = new_study(database, scheduler=scheduler, num_trials=1)
    worker = SimulatedWorker(database, study)
    worker.ask().finish(0.5)
    acquirer = Acquirer(database, study, worker_id=worker.id, lease_s=LEASE_S)
    assert acquirer.acquire() is None
    acquirer.look()

    assert counted(database, acquirer.look) == single(database)
    assert counted(database, acquirer.acquire) == single(database)


def single(database):
    """What `counted` returns for one read that is a transaction by itself."""
    return (1, by_dialect(database, postgresql=0, sqlite=1), 1)
