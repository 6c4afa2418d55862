"""`rename` changes a study's name and adds an event; workers and handles use the study's id."""

from contextlib import closing

import pytest
from fleet.workers import TRAINABLES
from harness import arrange

import studydb
from studydb.domain.errors import InvalidName, StudyExists
from studydb.domain.records import Request
from studydb.operations.create import load
from studydb.operations.overview import read_overview
from studydb.operations.reads import trial_details
from studydb.operations.rename import rename


def test_rename_changes_the_name_and_records_an_event(console, database):
    study = arrange.new_study(database, name="old")

    ran = console("rename", "old", "my new")

    assert ran.lines[0] == "Study 'old': renamed to 'my new'."
    assert ran.lines[-2:] == ["Next:", "  studydb status 'my new'"]
    assert load(database, "my new").uuid == study.uuid
    assert "There is no study 'old'" in console("status", "old", code=1).err
    events = arrange.rows(database, "SELECT count(*) FROM event WHERE kind = 'renamed'")
    assert events == [(1,)]


def test_rename_to_the_name_of_another_study_is_refused(console, database):
    for name in ("one", "two"):
        arrange.new_study(database, name=name)
    before = arrange.dump(database)

    ran = console("rename", "one", "two", code=1)

    assert "A study 'two' already exists in " in ran.error
    assert ran.error.endswith(". Choose another name.\n")
    assert arrange.dump(database) == before


@pytest.mark.parametrize("name", ["a/b", "", " a", "x" * 201, "a\nb"])
def test_rename_to_an_invalid_name_is_refused(console, database, name):
    arrange.new_study(database, name="old")

    console("rename", "old", name, code=2)

    assert load(database, "old")


def test_rename_to_the_same_name_is_accepted(console, database):
    arrange.new_study(database, name="same")

    console("rename", "same", "same")

    assert load(database, "same").name == "same"


def test_duplicate_rename_request_changes_nothing(database):
    study, token = arrange.new_study(database, name="old"), arrange.token()
    rename(database, study, "new", Request(token, arrange.PERSON))
    before = arrange.dump(database)

    rename(database, study, "new", Request(token, arrange.PERSON))

    assert arrange.dump(database) == before


def test_duplicate_rename_request_does_not_undo_a_later_rename(database):
    study, token = arrange.new_study(database, name="a"), arrange.token()
    rename(database, study, "b", Request(token, arrange.PERSON))
    rename(database, study, "c", arrange.new_request())

    rename(database, study, "b", Request(token, arrange.PERSON))

    assert load(database, "c").id == study.id


def test_running_attempt_continues_after_a_rename(database):
    study = arrange.new_study(database, name="old")
    run = arrange.SimulatedWorker(database, study).take()
    run.report(0.5)

    rename(database, study, "new", arrange.new_request())
    run.report(0.25)
    run.finish()

    rows = arrange.rows(database, "SELECT study, value FROM v_result ORDER BY step")
    assert rows == [("new", 0.5), ("new", 0.25)]


def test_handle_has_the_new_name_after_a_rename(storage_url, create_study):
    study = create_study("old", storage=storage_url)

    study.rename("new")

    assert study.name == "new"
    assert load(study.database, "new").uuid == study.record.uuid


def test_handle_that_was_opened_before_a_rename_reads_the_same_trials(storage_url, create_study):
    study = create_study("old", storage=storage_url)
    trial = study.ask()
    trial.report({"loss": 0.5})
    trial.finish()
    before = study.trials_dataframe().shape, study.results_dataframe().shape

    with closing(studydb.load_study("old", storage=storage_url)) as other:
        other.rename("new")

    assert (study.trials_dataframe().shape, study.results_dataframe().shape) == before
    assert before[0][0] == before[1][0] == 1
    assert [one.number for one in study.trials] == [0]
    details = trial_details(study.database, study.record, 0)
    assert len(details.listed) == len(details.attempts) == 1
    overview = read_overview(study.database, study.record)
    assert (overview.row.study, overview.row.n_trials) == ("new", 1)


@pytest.mark.slow
def test_run_of_a_handle_that_was_opened_before_a_rename_runs_the_same_study(
    storage_url, create_study
):
    given = {"storage": storage_url, "workdir": TRAINABLES, "num_trials": 1, "space": {"x": 0.25}}
    study = create_study("old", "obedient:one_step", **given)
    with closing(studydb.load_study("old", storage=storage_url)) as other:
        other.rename("new")
    namesake = create_study("old", "obedient:one_step", **given)

    assert study.run(workers=1).terminated == 1
    assert namesake.counts.pending == namesake.counts.terminated == 0


@pytest.mark.each_database
def test_only_one_of_two_concurrent_renames_to_one_name_succeeds(database):
    studies = [arrange.new_study(database, name=name) for name in ("one", "two")]

    def attempt(study):
        try:
            arrange.retry_while_busy(
                lambda: rename(database, study, "wanted", arrange.new_request())
            )
        except StudyExists:
            return 0
        return 1

    taken = arrange.run_together([lambda study=study: attempt(study) for study in studies])

    assert sum(taken) == 1


def test_rename_operation_refuses_an_invalid_name(database):
    study = arrange.new_study(database)

    with pytest.raises(InvalidName):
        rename(database, study, "a/b", arrange.new_request())
