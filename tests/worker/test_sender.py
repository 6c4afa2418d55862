"""The sender, a child of the trial's process, sends large checkpoints and ends with the trial."""

# The trainables below print, as those of users do.
# ruff: noqa: T201

import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest
from fleet.workers import eventually
from harness.child_messages import saved_by, steps_of
from harness.reused_process import two_trials

from studydb.artifacts import open_store
from studydb.artifacts.checkpoint_records import Upload
from studydb.child import checkpoint_saves, sender
from studydb.child.fork_safety import descriptors
from studydb.child.messages import End, Ended, LostNotice, write
from studydb.child.sender_program import NAME, NICENESS
from studydb.domain.errors import CheckpointError
from studydb.processes import children_of, start_of

ROOT = Path(__file__).parents[2]


def is_running(pid):
    return start_of(pid) is not None


def name_of(pid):
    return Path(f"/proc/{pid}/comm").read_text().strip()


def sender_of(attempt):
    """Wait until the attempt's process has a sender; return the sender's pid."""

    def found():
        return [pid for pid in children_of(attempt.child.process.pid) if name_of(pid) == NAME]

    return eventually(found)[0]


def make_model(step=1):
    Path("model").mkdir(exist_ok=True)
    Path("model", "weights").write_bytes(b"%d" % step * 1000)
    return "model"


def two_steps(config, trial):
    checkpoint_saves.LARGE_BYTES = 1  # changed in the trial's process alone
    trial.report({"loss": 1}, checkpoint=make_model())
    trial.report({"loss": 2})


def waiting(config, trial):
    """Train two steps, then wait until the test has made the file "goes on"."""
    two_steps(config, trial)
    while not Path("goes on").exists():
        time.sleep(0.01)


@pytest.mark.nightly
def test_large_directory_is_sent_by_another_process_while_the_trial_trains(
    remote, s3_server, tmp_path
):
    s3_server.writes.clear()
    attempt = remote(two_steps)
    assert steps_of([attempt.receive(), attempt.receive()]) == [1, 2]
    pid = sender_of(attempt)
    eventually(lambda: any(method == "PUT" for method, _ in s3_server.requests))
    own = os.getpriority(os.PRIO_PROCESS, 0)
    assert os.getpriority(os.PRIO_PROCESS, pid) == min(own + NICENESS, 19)
    assert os.getpgid(pid) == attempt.child.process.pid
    s3_server.writes.set()

    messages = attempt.finish()

    (saved,) = saved_by(messages)
    store, target = open_store(f"s3://{s3_server.bucket}"), tmp_path / "restored"
    copy = store.get_directory(saved.url, digest=saved.digest, target=target)
    assert (copy / "weights").read_bytes() == b"1" * 1000
    assert messages[-1] == Ended(End.COMPLETED)
    assert not is_running(pid)
    assert not list((attempt.directory / "scratch").iterdir())


@pytest.mark.nightly
def test_large_dict_is_sent_by_another_process(remote, s3_server):
    def train(config, trial):
        checkpoint_saves.LARGE_BYTES = 1
        trial.report({"loss": 1}, checkpoint={"weights": b"1" * 1000})
        trial.report({"loss": 2})
        trial.flush()
        print(len(children_of(os.getpid())))

    attempt = remote(train)
    (saved,) = saved_by(attempt.finish())

    data = open_store(f"s3://{s3_server.bucket}").get_bytes(saved.url, digest=saved.digest)
    assert b"1" * 1000 in data
    assert attempt.printed == "1\n"
    assert not list((attempt.directory / "scratch").iterdir())


