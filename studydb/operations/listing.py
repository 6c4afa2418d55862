"""What tables and frames read: rows of the stable views, whole or in pages; without locks."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from studydb.db import Database, Txn
from studydb.domain.errors import UnknownTrial
from studydb.domain.life.states import State
from studydb.domain.metrics import Result
from studydb.domain.records import DRAIN, Process, Study, TrialRow
from studydb.operations.summing import pages, reader
from studydb.processes import is_alive
from studydb.store import events, live, results, trials, view_rows
from studydb.store import recent_ends as store_pace

STUDY_COLUMNS = tuple(view_rows.STUDY.c.keys())
TRIAL_COLUMNS = tuple(view_rows.TRIAL.c.keys())
RESULT_COLUMNS = tuple(view_rows.RESULT.c.keys())
ATTEMPT_COLUMNS = tuple(view_rows.ATTEMPT.c.keys())

TRIALS_PER_PAGE = 5_000
RESULTS_PER_PAGE = 10_000


@dataclass(frozen=True, slots=True)
class Roll:
    """
    Workers as rows of `v_worker` and what tells a process apart, newest first.

    Attributes:
        at: The database's clock when they were read.
    """

    workers: list[Any]
    at: datetime

    def health(self, worker: Any) -> str:
        """
        Say how a worker is.

        Returns:
            "ended"; "dead", of a process of this host that is gone; "silent", of one unseen for
            longer than its lease; "draining", of one that was asked to end; or "alive".
        """
        if worker.ended_at is not None:
            return "ended"
        if not is_alive(_process(worker)):
            return "dead"
        if (self.at - worker.seen_at).total_seconds() > worker.lease_s:
            return "silent"
        return "draining" if worker.request == DRAIN else "alive"

    @property
    def n_alive(self) -> int:
        """How many of them live."""
        return sum(self.health(worker) in {"alive", "draining"} for worker in self.workers)


def _process(worker: Any) -> Process:
    return Process(worker.host, worker.boot_id, worker.pid_namespace, worker.pid, worker.started)


def studies(database: Database) -> list[Any]:
    """Every study's row of `v_study`, oldest first."""
    with database.begin(write=False) as txn:
        return view_rows.studies(txn)


def study(database: Database, name: str) -> Any:
    """One study's row of `v_study`; the study exists."""
    with database.begin(write=False) as txn:
        return view_rows.study(txn, name=name)


def trial_rows(
    database: Database,
    study: Study,
    *,
    state: State | None = None,
    by_best: bool = False,
    limit: int | None = None,
) -> list[Any]:
    """Rows of `v_trial` by number, or best first (see `store.views.trials`)."""
    with database.begin(write=False) as txn:
        return view_rows.trials(
            txn, study_id=study.id, name=study.name, state=state, by_best=by_best, limit=limit
        )


@dataclass(frozen=True, slots=True)
class Reports:
    """
    Live results of one trial as rows of `v_result`, as they were when they were asked for.

    Attributes:
        n_results: How many the trial has.
        n_listed: How many of them are meant: all, or the last ones.
    """

    n_results: int
    n_listed: int
    _database: Database
    _study: Study
    _number: int
    _spans: list[results.Span]

    def rows(self) -> Iterator[tuple[Any, ...]]:
        """Rows with `RESULT_COLUMNS` by step; read in pages, as often as they are asked for."""
        name, number, metric = self._study.name, self._number, self._study.objective.metric
        for page in pages(self._spans, reader(self._database)):
            for row in page:
                metrics = {**(row.metrics or {}), metric: row.value}
                yield (name, number, row.step, row.value, metrics, row.attempt, row.reported_at)

    def names(self) -> set[str]:
        """The names of all metrics; reads all rows."""
        return {name for row in self.rows() for name in row[_METRICS]}


_METRICS = RESULT_COLUMNS.index("metrics")


def reports(database: Database, study: Study, number: int, *, last: int | None = None) -> Reports:
    """
    What a trial has reported.

    Args:
        last: The last so many; None for all.

    Raises:
        UnknownTrial: No such number.
    """
    with database.begin(write=False) as txn:
        trial = trials.find(txn, study_id=study.id, number=number)
        if trial is None:
            raise UnknownTrial(f"Study {study.name!r} has no trial {number}.")
        spans = _spans(txn, study, trial)
        if last is not None:
            spans = results.last_spans(txn, spans, most=last)
    n_results = trial.summary.n_results
    n_listed = n_results if last is None else min(last, n_results)
    return Reports(n_results, n_listed, database, study, number, spans)


def _spans(txn: Txn, study: Study, trial: TrialRow) -> list[results.Span]:
    through = trial.summary.last_step or 0
    return results.spans(txn, study_id=study.id, trial_id=trial.id, through=through)


def last_result(database: Database, study: Study, trial: TrialRow) -> Result | None:
    """What a trial reported last."""
    with database.begin(write=False) as txn:
        row = results.last(txn, _spans(txn, study, trial))
    return None if row is None else results.read(row)


def attempt_rows(database: Database, study: Study, number: int) -> list[Any]:
    """One trial's rows of `v_attempt`, oldest first."""
    with database.begin(write=False) as txn:
        return view_rows.attempts(txn, name=study.name, number=number)


def live_rows(database: Database, study: Study, *, most: int) -> dict[State, list[Any]]:
    """
    Rows of `v_trial` of some trials that have not ended, ascending, by state.

    Args:
        most: Per state.
    """
    with database.begin(write=False) as txn:
        by_state = live.numbers(txn, study_id=study.id, most=most)
        numbers = [number for some in by_state.values() for number in some]
        rows = view_rows.trials_numbered(txn, name=study.name, numbers=numbers)
    return {state: [row for row in rows if row.state == state] for state in by_state}


def roll(database: Database, study: Study | None = None, *, most: int = 100) -> Roll:
    """The newest workers, of one study or of all."""
    with database.begin(write=False) as txn:
        found = view_rows.workers(txn, study_id=None if study is None else study.id, most=most)
        return Roll(found, txn.now)


def pace(database: Database, study: Study) -> tuple[Any, datetime]:
    """How the newest trials of a study ended and how fast, and the database's clock."""
    with database.begin(write=False) as txn:
        return store_pace.pace(txn, study_id=study.id), txn.now


def troubles(database: Database, study: Study) -> list[Any]:
    """What went wrong lately with what a study stores: a row per kind of event, newest first."""
    with database.begin(write=False) as txn:
        return events.troubles(txn, study_id=study.id)


def trial_pages(database: Database, study: Study) -> Iterator[list[Any]]:
    """Rows of `v_trial` by number, in pages, of one moment."""
    with database.begin(write=False, snapshot=True) as txn:
        beyond = view_rows.beyond_numbers(txn, study_id=study.id)
        for first in range(0, beyond, TRIALS_PER_PAGE):
            yield view_rows.trial_page(
                txn, name=study.name, first=first, beyond=first + TRIALS_PER_PAGE
            )


def result_pages(database: Database, study: Study) -> Iterator[list[Any]]:
    """
    Live results by trial and step, in pages, of one moment.

    The columns are those of `v_result` without `study`, and `metrics` without the study's own.
    """
    place = (0, 0, 0)
    with database.begin(write=False, snapshot=True) as txn:
        while page := view_rows.result_page(
            txn, study_id=study.id, after=place, most=RESULTS_PER_PAGE
        ):
            yield page
            place = (page[-1].trial_id, page[-1].attempt, page[-1].step)
            if len(page) < RESULTS_PER_PAGE:
                return
