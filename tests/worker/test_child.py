"""One attempt in its own process: what the user's code sees, and what its supervisor is told."""

# The functions here are such as users write.
# ruff: noqa: ARG005, BLE001, NPY002, T201

import dataclasses
import math
import multiprocessing
import os
import random
import signal
import socket
import struct
import sys
import time
import uuid
from pathlib import Path

import numpy as np
import pytest

import studydb
from studydb.artifacts import DirectoryStore, digest_of
from studydb.child.channel import MAX_HEADER_BYTES, Channel, Frame, FrameError
from studydb.child.job import Restore
from studydb.child.messages import (
    Answered,
    End,
    Ended,
    FlushAsked,
    LostNotice,
    Reported,
    StopNotice,
    read_from_child,
    read_from_supervisor,
    write,
)
from studydb.domain.decisions import Action, Verdict
from studydb.domain.metrics import Result
from studydb.domain.records import Failure, Trainable
from studydb.domain.rules import Threshold
from studydb.domain.states import Reason

STOP = Verdict(Action.STOP, Reason.EARLY_STOPPED, "scheduler")


def three_steps(config):
    for _ in range(3):
        studydb.report({"loss": config["lr"], "accuracy": 0.9})


def steps_of(messages):
    return [m.result.step for m in messages if isinstance(m, Reported) and m.result is not None]


def values_of(messages):
    return [m.result.value for m in messages if isinstance(m, Reported)]


def expect_failure(messages, kind, *texts):
    assert isinstance(messages[-1], Ended)
    assert messages[-1].end is End.FAILED
    failure = messages[-1].failure
    assert failure.type.endswith(kind)
    for text in texts:
        assert text in failure.message
    return failure


# reporting


def test_reports_arrive_in_order_and_before_the_end(run):
    messages = run(three_steps)

    assert steps_of(messages) == [1, 2, 3]
    assert messages[0].result.metrics == {"accuracy": 0.9}
    assert messages[-1] == Ended(End.COMPLETED)


def test_report_does_not_wait_before_the_decision_step(start):
    attempt = start(three_steps, next_decision_step=3)

    first, second, third = attempt.receive(), attempt.receive(), attempt.receive()
    assert (first.id, second.id) == (None, None)
    attempt.answer(third)

    assert attempt.finish() == [Ended(End.COMPLETED)]


def test_answer_names_the_next_decision_step(start):
    attempt = start(three_steps, next_decision_step=1)

    attempt.answer(attempt.receive(), next_decision_step=3)

    assert attempt.receive().id is None
    assert attempt.receive().id is not None


def test_verdict_raises_trial_stopped_and_no_bare_except_swallows_it(start):
    def stubborn(config):
        while True:
            try:
                studydb.report({"loss": 1.0})
            except Exception:
                print("swallowed")

    attempt = start(stubborn, next_decision_step=1)

    attempt.answer(attempt.receive(), verdict=STOP)

    assert attempt.finish() == [Ended(End.STOPPED)]
    assert attempt.printed == ""


def test_code_that_returns_after_its_verdict_was_stopped_all_the_same(start):
    def train(config):
        try:
            studydb.report({"loss": 1.0})
        except studydb.TrialStopped:
            return 0.5

    attempt = start(train, next_decision_step=1)

    attempt.answer(attempt.receive(), verdict=STOP)

    assert attempt.finish() == [Ended(End.STOPPED)]


def test_rule_that_hits_waits_for_the_transaction_that_judges_it(start):
    rules = (Threshold("training_iteration", ">=", 2.0), Threshold("loss", ">=", 100.0))
    attempt = start(three_steps, rules=rules)

    assert attempt.receive().id is None
    hit = attempt.receive()
    attempt.answer(hit, verdict=Verdict(Action.STOP, Reason.RULE_STOPPED, "rule"))

    assert hit.result.step == 2
    assert attempt.finish() == [Ended(End.STOPPED)]


def test_stop_that_comes_unasked_is_raised_by_the_next_report(start, tmp_path):
    def train(config):
        studydb.report({"loss": 1.0})
        while not Path("sent").exists():
            time.sleep(0.001)
        studydb.report({"loss": 2.0})

    attempt = start(train)
    attempt.receive()
    attempt.child.channel.send(write(StopNotice(STOP)))
    (tmp_path / "sent").touch()

    assert attempt.finish() == [Ended(End.STOPPED)]


