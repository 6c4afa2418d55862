"""
Commands of scripts/bench print measured values, also in short runs.

Some tests also check that the values are within limits.
"""

import json
import os
import sys
from importlib.util import find_spec
from pathlib import Path
from statistics import median

import pytest
from click.testing import CliRunner
from fleet import invariants
from harness import postgres
from harness.commands import run_command

import studydb
from studydb.domain.life.states import Mode

pytestmark = pytest.mark.bench

ROOT = Path(__file__).parents[2]

sys.path.append(str(ROOT / "scripts"))

from benchmarks import burden, cli_usage, loading, real, schedulers, space  # noqa: E402  needs the path above
from benchmarks.found import Found  # noqa: E402

ONE_SHORT_ROUND = ("--rounds", "1", "--seconds", "0.05", "--json")

needs_optuna = pytest.mark.skipif(find_spec("optuna") is None, reason="Optuna is not installed")


def run(*arguments, **environment):
    command = [sys.executable, ROOT / "scripts" / "bench", *arguments]
    return run_command(command, env={**os.environ, **environment})


@pytest.mark.parametrize(
    ("command", "baselines"),
    [
        (
            ["trial", "--without-optuna"],
            {"raw, 4 calls a step", "raw, 1 call a step", "raw, 2 calls a trial"},
        ),
        (["claim"], {"raw, 1 call"}),
        (["ask"], {"raw, 1 call"}),
        (["report", "--rows", "10"], {"raw, 1 call a batch"}),
    ],
    ids=["trial", "claim", "ask", "report"],
)
def test_benchmark_measures_every_baseline_beside_studydb(postgres_server, command, baselines):
    ran = run(
        *command, *ONE_SHORT_ROUND, "--processes", "2", **{postgres.DSN_VARIABLE: postgres_server}
    )

    assert ran.returncode == 0, ran.stderr
    measured = json.loads(ran.stdout)["processes"]["2"]
    assert all(rate > 0 for rate in measured["median"].values())
    assert set(measured["ratios"]["studydb"]) == baselines
    assert baselines < set(measured["median"])


def measure(postgres_server, *arguments):
    ran = run(*arguments, "--json", **{postgres.DSN_VARIABLE: postgres_server})
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


def test_decide_benchmark_uses_a_rung_with_the_given_number_of_entries(postgres_server):
    options = ("--rounds", "1", "--seconds", "0.05", "--processes", "2", "--entries", "50")

    measured = measure(postgres_server, "decide", *options)

    assert measured["conditions"]["entries"] == 50
    assert measured["processes"]["2"]["ratios"]["studydb"].keys() == {"raw, 4 calls"}


@pytest.mark.parametrize(
    ("scheduler", "contenders"),
    [
        ("stopping", ["studydb", "raw, 4 calls"]),
        ("promotion", ["report", "turn"]),
        ("median", ["interval=1", "interval=10"]),
    ],
)
def test_decide_benchmark_compares_rungs_of_two_sizes(postgres_server, scheduler, contenders):
    options = ("--rounds", "1", "--seconds", "0.05", "--processes", "2")
    sizes = ("--entries", "20", "--entries", "60")

    measured = measure(postgres_server, "decide", "--scheduler", scheduler, *options, *sizes)

    rates = measured["processes"]["2"]["median"]
    assert rates.keys() == {f"{name} at {size}" for name in contenders for size in (20, 60)}
    assert all(rate > 0 for rate in rates.values())
    for name, ratios in measured["processes"]["2"]["ratios"].items():
        assert f"{name.split(' at ')[0]} at 20" in ratios or "raw, 4 calls at 20" in ratios


def test_decide_benchmark_closes_a_rung_while_workers_work(postgres_server):
    options = ("--seconds", "0.5", "--processes", "2", "--entries", "500")

    measured = measure(postgres_server, "decide", "--scheduler", "hyperband", *options)

    assert measured["given_up"] > 300
    assert measured["closing_s"] > 0
    assert {"report", "save", "end", "next trial"} == measured["waits_ms"].keys()
    assert all(of["before"]["calls"] > 0 for of in measured["waits_ms"].values())


def test_growth_benchmark_compares_each_call_in_a_small_and_in_a_large_study(postgres_server):
    options = ("--trials", "20", "60", "--rounds", "3", "--calls", "2")

    measured = measure(postgres_server, "growth", *options)["operations"]

    assert set(measured) == {"claim", "ask", "report", "decide", "status", "best"}
    for operation in measured.values():
        assert {len(times) for times in operation["slices"].values()} == {3}
        assert operation["slices"].keys() == {"20 trials", "60 trials"}
        assert operation["ratios"].keys() == {"60 trials"}


