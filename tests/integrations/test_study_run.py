"""`study.run` starts worker processes. They end if the calling script ends or is killed."""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest
from fleet.workers import TRAINABLES, Fleet, eventually
from harness import arrange

from studydb.domain.errors import NotAllowed, StudydbError, UsageError
from studydb.domain.life.states import Status
from studydb.domain.trainable import Trainable, TrainableKind
from studydb.processes import children_of
from studydb.study.running import full_url
from studydb.trainables import load
from studydb.trainables.describing import PYTHON_VERSION
from studydb.worker.worker_processes import WorkerProcesses

SCRIPT = """
import sys, studydb
study = studydb.load_study("digits")
try:
    print(study.run(workers=1))
except KeyboardInterrupt:
    print("interrupted", file=sys.stderr)
    raise
"""

WITH_TWO_WORKERS = SCRIPT.replace("workers=1", "workers=2")

INTERRUPTED_TWICE = """
import os, signal, studydb
from studydb.analysis.progress_line import ProgressLine
show = ProgressLine.show_message
def show_and_interrupt(line_of_progress, message):
    show(line_of_progress, message)
    os.kill(os.getpid(), signal.SIGINT)
ProgressLine.show_message = show_and_interrupt
studydb.load_study("digits").run(workers=1)
"""

on_sqlite = pytest.mark.parametrize("storage_url", ["sqlite"], indirect=True)
"""A test with this mark runs on SQLite only, because the tested code is the same on PostgreSQL."""


@pytest.fixture
def create(storage_url, tmp_path, create_study):
    """
    A function that creates a study.

    By default, each trial waits after each step for a file that the test makes in `tmp_path`.
    """

    def create(trainable="obedient:gated", n_trials=1):
        options = {"num_trials": n_trials, "workdir": TRAINABLES, "storage": storage_url}
        space = {"x": 0.25, "folder": str(tmp_path)}
        return create_study("digits", trainable, space=space, **options)

    return create


@pytest.fixture
def start_script(storage_url, tmp_path):
    """A function that starts a script; all processes of the script are killed after the test."""
    with Fleet(storage_url, "digits", tmp_path) as fleet:
        yield lambda script=SCRIPT: fleet.launch([sys.executable, "-c", script])


def await_steps(study, n_results=1):
    """Wait until the study has at least `n_results` results in the database."""
    return eventually(lambda: sum(trial.summary.n_results for trial in study.trials) >= n_results)


def await_all_running(study):
    eventually(lambda: len(study.trials) == study.record.num_trials)
    eventually(lambda: all(trial.summary.n_results for trial in study.trials))


def rows(study, sql):
    return arrange.rows(study.database, sql)


@pytest.mark.slow
@pytest.mark.parametrize("storage_url", ["postgresql"], indirect=True)
def test_ctrl_c_releases_the_trials_and_leaves_no_process(create, start_script):
    study = create("obedient:unhurried", n_trials=2)
    script = start_script(WITH_TWO_WORKERS)
    await_all_running(study)

    script.send(signal.SIGINT)
    code, output = script.exit_code(60), script.output()

    assert code in {-signal.SIGINT, 130}
    assert "Waiting for the workers to save and release their trials" in output
    assert "The workers have ended; run the study again to continue their trials." in output
    assert "interrupted" in output
    assert "Traceback" not in output
    assert [trial.state for trial in study.trials] == ["PENDING"] * 2
    assert set(rows(study, "SELECT reason FROM v_attempt")) == {("PREEMPTED",)}
    assert set(rows(study, "SELECT failures, losses FROM v_trial")) == {(0, 0)}
    assert script.family() == []


@pytest.mark.nightly
@on_sqlite
def test_second_ctrl_c_kills_trials_that_do_not_stop(create, start_script):
    study = create("obedient:ignores_sigterm")
    script = start_script()
    await_steps(study)

    script.send(signal.SIGINT)
    eventually(lambda: "Waiting for the workers" in script.output())
    script.send(signal.SIGINT)

    assert script.exit_code(15) in {-signal.SIGINT, 130}
    eventually(lambda: script.family() == [])


