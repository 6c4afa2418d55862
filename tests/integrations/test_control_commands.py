"""
The commands `retry`, `invalidate`, `resume K=V`, `stop --now`, `note`, `tag` and `clone`.

The methods of `Study` that do the same are tested here, too.
"""

import re

import pytest
from harness import arrange
from harness.arrange import SimulatedWorker, rows

import studydb
from studydb.domain.errors import InvalidName, InvalidSpec, NotAllowed, StudyExists, UsageError
from studydb.domain.life.states import Reason
from studydb.settings import KEY_FILE

SPACE = {"lr": studydb.loguniform(1e-4, 1.0), "net": {"width": studydb.randint(1, 9)}}


@pytest.fixture
def study(create_study, storage_url):
    return create_study("digits", space=SPACE, num_trials=10, storage=storage_url)


@pytest.fixture
def worker(study):
    return SimulatedWorker(study.database, study.record)


def trials(console, *options):
    return console("trials", "digits", "--format", "json", *options).json


# --- pause, resume and stop of a study


def test_resume_of_a_study_that_is_not_paused_says_so(console, study):
    said = "Study 'digits' was neither paused nor stopped: it is RUNNING."
    assert console("resume", "digits").lines == [said]

    for command in ("pause", "stop"):
        console(command, "digits")
        assert console("resume", "digits").lines == ["Study 'digits': resumed."]


@pytest.mark.parametrize(("command", "done"), [("pause", "paused"), ("stop", "stopped")])
def test_pause_and_stop_of_a_finished_study_say_that_no_trial_was_running(
    console, create_study, storage_url, command, done
):
    study = create_study("digits", num_trials=1, storage=storage_url)
    SimulatedWorker(study.database, study.record).take().finish(0.5)

    said = console(command, "digits").lines

    assert said == [f"Study 'digits': {done}; it was FINISHED, so no trial was running."]
    assert study.status == done.upper()


# --- resume K=V


def test_resume_with_values_changes_the_config_of_later_attempts(console, study, worker):
    study.enqueue({"lr": 0.5, "net/width": 2}, name="base")
    study.pause("base")

    said = console("resume", "digits", "base", "lr=0.01", "net/width=4").lines

    assert said == ["Trial base of 'digits': resumed with lr=0.01 net/width=4."]
    (row,) = trials(console)
    assert row["params"] == {"lr": 0.5, "net": {"width": 2}}
    assert row["changed"] == {"lr": 0.01, "net/width": 4}
    page = console("show", "digits", "0").out
    assert "lr=0.5 net/width=2" in page
    assert "lr=0.01 net/width=4" in page
    assert study.trials_dataframe().changed[0] == {"lr": 0.01, "net/width": 4}
    assert study.trial(0).config == {"lr": 0.01, "net": {"width": 4}}
    worker.claim().finish(0.4)
    shown = console("show", "digits", "0", "--format", "json").json
    assert shown["attempts"][0]["config"] == {"lr": 0.01, "net": {"width": 4}}
    for command in ("best", "status"):
        assert re.search(r"changed +lr=0.01 net/width=4", console(command, "digits").out)
    best = console("best", "digits", "--format", "json").json
    assert (
        best["changed"] == console("status", "digits", "--format", "json").json["best"]["changed"]
    )
    assert best["changed"] == {"lr": 0.01, "net/width": 4}


def test_resume_refuses_values_without_a_trial_and_values_outside_the_space(console, study):
    study.enqueue({"net": {"width": 2}})
    study.pause(0)

    assert "name trials by number" in console("resume", "digits", "lr=0.01", code=2).error
    assert "no parameter 'rl'" in console("resume", "digits", "0", "rl=0.01", code=2).error
    with pytest.raises(InvalidSpec, match="is 7, which is not in"):
        study.resume(0, lr=7)
    study.resume(0, net={"width": 3})
    assert study.trial(0).changed == {"net/width": 3}


# --- retry


@pytest.fixture
def ended(worker):
    """Trials 0 and 1 have failed, trial 2 has completed."""
    for outcome in (Reason.FAILED, Reason.FAILED, Reason.COMPLETED):
        worker.take().finish(0.5, outcome=outcome)


@pytest.mark.usefixtures("ended")
def test_retry_makes_clones_of_the_chosen_trials(console, study):
    assert console("retry", "digits", "0").lines[0] == "Study 'digits': 1 clone, trial 3."
    made = console("retry", "digits", "--errored").lines
    assert made[0] == "Study 'digits': 1 clone, trial 4."
    assert study.retry(select="finished", from_scratch=True) == [5]
    assert console("retry", "digits", "--all").lines == ["Study 'digits': no trial to run again."]

    parents = [(row["number"], row["parent"]) for row in trials(console)]
    assert parents == [(0, None), (1, None), (2, None), (3, 0), (4, 1), (5, 2)]
    page = console("show", "digits", "0", "--format", "json").json
    assert page["clones"] == [3]


