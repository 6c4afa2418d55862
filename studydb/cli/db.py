"""`db`: the database's schema."""

from collections.abc import Sequence

import click

from studydb.cli.options import Storage, storage_option
from studydb.domain.errors import UsageError
from studydb.domain.roles import Role


@click.group()
def db() -> None:
    """Make, change and check the database's schema; print SQL for its roles."""


@db.command(short_help="Upgrade the schema to the revision that this studydb needs.")
@storage_option
def upgrade(*, storage: Storage) -> None:
    """Upgrade the schema to this studydb's revision; an SQLite file is made when missing."""
    from studydb.db import migrate, revisions

    before = migrate.upgrade(storage.url)
    if before == revisions.HEAD:
        click.echo(f"{_masked(storage)}: schema {revisions.HEAD} already.")
    else:
        click.echo(f"{_masked(storage)}: schema {before or 'none'} -> {revisions.HEAD}.")


@db.command(short_help="Print the schema's revision.")
@storage_option
def current(*, storage: Storage) -> None:
    """Print the revision of the database's schema."""
    from studydb.db import migrate

    click.echo(migrate.current(storage.url) or "none")


@db.command(short_help="Check whether this studydb can use the database.")
@storage_option
def check(*, storage: Storage) -> None:
    """Check that the database has all of this studydb's schema; exit code 1 if not."""
    from studydb.db import migrate, revisions

    migrate.check(storage.url)
    click.echo(f"{_masked(storage)}: schema {revisions.HEAD}, as this studydb needs it.")


@db.command(short_help="Downgrade the schema to an older revision.")
@click.argument("revision")
@click.option("--yes", is_flag=True, help="Confirm: drop what the older schema cannot hold.")
@storage_option
def downgrade(*, revision: str, yes: bool, storage: Storage) -> None:
    """Downgrade the schema to REVISION, and drop wide views. "base" drops all tables, too."""
    from studydb.db import migrate

    if not yes:
        raise UsageError(
            f"Going back to {revision!r} drops what the older schema cannot hold, and the views of "
            '`studydb views`; "base" drops every study. Add --yes to confirm.'
        )
    migrate.downgrade(storage.url, revision)
    click.echo(f"{_masked(storage)}: schema {revision}.")


@db.command(short_help="Print the GRANTs of an owner, a worker and a viewer.")
@click.option("--owner", default="studydb_owner", metavar="ROLE")
@click.option("--worker", default="studydb_worker", metavar="ROLE")
@click.option("--viewer", default="studydb_viewer", metavar="ROLE")
@click.option(
    "--member",
    "members",
    multiple=True,
    metavar="LOGIN=ROLE",
    help="Make a login an owner, a worker or a viewer; create it if it is missing. Repeatable.",
)
@click.option("--schema", default="public", metavar="NAME", help="The schema of the tables.")
@storage_option
def roles(
    *, owner: str, worker: str, viewer: str, members: Sequence[str], schema: str, storage: Storage
) -> None:
    """
    Print SQL for PostgreSQL that creates missing roles and gives each of three roles its rights.

    The owner role gets the tables, and PUBLIC loses the right to create objects in their schema.

    Logins are members of a role: --member ann=worker --member bob=viewer.

    The owner can do everything. A worker cannot change the schema or a study's specs, and can
    delete only rows of checkpoints, proposals, pins and uploads. A viewer can only read. This
    command changes nothing: pipe its output to psql.
    """
    from studydb.db.role_script import Roles
    from studydb.db.urls import features_of, read_url

    url = read_url(storage.url)
    if not features_of(url).roles:
        raise UsageError(
            "SQLite has no roles: a user who can write the file can do everything. "
            "Give --storage postgresql://…"
        )
    if not url.database:
        raise UsageError(
            "The storage URL names no database; name the database in which to grant rights."
        )
    by_login = tuple(map(_read_member, members))
    click.echo(Roles(url.database, schema, owner, worker, viewer, by_login).script())


def _read_member(text: str) -> tuple[str, Role]:
    login, _, role = text.rpartition("=")
    if not login or role not in list(Role):
        raise UsageError(
            f"--member is {text!r}; write LOGIN=ROLE with one of the roles {', '.join(Role)}."
        )
    return login, Role(role)


def _masked(storage: Storage) -> str:
    from studydb.db.urls import mask, read_url

    return mask(read_url(storage.url))
