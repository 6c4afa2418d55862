"""A trial trains on during an upload, and ends after the upload unless its lease is lost."""

# The trainables below print, as those of users do.
# ruff: noqa: T201

import os
import sys
import time
from pathlib import Path

import pytest
from fleet.workers import eventually
from harness.child_messages import STOP, expect_failure, saved_by, steps_of
from harness.reused_process import two_trials

from studydb.artifacts import open_store, tree
from studydb.child.messages import End, Ended, LostNotice, StopNotice, write
from studydb.domain.given_directory import GivenDirectory
from studydb.domain.life.decisions import Action, DecidedBy, Verdict
from studydb.domain.life.rules import read_rules
from studydb.domain.life.states import Reason
from studydb.worker.fork_server_client import ForkServer

PAUSE = Verdict(Action.PAUSE, Reason.PAUSED, DecidedBy.SCHEDULER)


def saved_bytes(saved, s3_server):
    return open_store(f"s3://{s3_server.bucket}").get_bytes(saved.url, digest=saved.digest)


def two_steps(config, trial):
    trial.report({"loss": 1}, checkpoint={"step": 1})
    trial.report({"loss": 2})


@pytest.mark.nightly
def test_training_goes_on_while_a_checkpoint_is_sent(remote, s3_server):
    s3_server.writes.clear()
    attempt = remote(two_steps)

    first, second = attempt.receive(), attempt.receive()
    s3_server.writes.set()
    saved, ended = attempt.finish()

    assert (first.result.step, second.result.step) == (1, 2)
    assert (first.id, second.id, first.saved, saved.id, saved.result) == (None,) * 5
    assert saved.saved.step == 1
    assert ended == Ended(End.COMPLETED)
    assert saved_bytes(saved.saved, s3_server)


@pytest.mark.slow
def test_next_save_waits_for_the_previous_upload(remote, s3_server):
    def train(config, trial):
        for step in (1, 2):
            trial.report({"loss": step}, checkpoint={"step": step})

    s3_server.writes.clear()
    attempt = remote(train)
    assert attempt.receive().result.step == 1
    attempt.allow_upload()
    assert attempt.receive().result.step == 2
    assert attempt.child.channel.receive(0.2) is None
    s3_server.writes.set()
    assert attempt.receive().saved.step == 1
    attempt.allow_upload()

    assert [message.saved.step for message in attempt.finish()[:-1]] == [2]
    assert len(s3_server.objects()) == 2


@pytest.mark.nightly
def test_directory_may_be_changed_in_place_after_the_report(remote, s3_server, tmp_path):
    def train(config, trial):
        model = Path("model")
        model.mkdir()
        (model / "weights").write_bytes(b"first" * 1000)
        (model / "old").write_bytes(b"old")
        trial.report({"loss": 1}, checkpoint=model)
        with (model / "weights").open("r+b") as file:
            file.write(b"other" * 1000)
        (model / "old").unlink()
        (model / "new").touch()
        trial.report({"loss": 2})

    s3_server.writes.clear()
    attempt = remote(train)
    assert steps_of([attempt.receive(), attempt.receive()]) == [1, 2]
    s3_server.writes.set()
    saved = attempt.finish()[0].saved

    store = open_store(f"s3://{s3_server.bucket}")
    copy = store.get_directory(saved.url, digest=saved.digest, target=tmp_path / "copy")
    assert {file.name: file.read_bytes() for file in copy.iterdir()} == {
        "weights": b"first" * 1000,
        "old": b"old",
    }
    assert not list((attempt.directory / "scratch").iterdir())


@pytest.mark.slow
def test_flush_waits_for_the_checkpoint(remote, s3_server):
    def train(config, trial):
        trial.report({"loss": 1}, checkpoint={"step": 1})
        trial.flush()
        print("stored")

    s3_server.writes.clear()
    attempt = remote(train)
    assert attempt.receive().result.step == 1
    attempt.allow_upload()
    assert attempt.child.channel.receive(0.2) is None
    s3_server.writes.set()
    saved, asked = attempt.receive(), attempt.receive()
    assert saved.saved.step == 1
    assert attempt.printed == ""
    attempt.answer(asked)
    attempt.finish()
    assert attempt.printed == "stored\n"