@pytest.mark.nightly
@on_sqlite
def test_second_ctrl_c_while_the_first_is_handled_kills_trials_that_do_not_stop(
    create, start_script
):
    study = create("obedient:ignores_sigterm")
    script = start_script(INTERRUPTED_TWICE)
    await_steps(study)

    script.send(signal.SIGINT)

    assert script.exit_code(15) in {-signal.SIGINT, 130}
    eventually(lambda: script.family() == [])


@pytest.mark.slow
@on_sqlite
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_sigterm_or_sighup_to_the_script_releases_the_trials(create, start_script, number):
    study = create("obedient:unhurried")
    script = start_script()
    await_steps(study)

    script.send(number)
    script.exit_code(60)

    eventually(lambda: script.family() == [])
    assert [trial.state for trial in study.trials] == ["PENDING"]
    assert set(rows(study, "SELECT losses FROM v_trial")) == {(0,)}


@pytest.fixture
def usual_handler():
    """Python's handler of SIGINT, whatever handler an earlier test of this process has left."""
    earlier = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield signal.default_int_handler
    signal.signal(signal.SIGINT, earlier)


@on_sqlite
def test_ctrl_c_during_the_start_of_a_worker_leaves_no_worker(create, usual_handler, monkeypatch):
    study = create("obedient:unhurried")
    execute = subprocess.Popen._execute_child

    def interrupted(popen, *arguments):
        execute(popen, *arguments)
        signal.raise_signal(signal.SIGINT)

    before = set(children_of(os.getpid()))
    monkeypatch.setattr(subprocess.Popen, "_execute_child", interrupted)

    with pytest.raises(KeyboardInterrupt):
        study.run(workers=1)

    assert set(children_of(os.getpid())) <= before
    assert signal.getsignal(signal.SIGINT) is usual_handler


BY_IMPORT = Trainable("", TrainableKind.IMPORT, "looping:train", "", PYTHON_VERSION)
BY_PICKLE = Trainable("", TrainableKind.PICKLE, "train", "", PYTHON_VERSION, b"clooping\ntrain\n.")
"""A pickle that refers to the function `train` of the module `looping`."""


@on_sqlite
@pytest.mark.parametrize("call", ["run", "ask"])
@pytest.mark.parametrize("trainable", [BY_IMPORT, BY_PICKLE], ids=["import", "pickle"])
def test_module_that_runs_the_study_when_a_worker_imports_it_is_refused(
    create, storage_url, tmp_path, call, trainable
):
    create("obedient:unhurried")
    (tmp_path / "looping.py").write_text(
        f"import studydb\nstudydb.load_study('digits', storage={storage_url!r}).{call}()\n"
    )

    code = trainable.name.partition(":")[0]
    with pytest.raises(NotAllowed, match=rf"'{code}' calls study\.{call}\(\) when it is imported"):
        load(trainable, [tmp_path])


OF_A_TRIAL = """
import studydb
def create(name, function):
    return studydb.create_study(name, function, space={{"x": 1}}, metric="loss", mode="min",
        num_trials=1, max_failures=0, storage="sqlite:///s.db", load_if_exists=True)
def train(config):
    {code}
    return 2.0
def inner(config):
    return 3.0
"""
"""A program whose function `train` runs `code` in its trials."""


@pytest.mark.slow
@on_sqlite
@pytest.mark.parametrize(
    ("code", "exit_code", "words"),
    [
        ("import unguarded", 1, "A trial of study 'own' calls study.run() of this study"),
        ("create('inner', inner).run(workers=1)", 0, "own: 100 % of 1"),
    ],
)
def test_trial_may_run_another_study_but_not_its_own(storage_url, tmp_path, code, exit_code, words):
    (tmp_path / "program.py").write_text(
        OF_A_TRIAL.format(code=code) + "create('own', train).run(workers=1)\n"
    )
    (tmp_path / "unguarded.py").write_text(
        "import studydb\nstudydb.load_study('own', storage='sqlite:///s.db').run(workers=1)\n"
    )

    program = subprocess.run(
        [sys.executable, "program.py"],
        cwd=tmp_path,
        check=False,
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
    )

    assert program.returncode == exit_code
    assert words in program.stderr


