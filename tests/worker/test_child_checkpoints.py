"""A child saves and restores checkpoints, and refuses damaged checkpoints."""

# The trainables below are written as users write them, so they break these rules of ruff.
# ruff: noqa: ARG005, T201

import socket
from pathlib import Path

import pytest
from harness.child_messages import expect_failure, steps_of
from msgspec import structs

import studydb
from studydb.artifacts import DirectoryStore, Stores
from studydb.artifacts.checkpoint_records import Restore
from studydb.child.messages import End, Ended


def restore_of(saved):
    stores = Stores("/".join(saved.url.split("/")[:-4]) or "inline:")
    return Restore(
        saved.kind, saved.url, saved.digest, saved.step, saved.size_bytes, saved.data, stores
    )


@pytest.fixture(params=["dict", "directory"])
def save_w(request):
    """A trainable that reports once with a checkpoint of 2000 bytes, a dict or a directory."""

    def train(config, trial):
        Path("model").mkdir(exist_ok=True)
        (Path("model") / "w").write_bytes(bytes(2000))
        trial.report({"loss": 1}, checkpoint="model" if is_directory else {"w": bytes(2000)})

    is_directory = request.param == "directory"
    return train


def counting(config, trial):
    first = 0 if trial.checkpoint is None else trial.checkpoint.to_dict()["count"]
    for count in range(first + 1, first + 3):
        trial.report({"loss": count, "start": trial.start_step}, checkpoint={"count": count})


@pytest.mark.row("D5")
@pytest.mark.parametrize("inline", [True, False])
def test_dict_checkpoint_is_stored_before_its_report_is_sent_and_is_restored(run, tmp_path, inline):
    store = "inline:" if inline else (tmp_path / "store").as_uri()

    first = run(counting, store=store)
    second = run(counting, store=store, attempt=2, restore=restore_of(first[1].saved))

    assert [m.saved.step for m in first[:-1]] == [1, 2]
    assert steps_of(second) == [3, 4]
    assert [m.result.value for m in second[:-1]] == [3, 4]
    assert [m.result.metrics["start"] for m in first[:-1] + second[:-1]] == [0, 0, 2, 2]
    assert (first[1].saved.data is None) is not inline
    if not inline:
        assert DirectoryStore(tmp_path / "store").exists(first[1].saved.url)


def test_first_report_waits_for_an_answer_if_its_step_is_at_or_before_the_restored_step(start, run):
    def train(config, trial):
        for step in range(1, 3):
            trial.report({"loss": step, "training_iteration": step})

    saved = run(counting, store="inline:")[1].saved
    attempt = start(train, restore=restore_of(saved), next_decision_step=None)

    attempt.answer(attempt.receive())

    assert [message.id for message in attempt.finish()[:-1]] == [None]


@pytest.mark.parametrize("inline", [True, False])
def test_attempt_restores_a_private_copy_of_a_directory_checkpoint(run, tmp_path, inline):
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


def test_report_with_a_checkpoint_waits_for_the_answer(start):
    def train(config, trial):
        trial.report({"loss": 1.0}, checkpoint={"a": 1})
        print("safe")

    attempt = start(train)
    message = attempt.receive()

    assert attempt.printed == ""
    attempt.answer(message)

    assert attempt.finish() == [Ended(End.COMPLETED)]
    assert attempt.printed == "safe\n"


def test_restored_attempt_that_reports_nothing_is_completed(run, tmp_path):
    first = run(counting, store=str(tmp_path))

    messages = run(lambda config: None, store=str(tmp_path), restore=restore_of(first[0].saved))

    assert messages == [Ended(End.COMPLETED)]


def test_error_of_the_store_is_reported_and_training_continues(run, tmp_path):
    (tmp_path / "file").write_text("where a directory should be")

    messages = run(counting, store=str(tmp_path / "file"))

    assert [m.saved for m in messages[:-1]] == [None, None]
    assert all("is not a directory" in m.artifact_error for m in messages[:-1])
    assert messages[-1] == Ended(End.COMPLETED)


def test_invalid_checkpoint_ends_the_attempt_as_failed(run, tmp_path):
    def reporting(checkpoint):
        return lambda config, trial: trial.report({"loss": 1.0}, checkpoint=checkpoint)

    def unpicklable(config, trial):
        trial.report({"loss": 1.0}, checkpoint={"lock": socket.socket()})

    expect_failure(run(reporting("gone"), store=str(tmp_path)), "CheckpointError", "not exist")
    expect_failure(run(reporting(3)), "UsageError", "a dict or a directory")
    expect_failure(run(unpicklable), "CheckpointError", "cannot be pickled")


def test_too_large_checkpoint_is_reported_as_an_error_and_training_continues(run, save_w):
    report, ended = run(save_w, inline_limit_bytes=1000)

    assert report.saved is None
    assert "checkpoints=URL" in report.artifact_error
    assert ended == Ended(End.COMPLETED)


