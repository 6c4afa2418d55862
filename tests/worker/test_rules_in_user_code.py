"""Stop rules in the user's code: their decisions, failures, processes, options and signatures."""

import os
import signal
import sys
from pathlib import Path

import pytest
from fleet.workers import TRAINABLES, eventually
from harness import arrange
from psutil import Process

import studydb
from studydb.settings import Keyring, load_keyring
from studydb.worker.rule_code import trusted_rules
from studydb.worker.worker_options import WorkerOptions


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    """Put the folder of the trainables, which has the rules, on sys.path."""
    monkeypatch.syspath_prepend(str(TRAINABLES))
    yield
    sys.modules.pop("stopping", None)


def asked(stage):
    """Return each call of the rule: the decider's pid, the trial's number, the results' steps."""
    path = stage.folder / "asked"
    lines = path.read_text().splitlines() if path.exists() else []
    return [(int(pid), int(number), eval(steps)) for pid, number, steps in _split(lines)]


def _split(lines):
    return [line.split(maxsplit=2) for line in lines]


def create(stage, *rules, **options):
    return stage.create("stopping:waits_for_gates", stop=list(rules), **options)


def too_slow(stage):
    return f"stopping:TooSlow(limit=3, folder='{stage.folder}')"


@pytest.mark.nightly
@pytest.mark.row("A9")
def test_rule_stops_a_trial_at_the_same_step_although_the_worker_was_killed(stage):
    create(stage, "loss>=3", too_slow(stage))
    for step in (1, 2, 3, 4):
        stage.open_gate(step)
    worker = stage.start()
    stage.await_trial(lambda row: row.checkpoint_step == 5)  # the next attempt trains step 6
    worker.end()
    stage.open_gate("all")

    assert stage.run() == 0

    assert stage.trial().reason == "RULE_STOPPED"
    assert stage.steps() == [1, 2, 3, 4, 5, 6, 7]
    (met,) = stage.events("stop rule met")
    assert met["step"] == 7
    assert met["reason"] == "no improvement for 3 steps at 0.25"
    shown = stage.command("show", "staged", "0")
    assert "step 7 met the rule stopping:TooSlow(limit=3" in shown
    assert "): no improvement for 3 steps at 0.25" in shown
    assert [steps for _, _, steps in asked(stage)] == [list(range(1, n + 1)) for n in range(1, 8)]
    assert len({pid for pid, _, _ in asked(stage)}) == 2  # one decider for each worker


@pytest.mark.slow
def test_rule_decides_again_if_the_worker_died_during_the_first_decision(stage):
    """The next attempt trains the step again. The rule then reads the same results as before."""
    create(stage, f"stopping:KillsItsWorker(folder='{stage.folder}')")
    stage.open_gate("all")
    first = stage.start()
    assert first.exit_code(60.0) == -signal.SIGKILL
    assert stage.steps() == [1, 2]

    assert stage.run() == 0

    assert stage.steps() == [1, 2, 3]
    (met,) = stage.events("stop rule met")
    assert met["reason"] == "asked again with [1, 2, 3]"


@pytest.mark.nightly
def test_rule_reads_no_result_that_a_later_attempt_supersedes(sqlite_stage):
    stage = sqlite_stage
    stage.create("stopping:saves_once", stop=[too_slow(stage)])
    worker = stage.start()
    stage.await_trial(lambda row: row.last_step == 4)
    worker.end()
    stage.open_gate("all")

    assert stage.run() == 0

    steps = [steps for _, _, steps in asked(stage)]
    assert steps[3:6] == [[1, 2, 3, 4], [1, 2, 3, 4], [1, 2, 3, 4, 5]]
    assert stage.trial().reason == "RULE_STOPPED"


@pytest.mark.nightly
def test_decider_that_is_killed_between_two_results_is_replaced(sqlite_stage):
    stage = sqlite_stage
    create(stage, too_slow(stage))
    stage.start()
    stage.await_result()
    os.kill(asked(stage)[-1][0], signal.SIGKILL)
    stage.open_gate("all")

    stage.await_state("TERMINATED")

    assert stage.trial().reason == "RULE_STOPPED"
    assert len({pid for pid, _, _ in asked(stage)}) == 2
    assert stage.events("study paused") == []


@pytest.mark.nightly
def test_process_of_a_rule_dies_with_its_worker(sqlite_stage):
    stage = sqlite_stage
    create(stage, too_slow(stage))
    worker = stage.start()
    stage.await_result()
    process = Process(asked(stage)[-1][0])
    assert process.name() == "studydb-decider"

    worker.kill()

    process.wait(10.0)


