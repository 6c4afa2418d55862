"""Read long listings in bounded pages: a study's trials or results, or a trial's results."""

from collections.abc import Iterator

from msgspec import Struct

from studydb.db import Database
from studydb.domain.listed_rows import ListedResult, ListedTrial, PagedResult
from studydb.domain.records import Study
from studydb.operations.reads import existing_trial, trial_spans
from studydb.operations.summing import pages, reader
from studydb.store import results, studies, view_rows

TRIALS_PER_PAGE = 5_000
RESULTS_PER_PAGE = 10_000

FIRST_POSITION = (0, 0, 0)
"""The trial's id, the attempt and the step after which the first page of results begins."""


class TrialResults(Struct, frozen=True):
    """
    The live results of a trial, as they were when the trial was read.

    Attributes:
        n_results: How many results the trial has.
        n_listed: How many results `rows` reads: these are the last `n_listed` of the trial.
    """

    n_results: int
    n_listed: int
    _database: Database
    _study: Study
    _number: int
    _spans: list[results.Span]

    def rows(self) -> Iterator[ListedResult]:
        """Read rows like those of `v_result`, ordered by step, in pages; each call reads again."""
        name, metric = self._study.name, self._study.objective.metric
        for page in pages(self._spans, reader(self._database)):
            for row in page:
                metrics = {**(row.metrics or {}), metric: row.value}
                yield ListedResult(
                    name, self._number, row.step, row.value, metrics, row.attempt, row.reported_at
                )

    def metric_names(self) -> set[str]:
        """Read all rows, and collect the names of their metrics."""
        return {name for row in self.rows() for name in row.metrics}


def trial_results(
    database: Database, study: Study, number: int, *, limit: int | None = None
) -> TrialResults:
    """
    Find the results of a trial.

    Args:
        limit: How many of the last results to read; None for all.

    Raises:
        UnknownTrial: The study has no trial of this number.
    """
    with database.begin(write=False) as txn:
        trial = existing_trial(txn, study, number)
        spans = trial_spans(txn, study, trial)
        if limit is not None:
            spans = results.last_spans(txn, spans, limit=limit)
    n_results = trial.summary.n_results
    n_listed = n_results if limit is None else min(limit, n_results)
    return TrialResults(n_results, n_listed, database, study, number, spans)


def trial_pages(
    database: Database, study: Study, *, invalidated: bool = False
) -> Iterator[list[ListedTrial]]:
    """
    Read a study's rows of `v_trial`, ordered by number, in pages of one snapshot.

    Args:
        invalidated: Whether to read invalidated trials, too.
    """
    with database.begin(write=False, snapshot=True) as txn:
        next_number = view_rows.next_number(txn, study_id=study.id)
        if next_number == 0:
            studies.check_exists(txn, study_id=study.id)
        for first in range(0, next_number, TRIALS_PER_PAGE):
            end = first + TRIALS_PER_PAGE
            page = view_rows.trial_page(txn, study_id=study.id, first=first, end=end)
            yield [row for row in page if invalidated or row.invalidated_at is None]


def result_pages(
    database: Database, study: Study, *, invalidated: bool = False
) -> Iterator[list[PagedResult]]:
    """
    Read a study's live results, ordered by trial and step, in pages of one snapshot.

    Args:
        invalidated: Whether to read the results of invalidated trials, too.
    """
    position = FIRST_POSITION
    with database.begin(write=False, snapshot=True) as txn:
        while page := view_rows.result_page(
            txn, study_id=study.id, after=position, limit=RESULTS_PER_PAGE
        ):
            yield [row for row in page if invalidated or row.invalidated_at is None]
            position = (page[-1].trial_id, page[-1].attempt, page[-1].step)
            if len(page) < RESULTS_PER_PAGE:
                return
        if position == FIRST_POSITION:
            studies.check_exists(txn, study_id=study.id)