def test_checkpoints_are_sent_to_the_store_that_the_worker_names(remote, s3_server, tmp_path):
    def train(config, trial):
        checkpoint_saves.LARGE_BYTES = 1
        trial.report({"loss": 1}, checkpoint=make_model(1))
        trial.report({"loss": 2}, checkpoint=make_model(2))
        trial.report({"loss": 3})

    bucket = f"s3://{s3_server.bucket}"
    attempt = remote(train, store=(tmp_path / "first").as_uri())
    attempt.allow_upload(store=bucket)
    saved = saved_by(attempt.finish())

    assert [(one.step, one.url.startswith(f"{bucket}/")) for one in saved] == [(1, True), (2, True)]
    assert not [path for path in (tmp_path / "first").rglob("*") if path.is_file()]


@pytest.mark.nightly
def test_sender_that_is_killed_is_reported_and_the_next_save_works(remote, s3_server):
    def train(config, trial):
        checkpoint_saves.LARGE_BYTES = 1
        trial.report({"loss": 1}, checkpoint=make_model(1))
        trial.report({"loss": 2}, checkpoint=make_model(2))
        trial.report({"loss": 3})

    s3_server.writes.clear()
    attempt = remote(train)
    assert steps_of([attempt.receive()]) == [1]
    attempt.allow_upload()
    killed = sender_of(attempt)
    os.kill(killed, signal.SIGKILL)
    s3_server.writes.set()
    messages = attempt.finish()

    (error,) = [one.artifact_error for one in messages[:-1] if one.artifact_error]
    assert "sent the checkpoint of step 1 has ended (signal 9)" in error
    assert "Training continues" in error
    assert [saved.step for saved in saved_by(messages)] == [2]
    assert steps_of(messages) == [2, 3]
    assert messages[-1] == Ended(End.COMPLETED)


@pytest.mark.nightly
def test_sender_ends_in_the_middle_of_an_upload_when_its_trial_is_killed(s3_server, tmp_path):
    """A worker's fork server would kill the sender, too; here there is no worker."""
    code = (
        "import sys, uuid; from pathlib import Path\n"
        "from studydb.artifacts.checkpoint_records import Upload\n"
        "from studydb.child.sender import Destination, Sender\n"
        "names = [str(uuid.uuid4()) for _ in range(3)]\n"
        "sender = Sender(Destination(sys.argv[1], names[0], names[1], 1, 0))\n"
        "sender.start()\n"
        "sender.save(Path(sys.argv[2]), step=1, upload=Upload(names[2], sys.argv[1]))\n"
    )
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "weights").write_bytes(b"weights")
    s3_server.writes.clear()
    before = len(s3_server.requests)
    command = [sys.executable, "-c", code, f"s3://{s3_server.bucket}", str(tmp_path / "model")]
    with subprocess.Popen(command, cwd=ROOT) as trial:
        try:
            eventually(lambda: any(method == "PUT" for method, _ in s3_server.requests[before:]))
            (pid,) = children_of(trial.pid)
        finally:
            trial.kill()

        eventually(lambda: not is_running(pid))
    s3_server.writes.set()


def test_sender_whose_parent_has_died_ends_although_another_process_keeps_its_socket_open():
    command = [*sender._command()]
    command[command.index(str(os.getpid()))] = str(os.getppid())  # as if the parent had died
    ours, theirs = socket.socketpair()

    with ours, theirs, subprocess.Popen(command, stdin=theirs.fileno()) as process:
        assert process.wait(30.0) == 0


def test_signal_that_comes_while_the_sender_starts_does_not_end_it():
    one = sender.Sender(sender.Destination("s3://bucket", str(uuid.uuid4()), "", 1, 0))
    one.start()
    os.kill(one._process.pid, signal.SIGTERM)  # the sender first blocks SIGTERM, then ignores it
    pid = one._process.pid
    eventually(lambda: name_of(pid) == "studydb-sender")
    one.end()

    assert one._process is None