def test_burden_benchmark_measures_claims_slowed_by_an_old_snapshot_or_by_trials_that_back_off(
    postgres_server,
):
    options = ("--claims", "40", "--backed-off", "30", "--rounds", "4")

    measured = measure(postgres_server, "burden", *options)["operations"]

    assert set(measured) == {"all claims", "first quarter", "last quarter"}
    assert len(measured["all claims"]["slices"]["free"]) == 4
    assert set(measured["all claims"]["ratios"]) == {"an old snapshot", "trials that back off"}


def test_frames_benchmark_prints_the_peak_memory_of_studydb_and_of_the_raw_fetch(postgres_server):
    measured = measure(postgres_server, "frames", "--trials", "30", "--rounds", "1")

    assert set(measured["operations"]) == {"trials_dataframe", "results_dataframe"}
    for frame, peaks in measured["conditions"]["peak_mb"].items():
        assert peaks.keys() == {"raw fetch", "studydb"}, frame
        assert peaks["studydb"] > 30


def test_worker_benchmark_measures_a_busy_and_an_idle_worker_and_the_cpu_of_commands(
    postgres_server,
):
    options = ("--trials", "12", "--rounds", "1", "--slots", "2")

    measured = measure(postgres_server, "worker", *options)

    assert measured["trials_per_s"]["median"]["studydb worker, warm starts"] > 0
    assert measured["idle_pss_mb"].keys() == {"supervisor", "fork server", "all"}
    cpu_s = measured["cpu_s"]["median"]
    assert cpu_s["studydb status"] > cpu_s["studydb --help"] > cpu_s["studydb report"] > 0


def test_report_command_takes_at_most_25_ms_more_cpu_than_an_interpreter_that_does_nothing():
    runs = cli_usage.cpu_of_reports_s(20)

    extra_s = median(runs[cli_usage.REPORT]) - median(runs[cli_usage.INTERPRETER])
    print(f"{1000 * extra_s:.1f} ms more")  # noqa: T201  for pytest -rP
    assert extra_s <= 0.025


def test_reuse_benchmark_measures_reused_processes_beside_warm_and_fresh_starts(postgres_server):
    options = ("--trials", "20", "--rounds", "1", "--json")

    ended = run("reuse", *options, **{postgres.DSN_VARIABLE: postgres_server})

    assert ended.returncode in (0, 1), ended.stderr  # with few trials, reuse may gain too little
    measured = json.loads(ended.stdout)
    assert measured["ratio"].keys() == {"warm starts", "fresh starts"}
    assert all(runs[0] > 0 for runs in measured["trials_per_s"].values())


def test_checkpoints_benchmark_measures_the_library_fsspec_beside_studydb():
    sizes = ("--megabytes", "16", "--loop-megabytes", "16", "--every", "0.2", "--steps", "2")

    ended = run("checkpoints", *sizes, "--rounds", "1", "--json")

    assert ended.returncode in (0, 1), ended.stderr  # with few bytes, a value may miss its limit
    measured = json.loads(ended.stdout)
    assert measured["throughput"]["ratio"].keys() == {"up", "down"}
    assert measured["memory"]["grown_mb"].keys() == {"save", "restore"}
    assert measured["loop"]["loss"].keys() == {"studydb", "library"}


def test_loops_benchmark_counts_no_error_and_at_most_one_connection_per_loop(postgres_server):
    options = ("--loops", "6", "--seconds", "0.5", "--waiting", "10")

    measured = measure(postgres_server, "loops", *options)

    assert measured["errors"] == {}
    assert measured["connections"] <= 6
    assert measured["latency_ms"].keys() == {"claim or ask", "report", "finish"}


def test_idle_benchmark_measures_how_soon_idle_workers_notice_changes_and_what_they_cost(
    postgres_server,
):
    options = ("--workers", "2", "--settle", "1", "--seconds", "2", "--rest", "0", "--rounds", "2")

    measured = measure(postgres_server, "idle", *options)

    of_two = measured["workers"]["2"]
    assert of_two["enqueue to claim, most, s"] <= 2
    assert of_two["pause to notice, most, s"] <= 5
    assert of_two["statements to claim a trial"] >= 1
    assert of_two["server CPU a minute, ms"] > 0
    assert measured["real worker"]["enqueue to first line, median, s"] <= 3


def test_asha_finds_better_trials_than_random_search_and_no_epoch_is_trained_after_a_stop_or_pause():
    ran = run("schedulers", "--orders", "5", "--json")

    assert ran.returncode == 0, ran.stderr
    for scores in json.loads(ran.stdout)["tasks"].values():
        random_search = scores.pop("random search")
        for name in ("ASHA, stopping", "ASHA, promotion"):
            assert scores[name]["mean"] < 0.95 * random_search["mean"]
            assert scores[name]["less"] == pytest.approx(
                random_search["mean"] - scores[name]["mean"]
            )
        assert {one["n_after_decision"] for one in scores.values()} == {0}
        assert min(one["n_trials"] for one in scores.values()) > random_search["n_trials"]


