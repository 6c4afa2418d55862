"""
`studydb pin` keeps a checkpoint.

`studydb gc` deletes checkpoints that nothing keeps, and uploads that were cut off.
"""

from unittest.mock import Mock

import pytest
from harness.arrange import change, rows
from harness.kept_checkpoints import files_below, n_checkpoints

import studydb
from studydb.artifacts import DirectoryStore
from studydb.domain.errors import CheckpointError, NotFound
from studydb.lease import checkpoint_rows
from studydb.operations.uploads import abandoned_uploads
from studydb.study import collecting
from studydb.study.collecting import Collected


@pytest.fixture
def study(create_study, storage_url, tmp_path):
    space = {"lr": studydb.uniform(0, 1)}
    store = str(tmp_path / "store")
    return create_study("own", space=space, num_trials=3, storage=storage_url, checkpoints=store)


def save(trial, *steps):
    for step in steps:
        trial.report({"loss": 1 / step}, checkpoint={"step": step})


def files(study):
    return files_below(study.record.checkpoints.removeprefix("file://"))


def test_pin_command_keeps_a_checkpoint_until_the_pin_is_removed(console, study):
    trial = study.ask()
    save(trial, 1, 2)

    said = console("pin", "own", "0", "--step", "1").lines
    save(trial, 3, 4)

    assert said == [
        "Trial 0 of 'own': pinned the checkpoint of step 1.",
        "",
        "Next:",
        "  studydb pin own 0 --step 1 --remove",
    ]
    assert [each.step for each in study.trial(0).checkpoints] == [1, 3, 4]
    assert study.trial(0).checkpoints[0].to_dict() == {"step": 1}
    listed = console("checkpoints", "own", "--format", "json").json
    assert [row["pins"] for row in listed] == [1, 0, 0]
    removed = console("pin", "own", "0", "--remove").lines
    assert removed == ["Trial 0 of 'own': unpinned the checkpoint of step 1."]
    assert console("pin", "own", "0", "--remove").lines == [
        "Trial 0 of 'own': there was no pin to remove."
    ]
    save(trial, 5)
    assert [each.step for each in study.trial(0).checkpoints] == [4, 5]
    assert len(files(study)) == 2


def test_pin_command_names_the_steps_of_all_pins_that_it_removes(console, study):
    save(study.ask(), 1, 2)
    for step in ("1", "2"):
        console("pin", "own", "0", "--step", step)

    removed = console("pin", "own", "0", "--remove").lines

    assert removed == ["Trial 0 of 'own': unpinned the checkpoints of the steps 1, 2."]


def test_pinned_checkpoint_outlives_a_discard_and_is_deleted_with_its_study(study):
    trial = study.ask()
    save(trial, 1, 2)
    trial.finish()
    assert study.pin(0) == [2]

    study.stop(0, discard_checkpoints=True)

    assert [each.to_dict() for each in study.trial(0).checkpoints] == [{"step": 2}]
    with pytest.raises(NotFound, match="no checkpoint of step 1"):
        study.pin(0, step=1)
    studydb.delete_study("own", storage=study.storage)
    assert not files(study)


def test_gc_deletes_checkpoints_that_a_dead_worker_should_have_deleted(console, study, monkeypatch):
    trial = study.ask()
    with monkeypatch.context() as died:
        died.setattr(checkpoint_rows.Checkpoints, "_discard", lambda *_: None)
        save(trial, 1, 2, 3, 4)
    assert (n_checkpoints(study), len(files(study))) == (4, 4)
    size = sum(each.size_bytes for each in study.trial(0).checkpoints)

    would = console("gc", "own", "--dry-run").lines
    assert (n_checkpoints(study), len(files(study))) == (4, 4)
    did = console("gc", "own").lines

    assert would == [f"Study 'own': 2 checkpoints ({size} B) would be deleted."]
    assert did == [f"Study 'own': 2 checkpoints ({size} B) deleted."]
    assert (n_checkpoints(study), len(files(study))) == (2, 2)
    assert [each.step for each in study.trial(0).checkpoints] == [3, 4]
    assert study.gc() == Collected(0, 0)


