"""
Each role on PostgreSQL has the rights that its commands need.

A worker may write only what `db/role_script.py` lists; a viewer may write nothing.
"""

import importlib
import pkgutil
import uuid
from collections import defaultdict
from contextlib import ExitStack, closing
from dataclasses import dataclass

import psycopg
import pytest
import sqlalchemy as sa
from fleet.workers import TRAINABLES, Fleet
from harness import arrange, postgres
from harness.commands import reading_commands

import studydb
import studydb.store
from studydb.analysis.wide import make_wide_views
from studydb.db import Chain, Prepared, connect, migrate, revisions, role_script
from studydb.db.metadata import METADATA
from studydb.db.role_script import WORKER_DELETES, WORKER_INSERTS, WORKER_UPDATES
from studydb.domain.errors import StorageReadOnly
from studydb.domain.failures import Failure
from studydb.domain.life.states import Mode, Reason, Status
from studydb.domain.roles import Role
from studydb.operations import control
from studydb.operations.checkpoints import delete_rows, mark_corrupt
from studydb.operations.record_event import record_event
from studydb.operations.register import leave
from studydb.operations.restore import restore
from studydb.operations.uploads import abandoned_uploads, begin_upload, delete_upload
from studydb.store import checkpoints

NOT_OF_WORKERS = {
    ("counters", "_INSERT"),
    ("studies", "_INSERT"),
    ("studies", "_INSERT_SPACE"),
    ("studies", "_ADMIT"),
    ("studies", "_SET_STATUS"),
    ("studies", "_EXTEND"),
    ("studies", "_RELOCATE"),
    ("studies", "_STORE_SETTINGS"),
    ("studies", "_MARK_DELETING"),
    ("quotas", "_STORE"),
    ("checkpoints", "_SET_START"),
    ("uploads", "_INSERT_OF_PERSON"),
    ("studies", "_RENAME"),
    ("trainables", "_DROP_SIGNATURES"),
    ("trainables", "_DROP"),
    ("trainables", "_INSERT"),
    ("trainables", "_INSERT_SIGNATURE"),
    ("workers", "_SET_REQUEST"),
    ("trials", "_INSERT_PENDING"),
    ("trials", "_REQUEST"),
    ("trials", "_PAUSE_BY"),
    ("trials", "_CHANGE_CONFIG"),
    ("trials", "_INVALIDATE"),
    ("trials", "_REINSTATE"),
    ("notes", "_INSERT"),
    ("checkpoints", "_TO_DISCARD"),
    ("checkpoints", "_DISCARD"),
    ("studies", "_NUMBER_CLONES"),
    ("clones", "_INSERT"),
    ("clones", "_COPY_TAGS"),
    ("rung_ranks", "_UNRANK"),
    ("rung_ranks", "_RANK"),
    ("rung_ranks", "_MOVE_CUT"),
    ("tags", "_INSERT"),
    ("tags", "_MARK"),
    ("tags", "_ADD"),
    ("tags", "_REMOVE"),
    ("resource_classes", "_MOVE"),
    ("resource_classes", "_CHANGE"),
}
"""Workers send neither these statements nor the statements of `store/deletion.py`."""


@dataclass(frozen=True)
class Roles:
    """
    The URLs of one database with the logins of the superuser and of a member of each role.

    `groups` maps "owner", "worker" and "viewer" to the names of the three roles.
    """

    admin: str
    owner: str
    worker: str
    viewer: str
    groups: dict

    def login(self, name):
        return getattr(self, name).split("//")[1].partition("@")[0]

    def script(self, **options):
        name = postgres.database_in(self.admin)
        return role_script.Roles(name, **self.groups, **options).script()


