"""
Upgrades and downgrades: which rows and rights they keep, and when they are refused.

The migrated schema equals the schema that METADATA describes.
"""

import re
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from uuid import uuid4

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from harness import postgres
from harness.arrange import SimulatedWorker, change, enqueued, new_request, new_study, rows
from harness.concurrent import is_waiting_for_a_lock

from studydb.db import connect, migrate, revisions
from studydb.db.metadata import METADATA
from studydb.db.migrate import begin_immediate
from studydb.domain.errors import SchemaTooOld, StorageError, StorageMissing, UsageError
from studydb.domain.life.states import Reason
from studydb.domain.trainable import Trainable, TrainableKind
from studydb.operations import control
from studydb.operations.enqueue import enqueue
from studydb.operations.reads import list_trials
from studydb.schedulers import ASHA

FOREIGN_TABLE = "CREATE TABLE trial_params (param_id INTEGER PRIMARY KEY)"
"""SQL that makes a table; Optuna has a table, and studydb an index, with this table's name."""


def test_database_of_another_program_that_uses_a_name_of_studydb_is_refused(empty_storage_url):
    with closing(connect(empty_storage_url, check=False)) as database:
        if not database.postgresql:
            database.path.touch()
        with database.engine.begin() as connection:
            connection.exec_driver_sql(FOREIGN_TABLE)

        for use in (migrate.upgrade, connect):
            with pytest.raises(StorageError, match="another program: it has 'trial_params'"):
                use(empty_storage_url)

        with database.engine.begin() as connection:
            assert sa.inspect(connection).get_table_names() == ["trial_params"]


VERSIONS = Path(__file__).parents[2] / "alembic" / "versions"


def fill(database):
    """Add a study with three trials, and rows in most other tables; return the study."""
    signed = {"key": "mac"}
    trainable = Trainable(
        str(uuid4()), TrainableKind.IMPORT, "module:train", "/nowhere", "3.11", None, signed
    )
    study = new_study(database, scheduler=ASHA(max_t=9), max_failures=1, trainable=trainable)
    worker = SimulatedWorker(database, study)
    run = worker.ask()
    run.report(0.5)
    run.save()
    run.finish(outcome=Reason.FAILED)
    worker.ask()
    enqueued(database, study)
    control.extend(database, study, new_request(), n_more=1)
    for table in ("trial", "attempt", "result", "checkpoint", "rung_entry", "event", "counter"):
        assert rows(database, f"SELECT count(*) FROM {table}") != [(0,)]
    return study


def tables(storage):
    with closing(connect(storage, check=False)) as database:
        found = sa.inspect(database.engine)
        return set(found.get_table_names()), set(found.get_view_names())


@pytest.mark.slow
def test_database_with_rows_can_be_upgraded_downgraded_and_upgraded_again(empty_storage_url):
    before = migrate.upgrade(empty_storage_url)
    up = tables(empty_storage_url)
    with closing(connect(empty_storage_url)) as database:
        fill(database)

    migrate.downgrade(empty_storage_url, "base")
    down = tables(empty_storage_url)
    after_down = migrate.current(empty_storage_url)
    before_second_up = migrate.upgrade(empty_storage_url)

    assert before == after_down == before_second_up == ""
    assert up[0] == set(METADATA.tables) | {revisions.TABLE}
    assert {"v_study", "v_trial", "v_result", "v_attempt", "v_checkpoint", "v_worker"} <= up[1]
    assert down == ({revisions.TABLE}, set())
    assert tables(empty_storage_url) == up
    with closing(connect(empty_storage_url)) as database:
        assert len(list_trials(database, fill(database))) == 3


@pytest.mark.slow
def test_study_continues_with_its_next_draw_after_an_upgrade_from_the_first_revision(
    storage_url, database
):
    worker = SimulatedWorker(database, fill(database))
    database.close()
    migrate.downgrade(storage_url, "0001")
    with pytest.raises(SchemaTooOld, match=f"needs {revisions.HEAD}"):
        connect(storage_url)

    assert migrate.upgrade(storage_url) == "0001"
    worker.ask().finish(0.5)

    asked = "SELECT draw FROM trial WHERE draw IS NOT NULL ORDER BY draw"
    assert rows(database, asked) == [(0,), (1,), (2,)]


