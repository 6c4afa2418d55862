"""PostgreSQL's schemas: in which one the tables are made, and errors about schemas and views."""

from contextlib import closing

import pytest
import sqlalchemy as sa
from harness import postgres
from harness.arrange import SimulatedWorker, change, new_study, rows

from studydb.analysis.wide import make_wide_views
from studydb.db import connect, migrate
from studydb.domain.errors import StorageError
from studydb.study import delete_study

SCHEMAS = (
    "SELECT DISTINCT nspname FROM pg_class JOIN pg_namespace AS of ON of.oid = relnamespace "
    "WHERE relname = ANY(%s)"
)


def schemas_of_tables(url):
    with postgres.connect(url) as connection:
        names = ["study", "trial", "lineage", "v_trial"]
        return [name for (name,) in connection.execute(SCHEMAS, (names,))]


@pytest.fixture
def execute(empty_postgres_url):
    def run(*statements):
        with postgres.connect(empty_postgres_url) as connection:
            for statement in statements:
                connection.execute(statement)

    return run


def test_upgrade_changes_the_tables_that_exist_although_the_user_has_a_new_schema(
    empty_postgres_url, execute
):
    migrate.upgrade(empty_postgres_url)
    migrate.downgrade(empty_postgres_url, "0005")
    execute("DO $$ BEGIN EXECUTE format('CREATE SCHEMA %I', current_user); END $$")

    assert migrate.upgrade(empty_postgres_url) == "0005"

    assert schemas_of_tables(empty_postgres_url) == ["public"]
    migrate.check(empty_postgres_url)


def test_schema_may_have_a_name_that_needs_quotes(empty_postgres_url, execute):
    execute('CREATE SCHEMA "My-Studies"')
    url = f"{empty_postgres_url}&options=-csearch_path%3D%22My-Studies%22"

    assert migrate.upgrade(url) == ""

    assert schemas_of_tables(empty_postgres_url) == ["My-Studies"]
    migrate.downgrade(url, "base")
    assert schemas_of_tables(empty_postgres_url) == []


def test_error_about_a_missing_schema_names_the_search_path(empty_postgres_url):
    url = f"{empty_postgres_url}&options=-csearch_path%3Dnowhere"

    with pytest.raises(StorageError, match=r"no schema has been selected.*correct the search_path"):
        migrate.upgrade(url)


def test_error_about_a_view_that_uses_a_wide_view_names_both(postgres_url):
    with closing(connect(postgres_url)) as database:
        study = new_study(database, name="digits")
        run = SimulatedWorker(database, study).take()
        run.report(0.5)
        run.finish()
        make_wide_views(database, study)
        change(database, "CREATE VIEW dashboard AS SELECT number FROM v_trial_digits")

        with pytest.raises(StorageError, match=r"dashboard depends on view v_trial_digits\). Drop"):
            delete_study("digits", storage=postgres_url)

        change(database, "DROP VIEW dashboard")
        delete_study("digits", storage=postgres_url)
        assert rows(database, "SELECT name FROM study") == []


def test_migration_leaves_no_lock_and_no_setting_on_a_connection_that_others_use(postgres_url):
    """Behind a pooler, other programs get the connection next."""
    with closing(connect(postgres_url)) as database:
        engine = sa.create_engine(database.secret_url, poolclass=sa.pool.StaticPool)
    look = (
        "SELECT (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = "
        "pg_backend_pid()), current_setting('lock_timeout'), current_setting('search_path')"
    )
    with engine.connect() as connection:
        before = connection.exec_driver_sql(look).one()

    with migrate._locked_postgresql(engine) as connection:
        assert connection.exec_driver_sql(look).one() == (1, "0", "public")

    with engine.connect() as connection:
        assert connection.exec_driver_sql(look).one() == before == (0, "0", before[2])
    engine.dispose()
