"""The methods of a study that steer and annotate its trials, or the whole study."""

from collections.abc import Callable, Iterable
from typing import Any

from studydb.db import Database
from studydb.domain.arguments import flag
from studydb.domain.errors import InvalidSpec, UsageError
from studydb.domain.life.states import Status
from studydb.domain.listed_rows import ListedNote
from studydb.domain.records import Study as Record
from studydb.domain.text.names import check_note, check_tags
from studydb.domain.text.other_tools import suggesting_keywords
from studydb.operations import control
from studydb.operations.annotate import note, read_notes, tag
from studydb.operations.invalidate import invalidate
from studydb.operations.retry import retry, selected
from studydb.study import checking
from studydb.study.discarding import stop_and_discard


class TrialRequests:
    """The methods of `Study` that steer and annotate its trials or the whole study."""

    database: Database
    record: Record
    number_of: Callable[[int | str], int]
    _ask_once: Callable[..., Any]
    _read: Callable[[Callable[[Database, Record], Any]], Any]

    def pause(self, *numbers: int | str) -> None:
        """
        Pause these trials (numbers or names); without numbers, pause the study.

        RUNNING trials learn of the request within about 4 s, and pause at their next report. No
        trial of a paused study is claimed.

        Raises:
            UnknownTrial: A trial does not exist; nothing was changed.
            NotAllowed: A trial has ended or is invalidated; nothing was changed.
        """
        self._control(control.pause, Status.PAUSED, numbers)

    def resume(self, /, *numbers: int | str, **changes: Any) -> None:
        """
        Resume these trials (numbers or names); without numbers, resume the study.

        With changes, as in `study.resume(3, lr=0.01)`, all later attempts of the trials get these
        values. The trials must be PAUSED or PENDING. `trial.params` does not change; `trial.config`
        has the new values, and `trial.changed` lists them.

        Args:
            changes: Values of parameters of the study's space, nested or by path:
                `study.resume(3, **{"model/width": 4})`.

        Raises:
            UnknownTrial: A trial does not exist; nothing was changed.
            NotAllowed: A trial has ended or is invalidated; or changes are given for a RUNNING
                trial; or the study has reached one of its limits. Nothing was changed.
            InvalidSpec: A change names no parameter of the space, or its value is outside the
                domain, or changes are given without trials; nothing was changed.
        """
        if changes and not numbers:
            raise InvalidSpec(
                f"{', '.join(map(repr, changes))} can be changed only in trials, not in the study; "
                f"name trials by number: study.resume(3, {next(iter(changes))}=…), or "
                f"`studydb resume NAME 3 {next(iter(changes))}=…`."
            )
        options = {"changes": changes} if changes else {}
        self._control(control.resume, Status.RUNNING, numbers, **options)

    @suggesting_keywords
    def stop(
        self, *numbers: int | str, now: bool = False, discard_checkpoints: bool = False
    ) -> None:
        """
        End these trials (numbers or names) as CANCELLED; without numbers, stop the study.

        RUNNING trials learn of the request within about 4 s, and end at their next report. The
        worker kills a trial that outlasts the grace.

        Args:
            now: Kill each RUNNING trial as soon as its worker learns of the request. The trial has
                no grace to save a last checkpoint. Results that were reported are kept.
            discard_checkpoints: Wait up to a minute until the trials have ended, then delete their
                checkpoints, except pinned and corrupt ones. The trials may have ended before the
                call. After an error, the same call deletes the remaining checkpoints.

        Raises:
            UnknownTrial: A trial does not exist; nothing was changed.
            NotAllowed: Without `discard_checkpoints`, a trial has ended; nothing was changed. With
                `discard_checkpoints`, a trial still runs after a minute and keeps its checkpoints.
            UsageError: `discard_checkpoints` is given, but no trials are.
            CheckpointError: The bytes of discarded checkpoints cannot be deleted on this host.
        """
        at_once = flag("now", now)
        if flag("discard_checkpoints", discard_checkpoints):
            if not numbers:
                raise UsageError(
                    "Name the trials whose checkpoints are to be deleted; a stopped study keeps "
                    "its checkpoints, because it can be resumed."
                )
            chosen = [self.number_of(each) for each in numbers]
            stop_and_discard(self._ask_once, self.database, self.record, chosen, now=at_once)
            return
        options = {"now": True} if at_once else {}
        self._control(control.stop, Status.STOPPED, numbers, **options)

    @suggesting_keywords
    def retry(
        self, *numbers: int | str, select: str | None = None, from_scratch: bool = False
    ) -> list[int]:
        """
        Run ended trials (numbers or names) again; each gets a clone, a new trial.

        A clone has the params, the config and the tags of its parent, and begins from the parent's
        newest checkpoint. It counts toward `max_concurrent`, but not toward `num_trials`. The
        parent keeps its state and its results; searchers see the clone instead of the parent, and
        the parent no longer ranks in rungs.

        Args:
            select: "errored", "cancelled", "finished" or "all" instead of numbers. Trials that
                have a clone, and invalidated trials, are left out.
            from_scratch: Begin without a checkpoint.

        Returns:
            The numbers of the clones, in the order of their parents' numbers.

        Raises:
            UsageError: Neither numbers nor a selection are given, or both are.
            InvalidSpec: There is no such selection.
            UnknownTrial: A trial does not exist.
            NotAllowed: A trial or one of its clones has not ended, or the study to which the
                trial's checkpoint belongs is being deleted. Each transaction clones up to 100
                trials; the clones of earlier transactions remain.
        """
        if bool(numbers) == (select is not None):
            raise UsageError(
                "Give the numbers of the trials to run again, or select='errored', 'cancelled', "
                "'finished' or 'all'."
            )
        options = {
            "from_scratch": flag("from_scratch", from_scratch),
            "skips_cloned": select is not None,
        }
        if select is None:
            chosen = [self.number_of(each) for each in numbers]
        else:
            which = checking.selection(select)
            chosen = self._read(lambda database, study: selected(database, study, which))
        made: list[int] = self._ask_once(retry, chosen, **options)
        return made

    @suggesting_keywords
    def invalidate(self, *numbers: int | str, reason: str = "", undo: bool = False) -> None:
        """
        Invalidate trials (numbers or names) whose values are wrong, or undo their invalidation.

        An invalidated trial is left out of the best trials and the frames, and no longer ranks in
        open rungs; searchers do not learn from it. Decisions that were based on its values stand.
        A trial that has not ended is stopped, with the reason INVALIDATED. Each transaction changes
        up to 100 trials; after an error, the changes of earlier transactions remain.

        Args:
            reason: Why the values are wrong, stored as a note on each trial; needed unless `undo`.
            undo: Let the trials count again. A trial that has ended stays ended.

        Raises:
            UsageError: No trial or no reason is given.
            UnknownTrial: A trial does not exist.
            NotAllowed: `undo` is set, and a trial is not invalidated.
            InvalidName: The reason is only white space, or longer than 10,000 characters.
        """
        if not numbers:
            raise UsageError("Name the trials to invalidate.")
        if not flag("undo", undo) and not reason:
            raise UsageError("Say why: reason='the labels were wrong', for example.")
        text = check_note(reason) if reason else ""
        chosen = [self.number_of(each) for each in numbers]
        self._ask_once(invalidate, chosen, reason=text, undo=undo)

    @suggesting_keywords
    def note(self, text: str, *, trial: int | str | None = None) -> None:
        """
        Add a note to the study, or to a trial (number or name); `show` and `status` print notes.

        Raises:
            UnknownTrial: The trial does not exist.
            InvalidName: The note is empty or longer than 10,000 characters.
        """
        number = None if trial is None else self.number_of(trial)
        self._ask_once(note, text=check_note(text), number=number)

    def notes(self, trial: int | str | None = None) -> list[ListedNote]:
        """Read the newest 100 notes on the study, or on a trial (number or name), oldest first."""
        number = None if trial is None else self.number_of(trial)
        found: list[ListedNote] = self._read(
            lambda database, study: read_notes(database, study, number=number)
        )
        return found

    @suggesting_keywords
    def tag(self, *numbers: int | str, add: Iterable[str] = (), remove: Iterable[str] = ()) -> None:
        """
        Add tags to trials (numbers or names) in any state, and remove tags.

        Raises:
            UsageError: No trial or no tag is given.
            UnknownTrial: A trial does not exist; nothing was changed.
            InvalidName: A tag is invalid, or a trial would have too many tags; nothing was changed.
        """
        new, old = check_tags(add), check_tags(remove)
        if not numbers or not (new or old):
            raise UsageError("Name trials and tags, as in study.tag(3, add=['baseline']).")
        self._ask_once(tag, [self.number_of(each) for each in numbers], add=new, remove=old)

    def _control(
        self,
        control_trials: Callable[..., None],
        study_status: Status,
        numbers: tuple[int | str, ...],
        **options: Any,
    ) -> None:
        if numbers:
            self._ask_once(control_trials, [self.number_of(each) for each in numbers], **options)
        else:
            self._ask_once(control.set_status, study_status, **options)
