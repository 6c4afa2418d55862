"""Own loops save checkpoints. A trial's next attempt goes on from the newest usable checkpoint."""

import errno
import os
import threading
from collections import Counter
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from fleet.workers import eventually
from harness.arrange import SimulatedWorker, change, rows, run_together
from harness.kept_checkpoints import files_below, live_steps, saved_steps

import studydb
from studydb.artifacts import open_store
from studydb.artifacts.checkpoint_files import Saver
from studydb.lease import upload_collector
from studydb.lease.held import HeldAttempt
from studydb.operations.uploads import begin_upload


@pytest.fixture
def study(create_study, storage_url, place):
    return create_study("own", num_trials=1, storage=storage_url, checkpoints=place, max_failures=9)


@pytest.fixture
def study_in_a_folder(create_study, storage_url, tmp_path):
    return create_study(
        "own", num_trials=1, storage=storage_url, checkpoints=str(tmp_path / "store")
    )


def events(study, kind):
    return rows(study.database, f"SELECT data FROM event WHERE kind = '{kind}' ORDER BY id")


def train(trial, *, until):
    """
    Report the steps after the restored step up to `until`, each with a checkpoint.

    Returns:
        The number of steps that the trial has trained; a checkpoint's "count" is the number so far.
    """
    count = 0 if trial.checkpoint is None else trial.checkpoint.to_dict()["count"]
    for step in range(trial.start_step + 1, until + 1):
        count += 1
        trial.report({"loss": 1 / step}, checkpoint={"count": count})
    return count


def damage(study, step):
    """Change the bytes of the checkpoint of a step, in its row or in its file."""
    sql = f"SELECT url FROM checkpoint WHERE step = {step}"
    ((url,),) = rows(study.database, sql)
    if url == "inline:":
        bytes_ = r"'\x00'" if study.database.postgresql else "x'00'"
        change(study.database, f"UPDATE checkpoint SET data = {bytes_} WHERE step = {step}")
    else:
        Path(unquote(urlsplit(url).path)).write_bytes(b"x")


def lose(trial, study):
    """Replace the trial's token, as a claim after the trial's recovery would."""
    change(study.database, f"UPDATE trial SET token = 'other' WHERE number = {trial.number}")


def test_released_trial_goes_on_from_its_newest_dict(study):
    first = study.ask()
    assert (first.checkpoint, first.start_step) == (None, 0)
    train(first, until=3)
    first.release()

    second = study.ask()
    assert (second.attempt, second.checkpoint.step, second.start_step) == (2, 3, 3)
    assert train(second, until=5) == 5
    second.finish()

    assert live_steps(study) == [1, 2, 3, 4, 5]
    assert study.best_trial.checkpoint.to_dict() == {"count": 5}


def test_directory_is_copied_when_it_is_saved_and_when_it_is_restored(study, tmp_path):
    model = tmp_path / "model"
    model.mkdir()
    first = study.ask()
    for text in ("a", "ab"):
        (model / "weights").write_text(text)
        first.report({"loss": 1.0}, checkpoint=model)
    (model / "weights").write_text("later")
    first.release()

    second = study.ask()
    copy = second.checkpoint.path
    assert (copy / "weights").read_text() == "ab"
    (copy / "weights").write_text("mine")
    second.release()
    third = study.ask()

    assert (model / "weights").read_text() == "later"
    assert not copy.exists()
    assert (third.checkpoint.path / "weights").read_text() == "ab"
    assert third.start_step == 2
    with pytest.raises(studydb.CheckpointError, match=r"use its \.path"):
        third.checkpoint.to_dict()
    del third


def test_copy_of_a_directory_is_removed_when_the_trial_handle_is_deleted(study, tmp_path):
    first = study.ask()
    first.report({"loss": 1.0}, checkpoint=tmp_path)
    first.release()

    trial = study.ask()
    copy = trial.checkpoint.path
    assert copy.is_dir()
    del trial

    assert not copy.exists()
    assert not copy.parent.exists()


def test_forked_child_does_not_remove_its_parents_copy_of_a_checkpoint(study, tmp_path):
    first = study.ask()
    first.report({"loss": 1.0}, checkpoint=tmp_path)
    first.release()
    trial = study.ask()

    pid = os.fork()
    if pid == 0:
        trial._checkpoints.remove_copy()
        os._exit(0)
    os.waitpid(pid, 0)

    assert trial.checkpoint.path.is_dir()


