"""
The overview of a study as text.

The texts show counts, pace, best trial, workers, checkpoints, the scheduler's decisions, failures,
problems, and the next commands.
"""

import shlex
import textwrap
from collections import Counter
from datetime import datetime

from studydb.analysis.explaining import explain_decision
from studydb.domain.life.states import State, Status
from studydb.domain.limits import LIMITS
from studydb.domain.listed_rows import (
    CheckpointSizes,
    ListedStudy,
    RecentEnds,
    StudyProblem,
    Unranked,
)
from studydb.domain.records import Study
from studydb.domain.text.display import best_text, counted, duration_text, size_text, visible
from studydb.operations.overview import MOST_SHOWN_WORKERS, Overview
from studydb.operations.workers import Health, WorkerList

LINE_WIDTH = 80
"""The most characters of a line of prose."""

_TENTHS_BELOW_S = 10
"""Shorter times are shown with tenths, because "0 s, 12 trials/s" looks wrong."""

_LEAST_GAP = 0.05
"""The share of the elapsed time that must have had no worker for the gap to be shown."""

MOST_HOSTS = 5
"""How many hosts that have saved checkpoints are shown."""


def counts_by_state(row: ListedStudy) -> dict[State, int]:
    return {state: getattr(row, state.lower()) for state in State}


def trials_text(overview: Overview) -> str:
    """
    Count the trials, as in "12 of 100: 2 RUNNING, 10 TERMINATED" or "0, no limit".

    Clones do not count towards `num_trials`, so a study can have more trials than `num_trials`.
    """
    row, n_clones = overview.row, overview.progress.n_clones
    counts = counts_by_state(row)
    by_state = ", ".join(f"{count} {state}" for state, count in counts.items() if count)
    n_to_make = overview.progress.n_to_make
    most = None if n_to_make is None else row.n_trials - n_clones + n_to_make
    if row.num_trials is not None:
        most = row.num_trials  # the searcher may have fewer points
    if n_clones:
        limit = "no limit" if most is None else f"and at most {counted(most, 'other')}"
        budget = f" with {counted(n_clones, 'clone')}, {limit}"
    else:
        budget = ", no limit" if most is None else f" of {most}"
    return f"{row.n_trials}{budget}" + (f": {by_state}" if by_state else "")


def ends_text(overview: Overview) -> str | None:
    """Count how the newest trials ended: "12 completed, 30 cancelled"; None if all counts are 0."""
    ends = overview.ends
    counts = (
        (ends.completed, "completed"),
        (ends.stopped_early, "stopped early"),
        (ends.given_up, "given up"),
        (ends.cancelled, "cancelled"),
        (ends.at_limit, "ended by a limit"),
        (ends.invalidated, "ended by invalidation"),
    )
    text = ", ".join(f"{count} {how}" for count, how in counts if count)
    return text + _which_trials(overview) if text else None


def time_text(overview: Overview) -> str | None:
    """Describe the pace of a study's newest trials; see `pace_text`."""
    row, n_to_make = overview.row, overview.progress.n_to_make
    left = None if n_to_make is None else n_to_make + row.pending + row.running + row.paused
    if overview.progress.status is Status.STOPPED:
        left = row.running
    runs = row.running > 0 and overview.workers.n_alive > 0
    until = overview.at if runs else overview.ends.last_end_at or overview.at
    worked_s = time_with_workers_s(overview.workers, since=overview.ends.began_at, until=until)
    text = pace_text(overview.ends, now=overview.at, left=left, runs=runs, worked_s=worked_s)
    return text and text + _which_trials(overview)


def _which_trials(overview: Overview) -> str:
    """Say which trials a text describes; return an empty text if it describes all trials."""
    n_read = overview.ends.read
    return f" (the newest {n_read} trials)" if n_read < overview.row.n_trials else ""