def test_sender_whose_answer_cannot_be_read_is_killed_and_replaced(monkeypatch, tmp_path):
    monkeypatch.setattr(sender, "_END_TIMEOUT_S", 0.1)
    code = "import socket, time; socket.socket(fileno=0).send(bytes([255] * 8)); time.sleep(60)"
    monkeypatch.setattr(sender, "_command", lambda: (sys.executable, "-c", code))
    one = sender.Sender(sender.Destination("s3://bucket", str(uuid.uuid4()), "", 1, 0))
    one.start()
    first = one._process

    with pytest.raises(CheckpointError, match="no readable answer for step 1, and was killed"):
        one.save(tmp_path, step=1, upload=Upload(str(uuid.uuid4()), "s3://bucket"))

    assert first.wait(10.0) == -signal.SIGKILL
    one.start()
    assert one._process is not first
    one.end()


def test_lost_attempt_kills_its_sender(remote, s3_server):
    s3_server.writes.clear()
    attempt = remote(waiting)
    assert steps_of([attempt.receive(), attempt.receive()]) == [1, 2]
    pid = sender_of(attempt)
    attempt.child.channel.send(write(LostNotice()))
    (attempt.workdir / "goes on").touch()

    messages = attempt.finish()

    assert [message for message in messages if not isinstance(message, Ended)] == []
    assert not is_running(pid)


@pytest.mark.nightly
def test_stop_signal_to_the_whole_group_lets_the_sender_finish(remote, s3_server):
    s3_server.writes.clear()
    attempt = remote(two_steps)
    assert steps_of([attempt.receive(), attempt.receive()]) == [1, 2]
    sender_of(attempt)

    os.killpg(attempt.child.process.pid, signal.SIGTERM)
    s3_server.writes.set()

    messages = attempt.finish()
    assert [saved.step for saved in saved_by(messages)] == [1]


@pytest.mark.nightly
def test_process_that_user_code_forks_neither_ends_the_sender_nor_keeps_its_socket(
    remote, s3_server
):
    def train(config, trial):
        checkpoint_saves.LARGE_BYTES = 1
        before = descriptors()
        trial.report({"loss": 1}, checkpoint=make_model())
        pid = os.fork()
        if pid == 0:
            trial.settle()
            kept = descriptors() - before
            os._exit(len(kept))
        _, status = os.waitpid(pid, 0)
        trial.report({"loss": os.waitstatus_to_exitcode(status)})

    s3_server.writes.clear()
    attempt = remote(train)
    results = [attempt.receive(), attempt.receive()]
    s3_server.writes.set()

    assert [message.result.value for message in results] == [1, 0]
    assert [saved.step for saved in saved_by(attempt.finish())] == [1]


@pytest.mark.nightly
def test_credentials_that_the_users_code_has_set_reach_the_sender(remote, s3_server, monkeypatch):
    def train(config, trial):
        checkpoint_saves.LARGE_BYTES = 1
        os.environ.update(given)
        trial.report({"loss": 1}, checkpoint=make_model())
        trial.report({"loss": 2})

    given = s3_server.environment
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")

    messages = remote(train).finish()

    assert [saved.step for saved in saved_by(messages)] == [1]


@pytest.mark.slow
def test_thread_sends_the_checkpoint_if_no_sender_can_be_started(remote, s3_server):
    def train(config, trial):
        checkpoint_saves.LARGE_BYTES = 1
        sender.sys.executable = "/missing"
        trial.report({"loss": 1}, checkpoint=make_model())
        trial.report({"loss": 2})

    messages = remote(train).finish()

    assert [saved.step for saved in saved_by(messages)] == [1]


@pytest.mark.nightly
def test_process_of_a_class_runs_the_next_trial_after_large_uploads(s3_server, pump, tmp_path):
    trials = two_trials(pump, tmp_path, f"s3://{s3_server.bucket}", large_bytes=1)

    for messages in trials:
        assert [saved.step for saved in saved_by(messages)] == [1, 2]
        assert messages[-1].kept, messages[-1].not_kept
        results = [one.result for one in messages if steps_of([one])]
        assert [int(one.metrics["senders"]) for one in results] == [0, 1]
    first, second = ({one.result.value for one in each if steps_of([one])} for each in trials)
    assert first == second
