"""
The error for a database that cannot be used names the cause and what to do.

Other tests here are about read-only connections, standbys, and the file systems of paths.
"""

import re
from pathlib import Path

import pytest
from harness import postgres
from harness.arrange import change, dump, new_study, rows

from studydb.db import connect, connecting, migrate, revisions, sessions, urls
from studydb.domain.errors import (
    SchemaTooNew,
    SchemaTooOld,
    StorageError,
    StorageMissing,
    StorageReadOnly,
    StorageTransient,
    StorageUnreachable,
    UsageError,
)


def pattern(text):
    """Return a regular expression for `text`, in which … stands for any characters."""
    return re.escape(text).replace(re.escape("…"), ".*")


def test_error_for_an_older_schema_names_the_command_db_upgrade(storage_url, monkeypatch):
    older = revisions.HEAD
    monkeypatch.setattr(revisions, "HEAD", "9000")
    monkeypatch.setattr(revisions, "REVISIONS", (*revisions.REVISIONS, "9000"))

    with pytest.raises(
        SchemaTooOld,
        match=pattern(f"has schema {older}, this studydb needs 9000. Run `studydb db upgrade`"),
    ):
        connect(storage_url)
    with pytest.raises(SchemaTooOld):
        migrate.check(storage_url)


@pytest.mark.parametrize(
    "use", [connect, migrate.check, migrate.upgrade, lambda url: migrate.downgrade(url, "base")]
)
def test_error_for_a_newer_schema_asks_to_upgrade_studydb_and_nothing_changes(storage_url, use):
    database = connect(storage_url)
    change(database, f"UPDATE {revisions.TABLE} SET version_num = '9999'")
    before = dump(database)

    with pytest.raises(
        SchemaTooNew, match=pattern("has schema 9999, …. Upgrade studydb on this machine")
    ):
        use(storage_url)

    assert dump(database) == before
    database.close()


def test_error_for_a_database_without_tables_names_the_command_db_upgrade(
    empty_postgres_url, empty_sqlite_url
):
    Path(empty_sqlite_url.removeprefix("sqlite:///")).touch()

    for url in (empty_postgres_url, empty_sqlite_url):
        with pytest.raises(
            StorageMissing, match=pattern("has no studydb tables. Run `studydb db upgrade`")
        ):
            connect(url)


@pytest.mark.parametrize("use", [connect, migrate.check, migrate.current])
def test_error_for_a_missing_file_names_its_absolute_path_and_makes_no_file(
    tmp_path, monkeypatch, use
):
    monkeypatch.chdir(tmp_path)

    with pytest.raises(
        StorageMissing, match=pattern(f"no database at {tmp_path}/study.db. `studydb create` or")
    ):
        use("sqlite:///study.db")

    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("use", [connect, migrate.upgrade])
@pytest.mark.parametrize(
    ("file", "why"),
    [
        ("/no/study.db", "The folder …/no of the database does not exist"),
        ("", " is a folder; name a file in it"),
    ],
)
def test_path_in_a_missing_folder_and_path_of_a_folder_are_refused(tmp_path, use, file, why):
    with pytest.raises(StorageError, match=pattern(why)):
        use(f"sqlite:///{tmp_path}{file}")


@pytest.mark.parametrize("use", [connect, migrate.upgrade])
def test_file_of_another_format_is_refused_and_not_changed(tmp_path, use):
    path = tmp_path / "letter.txt"
    path.write_text("Dear Ada, " * 500)

    with pytest.raises(StorageError, match="is not an SQLite database, or it is damaged"):
        use(f"sqlite:///{path}")

    assert path.read_text() == "Dear Ada, " * 500


@pytest.mark.parametrize("use", [connect, migrate.upgrade])
def test_error_for_a_missing_postgresql_database_names_createdb(postgres_server, use):
    url = postgres.database_url(postgres_server, "nobody_made_this")

    with pytest.raises(
        StorageMissing, match=pattern("There is no such database: …nobody_made_this…createdb")
    ):
        use(url)


def test_missing_server_raises_storage_unreachable(tmp_path):
    with pytest.raises(
        StorageUnreachable, match=pattern("No connection to …. Is the server running")
    ):
        connect(f"postgresql://postgres@/studies?host={tmp_path}")


@pytest.mark.parametrize("pooler", [False, True])
def test_read_only_connection_can_read_and_not_write(storage_url, pooler):
    database = connect(storage_url)
    study = new_study(database)
    database.close()
    more = "&pooler=transaction" if pooler and database.postgresql else ""
    reader = connect(storage_url + more, read_only=True)

    with pytest.raises(StorageError) as refusal:
        change(reader, "DELETE FROM event")

    # A standby gives the same error during a failover, so on PostgreSQL the error is transient.
    expected = StorageTransient if database.postgresql else StorageReadOnly
    assert issubclass(refusal.type, expected)
    assert database.postgresql or "check the rights of file and folder" in str(refusal.value)
    assert rows(reader, "SELECT name FROM study") == [(study.name,)]
    assert rows(reader, "SELECT count(*) FROM event") == [(1,)]
    reader.close()