@pytest.mark.slow
@pytest.mark.sampled(6)
@pytest.mark.parametrize(
    ("how", "cause"),
    [
        ("raises", "it raised KeyError: 'accuracy'"),
        ("exits", "it raised SystemExit: 0"),
        ("returns_none", "should_stop returned None; return False to go on"),
        ("returns_a_list", "should_stop returned list; return False to go on"),
        ("returns_empty_text", "should_stop returned ''; return False to go on"),
        ("hangs", "it took more than 1 s"),
        ("spins", "it took more than 1 s"),
        ("kills_itself", "its process was killed by SIGKILL"),
        ("stops_itself", "it took more than 1 s"),
        ("leaves", "its process exited with code 0"),
        ("writes_to_each_descriptor", "its process has sent bytes that are no message"),
    ],
)
def test_rule_that_fails_pauses_the_study_and_costs_no_trial_and_no_worker(
    sqlite_stage, how, cause
):
    stage = sqlite_stage
    study = create(
        stage, f"stopping:Broken(how={how}, folder='{stage.folder}')", num_trials=2, max_failures=0
    )
    for step in (1, 2, 3):
        stage.open_gate(step)
    worker = stage.start()

    stage.await_trial(lambda row: row.last_step == 4)

    assert study.status == "PAUSED"
    assert (
        f'has paused itself: on trial 0 at step 2, the stop rule stopping:Broken(how="{how}"'
        in (stage.command("status", "staged"))
    )
    assert cause in study.progress.pause_reason
    assert (stage.trial().state, stage.trial().failures) == ("RUNNING", 0)
    assert len(stage.events("study paused")) == 1

    stage.open_gate("corrected")
    study.resume()
    stage.open_gate("all")

    assert worker.exit_code(60.0) == 0, worker.output()
    assert [stage.trial(number).reason for number in (0, 1)] == ["RULE_STOPPED"] * 2
    assert len(stage.attempts(0)) == 1
    assert "a stop rule has not decided, so the study pauses itself" in worker.output()


@pytest.mark.nightly
def test_failure_of_a_rule_pauses_the_study_on_both_databases(stage):
    study = create(stage, "stopping:Broken(how=raises)", num_trials=2)
    stage.open_gate("all")
    worker = stage.start()

    stage.await_state("TERMINATED")

    assert stage.trial().reason == "COMPLETED"
    assert study.progress.pause_reason.startswith("on trial 0 at step 2, the stop rule stopping:")
    eventually(lambda: "to go on: `studydb resume staged`" in worker.output())
    assert worker.runs  # it waits for the study to be resumed
    (data,) = stage.events("study paused")
    assert 'raise KeyError("accuracy")' in data["traceback"]


@pytest.mark.nightly
def test_worker_ends_if_a_rule_has_failed_and_no_trial_is_left(sqlite_stage):
    study = create(sqlite_stage, "stopping:Broken(how=raises)")
    sqlite_stage.open_gate("all")

    assert sqlite_stage.run() == 3

    assert sqlite_stage.trial().reason == "COMPLETED"
    with pytest.raises(studydb.StudyFailed, match="has not decided: it raised KeyError"):
        study.run()


@pytest.mark.slow
def test_module_that_is_corrected_is_imported_again_after_the_resumption(sqlite_stage, tmp_path):
    stage, folder = sqlite_stage, tmp_path / "code"
    folder.mkdir()
    module = folder / "edited_rule.py"
    source = "import studydb\nclass Rule(studydb.StopRule):\n    def should_stop(self, trial):\n"
    module.write_text(f"{source}        return False\n")
    (folder / "edited_train.py").write_text((TRAINABLES / "stopping.py").read_text())
    study = stage.create(
        "edited_train:waits_for_gates", stop="edited_rule:Rule()", workdir=str(folder)
    )
    worker = stage.start()
    stage.await_result()
    module.write_text("raise ImportError('half of an edit')\n")
    stage.open_gate(1)
    eventually(lambda: study.status == "PAUSED")
    assert (
        "edited_rule:Rule cannot be made: ImportError: half of an edit"
        in study.progress.pause_reason
    )

    module.write_text(f"{source}        return 'corrected'\n")
    study.resume()
    stage.open_gate("all")

    assert worker.exit_code(60.0) == 0
    assert stage.trial().reason == "RULE_STOPPED"


