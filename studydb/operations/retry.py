"""
Run ended trials again: each gets a clone, a new trial with its params and its config.

A clone begins from its parent's newest checkpoint or from scratch. The checkpoint is pinned until
the clone has ended. A clone does not count for `num_trials`. The parent keeps its state and its
results, but its entries no longer rank in rungs.
"""

import shlex
from collections.abc import Sequence
from functools import partial
from uuid import UUID, uuid5

from msgspec import Struct, structs

from studydb.db import Database, Txn
from studydb.domain.errors import NotAllowed
from studydb.domain.life.event_kinds import EventKind
from studydb.domain.life.selections import Selection
from studydb.domain.life.states import FINAL, State
from studydb.domain.records import Request, Study, TrialRow
from studydb.operations.checkpoints import newest_of
from studydb.operations.rung_locks import lock_with_rungs, try_until_locked
from studydb.operations.start_checkpoints import lock_studies
from studydb.store import clones, counters, events, pins, rung_ranks, studies

MOST = 100
"""The most trials that one transaction clones."""


def selected(database: Database, study: Study, selection: Selection) -> list[int]:
    """Read the numbers of selected trials, ascending; omit invalidated and cloned trials."""
    numbers: list[int] = []
    with database.begin(write=False, snapshot=True) as txn:
        while page := clones.select(
            txn,
            study_id=study.id,
            selection=selection,
            after_number=numbers[-1] if numbers else -1,
            limit=10 * MOST,
        ):
            numbers += page
        if not numbers:
            studies.check_exists(txn, study_id=study.id)
    return numbers


def retry(
    database: Database,
    study: Study,
    numbers: Sequence[int],
    request: Request,
    *,
    from_scratch: bool = False,
    skips_cloned: bool = False,
) -> list[int]:
    """
    Clone ended trials, up to 100 in a transaction.

    A transaction that raises an error changes nothing; the clones of earlier transactions remain.

    Args:
        from_scratch: Whether the clones begin without a checkpoint.
        skips_cloned: Whether to leave out trials that have clones. If not, a trial is refused while
            a clone of it has not ended.

    Returns:
        The numbers of the clones, in the order of their parents' numbers.

    Raises:
        UnknownTrial: No such trial.
        NotAllowed: A trial has not ended, or a clone of it has not ended, or the study of a
            checkpoint is being deleted.
        StorageBusy: See `try_until_locked`.
    """
    ordered = sorted(set(numbers))
    made: list[int] = []
    for first in range(0, len(ordered), MOST):
        part = structs.replace(request, token=f"{request.token}.{first}") if first else request
        some = _Cloning(
            study=study,
            request=part,
            numbers=ordered[first : first + MOST],
            from_scratch=from_scratch,
            skips_cloned=skips_cloned,
        )
        made += try_until_locked(partial(some.run, database))
    return made


class _Cloning(Struct, frozen=True, kw_only=True):
    """One transaction of a retry."""

    study: Study
    request: Request
    numbers: Sequence[int]
    from_scratch: bool
    skips_cloned: bool

    def run(self, database: Database) -> list[int] | None:
        """Clone the trials; return None if their rungs or checkpoints must be locked again."""
        study, request = self.study, self.request
        with database.begin() as txn:
            locked = lock_with_rungs(txn, study, self.numbers)
            recorded = events.data_of(txn, token=request.token)
            if locked is None or recorded:
                txn.abandon()
                return list(recorded["clones"]) if recorded else None

            parents = [trial for trial in locked[0] if self._is_chosen(txn, trial)]
            sources = self._pin_sources(txn, parents)
            if sources is None:
                txn.abandon()
                return None
            ids = [trial.id for trial in parents]

            rung_ranks.unrank(txn, rungs=locked[1], trial_ids=ids)
            first = studies.number_clones(txn, study_id=study.id, n=len(parents))
            for number, parent in enumerate(parents, first):
                self._insert(txn, parent, number, sources.get(parent.id))
            made = list(range(first, first + len(parents)))
            events.append_request(
                txn,
                study_id=study.id,
                kind=EventKind.RETRIED,
                request=request,
                data={
                    "numbers": [trial.number for trial in parents],
                    "clones": made,
                    "from_scratch": self.from_scratch,
                },
            )
            counters.move(
                txn, study_id=study.id, key=0, out_of=None, into=State.PENDING, n=len(made)
            )
        return made

    def _is_chosen(self, txn: Txn, trial: TrialRow) -> bool:
        name = self.study.name
        if trial.state not in FINAL:
            raise NotAllowed(
                f"Trial {trial.number} of {name!r} is {trial.state}; only an ended trial is run "
                f"again. Stop it first: `studydb stop {shlex.quote(name)} {trial.number}`."
            )
        known = clones.of_trial(txn, study_id=self.study.id, trial_id=trial.id)
        if self.skips_cloned:
            return not known
        live = [clone.number for clone in known if clone.is_live]
        if live:
            raise NotAllowed(
                f"Trial {trial.number} of {name!r} is being run again as trial {live[0]}. Wait "
                "until that trial has ended, or stop it: "
                f"`studydb stop {shlex.quote(name)} {live[0]}`."
            )
        return True

    def _pin_sources(self, txn: Txn, parents: Sequence[TrialRow]) -> dict[int, int] | None:
        """
        For each clone, count a pin of the checkpoint from which the clone begins; see `newest_of`.

        All checkpoints are chosen before the first is locked, so that they are locked by ascending
        id.

        Returns:
            The ids of the checkpoints, by the ids of the parents; None if a checkpoint was removed
            before it was locked.

        Raises:
            NotAllowed: The study of a checkpoint is being deleted.
        """
        if self.from_scratch:
            return {}
        newest = {
            trial.id: newest_of(txn, checkpoint_id=trial.checkpoint_id)
            for trial in parents
            if trial.checkpoint_id is not None
        }
        sources = {trial_id: one.id for trial_id, one in newest.items() if one and one.id}
        for checkpoint_id in sorted(sources.values()):
            if not pins.count(txn, checkpoint_id=checkpoint_id):
                return None
        if sources:
            lock_studies(txn, self.study, source_ids=[*sources.values()])
        return sources

    def _insert(self, txn: Txn, parent: TrialRow, number: int, source: int | None) -> None:
        uuid = uuid5(UUID(parent.uuid), self.request.token)  # the same in a duplicate request
        clone_id = clones.insert(
            txn,
            study_id=self.study.id,
            parent_id=parent.id,
            uuid=str(uuid),
            number=number,
            source=source,
        )
        if source is not None:
            pins.insert(
                txn,
                study_id=self.study.id,
                checkpoint_id=source,
                trial_id=clone_id,
                reason=pins.CLONE,
                actor=self.request.actor,
            )
