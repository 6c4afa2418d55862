"""`Retry` decides by an exception's class whether the failure counts and the trial is retried."""

import json

import pytest

from studydb.domain.errors import InvalidSpec
from studydb.domain.failures import MOST_BASES, Failure, bounded_failure, failure_of
from studydb.domain.life.ending import RetryLimits, TrialFacts, decide_ending
from studydb.domain.life.retry_policy import Counting, Retry, read_retry
from studydb.domain.life.states import Reason, State

COUNTED, UNCOUNTED, FINAL = Counting


class Mixin:
    pass


class DiskError(OSError, Mixin):
    pass


NAME = f"{__name__}.DiskError"


def counting(retry, error):
    return retry.counting(failure_of(error))


def test_failure_carries_the_names_of_the_bases_of_its_class():
    failure = failure_of(DiskError("full"))

    assert failure.type == NAME
    assert failure.bases == ("OSError", "Exception", f"{__name__}.Mixin")


@pytest.mark.parametrize(
    ("retry", "error", "expected"),
    [
        (Retry(), ValueError(), COUNTED),
        (Retry(never=[ValueError]), ValueError(), FINAL),
        (Retry(never=[ValueError]), UnicodeError(), FINAL),  # a subclass
        (Retry(never=[UnicodeError]), ValueError(), COUNTED),
        (Retry(on=[OSError]), DiskError(), COUNTED),
        (Retry(on=[OSError]), ValueError(), FINAL),
        (Retry(on=[]), OSError(), FINAL),
        (Retry(on=[NAME]), DiskError(), COUNTED),
        (Retry(on=["DiskError"]), DiskError(), FINAL),  # the name must include the module
        (Retry(uncounted=[OSError]), DiskError(), UNCOUNTED),
        (Retry(uncounted=[OSError], never=[DiskError]), DiskError(), FINAL),
        (Retry(on=[ValueError], uncounted=[OSError]), OSError(), UNCOUNTED),
    ],
)
def test_options_take_precedence_in_the_order_never_uncounted_on(retry, error, expected):
    assert counting(retry, error) is expected


@pytest.mark.parametrize(
    ("counting", "ending"),
    [
        (COUNTED, (State.PENDING, 2, 2.0)),
        (UNCOUNTED, (State.PENDING, 1, 8.0)),
        (FINAL, (State.ERROR, 2, 0.0)),
    ],
)
def test_counting_of_a_failure_decides_the_ending_of_its_trial(counting, ending):
    facts = TrialFacts(1, 0, None, delay_s=8.0, counting=counting)

    ended = decide_ending(Reason.FAILED, facts, RetryLimits(max_failures=5, max_losses=0))

    assert (ended.state, ended.failures, ended.delay_s) == ending
    assert ended.attempt_reason is Reason.FAILED


@pytest.mark.parametrize(
    "given",
    [
        Retry(never=[ValueError], on=(OSError, "torch.OutOfMemoryError")),
        Retry(uncounted=TimeoutError),
        Retry(on=[]),
        Retry(),
    ],
)
def test_retry_is_read_from_its_json(given):
    stored = json.loads(json.dumps(given.to_json()))

    assert read_retry("retry", stored) == given


def test_retry_is_read_from_its_text():
    text = "Retry(on=[OSError, torch.OutOfMemoryError], never=[ValueError])"

    assert read_retry("retry", text) == Retry(
        on=[OSError, "torch.OutOfMemoryError"], never=[ValueError]
    )
    assert str(read_retry("retry", text)) == text


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (3, "retry is 3; give studydb.Retry"),
        ("Retri()", "There is no retry policy 'Retri'"),
        ("Retry(when=[OSError])", "has no argument 'when'"),
        ({"name": "Retry", "on": 3}, "Retry.on is 3; give a list"),
        ({"name": "Retry", "never": ["a b"]}, "Retry.never has 'a b'"),
    ],
)
def test_wrong_retry_is_refused(given, message):
    with pytest.raises(InvalidSpec, match=message):
        read_retry("retry", given)


def test_class_that_is_no_exception_is_refused():
    with pytest.raises(InvalidSpec, match="no exception class"):
        Retry(on=[int])


def test_number_and_length_of_the_bases_are_bounded():
    failure = bounded_failure(Failure("E", "", "", ("x" * 10_000,) * 100))

    assert len(failure.bases) == MOST_BASES
    assert max(map(len, failure.bases)) <= 1024
