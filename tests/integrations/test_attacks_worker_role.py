"""
Attacks on workers and on readers by a login that has only the worker role.

SQLite has no roles: there the attacker writes the same rows, and these rows must do no harm.
"""

import hashlib
import io
import os
import pickle
import tarfile
import uuid
from pathlib import Path

import pytest
from fleet.stage import Stage
from harness import arrange, postgres
from harness.commands import reading_commands

import studydb
from studydb.artifacts import DirectoryStore, Place
from studydb.db import connect
from studydb.db.role_script import Roles
from studydb.db.schema import attempt, checkpoint
from studydb.domain.roles import Role

pytestmark = pytest.mark.each_database


@pytest.fixture
def attacker_url(storage_url):
    """The attacker's storage URL; on PostgreSQL the login in it has the worker role."""
    if storage_url.startswith("sqlite"):
        yield storage_url
        return
    suffix = uuid.uuid4().hex[:8]
    groups = {str(role): f"studydb_{role}_{suffix}" for role in Role}
    login = f"mallory_{suffix}"
    database = postgres.database_in(storage_url)
    with postgres.connect(storage_url) as connection:
        script = Roles(database, "public", **groups, members=((login, Role.WORKER),)).script()
        connection.execute(script)
    yield storage_url.replace("postgres@", f"{login}@")
    postgres.drop_roles(storage_url, [*groups.values(), login])


@pytest.fixture
def attack(attacker_url):
    database = connect(attacker_url)
    yield lambda sql: arrange.change(database, sql)
    database.close()


@pytest.fixture
def stage(storage_url, attacker_url, tmp_path):
    """A stage on which the owner creates the study, and the workers log in as the attacker."""
    with Stage(storage_url, tmp_path) as stage:
        stage.worker_url = attacker_url
        yield stage


def create(stage, trainable, **options):
    study = stage.create(trainable, **options)
    stage.fleet.storage = stage.worker_url
    return study


def insert_checkpoint_sql(stage, data, *, kind, url, mac="00" * 32, key_id="0" * 16, step=1):
    """A statement that inserts a checkpoint's row; a login with the worker role may run it."""
    prefix = r"'\x" if stage.study.database.postgresql else "x'"
    blob = f"{prefix}{data.hex()}'"
    digest = hashlib.sha256(data).hexdigest()
    return (
        "INSERT INTO checkpoint (uuid, study_id, trial_id, attempt, step, kind, url, digest, "
        f"size_bytes, key_id, mac, data, pins, created_at) SELECT '{uuid.uuid4()}', study_id, id, "
        f"1, {step}, '{kind}', '{url}', '{digest}', {len(data)}, '{key_id}', '{mac}', {blob}, 0, "
        "created_at FROM trial"
    )


