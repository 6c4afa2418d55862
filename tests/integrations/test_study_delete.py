"""`delete` removes a study's rows, checkpoints and output, and nothing else."""

import socket

import pytest
from fleet.workers import TRAINABLES
from harness import arrange

import studydb
from studydb.analysis.wide import make_wide_views
from studydb.db import wide_view_sql
from studydb.domain.errors import CheckpointError, UnknownStudy
from studydb.domain.life.states import State
from studydb.operations.create import load
from studydb.operations.register import register
from studydb.processes import this_process


def n_rows(database):
    """Rows by table."""
    return {name: len(rows) for name, rows in arrange.dump(database).items()}


def lived_in(database, name="digits", **overrides):
    """A study with a bit of everything."""
    study = arrange.new_study(database, name=name, scheduler=studydb.ASHA(max_t=9), **overrides)
    worker = arrange.SimulatedWorker(database, study)
    run = worker.take()
    run.report(0.5)
    run.save()
    run.finish(0.25)
    arrange.enqueued(database, study)
    return study


def test_delete_removes_all_rows_of_the_study_and_no_row_of_others(console, database):
    lived_in(database, "kept")
    before = n_rows(database)
    study = lived_in(database)
    make_wide_views(database, study)

    ran = console("delete", "digits", "--yes")

    assert ran.lines[0] == "Study 'digits': deleted with its 2 trials, results and checkpoints."
    assert n_rows(database) == before
    assert console("studies", "--format", "json").json[0]["study"] == "kept"
    with database.begin(write=False) as txn:
        assert wide_view_sql.found(txn) == []


def test_delete_without_yes_says_what_it_would_delete_and_changes_nothing(console, database):
    lived_in(database)
    before = arrange.dump(database)

    ran = console("delete", "digits", code=2)

    assert "would be deleted with its 2 trials" in ran.err
    assert "Add --yes to confirm." in ran.err
    assert arrange.dump(database) == before


def test_error_for_an_unknown_name_has_a_near_one(console, database):
    lived_in(database)

    for arguments in (("digit", "--yes"), ("digit",)):
        ran = console("delete", *arguments, code=1)
        assert "There is no study 'digit' in " in ran.err
        assert "Did you mean 'digits'?" in ran.err


def test_running_trial_is_not_deleted_under_its_worker(console, database):
    study = lived_in(database)
    run = arrange.SimulatedWorker(database, study).take()

    refused = console("delete", "digits", "--yes", code=1)
    told = run.report(0.5)
    run.finish()
    console("delete", "digits", "--yes")

    assert (
        "1 trial of study 'digits' is running. The study is stopped now: delete it" in refused.err
    )
    assert told.verdict is not None
    assert console("studies").lines == ["no studies"]


def test_delete_does_not_wait_for_trials_of_dead_processes_of_this_host(console, database):
    study = arrange.new_study(database, name="digits")
    here = this_process()
    dead = arrange.process(pid=2**22 + 1, boot_id=here.boot_id, pid_namespace=here.pid_namespace)
    arrange.SimulatedWorker(database, study, of=dead).take()
    assert arrange.states_of(database, study) == [State.RUNNING]

    console("delete", "digits", "--yes")

    assert console("studies").lines == ["no studies"]


def test_interrupted_deletion_continues_with_the_next_call(console, database, monkeypatch):
    study = lived_in(database)
    monkeypatch.setattr("studydb.store.deletion.TRIALS_PER_TRANSACTION", 1)
    with monkeypatch.context() as patch:
        patch.setattr("studydb.store.deletion.rest", _crash)
        with pytest.raises(ZeroDivisionError):
            studydb.delete_study(study.name, storage=_url(database))

    console("delete", "digits", "--yes")

    assert set(n_rows(database).values()) == {0}


def _crash(*_, **__):
    raise ZeroDivisionError


def _url(database):
    return database.secret_url.render_as_string(hide_password=False)


def test_delete_removes_checkpoints_and_output_of_its_study_only(
    storage_url, tmp_path, monkeypatch
):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    store = tmp_path / "store"
    studies = [
        studydb.create_study(
            name,
            "talkative:train",
            metric="loss",
            mode="min",
            num_trials=2,
            checkpoints=str(store),
            storage=storage_url,
            workdir=TRAINABLES,
        )
        for name in ("goes", "stays")
    ]
    for study in studies:
        study.run(workers=1)
    goes, stays = (
        [store / s.record.uuid, s.database.locations.log_root(s.record)] for s in studies
    )
    assert all(list(folder.rglob("*/*")) for folder in (*goes, *stays))

    studydb.delete_study("goes", storage=storage_url)

    assert [folder.exists() for folder in (*goes, *stays)] == [False, False, True, True]
    studydb.delete_study("stays", storage=storage_url)
    assert list(store.iterdir()) == []
    for study in studies:
        study.close()


def test_delete_keeps_the_rows_if_the_checkpoints_cannot_be_removed(
    sqlite_url, tmp_path, monkeypatch
):
    study = studydb.create_study(
        "digits", None, metric="loss", mode="min", checkpoints=str(tmp_path), storage=sqlite_url
    )
    monkeypatch.setattr(
        "studydb.artifacts.directory.DirectoryStore.delete_study", _refuse, raising=True
    )

    with pytest.raises(CheckpointError, match="cannot be removed"):
        studydb.delete_study("digits", storage=sqlite_url)

    assert study.counts.total == 0
    assert load(study.database, "digits").uuid == study.record.uuid
    study.close()


def _refuse(*_):
    raise CheckpointError("The checkpoint x cannot be removed: no.")


def test_delete_names_other_hosts_that_keep_output(bare_console, postgres_url, monkeypatch):
    monkeypatch.setenv("STUDYDB_STORAGE", postgres_url)
    study = studydb.create_study("digits", None, metric="loss", mode="min")
    for host in ("gpu2", "gpu1", socket.gethostname()):
        register(
            study.database,
            study.record,
            uuid=arrange.token(),
            process=arrange.process(host=host),
            slots=1,
            lease_s=90.0,
            version="0",
        )

    ran = bare_console("delete", "digits", "--yes")

    root = study.database.locations.log_root(study.record)
    assert ran.lines[1] == f"The output of trials on gpu1, gpu2 is still there, below {root}."
    study.close()


def test_deleting_a_missing_study_is_an_error_unless_missing_ok(storage_url):
    studydb.delete_study("nothing", storage=storage_url, missing_ok=True)

    with pytest.raises(UnknownStudy, match="There is no study 'nothing'"):
        studydb.delete_study("nothing", storage=storage_url)
