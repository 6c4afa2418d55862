"""A trial's state after its attempt ends, a retry's delay, and which verdict is carried out."""

import itertools

import pytest

from studydb.domain.life.decisions import Action, DecidedBy, Verdict
from studydb.domain.life.ending import (
    LONGEST_DELAY_S,
    NO_LIMIT,
    Ending,
    RetryLimits,
    TrialFacts,
    decide_ending,
    final_verdict,
    requested_verdict,
    retry_delay_s,
)
from studydb.domain.life.states import MOVES, Reason, State, Status

STOP = Verdict(Action.STOP, Reason.EARLY_STOPPED, DecidedBy.SCHEDULER)
PAUSE = Verdict(Action.PAUSE, Reason.PAUSED, DecidedBy.SCHEDULER)
EXPLOIT = Verdict(Action.EXPLOIT, Reason.EXPLOITED, DecidedBy.SCHEDULER)
BY_PERSON = Verdict(Action.STOP, Reason.CANCELLED, DecidedBy.PERSON)
BY_STUDY = Verdict(Action.STOP, Reason.CANCELLED, DecidedBy.STUDY)
PAUSE_BY_PERSON = Verdict(Action.PAUSE, Reason.PAUSED, DecidedBy.PERSON)
PAUSE_BY_STUDY = Verdict(Action.PAUSE, Reason.PAUSED, DecidedBy.STUDY)

OUTCOMES = (Reason.COMPLETED, Reason.FAILED, Reason.LOST, Reason.PREEMPTED)


def end(outcome, *, verdict=None, failures=0, losses=0, max_failures=0, max_losses=10):
    return decide_ending(
        outcome, TrialFacts(failures, losses, verdict), RetryLimits(max_failures, max_losses)
    )


@pytest.mark.parametrize(
    ("outcome", "state", "reason"),
    [
        (Reason.COMPLETED, State.TERMINATED, Reason.COMPLETED),
        (Reason.FAILED, State.ERROR, Reason.FAILED),
        (Reason.LOST, State.PENDING, None),
        (Reason.PREEMPTED, State.PENDING, None),
    ],
)
def test_without_a_verdict_the_next_state_follows_from_the_outcome(outcome, state, reason):
    ending = end(outcome)

    assert (ending.state, ending.reason, ending.attempt_reason) == (state, reason, outcome)


@pytest.mark.parametrize(
    ("earlier", "state"), [(0, State.PENDING), (1, State.PENDING), (2, State.ERROR)]
)
@pytest.mark.parametrize(
    ("outcome", "counter"), [(Reason.FAILED, "failures"), (Reason.LOST, "losses")]
)
def test_trial_survives_as_many_failures_and_losses_as_allowed(outcome, counter, earlier, state):
    ending = end(outcome, **{counter: earlier, f"max_{counter}": 2})

    assert (ending.state, getattr(ending, counter)) == (state, earlier + 1)


@pytest.mark.parametrize("failures", [0, 1, 1024, 10**6])
def test_trial_without_a_limit_is_retried_after_any_number_of_failures(failures):
    ending = end(Reason.FAILED, failures=failures, max_failures=NO_LIMIT)

    assert ending.state is State.PENDING
    assert ending.delay_s <= LONGEST_DELAY_S


def test_release_is_not_counted_and_has_no_delay():
    assert end(Reason.PREEMPTED, failures=3, losses=4) == Ending(
        State.PENDING, None, Reason.PREEMPTED, failures=3, losses=4
    )


def test_retry_delay_doubles_up_to_its_limit():
    assert [retry_delay_s(count) for count in range(12)] == [
        0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300,
    ]  # fmt: skip


def test_first_loss_has_no_delay():
    assert [end(Reason.LOST, losses=losses).delay_s for losses in range(3)] == [0, 1, 2]


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_verdict_to_stop_is_carried_out_whatever_the_outcome(outcome):
    ending = end(outcome, verdict=STOP)

    died = outcome in (Reason.FAILED, Reason.LOST)
    assert (ending.state, ending.reason) == (State.TERMINATED, Reason.EARLY_STOPPED)
    assert ending.attempt_reason is (outcome if died else Reason.EARLY_STOPPED)


