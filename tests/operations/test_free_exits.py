"""
A command may exit and give its trial back at no cost, nine times in a row without a new checkpoint.

Each further such exit counts as a loss. A release by a worker is always free.
"""

import pytest
from harness.arrange import SimulatedWorker, end_back_offs, new_study

from studydb.domain.failures import Failure
from studydb.domain.life.ending import FREE_EXITS, GIVEN_BACK, TRY_LATER
from studydb.domain.life.states import Reason


@pytest.fixture
def worker(database):
    return SimulatedWorker(database, new_study(database, num_trials=1, max_losses=2))


def give_back(worker, kind=GIVEN_BACK, *, save=False):
    """Claim the trial without waiting for its back-off, and give it back; return the ending."""
    end_back_offs(worker.database)
    run = worker.take()
    if save:
        run.report(0.5)
        run.save()
    return run.finish(outcome=Reason.PREEMPTED, failure=Failure(kind, "exited with code 75"))


def test_exits_without_a_checkpoint_are_free_nine_times_in_a_row_and_losses_afterwards(worker):
    endings = [give_back(worker) for _ in range(FREE_EXITS)]
    assert {(each.state, each.losses, each.delay_s) for each in endings} == {("PENDING", 0, 0.0)}

    later = [give_back(worker) for _ in range(3)]

    assert [(each.state, each.losses) for each in later] == [
        ("PENDING", 1),
        ("PENDING", 2),
        ("ERROR", 3),
    ]
    assert {each.attempt_reason for each in later} == {Reason.LOST}


def test_new_checkpoint_restarts_the_count_of_free_exits(worker):
    endings = [give_back(worker, save=turn == 5) for turn in range(5 + FREE_EXITS + 1)]

    assert {each.losses for each in endings} == {0}
    assert give_back(worker).losses == 1


def test_loss_restarts_the_count_of_free_exits(worker):
    for turn in range(2 * FREE_EXITS):
        ending = give_back(worker, kind=TRY_LATER if turn % 2 else GIVEN_BACK)
        if turn == FREE_EXITS - 1:
            end_back_offs(worker.database)
            worker.take().finish(outcome=Reason.LOST, failure=Failure("Lost", "died"))

    assert ending.losses == 1


def test_trial_waits_longer_after_each_exit_that_asks_for_a_later_attempt(worker):
    delays_s = [give_back(worker, TRY_LATER).delay_s for _ in range(4)]

    assert delays_s == [1.0, 2.0, 4.0, 8.0]


def test_release_by_a_worker_is_always_free(worker):
    for _ in range(FREE_EXITS + 3):
        end_back_offs(worker.database)
        ending = worker.take().finish(outcome=Reason.PREEMPTED)

    assert (ending.state, ending.losses) == ("PENDING", 0)