def test_asha_by_promotion_trains_each_step_of_each_trial_once(create_study, storage_url):
    study = create_study(
        "promoted",
        num_trials=9,
        storage=storage_url,
        scheduler=studydb.ASHA(max_t=9, reduction_factor=3, type="promotion"),
    )
    trained = []

    def loop():
        while (trial := study.ask()) is not None:
            if trial.checkpoint is not None:
                assert trial.checkpoint.to_dict() == {"step": trial.start_step}
            for step in range(trial.start_step + 1, 10):
                trained.append((trial.number, step))
                loss = trial.number + 1 / step
                if not trial.report({"loss": loss}, checkpoint={"step": step}):
                    break
            trial.finish()

    run_together([loop] * 3)

    assert study.status == "FINISHED"
    last = {trial.number: trial.summary.last_step for trial in study.trials}
    assert last[0] == 9
    assert set(last.values()) <= {1, 3, 9}
    assert list(last.values()).count(1) >= 4
    expected = [(number, step) for number, end in last.items() for step in range(1, end + 1)]
    assert Counter(trained) == Counter(expected)
    live = [(row.number, row.step) for row in study.results_dataframe().itertuples()]
    assert sorted(live) == sorted(expected)


@pytest.mark.row("B10")
@pytest.mark.parametrize("damaged", [[3], [2, 3]])
def test_damaged_checkpoints_are_skipped_when_a_trial_is_restored(study, damaged):
    first = study.ask()
    train(first, until=3)
    first.release()
    for step in damaged:
        damage(study, step)

    second = study.ask()

    assert second.start_step == (2 if damaged == [3] else 0)
    assert len(events(study, "checkpoint corrupt")) == len(damaged)
    assert train(second, until=4) == 4
    second.finish()
    assert live_steps(study) == [1, 2, 3, 4]


@pytest.mark.parametrize("signature", ["unsigned", "of another user"])
def test_checkpoint_that_no_key_of_the_user_signed_is_not_opened(
    study, signature, monkeypatch, tmp_path
):
    first = study.ask()
    train(first, until=2)
    first.release()
    if signature == "unsigned":
        change(study.database, "UPDATE checkpoint SET key_id = NULL, mac = NULL WHERE step = 2")
    else:
        monkeypatch.setenv("STUDYDB_KEY_FILE", str(tmp_path / "another user's keys"))

    second = study.ask()

    assert second.start_step == (1 if signature == "unsigned" else 0)
    found = events(study, "checkpoint corrupt")
    assert len(found) == 2 - second.start_step
    assert "not signed by a key of this user" in str(found[-1])


def test_report_with_a_checkpoint_needs_a_key_file_that_can_be_used(study, monkeypatch, tmp_path):
    trial = study.ask()
    monkeypatch.setenv("STUDYDB_KEY_FILE", str(tmp_path / "a file" / "keys"))
    (tmp_path / "a file").touch()

    with pytest.raises(studydb.UsageError, match="key file"):
        trial.report({"loss": 1.0}, checkpoint={"a": 1})

    assert trial.report({"loss": 1.0})
    trial.finish()
    assert live_steps(study) == [1]
    assert saved_steps(study) == []


def test_trial_whose_checkpoint_cannot_be_verified_is_given_back(study, monkeypatch, tmp_path):
    first = study.ask()
    train(first, until=1)
    first.release()
    (tmp_path / "a file").touch()
    with monkeypatch.context() as patch:
        patch.setenv("STUDYDB_KEY_FILE", str(tmp_path / "a file" / "keys"))
        with pytest.raises(studydb.UsageError, match="key file"):
            study.ask()
    study.close()

    assert study.ask().start_step == 1


def test_trial_is_given_back_if_this_host_lacks_the_store(study_in_a_folder, tmp_path):
    study = study_in_a_folder
    first = study.ask()
    train(first, until=1)
    first.release()

    (tmp_path / "store").rename(tmp_path / "unmounted")
    with pytest.raises(studydb.StudydbError, match=r"on this host: .*Mount it"):
        study.ask()
    assert study.counts.pending == 1
    (tmp_path / "unmounted").rename(tmp_path / "store")

    assert study.ask().start_step == 1
    assert events(study, "checkpoint corrupt") == []


