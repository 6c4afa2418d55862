"""
What must hold for a finished study, whichever processes were killed while it ran.

`read_rows` selects the rows itself, without the queries of studydb. A check returns the violations
as texts.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from harness.asha_reference import decisions

import studydb
from studydb.db.decision_schema import rung, rung_entry
from studydb.db.schema import attempt, counter, event, result, trial
from studydb.domain.life.event_kinds import EventKind
from studydb.domain.life.states import Mode

Curve = Callable[[Mapping[str, Any], int], float]
"""Gives the value that a trial with the given params must have reported at the given step."""


@dataclass(frozen=True)
class Arrival:
    """A value judged at a rung; `ordinal` counts the rung's values in the order of recording."""

    trial_id: int
    ordinal: int
    step: int
    value: float
    stopped: bool


@dataclass(frozen=True)
class StudyRows:
    """
    A study's rows.

    Attributes:
        trials: Rows by trial id.
        attempts: Rows by trial id, in the order of attempt numbers.
        stored: Values by (trial id, attempt, step), including superseded ones.
        live: All live values by trial id and step; a second value at a step is a violation.
        counted: The number of trials by state, from the counters.
        arrivals: The values judged at each milestone, in the order of recording.
    """

    trials: dict[int, Any]
    attempts: dict[int, list[Any]]
    stored: dict[tuple[int, int, int], float]
    live: dict[int, dict[int, list[float]]]
    counted: Counter[str]
    arrivals: dict[int, list[Arrival]]


def read_rows(study: studydb.Study) -> StudyRows:
    study_id = study.record.id
    with study.database.begin(write=False) as txn:
        trials = txn.all(sa.select(trial).where(trial.c.study_id == study_id))
        attempts = txn.all(
            sa.select(attempt)
            .where(attempt.c.study_id == study_id)
            .order_by(attempt.c.trial_id, attempt.c.attempt)
        )
        results = txn.all(sa.select(result).where(result.c.study_id == study_id))
        counts = txn.all(sa.select(counter).where(counter.c.study_id == study_id))
        entries = txn.all(
            sa.select(rung.c.step.label("milestone"), rung_entry)
            .join(rung, rung.c.id == rung_entry.c.rung_id)
            .where(rung.c.study_id == study_id)
            .order_by(rung.c.step, rung_entry.c.ordinal)
        )
    return StudyRows(
        trials={row.id: row for row in trials},
        attempts=_by_trial(attempts),
        stored={(row.trial_id, row.attempt, row.step): row.value for row in results},
        live=_live(attempts, results),
        counted=_counted(counts),
        arrivals=_arrivals(entries),
    )


def _by_trial(attempts: Iterable[Any]) -> dict[int, list[Any]]:
    found: dict[int, list[Any]] = defaultdict(list)
    for row in attempts:
        found[row.trial_id].append(row)
    return dict(found)