@pytest.mark.parametrize("outcome", [one for one in OUTCOMES if one is not Reason.COMPLETED])
def test_verdict_to_pause_is_carried_out_unless_the_trial_completes(outcome):
    ending = end(outcome, verdict=PAUSE)

    assert (ending.state, ending.reason, ending.paused_by) == (State.PAUSED, None, "scheduler")


def test_completed_attempt_ends_its_trial_despite_a_verdict_to_pause():
    assert end(Reason.COMPLETED, verdict=PAUSE) == end(Reason.COMPLETED)


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_trial_is_pending_again_if_its_attempt_ends_with_a_verdict_to_exploit(outcome):
    ending = end(outcome, verdict=EXPLOIT, max_failures=1)

    assert (ending.state, ending.reason) == (State.PENDING, None)


@pytest.mark.parametrize(
    ("outcome", "spent"), [(Reason.FAILED, "failures"), (Reason.LOST, "losses")]
)
def test_verdict_to_exploit_does_not_lift_the_limits_of_failures_and_losses(outcome, spent):
    ending = end(outcome, verdict=EXPLOIT, **{spent: 99})

    assert (ending.state, ending.reason) == (State.ERROR, outcome)


@pytest.mark.parametrize("outcome", OUTCOMES)
@pytest.mark.parametrize("verdict", [None, STOP, PAUSE, EXPLOIT])
def test_every_ending_is_an_allowed_move_with_matching_reason_and_delay(outcome, verdict):
    for failures, losses in itertools.product((0, 9), (0, 99)):
        ending = end(outcome, verdict=verdict, failures=failures, losses=losses)

        assert (State.RUNNING, ending.state) in MOVES
        assert (ending.reason is not None) == (ending.state in (State.TERMINATED, State.ERROR))
        assert (ending.paused_by is not None) == (ending.state is State.PAUSED)
        assert ending.delay_s == 0 or ending.state is State.PENDING


@pytest.mark.parametrize(
    ("request_", "status", "verdict"),
    [
        (None, Status.RUNNING, None),
        ("STOP", Status.RUNNING, BY_PERSON),
        ("STOP", Status.PAUSED, BY_PERSON),
        ("PAUSE", Status.RUNNING, PAUSE_BY_PERSON),
        ("PAUSE", Status.PAUSED, PAUSE_BY_PERSON),
        ("PAUSE", Status.STOPPED, BY_STUDY),
        (None, Status.PAUSED, PAUSE_BY_STUDY),
        (None, Status.STOPPED, BY_STUDY),
    ],
)
def test_stop_wins_over_pause_and_a_pause_of_the_trial_wins_over_a_pause_of_its_study(
    request_, status, verdict
):
    assert requested_verdict(request_, status) == verdict


@pytest.mark.parametrize(
    ("verdict", "request_", "carried_out"),
    [
        *((EXPLOIT, one, one) for one in (BY_PERSON, BY_STUDY, PAUSE_BY_PERSON, PAUSE_BY_STUDY)),
        (None, None, None),
        (None, BY_PERSON, BY_PERSON),
        (STOP, BY_PERSON, STOP),
        (STOP, PAUSE_BY_PERSON, STOP),
        (PAUSE, None, PAUSE),
        (PAUSE, BY_PERSON, BY_PERSON),
        (PAUSE, BY_STUDY, BY_STUDY),
        (PAUSE_BY_STUDY, PAUSE_BY_PERSON, PAUSE_BY_PERSON),
        (PAUSE_BY_PERSON, PAUSE_BY_STUDY, PAUSE_BY_STUDY),
        (PAUSE_BY_PERSON, None, None),
        (BY_PERSON, None, None),
        (BY_STUDY, PAUSE_BY_PERSON, PAUSE_BY_PERSON),
        (PAUSE, PAUSE_BY_STUDY, PAUSE),
    ],
)
def test_final_verdict_follows_from_stored_verdict_and_request(verdict, request_, carried_out):
    assert final_verdict(verdict, request_) == carried_out
