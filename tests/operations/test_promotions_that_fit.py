"""A worker promotes only trials that fit it; rungs wait only for trials that fit a live worker."""

import pytest
from harness import arrange
from harness.arrange import LEASE_S, SimulatedWorker, new_request, new_study, states_of
from harness.fitting_requests import ONE, TWO
from harness.settings_requests import set_resources

from studydb.domain.life.states import Reason, State
from studydb.domain.resources import read_capacity
from studydb.operations import control
from studydb.operations.enqueue import enqueue
from studydb.operations.promote import NextStep, promote
from studydb.operations.register import leave, register
from studydb.operations.study_progress import read_progress
from studydb.schedulers import ASHA, HyperBand
from studydb.store import promotions

PROMOTION = ASHA(max_t=9, reduction_factor=3, type="promotion", end_game=0)
SMALL = ["", "gpus=1"]


def live_worker(database, study, capacity):
    return register(
        database,
        study,
        uuid=arrange.token(),
        process=arrange.process(),
        slots=1,
        lease_s=LEASE_S,
        version="0",
        capacity=capacity,
    )


@pytest.fixture
def study(database):
    """A study in which the two best of six trials are to be promoted; the best asks for 2 GPUs."""
    study = new_study(database, scheduler=PROMOTION, num_trials=6)
    SimulatedWorker(database, study).wait_at_the_rung(0.1, 0.2, 0.3, 0.4, 0.5, 0.6)
    set_resources(database, study, TWO, [0], new_request())
    return study


def test_the_best_trial_that_fits_is_promoted(database, study):
    claimant = SimulatedWorker(database, study).claimant()

    step = promote(database, study, claimant, fits=SMALL)

    assert step is NextStep.CLAIM
    assert states_of(database, study)[:2] == [State.PAUSED, State.PENDING]


def test_a_trial_that_does_not_fit_is_left_to_a_larger_worker(database, study):
    worker = SimulatedWorker(database, study)
    promote(database, study, worker.claimant(), fits=SMALL)
    worker.claim()

    second = promote(database, study, worker.claimant(), fits=SMALL)
    larger = promote(database, study, worker.claimant(), fits=[*SMALL, "gpus=2"])

    assert (second, larger) == (NextStep.START_NEW, NextStep.CLAIM)
    assert states_of(database, study)[0] is State.PENDING


def test_a_pending_trial_that_does_not_fit_does_not_prevent_a_promotion(database, study):
    promote(database, study, SimulatedWorker(database, study).claimant(), fits=["", "gpus=2"])
    assert states_of(database, study)[0] is State.PENDING

    step = promote(database, study, SimulatedWorker(database, study).claimant(), fits=SMALL)

    assert step is NextStep.CLAIM
    assert states_of(database, study)[1] is State.PENDING


def test_a_study_is_not_over_while_a_trial_waits_for_a_larger_worker(database, study):
    worker = SimulatedWorker(database, study)
    promote(database, study, worker.claimant(), fits=SMALL)
    run = worker.claim()
    run.report(0.1, first=3)
    run.finish(outcome=Reason.PREEMPTED)
    control.stop(database, study, [1, 2, 3, 4, 5], new_request())

    assert not read_progress(database, study, fits=SMALL).is_done
    assert not read_progress(database, study, fits=SMALL).can_claim


def test_progress_says_that_a_worker_can_claim_only_if_the_trial_to_promote_fits(database, study):
    worker = SimulatedWorker(database, study)
    promote(database, study, worker.claimant(), fits=SMALL)
    worker.claim()

    assert not read_progress(database, study, fits=SMALL).can_claim
    assert read_progress(database, study, fits=[*SMALL, "gpus=2"]).can_claim
    assert not read_progress(database, study, fits=SMALL).is_done


@pytest.fixture
def synchronous(database):
    """
    Two of three trials wait at a rung of HyperBand; the third is PENDING.

    The first of the waiting trials asks for 1 GPU, and the PENDING trial asks for 2 GPUs.
    """
    study = new_study(database, scheduler=HyperBand(max_t=3), num_trials=3)
    SimulatedWorker(database, study).wait_at_the_rung(0.1, 0.2)
    enqueue(database, study, {}, new_request(), resources=TWO)
    set_resources(database, study, ONE, [0], new_request())
    return study


def test_a_rung_waits_for_a_trial_that_fits_another_live_worker(database, synchronous):
    claimant = _small_claimant(database, synchronous)
    live_worker(database, synchronous, read_capacity(gpus=2))

    assert promote(database, synchronous, claimant, fits=SMALL) is NextStep.WAIT


def test_every_bracket_counts_one_more_trial_as_underway_if_too_many_trials_wait_for_other_workers(
    database, synchronous, monkeypatch
):
    _small_claimant(database, synchronous)
    live_worker(database, synchronous, read_capacity(gpus=2))

    assert [_underway(database, synchronous, bracket) for bracket in (0, 1)] == [[0], []]
    monkeypatch.setattr(promotions, "MOST_ELSEWHERE", 0)
    assert [_underway(database, synchronous, bracket) for bracket in (0, 1)] == [[0, 0], [0]]


def _underway(database, study, bracket):
    with database.begin(write=False) as txn:
        return promotions.underway(txn, study_id=study.id, fits=SMALL).of(bracket)


def test_a_rung_closes_without_a_trial_that_fits_no_live_worker(database, synchronous):
    large = live_worker(database, synchronous, read_capacity(gpus=2))
    leave(database, worker_id=large)

    claimant = _small_claimant(database, synchronous)

    assert promote(database, synchronous, claimant, fits=SMALL) is NextStep.CLAIM
    assert states_of(database, synchronous)[0] is State.PENDING


def _small_claimant(database, study):
    """
    Register a worker with 1 GPU as the only live worker; return a simulated worker's claimant.

    The workers that were registered before are marked as ended: the simulated workers have no
    capacity, so every trial would fit them.
    """
    claimant = SimulatedWorker(database, study).claimant()
    arrange.change(database, "UPDATE worker SET ended_at = seen_at")
    live_worker(database, study, read_capacity(gpus=1))
    return claimant
