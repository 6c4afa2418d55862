"""A trial ends if its process dies `losses_at_step` times in a row after the same step."""

import pytest
from harness.arrange import LEASE_S, SimulatedWorker, end_back_offs, new_study

from studydb.domain.failures import Failure
from studydb.domain.life.ending import DIED
from studydb.domain.life.states import Reason
from studydb.operations.recover import recover

KILLED = Failure(DIED, "The process of the trial was killed by SIGKILL.")


@pytest.fixture
def worker(database):
    return SimulatedWorker(database, new_study(database, num_trials=1, losses_at_step=3))


def begin(worker):
    """Claim the trial without waiting for its back-off."""
    end_back_offs(worker.database)
    return worker.take()


def lose(worker, *values, failure=KILLED):
    """Claim the trial, report the values, and end the attempt as lost; return the trial's state."""
    run = begin(worker)
    run.finish(*values, outcome=Reason.LOST, failure=failure)
    return run.trial().state


@pytest.mark.parametrize("values", [(), (0.5, 0.4)], ids=["no step", "step 2"])
def test_third_loss_after_the_same_step_ends_the_trial(worker, values):
    assert [lose(worker, *values) for _ in range(3)] == ["PENDING", "PENDING", "ERROR"]


def test_loss_after_another_step_restarts_the_count_of_losses(worker):
    steps = [(0.5,), (0.5,), (0.5, 0.4), (0.5, 0.4), (0.5,), (0.5,), (0.5,)]

    assert [lose(worker, *values) for values in steps] == ["PENDING"] * 6 + ["ERROR"]


@pytest.mark.parametrize("between", ["released", "recovered", "another error"])
def test_attempt_that_ends_in_another_way_restarts_the_count_of_losses(
    database, clock, worker, between
):
    ended = [lose(worker), lose(worker)]
    match between:
        case "released":
            begin(worker).finish(outcome=Reason.PREEMPTED)
        case "recovered":
            run = begin(worker)
            for _ in range(2):
                clock.advance(LEASE_S + 1)
                recover(database, worker.study)
            assert run.trial().state == "PENDING"
        case "another error":
            lose(worker, failure=Failure("Terminated", "A stray signal."))

    ended += [lose(worker), lose(worker), lose(worker)]

    assert ended == ["PENDING"] * 4 + ["ERROR"]


def test_max_losses_is_the_only_limit_if_losses_at_step_is_not_given(database):
    worker = SimulatedWorker(database, new_study(database, num_trials=1, max_losses=4))

    assert [lose(worker) for _ in range(5)] == ["PENDING"] * 4 + ["ERROR"]