def test_lost_lease_raises_and_nothing_more_is_sent(start):
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


def test_notice_of_a_lost_lease_is_raised_by_the_next_report(start):
    def train(config, trial):
        trial.flush()
        trial.report({"loss": 1.0})

    attempt = start(train)
    flush = attempt.receive()
    attempt.child.channel.send(write(LostNotice()))
    attempt.answer(flush)

    assert attempt.finish() == [Ended(End.LOST)]


def test_flush_waits_until_everything_is_safe(start):
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


def test_time_goes_on_from_earlier_attempts(run):
    messages = run(three_steps, time_total_s=100.0)

    times = [m.result.time_total_s for m in messages[:3]]
    assert times == sorted(times)
    assert 100.0 <= times[0] < 110.0


def test_what_is_returned_is_the_step_after_the_last(run):
    def dict_returned(config):
        studydb.report({"loss": 2.0, "training_iteration": 10})
        return {"loss": 1.0}

    assert steps_of(run(lambda config: 0.5)) == [1]
    assert steps_of(run(dict_returned)) == [10, 11]


@pytest.mark.parametrize("last", [0.5, math.nan])
@pytest.mark.parametrize("as_dict", [False, True])
def test_what_is_returned_again_is_not_reported_again(run, last, as_dict):
    def train(config):
        studydb.report({"loss": last, "accuracy": 1})
        return {"loss": last, "training_iteration": 1} if as_dict else last

    assert steps_of(run(train)) == [1]


def test_generator_and_reporter_report_too(run):
    def generate(config):
        yield 3
        yield {"loss": 2}
        return 1

    def with_reporter(config, reporter):
        reporter(loss=0.25)

    assert values_of(run(generate)[:-1]) == [3, 2, 1]
    assert values_of(run(with_reporter)[:-1]) == [0.25]


def test_nan_and_infinities_arrive(run):
    def train(config):
        for value in (math.nan, math.inf, -math.inf):
            studydb.report({"loss": value, "other": value})

    first, second, third, _ = run(train)

    assert math.isnan(first.result.value)
    assert math.isnan(first.result.metrics["other"])
    assert (second.result.value, third.result.value) == (math.inf, -math.inf)


def test_bad_report_is_a_value_error_and_the_trial_can_go_on(run):
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


def test_report_outside_a_trial_says_what_to_do():
    with pytest.raises(studydb.UsageError, match="outside a trial"):
        studydb.report({"loss": 1.0})


def test_trial_knows_its_facts_and_config_is_its_own(start):
    def train(config, trial):
        config["lr"] = 99
        print(trial.config is config, trial.number, trial.attempt, trial.seed, trial.checkpoint)
        return 1

    attempt = start(train, attempt=2)
    attempt.finish()

    assert attempt.printed == "True 7 2 11 None\n"


def test_random_numbers_follow_the_seed_and_not_the_fork_server(run):
    def train(config):
        return {"loss": random.random(), "numpy": np.random.random()}

    one, again, other = run(train), run(train), run(train, seed=12)

    assert one[0].result.metrics == again[0].result.metrics
    assert one[0].result.value == again[0].result.value
    assert one[0].result.metrics != other[0].result.metrics