@pytest.mark.row("B10")
@pytest.mark.parametrize("damage", ["changed", "missing"])
def test_damaged_checkpoint_ends_the_attempt_before_user_code_runs(start, tmp_path, save_w, damage):
    store = DirectoryStore(tmp_path / "store")
    saved = start(save_w, store=store.url).finish()[0].saved
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


def test_checkpoint_is_not_marked_damaged_if_this_host_lacks_its_store(run, tmp_path):
    saved = run(counting, store=str(tmp_path / "store"))[0].saved
    (tmp_path / "store").rename(tmp_path / "unmounted")

    messages = run(counting, store=str(tmp_path / "store"), restore=restore_of(saved))

    assert messages[-1].end is End.UNPREPARED
    assert "Mount it" in messages[-1].failure.message


@pytest.mark.parametrize("inline", [True, False])
def test_checkpoint_is_not_marked_damaged_if_no_scratch_directory_exists(run, tmp_path, inline):
    def save(config, trial):
        Path("model").mkdir(exist_ok=True)
        trial.report({"loss": 1}, checkpoint="model")

    store = "inline:" if inline else str(tmp_path / "store")
    saved = run(save, store=store)[0].saved
    messages = run(save, store=store, restore=restore_of(saved), scratch=str(tmp_path / "a" / "b"))

    assert messages[-1].end is End.UNPREPARED


class SavesOnAFullDisk(studydb.Trainable):
    """Runs two steps; the directory for the checkpoint of the first step cannot be made."""

    checkpoint_every = 1

    def step(self):
        scratch, aside = self.trial.scratch, self.trial.scratch.with_name("aside")
        if self.iteration == 0:
            scratch.rename(aside)
            scratch.touch()
        else:
            scratch.unlink()
            aside.rename(scratch)
        return {"loss": 1, "done": self.iteration == 1}

    def save_checkpoint(self, directory):
        Path(directory, "step").write_text(str(self.iteration))

    def load_checkpoint(self, checkpoint):
        raise NotImplementedError


def test_class_goes_on_if_the_directory_for_its_checkpoint_cannot_be_made(run):
    first, last, ended = run(SavesOnAFullDisk)

    assert (first.result.step, first.saved) == (1, None)
    assert "This host could not make the directory of a checkpoint" in first.artifact_error
    assert (last.result.step, last.saved.step, last.artifact_error) == (2, 2, None)
    assert ended == Ended(End.COMPLETED)


class EndsOnAFullDisk(SavesOnAFullDisk):
    """Cannot save when its steps have ended."""

    checkpoint_every = 0

    def step(self):
        return super().step() if self.iteration == 0 else None


def test_class_is_completed_if_the_directory_for_its_last_checkpoint_cannot_be_made(run):
    reported, not_saved, ended = run(EndsOnAFullDisk)

    assert (reported.result.step, reported.artifact_error) == (1, None)
    assert not_saved.result is None
    assert "This host could not make the directory of a checkpoint" in not_saved.artifact_error
    assert ended == Ended(End.COMPLETED)


class SavesByALink(SavesOnAFullDisk):
    """Puts a link to its own directory in the place of the directory for the checkpoint."""

    def step(self):
        return {"loss": 1, "done": True}

    def save_checkpoint(self, directory):
        Path("model").mkdir()
        Path("model", "w").write_text("weights")
        Path(directory).rmdir()
        Path(directory).symlink_to(Path("model").absolute())


def test_directory_of_a_saved_checkpoint_that_cannot_be_removed_fails_no_trial(run):
    reported, ended = run(SavesByALink)

    assert reported.saved.step == 1
    assert ended == Ended(End.COMPLETED)


def test_large_function_and_large_checkpoint_fit_into_one_job(run):
    text = "x" * (12 << 20)

    def train(config, trial):
        before = 0 if trial.checkpoint is None else len(trial.checkpoint.to_dict()["data"])
        trial.report({"loss": before + len(text)}, checkpoint={"data": b"y" * (12 << 20)})

    first = run(train)
    second = run(train, restore=restore_of(first[0].saved))

    assert second[0].result.value == 24 << 20


def test_damaged_inline_checkpoint_is_not_restored(run):
    good = run(counting)[0].saved
    bad = structs.replace(restore_of(good), data=b"other")

    assert run(counting, restore=bad)[-1].end is End.UNRESTORABLE


def test_path_of_a_dict_checkpoint_raises_an_error_that_names_the_method_to_dict(run, tmp_path):
    saved = run(counting, store=str(tmp_path))[0].saved

    def train(config, trial):
        return trial.checkpoint.path

    messages = run(train, store=str(tmp_path), restore=restore_of(saved))

    expect_failure(messages, "CheckpointError", "to_dict")
