"""
The steps of a random walk that touch checkpoints: saves, uploads, pins, removals, and enqueues of
trials that begin from a checkpoint.
"""

from random import Random
from typing import TYPE_CHECKING

from harness.arrange import SimulatedWorker, created, new_spec
from harness.model_rows import ModelCheckpoint
from harness.model_starts import OTHER, add_other
from harness.snapshot import other_name
from harness.study_action import StudyAction
from studydb.domain.life.retention import Keep
from studydb.domain.life.states import FINAL
from studydb.domain.records import Study

if TYPE_CHECKING:
    from harness.random_walk import RandomWalk

KEEPS = [
    Keep(quota=12),
    Keep(quota=25),
    Keep(last=3, quota=20),
    Keep(best=1, quota=16),
    Keep(every=2, quota=30),
    Keep(last=3, best=2),
]
"""Values of `keep` that set a quota, or keep more than a trial's newest two checkpoints."""

WITH_KEEP = {
    "take_a_trial": 12,
    "save_often": 8,
    "save": 6,
    "save_upload": 2,
    "set_keep": 0.7,
    "delete_removed": 4,
    "zombie_report": 2,
}
"""In studies with one of `KEEPS`, these steps have these weights instead of their usual weights."""

SIZES = (1, 3, 3, 6)
"""The sizes of checkpoints in bytes."""

DAY_AND_HOUR_S = 90_001.0
"""After this time, the upload of a person is abandoned."""


