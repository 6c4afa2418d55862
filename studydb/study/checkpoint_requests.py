"""The methods of a study that pin checkpoints, and delete checkpoints that are no longer kept."""

from collections.abc import Callable
from typing import Any

from studydb.db import Database
from studydb.domain.arguments import count, flag
from studydb.domain.records import Study as Record
from studydb.domain.text.other_tools import suggesting_keywords
from studydb.operations.pin import pin, unpin
from studydb.study.collecting import Collected, collect


class CheckpointRequests:
    """The methods `pin` and `gc` of `Study`."""

    database: Database
    record: Record
    number_of: Callable[[int | str], int]
    _ask_once: Callable[..., Any]

    @suggesting_keywords
    def pin(self, trial: int | str, *, step: int | None = None, remove: bool = False) -> list[int]:
        """
        Pin a checkpoint of a trial (number or name), so that it is kept; or remove pins.

        A pinned checkpoint is kept whatever the study's `keep` says. After its pins are removed, a
        checkpoint that `keep` does not keep is deleted by the trial's next save, by `gc()`, or by
        `stop(trial, discard_checkpoints=True)`.

        Args:
            step: The step of the checkpoint; None for the newest checkpoint or, with `remove`, for
                all checkpoints of the trial.
            remove: Remove the pins that people have made. Pins of trials that begin from the
                checkpoint, such as clones, stay.

        Returns:
            The step of the checkpoint that is now pinned; with `remove`, the steps of the
            checkpoints whose pins this call has removed.

        Raises:
            UnknownTrial: The study has no such trial.
            NotFound: The trial keeps no such checkpoint to pin; nothing was changed.
        """
        number = self.number_of(trial)
        at = None if step is None else count("step", step, least=0)
        if flag("remove", remove):
            return list(self._ask_once(unpin, number, step=at))
        return [int(self._ask_once(pin, number, step=at))]

    @suggesting_keywords
    def gc(self, *, dry_run: bool = False) -> Collected:
        """
        Delete checkpoints that are no longer kept, and bytes left by crashes or a failing store.

        This method deletes three things: checkpoints without a pin that the study's `keep` does not
        keep; bytes of checkpoints that were removed earlier; and uploads that were cut off. If the
        study has a quota, the sum of its checkpoints' sizes is computed again.

        Args:
            dry_run: Delete nothing; return what would be deleted.

        Returns:
            What was deleted, and what could not be deleted because its store fails on this host.
        """
        return collect(self.database, self.record, dry_run=flag("dry_run", dry_run))
