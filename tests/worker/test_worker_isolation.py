"""What reaches the process that runs the user's code: nothing of the database."""

import json
import re
from urllib.parse import quote

import pytest
from harness.postgres import DSN_VARIABLE

SECRET = "correct-horse"


@pytest.fixture
def told(stage, monkeypatch):
    """What a trainable saw in a worker that was given every kind of secret."""
    monkeypatch.delenv(DSN_VARIABLE, raising=False)  # the tests' own
    if stage.storage.startswith("postgresql"):
        stage.storage = stage.storage.replace("postgres@", f"postgres:{quote(SECRET)}@")
    stage.create("obedient:inspected")
    secrets = {"PGPASSWORD": SECRET, "PGUSER": "postgres", "STUDYDB_SIGNING_KEY": "cd" * 32}

    worker = stage.fleet.start(environment=secrets, allow_import="obedient")

    assert worker.exit_code() == 0, worker.output()
    assert stage.trial().reason == "COMPLETED"
    return json.loads((stage.folder / "told.json").read_text())


def test_child_inherits_no_credential_no_connection_and_no_database_code(told):
    names = set(told["environment"])
    everything = json.dumps(told)

    assert not [name for name in names if name.startswith("PG")]
    assert not names & {"STUDYDB_STORAGE", "STUDYDB_SIGNING_KEY"}
    assert not [
        word for word in (SECRET, "postgresql://", "sqlite://", "cd" * 32) if word in everything
    ]


def test_child_inherits_no_descriptor_but_its_own_channel(told):
    opened = told["open here"]

    standard = {name: opened.pop(name) for name in ("0", "1", "2")}
    channel = [target for target in opened.values() if target.startswith("socket:")]

    assert standard["0"] == "/dev/null"
    assert all(re.match(r"pipe:", standard[name]) for name in ("1", "2"))
    assert len(channel) == 1
    assert not set(opened.values()) & set(told["open in the fork server"].values())
    assert not [target for target in opened.values() if "studydb.db" in target]


def test_fork_server_was_started_before_there_was_a_connection(told):
    opened = told["open in the fork server"]

    sockets = [target for target in opened.values() if target.startswith("socket:")]

    assert len(sockets) == 3  # to the supervisor, and both ends of its own alarm
    assert not [target for target in opened.values() if "studydb.db" in target]


def test_child_has_loaded_no_database_code(told):
    packages = {name.partition(".")[0] for name in told["modules"]}

    assert {"studydb", "numpy", "obedient"} <= packages
    assert not packages & {"sqlalchemy", "psycopg", "psycopg_binary", "sqlite3", "alembic"}
    assert not [
        name for name in told["modules"] if re.match(r"studydb\.(db|store|operations)", name)
    ]


def test_no_process_outlives_its_worker(stage):
    stage.create("misbehaving:leaves_processes", num_trials=2)

    worker = stage.start(slots=2)

    assert worker.exit_code() == 0, worker.output()
    assert worker.family() == []
