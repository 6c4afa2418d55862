"""
When ASHA's end game begins, and when OneEpoch chooses the trials that it trains to the end.

Both times depend on how much of the study's limits is spent, and on `num_trials`.
"""

import math
from datetime import UTC, datetime, timedelta

import pytest
from harness.arrange import LEASE_S, Run, SimulatedWorker, new_request, new_study, rows
from harness.settings_requests import set_limits

from studydb.domain.life.states import Reason, State, Status
from studydb.domain.limits import CostLimit
from studydb.lease.acquire import Acquirer
from studydb.operations.control import extend
from studydb.operations.promote import ask_scheduler
from studydb.operations.reads import list_trials
from studydb.operations.study_progress import read_progress
from studydb.schedulers import ASHA, HyperBand, OneEpoch
from studydb.store import promotions

PROMOTION = ASHA(max_t=9, reduction_factor=3, type="promotion", end_game=0.5)


class Trainer:
    """A worker that acquires trials as a slot does; trial N reports the value (N + 1) / 8."""

    def __init__(self, database, **options):
        options = {"scheduler": PROMOTION, "num_trials": None} | options
        self.database, self.study = database, new_study(database, **options)
        self.worker = SimulatedWorker(database, self.study)
        self.acquirer = Acquirer(database, self.study, worker_id=self.worker.id, lease_s=LEASE_S)

    def train(self, steps=None):
        """
        Train the next trial to its decision step, or for `steps` steps, and give it back.

        Returns:
            The trial's number; None if there is no trial to train.
        """
        claimed = self.acquirer.acquire()
        if claimed is None:
            return None
        run = Run(self.worker, claimed)
        due = self.study.scheduler.next_decision_step(0, run.after_step)
        steps = steps or due - run.after_step
        run.report(*[(run.lease.number + 1) / 8] * steps)
        if run.after_step < 9:
            run.save()
        run.finish(outcome=Reason.PREEMPTED)
        return run.lease.number

    def train_all(self):
        return list(iter(self.train, None))

    @property
    def spent(self):
        with self.database.begin(write=False, snapshot=True) as txn:
            study = self.study
            queues = promotions.Queues(txn, study_id=study.id, is_limited=True)
            return queues.spent

    @property
    def progress(self):
        return read_progress(self.database, self.study)


def test_free_workers_resume_the_best_trials_once_half_of_the_steps_are_spent(database):
    trainer = Trainer(database, max_steps=24)

    trained = trainer.train_all()

    spent = 0
    for place, number in enumerate(trained):
        if number not in trained[:place]:
            assert spent < 12
        spent += [1, 2, 6][trained[:place].count(number)]
    assert spent >= 24
    assert trainer.progress.status is Status.STOPPED
    ended = [one.reason for one in list_trials(database, trainer.study)]
    assert ended[0] is Reason.COMPLETED
    assert set(trained) == set(range(len(ended)))


def test_study_limited_by_num_trials_alone_makes_all_trials_and_then_trains_the_best_to_max_t(
    database,
):
    trainer = Trainer(database, num_trials=3)

    trained = trainer.train_all()

    assert trained == [0, 1, 0, 2, 0]
    assert trainer.progress.status is Status.FINISHED
    states = [(one.state, one.reason) for one in list_trials(database, trainer.study)]
    assert states == [(State.TERMINATED, Reason.COMPLETED)] + [(State.PAUSED, None)] * 2


def test_study_is_not_finished_while_the_end_game_has_trials_to_resume(database):
    trainer = Trainer(database, num_trials=2)
    trainer.train()
    trainer.train()

    progress = trainer.progress

    assert progress.status is Status.RUNNING
    assert progress.has_promotable
    assert progress.can_claim


def test_higher_limit_ends_the_end_game(database):
    trainer = Trainer(database, max_steps=8)
    assert [trainer.train() for _ in range(3)] == [0, 1, 0]
    assert trainer.train(steps=1) == 0  # the end game resumes trial 0, which is alone at its rung

    set_limits(database, trainer.study, {"max_steps": 100}, new_request())
    trainer.acquirer.look()

    assert [trainer.train() for _ in range(2)] == [0, 2]


