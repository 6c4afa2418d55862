"""Own loops raise exceptions, report values that cannot be stored, omit metrics and drop trials."""

import gc
import threading
import warnings
import weakref

import pytest
from fleet.workers import eventually
from harness.arrange import rows

import studydb
from studydb.domain.failures import MESSAGE_BYTES, TRACEBACK_BYTES
from studydb.lease import own_trial, own_worker


@pytest.fixture
def study(create_study, storage_url):
    space = {"x": studydb.uniform(0, 1)}
    return create_study("own", num_trials=3, space=space, storage=storage_url)


def attempts(study):
    return rows(
        study.database,
        "SELECT reason, error_type, error_message, traceback FROM attempt ORDER BY trial_id",
    )


class Unprintable(Exception):
    def __str__(self):
        raise TypeError


ERRORS = [ValueError("a\0b"), ValueError("\ud800"), ValueError("x" * 10_000_000), Unprintable()]


@pytest.mark.parametrize("error", ERRORS, ids=["nul", "surrogate", "huge", "str raises"])
def test_exception_with_any_message_is_raised_and_counted_as_a_failure(study, error):
    with pytest.raises(type(error)) as seen, study.ask():
        raise error

    assert seen.value is error
    ((reason, kind, message, trace),) = attempts(study)
    assert reason == "FAILED"
    assert kind.endswith(type(error).__name__)
    assert 0 < len(message.encode()) <= MESSAGE_BYTES
    assert len(trace.encode()) <= TRACEBACK_BYTES
    assert "test_own_loop_content.py" in trace
    assert [one.state for one in study.trials] == ["ERROR"]


def test_trial_without_a_report_ends_as_failed_and_the_loop_learns_why(study):
    with (
        pytest.raises(studydb.InvalidReport, match="finished without a report of 'loss'"),
        study.ask(),
    ):
        pass

    ((reason, kind, message, _),) = attempts(study)
    assert (reason, kind) == ("FAILED", "studydb.domain.errors.InvalidReport")
    assert "trial.report({'loss': …})" in message
    assert [one.state for one in study.trials] == ["ERROR"]


def test_trial_that_is_stopped_before_its_first_report_ends_without_an_error(study):
    trial = study.ask()
    study.stop(trial.number)
    study._loop._heartbeat.beat()

    trial.finish()

    assert study.trial(trial.number).reason == "CANCELLED"


def test_trial_that_goes_on_from_a_checkpoint_may_end_without_a_further_report(study):
    trial = study.ask()
    trial.report({"loss": 0.5}, checkpoint={"step": 1})
    trial.release()

    again = study.ask()
    again.finish()

    assert (again.number, study.trial(again.number).reason) == (trial.number, "COMPLETED")


@pytest.mark.parametrize("text", ["a\0b", "\ud800", "x" * 10_000_000])
def test_call_of_fail_with_any_message_is_counted_as_a_failure(study, text):
    study.ask().fail(text)

    ((reason, kind, message, _),) = attempts(study)
    assert (reason, kind) == ("FAILED", "Error")
    assert 0 < len(message.encode()) <= MESSAGE_BYTES


@pytest.fixture
def unstorable(monkeypatch):
    """Turn each report into a result whose step neither SQLite nor PostgreSQL can store."""
    original = own_trial.read_report

    def read_report(report, **more):
        return type(original(report, **more))(2**70, 0.5, {})

    monkeypatch.setattr(own_trial, "read_report", read_report)


@pytest.mark.parametrize("call", ["flush", "finish", "release"])
def test_trial_fails_if_the_database_refuses_one_of_its_values(study, unstorable, call):
    trial = study.ask()
    trial.report({"loss": 0.5})

    with pytest.raises(studydb.StudydbError, match="cannot store a value"):
        getattr(trial, call)()

    ((reason, kind, *_),) = attempts(study)
    assert (reason, kind.rpartition(".")[2]) == ("FAILED", "InvalidData")
    assert trial.report({"loss": 0.5}) is False
    assert study.ask().number == 1


def test_error_while_storing_does_not_hide_the_exception_of_user_code(study, unstorable):
    trial = study.ask()
    trial.report({"loss": 0.5})

    with pytest.raises(KeyError, match="mine"), trial:
        raise KeyError("mine")

    ((reason, *_),) = attempts(study)
    assert reason == "FAILED"
    assert study.ask().number == 1


@pytest.mark.slow
def test_dropped_trial_fails_if_one_of_its_values_cannot_be_stored(study, unstorable):
    trial = study.ask()
    trial.report({"loss": 0.5})
    del trial
    gc.collect()

    with pytest.warns(UserWarning, match="dropped trial 0 before its end"):
        assert study.ask().number == 1
    study.close()
    reasons = [reason for reason, *_ in attempts(study)]
    assert reasons == ["FAILED", "PREEMPTED"]