@pytest.fixture
def roles(postgres_url):
    """The three roles that `db roles` makes, and a member of each."""
    suffix = uuid.uuid4().hex[:8]
    groups = {str(role): f"studydb_{role}_{suffix}" for role in Role}
    people = {str(role): f"{role}_person_{suffix}" for role in Role}
    urls = {name: postgres_url.replace("postgres@", f"{login}@") for name, login in people.items()}
    roles = Roles(postgres_url, **urls, groups=groups)
    with postgres.connect(postgres_url) as connection:
        connection.execute(roles.script(members=tuple(zip(people.values(), Role, strict=True))))
    yield roles
    postgres.drop_roles(postgres_url, [*groups.values(), *people.values()])


@pytest.fixture
def opened():
    """A function that connects to a database; after the test, the connection is closed."""
    with ExitStack() as stack:
        yield lambda url: stack.enter_context(closing(connect(url)))


@pytest.mark.slow
def test_worker_process_with_the_worker_role_completes_a_study(roles, tmp_path, create_study):
    study = create_study(
        "digits",
        "talkative:train",
        num_trials=4,
        max_concurrent=2,
        scheduler=studydb.ASHA(max_t=3),
        storage=roles.owner,
        workdir=TRAINABLES,
    )

    with Fleet(roles.worker, "digits", tmp_path) as fleet:
        worker = fleet.start(slots=2)
        code = worker.exit_code(60)

    assert code == 0, worker.output()
    assert study.status is Status.FINISHED
    assert study.counts.terminated == 4


@pytest.mark.nightly
def test_study_of_failing_trials_pauses_itself_under_the_worker_role(roles, tmp_path, create_study):
    space = {"x": studydb.uniform(0.0, 1.0)}
    options = {"space": space, "num_trials": 200, "workdir": TRAINABLES}
    study = create_study("cursed", "misbehaving:raises", storage=roles.owner, **options)
    with Fleet(roles.worker, "cursed", tmp_path) as fleet:
        worker = fleet.start(slots=2)
        code = worker.exit_code(60)

    assert code == 3, worker.output()
    assert "has paused itself: 5 trials failed alike" in worker.output()
    assert study.progress.status == "PAUSED"


def test_worker_role_has_the_rights_that_limits_and_stop_rules_need(roles, opened):
    owned, database = opened(roles.owner), opened(roles.worker)
    limits = {"total_time_limit_s": 1e6, "trial_time_limit_s": 1e6, "max_steps": 4}
    rules = (studydb.Plateau("loss", top=3), studydb.Plateau("loss"))
    study = arrange.new_study(owned, rules=rules, **limits, fail_fast=True, time_limit_s=1e6)
    worker = arrange.SimulatedWorker(database, study)
    first, second = worker.take(), worker.take()

    second.finish(outcome=Reason.FAILED, failure=Failure("Error", "x"))
    first.report(0.5, 0.25)
    worker.renew(first)
    first.report(0.125, 0.0)

    assert first.trial().verdict.reason == Reason.BUDGET_SPENT


def test_worker_role_allows_every_operation_of_a_worker(roles, opened):
    owned, database = opened(roles.owner), opened(roles.worker)
    study = arrange.new_study(
        owned,
        scheduler=studydb.ASHA(max_t=9, grace_period=1),
        num_trials=None,
        max_concurrent=5,
        max_failures=1,
    )
    for _ in range(2):
        arrange.enqueued(owned, study)
    worker = arrange.SimulatedWorker(database, study)

    run = worker.take()
    for value in (0.5, 0.25, 0.125):
        run.report(value)
        retired = run.save()
    delete_rows(database, removed=retired)
    begin_upload(database, lease=run.lease, uuid=str(uuid.uuid4()), url="file:///store/x")
    record_event(database, lease=run.lease, kind="checkpoint failed", data={"error": "full"})
    worker.renew(run)
    run.finish(outcome=Reason.FAILED, failure=Failure("ValueError", "no", "no"))
    (abandoned,) = abandoned_uploads(database, study)
    delete_upload(database, upload_id=abandoned.id)

    second = worker.take()
    second.report(0.25)
    saved = second.checkpoint()
    second.save(saved)
    with database.begin(write=False) as txn:
        stored = checkpoints.by_uuid(txn, uuid=saved.uuid)
    assert restore(database, checkpoint=stored) == b"abc"
    mark_corrupt(database, lease=second.lease, checkpoint=stored)
    control.pause(owned, study, [second.lease.number], arrange.new_request())
    worker.renew(second)
    second.finish()

    third = worker.ask()
    third.finish(0.75, outcome=Reason.PREEMPTED)
    arrange.recover(database, study)
    worker.take().report(0.125)
    leave(database, worker_id=worker.id)