@pytest.mark.slow
@on_sqlite
def test_killed_script_leaves_no_worker_and_no_running_trial(create, start_script):
    study = create("obedient:unhurried")
    script = start_script()
    await_steps(study)

    script.kill()

    eventually(lambda: script.family() == [])
    assert [trial.state for trial in study.trials] == ["PENDING"]


@pytest.fixture
def in_a_thread():
    """
    A function that calls a function in a thread, while the main thread is in `study.run`.

    An error in a thread interrupts the main thread, which would otherwise wait without end.
    """
    errors = []

    def call(function):
        try:
            function()
        except BaseException as error:  # noqa: BLE001  raised again below
            errors.append(error)
            signal.raise_signal(signal.SIGINT)

    def start(function):
        thread = threading.Thread(target=call, args=(function,))
        thread.start()
        return thread

    yield start
    for error in errors:
        raise error


@on_sqlite
def test_run_of_a_stopped_study_says_why_no_trial_runs_and_how_to_go_on(create, capsys):
    study = create()
    study.stop()

    assert study.run().total == 0

    message = capsys.readouterr().err
    assert message == (
        "Study 'digits' was stopped. No trial runs. To go on: study.resume() or `studydb resume "
        "digits`.\n"
    )


@pytest.mark.slow
@on_sqlite
def test_run_of_a_study_at_its_limit_names_the_limit(storage_url, create_study, capsys):
    options = {"space": {"x": 0.5}, "num_trials": 3, "max_steps": 2, "storage": storage_url}
    study = create_study("digits", lambda config: config["x"], **options)
    study.run()
    capsys.readouterr()

    study.run()

    message = capsys.readouterr().err
    assert "has stopped itself: its max_steps is reached" in message
    assert "To go on: study.set(max_steps=…), then study.resume()" in message


def worker_pids(study):
    running = rows(study, "SELECT pid FROM v_worker WHERE ended_at IS NULL ORDER BY pid")
    return [pid for (pid,) in running]


@pytest.mark.nightly
@on_sqlite
def test_run_raises_an_error_with_the_cause_if_all_workers_are_killed(
    create, tmp_path, in_a_thread
):
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
        "All workers of 'digits' ended before the study was done. The study's results are kept; "
        "run it again to continue. The cause: a worker was killed by SIGKILL; perhaps a person "
        "killed it, or memory ran out."
    )
    assert counts.terminated == 1
    assert [step for (step,) in rows(study, "SELECT step FROM v_result")] == [1, 2, 3, 4]
    reasons = rows(study, "SELECT reason FROM v_attempt ORDER BY attempt")
    assert reasons == [("LOST",), ("COMPLETED",)]


@pytest.mark.slow
@on_sqlite
def test_other_workers_complete_the_trials_of_a_killed_worker(create, tmp_path, in_a_thread):
    study = create(n_trials=2)

    def kill_one():
        await_steps(study, 2)
        os.kill(worker_pids(study)[0], signal.SIGKILL)
        for step in range(1, 5):
            (tmp_path / f"gate-{step}").touch()

    def start_another():
        """After the kill, start a worker; its start recovers the trials of dead local processes."""
        killer.join()
        with WorkerProcesses(storage=full_url(study.database), study="digits", workers=1) as team:
            eventually(lambda: team.alive == 0)

    killer = in_a_thread(kill_one)
    starter = in_a_thread(start_another)
    counts = study.run(workers=2)
    starter.join()

    assert counts.terminated == 2
    assert set(rows(study, "SELECT reason FROM v_attempt")) == {("LOST",), ("COMPLETED",)}


