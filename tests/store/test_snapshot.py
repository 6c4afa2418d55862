"""A snapshot: all that one reader sees is of the moment of its first read."""

from contextlib import closing

from harness.arrange import enqueued, new_study

from studydb.db import connect

COUNT = "SELECT count(*) FROM trial"


def assert_reads_are_of_one_moment(database):
    study = new_study(database)
    with database.begin(write=False, snapshot=True) as txn:
        before = txn.raw(COUNT)
        enqueued(database, study)
        assert txn.raw(COUNT) == before

    with database.begin(write=False) as txn:
        assert txn.raw(COUNT) != before


def test_reads_of_a_snapshot_see_what_the_first_one_saw(database):
    assert_reads_are_of_one_moment(database)


def test_reads_of_a_snapshot_do_so_with_the_settings_for_a_transaction_pooler(postgres_url):
    with closing(connect(f"{postgres_url}&pooler=transaction")) as database:
        assert_reads_are_of_one_moment(database)
