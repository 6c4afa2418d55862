"""
Each attempt reads the study's trainable once, after its claim.

After `study.set(trainable=…)`, attempts that have already read it keep the former code.
"""

import hashlib
import os
import signal
import textwrap
import threading
import time
import uuid
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from fleet.workers import eventually
from harness.arrange import new_request
from harness.child_messages import metrics_of
from harness.settings_requests import relocate, revise
from harness.supervised_slot import (
    GOOD,
    ReusedChild,
    ScriptedChildren,
    Supervised,
    reported,
    wire,
)
from msgspec import structs

from studydb.artifacts import Stores
from studydb.child.messages import End, Ended
from studydb.db.schema import result
from studydb.domain.trainable import Trainable, TrainableKind
from studydb.operations.refresh import refreshed
from studydb.processes import start_of
from studydb.settings import load_keyring
from studydb.trainables import sign
from studydb.worker import attempt

TRAIN = """
    import os, time
    from pathlib import Path

    def train(config, trial):
        for step in (1, 2):
            trial.report({"loss": LOSS, "parent": os.getppid()})
            trial.flush()
            while not (Path(config["folder"]) / "gate-all").exists():
                time.sleep(0.01)
"""

REPORTS_PIDS = """
    import os
    IMPORTED_BY = os.getpid()

    def train(config):
        return {"loss": 1.0, "imported_by": IMPORTED_BY, "own": os.getpid()}
"""

SCRIPT = """
echo '[studydb] {"loss": 5}'
while [ ! -e "$1/gate-command" ]; do sleep 0.01; done
"""


@pytest.fixture
def modules(tmp_path):
    """The folder of two modules; `train` reports the loss 1 in `old`, and the loss 2 in `new`."""
    for name, loss in (("old", 1), ("new", 2)):
        source = f"LOSS = {loss}\n{textwrap.dedent(TRAIN)}"
        (tmp_path / f"{name}.py").write_text(source)
    return tmp_path


def values(stage, number):
    trial = stage.trial(number)
    return trial.last_value, trial.best_value


def test_running_attempt_keeps_its_code_and_the_next_attempt_runs_the_new_code(stage, modules):
    stage.create("old:train", num_trials=2, workdir=modules)
    worker = stage.start()
    stage.await_result()
    (old,) = worker.templates()

    stage.study.set(trainable="new:train", workdir=modules)
    stage.open_gate("all")

    assert worker.exit_code(60.0) == 0, worker.output()
    assert stage.steps(0) == stage.steps(1) == [1, 2]
    assert [values(stage, number) for number in (0, 1)] == [(1, 1), (2, 2)]
    assert [each.start for number in (0, 1) for each in stage.attempts(number)] == ["warm"] * 2
    parents = {row.metrics["parent"] for row in stage.rows(result)}
    assert len(parents) == 2
    assert old.pid in parents
    assert "the study was given other code; trials now run new:train" in worker.output()
    (event,) = stage.events("revised")
    assert (event["former_name"], event["name"]) == ("old:train", "new:train")
    for number, name in enumerate(("old", "new")):
        (ran,) = stage.attempts(number)
        digest = hashlib.sha256((modules / f"{name}.py").read_bytes()).hexdigest()
        assert (ran.provenance["name"], ran.provenance["sha256"]) == (f"{name}:train", digest)


@pytest.mark.nightly
def test_worker_goes_from_a_command_to_a_function_and_back(sqlite_stage, modules):
    stage, command = sqlite_stage, ["sh", "train.sh", "{folder}", "{x}"]
    (modules / "train.sh").write_text(SCRIPT)
    stage.create(command, num_trials=3, workdir=modules)
    worker = stage.start()
    stage.await_result(0)
    stage.study.set(trainable="new:train", workdir=modules)
    stage.open_gate("command")
    stage.await_result(1)
    stage.study.set(trainable=command, workdir=modules)
    stage.open_gate("all")

    assert worker.exit_code(60.0) == 0, worker.output()
    assert [values(stage, number)[0] for number in (0, 1, 2)] == [5, 2, 5]
    assert [stage.attempts(number)[0].start for number in (0, 1, 2)] == ["fresh", "warm", "fresh"]


def test_worker_without_the_new_key_gives_its_next_trial_back_and_ends(
    sqlite_stage, modules, monkeypatch
):
    stage = sqlite_stage
    stage.create("old:train", num_trials=2, workdir=modules)
    worker = stage.start()
    stage.await_result()

    monkeypatch.setenv("STUDYDB_SIGNING_KEY", "ab" * 32)
    monkeypatch.setenv("STUDYDB_KEY_FILE", "/nonexistent/keys")
    stage.study.set(trainable="new:train", workdir=modules)
    stage.open_gate("all")

    assert worker.exit_code(60.0) == 1
    assert "The trainable 'new:train' is not signed by a key in" in worker.output()
    assert (stage.trial(0).reason, values(stage, 0)) == ("COMPLETED", (1, 1))
    stage.expect_released(1)
    assert stage.trial(1).n_results == 0