def test_real_workers_train_nothing_after_a_stop_or_pause_although_some_are_killed():
    chosen = ("--only", "ASHA, stopping", "--only", "HyperBand")
    ran = run("schedulers", "--orders", "2", "--kills", "2", *chosen, "--json")

    assert ran.returncode == 0, ran.stderr
    for scores in json.loads(ran.stdout)["tasks"].values():
        assert scores.keys() == {"ASHA, stopping", "HyperBand"}
        for score in scores.values():
            assert (score["n_kills"], score["n_after_decision"]) == (4, 0)
            assert score["mean"] < 0.07


def test_schedulers_benchmark_fails_if_an_epoch_is_trained_after_a_stop_or_pause(monkeypatch):
    late = Found(best=0.1, n_trials=3, n_complete=1, n_epochs=30, n_after_decision=1)
    monkeypatch.setattr(schedulers, "_search", lambda *_: late)
    arguments = ["--orders", "2", "--only", "random search", "--json"]

    ran = CliRunner().invoke(schedulers.schedulers, arguments)

    assert ran.exit_code == 1
    assert "2 under random search (digits), 2 under random search (noisy digits)" in ran.stderr
    assert json.loads(ran.stdout)["tasks"]["digits"]["random search"]["n_after_decision"] == 2


@pytest.mark.parametrize(
    ("command", "options", "words"),
    [
        (
            burden.burden,
            ["--claims", "10", "--rounds", "20"],
            "10 claims cannot be divided into 20",
        ),
        (real.real, ["--contender", "Optuna"], "No contender that --contender names is installed"),
        (schedulers.schedulers, ["--only", "ASHA"], "'ASHA' is not one of"),
    ],
    ids=["burden", "real", "schedulers"],
)
def test_benchmark_that_would_measure_nothing_is_refused(monkeypatch, command, options, words):
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)

    ran = CliRunner().invoke(command, options)

    assert ran.exit_code == 2
    assert words in ran.stderr


def test_simulation_makes_hundreds_of_reports_a_second():
    ran = run("simulate", "--rounds", "1", "--trials", "60", "--json")

    assert ran.returncode == 0, ran.stderr
    assert min(json.loads(ran.stdout)["reports_per_s"].values()) > 200


def test_study_written_by_the_benchmarks_satisfies_the_invariants_of_a_real_study(postgres_url):
    loading.load(postgres_url, trials=300)
    study = studydb.load_study(space.STUDY, storage=postgres_url)

    with study.ask() as trial:  # one more trial is judged against the loaded trials
        for step in range(1, space.REPORTS + 1):
            trial.report({space.METRIC: 0.01 / step})

    tables = invariants.read_rows(study)
    study.close()
    assert invariants.all_ended(tables) == []
    assert invariants.numbered(tables, 301) == []
    assert invariants.summaries_true(tables, Mode.MIN) == []
    assert invariants.counters_true(tables) == []
    assert invariants.decided_as_reference(tables, Mode.MIN, 3) == []
    assert invariants.decisions_obeyed(tables) == []


def test_every_contender_is_measured_once_per_round():
    options = ("--rounds", "3", "--seconds", "0.05", "--processes", "1", "--processes", "2")

    ran = run("trial", "--storage", "sqlite", "--without-optuna", "--json", *options)

    assert ran.returncode == 0, ran.stderr
    measured = json.loads(ran.stdout)["processes"]
    assert set(measured) == {"1", "2"}
    assert {len(rates) for one in measured.values() for rates in one["slices"].values()} == {3}


@needs_optuna
def test_optuna_is_measured_with_both_of_its_storages_on_sqlite():
    ran = run("trial", "--storage", "sqlite", *ONE_SHORT_ROUND, "--processes", "1")

    assert ran.returncode == 0, ran.stderr
    baselines = json.loads(ran.stdout)["processes"]["1"]["ratios"]["studydb"]
    assert set(baselines) == {"Optuna RDBStorage", "Optuna JournalStorage"}


def test_bench_without_json_prints_a_table():
    ran = run(
        "trial",
        "--storage",
        "sqlite",
        "--without-optuna",
        *ONE_SHORT_ROUND[:-1],
        "--processes",
        "1",
    )

    assert ran.returncode == 0, ran.stderr
    assert "trials/s" in ran.stdout
    assert "median of a contender's slices" in ran.stdout


def test_error_for_missing_optuna_names_the_command_that_installs_it(tmp_path):
    (tmp_path / "optuna.py").write_text("raise ModuleNotFoundError('optuna')")

    ran = run("trial", "--storage", "sqlite", PYTHONPATH=str(tmp_path))

    assert ran.returncode == 2
    assert "pip install" in ran.stderr
    assert "[bench]" in ran.stderr
    assert "Traceback" not in ran.stderr


def test_error_of_a_measured_process_is_printed_and_ends_the_run(tmp_path):
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

    ran = run_command([sys.executable, script, ROOT, tmp_path / "missing.db"])

    assert ran.returncode == 1
    assert "There is no database at" in ran.stderr
