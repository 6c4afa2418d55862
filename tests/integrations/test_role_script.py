"""The script of `db roles`, run by psql as several logins, on two releases of PostgreSQL."""

import uuid

import psycopg
import pytest
from harness import arrange, postgres
from harness.commands import run_command
from harness.postgres import database_in

from studydb.analysis.wide import make_wide_views
from studydb.db import connect, migrate, revisions
from studydb.db.role_script import Roles
from studydb.domain.errors import StorageDenied
from studydb.domain.roles import Role

PEOPLE = (("ann", Role.OWNER), ("bob", Role.WORKER), ("Cyd E", Role.VIEWER))


@pytest.fixture(scope="module", params=["pginstall18", "pginstall"])
def server(request):
    """A new server, which has no roles of other tests, and the folder of its psql."""
    binaries = postgres._wheel_binaries()
    other = binaries.parent.with_name(request.param) / "bin"
    if not other.is_dir():
        pytest.fail(f"The wheel has no {request.param} any more.")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(postgres, "_wheel_binaries", lambda: other)
        with postgres.PostgresServer() as server:
            yield server, other


@pytest.fixture
def lab(server):
    """A database's URL with the login of its owner, who has CREATEROLE but is no superuser."""
    running, _ = server
    name = f"lab_{uuid.uuid4().hex[:8]}"
    with postgres.connect(running.url()) as connection:
        connection.execute(f"CREATE ROLE {name} LOGIN CREATEROLE")
        connection.execute(f"CREATE DATABASE {name} OWNER {name}")
    url = running.url(name).replace("postgres@", f"{name}@")
    migrate.upgrade(url)
    yield url
    with postgres.connect(running.url()) as connection:
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")
        everybody = connection.execute(
            "SELECT quote_ident(rolname) FROM pg_roles WHERE rolname !~ '^(pg_|postgres)'"
        ).fetchall()
        for (role,) in everybody:
            connection.execute(f"DROP OWNED BY {role}")
        for (role,) in everybody:
            connection.execute(f"DROP ROLE {role}")


@pytest.fixture
def psql(server):
    """Pipe a script to psql, as the README does, and return the messages of psql."""
    _, binaries = server

    def run(url, script, *, code=0):
        command = [binaries / "psql", "-X", "-v", "ON_ERROR_STOP=1", url]
        ran = run_command(command, input=script)
        assert ran.returncode == code, ran.stderr
        return ran.stderr

    return run


def as_(login, url):
    return url.replace(f"{database_in(url)}@", f"{login.replace(' ', '%20')}@")


def script(url, *members, **options):
    return Roles(database_in(url), members=members, **options).script()


def settings_of(url):
    with postgres.connect(url) as connection:
        names = (
            *("default_transaction_read_only", "statement_timeout"),
            "idle_in_transaction_session_timeout",
        )
        return [connection.execute(f"SHOW {name}").fetchone()[0] for name in names]


LIMITS, FREE = ["on", "1min", "1min"], ["off", "0", "0"]


@pytest.fixture
def work(create_study):
    """A function that logs in by a URL, creates a study, and runs the study's trials."""

    def work(url, name="digits"):
        run_own_loop(create_study(name, num_trials=2, storage=url))

    return work


def run_own_loop(study):
    while trial := study.ask():
        with trial:
            trial.report({"loss": 0.5})


@pytest.mark.nightly
def test_database_owner_may_run_the_script_twice_and_keeps_the_rights_of_an_owner(
    lab, psql, create_study
):
    for _ in range(2):
        assert "ERROR" not in psql(lab, script(lab, *PEOPLE))

    for url in (lab, as_("ann", lab)):
        study = create_study(uuid.uuid4().hex, num_trials=2, storage=url)
        study.pause()
        study.resume()
        migrate.downgrade(url, "0001")
        migrate.upgrade(url)
        psql(url, script(lab))
    assert settings_of(as_("Cyd E", lab)) == LIMITS
    assert settings_of(as_("bob", lab)) == settings_of(as_("ann", lab)) == FREE


