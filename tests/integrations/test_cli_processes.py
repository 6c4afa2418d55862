"""What a `studydb` process imports and prints, how it ends, and that `hello` runs a study."""

import json
import os
import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from fleet.preloaded import run_studydb
from fleet.workers import eventually
from harness import arrange
from harness.commands import run_command

import studydb
from studydb.cli.commands import COMMANDS
from studydb.db import connect
from studydb.domain.records import Request
from studydb.operations import reads
from studydb.operations.enqueue import enqueue

ROOT = Path(__file__).parents[2]

TRAINABLE = """
import sys
import time
from pathlib import Path

def train(config, trial):
    for step in range(1, 4):
        print("step", step, flush=True)
        print("careful", file=sys.stderr, flush=True)
        trial.report({"loss": config["x"] / step})
    while config["wait"] and not Path("go").exists():
        time.sleep(0.02)
        trial.report({"loss": config["x"]})
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "mine.py").write_text(TRAINABLE)
    return tmp_path


def run_on_a_full_disk(folder, *arguments):
    with Path("/dev/full").open("w") as full:
        return subprocess.run(
            [sys.executable, "-m", "studydb", *arguments],
            check=False,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            cwd=folder,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
        )


FULL_DISK = (
    "studydb: The output cannot be written: No space left on device. "
    "If the command has changed the database, the changes are kept.\n"
)


def test_output_that_a_full_disk_cannot_take_is_an_error_without_a_traceback(folder):
    ended = run_on_a_full_disk(folder, "--help")

    assert (ended.returncode, ended.stderr) == (1, FULL_DISK)


def test_command_whose_output_a_full_disk_cannot_take_keeps_its_changes(folder):
    create = ("create", "mine", "--metric", "loss", "--mode", "min")

    ended = run_on_a_full_disk(folder, *create, "--storage", f"sqlite:///{folder}/studydb.db")

    assert (ended.returncode, ended.stderr) == (1, FULL_DISK)
    with closing(studydb.load_study("mine", storage=f"sqlite:///{folder}/studydb.db")) as study:
        assert study.status == "RUNNING"


def test_try_names_the_full_disk_and_not_the_users_code_if_its_output_fails(folder):
    storage = f"sqlite:///{folder}/studydb.db"
    space = {"x": studydb.uniform(0, 1), "wait": studydb.choice([False])}
    options = {"metric": "loss", "mode": "min", "storage": storage, "workdir": folder}
    with closing(studydb.create_study("mine", "mine:train", space=space, **options)):
        ended = run_on_a_full_disk(folder, "try", "mine", "--storage", storage)

    assert (ended.returncode, ended.stderr) == (1, FULL_DISK)


@pytest.fixture
def processes(folder):
    """Start commands in the folder; kill those that still run after the test."""
    started = []

    def start(*arguments):
        storage = f"sqlite:///{folder}/studydb.db"
        process = subprocess.Popen(
            [sys.executable, "-m", "studydb", *arguments],
            cwd=folder,
            env=os.environ | {"PYTHONPATH": str(ROOT), "STUDYDB_STORAGE": storage},
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        with process:
            process.kill()


@pytest.fixture
def command(folder):
    """Run a command in the folder, check that it succeeds, and return what it printed."""
    storage = f"sqlite:///{folder}/studydb.db"
    environment = os.environ | {"PYTHONPATH": str(ROOT), "STUDYDB_STORAGE": storage}

    def run(*arguments, constants=None):
        options = {"environment": environment, "constants": constants}
        code, printed = run_studydb(arguments, cwd=folder, **options)
        assert code == 0, printed
        assert "Traceback" not in printed
        return printed

    return run


def test_help_loads_neither_database_nor_numpy_nor_rich(folder):
    code = """
import json, sys, time
from studydb.__main__ import main
try:
    main(["--help"])
except SystemExit as end:
    assert end.code == 0