def test_postgresql_user_without_a_privilege_gets_the_message_of_the_server(postgres_url):
    owner = connect(postgres_url)
    change(
        owner,
        "DO $$ BEGIN CREATE ROLE studydb_reader LOGIN; EXCEPTION WHEN duplicate_object THEN NULL; END $$",
    )
    change(owner, "GRANT SELECT ON ALL TABLES IN SCHEMA public TO studydb_reader")
    reader = connect(re.sub(r"//[^@/]*@", "//studydb_reader@", postgres_url))

    with pytest.raises(StorageError, match=pattern("refuses: permission denied for table event")):
        change(reader, "DELETE FROM event")
    reader.close()
    change(owner, "DROP OWNED BY studydb_reader")
    owner.close()


def test_connection_to_a_server_that_became_a_standby_is_replaced(postgres_url):
    database = connect(postgres_url, connections=1)
    change(database, "SET default_transaction_read_only = on")

    with pytest.raises(StorageTransient):
        change(database, "DELETE FROM event")

    change(database, "DELETE FROM event")
    database.close()


def test_worker_connects_only_to_the_primary_and_a_reader_to_any_server():
    url = urls.read_url("postgresql://ann@host/studies")
    given = url.update_query_dict({"target_session_attrs": "any"})

    worker, reader, as_given = (
        sessions.connect_arguments(url, pooler=False, read_only=read_only)
        for url, read_only in ((url, False), (url, True), (given, False))
    )

    assert worker["target_session_attrs"] == "primary"
    assert "target_session_attrs" not in reader | as_given


@pytest.mark.parametrize("kind", ["nfs4", "nfs", "lustre", "fuse.sshfs", "cifs", "9p", "beegfs"])
def test_network_file_system_is_refused(tmp_path, kind):
    with pytest.raises(
        StorageError,
        match=pattern(
            f"is on a network file system ({kind}), …use PostgreSQL for several machines"
        ),
    ):
        urls.refuse_network_file_system(tmp_path / "study.db", kind_of=lambda _: kind)


@pytest.mark.parametrize("kind", ["ext4", "xfs", "tmpfs", "overlay", "apfs", ""])
def test_local_file_system_is_accepted(tmp_path, kind):
    urls.refuse_network_file_system(tmp_path / "study.db", kind_of=lambda _: kind)


@pytest.mark.parametrize("use", [connect, migrate.upgrade, migrate.make_sqlite])
def test_no_file_is_made_on_a_network_file_system(tmp_path, monkeypatch, use):
    monkeypatch.setattr(urls.refuse_network_file_system, "__defaults__", (lambda _: "nfs4",))

    with pytest.raises(StorageError, match="network file system"):
        use(f"sqlite:///{tmp_path}/study.db")

    assert list(tmp_path.iterdir()) == []


MOUNTS = r"""
/dev/sda1 / ext4 rw 0 0
server:/home {root}/home nfs4 rw 0 0
/dev/sdb1 {root}/home/local xfs rw 0 0
server:/odd {root}/my\040dätä nfs rw 0 0
server:/near {root}/near lustre rw 0 0
""".lstrip()


@pytest.mark.parametrize(
    ("folder", "kind"),
    [
        ("", "ext4"),
        ("home", "nfs4"),
        ("home/ada", "nfs4"),
        ("home/local/x", "xfs"),
        ("home/localities", "nfs4"),
        ("my dätä", "nfs"),
        ("nearby", "ext4"),
    ],
)
def test_file_system_of_a_path_is_the_file_system_of_its_innermost_mount(tmp_path, folder, kind):
    mounts = tmp_path / "mounts"
    mounts.write_text(MOUNTS.format(root=tmp_path))

    assert urls.file_system_of(tmp_path / folder, mounts) == kind


def test_file_system_is_unknown_on_a_host_without_a_list_of_mounts(tmp_path):
    assert urls.file_system_of(tmp_path, tmp_path / "no mounts") == ""


IN_MEMORY = "in memory is lost with its process…Give a file: sqlite:///studydb.db"


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("sqlite://", IN_MEMORY),
        ("sqlite:///:memory:", IN_MEMORY),
        ("sqlite:///file:x?mode=memory&uri=true", IN_MEMORY),
        ("sqlite:///x.db?mode=ro", "An SQLite URL takes no options…'mode'…its rights"),
        ("sqlite:///what?now.db", "write a '?' in a file's name as %3F"),
        ("sqlite:///x.db?password=secret", "'sqlite:///x.db?password=***' has 'password'"),
        ("postgresql://u:secret", "is no storage URL"),
        ("postgresql://u:x/secret?y", "'postgresql://u:***' is no storage URL"),
        (
            "studydb.db",
            "is no storage URL. Write sqlite:///studydb.db or postgresql://user@host/database",
        ),
        ("mysql://u:secret@h/d", "not in 'mysql'"),
        ("u:secret@h", "is no storage URL"),
        ("postgresql://h/d?pooler=session", "`pooler` can only be `transaction`"),
    ],
)
def test_unsupported_url_is_refused_and_its_password_is_not_shown(url, why):
    with pytest.raises(UsageError, match=pattern(why)) as refusal:
        connect(url)

    assert "secret" not in str(refusal.value)


def test_old_sqlite_is_refused(sqlite_url, monkeypatch):
    monkeypatch.setattr(connecting, "SQLITE_OLDEST", (99, 0, 0))

    with pytest.raises(StorageError, match=r"SQLite .* is too old"):
        connect(sqlite_url)