def test_training_goes_on_if_the_store_fails(study_in_a_folder, tmp_path):
    study = study_in_a_folder
    trial = study.ask()
    train(trial, until=1)
    (tmp_path / "store").rename(tmp_path / "elsewhere")
    (tmp_path / "store").write_text("where a directory should be")

    text = r"trial 0 could not be stored: .* is not a directory on this host"
    with pytest.warns(RuntimeWarning, match=text) as warned:
        assert trial.report({"loss": 1.0}, checkpoint={"a": 1})
    assert trial.report({"loss": 1.0}, checkpoint={"a": 1})  # no second warning within a minute
    (tmp_path / "store").unlink()
    (tmp_path / "elsewhere").rename(tmp_path / "store")
    trial.release()

    assert [Path(one.filename) for one in warned] == [Path(__file__)]
    assert len(events(study, "checkpoint failed")) == 1
    assert live_steps(study) == [1, 2, 3]
    assert study.ask().start_step == 1


@pytest.mark.nightly
def test_warning_of_an_unusable_cache_names_the_line_of_the_user(
    create_study, sqlite_url, s3_server, monkeypatch, tmp_path
):
    (tmp_path / "file").touch()
    monkeypatch.setenv("STUDYDB_CACHE_DIR", str(tmp_path / "file"))
    url = f"s3://{s3_server.bucket}/models"
    study = create_study("own", num_trials=1, storage=sqlite_url, checkpoints=url)

    with study.ask() as trial, pytest.warns(RuntimeWarning, match="cannot hold the") as warned:
        assert trial.report({"loss": 1.0}, checkpoint={"a": 1})

    assert [Path(one.filename) for one in warned] == [Path(__file__)]
    assert len(saved_steps(study)) == 1


def test_checkpoint_too_large_for_the_database_is_not_stored(create_study, storage_url):
    study = create_study("own", num_trials=1, storage=storage_url, checkpoints="inline:")

    with study.ask() as trial, pytest.warns(RuntimeWarning, match="checkpoints=URL"):
        assert trial.report({"loss": 1.0}, checkpoint={"w": bytes(17 << 20)})

    assert (live_steps(study), saved_steps(study)) == ([1], [])


@pytest.mark.parametrize(
    ("checkpoint", "error", "text"),
    [
        (3, studydb.UsageError, "a dict or a directory"),
        ("no such directory", studydb.CheckpointError, "does not exist"),
        ("\ud800", studydb.CheckpointError, r"The checkpoint '\\ud800' does not exist"),
        ("x" * 5000, studydb.CheckpointError, "cannot be read|does not exist"),
        ({"lock": threading.Lock()}, studydb.CheckpointError, "cannot be pickled"),
    ],
)
def test_invalid_checkpoint_raises_and_reports_nothing(study, checkpoint, error, text):
    trial = study.ask()

    with pytest.raises(error, match=text):
        trial.report({"loss": 1.0}, checkpoint=checkpoint)

    assert trial.report({"loss": 2.0}, checkpoint={"a": 1})
    trial.finish()
    assert live_steps(study) == [1]


def test_newest_two_checkpoints_are_kept(study, place):
    trial = study.ask()
    train(trial, until=5)

    assert saved_steps(study) == [4, 5]
    if place == "inline:":
        sql = "SELECT count(*) FROM checkpoint WHERE data IS NOT NULL"
        assert rows(study.database, sql) == [(2,)]
    else:
        assert len(files_below(place)) == 2
    assert rows(study.database, "SELECT count(*) FROM checkpoint") == [(2,)]


def test_checkpoint_is_stored_with_the_report_at_which_a_rule_stops_the_trial(
    create_study, storage_url
):
    study = create_study("own", num_trials=1, storage=storage_url, stop={"training_iteration": 2})
    trial = study.ask()
    train(trial, until=2)

    assert trial.report({"loss": 1.0}, checkpoint={"a": 1}) is False
    assert saved_steps(study) == [1, 2]
    assert study.trial(0).reason == "RULE_STOPPED"
    assert study.trial(0).checkpoint.step == 2


@pytest.mark.parametrize("checkpoint", [None, {"count": 2}])
def test_report_that_says_done_completes_the_trial(study, checkpoint):
    trial = study.ask()
    train(trial, until=1)
    study.pause(0)

    assert trial.report({"loss": 1.0, "done": True}, checkpoint=checkpoint) is False

    ended = study.trial(0)
    assert (ended.state, ended.reason, ended.summary.last_step) == ("TERMINATED", "COMPLETED", 2)
    assert saved_steps(study) == ([1] if checkpoint is None else [1, 2])
    assert trial.report({"loss": 1.0}) is False
    assert "done" not in study.results_dataframe()