@pytest.mark.parametrize(
    ("limits", "share"),
    [
        ({}, 0.0),
        ({"max_steps": 8}, 0.5),
        ({"max_steps": 3}, 1.0),
        ({"cost_limit": CostLimit("usd", 10.0)}, 0.3),
        ({"cost_limit": CostLimit("usd", 10.0), "max_steps": 8}, 0.5),
        ({"total_time_limit_s": 100.0}, 0.2),
        ({"time_limit_s": 200.0}, 0.35),
        ({"time_limit_s": 200.0, "total_time_limit_s": 40.0}, 0.5),
        ({"trial_time_limit_s": 20.0}, 0.0),
    ],
)
def test_scheduler_sees_the_spent_share_of_the_limit_that_is_spent_most(database, limits, share):
    now = datetime(2026, 1, 1, tzinfo=UTC)
    database.clock = lambda: now
    trainer = Trainer(database, scheduler=ASHA(max_t=9, grace_period=5), **limits)
    run = trainer.worker.take()
    now += timedelta(seconds=20)
    run.report(0.5, 0.5, 0.5, 0.5, usd=0.75)
    now += timedelta(seconds=50)

    assert trainer.spent == pytest.approx(share)


def test_no_spending_is_read_in_a_study_without_limits_or_without_an_end_game(database):
    read = {}
    for name, scheduler, limits in [
        ("no end game", ASHA(9, type="promotion", end_game=0), {"max_steps": 9}),
        ("no limits", PROMOTION, {}),
        ("limits", PROMOTION, {"max_steps": 9}),
    ]:
        study = new_study(database, scheduler=scheduler, num_trials=None, **limits)
        seen = []
        database.observer = seen.append
        with database.begin(write=False, snapshot=True) as txn:
            ask_scheduler(txn, study)
        database.observer = None
        read[name] = len([what for what in seen if what not in ("BEGIN", "COMMIT", "ROLLBACK")])

    # One statement reads the rungs. For an end game, a second statement reads the budget. If the
    # study also has limits, two more statements read the limits and what is spent of them.
    assert read == {"no end game": 1, "no limits": 2, "limits": 4}


def test_one_epoch_chooses_its_trials_when_half_of_the_steps_are_spent(database):
    trainer = Trainer(database, scheduler=OneEpoch(i=1, top_k=2, max_t=9), max_steps=30)

    trained = trainer.train_all()

    assert trained == [*range(15), 0, 1]
    reasons = [one.reason for one in list_trials(database, trainer.study)]
    assert reasons[:2] == [Reason.COMPLETED] * 2
    assert trainer.progress.status is Status.STOPPED
    assert set(reasons[2:]) == {Reason.GIVEN_UP}


def test_trials_at_max_t_are_counted_only_for_an_end_game(database):
    for end_game in (0, 0.5):
        scheduler = ASHA(9, 3, 3, type="promotion", end_game=end_game)
        trainer = Trainer(database, num_trials=2, scheduler=scheduler)
        trainer.train_all()
        sql = f"SELECT step, n_entries FROM rung WHERE study_id = {trainer.study.id}"
        assert sorted(rows(database, sql)) == [(3, 2), (9, 2)][: 1 + (end_game > 0)]


def fail_next(trainer, value=None):
    """Let the next trial fail; if `value` is given, the trial reports this value first."""
    run = Run(trainer.worker, trainer.acquirer.acquire())
    if value is not None:
        run.report(value)
    run.finish(outcome=Reason.FAILED)


def test_one_epoch_makes_more_trials_if_half_of_the_limit_is_spent_and_no_trial_waits(database):
    start = datetime.now(UTC)
    database.clock = lambda: start
    trainer = Trainer(database, scheduler=OneEpoch(i=2, top_k=1, max_t=9), time_limit_s=100)
    fail_next(trainer, 0.1)
    database.clock = lambda: start + timedelta(seconds=60)

    assert trainer.progress.status is Status.RUNNING
    assert [trainer.train() for _ in range(3)] == [1, 1, None]

    assert list_trials(database, trainer.study)[1].reason is Reason.COMPLETED
    assert trainer.progress.status is Status.FINISHED


@pytest.mark.parametrize("scheduler", [OneEpoch(i=1, top_k=1, max_t=9), HyperBand(9)])
def test_extended_study_chooses_among_its_new_trials_if_no_earlier_trial_waits(database, scheduler):
    trainer = Trainer(database, scheduler=scheduler, num_trials=1)
    run = Run(trainer.worker, trainer.acquirer.acquire())
    run.report(math.nan)
    run.finish(outcome=Reason.PREEMPTED)
    assert trainer.acquirer.acquire() is None
    assert trainer.progress.status is Status.FINISHED
    extend(database, trainer.study, new_request(), n_more=2)

    trainer.train_all()

    reasons = [one.reason for one in list_trials(database, trainer.study)]
    assert reasons == [Reason.EARLY_STOPPED, Reason.COMPLETED, Reason.GIVEN_UP]
