"""
An own loop that saves checkpoints is killed, or its connection is cut; its trials go on.

An ask waits for the recovery of a trial, and ends at its timeout if the database is busy or away.
"""

import itertools
import os
import signal
import sqlite3
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from threading import Event

import pytest
from fleet.workers import eventually
from harness import arrange
from harness.arrange import SimulatedWorker, change, rows
from harness.kept_checkpoints import files_below, live_steps, saved_steps
from harness.proxy import Proxy
from sqlalchemy import make_url

import studydb
from studydb.artifacts import DirectoryStore
from studydb.artifacts.checkpoint_files import Saver
from studydb.db import sqlite_file
from studydb.domain.errors import NotAllowed, StorageTransient
from studydb.domain.life.states import State
from studydb.lease import acquire, loop
from studydb.lease.acquire import Acquirer
from studydb.lease.fitting import Fitting
from studydb.lease.held import HeldAttempt
from studydb.lease.own_checkpoints import OwnCheckpoints
from studydb.lease.own_worker import OwnWorker
from studydb.operations.recover import awaits_recovery, recover

BEGIN = """
import os, sys, studydb
study = studydb.load_study("own", storage=os.environ["STORAGE"])
trial = study.ask()
"""

TRAIN = (
    BEGIN
    + """
for step in range(1, 4):
    if sys.argv[1] == "dict":
        checkpoint = {"text": "x" * step}
    else:
        checkpoint = sys.argv[1]
        open(os.path.join(checkpoint, "text"), "w").write("x" * step)
    trial.report({"loss": 1 / step}, checkpoint=checkpoint)
trial.report({"loss": 0.1})  # has no checkpoint, so step 4 is trained again
print("trained", flush=True)
sys.stdin.read()
"""
)

RESTORE = (
    BEGIN
    + """
print(trial.checkpoint.path, flush=True)
sys.stdin.read()
"""
)