FORBIDDEN = [
    "CREATE TABLE mine (x int)",
    "CREATE VIEW mine AS SELECT 1",
    "CREATE SCHEMA mine",
    "CREATE FUNCTION mine() RETURNS int LANGUAGE sql AS 'SELECT 1'",
    "ALTER TABLE trial ADD COLUMN x int",
    "DROP TABLE trial",
    "DROP VIEW v_trial",
    "TRUNCATE result",
    "CREATE INDEX ON trial (number)",
    "UPDATE study SET name = 'x'",
    "UPDATE study SET num_trials = 1000000",
    "UPDATE study SET max_failures = 9",
    "UPDATE study SET uuid = 'x'",
    "UPDATE study SET checkpoints = '/'",
    'UPDATE study SET settings = \'{"former_checkpoints": ["/"]}\'',
    "UPDATE trainable SET name = 'os:system'",
    "UPDATE trainable SET source = ''",
    "UPDATE signature SET mac = 'x'",
    "INSERT INTO signature VALUES (1, 'x', 'x')",
    "INSERT INTO study (uuid) VALUES ('x')",
    "UPDATE search_space SET space = '{}'",
    "UPDATE trial SET params = '{}'",
    "UPDATE trial SET number = 7",
    "UPDATE trial SET uuid = 'x'",
    "UPDATE result SET value = 0",
    "UPDATE attempt SET token = 'x'",
    "UPDATE attempt SET config = '{}'",
    "UPDATE checkpoint SET mac = 'x'",
    "UPDATE checkpoint SET url = 'file:///etc'",
    "UPDATE worker SET request = 'DRAIN'",
    "UPDATE event SET actor = 'x'",
    "UPDATE rung_entry SET score = 0",
    "UPDATE studydb_version SET version_num = '0'",
    "DELETE FROM study",
    "DELETE FROM trial",
    "DELETE FROM result",
    "DELETE FROM attempt",
    "DELETE FROM event",
    "DELETE FROM worker",
    "DELETE FROM rung_entry",
]


def test_worker_role_forbids_ddl_and_writes_that_workers_do_not_need(roles, opened):
    study_with_rows(opened(roles.owner))
    before = arrange.dump(opened(roles.owner))

    with postgres.connect(roles.worker) as connection:
        for sql in FORBIDDEN:
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(sql)

    assert arrange.dump(opened(roles.owner)) == before


def test_worker_role_has_exactly_the_listed_rights(roles):
    worker = roles.groups["worker"]

    with postgres.connect(roles.admin) as connection:
        columns = connection.execute(
            "SELECT table_name, column_name FROM information_schema.column_privileges "
            "WHERE grantee = %s AND privilege_type = 'UPDATE'",
            [worker],
        ).fetchall()
        tables = connection.execute(
            "SELECT privilege_type, table_name FROM information_schema.table_privileges "
            "WHERE grantee = %s AND privilege_type <> 'SELECT'",
            [worker],
        ).fetchall()

    assert set(columns) == {(table, one) for table, all_ in WORKER_UPDATES.items() for one in all_}
    assert set(tables) == {("INSERT", table) for table in WORKER_INSERTS} | {
        ("DELETE", table) for table in WORKER_DELETES
    }


UNUSED_UPDATES = {
    "study": {"points"},
    "trial": {
        *("generation", "is_unique", "feasible", "cost"),
    },
    "attempt": {"pid", "exit_code", "signal", "cost"},
    "rung": {"n_planned", "n_ended"},
    "rung_entry": {"ranked"},
}
"""
Columns that a worker may update, although no statement of a worker changes them. Most of the
columns are for features that are not built yet. Workers of an older version of studydb update
`points`.
"""