@pytest.mark.nightly
@pytest.mark.parametrize("numbers", [(), (0,)], ids=["study", "trial"])
def test_stop_now_does_not_wait_for_the_import_of_a_rule(sqlite_stage, tmp_path, numbers):
    stage, folder = sqlite_stage, tmp_path / "code"
    folder.mkdir()
    module = folder / "slow_rule.py"
    source = "import studydb\nclass Rule(studydb.StopRule):\n    def should_stop(self, trial):\n"
    module.write_text(f"{source}        return False\n")
    (folder / "slow_train.py").write_text((TRAINABLES / "stopping.py").read_text())
    study = stage.create("slow_train:waits_for_gates", stop="slow_rule:Rule()", workdir=str(folder))
    began = tmp_path / "began"
    module.write_text(f"import time\nopen({str(began)!r}, 'w')\ntime.sleep(100)\n")
    stage.start()
    eventually(began.exists)

    study.stop(*numbers, now=True)

    assert stage.await_state("TERMINATED").reason == "CANCELLED"


@pytest.mark.nightly
def test_rule_finds_no_credentials_and_no_inherited_sockets(stage, monkeypatch):
    monkeypatch.setenv("STUDYDB_SIGNING_KEY", "ab" * 32)
    monkeypatch.setenv("PGPASSWORD", "secret")
    create(stage, "stopping:Nosy()")

    assert stage.run() == 0

    (met,) = stage.events("stop rule met")
    assert met["reason"] == "secrets [], sockets 1, own group True"


@pytest.mark.nightly
def test_rule_may_print_and_return_a_bool_of_numpy(sqlite_stage):
    create(sqlite_stage, "stopping:Plain()")
    sqlite_stage.open_gate("all")

    assert sqlite_stage.run() == 0

    assert sqlite_stage.trial().last_step == 4
    (met,) = sqlite_stage.events("stop rule met")
    assert met["reason"] == ""


@pytest.mark.nightly
def test_trial_whose_done_report_meets_a_rule_ends_as_stopped_by_the_rule(sqlite_stage):
    sqlite_stage.create("stopping:done_at_once", stop="stopping:WithoutBase(step=1)")

    assert sqlite_stage.run() == 0

    assert sqlite_stage.trial().reason == "RULE_STOPPED"


@pytest.mark.nightly
def test_value_that_the_function_returns_is_judged(sqlite_stage):
    sqlite_stage.create("stopping:returns", stop="stopping:WithoutBase(step=1)")

    assert sqlite_stage.run() == 0

    assert sqlite_stage.trial().reason == "RULE_STOPPED"


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ("stoping:TooSlow()", "Python finds no module 'stoping' from .*Did you mean 'stopping'"),
        ("stopping:TooFast()", "stopping.py has no 'TooFast'"),
        (
            "stopping:TooSlow(limt=3)",
            "unexpected keyword argument 'limt'. Correct it, and try again",
        ),
        ("stopping:NoRule()", r"is not a class with a method should_stop\(trial\). Derive it from"),
        ("stopping:Greedy(step=1)", "is 1000000; it must be an integer from 1 to 1000"),
        ("stopping:os", "'stopping:os' is a module; name a function or class"),
    ],
)
def test_rule_that_cannot_be_used_is_refused_and_no_study_is_created(sqlite_stage, rule, message):
    with pytest.raises(studydb.TrainableError, match=message):
        create(sqlite_stage, rule)
    with pytest.raises(studydb.UnknownStudy):
        studydb.load_study("staged", storage=sqlite_stage.storage)


@pytest.mark.nightly
def test_creation_warns_if_the_existing_study_has_another_rule(sqlite_stage):
    study = create(sqlite_stage, "stopping:TooSlow(limit=3)")

    same = create(sqlite_stage, "stopping:TooSlow(limit=3)", load_if_exists=True)
    with pytest.warns(studydb.StudyDiffers, match=r"stop is stopping:TooSlow\(limit=3\), not"):
        create(sqlite_stage, "stopping:TooSlow(limit=4)", load_if_exists=True)

    assert same.record.rules == study.record.rules
    assert same.record.rules[0].reads == 10


