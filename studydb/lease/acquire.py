"""Getting the next trial: claim what waits, else make a new one; when to look again, when to go."""

import random
from collections.abc import Callable
from functools import partial
from time import monotonic
from uuid import uuid4

from studydb.db import Database
from studydb.domain.records import Claim, Study
from studydb.operations.ask import ask
from studydb.operations.claim import claim
from studydb.operations.recover import recover, recover_host
from studydb.operations.study_progress import StudyProgress, read_progress
from studydb.processes import is_alive, this_process

FIRST_WAIT_S, LONGEST_WAIT_S = 0.1, 15.0
BUSY_WAIT_S = 1.0

_ask_if_nothing_waits = partial(ask, if_nothing_waits=True)
_CLAIM_FIRST: tuple[Callable[..., Claim | None], ...] = (claim, ask)
_ASK_FIRST = (_ask_if_nothing_waits, claim, ask)
"""
What the last trial came from is tried first. The last step is needed when all that waits is being
claimed by others.
"""

HINT_S = 2.0
"""
A claim goes on where the last one found its trial, for so long. As long as somebody holds an old
snapshot, all that has been claimed still stands in the index before it: 3 ms after 20,000 claims.
What comes back to the queue before that place waits for the next look at the whole of it.
"""


class Acquirer:
    """
    Acquires trials for one worker.

    A call that ends in a fault keeps its token for the next one: a claim whose reply was lost is
    then found, even if nothing else is left to claim. If it is not, its trial was taken back, and
    whatever names the token again is refused: the call after that takes a new one.
    """

    def __init__(self, database: Database, study: Study, *, worker_id: int, lease_s: float) -> None:
        """Acquire for a registered worker."""
        self._database, self._study = database, study
        self._worker_id, self._lease_s = worker_id, lease_s
        self._token = uuid4().hex
        self._again = self._is_idle = False
        self._steps = _CLAIM_FIRST
        self._beyond, self._seen_whole_s = (0, -1), -HINT_S

    def acquire(self) -> Claim | None:
        """
        Claim a PENDING trial, else make a new one within the budget.

        Raises:
            StorageTransient: Call again; the trial, if one was claimed, is not lost.
        """
        if self._is_idle and not self._again and not self._can_claim():
            return None  # polling writes nothing
        again, self._again = self._again, True
        for step in self._steps:
            claimed = self._try(step, again=again)
            if claimed is not None:
                self._beyond = claimed.place if step is claim else self._beyond
                self._steps = _CLAIM_FIRST if step is claim else _ASK_FIRST
                break
        if claimed is not None or again:
            self._token = uuid4().hex
        self._again, self._is_idle = False, claimed is None
        return claimed

    def _can_claim(self) -> bool:
        return read_progress(self._database, self._study).can_claim

    def _hint(self) -> dict[str, tuple[int, int]]:
        now_s = monotonic()
        if now_s - self._seen_whole_s < HINT_S:
            return {"beyond": self._beyond}
        self._seen_whole_s = now_s
        return {}

    def _try(self, operation: Callable[..., Claim | None], *, again: bool) -> Claim | None:
        hint = self._hint() if operation is claim else {}
        return operation(
            self._database,
            self._study,
            worker_id=self._worker_id,
            token=self._token,
            lease_s=self._lease_s,
            again=again,
            **hint,
        )

    def look(self) -> StudyProgress:
        """Sweep what others left behind and see whether there is anything to do."""
        recover(self._database, self._study)
        recover_host(self._database, self._study, process=this_process(), is_alive=is_alive)
        return read_progress(self._database, self._study)


class Patience:
    """
    The time between two looks, jittered: 0.1 s after a trial, then twice as long each time.

    A wait is at most 0.1 s longer than twice the time since the last trial, so that an idle worker
    notices the end of a short study soon. The longest wait is 15 s: polling is the contract.
    """

    def __init__(self) -> None:
        self._wait_s = FIRST_WAIT_S

    def next_s(self) -> float:
        """How long to wait now."""
        wait_s = self._wait_s * random.uniform(0.5, 1.0)  # noqa: S311  jitter, no secret
        self._wait_s = min(self._wait_s * 2, LONGEST_WAIT_S)
        return wait_s

    def reset(self) -> None:
        """Begin anew: a trial was claimed."""
        self._wait_s = FIRST_WAIT_S

    def shorten(self) -> None:
        """Wait 1 s at most: there is work, which others were faster to claim."""
        self._wait_s = min(self._wait_s, BUSY_WAIT_S)
