"""Runs calls interleaved statement by statement, and compares their outcomes with serial orders."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from datetime import datetime
from random import Random
from typing import Any, Protocol

from harness.actions import outcome_of
from harness.interleaver import Interleaver, step_by_step
from harness.row_invariants import broken_promises
from harness.serial_orders import SerialOutcomes
from studydb.db import Database
from studydb.domain.records import Study


class Situation(Protocol):
    """A new study with trials, about to get calls."""

    study: Study

    def call(self, name: str) -> Callable[[Database], Any]:
        """Prepare a call; a situation's calls are all prepared, in order, before any is made."""

    def rows(self, database: Database) -> Any:
        """Return the rows that the calls may have changed."""


def expect_serial_outcomes(
    stage: tuple[Database, Interleaver],
    make_situation: Callable[[Database, str], Situation],
    kind_and_calls: tuple[str, ...],
    *,
    now: datetime,
    schedules: int,
) -> None:
    """
    Check that interleaved calls leave the same rows as calls that run one after the other.

    Args:
        kind_and_calls: The kind of the situation, and the names of calls that run at the same time.
        now: The time that the clock shows while the interleaved calls run.
        schedules: How many times the calls are interleaved at random, each in a new situation.
    """
    database, interleaver = stage
    kind, *names = kind_and_calls

    def prepared() -> tuple[Situation, list[Callable[[Database], Any]]]:
        situation = make_situation(database, kind)
        return situation, [situation.call(name) for name in names]

    def rows_after(order: Sequence[int]) -> Any:
        situation, calls = prepared()
        for place in order:
            outcome_of(lambda call=calls[place]: call(database))
        return situation.rows(database)

    serial = SerialOutcomes(len(names), rows_after)
    for seed in range(schedules):
        rng = Random(f"{kind_and_calls} {seed}")
        situation, calls = prepared()
        with rng.choice([nullcontext, step_by_step])():
            result = interleaver.run(calls, rng, clock=lambda: now)

        assert result.faults == [], result
        assert broken_promises(database, situation.study) == {}, result
        found = situation.rows(database)
        assert serial.explain(found, result.schedule) is not None, result
