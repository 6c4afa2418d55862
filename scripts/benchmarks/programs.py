"""Run a benchmark in the working tree and in the checkout of an earlier commit, in turns."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from own_environment import ROOT

from benchmarks.against import ROUNDS, Comparison, checkout_of, given, show

TIMEOUT_S = 1800.0


@dataclass(frozen=True)
class Program:
    """
    A subcommand of scripts/bench that prints JSON.

    In each of the two checkouts, the subcommand's workers import the studydb of that checkout.

    Attributes:
        unit: What is counted per second.
        arguments: The arguments of scripts/bench for one round.
        rates: Computes each contender's units per second from the JSON of a round.
        processes: How many trials run at a time; the table shows this number.
    """

    unit: str
    arguments: Sequence[str]
    rates: Callable[[Any], Mapping[str, float]]
    processes: int


def compare_programs(program: Program, commit: str, *, as_json: bool) -> None:
    """
    Run a benchmark in the working tree and in a commit's checkout, in turns; show the ratios.

    Raises:
        SystemExit: The working tree is slower (see `Comparison.is_slower`); the exit code is 1.
    """
    rounds = given("rounds", ROUNDS)
    found: dict[str, Comparison] = {}
    with checkout_of(commit) as old:
        for number in range(rounds):
            turns = [(ROOT, "new"), (old, "old")]
            for checkout, version in turns if number % 2 else reversed(turns):
                for contender, rate in program.rates(_run(checkout, program.arguments)).items():
                    comparison = found.setdefault(
                        contender, Comparison(program.processes, contender, [], [])
                    )
                    getattr(comparison, version).append(rate)
            _show_round(number, found.values(), program.unit)
    conditions = {"rounds": rounds, "against": commit}
    show(program.unit, list(found.values()), conditions, as_json=as_json)


def _show_round(number: int, found: Iterable[Comparison], unit: str) -> None:
    """Print a round's figures to stderr, so that a run that is ended early still shows figures."""
    figures = [f"{each.contender} {each.new[-1]:,.4g} and {each.old[-1]:,.4g}" for each in found]
    click.echo(f"Round {number + 1}, this tree and before, {unit}: {'; '.join(figures)}.", err=True)


def _run(checkout: Path, arguments: Sequence[str]) -> Any:
    ran = subprocess.run(
        [sys.executable, checkout / "scripts" / "bench", *arguments, "--json"],
        cwd=checkout,
        env={**os.environ, "PYTHONPATH": str(checkout)},  # workers import this checkout, too
        stdout=subprocess.PIPE,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    if ran.returncode:
        raise click.ClickException(f"scripts/bench {' '.join(arguments)} failed in {checkout}.")
    return json.loads(ran.stdout)