def test_clone_in_an_own_loop_goes_on_from_the_checkpoint_of_its_parent(study):
    trial = study.ask()
    trial.report({"loss": 0.5}, checkpoint={"epoch": 1})
    trial.fail(ValueError("no"))
    study.retry(0)

    assert study.trial(1).checkpoint.to_dict() == {"epoch": 1}
    clone = study.ask()
    assert (clone.number, clone.start_step) == (1, 1)
    assert clone.checkpoint.to_dict() == {"epoch": 1}
    clone.report({"loss": 0.4}, checkpoint={"epoch": 2})
    clone.finish()
    assert study.trial(0).checkpoint.to_dict() == {"epoch": 1}
    assert study.trial(1).checkpoint.to_dict() == {"epoch": 2}


def fail_once(config, trial):
    first = trial.checkpoint.to_dict()["epoch"] if trial.checkpoint else 0
    for epoch in range(first + 1, 4):
        trial.report({"loss": 1 / epoch}, checkpoint={"epoch": epoch})
        if epoch == 2:
            raise ValueError("no")


@pytest.mark.nightly
def test_clone_in_a_worker_goes_on_from_the_checkpoint_of_its_parent(create_study, storage_url):
    study = create_study("digits", fail_once, space={"lr": 0.5}, num_trials=1, storage=storage_url)
    with pytest.raises(studydb.StudyFailed):
        study.run()
    study.retry(0)

    study.run()

    steps = study.results_dataframe()[["number", "step"]].to_numpy().tolist()
    assert steps == [[0, 1], [0, 2], [1, 3]]
    assert study.trial(1).reason == "COMPLETED"


@pytest.mark.usefixtures("ended")
def test_retry_in_a_stopped_study_says_that_the_study_must_be_resumed(console, study):
    study.stop()

    said = console("retry", "digits", "0").lines

    assert "The study is STOPPED; its trials run when it is resumed." in said
    assert "  studydb resume digits" in said


@pytest.mark.usefixtures("ended")
@pytest.mark.parametrize("words", [(), ("0", "--all"), ("--errored", "--all")])
def test_retry_without_trials_or_with_two_selections_is_refused(console, words):
    assert (
        "Either name the trials to run again, or"
        in console("retry", "digits", *words, code=2).error
    )


def test_retry_method_refuses_a_wrong_selection_and_a_trial_that_has_not_ended(study):
    with pytest.raises(UsageError, match="Give the numbers"):
        study.retry()
    with pytest.raises(InvalidSpec, match="select is 'failed'; it must be one of 'errored'"):
        study.retry(select="failed")
    with pytest.raises(InvalidSpec, match=r"select is \['errored'\]"):
        study.retry(select=["errored"])
    study.enqueue({})
    with pytest.raises(NotAllowed, match="only an ended trial is run again"):
        study.retry(0)


# --- invalidate


@pytest.mark.usefixtures("ended")
def test_invalidate_hides_a_trial_and_undo_shows_it_again(console, study):
    said = console("invalidate", "digits", "0", "1", "--reason", "wrong labels").lines
    assert said[0] == "Trials 0, 1 of 'digits': invalidated."
    assert "stopped" not in "".join(said)
    assert "  studydb invalidate digits 0 1 --undo" in said
    assert study.best_trial.number == 2
    assert [bool(row["invalidated_at"]) for row in trials(console)] == [True, True, False]
    page = console("show", "digits", "0").out
    assert "Invalidated: wrong labels" in page

    console("invalidate", "digits", "0", "--undo")

    assert study.best_trial.number == 0
    assert list(study.trials_dataframe().number) == [0, 2]


def test_invalidate_says_which_of_the_trials_are_being_stopped(console, database):
    study = arrange.new_study(database, name="digits", num_trials=4)
    worker = SimulatedWorker(database, study)
    for _ in range(2):
        worker.take().finish(0.5)
        worker.take()

    one = console("invalidate", "digits", "0", "1", "--reason", "wrong labels").lines
    undone = console("invalidate", "digits", "0", "1", "--undo").lines
    two = console("invalidate", "digits", "3", "1", "--reason", "wrong labels").lines

    assert one[:2] == [
        "Trials 0, 1 of 'digits': invalidated.",
        "Trial 1 of 'digits' is being stopped.",
    ]
    assert undone == ["Trials 0, 1 of 'digits': valid again."]
    assert two[1] == "Trials 3, 1 of 'digits' are being stopped."


@pytest.mark.usefixtures("ended")
def test_invalidate_wants_a_reason(console, study):
    assert "Say why, by --reason" in console("invalidate", "digits", "0", code=2).error
    with pytest.raises(UsageError, match="Say why"):
        study.invalidate(0)
    with pytest.raises(UsageError, match="Name the trials"):
        study.invalidate(reason="wrong labels")


# --- stop --now


def test_stop_now_says_that_trials_are_killed_and_reaches_the_worker_at_its_next_renewal(
    console, study, worker
):
    run, other = worker.take(), worker.take()

    said = console("stop", "digits", "0", "--now").lines

    assert said == ["Trial 0 of 'digits': stopped; running trials are killed."]
    assert worker.renew(run).held[run.lease.token].at_once
    assert worker.renew(other).held[other.lease.token] is None
    study.stop(now=True)
    assert worker.renew(other).held[other.lease.token].at_once


