"""Real training, timed from call to return, compared with Optuna, Ray Tune and Syne Tune."""

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
from typing import Any

import click
import numpy as np
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from benchmarks import options
from benchmarks.contenders.task import SPACE
from benchmarks.programs import Program, compare_programs

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 1800.0
CONTENDERS = {
    "studydb": "studydb_side",
    "Optuna": "optuna_side",
    "Ray Tune": "ray_side",
    "Syne Tune": "syne_tune_side",
}
NEEDED = {"Optuna": "optuna", "Ray Tune": "ray", "Syne Tune": "syne_tune"}
WITHOUT = (
    "Without {}: .venv/bin/python -m pip install --constraint constraints.txt '.[{}]' adds it."
)
EXTRAS = {"Optuna": "bench", "Ray Tune": "oracle", "Syne Tune": "oracle"}


@click.command()
@click.option("--trials", type=click.IntRange(1), default=60, help="Configurations.")
@click.option("--epochs", type=click.IntRange(1), default=27, help="Of each.")
@click.option("--workers", type=click.IntRange(1), default=2, help="Trials at a time.")
@click.option("--rounds", type=click.IntRange(1, 100), default=5, help="Runs of each, in turn.")
@click.option("--asha", is_flag=True, help="With ASHA, which stops most of them early.")
@click.option(
    "--contender",
    "contenders",
    type=click.Choice(list(CONTENDERS)),
    multiple=True,
    help="Run these alone; more than one may be given.",
)
@click.option("--python", help="Another interpreter, which has Optuna, Ray and Syne Tune.")
@click.option("--json", "as_json", is_flag=True, help="JSON, every run included.")
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
    Train the same configurations of a digits network: seconds from the call to its return.

    Every contender runs in a process of its own. Ray's start-up is timed separately. Syne
    Tune is polled every 0.1 s, and starts an interpreter for each trial.
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
    there = [name for name in contenders or CONTENDERS if python or _is_there(name)]
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in there}
    for number in range(rounds):
        first = number % len(there)  # the order rotates
        for name in there[first:] + there[:first]:
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
    """Of studydb alone: the others are of no version of it."""
    return {"studydb": trials / document["studydb"][0]["times"]["run"]}


def _is_there(name: str) -> bool:
    module = NEEDED.get(name)
    if module is None or importlib.util.find_spec(module):
        return True
    click.echo(WITHOUT.format(name, EXTRAS[name]), err=True)
    return False


def _configurations(number: int) -> list[dict[str, float | int]]:
    """The configurations, the same for every contender and every run."""
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
            [python, "-m", f"benchmarks.contenders.{CONTENDERS[name]}", str(described)],
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
        click.echo(json.dumps(runs, indent=2))
        return
    medians = {
        name: statistics.median(run["times"]["run"] for run in each) for name, each in runs.items()
    }
    fastest = min(medians.values())
    table = Table(box=SIMPLE_HEAD)
    for heading in ("", "median", "runs", "/ fastest", "start-up", "trials", "epochs", "best"):
        table.add_column(heading, justify="right")
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
    Console().print(table)