@pytest.mark.slow
def test_members_have_the_rights_of_their_roles(lab, psql, create_study, load_study):
    psql(lab, script(lab, *PEOPLE))
    create_study("digits", num_trials=2, storage=as_("ann", lab))

    loop = load_study("digits", storage=as_("bob", lab))
    run_own_loop(loop)
    with pytest.raises(StorageDenied, match=r"rights of an owner.*studydb_owner"):
        loop.extend(num_trials=1)

    assert load_study("digits", storage=as_("Cyd E", lab)).best_value == 0.5


@pytest.mark.slow
def test_new_role_of_a_member_replaces_the_former_role(lab, psql, work):
    psql(lab, script(lab, ("bob", Role.VIEWER)))
    work(lab)
    assert settings_of(as_("bob", lab)) == LIMITS

    psql(lab, script(lab, ("bob", Role.OWNER)))
    assert settings_of(as_("bob", lab)) == FREE
    work(as_("bob", lab), "mine")

    psql(lab, script(lab, ("bob", Role.VIEWER)))
    assert settings_of(as_("bob", lab)) == LIMITS
    with postgres.connect(as_("bob", lab)) as connection:
        connection.execute("SET default_transaction_read_only = off")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute("UPDATE trial SET state = 'ERROR'")


@pytest.mark.slow
def test_script_limits_a_login_to_which_the_viewer_role_was_granted_by_hand(lab, psql):
    psql(lab, script(lab))
    psql(lab, "CREATE ROLE dan LOGIN; GRANT studydb_viewer TO dan;")

    psql(lab, script(lab))

    assert settings_of(as_("dan", lab)) == LIMITS


@pytest.mark.nightly
def test_table_owner_gets_the_owner_role_if_a_superuser_runs_the_script(lab, psql, server, work):
    work(lab)
    admin = server[0].url(database_in(lab))

    psql(admin, script(lab, *PEOPLE))

    work(lab, "more")
    migrate.downgrade(admin, "0001")
    migrate.upgrade(admin)  # new tables belong to the owner role, too
    psql(as_("ann", lab), script(lab))
    work(lab, "most")
    with postgres.connect(admin) as connection:
        owners = connection.execute(
            "SELECT DISTINCT relowner::regrole::text FROM pg_class WHERE relnamespace = "
            "'public'::regnamespace"
        ).fetchall()
    assert owners == [("studydb_owner",)]


def test_script_shows_a_caller_without_createrole_what_an_administrator_must_run(
    lab, psql, server, work
):
    admin = server[0].url(database_in(lab))
    psql(admin, f"ALTER ROLE {database_in(lab)} NOCREATEROLE")

    printed = psql(lab, script(lab, *PEOPLE), code=3)
    assert (
        f"There is no role studydb_owner, and {database_in(lab)} may not create roles." in printed
    )
    asked = printed.partition("of roles that exist already: ")[2].partition(" Then run")[0]
    psql(admin, asked)
    printed = psql(lab, script(lab, *PEOPLE))

    assert 'Cyd E or an administrator can run: ALTER ROLE "Cyd E" IN DATABASE' in printed
    for line in printed.splitlines():
        if "can run: " in line:
            psql(as_("Cyd E", lab).replace("Cyd%20E@", "postgres@"), line.partition("can run: ")[2])
    assert settings_of(as_("Cyd E", lab)) == LIMITS
    work(as_("ann", lab))


@pytest.mark.slow
def test_wide_views_of_one_owner_can_be_replaced_by_another_owner(lab, psql, work, load_study):
    psql(lab, script(lab, *PEOPLE, ("eve", Role.OWNER)))
    work(lab)

    for login in ("ann", "eve"):
        database = connect(as_(login, lab))
        make_wide_views(database, load_study("digits", storage=as_(login, lab)).record)
        database.close()

    reader = connect(as_("Cyd E", lab))
    assert arrange.rows(reader, "SELECT loss FROM v_result_digits") == [(0.5,), (0.5,)]
    reader.close()


@pytest.mark.slow
def test_upgrade_by_a_login_with_the_worker_role_is_refused(lab, psql):
    psql(lab, script(lab, *PEOPLE))
    migrate.downgrade(lab, "0001")

    with pytest.raises(StorageDenied, match="Log in as a member of studydb_owner"):
        migrate.upgrade(as_("bob", lab))

    assert migrate.current(lab) == "0001"
    assert revisions.HEAD != "0001"
