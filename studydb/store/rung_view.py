"""What a scheduler reads at a report: locked rungs, and the reporting trial's own results."""

from collections.abc import Callable, Sequence

from studydb.db import Txn
from studydb.domain.life.decisions import RungKey
from studydb.domain.metrics import Result, Summary
from studydb.domain.quantile import cutoff, near
from studydb.domain.records import Lease, Study
from studydb.domain.scheduling import Ranked, RungView
from studydb.store import means, rungs
from studydb.store.means import RunningMean
from studydb.store.rungs import Neighbours, Rung


class LockedView:
    """
    The `StudyView` that a scheduler reads while it judges one batch of a trial's results.

    Attributes:
        locked: The rungs that the batch may enter; the transaction has locked them.
    """

    def __init__(
        self, txn: Txn, locked: dict[RungKey, Rung], study: Study, *, lease: Lease
    ) -> None:
        self.locked, self._txn, self._lease = locked, txn, lease
        self._objective, self._mean_from = study.objective, study.scheduler.mean_from or 0
        self._sent: dict[RungKey, Callable[[], Neighbours]] = {}
        self._beside: dict[RungKey, Neighbours] = {}
        self._summary, self._new = Summary(), ()  # type: tuple[Summary, Sequence[Result]]
        self._mean: RunningMean | None = None

    def query(self) -> None:
        """Query the entries beside the cuts of the locked rungs; `beside` reads the answers."""
        self._sent = {key: self._query(rung) for key, rung in self.locked.items()}

    def move_to(self, summary: Summary, new: Sequence[Result]) -> None:
        """
        Let the view show the trial's results up to the report that the scheduler judges next.

        Args:
            summary: The summary of the results before the batch.
            new: The results of the batch, up to and including the report.
        """
        self._summary, self._new = summary, new

    def replace(self, key: RungKey, rung: Rung) -> None:
        """Replace a rung that has got an entry; the batch's later reports then see the new rung."""
        self.locked[key] = rung
        self._sent.pop(key, None)
        self._beside.pop(key, None)

    def rung(self, key: RungKey) -> RungView:
        """Return a locked rung, as it was before this report."""
        rung, beside = self.locked[key], self.beside(key)
        return RungView(
            n=rung.cut.n,
            cutoff=cutoff(rung.cut, beside.better, rung.quantile),
            entered=beside.entered,
            n_entries=rung.n_entries,
            is_closed=rung.is_closed,
            closed_cutoff=rung.closed_cutoff,
            near=near(rung.cut, worse=beside.worse, better=beside.better),
        )

    def best(self, key: RungKey, n: int) -> Sequence[Ranked]:
        """Return the `n` best entries of a locked rung."""
        return rungs.best(self._txn, rung=self.locked[key], n=n)

    def mean(self) -> float:
        """Return the score of the mean of the trial's live values from the step `mean_from` on."""
        if self._mean is None:
            self._mean = means.read(self._txn, lease=self._lease, first=self._mean_from)
        self._mean = self._mean.add(self._new)
        return self._objective.score(self._mean.value)

    def best_score(self) -> float:
        """Return the trial's best score, this report included."""
        known = self._summary.add(self._new, self._objective).best_score
        assert known is not None
        return known

    def store_mean(self) -> None:
        """Store the running mean, if the scheduler has asked for it."""
        if self._mean is not None:
            means.store(self._txn, lease=self._lease, mean=self._mean)

    def beside(self, key: RungKey) -> Neighbours:
        """Return the entries beside a rung's cut; they are queried again only after `replace`."""
        if key not in self._beside:
            read = self._sent.pop(key, None) or self._query(self.locked[key])
            self._beside[key] = read()
        return self._beside[key]

    def _query(self, rung: Rung) -> Callable[[], Neighbours]:
        return rungs.query_neighbours(self._txn, rung=rung, trial_id=self._lease.trial_id)