GATED = """
    import time
    from pathlib import Path

    def train(config, trial):
        for step in (1, 2):
            trial.report({"loss": step})
            trial.flush()
            while not (Path(config["folder"]) / f"gate-{trial.number}").exists():
                time.sleep(0.01)
"""


def without_key(stage, monkeypatch):
    monkeypatch.setenv("STUDYDB_SIGNING_KEY", "ab" * 32)
    monkeypatch.setenv("STUDYDB_KEY_FILE", "/nonexistent/keys")
    stage.study.set(trainable="new:train", workdir=stage.folder)


def that_fails(stage, _monkeypatch):
    stage.study.set(trainable="new:train", workdir=stage.folder)
    (stage.folder / "new.py").write_text("train = 1 / 0")


@pytest.mark.parametrize(
    ("change", "message"),
    [(without_key, "is not signed by a key in"), (that_fails, "ZeroDivisionError")],
)
def test_code_that_a_worker_cannot_run_breaks_off_no_trial_in_another_slot(
    sqlite_stage, modules, monkeypatch, change, message
):
    stage = sqlite_stage
    (modules / "old.py").write_text(textwrap.dedent(GATED))
    stage.create("old:train", num_trials=3, workdir=modules)
    worker = stage.start(slots=2)
    for number in (0, 1):
        stage.await_result(number)

    change(stage, monkeypatch)
    stage.open_gate(0)
    eventually(lambda: "no more trials are claimed" in worker.output(), what="the message")
    assert stage.trial(1).state == "RUNNING"
    stage.open_gate(1)

    assert worker.exit_code(30.0) == 1
    assert message in worker.output()
    assert [stage.trial(number).reason for number in (0, 1)] == ["COMPLETED"] * 2
    assert len(stage.attempts(1)) == 1
    stage.expect_released(2)


# a slot whose children are scripted


class Recording(ScriptedChildren):
    """Records each child's `to_import`; calls `on_spawn` with the number of children so far."""

    def __init__(self, scripts, on_spawn):
        super().__init__(scripts)
        self.imports, self._on_spawn = [], on_spawn

    @property
    def names(self):
        return [each.trainable.name for each in self.imports]

    def spawn(self, make_job, **descriptors):
        self.imports.append(make_job().to_import)
        self._on_spawn(len(self.imports))
        return super().spawn(make_job, **descriptors)


def described(name, kind=TrainableKind.IMPORT):
    return Trainable(str(uuid.uuid4()), kind, name, "/nowhere", "3.11")


def replace_trainable(supervised, name):
    """Replace the study's trainable; the new one is signed by this user's key."""
    signed = sign(described(name), supervised.study.uuid, load_keyring())
    revise(supervised.database, supervised.study, signed, new_request())


def test_attempt_that_was_claimed_just_before_the_change_runs_the_new_code(
    database, tmp_path, monkeypatch
):
    """The change is committed between the claim and the read of the trainable."""
    supervised = Supervised(database, tmp_path)
    children = Recording([GOOD, GOOD], lambda _: None)
    start, made = attempt.Attempt.run, []

    def run(self):
        made.append(self)
        if len(made) == 2:
            replace_trainable(supervised, "later:train")
        return start(self)

    monkeypatch.setattr(attempt.Attempt, "run", run)

    supervised.run(GOOD, GOOD, forkserver=children, trials=2)
    supervised.close()

    assert children.names == ["nowhere:train", "later:train"]
    assert "the study was given other code; trials now run later:train" in supervised.log


def test_change_while_an_attempt_starts_applies_to_the_next_attempt(database, tmp_path):
    supervised = Supervised(database, tmp_path)
    children = Recording(
        [GOOD, GOOD], lambda n: n == 1 and replace_trainable(supervised, "b:train")
    )

    supervised.run(GOOD, GOOD, forkserver=children, trials=2)
    supervised.close()

    assert children.names == ["nowhere:train", "b:train"]


def test_attempt_whose_process_is_replaced_keeps_the_code_that_it_has_read(database, tmp_path):
    class DyingChild(ReusedChild):
        """Replaces the trainable when it gets its second trial, and then ends without a message."""

        def take(self, first, **descriptors):
            replace_trainable(supervised, "b:train")
            super().take(first, **descriptors)

    supervised = Supervised(database, tmp_path)
    kept = wire(Ended(End.COMPLETED, kept=True))
    children = Recording([DyingChild(reported() + kept, b""), GOOD, GOOD], lambda _: None)

    supervised.run(forkserver=children, trials=3)
    supervised.close()

    assert children.names == ["nowhere:train", "nowhere:train", "b:train"]