# --- notes and tags


def test_notes_of_a_study_and_of_a_trial_are_shown(console, study):
    study.enqueue({}, name="base")
    assert console("note", "digits", "new data since Monday").lines == ["Study 'digits': noted."]
    assert console("note", "digits", "base", "odd\x1b[31m curve").lines == [
        "Trial base of 'digits': noted."
    ]
    study.note("second", trial=0)

    page = console("status", "digits").out
    assert "Notes:" in page
    assert "new data since Monday" in page
    shown = console("show", "digits", "0").out
    assert "odd\\x1b[31m curve" in shown
    notes = console("show", "digits", "0", "--format", "json").json["notes"]
    assert [note["text"] for note in notes] == ["odd\x1b[31m curve", "second"]
    assert [note.text for note in study.notes()] == ["new data since Monday"]
    assert [note.text for note in study.notes(trial="base")][-1] == "second"


@pytest.mark.parametrize("text", ["", "  ", "x" * 10_001])
def test_empty_or_long_note_is_refused(study, text):
    with pytest.raises(InvalidName, match="note"):
        study.note(text)


def test_note_of_several_words_must_be_quoted(console, study):
    assert "Quote the text" in console("note", "digits", "0", "odd", "curve", code=2).error


def test_note_command_with_a_trial_but_no_text_is_refused(console, study):
    error = console("note", "digits", "3", code=2).error
    assert "Write the note after the trial: studydb note digits 3 'a text'." in error


def test_tags_are_added_and_removed_in_any_state(console, study, worker, ended):
    study.enqueue({}, name="base", tags=["old"])

    assert console("tag", "digits", "0", "1", "good", "old").lines == [
        "Trials 0, 1 of 'digits': tagged good, old."
    ]
    console("tag", "digits", "base", "good")
    study.tag("base", 1, add=["good", "new"], remove=["old"])

    assert [row["number"] for row in trials(console, "--tag", "good")] == [0, 1, 3]
    assert [row["number"] for row in trials(console, "--tag", "old")] == [0]
    console("tag", "digits", "0", "good", "--remove")
    assert study.trial(0).tags == ("old",)


def test_too_many_tags_or_an_unknown_trial_change_no_tag(console, study):
    study.enqueue({}, tags=[f"t{n}" for n in range(50)])

    with pytest.raises(InvalidName, match="more than 50 tags"):
        study.tag(0, add=["one more"])
    with pytest.raises(studydb.UnknownTrial):
        study.tag(0, 7, remove=["t1"])
    assert "Give tags after the trials" in console("tag", "digits", "0", "1", code=2).error
    assert len(study.trial(0).tags) == 50
    assert rows(study.database, "SELECT count(*) FROM event WHERE kind = 'tagged'") == [(0,)]


# --- clone: a new study with the definition of another study


@pytest.mark.row("B15")
def test_clone_of_a_study_has_its_definition_and_no_trials(console, create_study, storage_url):
    study = create_study(
        "digits",
        space=SPACE,
        mode="max",
        metric="acc",
        num_trials=5,
        max_concurrent=2,
        max_failures=3,
        scheduler=studydb.ASHA(max_t=9),
        searcher=studydb.RandomSearch(seed=7),
        stop={"acc": 0.9},
        storage=storage_url,
    )
    study.extend(num_trials=2)
    study.enqueue({})

    assert console("clone", "digits", "again").lines[0] == (
        "Study 'again': made like 'digits', without trials."
    )

    first, second = (console("show", name, "--format", "json").json for name in ("digits", "again"))
    own = ("name", "study", "uuid", "created_at", "created_by")
    assert {key: value for key, value in first.items() if key not in own} == {
        key: value for key, value in second.items() if key not in own
    }
    assert console("trials", "again", "--format", "json").json == []


def train(config):
    studydb.report({"loss": config["lr"]})


def test_clone_copies_the_study_of_the_handle_although_its_name_now_belongs_to_another_study(
    create_study, handles, storage_url
):
    study = create_study("digits", space={"lr": 0.5}, num_trials=5, storage=storage_url)
    handles(studydb.load_study("digits", storage=storage_url)).rename("old")
    create_study("digits", space={"lr": 0.5}, num_trials=9, storage=storage_url)

    assert handles(study.clone("again")).record.num_trials == 5


@pytest.mark.nightly
def test_clone_is_signed_anew_and_only_the_signer_of_the_study_can_clone_it(
    create_study, handles, storage_url, tmp_path, monkeypatch
):
    study = create_study("digits", train, space={"lr": 0.5}, num_trials=1, storage=storage_url)
    clone = handles(study.clone("again"))
    assert clone.record.trainable.uuid != study.record.trainable.uuid
    assert clone.run()
    assert clone.best_value == 0.5

    monkeypatch.setenv(KEY_FILE, str(tmp_path / "keys of another user"))
    with pytest.raises(NotAllowed, match="runs code that you have not signed"):
        study.clone("third")


def test_clone_refuses_a_name_that_is_taken_or_wrong(study):
    with pytest.raises(StudyExists):
        study.clone("digits")
    with pytest.raises(InvalidName):
        study.clone("a/b")
