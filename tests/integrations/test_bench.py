"""scripts/bench measures a little of everything and says what it measured."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import postgres
import pytest

ROOT = Path(__file__).parents[2]

A_MOMENT = ("--rounds", "1", "--seconds", "0.05", "--json")

needs_optuna = pytest.mark.skipif(find_spec("optuna") is None, reason="Optuna is an extra")


def run(*arguments, **environment):
    return subprocess.run(
        [sys.executable, ROOT / "scripts" / "bench", *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize(
    ("command", "rivals"),
    [
        (
            ["trial", "--without-optuna"],
            {"raw, 4 calls a step", "raw, 1 call a step", "raw, 2 calls a trial"},
        ),
        (["claim"], {"raw, 1 call"}),
        (["report", "--rows", "10"], {"raw, 1 call a batch"}),
    ],
    ids=["trial", "claim", "report"],
)
def test_every_contender_is_measured_beside_studydb(postgres_server, command, rivals):
    ran = run(*command, *A_MOMENT, "--processes", "2", **{postgres.DSN_VARIABLE: postgres_server})

    assert ran.returncode == 0, ran.stderr
    measured = json.loads(ran.stdout)["processes"]["2"]
    assert all(rate > 0 for rate in measured["median"].values())
    assert set(measured["ratios"]["studydb"]) == rivals
    assert rivals < set(measured["median"])


def test_slices_are_as_many_as_rounds_at_each_number_of_processes():
    turns = ("--rounds", "3", "--seconds", "0.05", "--processes", "1", "--processes", "2")

    ran = run("trial", "--storage", "sqlite", "--without-optuna", "--json", *turns)

    assert ran.returncode == 0, ran.stderr
    measured = json.loads(ran.stdout)["processes"]
    assert set(measured) == {"1", "2"}
    assert {len(rates) for one in measured.values() for rates in one["slices"].values()} == {3}


@needs_optuna
def test_optuna_is_measured_in_both_of_its_storages_on_sqlite():
    ran = run("trial", "--storage", "sqlite", *A_MOMENT, "--processes", "1")

    assert ran.returncode == 0, ran.stderr
    rivals = json.loads(ran.stdout)["processes"]["1"]["ratios"]["studydb"]
    assert set(rivals) == {"Optuna RDBStorage", "Optuna JournalStorage"}


def test_people_get_a_table():
    ran = run(
        "trial", "--storage", "sqlite", "--without-optuna", *A_MOMENT[:-1], "--processes", "1"
    )

    assert ran.returncode == 0, ran.stderr
    assert "trials/s" in ran.stdout
    assert "ratios of medians" in ran.stdout


def test_missing_optuna_is_named_with_the_command_that_installs_it(tmp_path):
    (tmp_path / "optuna.py").write_text("raise ModuleNotFoundError('optuna')")

    ran = run("trial", "--storage", "sqlite", PYTHONPATH=str(tmp_path))

    assert ran.returncode == 2
    assert "pip install" in ran.stderr
    assert "[bench]" in ran.stderr
    assert "Traceback" not in ran.stderr


def test_failure_of_a_measured_process_ends_the_run_with_its_words(tmp_path):
    code = (
        "import sys; sys.path[:0] = [sys.argv[1] + '/scripts', sys.argv[1]]\n"
        "from benchmarks.teams import Plan, Team\n"
        "from benchmarks import ours\n"
        "if __name__ == '__main__':\n"
        "    with Team(Plan(ours.build, {'url': 'sqlite:///' + sys.argv[2]}), 2) as team:\n"
        "        team.ready()\n"
    )
    script = tmp_path / "failing.py"
    script.write_text(code)

    ran = subprocess.run(
        [sys.executable, script, ROOT, tmp_path / "missing.db"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert ran.returncode == 1
    assert "There is no database at" in ran.stderr
