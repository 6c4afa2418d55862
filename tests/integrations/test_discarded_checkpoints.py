"""
`stop --discard-checkpoints` ends trials and deletes their checkpoints.

Pinned and corrupt checkpoints stay. The command marks the rows of the other checkpoints as removed,
deletes their bytes, and then deletes their rows. After an error, a second call finishes the work.
"""

import pytest
from harness.kept_checkpoints import files_below, n_checkpoints

from studydb.artifacts import DirectoryStore
from studydb.domain.errors import CheckpointError, NotAllowed, UnknownTrial, UsageError
from studydb.study import discarding


@pytest.fixture
def saved(study):
    """A trial that runs and has two checkpoints."""
    trial = study.ask()
    for step in (1, 2):
        trial.report({"loss": 1 / step}, checkpoint={"step": step})
    return trial


def test_command_stops_the_trial_and_deletes_its_checkpoints(console, study, saved, tmp_path):
    study.pause(saved.number)
    saved.flush()
    saved.finish()
    kept = study.ask()
    kept.report({"loss": 0.5}, checkpoint={"step": 1})
    kept.finish()
    before = len(files_below(tmp_path / "store"))

    said = console("stop", "own", str(saved.number), "--discard-checkpoints").lines

    assert said == [
        "Trial 0 of 'own': ended; all checkpoints are deleted, except pinned and corrupt ones."
    ]
    assert study.trial(0).checkpoint is None
    assert (n_checkpoints(study), study.trial(1).checkpoint is None) == (1, False)
    assert len(files_below(tmp_path / "store")) in (0, before - 2)
    console("stop", "own", "0", "--discard-checkpoints")  # a second call is no error


def test_checkpoint_from_which_a_clone_goes_on_is_kept(study, saved):
    saved.fail("lost its way")
    study.retry(0)

    study.stop(0, discard_checkpoints=True)

    clone = study.ask()
    assert clone.checkpoint.to_dict() == {"step": 2}
    clone.finish()
    study.stop(0, discard_checkpoints=True)
    assert n_checkpoints(study) == 0


def test_running_trial_keeps_its_checkpoints_until_it_has_ended(study, saved, monkeypatch):
    monkeypatch.setattr(discarding, "LONGEST_WAIT_S", 0.3)

    with pytest.raises(NotAllowed, match="is RUNNING, so its checkpoints are kept"):
        study.stop(0, discard_checkpoints=True)
    assert n_checkpoints(study) == 2
    assert saved.report({"loss": 0.1}, checkpoint={"step": 3}) is False
    saved.finish()

    study.stop(0, discard_checkpoints=True)

    assert (study.trial(0).reason, n_checkpoints(study)) == ("CANCELLED", 0)


def test_checkpoints_of_an_ended_trial_are_deleted_although_another_chosen_trial_runs(
    study, saved, monkeypatch
):
    monkeypatch.setattr(discarding, "LONGEST_WAIT_S", 0.0)
    other = study.ask()
    other.report({"loss": 0.5}, checkpoint={"step": 1})
    other.finish()

    with pytest.raises(NotAllowed, match="Trial 0 of 'own' is RUNNING"):
        study.stop(0, 1, discard_checkpoints=True)

    assert (study.trial(0).checkpoint is None, study.trial(1).checkpoint) == (False, None)


@pytest.mark.parametrize("place", ["folder"], indirect=True)
def test_bytes_that_could_not_be_deleted_are_deleted_by_the_next_call(
    study, saved, tmp_path, monkeypatch
):
    saved.fail("lost its way")
    delete = DirectoryStore.delete

    def fails(store, url):
        raise CheckpointError("The disk is read-only.")

    monkeypatch.setattr(DirectoryStore, "delete", fails)
    with pytest.raises(CheckpointError, match="has the bytes of 2 removed checkpoints"):
        study.stop(0, discard_checkpoints=True)
    study.retry(0)
    assert study.ask().checkpoint is None
    monkeypatch.setattr(DirectoryStore, "delete", delete)

    study.stop(0, discard_checkpoints=True)

    assert (n_checkpoints(study), files_below(tmp_path / "store")) == (0, [])


def test_discarding_for_a_whole_study_or_an_unknown_trial_is_refused_and_stops_no_trial(
    study, saved
):
    with pytest.raises(UsageError, match="Name the trials"):
        study.stop(discard_checkpoints=True)
    with pytest.raises(UnknownTrial):
        study.stop(0, 7, discard_checkpoints=True)

    assert saved.report({"loss": 0.1}) is True
    assert study.status == "RUNNING"
