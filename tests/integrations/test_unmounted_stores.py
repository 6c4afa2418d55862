"""Checkpoints on hosts where the study's store is missing, cannot be read, was moved or is new."""

from pathlib import Path

import pytest
from harness.arrange import rows
from harness.kept_checkpoints import files_below

import studydb
from studydb.domain.errors import CheckpointError, HostError


def train(trial, *, until):
    """Report each step up to `until`, with a checkpoint that counts the steps."""
    for count in range(trial.start_step + 1, until + 1):
        trial.report({"loss": 1.0 / count}, checkpoint={"count": count})


def test_host_that_has_not_mounted_the_store_saves_nothing_and_loses_no_checkpoint(
    create_study, storage_url, tmp_path
):
    """The study's folder is missing, as on a host that has another disk at the store's path."""
    store = tmp_path / "store"
    study = create_study("own", num_trials=2, storage=storage_url, checkpoints=str(store))
    first = study.ask()
    train(first, until=1)
    folder = store / study.record.uuid
    folder.rename(tmp_path / "unmounted")

    second = study.ask()
    with pytest.warns(RuntimeWarning, match="contains no checkpoints of this study on this host"):
        second.report({"loss": 1.0}, checkpoint={"count": 1})
    second.finish()
    first.release()
    with pytest.raises(HostError, match="Mount it"):
        study.ask()

    assert files_below(store) == []
    assert rows(study.database, "SELECT id FROM event WHERE kind = 'checkpoint corrupt'") == []
    (tmp_path / "unmounted").rename(folder)
    assert study.ask().start_step == 1


def test_training_goes_on_if_this_host_may_not_read_the_store(
    create_study, storage_url, tmp_path, monkeypatch
):
    def refused(path):
        raise PermissionError(13, "Permission denied", str(path))

    study = create_study("own", num_trials=1, storage=storage_url, checkpoints=str(tmp_path / "a"))
    with monkeypatch.context() as unreadable, study.ask() as trial:
        unreadable.setattr(Path, "is_dir", refused)
        with pytest.warns(RuntimeWarning, match="cannot be read on this host: .*Permission denied"):
            trial.report({"loss": 1.0}, checkpoint={"count": 1})

    assert study.trial(0).reason == "COMPLETED"
    assert rows(study.database, "SELECT id FROM upload") == []


@pytest.mark.parametrize("left", ["nothing", "an empty folder of the study"])
def test_trial_begins_from_a_checkpoint_of_a_study_whose_directory_was_moved(
    create_study, storage_url, tmp_path, left
):
    """Its trials hand the checkpoint on: `third` begins from the trial of `second`."""
    old, new = tmp_path / "old", tmp_path / "new"
    first = create_study("first", num_trials=1, storage=storage_url, checkpoints=str(old))
    with first.ask() as trial:
        train(trial, until=3)
    second = create_study("second", storage=storage_url, checkpoints=str(tmp_path / "b"))
    third = create_study("third", storage=storage_url, checkpoints=str(tmp_path / "c"))
    second.enqueue({}, checkpoint=first.trial(0))
    third.enqueue({}, checkpoint=second.trial(0))

    old.rename(new)
    if left != "nothing":
        (old / first.record.uuid).mkdir(parents=True)
    first.set(checkpoints=str(new))

    assert [study.ask().start_step for study in (second, third)] == [3, 3]
    assert [kept.step for kept in first.trial(0).checkpoints] == [2, 3]


def test_checkpoints_of_a_store_that_was_moved_are_not_missing_while_it_is_not_mounted(
    create_study, storage_url, tmp_path
):
    """The first directory is used again, so its answer is that it lacks the checkpoints."""
    first, moved = tmp_path / "first", tmp_path / "moved"
    study = create_study("own", num_trials=2, storage=storage_url, checkpoints=str(first))
    trial = study.ask()
    train(trial, until=1)
    first.rename(moved)
    study.set(checkpoints=str(moved))
    study.set(checkpoints=str(first))
    with study.ask() as other:
        train(other, until=1)
    trial.release()
    moved.rename(tmp_path / "unmounted")

    with pytest.raises(HostError, match=r"No store .* has .*/moved does not exist"):
        study.ask()
    with pytest.raises(CheckpointError, match="/moved does not exist on this host"):
        study.trial(0).checkpoint.to_dict()
    with pytest.raises(CheckpointError, match="has the bytes of 1 removed checkpoint "):
        study.stop(0, discard_checkpoints=True)

    assert rows(study.database, "SELECT id FROM event WHERE kind = 'checkpoint corrupt'") == []
    (tmp_path / "unmounted").rename(moved)
    assert study.gc().n == 1
    assert files_below(moved) == []


def test_attempt_that_began_before_its_store_was_moved_goes_on_in_the_new_place(
    create_study, storage_url, tmp_path
):
    """On this host, the old place is an empty mount point; it stays empty."""
    old, new = tmp_path / "old", tmp_path / "new"
    study = create_study("own", num_trials=1, storage=storage_url, checkpoints=str(old))
    trial = study.ask()
    train(trial, until=1)
    old.rename(new)
    old.mkdir()
    study.set(checkpoints=str(new))

    trial.report({"loss": 0.5}, checkpoint={"count": 2})
    trial.release()
    again = study.ask()

    assert again.checkpoint.to_dict() == {"count": 2}
    assert list(old.iterdir()) == []