UNUSED_INSERTS = {
    *("population", "lineage"),
    "log_chunk",
}


def test_each_listed_right_of_workers_is_used_by_a_statement_or_is_listed_as_unused():
    written, inserted, deleted = defaultdict(set), {"result", "proposal"}, set()
    for file, name, statement in statements():
        if (file, name) in NOT_OF_WORKERS or file == "deletion":
            continue
        if isinstance(statement, sa.Update):
            written[statement.table.name] |= {column_name(each) for each in statement._values}
        elif isinstance(statement, sa.Insert):
            inserted.add(statement.table.name)
        elif isinstance(statement, sa.Delete):
            deleted.add(statement.table.name)

    listed = {table: set(columns) for table, columns in WORKER_UPDATES.items()}
    unused = {table: columns - written[table] for table, columns in listed.items()}
    assert {table: columns for table, columns in unused.items() if columns} == UNUSED_UPDATES
    assert all(columns <= listed[table] for table, columns in written.items())
    assert set(WORKER_INSERTS) - inserted == UNUSED_INSERTS
    assert inserted <= set(WORKER_INSERTS)
    assert set(WORKER_DELETES) == deleted


def statements():
    """Yield file, name of the constant, and statement for every constant statement of the store."""
    for found in pkgutil.iter_modules(studydb.store.__path__):
        module = importlib.import_module(f"studydb.store.{found.name}")
        for name, value in vars(module).items():
            if isinstance(value, dict):
                several = tuple(value.values())
            else:
                several = value if isinstance(value, tuple) else (value,)
            for each in several:
                if isinstance(each, Prepared):
                    yield found.name, name, each.statement
                elif isinstance(each, Chain):
                    for link in (each.main, *each.before.values(), *each.then.values()):
                        yield found.name, name, link


def column_name(column):
    return column if isinstance(column, str) else column.name


def study_with_rows(database):
    scheduler = studydb.ASHA(max_t=9)
    study = arrange.new_study(database, name="digits", mode=Mode.MAX, scheduler=scheduler)
    run = arrange.SimulatedWorker(database, study).take()
    run.report(0.5)
    run.save()
    run.finish(0.75)
    return study


READS = [
    *reading_commands("digits"),
    ("logs", "digits", "0"),
    ("db", "check"),
    *(("query", f"SELECT * FROM v_{view}") for view in ("attempt", "checkpoint", "worker")),
]


@pytest.mark.slow
def test_viewer_can_run_every_reading_command(roles, opened, bare_console, monkeypatch):
    study_with_rows(opened(roles.owner))
    monkeypatch.setenv("STUDYDB_STORAGE", roles.viewer)

    for arguments in READS:
        bare_console(*arguments)

    (row,) = bare_console("query", "SELECT best_value FROM v_trial", "--format", "json").json
    assert row == {"best_value": 0.75}


def test_viewer_can_neither_write_nor_lock_rows(roles, opened):
    study_with_rows(opened(roles.owner))

    with postgres.connect(roles.viewer) as connection:
        with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
            connection.execute("CREATE TABLE mine (x int)")
        connection.execute("SET default_transaction_read_only = off")
        for table in (*METADATA.tables, "studydb_version"):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(f"DELETE FROM {table}")
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(f"SELECT * FROM {table} FOR UPDATE")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute("CREATE TABLE mine (x int)")


@pytest.mark.slow
def test_owner_may_downgrade_and_upgrade_the_schema(roles):
    migrate.downgrade(roles.owner, "base")
    migrate.upgrade(roles.owner)

    assert migrate.current(roles.owner) == revisions.HEAD


def test_viewer_reads_wide_views_of_the_owner_also_after_they_are_replaced(roles, opened):
    owned = opened(roles.owner)
    study = study_with_rows(owned)

    for _ in range(2):
        make_wide_views(owned, study)
        shown = arrange.rows(opened(roles.viewer), "SELECT loss FROM v_result_digits")
        assert shown == [(0.5,), (0.75,)]


