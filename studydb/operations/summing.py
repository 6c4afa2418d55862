"""
Sum up a trial's metrics, in the transaction that ends the trial or after that transaction.

An attempt that knows every result of its trial keeps a tally. Without a tally, the trial's results
are read in the transaction if they take at most 16 MiB, and if this trial and all trials that the
transaction has ended before have at most 2,000 results in total. Otherwise the trial's results are
read after the commit, page by page, because reading a million rows under a lock takes too long. The
results of an ended trial never change.
"""

from collections.abc import Callable, Iterable, Iterator

from studydb.db import Database, Txn
from studydb.domain.metrics import weigh
from studydb.domain.records import Study
from studydb.domain.tally import Analysis, Tally
from studydb.store import results, trials
from studydb.store.results import Span, StoredResult

MOST_IN_TRANSACTION = 2_000
"""The most results that one transaction reads to sum up the trials that it ends."""

MOST_BYTES_IN_TRANSACTION = 16 << 20
"""After this many bytes no further page of results is read while their trial's row is locked."""

FIRST_PAGE, LARGEST_PAGE = 8, 5_000
PAGE_BYTES = 8 << 20
"""
The first page has at most 8 rows. The limit of a later page is four times the limit of the page
before, but at most 5,000 rows, and at most the rows that take about 8 MiB in memory.
"""

Read = Callable[[Span, int], list[StoredResult]]


def pages(spans: Iterable[Span], read: Read) -> Iterator[list[StoredResult]]:
    """
    Read rows of results in pages that are bounded in bytes.

    Args:
        spans: The spans to read, in order.
        read: Reads the first rows of a span; its second argument is the most rows to read.
    """
    n_rows = FIRST_PAGE
    for span in spans:
        left: Span | None = span
        while left is not None:
            page = read(left, n_rows)
            left = left.behind(page[-1].step) if len(page) == n_rows else None
            if page:
                yield page
                mean = _weigh(page) // len(page)
                n_rows = max(1, min(LARGEST_PAGE, 4 * n_rows, PAGE_BYTES // mean))


def _weigh(page: list[StoredResult]) -> int:
    return sum(weigh(results.read(row)) for row in page)


def in_transaction(txn: Txn, study: Study, *, trial_id: int, n_results: int) -> Analysis | None:
    """
    Sum up the results of a trial whose row is locked.

    Args:
        n_results: The number of results of this trial, plus those of all trials that the same
            transaction has ended before.

    Returns:
        None if the results are too many or too large; then call `after_end` after the commit.
    """
    if n_results > MOST_IN_TRANSACTION:
        return None
    tally, size = Tally(study.objective.metric), 0
    spans = results.spans(txn, study_id=study.id, trial_id=trial_id)
    for page in pages(spans, lambda span, limit: results.page(txn, span, limit=limit)):
        tally.add(map(results.read, page))
        size += _weigh(page)
        if size > MOST_BYTES_IN_TRANSACTION:
            return None
    return tally.analysis()


def after_end(database: Database, study: Study, *, trial_id: int) -> None:
    """Store the `metric_summary` of an ended trial that has results but no `metric_summary`."""
    with database.begin(write=False) as txn:
        if not trials.lacks_metric_summary(txn, trial_id=trial_id):
            return
        spans = results.spans(txn, study_id=study.id, trial_id=trial_id)
    tally = Tally(study.objective.metric)
    for page in pages(spans, reader(database)):
        tally.add(map(results.read, page))
    with database.begin() as txn:
        trials.store_metric_summary(txn, trial_id=trial_id, metric_summary=tally.analysis())


def reader(database: Database) -> Read:
    """Make a function that reads each page in its own transaction."""

    def read(span: Span, limit: int) -> list[StoredResult]:
        with database.begin(write=False) as txn:
            return results.page(txn, span, limit=limit)

    return read
