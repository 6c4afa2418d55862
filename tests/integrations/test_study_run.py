"""`study.run`: worker processes that end when it ends, however it ends."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest
from fleet.workers import MARK, TRAINABLES, eventually
from harness import arrange

import studydb
from studydb.domain.errors import NotAllowed, StudydbError, UsageError
from studydb.domain.life.states import Status
from studydb.study.running import full_url
from studydb.worker.worker_processes import WorkerProcesses

SCRIPT = """
import sys, studydb
study = studydb.load_study("digits")
try:
    print(study.run(workers=2))
except KeyboardInterrupt:
    print("interrupted", file=sys.stderr)
    raise
"""


once = pytest.mark.parametrize("storage_url", ["sqlite"], indirect=True)
"""For what has nothing to do with the database."""


@pytest.fixture
def create(storage_url, tmp_path):
    """Create a study of a test's trainable, one trial unless told otherwise."""
    studies = []

    def create(trainable="obedient:gated", **options):
        given = {"metric": "loss", "mode": "min", "num_trials": 1, "workdir": TRAINABLES}
        space = {"x": 0.25, "folder": str(tmp_path)}
        studies.append(
            studydb.create_study(
                "digits", trainable, space=space, storage=storage_url, **(given | options)
            )
        )
        return studies[-1]

    yield create
    for study in studies:
        study.close()