def _live(attempts: Iterable[Any], results: Iterable[Any]) -> dict[int, dict[int, list[float]]]:
    through = {(row.trial_id, row.attempt): row.live_through for row in attempts}
    live: dict[int, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in results:
        if row.step <= through[row.trial_id, row.attempt]:
            live[row.trial_id][row.step].append(row.value)
    return live


def _counted(shards: Iterable[Any]) -> Counter[str]:
    counted: Counter[str] = Counter()
    for shard in shards:
        for name, n in shard._asdict().items():
            if name not in {"study_id", "shard"}:
                counted[name.upper()] += n
    return counted


def _arrivals(entries: Iterable[Any]) -> dict[int, list[Arrival]]:
    found: dict[int, list[Arrival]] = defaultdict(list)
    for row in entries:
        found[row.milestone].append(
            Arrival(row.trial_id, row.ordinal, row.step, row.value, stopped=row.action == "STOP")
        )
    return dict(found)


def all_ended(tables: StudyRows) -> list[str]:
    """Every trial is TERMINATED, and every attempt has ended."""
    states = [f"trial {row.number} is {row.state}" for row in tables.trials.values()]
    still_open = [
        f"trial {tables.trials[row.trial_id].number}: attempt {row.attempt} is open"
        for rows in tables.attempts.values()
        for row in rows
        if row.ended_at is None
    ]
    return [text for text in states if not text.endswith("TERMINATED")] + still_open


def numbered(tables: StudyRows, n_trials: int) -> list[str]:
    """Exactly `n_trials` trials exist, numbered from 0; each trial numbers its attempts from 1."""
    numbers = sorted(row.number for row in tables.trials.values())
    wrong = [] if numbers == list(range(n_trials)) else [f"the numbers are {numbers}"]
    for trial_id, rows in tables.attempts.items():
        attempts = [row.attempt for row in rows]
        if (
            attempts != list(range(1, len(rows) + 1))
            or attempts[-1] != tables.trials[trial_id].attempt
        ):
            wrong.append(f"trial {tables.trials[trial_id].number} has the attempts {attempts}")
    return wrong


def live_rows_complete(tables: StudyRows, curve: Curve) -> list[str]:
    """Up to its last step, each trial has one live value at each step: the value of the curve."""
    wrong = []
    for row in tables.trials.values():
        live = tables.live[row.id]
        if sorted(live) != list(range(1, (row.last_step or 0) + 1)):
            wrong.append(f"trial {row.number}: steps {sorted(live)}, last_step {row.last_step}")
        for step, values in live.items():
            if len(values) != 1 or not _equal(values[0], curve(row.params, step)):
                wrong.append(f"trial {row.number}, step {step}: {values}")
    return wrong


def reached_the_end(tables: StudyRows, last_step: int) -> list[str]:
    """Every trial that was not stopped at a rung has trained to the last step."""
    return [
        f"trial {row.number} is {row.reason} at step {row.last_step}"
        for row in tables.trials.values()
        if row.reason != "EARLY_STOPPED" and (row.reason, row.last_step) != ("COMPLETED", last_step)
    ]


def acknowledged_kept(tables: StudyRows, journal: Path) -> list[str]:
    """
    Each attempt has stored all its steps up to its last acknowledged step.

    The last step of the trial is that step or a later one.
    """
    by_number = {row.number: row for row in tables.trials.values()}
    lost = []
    for file in sorted(journal.iterdir()):
        number, attempt_no = map(int, file.name.split("-"))
        row = by_number[number]
        steps = [int(line) for line in file.read_text().splitlines()]
        first = tables.attempts[row.id][attempt_no - 1].start_step
        if steps and row.last_step < steps[-1]:
            lost.append(
                f"trial {number} ended at step {row.last_step}, although step {steps[-1]} was "
                "acknowledged"
            )
        if steps:
            lost += [
                f"trial {number}, attempt {attempt_no}: step {step} is not stored"
                for step in range(first, steps[-1] + 1)
                if (row.id, attempt_no, step) not in tables.stored
            ]
    return lost


def acknowledgements(journal: Path) -> int:
    return sum(len(file.read_text().splitlines()) for file in journal.iterdir())


def summaries_true(tables: StudyRows, mode: Mode) -> list[str]:
    """Each trial's summary equals the summary of its live rows."""
    wrong = []
    for row in tables.trials.values():
        rows = {step: values[0] for step, values in sorted(tables.live[row.id].items())}
        stored = (row.n_results, row.last_step, row.last_value, row.best_value, row.best_step)
        if not all(map(_equal, stored, _summary(rows, mode))):
            wrong.append(f"trial {row.number}: {stored} instead of {_summary(rows, mode)}")
    return wrong


def _summary(values: Mapping[int, float], mode: Mode) -> tuple[Any, ...]:
    def badness(step: int) -> tuple[bool, float]:
        value = values[step]
        return (True, 0.0) if math.isnan(value) else (False, value if mode == "min" else -value)

    # `values` is in the order of steps, so `min` takes the earliest of several best values.
    best = min(values, key=badness)
    last = max(values)
    return len(values), last, values[last], values[best], best


def counters_true(tables: StudyRows) -> list[str]:
    """The counters equal a count of the rows."""
    counted = Counter(row.state for row in tables.trials.values())
    return [] if counted == +tables.counted else [f"{tables.counted} instead of {counted}"]


def some_resumed(tables: StudyRows) -> list[str]:
    """At least one attempt began from a checkpoint; otherwise the run tested no restore."""
    return [] if resumptions(tables) else ["no attempt began after step 1"]


def damaged(study: studydb.Study) -> list[str]:
    """No attempt has found the bytes of its checkpoint missing or changed."""
    kind = EventKind.CHECKPOINT_CORRUPT
    of_study = (event.c.study_id == study.record.id, event.c.kind == kind)
    with study.database.begin(write=False) as txn:
        return [str(row.data) for row in txn.all(sa.select(event).where(*of_study))]


def resumptions(tables: StudyRows) -> int:
    """The number of attempts that began from a checkpoint."""
    return sum(
        row.attempt > 1 and row.start_step > 1 for rows in tables.attempts.values() for row in rows
    )


def decided_as_reference(tables: StudyRows, mode: Mode, reduction_factor: float) -> list[str]:
    """Each decision at a rung equals the decision of an independent reference."""
    wrong = []
    for milestone, arrivals in tables.arrivals.items():
        if [one.ordinal for one in arrivals] != list(range(len(arrivals))):
            wrong.append(f"rung {milestone}: the ordinals are not 0, 1, 2, …")
        wanted = decisions([one.value for one in arrivals], mode, reduction_factor)
        wrong += [
            f"rung {milestone}, arrival {one.ordinal} of {one.value}: "
            f"{'stopped' if one.stopped else 'went on'}"
            for one, (stops, _) in zip(arrivals, wanted, strict=True)
            if one.stopped != stops
        ]
    return wrong


def decisions_obeyed(tables: StudyRows) -> list[str]:
    """Each trial was judged at each rung that it passed; a stopped trial trained no further."""
    wrong = []
    for row in tables.trials.values():
        entries = {
            milestone: one
            for milestone, arrivals in tables.arrivals.items()
            for one in arrivals
            if one.trial_id == row.id
        }
        passed = {milestone for milestone in tables.arrivals if milestone <= row.last_step}
        stops = [one.step for one in entries.values() if one.stopped]
        expected_stops = [row.last_step] if row.reason == "EARLY_STOPPED" else []
        if entries.keys() != passed or stops != expected_stops:
            wrong.append(f"trial {row.number}: {row.reason} at {row.last_step}, judged {entries}")
    return wrong


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float) and math.isnan(one):
        return math.isnan(other)
    return bool(one == other)
