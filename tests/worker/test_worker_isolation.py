"""
The process that runs user code inherits no credential, connection or code of the database.

No process of user code outlives its worker.
"""

import json
import re
from urllib.parse import quote

import pytest
from harness.postgres import DSN_VARIABLE

SECRET = "correct-horse"


@pytest.mark.nightly
def test_child_inherits_no_credential_no_connection_and_no_database_code(stage, monkeypatch):
    monkeypatch.delenv(DSN_VARIABLE, raising=False)  # a variable of the tests, not of workers
    if stage.storage.startswith("postgresql"):
        stage.storage = stage.storage.replace("postgres@", f"postgres:{quote(SECRET)}@")
    stage.create("obedient:inspected")
    variables = {
        "PGPASSWORD": SECRET,
        "PGUSER": "postgres",
        "STUDYDB_SIGNING_KEY": "cd" * 32,
        "HARMLESS": "kept",
    }

    worker = stage.fleet.start(environment=variables, allow_import="obedient")

    assert worker.exit_code() == 0, worker.output()
    assert stage.trial().reason == "COMPLETED"
    facts = json.loads((stage.folder / "facts.json").read_text())
    expect_no_credentials(facts)
    expect_no_connection(facts["open here"], facts["open in the fork server"])
    expect_no_database_code(facts["modules"])


def expect_no_credentials(facts):
    names = set(facts["environment"])
    assert facts["environment"]["HARMLESS"] == "kept"
    assert not [name for name in names if name.startswith("PG")]
    assert not names & {"STUDYDB_STORAGE", "STUDYDB_SIGNING_KEY"}
    everything = json.dumps(facts)
    secrets = (SECRET, "postgresql://", "sqlite://", "cd" * 32)
    assert not [secret for secret in secrets if secret in everything]


def expect_no_connection(of_child, of_fork_server):
    kinds = {number: target.partition(":")[0] for number, target in of_child.items()}
    assert [kinds.pop(number) for number in ("0", "1", "2")] == ["/dev/null", "pipe", "pipe"]
    assert [*kinds.values()].count("socket") == 1
    inherited = {target for number, target in of_child.items() if number in kinds}
    assert not inherited & set(of_fork_server.values())
    # The attempt was started warm, so its parent process is the template, not the fork server. Like
    # a fork server, the template has a socket to the worker, and both ends of the socket pair that
    # wakes the template.
    assert [target.partition(":")[0] for target in of_fork_server.values()].count("socket") == 3
    opened = [*of_child.values(), *of_fork_server.values()]
    assert not [target for target in opened if "studydb.db" in target]


def expect_no_database_code(modules):
    packages = {name.partition(".")[0] for name in modules}
    assert {"studydb", "obedient"} <= packages
    assert not packages & {"sqlalchemy", "psycopg", "psycopg_binary", "sqlite3", "alembic"}
    assert not [name for name in modules if re.match(r"studydb\.(db|store|operations)", name)]


@pytest.mark.slow
def test_no_process_outlives_its_worker(stage):
    stage.create("misbehaving:leaves_processes", num_trials=2)

    worker = stage.start(slots=2)

    assert worker.exit_code() == 0, worker.output()
    assert worker.family() == []
