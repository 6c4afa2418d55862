"""What user code reports, and which messages the worker receives."""

# The trainables below are written as users write them, so they break these rules of ruff.
# ruff: noqa: ARG005, BLE001, NPY002, T201

import math
import multiprocessing
import os
import random
import signal

import numpy as np
import pytest
from harness.child_messages import STOP, expect_failure, steps_of, values_of

import studydb
from studydb.child.channel import MAX_HEADER_BYTES
from studydb.child.messages import End, Ended, FlushAsked, LostNotice, write
from studydb.domain.life.decisions import TRIAL_IS_DONE, Action, DecidedBy, Verdict
from studydb.domain.life.rules import Threshold
from studydb.domain.life.states import Reason


def three_steps(config):
    for _ in range(3):
        studydb.report({"loss": config["lr"], "accuracy": 0.9})


def test_reports_arrive_in_order_and_before_the_end_message(run):
    messages = run(three_steps)

    assert steps_of(messages) == [1, 2, 3]
    assert messages[0].result.metrics == {"accuracy": 0.9}
    assert messages[-1] == Ended(End.COMPLETED)


def test_report_before_the_next_decision_step_does_not_wait_for_an_answer(start):
    attempt = start(three_steps, next_decision_step=3)

    first, second, third = attempt.receive(), attempt.receive(), attempt.receive()
    assert (first.id, second.id) == (None, None)
    attempt.answer(third)

    assert attempt.finish() == [Ended(End.COMPLETED)]


def test_answer_names_the_next_step_whose_report_waits_for_a_decision(start):
    attempt = start(three_steps, next_decision_step=1)

    attempt.answer(attempt.receive(), next_decision_step=3)

    assert attempt.receive().id is None
    assert attempt.receive().id is not None


@pytest.mark.row("D1")
def test_except_exception_does_not_catch_trial_stopped(start):
    def train(config):
        while True:
            try:
                studydb.report({"loss": 1.0})
            except Exception:
                print("caught")

    attempt = start(train, next_decision_step=1)

    attempt.answer(attempt.receive(), verdict=STOP)

    assert attempt.finish() == [Ended(End.STOPPED)]
    assert attempt.printed == ""


@pytest.mark.row("D1")
def test_function_ends_as_stopped_if_it_catches_trial_stopped_and_returns(start):
    def train(config):
        try:
            studydb.report({"loss": 1.0})
        except studydb.TrialStopped:
            return 0.5

    attempt = start(train, next_decision_step=1)

    attempt.answer(attempt.receive(), verdict=STOP)

    assert attempt.finish() == [Ended(End.STOPPED)]


def test_report_that_meets_a_rule_waits_for_the_decision(start):
    rules = (Threshold("training_iteration", ">=", 2.0), Threshold("loss", ">=", 100.0))
    attempt = start(three_steps, rules=rules)

    assert attempt.receive().id is None
    hit = attempt.receive()
    attempt.answer(hit, verdict=Verdict(Action.STOP, Reason.RULE_STOPPED, DecidedBy.RULE))

    assert hit.result.step == 2
    assert attempt.finish() == [Ended(End.STOPPED)]


@pytest.mark.parametrize("verdict", [None, STOP, TRIAL_IS_DONE])
def test_report_that_says_done_ends_the_trial_whatever_the_verdict_is(start, verdict):
    def train(config):
        try:
            studydb.report({"loss": 1.0, "done": True}, checkpoint={"a": 1})
        finally:
            studydb.report({"loss": 2.0}, checkpoint={"a": 2})

    attempt = start(train)

    attempt.answer(attempt.receive(), verdict=verdict)

    assert attempt.finish() == [Ended(End.COMPLETED)]


def test_report_that_says_done_raises_lease_lost_if_the_lease_is_lost(start):
    attempt = start(lambda config: studydb.report({"loss": 1.0, "done": True}, checkpoint={}))

    attempt.answer(attempt.receive(), lost=True)

    assert attempt.finish() == [Ended(End.LOST)]


def test_reports_after_a_lost_lease_raise_lease_lost_and_send_nothing(start):
    def train(config):
        for value in range(100):
            try:
                studydb.report({"loss": value}, checkpoint={"value": value})
            except studydb.LeaseLost as error:
                print(error.number, error.attempt)
                continue

    attempt = start(train, attempt=4)

    attempt.answer(attempt.receive(), lost=True)

    assert attempt.finish() == [Ended(End.LOST)]
    assert attempt.printed.splitlines() == ["7 4"] * 100


def test_next_report_after_the_notice_of_a_lost_lease_raises_lease_lost(start):
    def train(config, trial):
        trial.flush()
        trial.report({"loss": 1.0})

    attempt = start(train)
    flush = attempt.receive()
    attempt.child.channel.send(write(LostNotice()))
    attempt.answer(flush)

    assert attempt.finish() == [Ended(End.LOST)]


def test_flush_waits_for_the_answer(start):
    def train(config, trial):
        trial.report({"loss": 1.0})
        trial.flush()
        print("flushed")

    attempt = start(train)

    attempt.receive()
    flush = attempt.receive()
    assert isinstance(flush, FlushAsked)
    assert attempt.printed == ""
    attempt.answer(flush)

    assert attempt.finish() == [Ended(End.COMPLETED)]
    assert attempt.printed == "flushed\n"


def test_time_total_continues_from_earlier_attempts(run):
    messages = run(three_steps, time_total_s=100.0)

    times = [m.result.time_total_s for m in messages[:3]]
    assert times == sorted(times)
    assert 100.0 <= times[0] < 110.0


