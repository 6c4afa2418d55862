"""scripts/bench --against compares the working tree with an earlier commit."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from harness import postgres
from harness.commands import run_command

pytestmark = pytest.mark.bench

ROOT = Path(__file__).parents[2]

sys.path.append(str(ROOT / "scripts"))

from benchmarks import programs  # noqa: E402  needs the path above
from benchmarks.against import Comparison  # noqa: E402

SLOWER = """
_fast = finish


def finish(*arguments, **options):
    import time

    time.sleep(0.05)
    return _fast(*arguments, **options)
"""

CACHES = shutil.ignore_patterns("__pycache__", ".hypothesis")

TWO_SHORT_ROUNDS = ("--rounds", "2", "--seconds", "0.05", "--processes", "1", "--json")


@pytest.fixture
def checkout(tmp_path):
    """A git repository with one commit, which holds a copy of the measured files."""
    target = tmp_path / "checkout"
    for folder in ("studydb", "alembic", "scripts", "tests"):
        shutil.copytree(ROOT / folder, target / folder, ignore=CACHES)
    shutil.copy(ROOT / "pyproject.toml", target)
    git(target, "init", "--quiet")
    git(target, "add", ".")
    git(target, "commit", "--quiet", "--message", "As it was")
    return target


def git(checkout, *arguments):
    identity = ("-c", "user.name=tester", "-c", "user.email=tester@localhost")
    subprocess.run(["git", *identity, *arguments], cwd=checkout, check=True)


def bench(checkout, *arguments, **environment):
    command = [sys.executable, checkout / "scripts" / "bench", *arguments]
    return run_command(command, env={**os.environ, **environment}, timeout=240)


@pytest.mark.parametrize(
    ("command", "contenders"),
    [
        (["trial"], ["studydb", "studydb flushing"]),
        (["report", "--rows", "10"], ["studydb"]),
    ],
    ids=["trial", "report"],
)
def test_bench_with_against_measures_the_working_tree_and_the_commit_in_turns(
    checkout, postgres_server, command, contenders
):
    server = {postgres.DSN_VARIABLE: postgres_server}

    ran = bench(checkout, *command, "--against", "HEAD", *TWO_SHORT_ROUNDS, **server)

    measured = json.loads(ran.stdout)
    assert [one["contender"] for one in measured["comparisons"]] == contenders
    assert measured["conditions"]["against"] == "HEAD"
    for one in measured["comparisons"]:
        assert len(one["new"]) == len(one["old"]) == 2
        assert one["interval"][0] <= one["interval"][1]
    assert ran.returncode == any(one["slower"] for one in measured["comparisons"]), ran.stderr


def test_slower_working_tree_is_reported_with_exit_code_1(checkout):
    with (checkout / "studydb" / "operations" / "finish.py").open("a") as code:
        code.write(SLOWER)
    rounds = ("--rounds", "4", "--seconds", "0.2", "--processes", "1")

    ran = bench(checkout, "trial", "--storage", "sqlite", "--against", "HEAD", *rounds)

    assert ran.returncode == 1, ran.stderr
    assert "slower" in ran.stdout


def test_working_tree_with_a_renamed_column_can_be_compared_with_its_commit(
    checkout, postgres_server
):
    for path in checkout.rglob("*.py"):
        path.write_text(re.sub(r"\bpriority\b", "precedence", path.read_text()))
    server = {postgres.DSN_VARIABLE: postgres_server}

    ran = bench(checkout, "claim", "--against", "HEAD", *TWO_SHORT_ROUNDS, **server)

    assert ran.stdout, ran.stderr
    (measured,) = json.loads(ran.stdout)["comparisons"]
    assert min(measured["new"] + measured["old"]) > 0


def test_error_for_an_unknown_commit_names_the_commit(checkout):
    ran = bench(checkout, "trial", "--storage", "sqlite", "--against", "nowhere")

    assert ran.returncode == 2
    assert "'nowhere'" in ran.stderr
    assert "Traceback" not in ran.stderr


@pytest.mark.parametrize(
    ("new", "old", "is_slower"),
    [
        ([90, 91, 89, 90, 92], [100, 101, 99, 100, 102], True),
        ([97, 98, 96, 97, 98], [100, 101, 99, 100, 102], False),
        ([60, 120, 90, 70, 140], [100, 80, 130, 99, 101], False),
        ([120, 121, 119, 122, 118], [100, 101, 99, 100, 102], False),
    ],
    ids=["slower", "within 5 %", "noise", "faster"],
)
def test_only_a_loss_of_speed_above_5_per_cent_and_above_the_noise_is_called_slower(
    new, old, is_slower
):
    comparison = Comparison(1, "studydb", new, old)

    low, high = comparison.interval()

    assert low <= comparison.ratio <= high
    assert comparison.is_slower() is is_slower


@pytest.mark.parametrize("slowdown", [1.0, 2.0], ids=["as fast", "slower"])
def test_compare_programs_runs_both_versions_in_turns(monkeypatch, capsys, slowdown):
    ran = []

    def run(checkout, arguments):
        ran.append("new" if checkout == ROOT else "old")
        return {"seconds": slowdown if checkout == ROOT else 1.0}

    monkeypatch.setattr(programs, "_run", run)
    monkeypatch.setattr(programs, "given", lambda _name, otherwise: otherwise)
    program = programs.Program(
        "runs/s", ("start",), lambda found: {"studydb": 1 / found["seconds"]}, 1
    )

    try:
        programs.compare_programs(program, "HEAD", as_json=True)
        code = 0
    except SystemExit as end:
        code = end.code

    assert ran == ["old", "new", "new", "old"] * 4 + ["old", "new"]
    printed = capsys.readouterr()
    assert json.loads(printed.out)["comparisons"][0]["ratio"] == 1 / slowdown
    shown = re.findall(r"Round \d, .* runs/s: studydb \S+ and 1\.\n", printed.err)
    assert len(shown) == programs.ROUNDS
    assert code == (1 if slowdown > 1 else 0)