@pytest.mark.slow
@pytest.mark.parametrize("verdict", [PAUSE, STOP])
def test_paused_or_stopped_attempt_ends_after_its_checkpoint_is_stored(remote, s3_server, verdict):
    s3_server.writes.clear()
    attempt = remote(two_steps, next_decision_step=1)
    judged = attempt.receive()
    attempt.answer(judged, verdict=verdict)
    attempt.allow_upload()
    assert attempt.child.channel.receive(0.2) is None
    s3_server.writes.set()

    saved, ended = attempt.finish()

    assert judged.result.step == 1
    assert saved.saved.step == 1
    assert ended == Ended(End.STOPPED)


@pytest.mark.nightly
def test_pause_during_an_upload_saves_each_checkpoint_once(remote, s3_server):
    def train(config, trial):
        trial.report({"loss": 1}, checkpoint={"step": 1})
        Path("sending").touch()
        while not Path("noticed").exists():
            time.sleep(0.01)
        trial.report({"loss": 2}, checkpoint={"step": 2})

    s3_server.writes.clear()
    attempt = remote(train)
    assert attempt.receive().result.step == 1
    attempt.allow_upload()
    eventually((attempt.workdir / "sending").exists)
    attempt.child.channel.send(write(StopNotice(PAUSE)))
    (attempt.workdir / "noticed").touch()
    s3_server.writes.set()

    messages = attempt.finish()

    assert [saved.step for saved in saved_by(messages)] == [1, 2]
    assert messages[-1] == Ended(End.STOPPED)


@pytest.mark.slow
@pytest.mark.parametrize(
    "job",
    [
        {"rules": tuple(rule.to_json() for rule in read_rules({"training_iteration": 1}))},
        {"last_step": 1},
        {"config": {"done": True}},
    ],
    ids=["rule", "last step", "done"],
)
def test_checkpoint_of_the_last_result_is_stored_before_the_result(remote, s3_server, job):
    def train(config, trial):
        trial.report({"loss": 1, "done": "done" in config}, checkpoint={"step": 1})

    s3_server.writes.clear()
    attempt = remote(train, **job)
    attempt.allow_upload()
    assert attempt.child.channel.receive(0.2) is None
    s3_server.writes.set()

    report, ended = attempt.finish()

    assert (report.result.step, report.saved.step) == (1, 1)
    assert ended == Ended(End.COMPLETED)


@pytest.mark.slow
def test_lost_attempt_does_not_wait_for_its_upload(remote, s3_server):
    def train(config, trial):
        trial.report({"loss": 1}, checkpoint={"step": 1})
        trial.flush()

    s3_server.writes.clear()
    attempt = remote(train)
    assert attempt.receive().result.step == 1
    attempt.allow_upload()
    attempt.child.channel.send(write(LostNotice()))

    assert attempt.finish()[-1] == Ended(End.LOST)


@pytest.mark.nightly
def test_upload_that_fails_is_reported_and_training_goes_on(start, s3_server):
    server = ForkServer()
    server.start()
    attempt = start(two_steps, server=server, store="s3://no-such-bucket")

    messages = attempt.finish()
    server.close()

    (told,) = [one for one in messages[:-1] if one.artifact_error]
    assert "could not be written to s3://no-such-bucket" in told.artifact_error
    assert told.saved is None
    assert steps_of(messages) == [1, 2]
    assert messages[-1] == Ended(End.COMPLETED)


@pytest.mark.nightly
def test_checkpoint_is_sent_while_the_trial_waits_if_no_copy_can_be_made(
    remote, s3_server, tmp_path
):
    def train(config, trial):
        Path("model").mkdir(exist_ok=True)
        Path("model", "w").write_bytes(b"weights")
        (trial.scratch / "upload").touch()  # a file where the copy of the directory would be made
        trial.report({"loss": 1}, checkpoint="model")
        trial.report({"loss": 2})

    messages = remote(train).finish()

    assert [message.saved is not None for message in messages[:-1]] == [False, True, False]
    assert messages[1].saved.step == 1


