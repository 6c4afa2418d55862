"""
Enqueued trials that begin from a trial's checkpoint, a dict, or a path.

They are enqueued by `study.enqueue(checkpoint=…)` or by `studydb enqueue --checkpoint`.
"""

import pickle
from unittest.mock import Mock

import pytest
from harness.arrange import change, rows
from harness.kept_checkpoints import files_below

import studydb
from studydb.domain.errors import (
    BudgetSpent,
    CheckpointError,
    InvalidSpec,
    NotAllowed,
    NotFound,
    StorageDenied,
    StorageUnreachable,
    UnknownTrial,
)
from studydb.operations.reads import list_rungs
from studydb.study import resource_requests, starting


@pytest.fixture
def trained(study):
    """A completed trial with checkpoints of the steps 1 and 2."""
    with study.ask() as trial:
        for step in (1, 2):
            trial.report({"loss": 1 / step}, checkpoint={"step": step})
    return study.trial(trial.number)


def begun(study, number):
    """
    Run the enqueued trial; return its start step and the content of the checkpoint it began from.

    If the trial began without a checkpoint, the content is None. After a report, also check that
    the trial's record names the checkpoint of the start step, or none if it began without one.
    """
    with study.ask() as trial:
        assert trial.number == number
        found = trial.checkpoint
        what = found and (found.to_dict() if found._path is None else sorted_files(found.path))
        trial.report({"loss": 0.1})
        recorded = study.trial(number).checkpoint
        assert (recorded and recorded.step) == (found and trial.start_step)
        return trial.start_step, what


