"""The study's `retry` decides which failures are retried, and which count for `max_failures`."""

import pytest
from harness.arrange import SimulatedWorker, new_study

from studydb.domain.failures import failure_of
from studydb.domain.life.retry_policy import UNCOUNTED_IN_A_ROW, Retry
from studydb.domain.life.states import Reason, State
from studydb.operations.create import load
from studydb.operations.recover import recover

FLAKY = failure_of(ConnectionResetError("gone"))
RETRY = Retry(uncounted=[OSError], never=[ValueError])


def under(database, retry=RETRY, **overrides):
    """Create a study and load it from its row; return a simulated worker of the loaded study."""
    study = new_study(database, retry=retry, num_trials=1, **overrides)
    return SimulatedWorker(database, load(database, study.name))


def fail(clock, worker, failure=FLAKY):
    """Let the next attempt fail and its back-off pass; return the attempt's ending."""
    ending = worker.take().finish(outcome=Reason.FAILED, failure=failure)
    clock.advance(ending.delay_s + 1)
    recover(worker.database, worker.study)
    return ending


def test_exception_that_is_never_retried_ends_the_trial(database, clock):
    worker = under(database, max_failures=5)

    ending = fail(clock, worker, failure_of(UnicodeError("bad")))

    assert (ending.state, ending.reason, ending.failures) == (State.ERROR, Reason.FAILED, 1)


@pytest.mark.parametrize(
    ("error", "state"), [(FileNotFoundError(), State.PENDING), (KeyError("x"), State.ERROR)]
)
def test_only_the_named_exceptions_are_retried(database, clock, error, state):
    worker = under(database, Retry(on=[OSError]), max_failures=5)

    assert fail(clock, worker, failure_of(error)).state is state


def test_each_uncounted_failure_doubles_the_back_off_and_does_not_count_for_max_failures(
    database, clock
):
    worker = under(database, max_failures=0)

    endings = [fail(clock, worker) for _ in range(4)]

    assert {(ending.state, ending.failures) for ending in endings} == {(State.PENDING, 0)}
    assert [ending.delay_s for ending in endings] == [1, 2, 4, 8]


def test_after_nine_uncounted_failures_in_a_row_the_next_failure_counts(database, clock):
    worker = under(database, max_failures=0)
    endings = [fail(clock, worker) for _ in range(UNCOUNTED_IN_A_ROW)]

    last = fail(clock, worker)

    assert {ending.state for ending in endings} == {State.PENDING}
    assert (last.state, last.failures) == (State.ERROR, 1)


def test_new_checkpoint_restarts_the_count_of_uncounted_failures_in_a_row(database, clock):
    worker = under(database, max_failures=0)
    for _ in range(UNCOUNTED_IN_A_ROW):
        fail(clock, worker)
    run = worker.take()
    run.report(0.5)
    run.save()
    run.finish(outcome=Reason.PREEMPTED)

    assert fail(clock, worker).state is State.PENDING


def test_failures_of_another_kind_count_even_between_uncounted_failures(database, clock):
    worker = under(database, max_failures=1)
    other = failure_of(KeyError("x"))

    endings = [fail(clock, worker, each) for each in (FLAKY, other, FLAKY, other)]

    assert [ending.failures for ending in endings] == [0, 1, 1, 2]
    assert endings[-1].state is State.ERROR