def test_restore_from_a_store_that_was_moved_makes_no_folder_in_the_old_place(
    create_study, storage_url, tmp_path
):
    old, new = tmp_path / "old", tmp_path / "new"
    study = create_study("own", num_trials=1, storage=storage_url, checkpoints=str(old))
    trial = study.ask()
    train(trial, until=1)
    trial.release()
    old.rename(new)
    old.mkdir()
    study.set(checkpoints=str(new))

    assert study.ask().checkpoint.to_dict() == {"count": 1}
    assert list(old.iterdir()) == []


def test_attempt_that_began_before_its_unused_store_was_replaced_can_still_save(
    create_study, storage_url, tmp_path
):
    study = create_study(
        "own", num_trials=2, storage=storage_url, checkpoints=str(tmp_path / "first")
    )
    with study.ask() as early:
        with pytest.raises(CheckpointError):  # the trial has read its stores
            early.report({"loss": 1.0}, checkpoint=tmp_path / "missing")
        study.set(checkpoints=str(tmp_path / "second"))
        with study.ask() as late:
            train(late, until=1)
        train(early, until=2)

    assert [kept.step for kept in study.trial(0).checkpoints] == [1, 2]


def test_checkpoint_that_is_replaced_after_its_move_is_deleted_in_its_new_place(
    create_study, storage_url, tmp_path
):
    """The message of a host may have led a person to make the old folder again."""
    old, new = tmp_path / "old", tmp_path / "new"
    study = create_study("own", num_trials=1, storage=storage_url, checkpoints=str(old))
    trial = study.ask()
    train(trial, until=2)
    old.rename(new)
    (old / study.record.uuid).mkdir(parents=True)
    study.set(checkpoints=str(new))

    trial.report({"loss": 0.5}, checkpoint={"count": 3})

    assert [kept.step for kept in study.trial(0).checkpoints] == [2, 3]
    assert [len(files_below(place)) for place in (old, new)] == [1, 1]


def test_database_that_was_moved_without_its_directory_of_checkpoints_keeps_them(
    create_study, tmp_path
):
    """The study has a second store, which can say that it lacks the checkpoints."""
    old, new = tmp_path / "old.db", tmp_path / "new.db"
    study = create_study("own", num_trials=2, storage=f"sqlite:///{old}")
    first = study.ask()
    train(first, until=1)
    study.set(checkpoints=str(tmp_path / "second"))
    with study.ask() as second:
        train(second, until=1)
    first.release()
    study.close()
    old.rename(new)

    study = studydb.load_study("own", storage=f"sqlite:///{new}")
    with pytest.raises(HostError, match=r"new\.db\.files/checkpoints does not exist on this host"):
        study.ask()
    assert rows(study.database, "SELECT id FROM event WHERE kind = 'checkpoint corrupt'") == []
    with pytest.raises(CheckpointError, match="has the bytes of 1 removed checkpoint "):
        study.stop(0, discard_checkpoints=True)
    (tmp_path / "old.db.files").rename(tmp_path / "new.db.files")
    assert study.gc().n == 1
    study.close()


def test_checkpoint_that_a_person_uploaded_elsewhere_does_not_keep_workers_from_saving(
    create_study, storage_url, tmp_path
):
    """On the person's host, the upload went to another directory, which has the same path."""
    store = tmp_path / "store"
    study = create_study("own", num_trials=2, storage=storage_url, checkpoints=str(store))
    study.enqueue({}, checkpoint={"count": 7}, checkpoint_step=7)
    store.rename(tmp_path / "of the person")

    begun = study.ask()
    train(begun, until=1)
    begun.finish()

    assert begun.start_step == 0
    assert len(files_below(store)) == 1


def test_first_save_makes_the_folder_of_the_study_in_a_new_store(
    create_study, storage_url, tmp_path
):
    study = create_study("own", num_trials=1, storage=storage_url, checkpoints=str(tmp_path / "a"))
    trial = study.ask()
    train(trial, until=1)
    trial.release()
    study.set(checkpoints=str(tmp_path / "b"))
    trial = study.ask()
    train(trial, until=2)

    assert [len(files_below(tmp_path / name)) for name in "ab"] == [1, 1]
    assert study.trial(0).checkpoint.to_dict() == {"count": 2}


@pytest.mark.parametrize("is_dict", [True, False])
def test_reading_a_checkpoint_on_a_host_without_the_store_raises_checkpoint_error(
    create_study, storage_url, tmp_path, is_dict
):
    store = tmp_path / "store"
    study = create_study("own", num_trials=1, storage=storage_url, checkpoints=str(store))
    (saved := tmp_path / "saved").mkdir()
    with study.ask() as trial:
        trial.report({"loss": 1.0}, checkpoint={"count": 1} if is_dict else saved)
    store.rename(tmp_path / "unmounted")
    checkpoint = study.trial(0).checkpoint

    with pytest.raises(CheckpointError, match=r"does not exist on this host\. Mount it"):
        _ = checkpoint.to_dict() if is_dict else checkpoint.path
    with pytest.raises(CheckpointError, match=r"does not exist on this host\. Mount it"):
        checkpoint.export(tmp_path / "exported")


def test_reading_a_checkpoint_that_this_host_may_not_read_raises_checkpoint_error(
    create_study, storage_url, tmp_path, monkeypatch
):
    def refused(*given, **options):
        raise PermissionError(13, "Permission denied", "weights")

    study = create_study("own", num_trials=1, storage=storage_url, checkpoints=str(tmp_path / "a"))
    with study.ask() as trial:
        train(trial, until=1)
    monkeypatch.setattr("studydb.study.frozen_trial.fetch", refused)

    cause = r"of trial 0 at step 1 cannot be read or copied on this host: .*Permission denied"
    with pytest.raises(CheckpointError, match=cause):
        study.trial(0).checkpoint.to_dict()