def test_owner_role_gets_the_wide_views_that_were_made_before_the_roles(roles, opened):
    study = study_with_rows(opened(roles.admin))
    make_wide_views(opened(roles.admin), study)
    with postgres.connect(roles.admin) as connection:
        connection.execute(roles.script())
    assert arrange.rows(opened(roles.viewer), "SELECT loss FROM v_result_digits") != []

    make_wide_views(opened(roles.owner), study)
    studydb.delete_study("digits", storage=roles.owner)

    left = "SELECT count(*) FROM pg_views WHERE viewname LIKE '%digits'"
    assert arrange.rows(opened(roles.owner), left) == [(0,)]


def test_error_for_an_owner_command_by_a_worker_is_one_line(
    roles, opened, bare_console, monkeypatch
):
    study_with_rows(opened(roles.owner))
    monkeypatch.setenv("STUDYDB_STORAGE", roles.worker)

    for arguments in (
        ("views", "digits"),
        ("extend", "digits", "--trials", "3"),
        ("rename", "digits", "x"),
        ("delete", "digits", "--yes"),
        ("create", "x", "--metric", "m", "--mode", "min", "--num-trials", "1"),
        ("db", "downgrade", "base", "--yes"),
    ):
        error = bare_console(*arguments, code=1).error
        assert "refuses: permission denied" in error or "must be owner" in error
        assert "rights of an owner. Log in as a member of studydb_owner" in error


WRITES = [
    ("pause", "digits"),
    ("stop", "digits", "0"),
    ("enqueue", "digits"),
    ("extend", "digits", "--trials", "3"),
    ("rename", "digits", "x"),
    ("delete", "digits", "--yes"),
    ("create", "x", "--metric", "m", "--mode", "min", "--num-trials", "1"),
    ("worker", "--study", "runnable"),
]


@pytest.mark.parametrize("arguments", WRITES, ids=lambda arguments: arguments[0])
def test_error_for_a_writing_command_by_a_viewer_names_the_needed_role(
    roles, bare_console, monkeypatch, create_study, arguments
):
    for name in ("digits", "runnable"):
        options = {"num_trials": 1, "storage": roles.owner, "workdir": TRAINABLES}
        create_study(name, "talkative:train", **options)
    monkeypatch.setattr("studydb.study.storage.CONTROL_PATIENCE_S", 1e9)

    error = bare_console(*arguments, "--storage", roles.viewer, code=1).error

    role = "worker" if arguments[0] == "worker" else "owner"
    login = roles.login("viewer")
    assert f"{login!r} can only read, because its default_transaction_read_only is on" in error
    assert f"Log in as a member of studydb_{role}" in error


def test_ask_by_a_viewer_is_refused_without_retries(roles, opened, load_study):
    study_with_rows(opened(roles.owner))
    study = load_study("digits", storage=roles.viewer)

    with pytest.raises(StorageReadOnly, match="only read"):
        study.ask()


def test_db_roles_prints_the_script_for_the_database_of_the_storage_url(bare_console):
    ran = bare_console(
        *("db", "roles", "--storage", "postgresql://me:hunter2@host/my-db"),
        *("--worker", "W x", "--schema", "lab_1"),
    )

    assert 'GRANT CONNECT ON DATABASE "my-db" TO "W x";' in ran.lines
    deleted = ", ".join(f"lab_1.{table}" for table in WORKER_DELETES)
    assert f'GRANT DELETE ON {deleted} TO "W x";' in ran.lines
    assert ran.lines[-1] == "COMMIT;"
    assert "hunter2" not in ran.out


def test_role_script_quotes_names_where_needed():
    script = role_script.Roles('a"b', owner="user", worker="current_user", viewer="Ann").script()

    for name in ('"a""b"', '"user"', '"current_user"', '"Ann"'):
        assert f" {name};" in script or f" {name} " in script