def test_checkpoint_is_stored_with_the_report_at_which_a_person_pauses_the_trial(study):
    trial = study.ask()
    train(trial, until=1)
    study.pause(0)

    assert trial.report({"loss": 1.0}, checkpoint={"count": 2}) is False
    assert (study.trial(0).state, saved_steps(study)) == ("PAUSED", [1, 2])
    study.resume(0)
    assert study.ask().start_step == 2


def test_report_of_an_attempt_that_lost_its_trial_leaves_no_checkpoint(study, place):
    trial = study.ask()
    train(trial, until=1)
    lose(trial, study)

    with pytest.raises(studydb.LeaseLost):
        trial.report({"loss": 1.0}, checkpoint={"a": 1})

    assert trial.report({"loss": 1.0}, checkpoint={"a": 1}) is False
    assert (live_steps(study), saved_steps(study)) == ([1], [1])
    assert place == "inline:" or len(files_below(place)) == 1


def test_trial_is_not_handed_out_if_it_is_lost_while_its_checkpoint_is_restored(study):
    first = study.ask()
    train(first, until=1)
    first.release()
    damage(study, 1)
    original = HeldAttempt.__init__

    def init(held, database, record, claim, **more):
        original(held, database, record, claim, **more)
        if claim.lease.attempt == 2:
            lose(first, study)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(HeldAttempt, "__init__", init)
        assert study.ask() is None  # the only trial runs elsewhere

    assert events(study, "checkpoint corrupt") == []


def test_save_during_which_the_trial_is_given_back_leaves_no_bytes(study, place, monkeypatch):
    trial = study.ask()
    train(trial, until=1)
    save = Saver.save

    def give_back_and_save(*args, **given):
        study._loop.close()
        return save(*args, **given)

    monkeypatch.setattr(Saver, "save", give_back_and_save)
    with pytest.raises(studydb.NotAllowed, match="given back, for example because the study was"):
        trial.report({"loss": 1.0}, checkpoint={"a": 1})

    assert saved_steps(study) == [1]
    assert place == "inline:" or len(files_below(place)) == 1
    assert study.counts.pending == 1


def test_no_thread_ends_the_attempt_between_the_flush_and_the_insert_of_a_checkpoint(
    study, monkeypatch
):
    trial = study.ask()
    flush, ending = HeldAttempt.flush, []

    def flush_and_end(held, **given):
        flush(held, **given)
        if not ending:
            ending.append(threading.Thread(target=held.end, args=(studydb.Reason.COMPLETED,)))
            ending[0].start()
            ending[0].join(0.3)

    monkeypatch.setattr(HeldAttempt, "flush", flush_and_end)
    trial.report({"loss": 1.0}, checkpoint={"a": 1})
    ending[0].join()

    assert saved_steps(study) == [1]
    assert study.trial(0).reason == "COMPLETED"


def test_finish_waits_until_the_report_of_another_thread_has_saved(study, monkeypatch):
    trial = study.ask()
    save, ending = Saver.save, []

    def finish_and_save(*args, **given):
        ending.append(threading.Thread(target=trial.finish))
        ending[0].start()
        ending[0].join(0.3)
        return save(*args, **given)

    monkeypatch.setattr(Saver, "save", finish_and_save)
    assert trial.report({"loss": 1.0}, checkpoint={"a": 1})
    ending[0].join()

    assert saved_steps(study) == [1]
    assert study.trial(0).reason == "COMPLETED"


def test_threads_report_and_save_one_trial_until_it_is_stopped(create_study, storage_url):
    study = create_study("own", num_trials=1, storage=storage_url, stop={"training_iteration": 12})
    trial = study.ask()

    def report():
        n = 0
        while trial.report({"loss": 1.0}, checkpoint={"n": n}):
            n += 1
        return n

    counts = run_together([report] * 4)

    assert sum(counts) == 11
    assert live_steps(study) == list(range(1, 13))
    assert saved_steps(study) == [11, 12]
    assert study.trial(0).reason == "RULE_STOPPED"


