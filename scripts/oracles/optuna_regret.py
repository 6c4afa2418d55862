"""
Compare TPESampler in studydb.OptunaSearch with TPESampler in Optuna's own in-memory studies.

studydb and Optuna search three closed-form functions, one trial at a time, with the same number of
trials and the same seeds. The table shows the regret: the best value found minus the smallest value
of the function. studydb and Optuna draw different random numbers, so their regrets are compared by
a two-sided Mann-Whitney test.
The exit code is 1 if a p-value is below 0.01.

    .venv/bin/python scripts/oracles/optuna_regret.py [--trials 50] [--seeds 20]
"""

import argparse
import math
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import quantiles
from typing import Any

import optuna
from scipy.stats import mannwhitneyu

import studydb

SMALLEST_P = 0.01


@dataclass(frozen=True)
class Function:
    """A function to minimise, its space for studydb and for Optuna, and its smallest value."""

    name: str
    space: Mapping[str, Any]
    suggest: Callable[[optuna.Trial], dict[str, Any]]
    value: Callable[[Mapping[str, Any]], float]
    least: float


def branin(params: Mapping[str, Any]) -> float:
    x, y = params["x"], params["y"]
    bent = y - 5.1 / (4 * math.pi**2) * x**2 + 5 / math.pi * x - 6
    return bent**2 + 10 * (1 - 1 / (8 * math.pi)) * math.cos(x) + 10


def rosenbrock(params: Mapping[str, Any]) -> float:
    x = [params[name] for name in "abcd"]
    return sum(100 * (x[i + 1] - x[i] ** 2) ** 2 + (1 - x[i]) ** 2 for i in range(3))


OFFSETS = {"sgd": 0.5, "adam": 0.0, "rmsprop": 0.2}


def training(params: Mapping[str, Any]) -> float:
    """A smooth stand-in for a neural network's error: lowest at lr=0.01, width=64, adam."""
    rate, width = math.log10(params["lr"]) + 2, math.log2(params["width"]) - 6
    return rate**2 + 0.1 * width**2 + OFFSETS[params["optimizer"]]


FUNCTIONS = [
    Function(
        "Branin (2 floats)",
        {"x": studydb.uniform(-5, 10), "y": studydb.uniform(0, 15)},
        lambda trial: {"x": trial.suggest_float("x", -5, 10), "y": trial.suggest_float("y", 0, 15)},
        branin,
        0.397887,
    ),
    Function(
        "Rosenbrock (4 floats)",
        {name: studydb.uniform(-2, 2) for name in "abcd"},
        lambda trial: {name: trial.suggest_float(name, -2, 2) for name in "abcd"},
        rosenbrock,
        0.0,
    ),
    Function(
        "training (log, int, choice)",
        {
            "lr": studydb.loguniform(1e-5, 1.0),
            "width": studydb.lograndint(4, 1024),
            "optimizer": studydb.choice(list(OFFSETS)),
        },
        lambda trial: {
            "lr": trial.suggest_float("lr", 1e-5, 1.0, log=True),
            "width": trial.suggest_int("width", 4, 1024, log=True),
            "optimizer": trial.suggest_categorical("optimizer", list(OFFSETS)),
        },
        training,
        0.0,
    ),
]


def by_optuna(function: Function, seed: int, n_trials: int) -> float:
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed))
    study.optimize(lambda trial: function.value(function.suggest(trial)), n_trials=n_trials)
    return study.best_value - function.least


def by_studydb(function: Function, seed: int, n_trials: int, folder: Path) -> float:
    study = studydb.create_study(
        f"{function.name} {seed}",
        None,
        space=function.space,
        metric="value",
        mode="min",
        num_trials=n_trials,
        searcher=studydb.OptunaSearch("TPESampler", seed=seed),
        storage=f"sqlite:///{folder}/regret.db",
    )
    while (trial := study.ask()) is not None:
        trial.report({"value": function.value(trial.params)})
        trial.finish()
    origins = {one.origin for one in study.trials}
    assert origins == {"searcher"}, (
        origins
    )  # TPE has proposed every trial; none has a point by index
    return study.best_value - function.least


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=50)
    parser.add_argument("--seeds", type=int, default=20)
    arguments = parser.parse_args()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    worst = 1.0
    print(f"{arguments.trials} trials, {arguments.seeds} seeds: quartiles of the regret")
    print(f"{'function':28} {'studydb':>26} {'Optuna':>26}   p")
    with tempfile.TemporaryDirectory() as folder:
        for function in FUNCTIONS:
            seeds = range(arguments.seeds)
            ours = [by_studydb(function, seed, arguments.trials, Path(folder)) for seed in seeds]
            theirs = [by_optuna(function, seed, arguments.trials) for seed in seeds]
            p = float(mannwhitneyu(ours, theirs).pvalue)
            worst = min(worst, p)
            shown = [
                " ".join(f"{one:8.4f}" for one in quantiles(each, n=4)) for each in (ours, theirs)
            ]
            print(f"{function.name:28} {shown[0]} {shown[1]}   {p:.2f}", flush=True)
    return int(worst < SMALLEST_P)


if __name__ == "__main__":
    sys.exit(main())