class CheckpointSteps:
    """The part of `RandomWalk` whose steps touch checkpoints."""

    _other_study: Study | None = None

    # --- attempts

    def save_upload(self: "RandomWalk", rng: Random) -> None:
        """Begin an upload, sometimes by an ended attempt; mostly record the upload's checkpoint."""
        attempt = self._attempt(rng, held=rng.random() < 0.6) or self._attempt(rng)
        if attempt is not None:
            self.do(self.factory.begin_upload(attempt))
            if rng.random() < 0.7:
                self.do(self.factory.save_upload(attempt, attempt.begun[-1]))

    def _save(self: "RandomWalk", rng: Random) -> StudyAction | None:
        attempt = self._attempt(rng)
        if attempt is None:
            return None
        offset, size_bytes = rng.choice([0, 0, -1, 4]), rng.choice(SIZES)
        return self.factory.save(attempt, step_offset=offset, size_bytes=size_bytes)

    def save_often(self: "RandomWalk", rng: Random) -> None:
        """Save four times, each time by a random attempt that holds its trial, to reach a quota."""
        for _ in range(4):
            if action := self._save(rng):
                self.do(action)

    def _begin_upload(self: "RandomWalk", rng: Random) -> StudyAction | None:
        attempt = self._attempt(rng, held=rng.random() < 0.7) or self._attempt(rng)
        return self.factory.begin_upload(attempt) if attempt else None

    def _save_upload(self: "RandomWalk", rng: Random) -> StudyAction | None:
        """Record the checkpoint of an upload that has begun; if none has, begin an upload."""
        uploading = [attempt for attempt in self.attempts(held=True) if attempt.begun][-6:]
        if not uploading:
            return self._begin_upload(rng)
        attempt = rng.choice(uploading)
        return self.factory.save_upload(attempt, rng.choice(attempt.begun[-2:]))

    def _mark_corrupt(self: "RandomWalk", rng: Random) -> StudyAction | None:
        attempt = self._attempt(rng)
        if attempt is None or attempt.restored is None or attempt.has_flushed or attempt.has_saved:
            return None
        is_verified = rng.random() < 0.8
        return self.factory.mark_corrupt(attempt, attempt.restored, is_verified=is_verified)

    # --- collections

    def collect_25_hours_later(self: "RandomWalk", _: Random) -> None:
        """Advance the clock until people's uploads are abandoned, and collect the uploads."""
        self.advance(DAY_AND_HOUR_S)
        self.do(self.factory.collect())

    def _collect(self: "RandomWalk", _: Random) -> StudyAction:
        return self.factory.collect()

    def _delete_removed(self: "RandomWalk", rng: Random) -> StudyAction:
        """Delete rows of removed checkpoints, or discard, pin or unpin a trial's checkpoints."""
        ended = [trial.number for trial in self.model.trials if trial.state in FINAL]
        chance = rng.random()
        if chance < 0.4:
            return self.factory.discard(rng.choice(ended or [0]))
        if chance < 0.7:
            number = rng.randrange(len(self.model.trials) + 1)
            return self.factory.pin(number, remove=chance > 0.6)
        return self.factory.delete_removed()

    def _remove_unkept(self: "RandomWalk", rng: Random) -> StudyAction:
        """Do what `gc` does: remove a trial's unkept checkpoints, or sum up the study's bytes."""
        if rng.random() < 0.2:
            return self.factory.recount()
        return self.factory.remove_unkept(rng.randrange(max(1, len(self.model.trials))))

    def _set_keep(self: "RandomWalk", rng: Random) -> StudyAction:
        return self.factory.set_keep(rng.choice([*KEEPS, Keep()]))

    # --- trials that begin from a checkpoint

    def _enqueue_from_a_trial(self: "RandomWalk", rng: Random) -> StudyAction:
        saved = [one for one in self.model.checkpoints if not one.removed]
        if not saved or rng.random() < 0.1:
            return self.factory.enqueue_from(rng.randrange(len(self.model.trials) + 1))
        chosen = rng.choice(saved)
        return self.factory.enqueue_from(
            chosen.number, step=chosen.step if rng.random() < 0.5 else None
        )

    def _enqueue_from_another_study(self: "RandomWalk", rng: Random) -> StudyAction:
        other = self._other()
        return self.factory.enqueue_from(OTHER, step=rng.choice([None, 2, 4, 9]), of=other)

    def _change_the_other_study(self: "RandomWalk", rng: Random) -> StudyAction:
        other, factory = self._other(), self.factory
        change = rng.choice([factory.discard_other, factory.close_other, factory.reopen_other])
        return change(other)

    def enqueue_an_upload(self: "RandomWalk", rng: Random) -> None:
        """Begin a person's upload, and mostly enqueue a trial with it, sometimes 25 h later."""
        self.do(self._begin_upload_of_person(rng))
        if rng.random() < 0.15:
            self.advance(DAY_AND_HOUR_S)
        if rng.random() < 0.8:
            self.do(self._enqueue_an_upload(rng))

    def _begin_upload_of_person(self: "RandomWalk", _: Random) -> StudyAction:
        return self.factory.begin_upload_of_person()

    def _enqueue_an_upload(self: "RandomWalk", rng: Random) -> StudyAction:
        if not self.factory.begun_by_people:
            return self.factory.begin_upload_of_person()
        begun = self.factory.begun_by_people.pop()
        return self.factory.enqueue_upload(begun, step=rng.choice([0, 3]))

    def _enqueue_a_dict(self: "RandomWalk", rng: Random) -> StudyAction:
        return self.factory.enqueue_dict(step=rng.choice([0, 3]))

    def _other(self: "RandomWalk") -> Study:
        """The other study, which the first call makes; it has an ended trial and 3 checkpoints."""
        if self._other_study is None:
            keep = Keep(last=3)
            spec = new_spec(name=other_name(self.study), keep=keep)
            self._other_study = created(self.database, spec)
            run = SimulatedWorker(self.database, self._other_study).take()
            saved = [run.checkpoint(step=step) for step in (2, 4, 6)]
            for one in saved:
                run.save(one, keep)
            run.finish(0.5)
            rows = [ModelCheckpoint(one.uuid, OTHER, 1, one.step) for one in saved]
            add_other(self.model, checkpoints=rows)
        return self._other_study
