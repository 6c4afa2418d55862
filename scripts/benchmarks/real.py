"""Real training by studydb, Optuna, Ray Tune and Syne Tune: how long a whole search takes."""

import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np

from benchmarks import options, output
from benchmarks.contenders.task import SPACE
from benchmarks.programs import Program, compare_programs
from benchmarks.rounds import in_turn

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 1800.0


class Contender(NamedTuple):
    """A module of `contenders`, the package it needs, and the extra that installs the package."""

    module: str
    package: str | None = None
    extra: str | None = None


CONTENDERS = {
    "studydb": Contender("studydb_side"),
    "Optuna": Contender("optuna_side", "optuna", "bench"),
    "Ray Tune": Contender("ray_side", "ray", "oracle"),
    "Syne Tune": Contender("syne_tune_side", "syne_tune", "oracle"),
}
MISSING = (
    "{} is not installed, so it is left out. Install it: "
    ".venv/bin/python -m pip install --constraint constraints.txt '.[{}]'"
)


@click.command()
@click.option("--trials", type=click.IntRange(1), default=60, help="Number of configurations.")
@click.option("--epochs", type=click.IntRange(1), default=27, help="Epochs per configuration.")
@click.option("--workers", type=click.IntRange(1), default=2, help="Trials at a time.")
@options.number_of_rounds(5, "Runs of each contender.")
@click.option("--asha", is_flag=True, help="Use ASHA, which stops most trials early.")
@click.option(
    "--contender",
    "contenders",
    type=click.Choice(list(CONTENDERS)),
    multiple=True,
    help="Measure only this contender; may be given several times.",
)
@click.option("--python", help="The interpreter that runs Optuna, Ray Tune and Syne Tune.")
@options.as_json
@options.against
def real(
    *,
    trials: int,
    epochs: int,
    workers: int,
    rounds: int,
    asha: bool,
    contenders: tuple[str, ...],
    python: str | None,
    as_json: bool,
    commit: str | None,
) -> None:
    """
    Seconds of a whole search by each contender; all train the same configurations of a network.

    Each contender runs in a separate process. Ray's start-up is timed separately. Syne Tune polls
    every 0.1 s, and starts an interpreter for each trial.
    """
    if commit is not None:
        _compare(trials, epochs, workers, commit, asha=asha, as_json=as_json)
        return
    task = {
        "configs": _configurations(trials),
        "epochs": epochs,
        "workers": workers,
        "scheduler": "asha" if asha else None,
        "storage": None,
        "module": "studydb_train",
    }
    names = [name for name in contenders or CONTENDERS if python or _is_installed(name)]
    if not names:
        raise click.UsageError(
            "No contender that --contender names is installed; install one, or give --python."
        )
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    for number in range(rounds):
        for name in in_turn(names, number):
            interpreter = sys.executable if name == "studydb" else python or sys.executable
            runs[name].append(_run(name, task, interpreter))
    _show(runs, as_json=as_json)


def _compare(
    trials: int, epochs: int, workers: int, commit: str, *, asha: bool, as_json: bool
) -> None:
    sizes = {"trials": trials, "epochs": epochs, "workers": workers}
    given = [text for name, size in sizes.items() for text in (f"--{name}", str(size))]
    arguments = ("real", "--rounds", "1", *given, *(["--asha"] if asha else []))
    program = Program("trials/s", arguments, partial(_rates, trials), workers)
    compare_programs(program, commit, as_json=as_json)


def _rates(trials: int, document: Any) -> dict[str, float]:
    """The rate of studydb alone: tree and commit run the same versions of the other tools."""
    return {"studydb": trials / document["studydb"][0]["times"]["run"]}


def _is_installed(name: str) -> bool:
    _, package, extra = CONTENDERS[name]
    if package is None or importlib.util.find_spec(package):
        return True
    click.echo(MISSING.format(name, extra), err=True)
    return False


def _configurations(number: int) -> list[dict[str, float | int]]:
    """The configurations, which are the same for every contender and every run."""
    generator = np.random.default_rng(0)
    configurations = []
    for _ in range(number):
        configuration: dict[str, float | int] = {}
        for name, (kind, low, high) in SPACE.items():
            if kind == "uniform":
                configuration[name] = float(generator.uniform(low, high))
                continue
            value = float(np.exp(generator.uniform(np.log(low), np.log(high))))
            configuration[name] = round(value) if kind == "lograndint" else value
        configurations.append(configuration)
    return configurations


def _run(name: str, task: Mapping[str, Any], python: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="studydb-bench-") as folder:
        described = Path(folder) / "task.json"
        described.write_text(json.dumps({**task, "folder": folder}), encoding="utf-8")
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "scripts")]),
            "STUDYDB_KEY_FILE": str(Path(folder) / "key"),
        }
        ran = subprocess.run(
            [python, "-m", f"benchmarks.contenders.{CONTENDERS[name].module}", str(described)],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    if ran.returncode:
        raise RuntimeError(f"{name} ended with {ran.returncode}:\n{ran.stdout}\n{ran.stderr}")
    outcome: dict[str, Any] = json.loads(ran.stdout.strip().splitlines()[-1])
    if outcome["trials"] < len(task["configs"]):
        raise RuntimeError(f"{name} ran {outcome['trials']} of {len(task['configs'])} trials.")
    return outcome


def _show(runs: Mapping[str, list[dict[str, Any]]], *, as_json: bool) -> None:
    if as_json:
        output.show_json(runs)
        return
    medians = {
        name: statistics.median(run["times"]["run"] for run in each) for name, each in runs.items()
    }
    fastest = min(medians.values())
    table = output.table(
        *("", "median", "runs", "/ fastest", "start-up", "trials", "epochs", "best")
    )
    for name, each in runs.items():
        seconds = sorted(run["times"]["run"] for run in each)
        start_up = [run["times"]["start-up"] for run in each if "start-up" in run["times"]]
        last = each[-1]
        table.add_row(
            name,
            f"{medians[name]:.1f} s",
            f"{seconds[0]:.1f} to {seconds[-1]:.1f}",
            f"{medians[name] / fastest:.2f} x",
            f"{statistics.median(start_up):.1f} s" if start_up else "",
            str(last["trials"]),
            str(last["epochs"]),
            f"{last['best']:.4f}",
        )
    output.show_tables(table, note="Medians of runs that took turns.", conditions={})