def test_returned_metrics_are_reported_as_the_step_after_the_last_report(run):
    def dict_returned(config):
        studydb.report({"loss": 2.0, "training_iteration": 10})
        return {"loss": 1.0}

    assert steps_of(run(lambda config: 0.5)) == [1]
    assert steps_of(run(dict_returned)) == [10, 11]


@pytest.mark.row("D4")
@pytest.mark.parametrize("last", [0.5, math.nan])
@pytest.mark.parametrize("as_dict", [False, True])
def test_returned_metrics_are_not_reported_again_if_they_equal_the_last_report(run, last, as_dict):
    def train(config):
        studydb.report({"loss": last, "accuracy": 1})
        return {"loss": last, "training_iteration": 1} if as_dict else last

    assert steps_of(run(train)) == [1]


def test_report_returns_true_so_that_the_code_of_an_own_loop_also_runs_in_a_worker(run):
    def train(config, trial):
        for step in range(1, 4):
            if not (trial.report({"loss": 1 / step}) and studydb.report({"loss": step})):
                break

    assert len(values_of(run(train)[:-1])) == 6


@pytest.mark.row("D2")
def test_yielded_values_and_calls_of_the_reporter_argument_are_reports(run):
    def generate(config):
        yield 3
        yield {"loss": 2}
        return 1

    def with_reporter(config, reporter):
        reporter(loss=0.25)

    assert values_of(run(generate)[:-1]) == [3, 2, 1]
    assert values_of(run(with_reporter)[:-1]) == [0.25]


def test_nan_and_infinities_are_reported_unchanged(run):
    def train(config):
        for value in (math.nan, math.inf, -math.inf):
            studydb.report({"loss": value, "other": value})

    first, second, third, _ = run(train)

    assert math.isnan(first.result.value)
    assert math.isnan(first.result.metrics["other"])
    assert (second.result.value, third.result.value) == (math.inf, -math.inf)


def test_invalid_report_raises_a_value_error_and_the_trial_can_continue(run):
    def train(config):
        studydb.report({"loss": 1.0, "training_iteration": 5})
        for bad in ({"training_iteration": 5, "loss": 1}, {"accuracy": 1}, {"loss": "x"}, 3):
            try:
                studydb.report(bad)
            except ValueError as error:
                print(type(error).__name__)
        studydb.report({"loss": 2.0})

    assert steps_of(run(train)) == [5, 6]


def test_report_too_large_for_the_pipe_is_an_invalid_report(run):
    def train(config):
        studydb.report({"loss": 1.0, "text": "x" * (MAX_HEADER_BYTES + 1)})

    expect_failure(run(train), "InvalidReport", "too large")


def test_report_outside_a_trial_raises_usage_error():
    with pytest.raises(studydb.UsageError, match="outside a trial"):
        studydb.report({"loss": 1.0})


def test_trial_has_number_attempt_seed_and_a_config_that_user_code_may_change(start):
    def train(config, trial):
        config["lr"] = 99
        print(trial.config is config, trial.number, trial.attempt, trial.seed, trial.checkpoint)
        return 1

    attempt = start(train, attempt=2)
    attempt.finish()

    assert attempt.printed == "True 7 2 11 None\n"


def test_random_numbers_of_user_code_depend_only_on_the_seed_of_the_trial(run):
    def train(config):
        return {"loss": random.random(), "numpy": np.random.random()}

    one, again, other = run(train), run(train), run(train, seed=12)

    assert one[0].result.metrics == again[0].result.metrics
    assert one[0].result.value == again[0].result.value
    assert one[0].result.metrics != other[0].result.metrics


def test_threads_of_user_code_may_report(run):
    def train(config):
        import threading  # noqa: PLC0415  as users do

        threads = [threading.Thread(target=three_steps, args=(config,)) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    assert steps_of(run(train)) == list(range(1, 25))


def test_report_in_a_signal_handler_during_a_report_is_refused(start):
    def train(config):
        signal.signal(signal.SIGUSR1, lambda *_: studydb.report({"loss": 2.0}))
        studydb.report({"loss": 1.0})

    attempt = start(train, next_decision_step=1)
    attempt.receive()  # the report waits for the decision
    os.kill(attempt.child.process.pid, signal.SIGUSR1)

    expect_failure(attempt.finish(), "UsageError", "A signal handler used trial")


def test_process_forked_by_user_code_cannot_report(start):
    def in_fork():
        try:
            studydb.report({"loss": 0.0})
        except studydb.UsageError as error:
            print("refused:", error)

    def train(config):
        fork = multiprocessing.get_context("fork").Process(target=in_fork)
        fork.start()
        fork.join()
        return 1.0

    attempt = start(train)

    assert values_of(attempt.finish()[:-1]) == [1.0]
    assert "a fork of the trial's process" in attempt.printed


@pytest.mark.parametrize("step", [2**62, 2**70, True, "9"])
def test_invalid_step_is_ignored_if_the_checkpoint_is_saved_after_trial_stopped(start, step):
    def train(config):
        studydb.report({"loss": 1.0})
        try:
            studydb.report({"loss": 1.0}, checkpoint={"a": 1})
        except studydb.TrialStopped:
            studydb.report({"training_iteration": config["step"]}, checkpoint={"a": 2})

    attempt = start(train, config={"step": step})
    attempt.receive()
    attempt.answer(attempt.receive(), verdict=STOP)
    last = attempt.receive()
    attempt.answer(last)

    assert last.saved.step == 2
    assert attempt.finish() == [Ended(End.STOPPED)]