def test_loop_without_checkpoints_needs_no_key_file(study, monkeypatch, tmp_path):
    (tmp_path / "a file").touch()
    monkeypatch.setenv("STUDYDB_KEY_FILE", str(tmp_path / "a file" / "keys"))

    with study.ask() as trial:
        assert trial.report({"loss": 1.0})

    assert study.trial(0).reason == "COMPLETED"


def test_ask_returns_a_trial_that_a_person_has_paused_at_a_rung_and_then_resumed(
    create_study, storage_url
):
    study = create_study(
        "resumed",
        scheduler=studydb.OneEpoch(i=1, top_k=1, max_t=3),
        num_trials=1,
        storage=storage_url,
    )
    trial = study.ask()
    trial.report({"loss": 0.1})
    trial.finish()
    study.pause(0)
    assert study.ask() is None
    study.resume(0)

    again = study.ask()
    again.report({"loss": 0.1})
    again.finish()
    assert again.number == 0


@pytest.mark.row("C3")
def test_training_goes_on_when_the_quota_is_full_and_status_says_what_to_type(
    create_study, storage_url, tmp_path, console
):
    study = create_study(
        "full", num_trials=2, storage=storage_url, checkpoints=str(tmp_path / "s"), keep="quota=400"
    )
    first, second = study.ask(), study.ask()
    first.report({"loss": 1.0}, checkpoint={"data": bytes(250)})

    with pytest.warns(RuntimeWarning, match="does not fit into the quota of 400"):
        second.report({"loss": 2.0}, checkpoint={"data": bytes(250)})
    second.report({"loss": 0.5})
    kept_before = len(files_below(tmp_path / "s"))
    first.finish()
    second.report({"loss": 0.4}, checkpoint={"data": bytes(250)})
    second.finish()

    shown = console("status", "full").out
    assert [trial.best_value for trial in study.trials] == [1.0, 0.4]
    assert kept_before == 1
    assert len(files_below(tmp_path / "s")) == 1
    assert study.trial(0).checkpoint is None
    assert study.trial(1).checkpoint.to_dict() == {"data": bytes(250)}
    assert "`studydb set full keep=…`" in " ".join(shown.split())
    assert "of 400 B" in shown


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EDQUOT, errno.EIO])
def test_training_goes_on_if_the_disk_of_the_store_is_full_or_fails(
    study_in_a_folder, console, monkeypatch, number
):
    study, fsync = study_in_a_folder, os.fsync
    trial = study.ask()
    trial.report({"loss": 1.0}, checkpoint={"step": 1})
    with monkeypatch.context() as full:
        full.setattr(os, "fsync", failing_with(number))
        with pytest.warns(RuntimeWarning, match=os.strerror(number)):
            trial.report({"loss": 0.5}, checkpoint={"step": 2})
    assert os.fsync is fsync
    trial.report({"loss": 0.4}, checkpoint={"step": 3})
    trial.finish()

    assert saved_steps(study) == [1, 3]
    assert live_steps(study) == [1, 2, 3]
    assert os.strerror(number) in console("status", "own").out


def failing_with(number):
    def fsync(_descriptor):
        raise OSError(number, os.strerror(number))

    return fsync


def test_own_loop_deletes_uploads_that_ended_attempts_have_left(
    create_study, storage_url, tmp_path, monkeypatch
):
    """An attempt stored a checkpoint's bytes, and ended without inserting the checkpoint's row."""
    monkeypatch.setattr(upload_collector, "SETTLED_S", 0.0)
    store = tmp_path / "store"
    study = create_study("own", num_trials=2, storage=storage_url, checkpoints=str(store))
    dead = SimulatedWorker(study.database, study.record).take()
    saver = Saver(str(store), study_uuid=study.record.uuid, trial_uuid=dead.claimed.uuid, attempt=1)
    begun = saver.begin(step=1)
    open_store(str(store)).add_study(study.record.uuid)
    begin_upload(study.database, lease=dead.lease, uuid=begun.uuid, url=begun.url)
    saver.save(b"bytes", step=1, upload=begun)
    dead.finish(0.5)
    written = len(files_below(store))

    with study.ask() as trial:
        trial.report({"loss": 0.5})
        study._loop._worker._after_beat()
        eventually(lambda: rows(study.database, "SELECT count(*) FROM upload") == [(0,)])

    assert (written, files_below(store)) == (1, [])