@pytest.mark.slow
@pytest.mark.parametrize("table", ["study", "trial", "trainable", "checkpoint", "worker"])
def test_row_with_an_invalid_uuid_stops_the_upgrade_and_nothing_changes(
    storage_url, database, table
):
    fill(database)
    database.close()
    migrate.downgrade(storage_url, "0003")
    planted = "../../../home/ada/thesis_______________"[:36]
    change(
        database, f"UPDATE {table} SET uuid = '{planted}' WHERE id = (SELECT min(id) FROM {table})"
    )
    before = shape(database), dump_of(database)

    with pytest.raises(
        StorageError,
        match=f"The table {table} has rows whose uuid is not a valid UUID. The first of them, as id .uuid.: 1 .'../../../h",
    ):
        migrate.upgrade(storage_url)

    assert migrate.current(storage_url) == "0003"
    assert (shape(database), dump_of(database)) == before


def dump_of(database):
    found = sorted(set(sa.inspect(database.engine).get_table_names()))
    return {table: sorted(map(str, rows(database, f"SELECT * FROM {table}"))) for table in found}


@pytest.mark.slow
def test_tables_rebuilt_by_migration_0004_keep_their_rows_and_reuse_no_id(storage_url, database):
    study = fill(database)
    change(database, "DELETE FROM checkpoint")
    for added_by_0007 in ("UPDATE trial SET config = NULL", "DELETE FROM proposal"):
        change(database, added_by_0007)
    kept = dump_of(database)
    migrate.downgrade(storage_url, "0003")

    migrate.upgrade(storage_url)

    assert dump_of(database) == kept
    run = SimulatedWorker(database, study).take()
    run.report(0.5)
    run.save()
    assert rows(database, "SELECT id FROM checkpoint") == [(2,)]


def test_names_and_tags_are_kept_by_a_downgrade_and_an_upgrade(storage_url, database):
    study = new_study(database)
    enqueue(database, study, {}, new_request(), name="base line", tags=["old", "a"])
    database.close()

    migrate.downgrade(storage_url, "0008")
    with pytest.raises(Exception, match="name"):
        rows(database, "SELECT name FROM v_trial")
    migrate.upgrade(storage_url)

    (trial,) = list_trials(database, study)
    assert (trial.name, trial.tags) == ("base line", ("a", "old"))
    assert rows(database, "SELECT name FROM v_trial") == [("base line",)]
    assert SimulatedWorker(database, study).claim().claimed.tags == ("a", "old")


def test_upgrade_sets_started_at_of_a_study_to_the_start_of_its_first_worker(storage_url, database):
    study, without_workers = new_study(database), new_study(database)
    first, _ = SimulatedWorker(database, study), SimulatedWorker(database, study)
    database.close()

    migrate.downgrade(storage_url, "0009")
    migrate.upgrade(storage_url)

    (started,) = rows(database, f"SELECT started_at FROM worker WHERE id = {first.id}")
    assert rows(database, f"SELECT started_at FROM study WHERE id = {study.id}") == [started]
    assert rows(database, f"SELECT started_at FROM study WHERE id = {without_workers.id}") == [
        (None,)
    ]


def test_downgrade_is_refused_while_rows_have_values_that_the_older_schema_lacks(
    storage_url, database
):
    fill(database)
    change(database, "UPDATE attempt SET reason = 'OUT_OF_MEMORY' WHERE reason = 'FAILED'")
    database.close()

    with pytest.raises(StorageError, match="The table attempt has 1 rows with a reason that"):
        migrate.downgrade(storage_url, "0005")

    assert migrate.current(storage_url) == revisions.HEAD


def test_downgrade_is_refused_while_a_trial_waits_for_its_promotion(storage_url, database):
    study = new_study(database, scheduler=ASHA(max_t=9, type="promotion"))
    SimulatedWorker(database, study).ask().report(0.5)
    database.close()

    with pytest.raises(StorageError, match="1 trials wait at a rung for their promotion"):
        migrate.downgrade(storage_url, "0005")

    assert migrate.current(storage_url) == revisions.HEAD


INVALID_UUIDS = ["", "x", "/etc", "..", "../../../../../../../../../home/ada", "A" * 36, "a" * 37]