DIE_AT_COMMITS = """
import os, sys, studydb
from harness.crash_target import die_at

def run(nth):
    study = studydb.load_study("own", storage=os.environ["STORAGE"])
    trial = study.ask()
    for step in range(1, 4):
        trial.report({"loss": 1 / step}, checkpoint={"step": step})
    die_at(sys.argv[1], nth)
    trial.report({"loss": 1 / 4}, checkpoint={"step": 4})
    os._exit(0)

studydb.load_study  # imports what `run` needs
for line in sys.stdin:
    pid = os.fork()
    if pid == 0:
        run(int(line))
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""
"""
A script that forks an own loop for each number that it reads. The loop counts its COMMITs from its
fourth report on, and is killed before or after the COMMIT with that number; the script's argument
says which. A loop with fewer COMMITs exits with 0. The script prints each loop's exit code.
"""


@pytest.fixture
def study(create_study, storage_url, tmp_path):
    return create_study(
        "own",
        num_trials=None,
        storage=storage_url,
        checkpoints=str(tmp_path / "store"),
        space={"x": studydb.uniform(0, 1)},
    )


@pytest.fixture
def start(storage_url):
    """Start a script in a new process."""
    started = []

    def start(script, *arguments):
        environment = os.environ | {"STORAGE": storage_url, "PYTHONPATH": ":".join(sys.path)}
        started.append(
            subprocess.Popen(
                [sys.executable, "-c", script, *map(str, arguments)],
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
        )
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("storage_url", "form"),
    [("sqlite", "directory"), ("postgresql", "dict")],
    indirect=["storage_url"],
)
def test_trial_of_a_killed_loop_goes_on_in_another_process(study, start, tmp_path, form):
    model = tmp_path / "model"
    model.mkdir()
    process = start(TRAIN, form if form == "dict" else model)
    assert process.stdout.readline() == b"trained\n"
    process.kill()
    process.wait()

    trial = study.ask()

    assert (trial.number, trial.attempt, trial.start_step) == (0, 2, 3)
    checkpoint = trial.checkpoint
    text = (
        checkpoint.to_dict()["text"] if form == "dict" else (checkpoint.path / "text").read_text()
    )
    assert text == "xxx"
    trial.report({"loss": 0.25}, checkpoint={"text": "xxxx"})
    trial.finish()
    assert live_steps(study, 0) == [1, 2, 3, 4]
    assert study.trial(0).losses == 0  # the checkpoint of step 4 has reset the count of losses


@pytest.fixture
def expired(create_study, storage_url):
    """A study whose only trial runs on another host, under a lease that has expired."""
    space = {"x": studydb.uniform(0, 1)}
    study = create_study("own", num_trials=1, storage=storage_url, space=space)
    other_host = SimulatedWorker(study.database, study.record, of=arrange.process(boot_id="B"))
    other_host.take()
    change(study.database, "UPDATE trial SET lease_expires_at = '2000-01-01'")
    return study


@pytest.mark.slow
def test_ask_waits_for_the_recovery_of_a_trial_whose_lease_has_expired(expired):
    change(expired.database, "UPDATE trial SET lease_s = 2")  # the renewal period is then short
    trial = expired.ask(timeout=60)

    assert (trial.number, trial.attempt) == (0, 2)
    trial.report({"loss": 0.5})
    trial.finish()
    assert expired.ask() is None


def test_ask_returns_a_trial_that_is_recovered_after_the_look_that_found_no_trial(
    expired, monkeypatch
):
    def recover_before(database, study, **given):
        change(database, "UPDATE trial SET suspect_at = '2000-01-01'")
        recover(database, study)
        return awaits_recovery(database, study, **given)

    monkeypatch.setattr(loop, "awaits_recovery", recover_before)

    assert expired.ask(timeout=60).attempt == 2


def test_ask_in_a_stopped_study_waits_for_no_recovery(expired):
    expired.stop()

    assert expired.ask(timeout=5) is None


@pytest.mark.slow
@pytest.mark.parametrize("storage_url", ["sqlite"], indirect=True)
def test_restored_copy_of_a_killed_loop_is_removed_when_another_loop_restores(
    study, start, load_study, storage_url, tmp_path
):
    model = tmp_path / "model"
    model.mkdir()
    (model / "text").write_text("x")
    trial = study.ask()
    trial.report({"loss": 1.0}, checkpoint=model)
    trial.release()
    killed = start(RESTORE)
    copy = Path(killed.stdout.readline().decode().strip())
    killed.kill()
    killed.wait()
    assert (copy / "text").exists()

    trial = load_study("own", storage_url).ask()

    assert (trial.checkpoint.path / "text").read_text() == "x"
    assert not copy.exists()


@pytest.mark.slow
@pytest.mark.parametrize("storage_url", ["sqlite"], indirect=True)
@pytest.mark.parametrize("point", ["before", "after"])
def test_kill_at_any_commit_of_a_save_leaves_a_checkpoint_to_go_on_from(
    study, start, load_study, storage_url, point
):
    loops, begun = start(DIE_AT_COMMITS, point), []
    for nth in itertools.count(1):
        loops.stdin.write(b"%d\n" % nth)
        loops.stdin.flush()
        if int(loops.stdout.readline()) != -signal.SIGKILL:
            break
        trial = load_study("own", storage_url).ask()  # a new loop recovers trials of dead processes
        begun.append(trial.start_step)
        assert trial.checkpoint.to_dict() == {"step": trial.start_step}
        assert saved_steps(study, trial.number)[-1] == trial.start_step
        for step in range(trial.start_step + 1, 6):
            assert trial.report({"loss": 1 / step}, checkpoint={"step": step})
        trial.finish()
        assert live_steps(study, trial.number) == [1, 2, 3, 4, 5]
        assert saved_steps(study, trial.number) == [4, 5]

    assert set(begun) == {3, 4}
    assert begun == sorted(begun)


@pytest.mark.slow
@pytest.mark.parametrize("storage_url", ["postgresql"], indirect=True)
@pytest.mark.parametrize("when", ["before", "after"])
def test_checkpoint_is_stored_once_although_the_connection_is_cut(
    study, storage_url, load_study, tmp_path, when
):
    with closing(Proxy(storage_url)) as proxy:
        cut = load_study("own", proxy.url())
        for nth in itertools.count(1):
            trial = cut.ask()
            for step in (1, 2, 3):
                trial.report({"loss": 1 / step}, checkpoint={"step": step})
            proxy.cut(when, exchange=nth)
            assert trial.report({"loss": 1 / 4}, checkpoint={"step": 4})
            was_cut = proxy.was_cut
            proxy.listen()
            trial.report({"loss": 1 / 5}, checkpoint={"step": 5})
            trial.finish()

            assert live_steps(study, trial.number) == [1, 2, 3, 4, 5]
            assert saved_steps(study, trial.number) == [4, 5]
            assert len(files_below(tmp_path / "store")) == 2 * (trial.number + 1)
            if not was_cut:
                break
        cut.close()
    assert nth > 3


@pytest.mark.slow
@pytest.mark.parametrize("storage_url", ["sqlite"], indirect=True)
def test_first_and_later_asks_end_at_their_timeout_if_the_database_is_busy(
    study, storage_url, monkeypatch
):
    """Without a timeout, an ask tries for 15 minutes."""
    monkeypatch.setattr(sqlite_file, "BUSY_TIMEOUT_S", 0.1)
    with closing(sqlite3.connect(make_url(storage_url).database, isolation_level=None)) as other:
        for number in (0, 1):
            other.execute("BEGIN IMMEDIATE")
            began_s = time.monotonic()
            with pytest.raises(TimeoutError, match="another process is writing"):
                study.ask(timeout=0.5)
            assert time.monotonic() - began_s < 4.0
            other.execute("ROLLBACK")
            with study.ask(timeout=30) as trial:
                assert trial.number == number
                trial.report({"loss": 0.5})


def test_temporary_fault_at_the_last_look_does_not_end_the_last_ask(
    create_study, storage_url, monkeypatch
):
    """In a finished study, an ask looks once more before it returns None."""
    scheduler = studydb.ASHA(max_t=2, type="promotion")
    study = create_study("last", num_trials=1, scheduler=scheduler, storage=storage_url)
    for step in (1, 2):  # at step 1 the trial waits at a rung; the next ask promotes it
        with study.ask(timeout=30) as trial:
            trial.report({"loss": 0.5, "step": step})
    look_anew, faults = study._loop._acquirer.look_anew, [StorageTransient("deadlock")]

    def look():
        if faults:
            raise faults.pop()
        return look_anew()

    monkeypatch.setattr(study._loop._acquirer, "look_anew", look)

    assert study.ask(timeout=30) is None
    assert faults == []


@pytest.mark.parametrize("storage_url", ["sqlite"], indirect=True)
def test_ask_ends_at_its_timeout_although_another_thread_asks_for_longer(
    study, storage_url, monkeypatch
):
    monkeypatch.setattr(sqlite_file, "BUSY_TIMEOUT_S", 0.1)
    with study.ask() as trial:
        trial.report({"loss": 0.5})
    with closing(sqlite3.connect(make_url(storage_url).database, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with ThreadPoolExecutor() as pool:
            patient = pool.submit(study.ask, timeout=60)
            eventually(lambda: "owner" in repr(study._loop._acquiring).replace("owner=0", ""))
            began_s = time.monotonic()
            with pytest.raises(
                TimeoutError, match=r"Another thread of this process was in study\.ask"
            ):
                study.ask(timeout=0.5)
            assert time.monotonic() - began_s < 4.0
            other.execute("ROLLBACK")
            with patient.result(60) as trial:
                trial.report({"loss": 0.5})


def test_ask_ends_at_its_timeout_if_a_trial_can_be_seen_but_not_claimed(study, monkeypatch):
    """As while another session has locked the trial's row."""
    study.enqueue({"x": 0.5})
    searches = []
    monkeypatch.setattr(Acquirer, "_acquire", lambda *_, **again: searches.append(again))

    with pytest.raises(TimeoutError, match="No trial could start in time"):
        study.ask(timeout=1.0)

    assert len(searches) < 20


