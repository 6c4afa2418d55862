"""Hosts that have not mounted the directory of a study's checkpoints, and new directories."""

import pytest
from harness.arrange import rows
from harness.kept_checkpoints import files_below

from studydb.domain.errors import HostError


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