@pytest.mark.parametrize("table", ["study", "trial", "trainable", "checkpoint", "worker"])
def test_database_refuses_an_invalid_uuid(database, table):
    fill(database)

    for text in INVALID_UUIDS:
        with pytest.raises(Exception, match=f"{table}_uuid_check"):
            change(database, f"UPDATE {table} SET uuid = '{text}'")


def test_upgrade_of_an_upgraded_database_changes_nothing(storage_url, database):
    study = fill(database)

    assert migrate.upgrade(storage_url) == revisions.HEAD
    assert migrate.current(storage_url) == revisions.HEAD
    migrate.check(storage_url)
    assert len(list_trials(database, study)) == 3


@pytest.mark.parametrize(
    ("sql", "what"),
    [
        ("ALTER TABLE note DROP COLUMN text", "the column note.text"),
        ("DROP INDEX note_trial", "the index note_trial"),
        ("DROP VIEW v_checkpoint", "the view v_checkpoint"),
        ("DROP TABLE note", "the table note"),
    ],
)
def test_error_of_check_names_what_the_schema_lacks(storage_url, database, sql, what):
    change(database, sql)

    with pytest.raises(StorageError, match=f"but lacks {what}: a restore ended early"):
        migrate.check(storage_url)


def test_upgrade_and_downgrade_keep_the_tables_of_other_programs(empty_storage_url):
    if empty_storage_url.startswith("sqlite"):
        Path(empty_storage_url.removeprefix("sqlite:///")).touch()
    database = connect(empty_storage_url, check=False)
    change(database, "CREATE TABLE alembic_version (version_num text)")
    change(database, "INSERT INTO alembic_version VALUES ('mlflow')")

    migrate.upgrade(empty_storage_url)
    migrate.downgrade(empty_storage_url, "base")

    assert rows(database, "SELECT version_num FROM alembic_version") == [("mlflow",)]
    database.close()


@pytest.mark.parametrize("revision", ["0000", "head", "0001 "])
def test_downgrade_to_an_unknown_revision_is_refused(storage_url, revision):
    known = ", ".join((*revisions.REVISIONS, "base"))
    with pytest.raises(UsageError, match=f"no revision '{revision}'; there are {known}"):
        migrate.downgrade(storage_url, revision)

    assert migrate.current(storage_url) == revisions.HEAD


def test_error_of_connect_after_a_downgrade_to_base_names_the_command_db_upgrade(storage_url):
    migrate.downgrade(storage_url, "base")

    with pytest.raises(StorageMissing, match=r"has no studydb tables\. Run `studydb db upgrade`"):
        connect(storage_url)


def test_alembic_finds_no_difference_between_metadata_and_migrated_schema(database):
    with database.engine.connect() as connection:
        context = MigrationContext.configure(
            connection,
            opts={
                "compare_type": True,
                "compare_server_default": database.postgresql,  # SQLite has no Identity to compare
                "include_name": lambda name, kind, _: kind != "table" or name != revisions.TABLE,
            },
        )

        assert compare_metadata(context, METADATA) == []


SHAPE_POSTGRESQL = """
    SELECT conrelid::regclass::text, conname, pg_get_constraintdef(oid) FROM pg_constraint
        WHERE connamespace = 'public'::regnamespace AND contype <> 'n'
    UNION ALL SELECT tablename, indexname, indexdef FROM pg_indexes WHERE schemaname = 'public'
    UNION ALL SELECT table_name, column_name, concat_ws(' ', data_type, is_nullable, column_default,
        is_identity, identity_generation)
        FROM information_schema.columns WHERE table_schema = 'public' AND table_name NOT LIKE 'v\\_%'
"""


def shape(database):
    """
    Return all constraints, indexes and columns as the database describes them.

    The table that holds the schema's revision is left out.
    """
    if database.postgresql:
        found = rows(database, SHAPE_POSTGRESQL)
    else:
        query = "SELECT name, sql FROM sqlite_master WHERE type <> 'view'"
        found = [
            (name, line.strip(" \t,"))
            for name, text in rows(database, query)
            # SQLite's ALTER TABLE adds a column to the last line, so commas end a line, too.
            for line in re.split(r"[,\n]", text or "")
            if line.strip()
        ]
    return sorted(row for row in found if row[0] not in (revisions.TABLE, "sqlite_sequence"))


