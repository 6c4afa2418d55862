"""Rounds in which contenders take turns; medians, their ratios, a table."""

import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import click
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from benchmarks.teams import Plan, Team

WARM_UP_S = 0.5


@dataclass(frozen=True)
class Contest:
    """
    The contenders, and which are compared.

    Attributes:
        unit: What is counted per second.
        plans: The contenders of each plan; those of one plan share its processes.
        ours: The contenders that are studydb, each with its baselines.
        before: Called before each slice of a contender, with its name.
    """

    unit: str
    plans: Mapping[tuple[str, ...], Plan]
    ours: Mapping[str, Sequence[str]]
    before: Callable[[str], None] = lambda _: None

    @property
    def contenders(self) -> list[str]:
        """All names, in the order of the plans."""
        return [name for names in self.plans for name in names]


@dataclass
class Outcome:
    """
    What was measured.

    Attributes:
        rates: Units per second of every slice, by number of processes and contender.
    """

    contest: Contest
    conditions: Mapping[str, Any]
    rates: dict[int, dict[str, list[float]]] = field(default_factory=dict)

    def median(self, processes: int, contender: str) -> float:
        """The median over the slices."""
        return statistics.median(self.rates[processes][contender])

    def ratios(self, processes: int) -> dict[str, dict[str, float]]:
        """How many times as fast as each baseline, by contender of ours: ratios of medians."""
        return {
            ours: {
                baseline: self.median(processes, ours) / self.median(processes, baseline)
                for baseline in baselines
            }
            for ours, baselines in self.contest.ours.items()
        }


def measure(
    contest: Contest,
    *,
    processes: Sequence[int],
    rounds: int,
    seconds: float,
    conditions: Mapping[str, Any],
) -> Outcome:
    """Measure a contest at each number of processes."""
    outcome = Outcome(contest, {"rounds": rounds, "seconds": seconds, **conditions})
    for size in processes:
        with ExitStack() as stack:
            teams: dict[str, Team] = {}
            for names, plan in contest.plans.items():
                team = stack.enter_context(Team(plan, size))
                teams |= dict.fromkeys(names, team)
            for team in set(teams.values()):
                team.ready()
            outcome.rates[size] = _take_turns(contest, teams, rounds=rounds, seconds=seconds)
        click.echo(f"Measured with {_processes(size)}.", err=True)
    return outcome


def _take_turns(
    contest: Contest, teams: Mapping[str, Team], *, rounds: int, seconds: float
) -> dict[str, list[float]]:
    names = contest.contenders
    for name in names:
        contest.before(name)
        teams[name].run(name, min(seconds, WARM_UP_S))
    rates: dict[str, list[float]] = {name: [] for name in names}
    for number in range(rounds):
        first = number % len(names)  # the order rotates
        for name in names[first:] + names[:first]:
            contest.before(name)
            rates[name].append(teams[name].run(name, seconds))
    return rates


def show(outcome: Outcome, *, as_json: bool) -> None:
    """Print the outcome, for people or for programs."""
    if as_json:
        click.echo(json.dumps(_as_json(outcome), indent=2))
        return
    console = Console()
    for size in outcome.rates:
        console.print(_table(outcome, size))
    described = ", ".join(f"{name} {value}" for name, value in outcome.conditions.items())
    console.print(f"Medians of slices that took turns; ratios of medians. {described}", style="dim")


def _as_json(outcome: Outcome) -> dict[str, Any]:
    return {
        "unit": outcome.contest.unit,
        "conditions": dict(outcome.conditions),
        "processes": {
            str(size): {
                "median": {name: outcome.median(size, name) for name in slices},
                "slices": slices,
                "ratios": outcome.ratios(size),
            }
            for size, slices in outcome.rates.items()
        },
    }


def _table(outcome: Outcome, size: int) -> Table:
    ratios = outcome.ratios(size)
    table = Table(title=_processes(size), title_justify="left", box=SIMPLE_HEAD)
    table.add_column("contender")
    over = [f"{ours.split()[-1]} /" for ours in ratios]
    for heading in (outcome.contest.unit, "slices", *over):
        table.add_column(heading, justify="right")
    for name, slices in outcome.rates[size].items():
        held_against = [baselines.get(name) for baselines in ratios.values()]
        table.add_row(
            name,
            f"{outcome.median(size, name):,.0f}",
            f"{min(slices):,.0f} to {max(slices):,.0f}",
            *("" if ratio is None else f"{ratio:.2f} x" for ratio in held_against),
        )
    return table


def _processes(size: int) -> str:
    return "1 process" if size == 1 else f"{size} processes"