@pytest.mark.nightly
def test_try_asks_the_rules_and_names_their_failure(sqlite_stage, monkeypatch):
    monkeypatch.setattr(sys, "argv", sys.argv)  # `try` replaces sys.argv in this process
    monkeypatch.chdir(TRAINABLES)
    create(sqlite_stage, "stopping:TooSlow(limit=3)")
    other = studydb.create_study(
        "other",
        "stopping:saves_once",
        space={"folder": str(sqlite_stage.folder)},
        metric="loss",
        mode="min",
        num_trials=1,
        stop="stopping:Broken(how=raises)",
        storage=sqlite_stage.storage,
        workdir=TRAINABLES,
    )
    sqlite_stage.open_gate("all")

    tried = sqlite_stage.command("try", "staged")

    assert "step 7: loss 0.25" in tried
    assert "step 8" not in tried
    with pytest.raises(AssertionError, match=r"At step 2, the stop rule .* it raised KeyError"):
        sqlite_stage.command("try", "other")
    other.close()


@pytest.mark.nightly
def test_slots_of_a_worker_share_one_decider(sqlite_stage):
    stage = sqlite_stage
    create(stage, too_slow(stage), num_trials=4)
    stage.open_gate("all")

    assert stage.run(slots=4) == 0

    assert {stage.trial(number).reason for number in range(4)} == {"RULE_STOPPED"}
    assert len({pid for pid, _, _ in asked(stage)}) == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("UPDATE trainable SET name = 'stopping:Nosy'", "(limit=3), but not its code"),
        ("UPDATE trainable SET workdir = '/tmp'", "'stopping:TooSlow' was changed after it was"),
        ("UPDATE trainable SET source = x'7b7d'", "(limit=3), but not its code"),
        ("UPDATE trainable SET source = x'ff'", "(limit=3), but not its code"),
        ("UPDATE trainable SET role = 'hook'", "(limit=3), but not its code"),
        (
            "DELETE FROM signature WHERE trainable_id IN (SELECT id FROM trainable",
            "The stop rule 'stopping:TooSlow' is not signed by a key",
        ),
    ],
    ids=["name", "workdir", "options", "unreadable", "role", "signature"],
)
def test_rule_that_was_changed_in_the_database_is_not_run(sqlite_stage, change, message):
    create(sqlite_stage, "stopping:TooSlow(limit=3)")
    is_nested = change.count("(") > change.count(")")
    change = f"{change} WHERE role = 'rule'{')' if is_nested else ''}"
    arrange.change(sqlite_stage.study.database, change)

    worker = sqlite_stage.start()

    assert worker.exit_code() == 1
    assert message in worker.output()
    assert "Traceback" not in worker.output()


@pytest.mark.slow
@pytest.mark.parametrize("options", ['{"limit": 9}', '{"limit": 3, "folder": "/"}'])
def test_study_is_refused_if_its_row_has_other_options_than_the_signed_rule(sqlite_stage, options):
    """The study's row has the rule's options; the table `trainable` has a signed copy of them."""
    create(sqlite_stage, "stopping:TooSlow(limit=3)")
    rule = f'[{{"name": "stopping:TooSlow", "reads": 10, "options": {options}}}]'
    arrange.change(sqlite_stage.study.database, f"UPDATE study SET rules = '{rule}'")

    worker = sqlite_stage.start()

    assert worker.exit_code() == 1
    assert "but not its code. studydb never writes a study like this" in worker.output()


@pytest.mark.slow
def test_signed_rule_does_not_run_as_the_trainable(sqlite_stage):
    """The signature of a rule's code does not cover the same code in another role."""
    create(sqlite_stage, "stopping:WithoutBase(step=1)")
    database = sqlite_stage.study.database
    arrange.change(database, "UPDATE trainable SET role = 'hook' WHERE role = 'trainable'")
    arrange.change(database, "UPDATE trainable SET role = 'trainable' WHERE role = 'rule'")

    worker = sqlite_stage.start()

    assert worker.exit_code() == 1
    assert "'stopping:WithoutBase' was changed after it was signed" in worker.output()


@pytest.mark.nightly
def test_rule_without_a_signature_runs_if_its_module_is_allowed(sqlite_stage, monkeypatch):
    stage = sqlite_stage
    create(stage, too_slow(stage))
    stage.open_gate("all")
    monkeypatch.setenv("STUDYDB_SIGNING_KEY", "ab" * 32)
    monkeypatch.setenv("STUDYDB_KEY_FILE", "/nonexistent/keys")

    assert stage.run() == 1
    assert stage.run(allow_import="stopping", workdir=TRAINABLES) == 0

    assert stage.trial().reason == "RULE_STOPPED"