@pytest.mark.slow
def test_ask_waits_for_a_dropped_trial_that_is_being_given_back(
    create_study, storage_url, monkeypatch
):
    """The dropped trial is RUNNING until it is given back; then it can be claimed again."""
    given_back, give_back = threading.Event(), own_worker.give_back
    monkeypatch.setattr(
        own_worker, "give_back", lambda *given: given_back.wait(60) and give_back(*given)
    )
    study = create_study("own", num_trials=1, storage=storage_url)
    trial = study.ask()
    del trial
    gc.collect()

    with pytest.warns(UserWarning, match="will run again"), pytest.raises(TimeoutError):
        study.ask(timeout=0.5)
    given_back.set()

    trial = study.ask(timeout=30)
    assert (trial.number, trial.attempt) == (0, 2)


def test_worker_ends_although_ctrl_c_interrupts_each_step_of_its_end(study, monkeypatch):
    trial = study.ask()
    worker = study._loop._worker
    stop = worker.heartbeat.stop

    def interrupted(*_):
        raise KeyboardInterrupt

    def stopped_and_interrupted():
        stop()
        raise KeyboardInterrupt

    monkeypatch.setattr(own_worker, "give_back", interrupted)
    monkeypatch.setattr(worker.heartbeat, "stop", stopped_and_interrupted)

    with pytest.raises(KeyboardInterrupt):
        study.close()

    assert rows(study.database, "SELECT id FROM worker WHERE ended_at IS NULL") == []
    assert trial.number == 0  # this use keeps the trial from being dropped earlier


def test_own_loop_that_cannot_start_a_thread_leaves_no_live_worker(study, monkeypatch):
    def refused(_):
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refused)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            study.ask()

    assert rows(study.database, "SELECT id FROM worker WHERE ended_at IS NULL") == []
    assert study.ask().number == 0


def await_end_of_worker(database, threads):
    eventually(lambda: rows(database, "SELECT id FROM worker WHERE ended_at IS NULL") == [])
    eventually(lambda: not any(thread.is_alive() for thread in threads))


@pytest.mark.slow
def test_dropped_handle_ends_its_worker_and_its_threads(study, storage_url):
    """Python may delete a handle at any line of a thread, even while this thread holds a lock."""
    before = set(threading.enumerate())
    handle = studydb.load_study("own", storage=storage_url)
    with handle.ask() as trial:
        trial.report({"loss": 0.5})
    threads = set(threading.enumerate()) - before
    worker = handle._loop._worker

    with worker.heartbeat._lock, worker._closing:
        handle.database.close()  # otherwise psycopg warns
        del handle
        gc.collect()

    assert len(threads) == 2
    await_end_of_worker(study.database, threads)


@pytest.mark.slow
def test_trial_of_a_dropped_handle_goes_on_until_its_end(study, storage_url):
    before = set(threading.enumerate())
    handle = studydb.load_study("own", storage=storage_url)
    trial = handle.ask()
    threads = set(threading.enumerate()) - before
    loop = weakref.ref(handle._loop)

    handle.database.close()
    del handle
    gc.collect()
    is_kept = loop() is not None
    trial.report({"loss": 0.5})
    trial.finish()
    gc.collect()

    assert (is_kept, loop()) == (True, None)
    assert study.trial(0).reason == "COMPLETED"
    await_end_of_worker(study.database, threads)


@pytest.mark.slow
def test_trial_that_is_dropped_with_its_handle_is_given_back(study, storage_url):
    handle = studydb.load_study("own", storage=storage_url)
    trial = handle.ask()
    trial.report({"loss": 0.5})

    handle.database.close()
    del handle, trial
    gc.collect()

    await_end_of_worker(study.database, ())
    assert [reason for reason, *_ in attempts(study)] == ["PREEMPTED"]
    assert study.trial(0).summary.last_step == 1


def test_result_without_the_metric_of_a_stop_rule_warns_at_the_call_of_report(
    create_study, storage_url
):
    space = {"x": studydb.uniform(0, 1)}
    study = create_study("ruled", space=space, stop={"accuracy": 0.9}, storage=storage_url)

    with study.ask() as trial:
        with pytest.warns(UserWarning, match="compares 'accuracy'") as warned:
            trial.report({"loss": 0.5})
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert trial.report({"loss": 0.4})  # one warning per attempt

    assert [warning.filename for warning in warned] == [__file__]
