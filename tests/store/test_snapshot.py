"""A snapshot: all that one reader sees is of the moment of its first read."""

from contextlib import closing

from harness.arrange import SimulatedWorker, enqueued, new_study

from studydb.db import connect
from studydb.operations.overview import read_overview
from studydb.operations.reads import best_trials, listed_trials

COUNT = "SELECT count(*) FROM trial"


def assert_reads_are_of_one_moment(database):
    study = new_study(database)
    with database.begin(write=False, snapshot=True) as txn:
        before = txn.raw(COUNT)
        enqueued(database, study)
        assert txn.raw(COUNT) == before

    with database.begin(write=False) as txn:
        assert txn.raw(COUNT) != before


def test_reads_of_a_snapshot_are_of_one_moment(database):
    assert_reads_are_of_one_moment(database)


def test_reads_of_a_snapshot_are_of_one_moment_with_the_settings_for_a_pooler(postgres_url):
    with closing(connect(f"{postgres_url}&pooler=transaction")) as database:
        assert_reads_are_of_one_moment(database)


def judged(database, study, loss):
    run = SimulatedWorker(database, study).take()
    run.report(loss)
    return run


def after_the_first_read(reader, action):
    """Let something happen between two statements of a reader, once."""
    seen = []

    def observe(sql):
        seen.append(sql)
        n_reads = sum(not text.startswith(("BEGIN", "SET")) for text in seen)
        if n_reads == 2 and action is not None:
            seen.append("BEGIN")
            action()

    reader.observer = observe


def test_best_trial_that_ends_during_a_listing_stays_in_it(postgres_url):
    with closing(connect(postgres_url)) as database, closing(connect(postgres_url)) as reader:
        study = new_study(database)
        for loss in (5.0, 4.0):
            judged(database, study, loss).finish()
        best = judged(database, study, 0.1)
        after_the_first_read(reader, best.finish)

        found = listed_trials(reader, study, best_first=True)

        assert [row.number for row in found] == [2, 1, 0]


def test_best_trial_that_ends_during_the_read_is_found(postgres_url):
    with closing(connect(postgres_url)) as database, closing(connect(postgres_url)) as reader:
        study = new_study(database)
        judged(database, study, 5.0).finish()
        best = judged(database, study, 0.1)
        after_the_first_read(reader, best.finish)

        assert [row.number for row in best_trials(reader, study)] == [1]


def test_counts_and_trials_of_an_overview_are_of_one_moment(postgres_url):
    with closing(connect(postgres_url)) as database, closing(connect(postgres_url)) as reader:
        study = new_study(database)
        running = judged(database, study, 0.5)
        after_the_first_read(reader, running.finish)

        overview = read_overview(reader, study)

        assert overview.row.running == overview.progress.counts.running == 1
        assert len(overview.unfinished) == 1