def test_job_of_an_attempt_names_the_stores_that_the_study_has_after_the_claim(database, tmp_path):
    supervised = Supervised(database, tmp_path, checkpoints="file:///first")

    def change(n):
        if n == 1:
            relocate(database, supervised.study, "file:///second", new_request())

    children = Recording([GOOD, GOOD], change)

    supervised.run(GOOD, GOOD, forkserver=children, trials=2)
    supervised.close()

    first, second = (each.stores for each in children.imports)
    uuid = supervised.study.uuid
    assert first == Stores("file:///first", study_uuid=uuid)
    assert second == Stores("file:///second", ("file:///first",), uuid)


def test_worker_whose_directory_is_gone_claims_no_more_and_says_how_to_start_it(
    database, tmp_path, monkeypatch
):
    supervised = Supervised(database, tmp_path)
    replace_trainable(supervised, "b:train")
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()

    ended = supervised.run(GOOD)
    supervised.close()

    assert "Start the worker with --workdir" in ended.gave_up
    assert not ended.may_claim
    assert not ended.is_stopping  # the trials of other slots run on


def test_refreshed_study_has_the_new_trainable_with_its_signatures(database, tmp_path):
    supervised = Supervised(database, tmp_path)
    supervised.close()
    before = refreshed(database, supervised.study)

    replace_trainable(supervised, "later:train")
    after = refreshed(database, before)

    assert before.trainable == supervised.study.trainable
    assert after.trainable.name == "later:train"
    assert len(after.trainable.signatures) == 1
    assert refreshed(database, after) == after
    assert replace(after, trainable=before.trainable) == before


# templates


def test_late_attempt_of_a_replaced_trainable_starts_fresh(start, warm, module):
    old, new = (
        structs.replace(module(REPORTS_PIDS, "old"), uuid="old"),
        structs.replace(module(REPORTS_PIDS, "new"), uuid="new"),
    )
    first = metrics_of(start(old, server=warm))
    warm.templates.adopt(new)

    second, late, third = (metrics_of(start(each, server=warm)) for each in (new, old, new))

    assert warm.starts == ["warm", "warm", "fresh", "warm"]
    assert late["imported_by"] == late["own"]
    assert first["imported_by"] != second["imported_by"] == third["imported_by"]
    assert warm.printed == []


def test_new_trainable_does_not_wait_for_an_import_of_the_former_one(start, warm, module):
    hangs = "from pathlib import Path\nPath('imports').touch()\nimport time\ntime.sleep(600)\n"
    old = structs.replace(module(hangs + "def train(config):\n    return 1.0\n", "old"), uuid="old")
    new = structs.replace(module(REPORTS_PIDS, "new"), uuid="new")

    def spawn_old():
        start(old, server=warm).child.kill()

    slot = threading.Thread(target=spawn_old)
    slot.start()
    eventually(Path(new.workdir, "imports").exists)
    warm.known, warm.on_read = old, cache(lambda: warm.templates.adopt(new))
    began_s = time.monotonic()
    metrics_of(start(new, server=warm))
    took_s = time.monotonic() - began_s
    slot.join()

    assert took_s < 30
    assert (sorted(warm.starts), warm.printed) == (["fresh", "warm"], [])


def test_process_that_was_forked_for_the_former_trainable_runs_no_trial_of_the_new_one(
    start, warm, module
):
    old, new = (
        structs.replace(module(REPORTS_PIDS, "old"), uuid="old"),
        structs.replace(module(REPORTS_PIDS, "new"), uuid="new"),
    )
    first = metrics_of(start(old, server=warm))
    warm.known, warm.on_read = old, lambda: warm.templates.adopt(new)

    second = metrics_of(start(new, server=warm))

    assert first["imported_by"] != second["imported_by"]
    assert start_of(first["imported_by"]) is None
    assert (warm.starts, warm.printed) == (["warm", "warm"], [])


def test_first_import_of_a_trainable_begins_after_the_job_is_made(start, warm, module):
    """
    A person may have replaced the study's trainable; the job names the current one.

    An import before the job is made could import the former trainable, and might fail or hang.
    """
    imports = "from pathlib import Path\nPath('imported').touch()\n"
    trainable = module(imports + "def train(config):\n    return 1.0\n")

    def fail():
        raise ZeroDivisionError

    warm.on_read = fail

    with pytest.raises(ZeroDivisionError):
        start(trainable, server=warm)

    assert not Path(trainable.workdir, "imported").exists()


def test_template_of_the_former_trainable_that_does_not_answer_is_killed(
    start, warm, module, monkeypatch
):
    monkeypatch.setattr("studydb.worker.children._START_TIMEOUT_S", 0.5)
    old, new = (
        structs.replace(module(REPORTS_PIDS, "old"), uuid="old"),
        structs.replace(module(REPORTS_PIDS, "new"), uuid="new"),
    )
    stopped = metrics_of(start(old, server=warm))["imported_by"]
    os.kill(stopped, signal.SIGSTOP)
    warm.known, warm.on_read = old, lambda: warm.templates.adopt(new)

    assert metrics_of(start(new, server=warm))["imported_by"] != stopped

    warm.templates.close_retired()
    assert start_of(stopped) is None
