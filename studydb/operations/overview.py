"""Read all that `studydb status` shows about a study, in one transaction, without locks."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TypeVar

from msgspec import Struct

from studydb.db import Database, Txn
from studydb.domain.errors import UnknownStudy
from studydb.domain.life.states import State
from studydb.domain.listed_rows import (
    CheckpointSizes,
    LastDecision,
    ListedNote,
    ListedStudy,
    ListedTrial,
    RecentEnds,
    StudyProblem,
    Unranked,
)
from studydb.domain.records import LastError, Study, TrialRow
from studydb.operations.fit_report import FitReport, fit_report_in
from studydb.operations.quota import describe as describe_quota
from studydb.operations.reads import scheduler_reasons
from studydb.operations.spending import describe as describe_limits
from studydb.operations.study_progress import StudyProgress, progress_in
from studydb.operations.workers import WorkerList, workers_in
from studydb.store import checkpoint_listing, events, notes, ranking, rung_listing, view_rows
from studydb.store import overview as store

MOST_UNFINISHED = 20
"""How many unfinished trials an overview lists."""

MOST_DECISIONS = 5
"""How many decisions of the scheduler an overview shows."""

MOST_NOTES = 5
"""How many notes on the study an overview shows."""

MOST_SHOWN_WORKERS = 1000
"""How many of a study's newest workers an overview reads."""

Group = TypeVar("Group")


class Overview(Struct, frozen=True):
    """
    A study at one moment.

    Attributes:
        best: The best trial; None if no trial has a rank (`store/ranking.py`).
        unfinished: Some RUNNING, PENDING and PAUSED trials.
        decisions: What the scheduler has decided last, newest first.
        problems: The newest event of each kind of trouble.
        unranked: If `best` is None: whether one of the newest trials has reported only NaN, and
            whether a trial with another value is invalidated.
        last_error: The error of the newest attempt that failed, or was lost with a known cause.
        given_back: The newest error with which a worker gave back a trial that is PENDING since,
            for example because the worker's host cannot run it; read for the trials in
            `unfinished`. None if there is no such error.
        ends: How the study's newest trials have ended.
        checkpoints: The total sizes of the kept checkpoints of the trials that were read for
            `ends`, by host and by whether a person has uploaded the checkpoints.
        limits: What each limit of the study allows, and how much of it is used.
        notes: The newest notes on the study, oldest first.
        fit: How the trials' requests for resources fit the workers; None without requests.
        at: The time of the read, by the database's clock.
    """

    row: ListedStudy
    progress: StudyProgress
    best: TrialRow | None
    unranked: Unranked
    unfinished: list[ListedTrial]
    decisions: list[LastDecision]
    workers: WorkerList
    ends: RecentEnds
    problems: list[StudyProblem]
    last_error: LastError | None
    given_back: LastError | None
    checkpoints: list[CheckpointSizes]
    limits: list[str]
    notes: list[ListedNote]
    fit: FitReport | None
    at: datetime


def read_overview(database: Database, study: Study) -> Overview:
    """
    Read an overview of a study; its cost does not grow with the study.

    Raises:
        UnknownStudy: The study was deleted meanwhile.
    """
    with database.begin(write=False, snapshot=True) as txn:
        row = view_rows.study(txn, study_id=study.id)
        if row is None:
            raise UnknownStudy(f"Study {study.name!r} has been deleted just now.")
        ends = store.recent_ends(txn, study_id=study.id, n_trials=row.n_trials)
        newest = checkpoint_listing.newest_trials(txn, study_id=study.id, limit=ends.read)
        progress = progress_in(txn, study)
        best = next(iter(ranking.best(txn, study_id=study.id)), None)
        unfinished = _unfinished(txn, study)
        return Overview(
            row=row,
            progress=progress,
            best=best,
            unranked=ranking.unranked(txn, study_id=study.id) if best is None else Unranked(),
            unfinished=unfinished,
            decisions=rung_listing.last_decisions(
                txn,
                study_id=study.id,
                mode=study.objective.mode,
                limit=MOST_DECISIONS,
                reasons=scheduler_reasons(txn, study),
            ),
            workers=workers_in(txn, study_id=study.id, limit=MOST_SHOWN_WORKERS),
            ends=ends,
            problems=events.problems(txn, study_id=study.id),
            last_error=events.last_error(txn, study_id=study.id),
            given_back=_given_back(txn, study, unfinished),
            checkpoints=checkpoint_listing.sizes(txn, trial_ids=newest),
            limits=[*describe_limits(txn, study), *describe_quota(txn, study)],
            notes=notes.newest(txn, study_id=study.id, trial_id=None, limit=MOST_NOTES),
            fit=fit_report_in(txn, study, makes_new=progress.has_budget),
            at=txn.now,
        )


def study_problems(database: Database, study: Study) -> list[StudyProblem]:
    """Read the newest event of each kind of trouble (`store.events.PROBLEMS`), newest first."""
    with database.begin(write=False) as txn:
        return events.problems(txn, study_id=study.id)


def _unfinished(txn: Txn, study: Study) -> list[ListedTrial]:
    by_state = store.unfinished(txn, study_id=study.id, limit=MOST_UNFINISHED)
    sizes = share({state: len(numbers) for state, numbers in by_state.items()}, MOST_UNFINISHED)
    chosen = [number for state, numbers in by_state.items() for number in numbers[: sizes[state]]]
    rows = view_rows.trials_numbered(txn, study_id=study.id, numbers=chosen)
    return [row for state in by_state for row in rows if row.state == state]


def _given_back(txn: Txn, study: Study, unfinished: Sequence[ListedTrial]) -> LastError | None:
    waiting = [row.number for row in unfinished if row.state == State.PENDING and row.attempt]
    return store.given_back(txn, study_id=study.id, numbers=waiting) if waiting else None


def share(sizes: Mapping[Group, int], total: int) -> dict[Group, int]:
    """
    Divide a page's rows equally among groups; no group gets more rows than it has.

    Args:
        sizes: How many rows each group has.
        total: How many rows the page has.
    """
    given, left = {}, total
    by_size = sorted(sizes.items(), key=lambda item: item[1])
    for index, (group, size) in enumerate(by_size):
        given[group] = min(size, left // (len(by_size) - index))
        left -= given[group]
    return given