def test_migrated_schema_equals_the_schema_made_from_the_metadata(database, storage_url):
    migrated = shape(database)
    migrate.downgrade(storage_url, "base")

    METADATA.create_all(database.engine)

    assert shape(database) == migrated


def test_list_of_revisions_names_every_migration_and_ends_with_the_head():
    assert [path.name[:4] for path in sorted(VERSIONS.glob("*.py"))] == list(revisions.REVISIONS)
    assert revisions.REVISIONS[-1] == revisions.HEAD


@pytest.mark.parametrize("path", sorted(VERSIONS.glob("*.py")), ids=lambda path: path.stem)
def test_migration_does_not_import_studydb(path):
    assert re.findall(r"^\s*(?:import|from) studydb\b.*", path.read_text(), re.MULTILINE) == []


def test_sqlite_file_is_made_in_wal_mode(empty_sqlite_url):
    migrate.upgrade(empty_sqlite_url)
    database = connect(empty_sqlite_url)

    assert rows(database, "PRAGMA journal_mode") == [("wal",)]
    assert rows(database, "PRAGMA synchronous") == [(2,)]
    assert rows(database, "PRAGMA foreign_keys") == [(1,)]
    database.close()


def test_sqlite_file_is_made_although_another_process_recovers_its_log(
    empty_sqlite_url, monkeypatch
):
    use_wal, errors = migrate._use_wal, [sqlite3.OperationalError("database is locked")]
    errors[0].sqlite_errorcode = sqlite3.SQLITE_BUSY_RECOVERY

    def busy_once(path):
        if errors:
            raise errors.pop()
        use_wal(path)

    monkeypatch.setattr(migrate, "_use_wal", busy_once)

    migrate.upgrade(empty_sqlite_url)

    assert errors == []
    assert migrate.current(empty_sqlite_url) == revisions.HEAD


def test_make_sqlite_makes_a_missing_sqlite_file_and_changes_no_existing_database(
    empty_sqlite_url, postgres_url
):
    migrate.make_sqlite(empty_sqlite_url)
    database = connect(empty_sqlite_url)
    study = fill(database)

    migrate.make_sqlite(empty_sqlite_url)
    migrate.make_sqlite(postgres_url)

    assert len(list_trials(database, study)) == 3
    database.close()


def test_migration_that_would_orphan_rows_changes_nothing(sqlite_url):
    database = connect(sqlite_url)
    fill(database)

    with (
        pytest.raises(StorageError, match=r"leave \d+ rows of counter, .* trial.*missing"),
        migrate._migrating(database) as connection,
    ):
        connection.execute(sa.text("DELETE FROM study"))

    assert rows(database, "SELECT count(*) FROM study") == [(1,)]
    database.close()


def test_migration_of_a_sqlite_file_locks_the_file_at_begin(sqlite_url):
    database = connect(sqlite_url)
    sa.event.listen(database.engine, "begin", begin_immediate)

    with database.engine.begin() as connection:
        assert connection.connection.driver_connection.in_transaction
    database.close()


@pytest.mark.parametrize(
    ("first", "second"), [("rung", "trial"), ("trial", "rung"), ("study", "attempt")]
)
def test_upgrade_waits_while_one_transaction_locks_two_tables_in_turn(postgres_url, first, second):
    migrate.downgrade(postgres_url, "0004")
    with postgres.connect(postgres_url) as worker, ThreadPoolExecutor(1) as pool:
        with worker.transaction():
            worker.execute(f"LOCK TABLE {first} IN ROW EXCLUSIVE MODE")
            upgrade = pool.submit(migrate.upgrade, postgres_url)
            assert is_waiting_for_a_lock(postgres_url)

            worker.execute(f"LOCK TABLE {second} IN ROW EXCLUSIVE MODE")

        assert upgrade.result(60) == "0004"
    assert migrate.current(postgres_url) == revisions.HEAD