@pytest.mark.nightly
def test_directory_for_a_save_may_have_absolute_links_to_its_own_files(remote, s3_server, tmp_path):
    def train(config, trial):
        given = trial.scratch / "given"
        given.mkdir()
        (given / "step-1").write_bytes(b"weights")
        (given / "latest").symlink_to(given / "step-1")
        trial.report({"loss": 1}, checkpoint=GivenDirectory(given))
        trial.report({"loss": 2})

    (saved,) = (one.saved for one in remote(train).finish()[:-1] if one.saved)

    store, target = open_store(f"s3://{s3_server.bucket}"), tmp_path / "restored"
    store.get_directory(saved.url, digest=saved.digest, target=target)
    assert {path.name: path.read_bytes() for path in target.iterdir()} == {
        "step-1": b"weights",
        "latest": b"weights",
    }


@pytest.mark.nightly
def test_directory_that_changes_during_its_copy_fails_no_trial(remote, s3_server, monkeypatch):
    """The directory changes, for example, if another thread of the user's code writes to it."""

    def train(config, trial):
        Path("model").mkdir(exist_ok=True)
        monkeypatch.setattr(tree, "take_copy", breaking)
        trial.report({"loss": 1}, checkpoint="model")
        trial.report({"loss": 2})

    def breaking(source, target):
        (source / "link").symlink_to("missing")
        tree.scan(source)

    messages = remote(train).finish()

    assert steps_of(messages) == [1, 2]
    errors = [one.artifact_error for one in messages[:-1] if one.artifact_error]
    assert len(errors) == 1
    assert "no existing target" in errors[0]
    assert messages[-1] == Ended(End.COMPLETED)


@pytest.mark.nightly
def test_error_of_the_trial_is_reported_after_its_checkpoint_is_stored(remote, s3_server):
    def train(config, trial):
        trial.report({"loss": 1}, checkpoint={"step": 1})
        raise ValueError("too late")

    messages = remote(train).finish()

    assert messages[1].saved.step == 1
    expect_failure(messages, "ValueError", "too late")


@pytest.mark.slow
def test_process_forked_by_user_code_does_not_wait_for_the_upload(remote, s3_server):
    def train(config, trial):
        trial.report({"loss": 1}, checkpoint={"step": 1})
        pid = os.fork()
        if pid == 0:
            trial.settle()
            os._exit(7)
        _, status = os.waitpid(pid, 0)
        trial.report({"loss": os.waitstatus_to_exitcode(status)})

    s3_server.writes.clear()
    attempt = remote(train)
    results = [attempt.receive(), attempt.receive()]
    s3_server.writes.set()

    assert [message.result.value for message in results] == [1, 7]
    assert attempt.finish()[0].saved.step == 1


@pytest.mark.slow
def test_s3_library_is_imported_before_user_code_can_fork(remote, s3_server):
    def train(config, trial):
        trial.report({"loss": 1}, checkpoint={"step": 1})
        pid = os.fork()
        if pid == 0:
            is_missing = sys.modules.get("s3fs") is None or sys.modules.get("aiobotocore") is None
            os._exit(int(is_missing))
        _, status = os.waitpid(pid, 0)
        trial.report({"loss": os.waitstatus_to_exitcode(status)})

    s3_server.writes.clear()
    attempt = remote(train)
    results = [attempt.receive(), attempt.receive()]
    s3_server.writes.set()
    attempt.finish()

    assert results[1].result.value == 0


@pytest.mark.slow
def test_checkpoint_saved_before_a_yield_belongs_to_the_previous_step(remote, s3_server):
    def train(config, trial):
        for step in (1, 2):
            trial.save({"step": step})
            yield {"loss": step}

    messages = remote(train).finish()

    assert [saved.step for saved in saved_by(messages)] == [0, 1]


@pytest.mark.nightly
def test_reused_process_runs_the_next_trial_after_the_uploads_of_the_trial_before(
    s3_server, pump, tmp_path
):
    trials = two_trials(pump, tmp_path, f"s3://{s3_server.bucket}")

    for messages in trials:
        assert [saved.step for saved in saved_by(messages)] == [1, 2]
        assert messages[-1].kept, messages[-1].not_kept
    first, second = ({one.result.value for one in each if steps_of([one])} for each in trials)
    assert first == second