@pytest.mark.slow
def test_workers_that_ignore_sigterm_are_killed_together_after_one_timeout(monkeypatch):
    ignoring = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
        "print(flush=True); time.sleep(60)"
    )

    def start(team):
        popen = subprocess.Popen([sys.executable, "-S", "-c", ignoring], stdout=subprocess.PIPE)
        popen.stdout.readline()
        team._running.append((popen, popen.stdout))

    monkeypatch.setattr(WorkerProcesses, "_start", start)
    monkeypatch.setattr("studydb.worker.worker_processes.TERMINATE_S", 1.0)
    with WorkerProcesses(storage="", study="", workers=8) as team:
        began_s = time.monotonic()

    assert 1.0 <= time.monotonic() - began_s < 6.0  # one wait per worker would take 8 s
    assert team.alive == 0


@on_sqlite
def test_run_of_a_finished_study_starts_no_worker(create, monkeypatch):
    study = create("obedient:one_step")
    arrange.SimulatedWorker(study.database, study.record).take().finish(0.5)
    monkeypatch.setattr(WorkerProcesses, "_start", lambda _: pytest.fail("a worker was started"))

    counts = study.run(workers=2)

    assert counts.terminated == counts.total == 1
    assert study.status is Status.FINISHED


@pytest.mark.nightly
@on_sqlite
def test_run_ends_when_a_person_stops_the_study(create, in_a_thread):
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


@pytest.mark.nightly
@on_sqlite
def test_run_prints_the_cause_of_repeated_losses(create, capfd):
    study = create("warmth:dies_twice")

    study.run(workers=1)

    assert study.trials[0].state == "TERMINATED"
    assert "was killed by SIGKILL" in capfd.readouterr().err


@pytest.mark.nightly
@on_sqlite
def test_run_prints_the_errors_of_trials_when_it_ends(create, capfd):
    study = create("misbehaving:raises_unless_first", n_trials=3)

    counts = study.run(workers=1)

    printed = capfd.readouterr().err
    assert counts.error == 2
    line = "2 trials of 'digits' ended with an error, trial 1 with ValueError: only the first"
    assert line in printed
    assert printed.endswith("Details: studydb show digits 1\n")


@pytest.mark.slow
@on_sqlite
def test_run_prints_only_the_errors_of_trials_that_failed_in_this_run(create, capfd):
    study = create("misbehaving:raises_unless_first", n_trials=3)
    study.run(workers=1)
    capfd.readouterr()

    study.extend(num_trials=1)
    study.run(workers=1)
    with_failure = capfd.readouterr().err
    study.set(trainable="obedient:one_step", workdir=TRAINABLES)
    study.extend(num_trials=1)
    counts = study.run(workers=1)
    without_failure = capfd.readouterr().err

    assert (counts.error, counts.terminated) == (3, 2)
    assert "trial 2 failed" not in with_failure
    assert "1 trial of 'digits' ended with an error, trial 3 with ValueError" in with_failure
    assert "error, trial" not in without_failure
    assert "failed:" not in without_failure


@pytest.mark.nightly
@on_sqlite
def test_run_raises_the_error_of_a_worker_that_cannot_start(create, monkeypatch):
    study = create("obedient:one_step")
    monkeypatch.setenv("STUDYDB_SIGNING_KEY", "ab" * 32)
    monkeypatch.setenv("STUDYDB_KEY_FILE", "/nonexistent/keys")

    with pytest.raises(StudydbError, match="is not signed by a key in /nonexistent/keys"):
        study.run(workers=2)


@on_sqlite
def test_run_is_refused_for_a_study_without_a_trainable_or_with_zero_workers(
    create_study, storage_url
):
    study = create_study("mine", storage=storage_url)

    with pytest.raises(NotAllowed, match=r"use study\.ask\(\)"):
        study.run()
    with pytest.raises(UsageError, match="workers is 0; it must be an integer of 1 or more"):
        study.run(workers=0)