def sorted_files(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


@pytest.mark.row("C1")
@pytest.mark.parametrize("kind", ["trial", "number", "checkpoint"])
def test_enqueued_trial_begins_from_a_trials_checkpoint(study, trained, kind):
    given = {"trial": trained, "number": trained.number, "checkpoint": trained.checkpoints[0]}

    number = study.enqueue({"lr": 0.5}, checkpoint=given[kind])

    step = 1 if kind == "checkpoint" else 2
    assert begun(study, number) == (step, {"step": step})
    steps = study.results_dataframe().query(f"number == {number}").step
    assert list(steps) == [step + 1]
    assert rows(study.database, "SELECT count(*) FROM pin") == [(0,)]


@pytest.mark.row("B9")
def test_enqueued_trial_begins_from_an_uploaded_directory(study, tmp_path):
    model = tmp_path / "model"
    model.mkdir()
    (model / "w").write_bytes(b"weights")

    number = study.enqueue({}, checkpoint=model, checkpoint_step=7)
    (model / "w").write_bytes(b"changed")

    assert begun(study, number) == (7, {"w": b"weights"})
    assert rows(study.database, "SELECT count(*) FROM upload") == [(0,)]


@pytest.mark.parametrize("kind", ["dict", "exported"])
def test_enqueued_trial_begins_from_a_dict_or_an_exported_file(study, trained, tmp_path, kind):
    exported = trained.checkpoint.export(tmp_path / "model") / "checkpoint.pkl"
    given = {"step": 2} if kind == "dict" else exported

    number = study.enqueue({}, checkpoint=given)

    assert begun(study, number) == (0, {"step": 2})


def test_enqueued_trial_begins_from_a_checkpoint_of_another_study_and_another_store(
    study, trained, create_study, storage_url, tmp_path
):
    store = str(tmp_path / "other")
    other = create_study("other", num_trials=1, storage=storage_url, checkpoints=store)

    number = other.enqueue({}, checkpoint=trained)
    with pytest.raises(NotAllowed, match="trial 0 of 'other'"):
        studydb.delete_study("own", storage=storage_url)

    assert begun(other, number) == (2, {"step": 2})
    studydb.delete_study("own", storage=storage_url)


def test_trial_of_another_database_is_refused(study, create_study, tmp_path):
    other = create_study("far", num_trials=2, storage=f"sqlite:///{tmp_path / 'far.db'}")
    with other.ask() as trial:
        trial.report({"loss": 1.0}, checkpoint={"a": 1})

    with pytest.raises(InvalidSpec, match="another database"):
        study.enqueue({}, checkpoint=other.trial(0))


@pytest.mark.row("C2")
def test_bytes_that_trials_share_are_deleted_when_no_trial_needs_them(
    create_study, storage_url, tmp_path
):
    store = tmp_path / "store"
    study = create_study("two", num_trials=9, storage=storage_url, checkpoints=str(store))
    with study.ask() as trial:
        trial.report({"loss": 1.0}, checkpoint={"step": 1})
    numbers = [study.enqueue({}, checkpoint=0) for _ in range(2)]

    before = len(files_below(store))
    study.stop(numbers[0], discard_checkpoints=True)
    study.stop(0, discard_checkpoints=True)
    shared = len(files_below(store))
    second = begun(study, numbers[1])
    study.stop(0, discard_checkpoints=True)
    study.stop(0, discard_checkpoints=True)

    assert (before, shared) == (1, 1)
    assert second == (1, {"step": 1})
    assert files_below(store) == []


def test_trial_whose_checkpoint_is_damaged_begins_from_an_older_one_and_an_event_is_stored(
    study, trained, place
):
    number = study.enqueue({}, checkpoint=trained)
    change(study.database, f"UPDATE checkpoint SET digest = '{'0' * 64}' WHERE step = 2")

    assert begun(study, number) == (1, {"step": 1})
    kinds = rows(study.database, "SELECT kind FROM event WHERE kind = 'checkpoint corrupt'")
    assert len(kinds) == 1


def test_trial_that_begins_from_an_older_checkpoint_is_judged_at_all_later_rungs(
    create_study, storage_url
):
    study = create_study(
        "rungs",
        space={},
        scheduler=studydb.OneEpoch(i=2, top_k=1, max_t=9),
        num_trials=2,
        storage=storage_url,
    )
    with study.ask() as trial:
        for step in (1, 2):
            trial.report({"loss": 0.1}, checkpoint={"step": step})
    study.enqueue({}, checkpoint=trial.number)
    change(study.database, f"UPDATE checkpoint SET digest = '{'0' * 64}' WHERE step = 2")

    with study.ask() as worse:
        assert worse.start_step == 1
        worse.report({"loss": 0.5})

    assert [rung.entries for rung in list_rungs(study.database, study.record, limit=9)] == [2]


def test_uploaded_checkpoint_whose_digest_does_not_match_is_not_restored(study, tmp_path):
    number = study.enqueue({}, checkpoint={"a": 1})
    change(study.database, f"UPDATE checkpoint SET digest = '{'0' * 64}'")

    assert begun(study, number) == (0, None)


def test_uploaded_checkpoint_of_one_trial_is_not_accepted_for_another(study):
    """The signature covers the trial's UUID."""
    study.enqueue({}, checkpoint={"a": 1})
    other = study.enqueue({})
    change(
        study.database,
        "UPDATE checkpoint SET trial_id = (SELECT max(id) FROM trial)",
    )
    change(
        study.database,
        "UPDATE trial SET checkpoint_id = (SELECT max(id) FROM checkpoint), checkpoint_step = 0 "
        f"WHERE number = {other}",
    )
    study.stop(other - 1)

    assert begun(study, other) == (0, None)


@pytest.mark.parametrize(
    ("given", "error", "says"),
    [
        (99, UnknownTrial, "has no trial 99"),
        (3.5, InvalidSpec, "checkpoint is 3.5"),
        ("no-such-directory", CheckpointError, "does not exist"),
        ("\ud800", CheckpointError, r"The checkpoint '\\ud800' does not exist"),
        ("", InvalidSpec, "checkpoint is empty; write '.'"),
    ],
)
def test_enqueue_with_a_wrong_checkpoint_adds_no_trial(study, given, error, says):
    with pytest.raises(error, match=says):
        study.enqueue({}, checkpoint=given)

    assert study.trials == []
    assert rows(study.database, "SELECT count(*) FROM upload") == [(0,)]


@pytest.mark.parametrize(
    ("name", "data", "says"),
    [
        ("junk.pkl", b"hello\n", "holds no complete pickle"),
        ("half.pkl", pickle.dumps({"w": "." * 99})[:50], "holds no complete pickle"),
        ("train.py", b"import this\n", "is a file; give a trial, a directory or a .pkl file"),
    ],
)
def test_enqueue_with_a_file_that_is_no_pickle_adds_no_trial(study, tmp_path, name, data, says):
    (tmp_path / name).write_bytes(data)

    with pytest.raises(CheckpointError, match=says):
        study.enqueue({}, checkpoint=tmp_path / name)

    assert study.trials == []
    assert rows(study.database, "SELECT count(*) FROM upload") == [(0,)]


def test_uploaded_pickle_of_another_type_than_dict_is_named_when_it_is_read(study, tmp_path):
    (tmp_path / "list.pkl").write_bytes(pickle.dumps([1]))
    study.enqueue({}, checkpoint=tmp_path / "list.pkl", checkpoint_step=4)

    with pytest.raises(CheckpointError, match="checkpoint of step 4 holds a list, not a dict"):
        begun(study, 0)


def test_enqueue_from_a_trial_without_a_checkpoint_is_refused(study):
    study.enqueue({})

    with pytest.raises(NotFound, match="keeps no checkpoint"):
        study.enqueue({}, checkpoint=0)


def test_refused_enqueue_leaves_no_bytes(create_study, storage_url, tmp_path):
    store = tmp_path / "store"
    study = create_study("full", num_trials=1, storage=storage_url, checkpoints=str(store))
    study.enqueue({})

    with pytest.raises(BudgetSpent):
        study.enqueue({}, checkpoint={"a": 1})

    assert files_below(store) == []
    assert rows(study.database, "SELECT count(*) FROM upload") == [(0,)]


def test_bytes_stay_if_the_reply_of_the_enqueue_is_lost_and_the_second_send_is_refused(
    create_study, storage_url, tmp_path, monkeypatch
):
    store = tmp_path / "store"
    study = create_study("lost", num_trials=9, storage=storage_url, checkpoints=str(store))
    enqueue, sent = resource_requests.enqueue, []

    def reply_is_lost(*args, **options):
        sent.append(args)
        if len(sent) == 1:
            enqueue(*args, **options)
            raise StorageUnreachable("The reply is lost.")
        raise StorageDenied("The server now wants another password.")

    monkeypatch.setattr(resource_requests, "enqueue", reply_is_lost)

    with pytest.raises(StorageDenied):
        study.enqueue({}, checkpoint={"a": 1})

    assert len(files_below(store)) == 1
    assert study.trials[0].checkpoint.to_dict() == {"a": 1}


def test_upload_during_the_deletion_of_its_study_leaves_no_bytes(
    create_study, storage_url, tmp_path, monkeypatch
):
    store = tmp_path / "store"
    study = create_study("going", num_trials=9, storage=storage_url, checkpoints=str(store))
    save, written = starting.Saver.save, []

    def save_too_late(saver, *args, **options):
        studydb.delete_study("going", storage=storage_url)
        saved = save(saver, *args, **options)
        written.append(len(files_below(store)))
        return saved

    monkeypatch.setattr(starting.Saver, "save", save_too_late)

    with pytest.raises(CheckpointError):  # the store has no folder of the study any more
        study.enqueue({}, checkpoint={"a": 1})

    assert (written, files_below(store)) == ([], [])


@pytest.mark.parametrize("point", ["before the bytes", "after the bytes"])
def test_gc_deletes_a_day_later_what_a_killed_enqueue_has_left(
    create_study, storage_url, tmp_path, monkeypatch, point
):
    store = tmp_path / "store"
    store.mkdir()
    study = create_study("cut", num_trials=9, storage=storage_url, checkpoints=str(store))
    with monkeypatch.context() as killed:
        where = (starting.Saver, "save") if point.startswith("before") else (starting, "Uploaded")
        killed.setattr(*where, Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            study.enqueue({}, checkpoint={"a": 1})
    left = len(files_below(store))

    early = study.gc().n_uploads
    change(study.database, "UPDATE upload SET started_at = '2001-01-01 00:00:00.000000+00:00'")
    late = study.gc().n_uploads

    assert left == (0 if point.startswith("before") else 1)
    assert (early, late) == (0, 1)
    assert files_below(store) == []
    assert rows(study.database, "SELECT count(*) FROM upload") == [(0,)]


# `studydb enqueue --checkpoint`


@pytest.mark.row("B9")
@pytest.mark.parametrize("text", ["0", "0:1", "own/0", "own/0:2"])
def test_checkpoint_option_of_enqueue_can_name_a_trial_and_a_step(console, study, trained, text):
    ran = console("enqueue", "own", "lr=0.5", "--checkpoint", text)

    step = 1 if text.endswith(":1") else 2
    assert ran.lines == ["Study 'own': enqueued trial 1."]
    assert begun(study, 1) == (step, {"step": step})


def test_enqueue_command_takes_a_directory_that_looks_like_a_trial(
    console, study, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "3").mkdir()
    (tmp_path / "3" / "w").write_bytes(b"w")

    console("enqueue", "own", "lr=0.5", "--checkpoint", "./3", "--checkpoint-step", "4")

    assert begun(study, 0) == (4, {"w": b"w"})


def test_enqueue_command_takes_a_directory_below_the_home_directory(
    console, study, tmp_path, monkeypatch
):
    """A shell does not expand the tilde of `--checkpoint=~/model`, so the command does."""
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "w").write_bytes(b"w")

    console("enqueue", "own", "lr=0.5", "--checkpoint=~/model")

    assert begun(study, 0) == (0, {"w": b"w"})


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--checkpoint", "~nobody-here/x"), "home directory that '~' stands for is unknown"),
        (("--checkpoint", "7"), "Study 'own' has no trial 7."),
        (("--checkpoint", "none/7"), "There is no study 'none'"),
        (("--checkpoint", "./missing"), "does not exist"),
        (("--checkpoint", "0:9"), "keeps no checkpoint of step 9"),
        (("--checkpoint", "0", "--checkpoint-step", "3"), "only for a path or a dict"),
    ],
)
def test_enqueue_command_refuses_a_wrong_checkpoint(console, study, trained, words, says):
    ran = console(
        "enqueue", "own", "lr=0.5", *words, code=2 if "only for" in says or "home" in says else 1
    )

    assert says in ran.error
    assert len(study.trials) == 1
