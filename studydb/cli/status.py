"""`studies` and `status`: what there is, what it does, what to type next."""

import shlex
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from studydb.analysis.pace import ends_text, pace_text
from studydb.analysis.troubles import trouble_text
from studydb.cli.opening import opened, opened_study
from studydb.cli.options import Storage, format_option, storage_option
from studydb.cli.printing import print_fields, print_json, print_next, print_rows, print_table
from studydb.cli.values import table_cell
from studydb.domain.errors import NoResults
from studydb.domain.life.states import Mode, State, Status
from studydb.domain.objective import Objective
from studydb.domain.records import TrialRow
from studydb.domain.text.display import best_text, visible

if TYPE_CHECKING:
    from studydb.operations.failing import LastError
    from studydb.operations.listing import Roll
    from studydb.study import Study

MOST_LIVE = 20
"""Rows of trials on a status page."""

SPARE_COLUMNS = ("created_at", "max_concurrent", "mode", "num_trials")
LIVE_COLUMNS = ("number", "state", "attempt", "last_step", "value", "best_value", "params")


@click.command()
@format_option
@storage_option
def studies(*, form: str, storage: Storage) -> None:
    """List the studies of the database, with their trials per state."""
    _print_studies(storage, form)


def _print_studies(storage: Storage, form: str) -> str | None:
    """Print all studies; returns the name of the newest."""
    from studydb.operations import listing

    with opened(storage) as database:
        rows = listing.studies(database)
    print_rows(listing.STUDY_COLUMNS, rows, form=form, of="studies", spare=SPARE_COLUMNS)
    return rows[-1].study if rows else None


@click.command()
@click.argument("name", metavar="[NAME]", required=False)
@format_option
@storage_option
def status(*, name: str | None, form: str, storage: Storage) -> None:
    """
    Show what study NAME does: counts, budget, best, some live trials, workers; what to type next.

    Without NAME all studies are listed.
    """
    if name is None:
        newest = _print_studies(storage, form)
        if newest is not None and form == "table":
            print_next(f"studydb status {shlex.quote(newest)}")
        return
    from studydb.operations import listing
    from studydb.operations.failing import last_error

    with opened_study(storage, name) as study:
        row = listing.study(study.database, name)
        if form == "csv":
            print_rows(listing.STUDY_COLUMNS, [row], form=form)
            return
        live = listing.live_rows(study.database, study.record, most=MOST_LIVE)
        roll = listing.roll(study.database, study.record)
        troubles = listing.troubles(study.database, study.record)
        pace, now = listing.pace(study.database, study.record)
        error, reason = last_error(study.database, study.record), study.progress.pause_reason
        best = None
        with suppress(NoResults):
            best = study.best_trial
    shown = share({state: len(rows) for state, rows in live.items()}, MOST_LIVE)
    chosen = [each for state, rows in live.items() for each in rows[: shown[state]]]
    if form == "json":
        more: dict[str, Any] = {"troubles": _told(troubles), "pause_reason": reason}
        more["last_error"] = None if error is None else asdict(error)
        print_json(_document(row, best, chosen, roll) | more)
    else:
        timed = {"ended": ends_text(pace), "time": _time_text(study, row, pace, now, roll)}
        _print_page(study, row, best, chosen, roll, timed=timed)
        _print_failures(study, reason, error)
        _print_troubles(troubles)
        print_next(*next_commands(study, row, best, roll, storage))


def _print_failures(study: "Study", reason: str | None, error: "LastError | None") -> None:
    """Say once what went wrong, and where its traceback is."""
    if reason is not None:
        click.echo(f"\nThe study has paused itself: {visible(reason).rstrip('.')}.")
    if error is None:
        return
    if reason is None or error.words not in reason:
        at = f"trial {error.number}, attempt {error.attempt}"
        click.echo(f"\nLast error, of {at}: {visible(error.words)}")
    click.echo(f"The traceback: `studydb show {shlex.quote(study.name)} {error.number}`.")


