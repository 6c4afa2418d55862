"""
`delete` removes a study's rows, wide views and checkpoints, and its trials' files on this host.

It changes no other study. The handles of a deleted study raise `UnknownStudy`.
"""

import shutil
import socket

import pytest
from fleet.workers import TRAINABLES
from harness import arrange
from harness.kept_checkpoints import files_below

import studydb
from studydb.analysis.wide import make_wide_views
from studydb.artifacts.directory import DirectoryStore
from studydb.artifacts.locations import Locations
from studydb.db import wide_view_sql
from studydb.domain.errors import CheckpointError, NotAllowed, StorageBusy, UnknownStudy
from studydb.domain.life.states import State, Status
from studydb.operations import control
from studydb.operations.create import load
from studydb.operations.delete import delete
from studydb.processes import this_process
from studydb.store import deletion
from studydb.study import loading


def row_counts(database):
    return {name: len(rows) for name, rows in arrange.dump(database).items()}


def study_with_rows(database, name="digits"):
    study = arrange.new_study(database, name=name, scheduler=studydb.ASHA(max_t=9))
    run = arrange.SimulatedWorker(database, study).take()
    run.report(0.5)
    run.save()
    run.finish(0.25)
    arrange.enqueued(database, study)
    return study


def test_delete_removes_all_rows_of_the_study_and_no_row_of_other_studies(console, database):
    study_with_rows(database, "kept")
    before = row_counts(database)
    study = study_with_rows(database)
    make_wide_views(database, study)

    ran = console("delete", "digits", "--yes")

    assert ran.lines[0] == "Study 'digits': deleted with its 2 trials, results and checkpoints."
    assert row_counts(database) == before
    assert console("studies", "--format", "json").json[0]["study"] == "kept"
    with database.begin(write=False) as txn:
        assert wide_view_sql.found(txn) == []


def test_delete_without_yes_says_what_it_would_delete_and_changes_nothing(console, database):
    study_with_rows(database)
    before = arrange.dump(database)

    ran = console("delete", "digits", code=2)

    assert "would be deleted with its 2 trials" in ran.err
    assert "Add --yes to confirm." in ran.err
    assert arrange.dump(database) == before


def test_refused_delete_of_a_study_with_a_running_trial_stops_the_study(console, database):
    study = study_with_rows(database)
    run = arrange.SimulatedWorker(database, study).take()

    refused = console("delete", "digits", "--yes", code=1)
    answer = run.report(0.5)
    run.finish()
    console("delete", "digits", "--yes")

    message = "1 trial of study 'digits' is running. The study is stopped now. Repeat"
    assert message in refused.error
    assert answer.verdict is not None
    assert console("studies").lines == ["no studies"]


def test_running_trial_of_a_dead_process_of_this_host_does_not_prevent_a_delete(console, database):
    study = arrange.new_study(database, name="digits")
    here = this_process()
    dead = arrange.process(pid=2**22 + 1, boot_id=here.boot_id, pid_namespace=here.pid_namespace)
    arrange.SimulatedWorker(database, study, of=dead).take()
    assert arrange.states_of(database, study) == [State.RUNNING]

    console("delete", "digits", "--yes")

    assert console("studies").lines == ["no studies"]