@pytest.mark.parametrize("is_enqueued", [True, False])
def test_a_trial_that_ctrl_c_in_an_ask_has_left_claimed_is_given_back(
    study, monkeypatch, is_enqueued
):
    if is_enqueued:
        study.enqueue({"x": 0.5})
    for name in ("claim", "ask"):
        monkeypatch.setattr(acquire, name, interrupted_after(getattr(acquire, name)))
    with pytest.raises(KeyboardInterrupt):
        study.ask()
    assert study.counts.running == 1

    study.close()

    (trial,) = study.trials
    assert (trial.state, trial.number) == (State.PENDING, 0)
    assert rows(study.database, "SELECT reason FROM attempt") == [("PREEMPTED",)]


def test_ctrl_c_in_an_ask_that_has_claimed_nothing_claims_nothing_later(study, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patches:
        patches.setattr(acquire, "claim", interrupted)
        with pytest.raises(KeyboardInterrupt):
            study.ask()

    study.close()

    assert study.trials == []


@pytest.mark.parametrize(
    "interrupted", [(Fitting, "take_turn"), (Fitting, "hold"), (OwnWorker, "hold")]
)
def test_an_ask_after_ctrl_c_returns_the_trial_that_the_ask_before_may_have_claimed(
    create_study, storage_url, monkeypatch, interrupted
):
    space = {"x": studydb.uniform(0, 1)}
    study = create_study("again", space=space, resources={"slots": 1}, storage=storage_url)
    study.offer({"slots": 1})
    with monkeypatch.context() as patches:
        patches.setattr(*interrupted, interrupted_after(getattr(*interrupted)))
        with pytest.raises(KeyboardInterrupt):
            study.ask()

    with study.ask(timeout=30) as trial:
        assert trial.report({"loss": 0.5})
    with study.ask(timeout=30) as later:
        assert later.report({"loss": 0.25})

    assert (trial.number, trial.attempt, later.number) == (0, 1, 1)
    assert [each.best_value for each in study.trials] == [0.5, 0.25]


def test_a_loop_that_is_closed_gives_back_the_trial_for_which_another_thread_searches(
    study, monkeypatch
):
    acquire_trial, has_claimed = Acquirer._acquire, Event()
    closed = Event()
    with study.ask() as first:  # so that the loop is open
        first.report({"loss": 0.5})

    def claim_slowly(acquirer, **given):
        claimed = acquire_trial(acquirer, **given)
        has_claimed.set()
        assert closed.wait(60)
        return claimed

    monkeypatch.setattr(Acquirer, "_acquire", claim_slowly)
    with ThreadPoolExecutor() as pool:
        asked = pool.submit(study.ask)
        assert has_claimed.wait(60)
        worker = study._loop._worker
        closing = pool.submit(study.close)
        eventually(lambda: worker.is_closed)
        closed.set()
        closing.result(60)
        trial = asked.result(60)

    if trial is not None:
        with pytest.raises(
            NotAllowed, match="was given back, for example because the study was cl"
        ):
            trial.report({"loss": 0.5})
    assert [(each.number, each.state) for each in study.trials][1:] == [(1, State.PENDING)]


@pytest.fixture
def offering(create_study, storage_url):
    """A study in whose loop one trial can run at a time, because it needs the only slot."""
    space = {"x": studydb.uniform(0, 1)}
    study = create_study("offering", space=space, resources={"slots": 1}, storage=storage_url)
    study.offer({"slots": 1})
    return study


@pytest.mark.parametrize("is_stored", [False, True])
def test_ctrl_c_while_a_with_block_finishes_its_trial_does_not_keep_the_trial_held(
    offering, monkeypatch, is_stored
):
    end = HeldAttempt.end

    def interrupted(held, *arguments, **named):
        monkeypatch.undo()
        if is_stored:
            end(held, *arguments, **named)
        raise KeyboardInterrupt

    trial = offering.ask()
    trial.report({"loss": 0.5})
    monkeypatch.setattr(HeldAttempt, "end", interrupted)
    with pytest.raises(KeyboardInterrupt), trial:
        pass

    with offering.ask(timeout=30) as later:
        later.report({"loss": 0.25})

    assert (trial.number, later.number) == (0, 1)
    assert [each.reason for each in offering.trials] == ["COMPLETED"] * 2


def test_ctrl_c_while_a_with_block_finishes_its_trial_in_an_outage_gives_the_trial_back(
    offering, monkeypatch
):
    calls = []

    def unanswered(*_, **__):
        calls.append(1)
        if len(calls) == 1:
            raise KeyboardInterrupt
        monkeypatch.undo()
        raise StorageTransient("The database does not answer.")

    trial = offering.ask()
    trial.report({"loss": 0.5})
    monkeypatch.setattr(HeldAttempt, "end", unanswered)
    with pytest.raises(KeyboardInterrupt), trial:
        pass

    with pytest.warns(UserWarning, match="dropped trial 0"), offering.ask(timeout=30) as later:
        later.report({"loss": 0.25})
    assert (trial.number, later.number, later.attempt) == (0, 0, 2)


def test_ctrl_c_during_an_upload_of_an_attempt_that_lost_its_trial_leaves_no_bytes(
    study, tmp_path, monkeypatch
):
    """The upload's row was deleted by another process before the bytes were written."""
    trial = study.ask()
    put_bytes = DirectoryStore.put_bytes

    def lose_and_interrupt(store, place, data):
        change(study.database, "UPDATE trial SET token = 'other'")
        change(study.database, "DELETE FROM upload")
        put_bytes(store, place, data)
        with pytest.raises(studydb.LeaseLost):
            trial.flush()
        raise KeyboardInterrupt

    monkeypatch.setattr(DirectoryStore, "put_bytes", lose_and_interrupt)
    with pytest.raises(KeyboardInterrupt):
        trial.report({"loss": 1.0}, checkpoint={"a": 1})

    assert files_below(tmp_path / "store") == []


@pytest.mark.parametrize("interrupted", [(HeldAttempt, "save"), (Saver, "begin")])
def test_ctrl_c_after_a_checkpoints_row_was_stored_keeps_its_bytes(
    study, tmp_path, monkeypatch, interrupted
):
    """Ctrl-C comes after the lease was lost, in the save itself or at the start of the next one."""
    trial = study.ask()
    function = getattr(*interrupted)

    def lose_and_interrupt(*given, **named):
        function(*given, **named)
        trial._held.lost()
        raise KeyboardInterrupt

    if interrupted[0] is Saver:
        trial.report({"loss": 1.0}, checkpoint={"a": 1})
    monkeypatch.setattr(*interrupted, lose_and_interrupt)
    with pytest.raises(KeyboardInterrupt):
        trial.report({"loss": 1.0}, checkpoint={"a": 1})

    assert len(saved_steps(study)) == len(files_below(tmp_path / "store")) == 1


def test_ctrl_c_while_a_restored_copy_is_removed_does_not_keep_the_trial_held(
    offering, monkeypatch
):
    def interrupted(_):
        monkeypatch.undo()
        raise KeyboardInterrupt

    trial = offering.ask()
    trial.report({"loss": 0.5})
    monkeypatch.setattr(OwnCheckpoints, "remove_copy", interrupted)
    with pytest.raises(KeyboardInterrupt):
        trial.finish()

    assert offering.ask(timeout=30).number == 1


def interrupted_after(operation):
    """Return the operation, which raises KeyboardInterrupt after it has claimed a trial."""

    def run(*arguments, **named):
        if operation(*arguments, **named) is not None:
            raise KeyboardInterrupt

    return run


@pytest.mark.slow
@pytest.mark.parametrize("storage_url", ["postgresql"], indirect=True)
def test_ask_ends_at_its_timeout_if_the_database_is_away(study, storage_url, load_study):
    with closing(Proxy(storage_url)) as proxy:
        away = load_study("own", proxy.url())
        with away.ask() as trial:
            trial.report({"loss": 0.5})
        proxy.sever()
        began_s = time.monotonic()
        with pytest.raises(TimeoutError, match="did not answer in time"):
            away.ask(timeout=1.0)
        assert 1.0 <= time.monotonic() - began_s < 4.0
        proxy.mend()
        with away.ask(timeout=30) as trial:
            trial.report({"loss": 0.5})
        away.close()
    assert [trial.state for trial in study.trials] == ["TERMINATED"] * 2