def share(sizes: Mapping[Any, int], most: int) -> dict[Any, int]:
    """
    Divide a page among groups: nobody gets more than it has, and what one leaves others may use.

    Args:
        sizes: What each group has.
        most: What there is to give.
    """
    given, left = {}, most
    by_size = sorted(sizes.items(), key=lambda item: item[1])
    for index, (group, size) in enumerate(by_size):
        given[group] = min(size, left // (len(by_size) - index))
        left -= given[group]
    return given


def _document(row: Any, best: TrialRow | None, live: list[Any], roll: "Roll") -> dict[str, Any]:
    return {
        **row._asdict(),
        "best": best and best_fields(Objective(row.metric, Mode(row.mode)), best),
        "workers_alive": roll.n_alive,
        "live": [{name: getattr(each, name) for name in LIVE_COLUMNS} for each in live],
    }


def best_fields(objective: Objective, best: TrialRow) -> dict[str, Any]:
    """What is said of the best trial, always with metric and mode."""
    return {
        "metric": objective.metric,
        "mode": objective.mode,
        "number": best.number,
        "best_value": best.best_value,
        "best_step": best.summary.best_step,
        "state": best.state,
        "params": best.params,
    }


def _print_page(
    study: "Study",
    row: Any,
    best: TrialRow | None,
    live: list[Any],
    roll: "Roll",
    *,
    timed: Mapping[str, str | None],
) -> None:
    counts = {state: getattr(row, state.lower()) for state in State}
    total = sum(counts.values())
    by_state = ", ".join(f"{count} {state}" for state, count in counts.items() if count)
    budget = "no end" if row.num_trials is None else str(row.num_trials)
    print_fields(
        {
            "study": visible(row.study),
            "storage": study.storage,
            "status": row.status,
            "metric": f"{row.metric} ({row.mode})",
            "trials": f"{total} of {budget}" + (f": {by_state}" if by_state else ""),
            **timed,
            "at once": row.max_concurrent and f"{row.max_concurrent} at most",
            "best": _best_line(row, best),
            "params": best and (_cell(study, best, "params") or None),
            "workers": _workers_line(roll),
        }
    )
    if live:
        click.echo()
        print_table(
            LIVE_COLUMNS, [[_cell(study, each, name) for name in LIVE_COLUMNS] for each in live]
        )
        hidden = {
            state: count - sum(each.state == state for each in live)
            for state, count in counts.items()
            if state in (State.RUNNING, State.PENDING, State.PAUSED)
        }
        more = ", ".join(f"{count} {state}" for state, count in hidden.items() if count > 0)
        if more:
            click.echo(f"and {more} more")


def _time_text(study: "Study", row: Any, pace: Any, now: datetime, roll: "Roll") -> str | None:
    budget = study.record.num_draws if row.num_trials is None else row.num_trials
    left = None if budget is None else max(0, budget - row.terminated - row.error)
    runs = row.running > 0 and roll.n_alive > 0
    return pace_text(pace, now=now, left=left, runs=runs)


def _workers_line(roll: "Roll") -> str:
    """By health, as in "2 alive, 1 dead"; of those that are gone only who still holds trials."""
    holding = Counter(roll.health(worker) for worker in roll.workers if worker.running)
    gone = [f"{holding[health]} {health}" for health in ("silent", "dead") if holding[health]]
    return ", ".join([f"{roll.n_alive} alive", *gone])


def _told(troubles: list[Any]) -> list[dict[str, Any]]:
    return [row._asdict() for row in troubles]


def _print_troubles(troubles: list[Any]) -> None:
    """Say what of the study is not stored as it should be, though training goes on."""
    if troubles:
        click.echo("\nTrouble:")
    for row in troubles:
        click.echo(f"  {table_cell(row.at)}  {trouble_text(row)}")


def _cell(study: "Study", row: Any, name: str) -> Any:
    value = getattr(row, name)
    return study.record.space.flatten(value) if name == "params" else value


def _best_line(row: Any, best: TrialRow | None) -> str:
    if best is None:
        return f"no {row.metric} reported yet"
    return (
        f"{row.metric} ({row.mode}) {best_text(best.best_value)}, trial {best.number}, "
        f"step {best.summary.best_step}"
    )


def next_commands(
    study: "Study", row: Any, best: TrialRow | None, roll: "Roll", storage: Storage
) -> list[str]:
    """What a user most probably wants to type after a look at a study."""
    name, again = shlex.quote(study.name), storage.again(study.storage)
    commands = []
    if row.error:
        commands.append(f"studydb trials {name} --state ERROR{again}")
    match Status(row.status):
        case Status.FINISHED:
            commands += [f"studydb best {name}{again}"] if best is not None else []
            commands.append(f"studydb extend {name} --trials N{again}")
        case Status.PAUSED | Status.STOPPED:
            commands.append(f"studydb resume {name}{again}")
        case _ if study.record.trainable is None:
            commands.append(f"studydb trials {name}{again}")
        case _ if roll.n_alive == 0:
            commands.append(f"studydb worker --study {name}{again}")
        case _:
            commands.append(f"studydb trials {name} --sort best --limit 5{again}")
    return commands