def test_unsigned_rule_is_looked_for_only_in_the_directory_of_the_worker(sqlite_stage):
    study = create(sqlite_stage, "stopping:TooSlow()").record
    options = WorkerOptions("", "staged", print, workdir="/mine", allow_imports=("stopping",))

    (signed,) = trusted_rules(study, load_keyring(), options)
    (allowed,) = trusted_rules(study, Keyring((), Path("/keys")), options)

    assert (signed.signed, signed.workdirs) == (True, ("/mine", str(TRAINABLES)))
    assert (allowed.signed, allowed.workdirs) == (False, ("/mine",))


@pytest.mark.nightly
def test_trial_reports_no_step_before_the_rule_has_judged_the_previous_step(sqlite_stage):
    """A trial that did not wait would train steps after the step at which the rule stops it."""
    stage = sqlite_stage
    stage.create("stopping:counts", stop="stopping:WithoutBase(step=2)")

    assert stage.run() == 0

    assert stage.steps() == [1, 2]
    assert (stage.folder / "counted").read_text() == "12"


@pytest.mark.nightly
def test_signals_to_the_process_of_a_rule_are_ignored(sqlite_stage):
    """A service manager may signal all of a worker's processes; the trials still need the rules."""
    stage = sqlite_stage
    create(stage, too_slow(stage))
    stage.start()
    stage.await_result()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        os.kill(asked(stage)[-1][0], number)
    stage.open_gate("all")

    stage.await_state("TERMINATED")

    assert len({pid for pid, _, _ in asked(stage)}) == 1


def study_of_an_own_loop(storage, stop):
    return studydb.create_study(
        "mine",
        None,
        space={"x": 0.5},
        metric="loss",
        mode="min",
        num_trials=2,
        stop=stop,
        storage=storage,
        workdir=TRAINABLES,
    )


@pytest.mark.slow
def test_own_loop_asks_rules_in_a_child(storage_url, tmp_path):
    study = study_of_an_own_loop(storage_url, f"stopping:TooSlow(limit=2, folder='{tmp_path}')")

    with study.ask() as trial:
        steps = [trial.report({"loss": loss}) for loss in (0.5, 0.4, 0.5, 0.6, 0.7)]
    study.close()

    assert steps == [True, True, True, False, False]
    pids = {int(line.split()[0]) for line in (tmp_path / "asked").read_text().splitlines()}
    assert len(pids) == 1
    assert os.getpid() not in pids
    assert not Path(f"/proc/{pids.pop()}").exists()


@pytest.mark.slow
def test_own_loop_ends_its_trial_after_a_rule_fails_and_the_next_ask_waits_for_the_resumption(
    sqlite_url, tmp_path
):
    study = study_of_an_own_loop(sqlite_url, "stopping:Broken(how=raises, step=1)")
    trial = study.ask()

    assert trial.report({"loss": 0.5})
    trial.finish()

    with (
        pytest.warns(UserWarning, match="has paused itself: on trial 0 at step 1"),
        pytest.raises(TimeoutError),
    ):
        study.ask(timeout=0.5)
    study.resume()
    trial = study.ask(timeout=10)
    assert trial.number == 1

    assert trial.report({"loss": 0.5})
    study.extend(num_trials=1)

    with (
        pytest.warns(UserWarning, match="has paused itself: on trial 1 at step 1"),
        pytest.raises(TimeoutError),
    ):
        study.ask(timeout=0.5)
    study.close()


@pytest.mark.each_database
def test_rule_with_a_large_option_matches_its_signed_code_on_either_database(storage_url):
    """PostgreSQL returns the double 1e30 as the integer 10**30, which is another number."""
    study = study_of_an_own_loop(storage_url, "stopping:TooSlow(limit=1e30)")

    (found,) = trusted_rules(study.record, load_keyring())
    study.close()

    assert found.trainable.source == b'{"limit": 1e+30}'


@pytest.mark.nightly
def test_clone_of_a_study_signs_its_rules_again(sqlite_stage):
    stage = sqlite_stage
    study = create(stage, too_slow(stage))
    stage.open_gate("all")

    clone = study.clone("again")

    assert [each.name for each in clone.record.rule_code] == ["stopping:TooSlow"]
    assert clone.record.rule_code[0].signatures != study.record.rule_code[0].signatures
    counts = clone.run()
    assert counts.terminated == 1
    assert clone.trials[0].reason == "RULE_STOPPED"
    clone.close()
