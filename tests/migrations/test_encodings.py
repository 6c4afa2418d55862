"""
A PostgreSQL database whose encoding is not UTF-8 is refused when a client connects.

A client uses UTF-8 whatever PGCLIENTENCODING says. An SQLite file in UTF-16 holds every text.
"""

import os
import shlex
import sqlite3
import subprocess
import uuid
from contextlib import closing

import pytest
from harness import arrange, postgres

import studydb
from studydb.db import connect, migrate
from studydb.domain.errors import StorageError

TEXT = "\N{RIGHTWARDS ARROW}\N{GRINNING FACE}"


@pytest.fixture(params=["SQL_ASCII", "LATIN1", "EUC_JP"])
def non_utf8_url(request, postgres_server):
    name = f"studydb_non_utf8_{uuid.uuid4().hex}"
    with postgres.connect(postgres_server) as connection:
        connection.execute(
            f"CREATE DATABASE {name} TEMPLATE template0 ENCODING '{request.param}' LOCALE 'C'"
        )
    yield postgres.database_url(postgres_server, name)
    postgres.drop_database(postgres_server, name)


def create_study(url, metric="loss", name="digits"):
    return studydb.create_study(name, None, metric=metric, mode="min", num_trials=1, storage=url)


def downgrade(url):
    migrate.downgrade(url, "base")


@pytest.mark.parametrize(
    "use",
    [connect, migrate.check, migrate.current, migrate.upgrade, downgrade, create_study],
)
def test_database_that_is_not_utf8_is_refused(non_utf8_url, use):
    with pytest.raises(StorageError, match=r"cannot hold every text.*: createdb --host .*"):
        use(non_utf8_url)

    with postgres.connect(non_utf8_url) as connection:
        assert connection.execute(
            "SELECT count(*) FROM pg_tables WHERE schemaname = 'public'"
        ).fetchone() == (0,)


def test_createdb_command_in_the_error_makes_a_usable_database(non_utf8_url):
    with pytest.raises(StorageError) as refusal:
        migrate.upgrade(non_utf8_url)
    program, *words = shlex.split(str(refusal.value).partition(": createdb")[2])
    line = [str(postgres._wheel_binaries() / "createdb"), program, *words]

    subprocess.run(line, check=True, env=os.environ | {"PGCLIENTENCODING": "LATIN1"})

    made = postgres.database_url(non_utf8_url, words[-1])
    try:
        assert migrate.upgrade(made) == ""
    finally:
        postgres.drop_database(non_utf8_url, words[-1])


def test_error_about_the_encoding_shows_no_password():
    url = connect("postgresql://ann:hunter2@host:5433/studies", check=False).secret_url

    with pytest.raises(StorageError) as refusal:
        studydb.db.urls.check_encoding("LATIN1", url)

    assert "hunter2" not in str(refusal.value)
    assert "--host host --port 5433 --username ann" in str(refusal.value)


@pytest.mark.parametrize("encoding", ["SQL_ASCII", "LATIN1"])
def test_client_uses_utf8_whatever_pgclientencoding_says(postgres_url, encoding, monkeypatch):
    monkeypatch.setenv("PGCLIENTENCODING", encoding)
    study = create_study(postgres_url, metric=TEXT, name=TEXT)

    with study.ask() as trial:
        trial.report({TEXT: 0.5})

    assert study.best_value == 0.5
    assert study.trials_dataframe()["study"].tolist() == [TEXT]
    study.close()


def test_sqlite_file_in_utf16_holds_every_text(tmp_path):
    path = tmp_path / "utf16.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript("PRAGMA encoding='UTF-16'; CREATE TABLE x (y); DROP TABLE x")
    url = f"sqlite:///{path}"
    migrate.upgrade(url)
    study = studydb.create_study(
        TEXT,
        None,
        space={TEXT: studydb.choice([TEXT])},
        metric=TEXT,
        mode="min",
        num_trials=2,
        scheduler=studydb.ASHA(max_t=3, grace_period=1),
        storage=url,
    )

    while trial := study.ask():
        with trial:
            for step in (1, 2, 3):
                trial.report({TEXT: 1 / step})

    database = connect(url)
    assert arrange.rows(database, "PRAGMA encoding") == [("UTF-16le",)]
    database.close()
    assert study.best_params == {TEXT: TEXT}
    assert study.results_dataframe()[TEXT].tolist()[:3] == [1, 1 / 2, 1 / 3]
    study.close()