def test_threads_of_the_users_may_report(run):
    def train(config):
        import threading  # noqa: PLC0415  as users do

        threads = [threading.Thread(target=three_steps, args=(config,)) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    assert steps_of(run(train)) == list(range(1, 25))


def test_copy_of_the_trials_process_cannot_report(start):
    def in_copy():
        try:
            studydb.report({"loss": 0.0})
        except studydb.UsageError as error:
            print("refused:", error)

    def train(config):
        copy = multiprocessing.get_context("fork").Process(target=in_copy)
        copy.start()
        copy.join()
        return 1.0

    attempt = start(train)

    assert values_of(attempt.finish()[:-1]) == [1.0]
    assert "a copy of the trial's process" in attempt.printed


# ends


def test_exception_is_told_with_the_users_frames_alone(run):
    def inner():
        raise ValueError("learning rate is negative")

    def train(config):
        try:
            inner()
        except ValueError as error:
            raise RuntimeError("training failed") from error

    failure = expect_failure(run(train), "RuntimeError", "training failed")

    assert "learning rate is negative" in failure.traceback
    assert failure.traceback.count("in train") == 2
    assert "studydb/child" not in failure.traceback
    assert "studydb/trainables" not in failure.traceback


def test_failure_is_printed_for_those_who_read_logs(start):
    def train(config):
        raise ValueError("seen in the log")

    attempt = start(train)
    attempt.finish()

    assert "ValueError: seen in the log" in attempt.printed


def test_huge_and_strange_messages_are_bounded_and_storable(run):
    def train(config):
        raise ValueError("x" * 10_000_000 + "\0\ud800end")

    failure = expect_failure(run(train), "ValueError")

    assert len(failure.message.encode()) <= 8 << 10
    assert len(failure.traceback.encode()) <= 64 << 10
    assert "\0" not in failure.message
    assert failure.message.endswith("\\x00\\ud800end")


def test_exception_whose_text_raises_is_told_all_the_same(run):
    class Nasty(Exception):
        def __str__(self):
            raise TypeError

    def train(config):
        raise Nasty

    expect_failure(run(train), "Nasty", "its message raised TypeError")


@pytest.mark.parametrize("status", [0, 3, "text", None])
def test_sys_exit_in_a_trainable_is_a_failure(run, status):
    def train(config):
        studydb.report({"loss": 1.0})
        sys.exit(status)

    expect_failure(run(train), "SystemExit", f"sys.exit({status!r})")


def test_keyboard_interrupt_and_homemade_stops_are_failures(run):
    def interrupted(config):
        raise KeyboardInterrupt

    def stopped(config):
        raise studydb.TrialStopped

    expect_failure(run(interrupted), "KeyboardInterrupt")
    expect_failure(run(stopped), "TrialStopped", "nothing had stopped it")


def test_ending_without_any_report_is_a_failure_that_says_so(run):
    expect_failure(run(lambda config: None), "TrainableError", "without reporting 'loss'")
    expect_failure(run(lambda config: "good"), "TrainableError", "gave back a str")


def test_os_exit_leaves_no_end_but_a_code(start):
    def train(config):
        studydb.report({"loss": 1.0})
        os._exit(3)

    attempt = start(train)

    assert steps_of(attempt.finish()) == [1]
    assert str(attempt.child.exit) == "exited with code 3"


def test_missing_module_names_both_directories(run, tmp_path):
    trainable = Trainable("u", "import", "nowhere:train", str(tmp_path / "recorded"), "3.11")

    messages = run(trainable, workdirs=(str(tmp_path), str(tmp_path / "recorded")))

    expect_failure(messages, "TrainableError", str(tmp_path), str(tmp_path / "recorded"))


def test_missing_working_directory_is_named(run, tmp_path):
    messages = run(three_steps, workdirs=(str(tmp_path / "gone"),))

    expect_failure(messages, "TrainableError", str(tmp_path / "gone"), "--workdir")


def test_unsigned_name_is_found_with_more_care(run, tmp_path):
    (tmp_path / "mine.py").write_text("from os import getcwd as train\n")
    trainable = Trainable("u", "import", "mine:train", str(tmp_path), "3.11")

    expect_failure(run(trainable, signed=False), "TrainableError", "not mine's own")


def test_error_in_the_users_module_shows_its_line(run, tmp_path):
    (tmp_path / "mine.py").write_text("\n\n1 / 0\n")
    trainable = Trainable("u", "import", "mine:train", str(tmp_path), "3.11")

    failure = expect_failure(run(trainable), "ZeroDivisionError")

    assert 'mine.py", line 3' in failure.traceback
    assert "importlib" not in failure.traceback


def test_exit_handlers_of_the_users_libraries_run(start):
    def train(config):
        import atexit  # noqa: PLC0415  as libraries do

        atexit.register(print, "uploaded")
        return 1.0

    attempt = start(train)
    attempt.finish()

    assert attempt.printed == "uploaded\n"


def test_child_ends_when_nobody_listens_any_more(start):
    def train(config):
        while True:
            studydb.report({"loss": 1.0})

    attempt = start(train)
    attempt.receive()

    attempt.child.channel.close()

    assert attempt.child.wait(10) is not None


# preemption


def wait_for_sigterm(trial):
    trial.report({"loss": 1.0})
    print("ready")
    while not trial._preempted:
        time.sleep(0.001)


def test_sigterm_is_raised_by_the_next_report_after_it_was_sent(start, eventually):
    def train(config, trial):
        wait_for_sigterm(trial)
        trial.report({"loss": 2.0}, checkpoint={"step": 2})

    attempt = start(train)
    attempt.receive()
    eventually(lambda: "ready" in attempt.printed)
    attempt.child.terminate()
    last = attempt.receive()
    attempt.answer(last)

    assert (last.result.step, last.saved.step) == (2, 2)
    assert attempt.finish() == [Ended(End.PREEMPTED)]


def test_second_sigterm_ends_the_process(start, eventually):
    def train(config, trial):
        wait_for_sigterm(trial)
        print("first")
        time.sleep(60)

    attempt = start(train)
    attempt.receive()
    eventually(lambda: "ready" in attempt.printed)
    attempt.child.terminate()
    eventually(lambda: "first" in attempt.printed)
    attempt.child.terminate()

    assert attempt.child.wait(10).signal == signal.SIGTERM


@pytest.mark.parametrize("named", [{}, {"training_iteration": 1}, {"training_iteration": 2}])
def test_last_checkpoint_can_be_saved_after_the_stop(start, named):
    def train(config, trial):
        try:
            trial.report({"loss": 1.0})
        except studydb.TrialStopped:
            trial.report({"loss": 1.0, **named}, checkpoint={"weights": 1})

    attempt = start(train, next_decision_step=1)
    attempt.answer(attempt.receive(), verdict=STOP)

    last = attempt.receive()
    attempt.answer(last, verdict=STOP)

    assert last.result is None
    assert last.saved.step == named.get("training_iteration", 1)
    assert attempt.finish() == [Ended(End.STOPPED)]


def test_checkpoint_of_the_report_that_finds_a_stop_is_saved_without_its_result(start, tmp_path):
    def train(config, trial):
        while not Path("sent").exists():
            time.sleep(0.001)
        trial.report({"loss": 1.0}, checkpoint={"weights": 1})

    attempt = start(train)
    attempt.child.channel.send(write(StopNotice(STOP)))
    (tmp_path / "sent").touch()
    message = attempt.receive()
    attempt.answer(message)

    assert (message.result, message.saved.step) == (None, 1)
    assert attempt.finish() == [Ended(End.STOPPED)]


# checkpoints


def restore_of(saved):
    return Restore(saved.kind, saved.url, saved.digest, saved.step, saved.data)


def counting(config, trial):
    first = 0 if trial.checkpoint is None else trial.checkpoint.to_dict()["count"]
    for count in range(first + 1, first + 3):
        trial.report({"loss": count}, checkpoint={"count": count})


@pytest.mark.parametrize("inline", [True, False])
def test_dict_checkpoint_is_safe_before_its_record_and_resumes(run, tmp_path, inline):
    store = "inline:" if inline else (tmp_path / "store").as_uri()

    first = run(counting, store=store)
    second = run(counting, store=store, attempt=2, restore=restore_of(first[1].saved))

    assert [m.saved.step for m in first[:-1]] == [1, 2]
    assert steps_of(second) == [3, 4]
    assert [m.result.value for m in second[:-1]] == [3, 4]
    assert (first[1].saved.data is None) is not inline
    if not inline:
        assert DirectoryStore(tmp_path / "store").exists(first[1].saved.url)


@pytest.mark.parametrize("inline", [True, False])
def test_directory_checkpoint_resumes_from_a_copy(run, tmp_path, inline):
    def train(config, trial, checkpoint_dir=None):
        weights = Path("model") / "weights"
        weights.parent.mkdir(exist_ok=True)
        before = (trial.checkpoint.path / "weights").read_text() if checkpoint_dir else ""
        weights.write_text(before + "x")
        trial.report({"loss": len(before)}, checkpoint="model")

    store = "inline:" if inline else str(tmp_path / "store")
    first = run(train, store=store)
    saved = first[0].saved
    second = run(train, store=store, restore=restore_of(saved))
    third = run(train, store=store, restore=restore_of(saved))

    assert (saved.kind, saved.step) == ("directory", 1)
    assert (second[0].result.step, second[0].result.value) == (2, 1)
    assert third[0].result.value == 1


def test_report_with_a_checkpoint_waits_for_its_row(start):
    def train(config, trial):
        trial.report({"loss": 1.0}, checkpoint={"a": 1})
        print("safe")

    attempt = start(train)
    message = attempt.receive()

    assert attempt.printed == ""
    attempt.answer(message)

    assert attempt.finish() == [Ended(End.COMPLETED)]
    assert attempt.printed == "safe\n"


def test_restored_trial_that_reports_nothing_more_is_complete(run, tmp_path):
    first = run(counting, store=str(tmp_path))

    messages = run(lambda config: None, store=str(tmp_path), restore=restore_of(first[0].saved))

    assert messages == [Ended(End.COMPLETED)]


def test_store_that_fails_is_told_and_training_goes_on(run, tmp_path):
    (tmp_path / "file").write_text("where a directory should be")

    messages = run(counting, store=str(tmp_path / "file"))

    assert [m.saved for m in messages[:-1]] == [None, None]
    assert all("Not a directory" in m.artifact_error for m in messages[:-1])
    assert messages[-1] == Ended(End.COMPLETED)


def test_checkpoint_that_cannot_be_one_fails_the_trial_at_once(run, tmp_path):
    def reporting(checkpoint):
        return lambda config, trial: trial.report({"loss": 1.0}, checkpoint=checkpoint)

    def unpicklable(config, trial):
        trial.report({"loss": 1.0}, checkpoint={"lock": socket.socket()})

    expect_failure(run(reporting("gone"), store=str(tmp_path)), "CheckpointError", "not exist")
    expect_failure(run(reporting(3)), "UsageError", "a dict or a directory")
    expect_failure(run(unpicklable), "CheckpointError", "cannot be pickled")
    expect_failure(
        run(reporting({"w": bytes(2000)}), inline_limit_bytes=1000),
        "CheckpointError",
        "--checkpoints",
    )


@pytest.mark.parametrize("kind", ["dict", "directory"])
@pytest.mark.parametrize("damage", ["changed", "missing"])
def test_damaged_checkpoint_is_told_before_any_code_of_the_users_runs(
    start, tmp_path, kind, damage
):
    def save(config, trial):
        Path("model").mkdir(exist_ok=True)
        (Path("model") / "w").write_text("w")
        trial.report({"loss": 1}, checkpoint="model" if kind == "directory" else {"w": 1})

    store = DirectoryStore(tmp_path / "store")
    saved = start(save, store=store.url).finish()[0].saved
    if damage == "missing":
        store.delete(saved.url)
    else:
        path = next(store.root.rglob("1-*"))
        (path / "w" if path.is_dir() else path).write_bytes(b"v")

    attempt = start(lambda config: print("ran"), store=store.url, restore=restore_of(saved))
    messages = attempt.finish()

    assert messages[-1].end is End.UNRESTORABLE
    assert messages[-1].failure.type == "studydb.domain.errors.CheckpointError"
    assert "ran" not in attempt.printed


def test_store_that_this_host_does_not_have_is_no_damage_of_the_checkpoint(run, tmp_path):
    saved = run(counting, store=str(tmp_path / "store"))[0].saved
    (tmp_path / "store").rename(tmp_path / "unmounted")

    messages = run(counting, store=str(tmp_path / "store"), restore=restore_of(saved))

    assert messages[-1].end is End.UNPREPARED
    assert "Mount it" in messages[-1].failure.message


def test_full_scratch_disk_is_no_damage_of_the_checkpoint(run, tmp_path):
    def save(config, trial):
        Path("model").mkdir(exist_ok=True)
        trial.report({"loss": 1}, checkpoint="model")

    for store in ("inline:", str(tmp_path / "store")):
        saved = run(save, store=store)[0].saved
        messages = run(
            save, store=store, restore=restore_of(saved), scratch=str(tmp_path / "no" / "room")
        )

        assert messages[-1].end is End.UNPREPARED


def test_large_functions_and_checkpoints_travel_together(run):
    text = "x" * (12 << 20)

    def train(config, trial):
        before = 0 if trial.checkpoint is None else len(trial.checkpoint.to_dict()["data"])
        trial.report({"loss": before + len(text)}, checkpoint={"data": b"y" * (12 << 20)})

    first = run(train)
    second = run(train, restore=restore_of(first[0].saved))

    assert second[0].result.value == 24 << 20


def test_damaged_inline_checkpoint_is_told_too(run):
    good = run(counting)[0].saved
    bad = dataclasses.replace(restore_of(good), data=b"other")

    assert run(counting, restore=bad)[-1].end is End.UNRESTORABLE


def test_checkpoint_of_one_kind_read_as_the_other_says_so(run, tmp_path):
    saved = run(counting, store=str(tmp_path))[0].saved

    def train(config, trial):
        return trial.checkpoint.path

    messages = run(train, store=str(tmp_path), restore=restore_of(saved))

    expect_failure(messages, "CheckpointError", "to_dict")


# the pipe


EVERY_MESSAGE = [
    Reported(None, Result(1, 0.5, {"a": [1, "x"]}, 2.0)),
    Reported(3, None, None, "disk full"),
    FlushAsked(4),
    Ended(End.COMPLETED),
    Ended(End.FAILED, Failure("ValueError", "message", "traceback")),
]


@pytest.mark.parametrize("message", EVERY_MESSAGE)
def test_what_a_child_writes_is_what_is_read(message):
    assert read_from_child(write(message)) == message


@pytest.mark.parametrize(
    "message", [Answered(1, STOP, 9), Answered(2), StopNotice(STOP), LostNotice()]
)
def test_what_a_supervisor_writes_is_what_is_read(message):
    assert read_from_supervisor(write(message)) == message


@pytest.mark.parametrize(
    "header",
    [
        {},
        {"type": "exec"},
        {"type": "report", "id": "1"},
        {"type": "report", "id": 1, "result": [1]},
        {"type": "report", "id": 1, "result": [True, 1.0, {}, None]},
        {"type": "report", "id": 1, "result": ["1", 1.0, {}, None]},
        {"type": "report", "id": 1, "result": [1, "high", {}, None]},
        {"type": "report", "id": 1, "result": [1, 1.0, [], None]},
        {"type": "report", "id": 1, "saved": {"uuid": "../.."}},
        {"type": "flush"},
        {"type": "end", "end": "sudden", "failure": None},
        {"type": "end", "end": "failed", "failure": {"type": 1}},
    ],
)
def test_supervisor_believes_no_malformed_message(header):
    with pytest.raises(FrameError):
        read_from_child(Frame(header))


def test_supervisor_believes_no_inline_bytes_that_differ_from_their_digest():
    saved = {
        "uuid": str(uuid.uuid4()),
        "kind": "dict",
        "url": "inline:",
        "digest": digest_of(b"right"),
        "size_bytes": 5,
        "step": 1,
        "data": None,
    }

    assert read_from_child(Frame({"type": "report", "id": 1, "saved": saved}, b"right"))
    with pytest.raises(FrameError, match="differs from its digest"):
        read_from_child(Frame({"type": "report", "id": 1, "saved": saved}, b"wrong"))


@pytest.mark.parametrize(
    "data",
    [
        struct.pack("!II", 2**32 - 1, 0),
        struct.pack("!II", 0, 2**32 - 1),
        struct.pack("!II", 4, 0) + b"\x80abc",
        struct.pack("!II", 2, 0) + b"[]",
        struct.pack("!II", 200_000, 0) + b"[" * 200_000,
    ],
)
def test_channel_takes_nothing_but_bounded_json(data):
    ours, theirs = socket.socketpair()
    channel = Channel(ours)

    theirs.sendall(data)

    with pytest.raises(FrameError):
        channel.receive(5)
    channel.close()
    theirs.close()


def test_channel_joins_pieces_and_gives_up_in_time():
    ours, theirs = socket.socketpair()
    channel = Channel(ours)
    data = struct.pack("!II", 2, 3) + b"{}xyz"

    for index in range(len(data)):
        assert channel.receive(0) is None
        theirs.send(data[index : index + 1])

    assert channel.receive(5) == Frame({}, b"xyz")
    theirs.close()
    with pytest.raises(EOFError):
        channel.receive(5)
    channel.close()


def test_peer_that_reads_nothing_does_not_hold_a_sender_for_ever():
    ours, theirs = socket.socketpair()
    channel = Channel(ours, send_timeout_s=0.05)

    with pytest.raises(OSError, match="temporarily unavailable"):
        channel.send(Frame({}, bytes(8 << 20)))

    channel.close()
    theirs.close()