def time_with_workers_s(
    workers: WorkerList, *, since: datetime | None, until: datetime
) -> float | None:
    """
    Compute for how long at least one of the workers has existed; two at a time count once.

    A worker that is silent or dead counts until its last heartbeat.

    Returns:
        None if not all workers were read, if there are none, or if `since` is None.
    """
    if since is None or not workers.workers or len(workers.workers) >= MOST_SHOWN_WORKERS:
        return None
    total_s, counted_until = 0.0, since
    for worker, health in sorted(workers.workers, key=lambda each: each[0].started_at):
        is_alive = health in (Health.ALIVE, Health.DRAINING)
        end = min(until, until if is_alive else worker.ended_at or worker.seen_at)
        total_s += max(0.0, (end - max(worker.started_at, counted_until)).total_seconds())
        counted_until = max(counted_until, end)
    return total_s


def pace_text(
    ends: RecentEnds,
    *,
    now: datetime,
    left: int | None,
    runs: bool,
    worked_s: float | None = None,
) -> str | None:
    """
    Describe the pace, as in "3 min 5 s, 9.7 trials/min, about 4 min 0 s left".

    Args:
        ends: How the newest trials ended, and when the first of them began.
        left: How many trials have not ended, with those that the budget still allows; None without
            a budget.
        runs: Whether workers run trials. If not, the elapsed time ends at the last trial's end.
        worked_s: How much of the elapsed time had workers; the pace is that of this time. None to
            take the whole elapsed time.

    Returns:
        None if no trial has begun.
    """
    if ends.began_at is None:
        return None
    until = now if runs or ends.last_end_at is None else ends.last_end_at
    elapsed_s = max((until - ends.began_at).total_seconds(), 0.001)
    parts = [_elapsed_text(elapsed_s)]
    if not worked_s:
        worked_s = elapsed_s
    elif worked_s < (1 - _LEAST_GAP) * elapsed_s:
        parts[0] += f" ({_elapsed_text(worked_s)} with workers)"
    if ends.ended:
        per_s = ends.ended / worked_s
        parts.append(f"{per_s:.3g} trials/s" if per_s >= 1 else f"{60 * per_s:.3g} trials/min")
        if runs and left:
            parts.append(f"about {duration_text(left / per_s)} left")
    return ", ".join(parts)


def _elapsed_text(elapsed_s: float) -> str:
    return f"{elapsed_s:.1f} s" if elapsed_s < _TENTHS_BELOW_S else duration_text(elapsed_s)


def best_line(overview: Overview) -> str:
    """Describe the best value, with its metric and mode, trial and step."""
    row, best = overview.row, overview.best
    if best is None:
        return _no_best(row.metric, overview.unranked)
    called = "" if best.name is None else f" ({visible(best.name)})"
    value = best_text(best.best_value, row.mode)
    return (
        f"{row.metric} ({row.mode}) {value}, trial {best.number}{called}, "
        f"step {best.summary.best_step}"
    )


def _no_best(metric: str, unranked: Unranked) -> str:
    """Say why no trial is the best."""
    if unranked.has_invalidated:
        nan = " or have only NaN" if unranked.has_nan else ""
        return f"none: all trials that have reported {metric} are invalidated{nan}"
    return f"no {metric} reported yet" + (", only NaN" if unranked.has_nan else "")


def workers_text(workers: WorkerList) -> str:
    """Count workers, as in "2 alive, 1 dead"; a silent or dead worker counts if it has trials."""
    holding = Counter(health for worker, health in workers.workers if worker.running)
    unwell = (Health.SILENT, Health.DEAD)
    parts = [f"{holding[health]} {health}" for health in unwell if holding[health]]
    return ", ".join([f"{workers.n_alive} alive", *parts])


def checkpoints_text(overview: Overview) -> str | None:
    """Sum up checkpoints, as in "3 (1.5 GiB): 1 GiB by a, 512 MiB by b"; None if there are none."""
    sizes = overview.checkpoints
    if not sizes:
        return None
    total = size_text(sum(each.size_bytes for each in sizes))
    by_host = [f"{size_text(each.size_bytes)} {_origin(each)}" for each in sizes]
    hosts = ", ".join([*by_host[:MOST_HOSTS], *(["…"] if len(by_host) > MOST_HOSTS else [])])
    return f"{sum(each.n for each in sizes)} ({total}): {hosts}{_which_trials(overview)}"


def _origin(sizes: CheckpointSizes) -> str:
    return "uploaded" if sizes.is_uploaded else f"by {visible(sizes.host or 'an unknown host')}"