@pytest.mark.slow
def test_roles_get_rights_on_new_columns_and_keep_rights_on_views_across_a_downgrade(
    postgres_url,
):
    role = f"studydb_test_{uuid4().hex[:12]}"
    migrate.downgrade(postgres_url, "0004")
    with postgres.connect(postgres_url) as connection:
        connection.execute(f"CREATE ROLE {role}")
        connection.execute(f"GRANT UPDATE (log_tail) ON attempt TO {role}")
        connection.execute(f"GRANT UPDATE (points) ON study TO {role}")
        for view in ("v_attempt", "v_trial"):
            connection.execute(f"GRANT SELECT ON {view} TO {role}")

        migrate.upgrade(postgres_url)
        columns = ("attempt.start", "attempt.start_s", "study.status", "study.pause_reason")
        columns += ("study.best_values", "study.started_at", "attempt.provenance")
        may_update = [
            connection.execute(
                "SELECT has_column_privilege(%s, %s, %s, 'UPDATE')", (role, *column.split("."))
            ).fetchone()
            for column in (*columns, "study.name")
        ]
        migrate.downgrade(postgres_url, "0004")
        migrate.upgrade(postgres_url)
        for view in ("v_attempt", "v_trial"):
            reads = connection.execute("SELECT has_table_privilege(%s, %s, 'SELECT')", (role, view))
            assert reads.fetchone() == (True,)
        connection.execute(f"DROP OWNED BY {role}")
        connection.execute(f"DROP ROLE {role}")

    assert may_update == [(True,)] * len(columns) + [(False,)]


def rights_of(connection, role):
    """Read a role's rights on tables and columns."""
    of_role = "table_schema = 'public' AND grantee = %(role)s"
    return set(
        connection.execute(
            "SELECT table_name, column_name, privilege_type "
            f"FROM information_schema.column_privileges WHERE {of_role} "
            "UNION SELECT table_name, NULL, privilege_type "
            f"FROM information_schema.table_privileges WHERE {of_role}",
            {"role": role},
        )
    )


def test_downgrade_takes_back_the_rights_that_the_upgrade_has_granted(postgres_url):
    role = f"studydb_test_{uuid4().hex[:12]}"
    migrate.downgrade(postgres_url, "0004")
    with postgres.connect(postgres_url) as connection:
        connection.execute(f"CREATE ROLE {role}")
        connection.execute(f"GRANT INSERT ON rung_entry TO {role}")
        for table, column in (
            *(("study", "points"), ("trial", "time_total_s"), ("attempt", "log_tail")),
            ("worker", "seen_at"),
        ):
            connection.execute(f"GRANT UPDATE ({column}) ON {table} TO {role}")

        before = rights_of(connection, role)
        migrate.upgrade(postgres_url)
        upgraded = rights_of(connection, role)
        migrate.downgrade(postgres_url, "0004")
        after = rights_of(connection, role)
        connection.execute(f"DROP OWNED BY {role}")
        connection.execute(f"DROP ROLE {role}")

    granted = {(table, column) for table, column, _ in upgraded - before}
    assert {("study", "status"), ("study", "num_draws"), ("rung_entry", "ranked")} <= granted
    assert after == before


def test_rights_on_the_view_of_trials_are_kept_by_a_downgrade(postgres_url):
    role = f"studydb test {uuid4().hex[:12]}"  # a name that needs quotes
    with postgres.connect(postgres_url) as connection:
        connection.execute(f'CREATE ROLE "{role}"')
        connection.execute(f'GRANT SELECT ON v_trial TO "{role}" WITH GRANT OPTION')
        connection.execute("GRANT SELECT ON v_trial TO PUBLIC")
        acl = "SELECT array_agg(a ORDER BY a) FROM pg_class, unnest(relacl::text[]) a WHERE oid = %s::regclass"
        before = connection.execute(acl, ("v_trial",)).fetchone()

        migrate.downgrade(postgres_url, "0008")

        assert connection.execute(acl, ("v_trial",)).fetchone() == before
        connection.execute(f'DROP OWNED BY "{role}"')
        connection.execute(f'DROP ROLE "{role}"')


def test_downgrade_that_recreates_a_view_is_refused_and_names_the_views_that_use_it(postgres_url):
    with postgres.connect(postgres_url) as connection:
        connection.execute("CREATE VIEW mine AS SELECT number FROM v_trial")
        connection.execute('CREATE VIEW "My View" AS SELECT * FROM v_trial')

    with pytest.raises(StorageError, match=r'other views use it: "My View", mine\. Nothing'):
        migrate.downgrade(postgres_url, "0008")

    assert migrate.current(postgres_url) == revisions.HEAD
