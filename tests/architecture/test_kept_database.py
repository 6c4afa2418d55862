"""The PostgreSQL database that the tests of `operations/` use one after the other."""

from contextlib import closing

import psycopg
import pytest
from harness import postgres
from harness.arrange import dump, new_study
from harness.kept_database import KeptDatabase


@pytest.fixture
def kept(postgres_server, postgres_template, administration):
    with closing(KeptDatabase(postgres_server, postgres_template, administration)) as kept:
        yield kept


def test_next_test_gets_the_same_database_without_rows_and_its_ids_begin_again(kept):
    url = kept.url()
    first = new_study(kept.opened())
    kept.opened().clock = kept.opened().observer = print

    assert kept.url() == url
    assert not any(dump(kept.opened()).values())
    assert new_study(kept.opened()).id == first.id
    assert kept.opened().clock is kept.opened().observer is None


@pytest.mark.parametrize(
    "change",
    [
        "DROP INDEX trial_params",
        "ALTER TABLE trial DROP COLUMN name CASCADE",
        "GRANT SELECT ON study TO PUBLIC",
        "UPDATE studydb_version SET version_num = '0001'",
        "ANALYZE study",
    ],
)
def test_database_is_replaced_if_a_test_has_changed_more_than_rows(kept, change):
    url = kept.url()
    new_study(kept.opened())
    with closing(postgres.connect(url)) as session:
        session.execute(change)

    assert kept.url() != url
    assert not any(dump(kept.opened()).values())


def test_database_is_replaced_if_a_test_has_ended_all_its_sessions(kept):
    url = kept.url()
    new_study(kept.opened())
    with closing(postgres.connect(url)) as session:
        session.execute(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )

    assert kept.url() != url
    assert new_study(kept.opened()).id


def test_sessions_of_the_last_test_are_ended_although_they_hold_locks(kept):
    url = kept.url()
    new_study(kept.opened())
    with closing(postgres.connect(url)) as left:
        left.execute("BEGIN")
        left.execute("LOCK TABLE study")

        assert kept.url() == url
        with pytest.raises(psycopg.OperationalError):
            left.execute("SELECT 1")
