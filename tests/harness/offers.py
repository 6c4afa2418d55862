"""What a simulated worker of a random walk offers; the worker claims only trials that fit."""

from collections.abc import Callable, Mapping
from typing import Any

from harness.model_resources import CLAIM_S, RESERVE_AFTER_S
from studydb.db import Database
from studydb.domain.records import Claim, Claimant, Lease, Study
from studydb.domain.resources import OF_STUDY, Capacity, read_capacity
from studydb.lease.fitting import Fitting
from studydb.operations.ask import ask
from studydb.operations.claim import claim, find_earlier_send


class Offer:
    """
    What one worker offers, and what its running trials hold of it.

    Args:
        uptime_s: The walk's monotonic clock. Each claim that the worker makes while trials ask for
            resources sets the worker's own clock ahead by `CLAIM_S`.
    """

    def __init__(
        self, study: Study, worker_id: int, capacity: Capacity, uptime_s: Callable[[], float]
    ) -> None:
        self._study, self._claims_s = study, 0.0
        no_database: Any = None  # each call names its database
        self.fitting = Fitting(
            no_database,
            study,
            worker_id=worker_id,
            capacity=capacity,
            reserve_after_s=RESERVE_AFTER_S,
            clock_s=lambda: uptime_s() + self._claims_s,
        )

    def names(self, database: Database) -> list[str] | None:
        """Return the classes whose trials can start now; None in a study without classes."""
        self._learn(database)
        return self.fitting.names()

    def claim(self, database: Database, claimant: Claimant) -> Claim | None:
        """Claim the first trial that fits, and hold what it asks for."""
        self._learn(database)
        if not self.fitting.is_classed:
            return claim(database, self._study, claimant)
        self._claims_s += CLAIM_S
        claimed = self.fitting.claim(claimant, again=True)
        self._hold(claimed)
        return claimed

    def ask(self, database: Database, claimant: Claimant) -> Claim | None:
        """
        Make a trial if the study's own request for resources fits the worker.

        A duplicate request gets the trial of the first request, even if it does not fit now.
        """
        names = self.names(database)
        if names is not None and OF_STUDY not in names:
            made = find_earlier_send(database, self._study, claimant)
        else:
            made = ask(database, self._study, claimant, fits=names)
        self._hold(made)
        return made

    def _hold(self, claimed: Claim | None) -> None:
        shares = claimed is not None and self.fitting.shares
        if claimed is not None and shares and self.fitting.granted(claimed) is None:
            self.fitting.hold(claimed)

    def release(self, lease: Lease) -> None:
        """Free what is held for an attempt, because its process has ended."""
        self.fitting.ledger.release(lease.token)

    def _learn(self, database: Database) -> None:
        fitting: Any = self.fitting
        fitting._database = database
        self.fitting.learn(now=True)


def capacity_of(amounts: Mapping[str, float]) -> Capacity:
    """Return the capacity of a worker that offers these amounts, no others and no memory."""
    custom = {name: amount for name, amount in amounts.items() if name not in ("cpus", "gpus")}
    return read_capacity(
        cpus=amounts.get("cpus", 0), gpus=int(amounts.get("gpus", 0)), memory_gb=0, custom=custom
    )
