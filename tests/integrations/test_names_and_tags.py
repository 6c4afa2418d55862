"""Commands and methods take a trial's name in place of its number; `trials --tag` lists by tag."""

import numpy as np
import pytest
from harness import arrange

from studydb.domain.attempt_process import AttemptProcess
from studydb.domain.errors import (
    BudgetSpent,
    InvalidName,
    StorageError,
    TrialExists,
    UnknownTrial,
)
from studydb.operations.enqueue import enqueue
from studydb.store import trials


@pytest.fixture
def study(database, console, load_study, storage_url):
    """Trial 0 has no name or tag, trial 1 the name "base line" and two tags, trial 2 one tag."""
    study = arrange.new_study(database, name="digits", num_trials=None)
    arrange.enqueued(database, study)
    ran = console(
        *("enqueue", "digits", "lr=0.5", "--name", "base line", "--tag", "old", "--tag", "a b")
    )
    assert ran.lines == ["Study 'digits': enqueued trial 1, 'base line'."]
    console("enqueue", "digits", "--tag", "old")
    return load_study("digits", storage_url)


@pytest.mark.row("B2")
def test_trial_shows_its_name_its_tags_and_its_uuid(console, study):
    trial = study.trial("base line")

    assert (trial.number, trial.name, trial.tags) == (1, "base line", ("a b", "old"))
    assert "trial 1 ('base line')" in repr(trial)
    shown = console("show", "digits", "base line", "--format", "json").json
    assert (shown["number"], shown["name"], shown["tags"]) == (1, "base line", ["a b", "old"])
    assert shown["uuid"] == trial.uuid
    lines = [line.split(maxsplit=1) for line in console("show", "digits", "1").lines]
    assert lines[1:3] == [["name", "base line"], ["tags", "a b,old"]]


def test_listings_show_names_and_tags_if_a_trial_has_any(console, study, database):
    rows = console("trials", "digits", "--format", "json").json
    assert [(row["name"], row["tags"]) for row in rows] == [
        (None, []),
        ("base line", ["a b", "old"]),
        (None, ["old"]),
    ]
    cells = console("trials", "digits", "--format", "csv").csv
    assert [(row["name"], row["tags"]) for row in cells] == [
        ("", ""),
        ("base line", "a b,old"),
        ("", "old"),
    ]
    assert "base line" in console("trials", "digits").lines[2]
    assert "a b,old" in console("status", "digits").out
    assert console("status", "digits", "--format", "json").json["live"][1]["name"] == "base line"
    plain = arrange.new_study(database, name="plain")
    arrange.enqueued(database, plain)
    assert {"name", "tags"}.isdisjoint(console("trials", "plain").lines[0].split())


def test_frame_and_view_show_names_and_tags(study, database):
    frame = study.trials_dataframe()

    assert frame["tags"].explode().value_counts().to_dict() == {"old": 2, "a b": 1}
    assert list(frame["name"].dropna()) == ["base line"]
    named = "SELECT number FROM v_trial WHERE study = 'digits' AND name = 'base line'"
    assert arrange.rows(database, named) == [(1,)]
    tagged = (
        "SELECT t.number FROM trial t JOIN tag g ON g.study_id = t.study_id AND g.trial_id = t.id "
        "WHERE g.key = 'old' ORDER BY 1"
    )
    assert arrange.rows(database, tagged) == [(1,), (2,)]


@pytest.mark.parametrize("order", [(), ("--sort", "best")])
def test_listing_of_a_tag_has_exactly_the_trials_with_this_tag(console, study, database, order):
    other = arrange.new_study(database, name="other")
    enqueue(database, other, {}, arrange.new_request(), tags=["old"])

    def numbers(*options):
        ran = console("trials", "digits", *order, *options, "--format", "json")
        return [row["number"] for row in ran.json]

    assert numbers("--tag", "old") == [1, 2]
    assert numbers("--tag", "a b") == [1]
    assert numbers("--tag", "a") == []
    assert numbers("--tag", "old", "--state", "PAUSED") == []
    assert numbers("--tag", "old", "--limit", "1") == [1]


@pytest.mark.row("B2")
def test_commands_and_methods_take_a_name_in_place_of_the_number(console, study, database):
    console("pause", "digits", "base line")
    assert study.trial(1).state == "PAUSED"
    study.resume("base line")
    assert study.trial(1).state == "PENDING"
    console("stop", "digits", "0", "2")
    run = arrange.SimulatedWorker(database, study.record).take()
    run.report(0.25)
    run.finish(process=AttemptProcess("/nowhere", "what it printed"))

    assert "0.25" in console("results", "digits", "base line").out
    assert "what it printed" in console("logs", "digits", "base line").out
    assert "Trial 1 has no checkpoint" in (
        console("export-checkpoint", "digits", "base line", "there", code=1).error
    )
    assert console("best", "digits", "--format", "json").json["name"] == "base line"
    assert "name             base line" in console("best", "digits").lines
    assert "trial 1 (base line)" in console("status", "digits").out
    assert "has ended (TERMINATED, COMPLETED)" in (
        console("stop", "digits", "base line", code=1).error
    )