class Script:
    """A script that runs the study, in a process of its own, and what came of it."""

    def __init__(self, storage: str, folder: Path) -> None:
        self.mark = arrange.token()
        self.popen = subprocess.Popen(
            [sys.executable, "-c", SCRIPT],
            cwd=folder,
            env={**os.environ, "STUDYDB_STORAGE": storage, MARK: self.mark},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def family(self):
        """All processes that came of it and live, the script included."""
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get(MARK) == self.mark and (
                    process.status() != psutil.STATUS_ZOMBIE
                ):
                    found.append(process)
            except psutil.Error:
                continue
        return found

    def end(self):
        """Wait for it: its exit code and words."""
        words, _ = self.popen.communicate(timeout=60)
        return self.popen.returncode, words


@pytest.fixture
def script(storage_url, tmp_path):
    """Start a script that runs the study."""
    scripts = []

    def start():
        scripts.append(Script(storage_url, tmp_path))
        return scripts[-1]

    yield start
    for script in scripts:
        for process in script.family():
            process.kill()
        script.popen.communicate()


def await_steps(study, n_results=1):
    """Wait until results have been flushed."""
    return eventually(lambda: sum(trial.summary.n_results for trial in study.trials) >= n_results)


def await_all_running(study):
    """Wait until every trial of the study has reported."""
    eventually(lambda: len(study.trials) == study.record.num_trials)
    eventually(lambda: all(trial.summary.n_results for trial in study.trials))


def rows(study, sql):
    return arrange.rows(study.database, sql)


def test_ctrl_c_releases_the_trials_and_leaves_no_process(create, script):
    study = create("obedient:unhurried", num_trials=2)
    running = script()
    await_all_running(study)

    running.popen.send_signal(signal.SIGINT)
    code, words = running.end()

    assert code in {-signal.SIGINT, 130}
    assert "Waiting for the workers to save and release their trials" in words
    assert "The running trials were released; run the study again to continue them." in words
    assert "interrupted" in words
    assert "Traceback" not in words
    assert [trial.state for trial in study.trials] == ["PENDING"] * 2
    assert set(rows(study, "SELECT reason FROM v_attempt")) == {("PREEMPTED",)}
    assert set(rows(study, "SELECT failures, losses FROM v_trial")) == {(0, 0)}
    assert running.family() == []


@once
def test_second_ctrl_c_kills_trials_that_do_not_stop(create, script):
    study = create("obedient:stubborn")
    running = script()
    await_steps(study)

    running.popen.send_signal(signal.SIGINT)
    told = running.popen.stdout.readline
    eventually(lambda: "Waiting for the workers" in told())
    running.popen.send_signal(signal.SIGINT)
    began_s = time.monotonic()
    code, _ = running.end()

    assert code in {-signal.SIGINT, 130}
    assert time.monotonic() - began_s < 15
    eventually(lambda: running.family() == [])


@once
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_sigterm_or_sighup_of_the_script_releases_the_trials(create, script, number):
    study = create("obedient:unhurried", num_trials=2)
    running = script()
    await_all_running(study)

    running.popen.send_signal(number)
    running.end()

    eventually(lambda: running.family() == [])
    assert [trial.state for trial in study.trials] == ["PENDING"] * 2
    assert set(rows(study, "SELECT losses FROM v_trial")) == {(0,)}


@once
def test_killed_script_leaves_no_worker_and_no_running_trial(create, script):
    study = create("obedient:unhurried", num_trials=2)
    running = script()
    await_all_running(study)

    running.popen.kill()
    running.end()

    eventually(lambda: running.family() == [])
    assert [trial.state for trial in study.trials] == ["PENDING"] * 2


def in_a_thread(call):
    """Run something beside `study.run`, which keeps the main thread as a script does."""
    thread = threading.Thread(target=call)
    thread.start()
    return thread


def worker_pids(study):
    return [
        pid
        for (pid,) in rows(study, "SELECT pid FROM v_worker WHERE ended_at IS NULL ORDER BY pid")
    ]


def test_run_raises_an_error_with_the_cause_if_all_workers_are_killed(create, tmp_path):
    study = create()

    def kill_all():
        await_steps(study)
        for pid in worker_pids(study):
            os.kill(pid, signal.SIGKILL)

    killer = in_a_thread(kill_all)
    with pytest.raises(StudydbError) as error:
        study.run(workers=1)
    killer.join()
    for step in range(1, 5):
        (tmp_path / f"gate-{step}").touch()
    counts = study.run(workers=1)

    assert str(error.value) == (
        "All workers of 'digits' ended before it was done. Their results are kept; run the study "
        "again to continue it. The cause: a worker was killed by SIGKILL, by a person "
        "or because memory ran out."
    )
    assert counts.terminated == 1
    assert [step for (step,) in rows(study, "SELECT step FROM v_result")] == [1, 2, 3, 4]
    assert rows(study, "SELECT reason FROM v_attempt ORDER BY attempt") == [
        ("LOST",),
        ("COMPLETED",),
    ]


@once
def test_other_workers_complete_the_trials_of_a_killed_worker(create, tmp_path):
    study = create(num_trials=2)

    def kill_one():
        await_steps(study, 2)
        os.kill(worker_pids(study)[0], signal.SIGKILL)
        for step in range(1, 5):
            (tmp_path / f"gate-{step}").touch()

    def start_another():
        """Who starts finds dead processes of this host at once; others wait for their lease."""
        killer.join()
        with WorkerProcesses(storage=full_url(study.database), study="digits", workers=1) as team:
            eventually(lambda: team.alive == 0)

    killer = in_a_thread(kill_one)
    starter = in_a_thread(start_another)
    counts = study.run(workers=2)
    starter.join()

    assert counts.terminated == 2
    assert {reason for (reason,) in rows(study, "SELECT reason FROM v_attempt")} == {
        "LOST",
        "COMPLETED",
    }


@once
def test_run_of_a_finished_study_starts_no_worker(create, monkeypatch):
    study = create("obedient:one_step", num_trials=2)
    first = study.run(workers=1)
    monkeypatch.setattr(WorkerProcesses, "_start", lambda _: pytest.fail("a worker was started"))

    second = study.run(workers=2)

    assert first == second
    assert second.terminated == 2
    assert study.status is Status.FINISHED


@once
def test_run_ends_when_a_person_stops_the_study(create):
    study = create("obedient:unhurried")

    def stop():
        await_steps(study)
        study.stop()

    stopper = in_a_thread(stop)
    counts = study.run(workers=1)
    stopper.join()

    assert study.status is Status.STOPPED
    assert counts.running == 0
    assert study.run().total == 1


@once
def test_run_prints_the_cause_of_repeated_losses(create, capfd):
    study = create("warmth:dies_twice")

    study.run(workers=1)

    assert study.trials[0].state == "TERMINATED"
    assert "was killed by SIGKILL" in capfd.readouterr().err


@once
def test_run_prints_the_errors_of_trials_when_it_ends(create, capfd):
    study = create("misbehaving:raises_unless_first", num_trials=3)

    counts = study.run(workers=1)

    told = capfd.readouterr().err
    assert counts.error == 2
    assert "2 of 'digits' ended with an error, trial 1 with ValueError: only the first" in told
    assert told.endswith("The traceback: studydb show digits 1\n")


@once
def test_run_raises_the_error_of_a_worker_that_cannot_start(create, monkeypatch):
    study = create("obedient:one_step")
    monkeypatch.setenv("STUDYDB_SIGNING_KEY", "ab" * 32)
    monkeypatch.setenv("STUDYDB_KEY_FILE", "/nonexistent/keys")

    with pytest.raises(StudydbError, match="is not signed by a key in /nonexistent/keys"):
        study.run(workers=2)


def test_run_is_refused_for_a_study_without_a_trainable(storage_url):
    study = studydb.create_study("mine", None, metric="loss", mode="min", storage=storage_url)

    with pytest.raises(NotAllowed, match=r"use study\.ask\(\)"):
        study.run()
    with pytest.raises(UsageError, match="workers is 0; it must be an integer of 1 or more"):
        study.run(workers=0)
    study.close()