class Evil:
    """Creates a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (Path(self.path),)


def archive_of(name, data):
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive:
        member = tarfile.TarInfo(name)
        member.size = len(data)
        archive.addfile(member, io.BytesIO(data))
    return packed.getvalue()


# --- checkpoints


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("storage_url", "is_signed"),
    [("sqlite", False), ("postgresql", True)],
    ids=["sqlite-no signature", "postgresql-a false signature"],
    indirect=["storage_url"],
)
def test_checkpoint_archive_without_a_valid_signature_is_not_opened(stage, attack, is_signed):
    study = create(stage, "loading:unpickling", max_failures=1)
    study.enqueue({})
    harm = stage.folder / "harm"
    data = archive_of("model", pickle.dumps(Evil(harm)))
    signature = {"key_id": "whatever", "mac": "ff" * 32} if is_signed else {}

    attack(insert_checkpoint_sql(stage, data, kind="directory", url="inline:", **signature))
    attack("UPDATE trial SET checkpoint_step = 1, checkpoint_id = (SELECT max(id) FROM checkpoint)")
    worker = stage.start()

    assert worker.exit_code(60) == 0, worker.output()
    assert not harm.exists()
    (event,) = stage.events("checkpoint corrupt")
    assert event["error"] == "The checkpoint is not signed by a key of this user."
    assert stage.trial().reason == "COMPLETED"


@pytest.mark.nightly
@pytest.mark.parametrize("storage_url", ["sqlite"], indirect=True)
def test_checkpoint_directory_that_a_worker_signed_is_restored(stage):
    create(stage, "loading:unpickling", max_failures=1)

    assert stage.run() == 0

    assert stage.events("checkpoint corrupt") == []
    assert [one.start_step for one in stage.attempts()] == [1, 2]


@pytest.mark.slow
def test_worker_does_not_delete_checkpoint_bytes_of_another_study(stage, attack, tmp_path):
    store = DirectoryStore(tmp_path / "store")
    others = Place(str(uuid.uuid4()), str(uuid.uuid4()), 1, 1, str(uuid.uuid4()))
    store.add_study(others.study_uuid)
    theirs = store.put_bytes(others, b"state of another study")
    study = create(stage, "obedient:gated", checkpoints=store.url)
    study.enqueue({})

    attack(insert_checkpoint_sql(stage, b"x", kind="dict", url=theirs.url))
    stage.open_gate("all")
    assert stage.run() == 0

    assert store.get_bytes(theirs.url, digest=theirs.digest) == b"state of another study"
    assert theirs.url not in {row.url for row in stage.rows(checkpoint)}


# --- paths


@pytest.mark.slow
def test_rows_with_a_path_as_their_uuid_are_refused(stage, attack):
    study = create(stage, "obedient:gated")
    study.enqueue({})
    stage.open_gate("all")
    assert stage.run() == 0

    for table in ("trial", "checkpoint", "worker"):
        columns = [column.name for column in checkpoint.metadata.tables[table].columns]
        kept = [name for name in columns if name not in ("id", "uuid", "number", "draw")]
        more = ", number" if table == "trial" else ""
        value = ", 999" if more else ""
        with pytest.raises(Exception, match=f"{table}_uuid_check"):
            attack(
                f"INSERT INTO {table} (uuid{more}, {', '.join(kept)}) "
                f"SELECT '../../../home'{value}, {', '.join(kept)} FROM {table}"
            )


@pytest.mark.slow
def test_logs_command_does_not_read_a_folder_whose_path_the_attacker_wrote(
    stage, attack, bare_console, tmp_path
):
    study = create(stage, "obedient:one_step")
    assert stage.run() == 0
    secret = tmp_path / "elsewhere"
    secret.mkdir()
    (secret / "stdout").write_text("a letter of Ada's")
    root = study.database.locations.log_root(study.record)

    for folder in (secret, f"{root}/../../elsewhere", f"{root}/0/../0/1"):
        attack(f"UPDATE attempt SET log_dir = '{folder}', log_tail = NULL")
        ran = bare_console("logs", study.name, "0", "--storage", stage.storage)
        assert "Ada" not in ran.out + ran.err


@pytest.mark.parametrize("storage_url", ["sqlite"], indirect=True)
def test_logs_command_does_not_open_links_or_pipes(stage, bare_console, tmp_path):
    study = create(stage, "obedient:one_step")
    assert stage.run() == 0
    folder = Path(stage.row(attempt).log_dir)
    folder.mkdir(parents=True, exist_ok=True)
    (tmp_path / "letter").write_text("a letter of Ada's")
    for name in ("stdout", "stderr"):
        (folder / name).unlink(missing_ok=True)
    (folder / "stdout").symlink_to(tmp_path / "letter")
    os.mkfifo(folder / "stderr")

    ran = bare_console("logs", study.name, "0", "--storage", stage.storage)

    assert "Ada" not in ran.out
    assert "has printed nothing" in ran.err


# --- proposals and trials


TRIAL = (
    "INSERT INTO trial (uuid, study_id, number, state, params, config, params_hash, space_version, origin, "
    "counted, priority, ready, resource_class, bracket, attempt, failures, losses, flush_no, "
    "checkpoint_step, n_results, created_at) SELECT '{uuid}', id, {number}, 'PENDING', {params}, {config}, 'h', "
    "1, 'enqueued', (1 = 1), -9, (1 = 1), '', 0, 0, 0, 0, 0, 0, 0, created_at FROM study"
)
COUNTED = "UPDATE counter SET pending = pending + 1 WHERE shard = (SELECT min(shard) FROM counter)"


def insert_trial(attack, params, config=None, *, number=500):
    """Insert a PENDING trial that is claimed first. The claim computes a missing config."""
    config = "NULL" if config is None else f"'{config}'"
    attack(TRIAL.format(uuid=uuid.uuid4(), number=number, params=f"'{params}'", config=config))
    attack(COUNTED)


def nested(levels):
    return "[" * levels + "]" * levels


INVALID_PARAMS = {
    "constant": ('{"command": "rm -rf", "lr": 0.5}', "'command' is the constant 'ls' in this"),
    "outside": ('{"lr": 7}', "'lr' is 7, which is not in"),
    "unknown": ('{"lr": 0.5, "hook": "os:system"}', "no parameter 'hook'"),
    "lacking": ("{}", "lack 'lr'"),
    "no dict": ("5", "not a dict"),
    "list": ('["lr"]', "not a dict"),
    "deep": (f'{{"lr": {nested(1500)}}}', "lr"),
    "digits": (f'{{"lr": 1{"0" * 5000}}}', "lr"),
}


OPTIONS_WITH_A_COMMAND = {
    "space": {"command": "ls", "lr": studydb.loguniform(0.1, 1.0)},
    "num_trials": 2,
    "guard": False,  # so that many trials that fail alike do not pause the study
}


@pytest.mark.slow
def test_inserted_trials_with_invalid_params_fail_before_they_run(stage, attack):
    create(stage, "loading:commanding", **OPTIONS_WITH_A_COMMAND)

    for number, (params, _) in enumerate(INVALID_PARAMS.values(), 500):
        insert_trial(attack, params, number=number)
    worker = stage.start()

    assert worker.exit_code(60) == 0, worker.output()
    for number, (_, why) in enumerate(INVALID_PARAMS.values(), 500):
        (failed,) = stage.attempts(number)
        assert failed.reason == "FAILED"
        assert failed.error_type == "studydb.InvalidSpec"
        assert isinstance(failed.config, dict), failed.config
        message = failed.error_message
        assert why in message or "JSON that studydb cannot read" in message
        assert "find out who wrote this row" in message
    assert (stage.folder / "ran").read_text() == "ls"
    assert [stage.trial(number).reason for number in (0, 1)] == ["COMPLETED"] * 2


INVALID_CONFIGS = {
    "another constant": ('{"command": "rm -rf", "lr": 0.5}', "'command' is the constant 'ls' in"),
    "no constant": ('{"lr": 0.5}', "lacks the constant 'command'"),
    "outside": ('{"command": "ls", "lr": 7}', "'lr' is 7, which is not in"),
    "unknown": ('{"command": "ls", "lr": 0.5, "hook": "os:system"}', "no parameter 'hook'"),
    "lacking": ('{"command": "ls"}', "lack 'lr'"),
    "null": ("null", "not a dict"),
    "no dict": ("5", "not a dict"),
    "list": ('["lr"]', "not a dict"),
    "deep list": (nested(900), ""),
    "deep": (f'{{"command": "ls", "lr": {nested(1500)}}}', ""),
    "deep constant": (f'{{"command": {nested(900)}, "lr": 0.5}}', ""),
    "constant in a list": ('{"command": [["ls"]], "lr": 0.5}', "'command' is the constant"),
    "digits": (f'{{"command": "ls", "lr": 1{"0" * 5000}}}', ""),
    "large": (f'{{"command": 1{"0" * 400}, "lr": 0.5}}', "'command' is the constant"),
}


@pytest.mark.slow
def test_inserted_trials_with_invalid_configs_fail_before_they_run(stage, attack):
    create(stage, "loading:commanding", **OPTIONS_WITH_A_COMMAND)

    constants = f'"x": 0.25, "folder": "{stage.folder}"'  # the other constants of the staged study
    for number, (config, _) in enumerate(INVALID_CONFIGS.values(), 500):
        whole = f"{config[:-1]}, {constants}}}" if config.startswith("{") else config
        insert_trial(attack, '{"lr": 0.5}', whole, number=number)
    worker = stage.start()

    assert worker.exit_code(60) == 0, worker.output()
    for number, (_, why) in enumerate(INVALID_CONFIGS.values(), 500):
        (failed,) = stage.attempts(number)
        assert (failed.reason, failed.error_type) == ("FAILED", "studydb.InvalidSpec")
        assert isinstance(failed.config, dict), failed.config
        assert why in failed.error_message
        assert "find out who wrote this row" in failed.error_message
    assert (stage.folder / "ran").read_text() == "ls"
    assert [stage.trial(number).reason for number in (0, 1)] == ["COMPLETED"] * 2


def test_trials_of_forged_proposals_fail_before_they_run(stage, attack):
    create(stage, "loading:commanding", **OPTIONS_WITH_A_COMMAND)
    constants = f'"x": 0.25, "folder": "{stage.folder}"'  # the other constants of the staged study
    honest, forged = (
        f'{{"lr": 0.5, "command": "{word}", {constants}}}' for word in ("ls", "rm -rf")
    )
    forged_params = '{"lr": 0.5, "command": "rm -rf"}'

    for draw, (params, config) in enumerate([(forged_params, honest), ('{"lr": 0.5}', forged)]):
        attack(
            "INSERT INTO proposal (study_id, draw, params, params_hash, config, origin, "
            f"space_version, bracket, proposed_at) SELECT id, {draw}, '{params}', 'h', "
            f"'{config}', 'searcher', 1, 0, created_at FROM study"
        )
    assert stage.run() == 3  # the exit code if no trial has completed

    for number in (0, 1):
        (failed,) = stage.attempts(number)
        assert "'command' is the constant 'ls' in" in failed.error_message
    assert [stage.trial(number).reason for number in (0, 1)] == ["FAILED"] * 2
    assert not (stage.folder / "ran").exists()


def test_own_loop_receives_no_inserted_trial_with_invalid_params(
    attacker_url, attack, storage_url, create_study, load_study
):
    made = create_study("mine", storage=storage_url, **OPTIONS_WITH_A_COMMAND | {"num_trials": 1})
    insert_trial(attack, '{"lr": 0.5, "command": "rm -rf"}')

    study, seen = load_study("mine", storage=attacker_url), []
    while trial := study.ask():
        with trial:
            seen.append((trial.number, trial.config["command"]))
            trial.report({"loss": 0.5})

    assert seen == [(0, "ls")]
    assert made.trials[1].reason == "FAILED"


# --- reading


@pytest.mark.nightly
def test_reading_commands_print_rows_of_any_content(stage, attack, bare_console, monkeypatch):
    study = create(stage, "obedient:one_step")
    assert stage.run() == 0
    monkeypatch.setenv("STUDYDB_STORAGE", stage.storage)

    numbers = range(500, 500 + len(INVALID_PARAMS))
    for number, (params, _) in zip(numbers, INVALID_PARAMS.values(), strict=True):
        insert_trial(attack, params, number=number)
        attack(f"UPDATE trial SET metric_summary = '{params}' WHERE number IN (0, {number})")
        attack(
            "INSERT INTO event (study_id, trial_id, kind, actor, data, at) SELECT study_id, id, "
            f"'checkpoint failed', 'worker', '{params}', created_at FROM trial"
        )
        attack(
            "INSERT INTO result (study_id, trial_id, attempt, step, value, metrics, reported_at) "
            f"SELECT study_id, id, 1, {number}, 0.5, '{params}', created_at FROM trial "
            "WHERE number = 0"
        )
        for form in ("table", "json"):  # each pass of the outer loop changes trial 0
            assert bare_console("show", "staged", "0", "--format", form).out

    shown = [("show", "staged", str(number)) for number in numbers]
    for arguments in (*reading_commands("staged"), *shown):
        for form in ("table", "json"):
            assert bare_console(*arguments, "--format", form).out
    assert {trial.number for trial in study.trials} == {0, *numbers}