def test_later_gc_finishes_what_a_killed_gc_has_begun(study, monkeypatch):
    trial = study.ask()
    with monkeypatch.context() as died:
        died.setattr(checkpoint_rows.Checkpoints, "_discard", lambda *_: None)
        save(trial, 1, 2, 3, 4)
    with monkeypatch.context() as killed:
        killed.setattr(checkpoint_rows, "delete_rows", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            study.gc()
    assert (n_checkpoints(study), len(files(study))) == (4, 2)

    assert study.gc().n == 2

    assert (n_checkpoints(study), len(files(study))) == (2, 2)


def test_gc_keeps_the_row_of_a_checkpoint_whose_bytes_the_store_does_not_delete(
    console, study, monkeypatch
):
    trial = study.ask()
    with monkeypatch.context() as died:
        died.setattr(checkpoint_rows.Checkpoints, "_discard", lambda *_: None)
        save(trial, 1, 2, 3)
    with monkeypatch.context() as failing:
        failing.setattr(DirectoryStore, "delete", refused)
        ran = console("gc", "own", code=1)

    assert "The bytes of 1 checkpoint of 'own' may still be there (the first: " in ran.err
    assert n_checkpoints(study) == 3
    assert study.gc().n == 1


@pytest.mark.row("C3")
def test_gc_removes_a_checkpoint_whose_pin_was_removed_and_no_other(console, study):
    trial = study.ask()
    save(trial, 1)
    study.pin(0)
    save(trial, 2)
    study.pin(0)
    save(trial, 3, 4)
    study.pin(0, step=1, remove=True)
    trial.finish()

    would = study.gc(dry_run=True)
    did = console("gc", "own").lines

    assert [each.step for each in study.trial(0).checkpoints] == [2, 3, 4]
    assert would.n == 1
    assert did == [f"Study 'own': 1 checkpoint ({would.size_bytes} B) deleted."]
    assert len(files(study)) == 3


def test_gc_removes_what_a_stricter_policy_does_not_keep(create_study, storage_url, tmp_path):
    store = str(tmp_path / "store")
    study = create_study(
        "many", num_trials=1, storage=storage_url, checkpoints=store, keep="last=4"
    )
    save(study.ask(), 1, 2, 3, 4)
    study.set(keep="last=1")

    assert study.gc().n == 2

    assert [each.step for each in study.trial(0).checkpoints] == [3, 4]


def test_gc_deletes_interrupted_uploads_and_counts_them(console, study, monkeypatch):
    trial = study.ask()
    with monkeypatch.context() as died:
        died.setattr(checkpoint_rows.Checkpoints, "record", lambda *_: None)
        save(trial, 1, 2)
    trial.finish()
    assert len(files(study)) == 2

    would = console("gc", "own", "--dry-run").lines
    assert len(files(study)) == 2
    did = console("gc", "own").lines

    what = "Study 'own': 0 checkpoints (0 B) and 2 cut-off uploads"
    assert (would, did) == ([f"{what} would be deleted."], [f"{what} deleted."])
    assert files(study) == []
    assert study.gc() == Collected(0, 0)


def test_gc_says_how_many_interrupted_uploads_a_store_does_not_delete(console, study, monkeypatch):
    trial = study.ask()
    with monkeypatch.context() as died:
        died.setattr(checkpoint_rows.Checkpoints, "record", lambda *_: None)
        save(trial, 1, 2)
    trial.finish()
    (_, kept) = [row.url for row in abandoned_uploads(study.database, study.record)]
    delete = DirectoryStore.delete_unfinished
    with monkeypatch.context() as failing:
        failing.setattr(
            DirectoryStore,
            "delete_unfinished",
            lambda self, url: refused() if url == kept else delete(self, url),
        )
        ran = console("gc", "own", code=1)

    assert ran.lines == ["Study 'own': 0 checkpoints (0 B) and 1 cut-off upload deleted."]
    assert "The bytes of 1 cut-off upload of 'own' may still be there, because" in ran.err


def test_gc_does_not_count_an_upload_that_is_abandoned_after_gc_has_listed_uploads(
    study, monkeypatch
):
    """
    The attempt's upload becomes abandoned only after `gc` has listed the abandoned uploads.

    The store cannot delete the upload. If `gc` counted the uploads first (0), and listed them again
    to delete them, it would subtract 1 undeleted upload, and report -1 deleted uploads.
    """
    trial = study.ask()
    with monkeypatch.context() as died:
        died.setattr(checkpoint_rows.Checkpoints, "record", lambda *_: None)
        save(trial, 1)

    def look_before_the_attempt_ends(*args, **options):
        found = abandoned_uploads(*args, **options)
        trial.finish()
        return found

    monkeypatch.setattr(collecting, "abandoned_uploads", look_before_the_attempt_ends)
    monkeypatch.setattr(DirectoryStore, "delete_unfinished", refused)

    assert study.gc() == Collected(0, 0)


def test_gc_corrects_the_sum_of_the_sizes_of_all_checkpoints(create_study, storage_url):
    study = create_study("few", num_trials=1, storage=storage_url, keep="quota=1MB")
    save(study.ask(), 1)
    change(study.database, "UPDATE study SET checkpoint_bytes = 7")

    study.gc()

    sizes = "SELECT (SELECT sum(size_bytes) FROM checkpoint) - checkpoint_bytes FROM study"
    assert rows(study.database, sizes) == [(0,)]


def refused(*_args, **_options):
    raise CheckpointError("read-only")
