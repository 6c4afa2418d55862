"""If a lost trial cannot be ended, other trials are recovered, and its study can be deleted."""

import pytest
from harness.arrange import (
    change,
    new_study,
    process,
    recover_after_expiry,
    rows,
    states_of,
)

from studydb.domain.errors import StorageBusy
from studydb.domain.life.states import State
from studydb.operations import attempt_end
from studydb.operations.delete import delete
from studydb.operations.recover import recover, recover_host


@pytest.fixture
def study(database, clock):
    return new_study(database, max_losses=0)


@pytest.fixture
def lost(worker):
    """Three trials of a worker that will not renew its leases."""
    return [worker.take() for _ in range(3)]


@pytest.fixture
def break_endings(monkeypatch):
    """Return a function that makes the next `times` calls of `decide_ending` raise an error."""

    def break_endings(times, error=None):
        original, left = attempt_end.decide_ending, [error or ZeroDivisionError("a bug")] * times

        def decide_ending(*arguments):
            if left:
                raise left.pop()
            return original(*arguments)

        monkeypatch.setattr(attempt_end, "decide_ending", decide_ending)

    return break_endings


def recovery_failures(database):
    return rows(database, "SELECT trial_id, data FROM event WHERE kind = 'recovery failed'")


def test_second_try_ends_a_lost_trial_if_the_first_try_raises_an_error(
    database, clock, study, lost, break_endings
):
    break_endings(1)

    assert recover_after_expiry(clock, database, study) == 3

    assert states_of(database, study) == [State.ERROR] * 3
    assert recovery_failures(database) == []
    kinds = rows(database, "SELECT error_type FROM attempt ORDER BY trial_id")
    assert kinds == [("ZeroDivisionError",), (None,), (None,)]


def test_lost_trial_that_cannot_be_ended_is_skipped_and_recorded_once(
    database, clock, study, lost, break_endings
):
    break_endings(4)

    assert recover_after_expiry(clock, database, study) == 1

    assert states_of(database, study) == [State.RUNNING, State.RUNNING, State.ERROR]
    assert len(recovery_failures(database)) == 2
    break_endings(2)
    assert recover(database, study) == 1
    assert len(recovery_failures(database)) == 2


def test_recovery_at_the_start_of_a_worker_skips_a_trial_that_cannot_be_ended(
    database, clock, study, lost, break_endings
):
    break_endings(2)

    assert recover_host(database, study, process=process(), is_alive=lambda _: False) == 2


def test_study_with_a_trial_that_cannot_be_ended_can_be_deleted(
    database, clock, study, lost, break_endings
):
    break_endings(100)
    assert recover_after_expiry(clock, database, study) == 0

    delete(database, study)

    assert rows(database, "SELECT count(*) FROM study")[0][0] == 0


def test_database_error_during_recovery_is_raised_and_no_trial_is_ended(
    database, clock, study, lost, break_endings
):
    break_endings(1, StorageBusy("a deadlock"))

    with pytest.raises(StorageBusy):
        recover_after_expiry(clock, database, study)

    assert states_of(database, study) == [State.RUNNING] * 3
    assert recover(database, study) == 3
    assert recovery_failures(database) == []


def test_lost_trial_is_ended_even_if_its_metrics_cannot_be_summed_up(
    database, clock, study, lost, monkeypatch
):
    def in_transaction(*_arguments, **_more):
        raise OverflowError("intermediate overflow")

    for run in lost:
        run.report(0.5)
    monkeypatch.setattr(attempt_end.summing, "in_transaction", in_transaction)

    assert recover_after_expiry(clock, database, study) == 3

    assert states_of(database, study) == [State.ERROR] * 3
    kinds = [kind for (kind,) in rows(database, "SELECT error_type FROM attempt")]
    assert [kind.rpartition(".")[2] for kind in kinds] == ["InvalidData"] * 3


def test_verdict_by_an_unknown_author_does_not_prevent_the_renewal_of_leases(database, worker):
    runs = [worker.take(), worker.take()]
    change(
        database,
        "UPDATE trial SET verdict = 'STOP', verdict_reason = 'CANCELLED', verdict_by = 'another' "
        "WHERE number = 0",
    )

    renewed = worker.renew(*runs)

    assert len(renewed.held) == 2