def decision_lines(study: Study, overview: Overview) -> list[str]:
    """Say why the scheduler took its last decisions: to stop, pause, promote or give up a trial."""
    lines: list[str] = []
    for decision in overview.decisions:
        if why := explain_decision(study, decision):
            text = f"trial {decision.number}, {decision.reason or decision.state}: {visible(why)}"
            lines += textwrap.wrap(text, LINE_WIDTH, initial_indent="  ", subsequent_indent="    ")
    return lines


def failure_lines(study: Study, overview: Overview) -> list[str]:
    """Say why the study stopped or paused itself; show the last errors, and how to see causes."""
    reason, error = overview.progress.pause_reason, overview.last_error
    limit = overview.progress.limit_reached
    lines = [] if limit is None else [f"The study has stopped itself: its {visible(limit)}."]
    if reason is not None:
        lines.append(f"The study has paused itself: {visible(reason).rstrip('.')}.")
    if error is not None:
        if reason is None or error.summary not in reason:
            at = f"trial {error.number}, attempt {error.attempt}"
            lines.append(f"Last error, of {at}: {visible(error.summary)}")
        lines.append(f"Details: `studydb show {shlex.quote(study.name)} {error.number}`.")
    if (back := overview.given_back) is not None:
        lines.append(
            f"A worker has given back trial {back.number}, attempt {back.attempt}: "
            f"{visible(back.summary)}"
        )
    return lines


def problem_text(problem: StudyProblem) -> str:
    """Describe a problem by its newest event: which trial, what happened, how often."""
    more = f" (the newest of {problem.times})" if problem.times > 1 else ""
    data = problem.data if isinstance(problem.data, dict) else {}
    about = data.get("error") or f"{data.get('url')}, step {data.get('step')}"
    where = "" if problem.number is None else f"trial {problem.number}: "
    return visible(f"{where}{problem.kind}{more}: {about}")


def _reached_limit(overview: Overview) -> str | None:
    """Return the limit that has stopped the study; None if no limit has stopped it."""
    setting = (overview.progress.limit_reached or "").partition(" ")[0]
    return setting if setting in LIMITS else None


def status_text(study: Study, overview: Overview) -> str:
    """Return the study's status; say it if a deletion has begun."""
    if study.is_half_deleted:
        return f"{overview.progress.status}, half deleted"
    return overview.progress.status + (", being deleted" if study.is_being_deleted else "")


def next_commands(study: Study, overview: Overview) -> list[str]:
    """Choose the commands that a person probably needs next, without --storage."""
    name, row = shlex.quote(study.name), overview.row
    if study.is_being_deleted:
        resume = [] if study.is_half_deleted else [f"studydb resume {name}"]
        return [f"studydb delete {name} --yes", *resume]
    commands = []
    if row.error:
        commands += [f"studydb trials {name} --state ERROR", f"studydb retry {name} --errored"]
    if overview.progress.promotes and row.paused:
        commands.append(f"studydb rungs {name}")  # the rungs at which PAUSED trials wait
    elif row.paused and overview.progress.status in (Status.FINISHED, Status.RUNNING):
        commands += [f"studydb trials {name} --state PAUSED", f"studydb resume {name} N"]
    return [*commands, *_commands_by_status(study, overview)]


def _commands_by_status(study: Study, overview: Overview) -> list[str]:
    name = shlex.quote(study.name)
    match overview.progress.status:
        case Status.FINISHED:
            best = [f"studydb best {name}"] if overview.best is not None else []
            more = [f"studydb extend {name} --trials N"] if study.num_trials is not None else []
            return best + more
        case Status.STOPPED if (limit := _reached_limit(overview)) is not None:
            return [f"studydb set {name} {limit}=…", f"studydb resume {name}"]
        case Status.PAUSED | Status.STOPPED:
            return [f"studydb resume {name}"]
        case _ if study.trainable is None:
            return [f"studydb trials {name}"]
        case _ if overview.workers.n_alive == 0:
            tags = "".join(f" --tag {shlex.quote(tag)}" for tag in study.require)
            return [f"studydb worker --study {name}{tags}"]
        case _:
            return [f"studydb trials {name} --sort best --limit 5"]