loaded = sorted({name.partition(".")[0] for name in sys.modules})
print(json.dumps([loaded, time.process_time()]), file=sys.stderr)
"""
    importing_click = "import time, click; print(time.process_time())"

    ran = run_command([sys.executable, "-c", code], cwd=ROOT)

    loaded, cpu_s = json.loads(ran.stderr)
    click_s = float(run_command([sys.executable, "-c", importing_click], cwd=ROOT).stdout)
    assert not set(loaded) & {"sqlalchemy", "psycopg", "alembic", "numpy", "rich", "pandas"}
    assert cpu_s < 2 * click_s
    assert "  hello " in ran.stdout


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_prints_its_help_without_a_database(bare_console, name):
    ran = bare_console(name, "--help")

    assert ran.out.startswith(f"Usage: studydb {name}")
    assert name in bare_console("--help").out


def test_command_line_without_a_command_prints_the_help(bare_console):
    for line in ((), ("db",)):
        assert bare_console(*line, code=2).err.startswith("Usage: studydb")


def test_version_is_printed(bare_console):
    assert bare_console("--version").out.startswith("studydb, version ")


def test_working_directory_comes_first_on_sys_path(bare_console, here):
    bare_console("--version")

    assert sys.path[0] == str(here)


@pytest.mark.nightly
def test_listing_ends_without_an_error_when_its_reader_closes_the_pipe(processes, sqlite_url):
    database = connect(sqlite_url)
    study = arrange.new_study(database, name="digits", num_trials=None)
    for number in range(400):
        enqueue(database, study, {}, Request(f"{number:032x}", "ada"))
    database.close()

    for form in ("csv", "json", "table"):
        process = processes("trials", "digits", "--format", form)
        process.stdout.readline()
        process.stdout.close()
        process.stdout = None
        _, err = process.communicate(timeout=60)

        assert err == ""


@pytest.mark.nightly
def test_table_in_a_pipe_has_whole_cells_without_colours(command, processes, sqlite_url):
    long = "x" * 300
    command("create", "digits", "--metric", "loss", "--mode", "min", "--param", "x=choice([1])")
    command("create", long[:200], "--metric", long[:200], "--mode", "min")

    out, err = processes("studies").communicate(timeout=60)

    assert err == ""
    assert "\x1b" not in out
    assert f"{long[:200]}  RUNNING  {long[:200]}" in out


RUNNING = "SELECT number FROM v_trial WHERE state = 'RUNNING'"


@pytest.fixture
def followed(command, processes, sqlite_url):
    """A worker whose trial waits for the file `go`, and a `logs --follow` of that trial."""
    command(*CREATE, "--param", "wait=true", "--num-trials", "1")
    worker = processes("worker", "--study", "mine", "--slots", "2", "--lease", "30")
    with closing(connect(sqlite_url)) as database:
        eventually(lambda: arrange.rows(database, RUNNING))
    follower = processes("logs", "mine", "0", "--follow")
    assert follower.stdout.readline() == "step 1\n"
    return worker, follower


@pytest.mark.nightly
def test_interrupted_commands_exit_with_130(command, followed):
    worker, follower = followed

    follower.send_signal(signal.SIGINT)
    _, err = follower.communicate(timeout=30)
    worker.send_signal(signal.SIGINT)
    _, worker_err = worker.communicate(timeout=60)

    assert (follower.returncode, worker.returncode) == (130, 130)
    assert "Traceback" not in err + worker_err
    assert command("trials", "mine", "--format", "json").count("PENDING") == 1


@pytest.mark.nightly
@pytest.mark.row("B14")
def test_logs_follow_prints_the_output_of_a_running_trial_to_its_end(command, followed, folder):
    worker, follower = followed

    (folder / "go").touch()
    out, err = follower.stdout.read(), follower.stderr.read()
    worker.communicate(timeout=60)

    assert (follower.wait(30), worker.returncode) == (0, 0)
    assert out == "step 2\nstep 3\n"
    assert err == "careful\n" * 3
    assert "TERMINATED: COMPLETED" in command("show", "mine", "0")


@pytest.mark.slow
def test_hello_runs_a_study_and_extends_it_when_run_again(command, folder):
    out = command("hello")
    again = command("hello", constants={"cli.hello.TRIALS": 2, "cli.hello.WORKERS": 1})
    best = command("best", "hello")

    assert "Best loss (min): " in out
    assert "Trials: 20 TERMINATED" in out
    assert "Trials: 22 TERMINATED" in again
    assert "\n  studydb trials hello --sort best --limit 5\n" in out
    assert best.startswith("best loss (min)  ")
    database = connect(f"sqlite:///{folder}/studydb.db")
    assert [row.study for row in reads.list_studies(database)] == ["hello"]
    database.close()


CREATE = (
    *("create", "mine", "--trainable", "mine:train", "--metric", "loss", "--mode", "min"),
    *("--param", "x=uniform(0, 1)"),
)
