"""All reads in a snapshot see the database as it was at the first read."""

from contextlib import contextmanager
from uuid import uuid4

import pytest
from harness.arrange import SimulatedWorker, enqueued, new_request, new_study
from harness.settings_requests import relocate, revise

from studydb.domain.trainable import Trainable, TrainableKind
from studydb.operations.overview import read_overview
from studydb.operations.reads import best_trials, listed_trials
from studydb.operations.refresh import refreshed

COUNT = "SELECT count(*) FROM trial"


def assert_all_reads_see_the_same_rows(database):
    study = new_study(database)
    with database.begin(write=False, snapshot=True) as txn:
        before = txn.raw(COUNT)
        enqueued(database, study)
        assert txn.raw(COUNT) == before

    with database.begin(write=False) as txn:
        assert txn.raw(COUNT) != before


def test_all_reads_of_a_snapshot_see_the_same_rows(database):
    assert_all_reads_see_the_same_rows(database)


def test_all_reads_of_a_snapshot_see_the_same_rows_with_the_settings_for_a_pooler(
    postgres_url, opened
):
    assert_all_reads_see_the_same_rows(opened(f"{postgres_url}&pooler=transaction"))


def reported(database, study, loss):
    run = SimulatedWorker(database, study).take()
    run.report(loss)
    return run


def after_the_first_read(reader, action):
    return before_read(reader, 2, action)


@contextmanager
def before_read(reader, number, action):
    """Run `action` before read `number` of the reader, counted from 1; this read must happen."""
    reads = []

    def observe(sql):
        if not sql.startswith(("BEGIN", "SET", "COMMIT", "ROLLBACK")):
            reads.append(sql)
            if len(reads) == number:
                action()

    reader.observer = observe
    yield
    assert len(reads) >= number


@pytest.fixture
def writer(postgres_url, opened):
    return opened(postgres_url)


@pytest.fixture
def reader(postgres_url, opened):
    return opened(postgres_url)


def test_best_trial_that_ends_during_a_listing_stays_in_the_listing(writer, reader):
    study = new_study(writer)
    for loss in (5.0, 4.0):
        reported(writer, study, loss).finish()
    best = reported(writer, study, 0.1)

    with after_the_first_read(reader, best.finish):
        found = listed_trials(reader, study, best_first=True)

    assert [row.number for row in found] == [2, 1, 0]


def test_best_trial_that_ends_during_a_read_is_found(writer, reader):
    study = new_study(writer)
    reported(writer, study, 5.0).finish()
    best = reported(writer, study, 0.1)

    with after_the_first_read(reader, best.finish):
        found = best_trials(reader, study)

    assert [row.number for row in found] == [1]


def test_counts_and_trials_of_an_overview_come_from_one_snapshot(writer, reader):
    study = new_study(writer)
    running = reported(writer, study, 0.5)

    with after_the_first_read(reader, running.finish):
        overview = read_overview(reader, study)

    assert overview.row.running == overview.progress.counts.running == 1
    assert len(overview.unfinished) == 1


def described(name):
    return Trainable(str(uuid4()), TrainableKind.IMPORT, name, "/nowhere", "3.11")


def test_refresh_reads_the_trainable_and_the_stores_of_a_study_from_one_snapshot(writer, reader):
    study = new_study(writer, trainable=described("first:train"), checkpoints="file:///first")
    revise(writer, study, described("second:train"), new_request())

    def change():
        relocate(writer, study, "file:///third", new_request())
        revise(writer, study, described("third:train"), new_request())

    # Read 1 finds that the trainable has changed. Reads 2 and 3 are in one snapshot.
    with before_read(reader, 3, change):
        found = refreshed(reader, study)

    assert (found.trainable.name, found.checkpoints) == ("second:train", "file:///first")