def test_interrupted_deletion_continues_with_the_next_call(console, database, monkeypatch):
    study = study_with_rows(database)
    monkeypatch.setattr("studydb.store.deletion.TRIALS_PER_TRANSACTION", 1)
    with monkeypatch.context() as patch:
        patch.setattr("studydb.store.deletion.delete_rest", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            delete(database, study)

    console("delete", "digits", "--yes")

    assert set(row_counts(database).values()) == {0}


def test_half_deleted_study_can_only_be_deleted(console, database, monkeypatch):
    study = study_with_rows(database)
    with monkeypatch.context() as patch:
        patch.setattr(deletion, "delete_rest", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            delete(database, study)

    status = console("status", "digits")
    assert "status   STOPPED, half deleted" in status.lines
    assert status.lines[-1].startswith("  studydb delete digits --yes")
    for command in ("resume", "pause", "stop", "extend --trials 3", "enqueue lr=0.1", "retry 0"):
        name, *arguments = command.split()
        refused = console(name, "digits", *arguments, code=1)
        assert "Delete the rest: `studydb delete digits --yes`" in refused.err
    with pytest.raises(NotAllowed, match="half deleted"):  # this record is older than the deletion
        control.set_status(database, study, Status.RUNNING, arrange.new_request())
    console("delete", "digits", "--yes")
    assert set(row_counts(database).values()) == {0}


def test_study_that_is_resumed_while_its_files_are_removed_keeps_its_rows(
    console, database, monkeypatch
):
    study_with_rows(database)
    monkeypatch.setattr(Locations, "remove_files", lambda *_: console("resume", "digits"))

    refused = console("delete", "digits", "--yes", code=1)

    assert "A person has resumed, paused or stopped study 'digits'" in refused.err
    assert len(arrange.rows(database, "SELECT id FROM trial")) == 2
    assert "being deleted" not in console("status", "digits").out
    assert load(database, "digits").status is Status.RUNNING


@pytest.mark.nightly
def test_delete_removes_checkpoints_and_output_of_the_deleted_study_only(
    storage_url, tmp_path, monkeypatch, create_study
):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    store = tmp_path / "store"
    options = {"num_trials": 2, "checkpoints": str(store), "workdir": TRAINABLES}
    studies = [
        create_study(name, "talkative:train", storage=storage_url, **options)
        for name in ("deleted", "kept")
    ]
    for study in studies:
        study.run(workers=1)
    deleted, kept = (
        [store / s.record.uuid, s.database.locations.log_root(s.record)] for s in studies
    )
    assert all(list(folder.rglob("*/*")) for folder in (*deleted, *kept))

    studydb.delete_study("deleted", storage=storage_url)

    assert [folder.exists() for folder in (*deleted, *kept)] == [False, False, True, True]
    studydb.delete_study("kept", storage=storage_url)
    assert list(store.iterdir()) == []


def test_delete_keeps_the_rows_if_the_checkpoints_cannot_be_removed(
    console, sqlite_url, tmp_path, monkeypatch, create_study
):
    def refuse(*_):
        raise CheckpointError("The checkpoint x cannot be removed: no.")

    study = create_study("digits", checkpoints=str(tmp_path), storage=sqlite_url)
    monkeypatch.setattr("studydb.artifacts.directory.DirectoryStore.delete_study", refuse)
    monkeypatch.setenv("STUDYDB_STORAGE", sqlite_url)

    with pytest.raises(CheckpointError, match="cannot be removed"):
        studydb.delete_study("digits", storage=sqlite_url)

    assert study.counts.total == 0
    assert load(study.database, "digits").uuid == study.record.uuid
    status = console("status", "digits")
    assert "STOPPED, being deleted" in status.out
    assert status.out.endswith("studydb delete digits --yes\n  studydb resume digits\n")


@pytest.mark.parametrize("files_remain", [True, False])
def test_delete_is_refused_on_a_host_without_the_store_unless_an_earlier_deletion_removed_the_files(
    storage_url, tmp_path, create_study, monkeypatch, files_remain
):
    """Files that are missing when the first deletion begins may be on an unmounted disk."""
    store = tmp_path / "store"
    study = create_study("digits", num_trials=1, storage=storage_url, checkpoints=str(store))
    with study.ask() as trial:
        trial.report({"loss": 1.0}, checkpoint={"a": 1})

    if files_remain:
        store.rename(tmp_path / "unmounted")
        with pytest.raises(CheckpointError, match="Mount it"):
            studydb.delete_study("digits", storage=storage_url)
        assert study.counts.total == 1
        (tmp_path / "unmounted").rename(store)
    else:
        for name in ("forget_stores", "delete"):
            with monkeypatch.context() as failing:
                failing.setattr(loading, name, lambda *_: 1 / 0)
                with pytest.raises(ZeroDivisionError):
                    studydb.delete_study("digits", storage=storage_url)

    studydb.delete_study("digits", storage=storage_url)
    assert list(store.iterdir()) == []
    with pytest.raises(UnknownStudy):
        studydb.load_study("digits", storage=storage_url)


def test_study_with_a_store_that_is_gone_is_deleted_if_failing_stores_are_skipped(
    console, create_study, sqlite_url, s3_server, tmp_path
):
    bucket = f"s3://{s3_server.bucket}"
    study = create_study("digits", num_trials=1, storage=sqlite_url, checkpoints=bucket)
    study.set(checkpoints=str(tmp_path / "second"))
    with study.ask() as trial:
        trial.report({"loss": 1.0}, checkpoint={"a": 1})
    s3_server.client().delete_bucket(Bucket=s3_server.bucket)

    words = ("delete", "digits", "--yes", "--storage", sqlite_url)
    refused = console(*words, code=1)
    deleted = console(*words, "--skip-failing-stores")

    assert "The specified bucket does not exist" in refused.error
    assert refused.error.rstrip().endswith("`studydb delete digits --skip-failing-stores`.")
    assert deleted.out == "Study 'digits': deleted with its 1 trial and results.\n"
    assert f"Checkpoints may be left: The checkpoint {bucket}/{study.record.uuid}" in deleted.err
    assert files_below(tmp_path / "second") == []


def test_study_whose_directory_is_gone_is_deleted_if_failing_stores_are_skipped(
    create_study, storage_url, tmp_path
):
    study = create_study("digits", num_trials=1, storage=storage_url, checkpoints=str(tmp_path))
    with study.ask() as trial:
        trial.report({"loss": 1.0}, checkpoint={"a": 1})
    study.set(checkpoints=str(tmp_path / "second"))
    shutil.rmtree(tmp_path / study.record.uuid)

    left = studydb.delete_study("digits", storage=storage_url, skip_failing_stores=True)

    assert len(left) == 2
    assert "does not exist on this host" in left[0]
    assert "contains no checkpoints of this study on this host" in left[1]
    with pytest.raises(UnknownStudy):
        studydb.load_study("digits", storage=storage_url)


def test_deletion_that_skips_a_store_and_is_repeated_after_a_failure_names_the_store_again(
    create_study, storage_url, tmp_path, monkeypatch
):
    gone, second = tmp_path / "gone", tmp_path / "second"
    study = create_study("digits", num_trials=2, storage=storage_url, checkpoints=str(gone))
    for store in (gone, second):
        study.set(checkpoints=str(store))
        with study.ask() as trial:
            trial.report({"loss": 1.0}, checkpoint={"a": 1})
    shutil.rmtree(gone)
    with monkeypatch.context() as failing:
        failing.setattr(loading, "delete", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            studydb.delete_study("digits", storage=storage_url, skip_failing_stores=True)

    with pytest.raises(CheckpointError, match="delete digits --skip-failing-stores"):
        studydb.delete_study("digits", storage=storage_url)
    (left,) = studydb.delete_study("digits", storage=storage_url, skip_failing_stores=True)

    assert f"{gone} does not exist on this host" in left


def test_delete_removes_nothing_from_the_stores_of_studies_whose_checkpoints_were_read(
    create_study, storage_url, tmp_path, monkeypatch
):
    source = create_study("a", num_trials=1, storage=storage_url, checkpoints=str(tmp_path / "a"))
    with source.ask() as trial:
        trial.report({"loss": 1.0}, checkpoint={"a": 1})
    study = create_study("b", num_trials=1, storage=storage_url, checkpoints=str(tmp_path / "b"))
    study.enqueue({}, checkpoint=source.trial(0))
    with study.ask() as trial:
        assert trial.start_step == 1
    asked = []
    monkeypatch.setattr(DirectoryStore, "delete_study", lambda store, _: asked.append(store.root))

    studydb.delete_study("b", storage=storage_url)

    assert asked == [tmp_path / "b"]


@pytest.mark.parametrize("unused", ["the first store", "the last store"])
def test_interrupted_deletion_of_a_study_with_an_unused_store_can_be_repeated(
    create_study, storage_url, tmp_path, monkeypatch, unused
):
    """The newest checkpoint, which shows that the disk is mounted, is deleted by the first call."""
    store = tmp_path / "store"
    first = tmp_path / "no" if unused == "the first store" else store
    study = create_study("a", num_trials=1, storage=storage_url, checkpoints=str(first))
    study.set(checkpoints=str(store))
    with study.ask() as trial:
        trial.report({"loss": 1.0}, checkpoint={"a": 1})
    if unused == "the last store":
        study.set(checkpoints=str(tmp_path / "no"))
    with monkeypatch.context() as failing:
        failing.setattr(loading, "begin_removal", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            studydb.delete_study("a", storage=storage_url)
    assert files_below(store) == []

    store.rename(tmp_path / "unmounted")
    with pytest.raises(CheckpointError, match="Mount it"):
        studydb.delete_study("a", storage=storage_url)
    (tmp_path / "unmounted").rename(store)
    studydb.delete_study("a", storage=storage_url)

    with pytest.raises(UnknownStudy):
        studydb.load_study("a", storage=storage_url)


def test_delete_is_refused_on_a_host_that_has_not_mounted_a_former_store(
    create_study, storage_url, tmp_path
):
    """The URL of the first store would match that of the second as a pattern of LIKE."""
    first, second = tmp_path / "a_b", tmp_path / "a-b"
    study = create_study("a", num_trials=2, storage=storage_url, checkpoints=str(first))
    for place in (first, second):
        study.set(checkpoints=str(place))
        with study.ask() as trial:
            trial.report({"loss": 1.0}, checkpoint={"a": 1})

    first.rename(tmp_path / "unmounted")
    with pytest.raises(CheckpointError, match=r"/a_b does not exist on this host\. Mount it"):
        studydb.delete_study("a", storage=storage_url)

    assert len(files_below(second)) == 1
    (tmp_path / "unmounted").rename(first)
    studydb.delete_study("a", storage=storage_url)
    assert files_below(first) == files_below(second) == []


def test_study_whose_first_directory_was_moved_can_be_deleted(create_study, storage_url, tmp_path):
    study = create_study("a", num_trials=1, storage=storage_url, checkpoints=str(tmp_path / "a"))
    with study.ask() as trial:
        trial.report({"loss": 1.0}, checkpoint={"a": 1})
    (tmp_path / "a").rename(tmp_path / "b")
    study.set(checkpoints=str(tmp_path / "b"))

    studydb.delete_study("a", storage=storage_url)

    assert files_below(tmp_path / "b") == []


def test_repeated_deletion_is_refused_on_a_host_that_sees_only_another_store(
    create_study, storage_url, tmp_path, monkeypatch
):
    first, second = tmp_path / "first", tmp_path / "second"
    study = create_study("a", num_trials=2, storage=storage_url, checkpoints=str(first))
    with study.ask() as trial:
        trial.report({"loss": 1.0}, checkpoint={"a": 1})
    study.set(checkpoints=str(second))
    (second / study.record.uuid).mkdir(parents=True)
    with monkeypatch.context() as failing:
        failing.setattr(loading, "drop_views", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            studydb.delete_study("a", storage=storage_url)

    first.rename(tmp_path / "unmounted")
    with pytest.raises(CheckpointError, match=r"/first does not exist on this host. Mount it"):
        studydb.delete_study("a", storage=storage_url)

    assert len(files_below(tmp_path / "unmounted")) == 1


def test_deletion_goes_on_if_the_database_does_not_answer_after_the_files_were_deleted(
    storage_url, tmp_path, create_study, monkeypatch
):
    """`delete_study` tries again, and then finds neither the files nor their folder."""
    study = create_study("digits", num_trials=1, storage=storage_url, checkpoints=str(tmp_path))
    with study.ask() as trial:
        trial.report({"loss": 1.0}, checkpoint={"a": 1})
    delete_rows, answers = loading.delete, [StorageBusy("busy"), None]

    def delete_at_the_second_call(*given):
        if error := answers.pop(0):
            raise error
        delete_rows(*given)

    monkeypatch.setattr(loading, "delete", delete_at_the_second_call)

    studydb.delete_study("digits", storage=storage_url)

    assert answers == []
    with pytest.raises(UnknownStudy):
        studydb.load_study("digits", storage=storage_url)


def test_deletion_succeeds_if_only_the_reply_to_its_last_commit_is_lost(
    storage_url, create_study, monkeypatch
):
    create_study("digits", num_trials=1, storage=storage_url)
    delete_rows, calls = loading.delete, []

    def lose_the_reply(*given):
        calls.append(delete_rows(*given))
        raise StorageBusy("busy")

    monkeypatch.setattr(loading, "delete", lose_the_reply)

    studydb.delete_study("digits", storage=storage_url)

    assert len(calls) == 1
    with pytest.raises(UnknownStudy):
        studydb.delete_study("digits", storage=storage_url)


@pytest.mark.parametrize("storage_url", ["postgresql"], indirect=True)
def test_delete_names_other_hosts_that_keep_output(console, database):
    study = arrange.new_study(database, name="digits")
    for host in ("gpu2", "gpu1", socket.gethostname()):
        arrange.SimulatedWorker(database, study, of=arrange.process(host=host))

    ran = console("delete", "digits", "--yes")

    root = database.locations.log_root(study)
    kept = f"The output and files of trials on gpu1, gpu2 are still there, below {root}."
    assert ran.lines[1] == kept


def test_deleting_a_missing_study_is_an_error_unless_missing_ok(storage_url):
    studydb.delete_study("nothing", storage=storage_url, missing_ok=True)

    with pytest.raises(UnknownStudy, match="There is no study 'nothing'"):
        studydb.delete_study("nothing", storage=storage_url)


REQUESTS = {
    "status": lambda study: study.status,
    "enqueue": lambda study: study.enqueue({}, name="next"),
    "pause": lambda study: study.pause(),
    "pause(0)": lambda study: study.pause(0),
    "resume": lambda study: study.resume(),
    "stop": lambda study: study.stop(),
    "extend": lambda study: study.extend(num_trials=1),
    "rename": lambda study: study.rename("other"),
    "set(checkpoints)": lambda study: study.set(checkpoints="inline:"),
    "set(trainable)": lambda study: study.set(trainable="os:getcwd"),
    "ask": lambda study: study.ask(timeout=5.0),
    "run": lambda study: study.run(),
    "trials": lambda study: study.trials,
    "trial(0)": lambda study: study.trial(0),
    "trial(name)": lambda study: study.trial("baseline"),
    "best_value": lambda study: study.best_value,
    "best": lambda study: study.best(scope="last"),
    "errors": lambda study: study.errors,
    "trials_dataframe": lambda study: study.trials_dataframe(),
    "results_dataframe": lambda study: study.results_dataframe(),
    "notes": lambda study: study.notes(),
    "notes(0)": lambda study: study.notes(0),
    "note": lambda study: study.note("text"),
    "note(0)": lambda study: study.note("text", trial=0),
    "tag(0)": lambda study: study.tag(0, add=["tag"]),
    "invalidate(0)": lambda study: study.invalidate(0, reason="wrong"),
    "retry(0)": lambda study: study.retry(0),
    "retry(select)": lambda study: study.retry(select="all"),
    "stop(0, discard_checkpoints)": lambda study: study.stop(0, discard_checkpoints=True),
    "pin(0)": lambda study: study.pin(0),
    "pin(0, remove)": lambda study: study.pin(0, remove=True),
    "enqueue(checkpoint=0)": lambda study: study.enqueue({}, checkpoint=0),
    "gc": lambda study: study.gc(),
    "gc(dry_run)": lambda study: study.gc(dry_run=True),
    "clone": lambda study: study.clone("other"),
}


def test_handle_of_a_deleted_study_raises_unknown_study(storage_url, create_study):
    study = create_study("digits", "os:getcwd", space={"x": 1.0}, num_trials=2, storage=storage_url)
    studydb.delete_study("digits", storage=storage_url)

    raised = {}
    for name, request in REQUESTS.items():
        with pytest.raises(Exception) as error:  # noqa: PT011  the classes are compared below
            raise AssertionError(request(study))
        raised[name] = error.type

    assert raised == dict.fromkeys(REQUESTS, UnknownStudy)


def test_own_loop_of_a_deleted_study_raises_unknown_study(storage_url, create_study):
    study = create_study("digits", space={"x": 1.0}, num_trials=2, storage=storage_url)
    with study.ask() as trial:
        trial.report({"loss": 1.0})
    studydb.delete_study("digits", storage=storage_url)

    with pytest.raises(UnknownStudy, match="The study was deleted"):
        study.ask(timeout=5.0)
