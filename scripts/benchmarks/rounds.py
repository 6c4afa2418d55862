"""Rounds of one slice per contender, and the table of the slices' medians and ratios."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import click
from rich.table import Table

from benchmarks import output
from benchmarks.options import Turns
from benchmarks.teams import Plan, Team

WARM_UP_S = 0.5


@dataclass(frozen=True)
class Contest:
    """
    Contenders, and the baselines with which studydb is compared.

    Attributes:
        unit: What is counted per second.
        plans: For each tuple of contenders, the plan whose processes measure them.
        ours: For each contender that is compared, the names of its baselines.
        before: Called before each warm-up and each slice, with the contender's name.
    """

    unit: str
    plans: Mapping[tuple[str, ...], Plan]
    ours: Mapping[str, Sequence[str]]
    before: Callable[[str], None] = lambda _: None

    @property
    def contenders(self) -> list[str]:
        """The names of all contenders, in the order of the plans."""
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
        return statistics.median(self.rates[processes][contender])

    def ratios(self, processes: int) -> dict[str, dict[str, float]]:
        """The median of each compared contender, divided by the median of each of its baselines."""
        return {
            ours: {
                baseline: self.median(processes, ours) / self.median(processes, baseline)
                for baseline in baselines
            }
            for ours, baselines in self.contest.ours.items()
        }


def measure(contest: Contest, turns: Turns, conditions: Mapping[str, Any]) -> Outcome:
    measured = {"rounds": turns.rounds, "seconds": turns.seconds}
    outcome = Outcome(contest, measured | dict(conditions))
    for size in turns.processes:
        with ExitStack() as stack:
            teams: dict[str, Team] = {}
            for names, plan in contest.plans.items():
                team = stack.enter_context(Team(plan, size))
                teams |= dict.fromkeys(names, team)
            for team in set(teams.values()):
                team.ready()
            outcome.rates[size] = _take_turns(contest, teams, turns)
        click.echo(f"Measured with {_processes(size)}.", err=True)
    return outcome


def _take_turns(
    contest: Contest, teams: Mapping[str, Team], turns: Turns
) -> dict[str, list[float]]:
    names = contest.contenders
    for name in names:
        contest.before(name)
        teams[name].run(name, min(turns.seconds, WARM_UP_S))
    rates: dict[str, list[float]] = {name: [] for name in names}
    for number in range(turns.rounds):
        for name in in_turn(names, number):
            contest.before(name)
            rates[name].append(teams[name].run(name, turns.seconds))
    return rates


def in_turn(names: Sequence[str], number: int) -> list[str]:
    """Order the contenders of a round; each round begins with the next contender."""
    first = number % len(names)
    return [*names[first:], *names[:first]]


def show(outcome: Outcome, *, as_json: bool) -> None:
    if as_json:
        output.show_json(_as_json(outcome))
        return
    tables = [_table(outcome, size) for size in outcome.rates]
    note = (
        "The second column is the median of a contender's slices; the contenders took turns. "
        "Each ratio divides two of these medians."
    )
    output.show_tables(*tables, note=note, conditions=outcome.conditions)


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
    over = [f"{ours.split()[-1]} /" for ours in ratios]
    headings = ("contender", outcome.contest.unit, "slices", *over)
    table = output.table(*headings, title=_processes(size))
    for name, slices in outcome.rates[size].items():
        of_name = [baselines.get(name) for baselines in ratios.values()]
        table.add_row(
            name,
            f"{outcome.median(size, name):,.0f}",
            f"{min(slices):,.0f} to {max(slices):,.0f}",
            *("" if ratio is None else f"{ratio:.2f} x" for ratio in of_name),
        )
    return table


def _processes(size: int) -> str:
    return "1 process" if size == 1 else f"{size} processes"
