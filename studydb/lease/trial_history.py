"""The trials of a study as a process knows them, for a searcher's model."""

from statistics import fmean

from msgspec import structs

from studydb.db import Database
from studydb.domain.records import Study
from studydb.domain.searching import Observation
from studydb.operations.history import KnownTrial, read_history
from studydb.store.history import SeenTrial


class History:
    """
    A cache of a study's trials. Each call of `changes` brings it up to date.

    A cache that is out of date does no harm: the budget and the uniqueness of points are checked
    when proposals are stored.

    Attributes:
        hashes: The hashes of the params of all known trials.
    """

    def __init__(self, database: Database, study: Study) -> None:
        self._database, self._study = database, study
        self._groups: dict[int, dict[int, SeenTrial]] = {}
        self._unfinished: set[int] = set()
        self._invalid: set[int] = set()
        self._cloned: set[int] = set()
        self._last: KnownTrial | None = None
        self.hashes: set[str] = set()

    def changes(self) -> list[Observation] | None:
        """
        Read what has changed since the last call: one observation for each changed configuration.

        Returns:
            The observations in ascending order of their numbers. None if the database lacks the
            newest trial that this cache knows, because a backup was restored: make another cache
            and another model.
        """
        seen = read_history(
            self._database,
            self._study,
            unfinished=self._unfinished,
            invalid=self._invalid,
            last=self._last,
        )
        if seen is None:
            return None
        changed = {
            first for trial in seen for first in (self._add(trial), self._hide_parent(trial))
        }
        means = [_mean([*self._groups[id_].values()]) for id_ in changed if id_ is not None]
        return sorted(means, key=lambda one: one.number)

    def _add(self, trial: SeenTrial) -> int | None:
        """Store a trial; return the id of its configuration's first trial, or None if unchanged."""
        number = trial.observation.number
        if trial.is_over:
            self._unfinished.discard(number)
        else:
            self._unfinished.add(number)
        if self._last is None or number > self._last.number:
            self._last = KnownTrial(number, trial.uuid)
        self.hashes.add(trial.params_hash)
        (self._invalid.add if trial.is_invalid else self._invalid.discard)(number)
        return self._store(trial.hidden() if trial.id in self._cloned else trial)

    def _hide_parent(self, clone: SeenTrial) -> int | None:
        """
        Hide the value of a clone's parent; return the id of the configuration's first trial.

        Returns:
            None if the trial is no clone, or if its parent is not known yet or is hidden already.
        """
        if clone.parent_id is None or clone.parent_id in self._cloned:
            return None
        self._cloned.add(clone.parent_id)
        first = clone.parent_id if clone.replicate_of is None else clone.replicate_of
        parent = self._groups.get(first, {}).get(clone.parent_id)
        return None if parent is None else self._store(parent.hidden())

    def _store(self, trial: SeenTrial) -> int | None:
        first = trial.id if trial.replicate_of is None else trial.replicate_of
        group = self._groups.setdefault(first, {})
        if group.get(trial.id) == trial:
            return None
        group[trial.id] = trial
        return first


def _mean(trials: list[SeenTrial]) -> Observation:
    """Make one observation of a configuration's trials; see `Observation`."""
    observations = sorted((one.observation for one in trials), key=lambda one: one.number)
    first = observations[0]
    if len(observations) == 1:
        return first
    unfinished = [one for one in observations if one.reason is None]
    ended = [one for one in observations if one.reason is not None and one.values is not None]
    state = unfinished[0] if unfinished else (ended[0] if ended else first)
    values = zip(*(one.values or () for one in ended), strict=True)
    scores = zip(*(one.scores or () for one in ended), strict=True)
    return structs.replace(
        first,
        state=state.state,
        reason=state.reason,
        values=tuple(map(fmean, values)) if ended else None,
        scores=tuple(map(fmean, scores)) if ended else None,
        last_step=max((one.last_step or 0 for one in ended), default=None),
    )