def test_unknown_name_is_refused_with_similar_names(console, study):
    with pytest.raises(UnknownTrial, match=r"no trial named 'baseline'. Did you mean 'base line'"):
        study.trial("baseline")

    assert "Did you mean 'base line'?" in console("logs", "digits", "base lin", code=1).error


def test_digits_alone_are_a_trials_number_and_a_name_may_begin_with_digits(console, study):
    study.enqueue({}, name="1st")

    assert console("show", "digits", "1", "--format", "json").json["name"] == "base line"
    assert console("show", "digits", "1st", "--format", "json").json["number"] == 3


@pytest.mark.row("B2")
@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"name": "7"}, "could be taken for a trial's number; add a letter, such as 'trial-7'"),
        ({"name": "1e3"}, "could be taken for a trial's number"),
        ({"name": "٣"}, "could be taken for a trial's number"),
        ({"name": "-x"}, "begins with '-', as options do"),
        ({"name": "n" * 201}, "has 201 characters; at most 200"),
        ({"name": "a\tb"}, "cannot be printed"),
        ({"name": ""}, "is empty"),
        ({"name": 7}, "is 7, an int; give a text"),
        ({"tags": "old"}, "give a list of texts"),
        ({"tags": ["a,b"]}, "holds a ','"),
        ({"tags": ["t" * 201]}, "The tag .* has 201 characters"),
        ({"tags": [f"t{n}" for n in range(51)]}, "are 51 tags; at most 50"),
        ({"tags": [None]}, "The tag is None"),
    ],
    ids=str,
)
@pytest.mark.parametrize("storage_url", ["sqlite"], indirect=True)
def test_wrong_name_or_tag_is_refused_and_adds_no_trial(study, given, why):
    with pytest.raises(InvalidName, match=why):
        study.enqueue({}, **given)

    assert study.counts.total == 3


def test_name_of_another_trial_is_refused_and_costs_no_budget(study, console):
    with pytest.raises(TrialExists, match=r"has a trial named 'base line': number 1\. Choose"):
        study.enqueue({}, name="base line")

    assert "has a trial named 'base line'" in (
        console("enqueue", "digits", "--name", "base line", code=1).error
    )
    assert study.enqueue({}, name="next", tags=np.array(["x"])) == 3
    assert study.counts.total == 4


def test_two_studies_can_have_trials_of_the_same_name(study, database):
    other = arrange.new_study(database)

    assert enqueue(database, other, {}, arrange.new_request(), name="base line") == 0


def test_duplicate_request_with_a_name_returns_the_trial_that_the_first_send_made(study, database):
    request = arrange.new_request()
    first = enqueue(database, study.record, {}, request, name="again", tags=["x"])
    before = arrange.dump(database)

    assert enqueue(database, study.record, {}, request, name="again", tags=["x"]) == first
    assert arrange.dump(database) == before


@pytest.mark.each_database
def test_name_of_a_trial_that_a_worker_has_inserted_by_sql_is_refused(study, database, monkeypatch):
    """A login with the worker role may insert trials without the lock that an enqueue takes."""
    named = trials.named
    found = iter([None])  # the first look-up finds no trial of this name
    monkeypatch.setattr(trials, "named", lambda *args, **of: next(found, named(*args, **of)))

    with pytest.raises(TrialExists, match="has a trial named 'base line': number 1"):
        enqueue(database, study.record, {}, arrange.new_request(), name="base line", tags=["x"])


@pytest.mark.parametrize("name", [None, "next"])
def test_new_trial_whose_number_is_taken_is_refused_with_cause_and_cure(study, database, name):
    """A login with the worker role may change the number that the next trial gets."""
    arrange.change(database, "UPDATE study SET next_number = 1")

    with pytest.raises(StorageError, match=r"a new trial collides with it \(.*number.*\)\. Delete"):
        study.enqueue({}, name=name)


def test_taken_name_raises_trial_exists_even_if_the_budget_is_spent(database):
    study = arrange.new_study(database, num_trials=1)
    first = arrange.new_request()
    enqueue(database, study, {}, first, name="base line")

    with arrange.unchanged_rows(database):
        with pytest.raises(TrialExists, match=r"has a trial named 'base line': number 0\."):
            enqueue(database, study, {}, arrange.new_request(), name="base line")
        with pytest.raises(BudgetSpent):
            enqueue(database, study, {}, arrange.new_request(), name="next")
        assert enqueue(database, study, {}, first, name="base line") == 0


def test_attempts_of_a_trial_receive_its_name_and_tags(study, database):
    worker = arrange.SimulatedWorker(database, study.record)
    unnamed, named, tagged = (worker.take().claimed for _ in range(3))

    assert [(one.name, one.tags) for one in (unnamed, named, tagged)] == [
        (None, ()),
        ("base line", ("a b", "old")),
        (None, ("old",)),
    ]
    asked = worker.ask().claimed
    assert (asked.name, asked.tags) == (None, ())


def test_deletion_of_a_study_deletes_the_tags_of_its_trials(study, console, database):
    console("delete", "digits", "--yes")

    assert arrange.rows(database, "SELECT count(*) FROM tag") == [(0,)]
