"""Actions that enqueue trials, and actions on uploads, checkpoints, `keep` and another study."""

from msgspec import structs

from harness import model_checkpoints, model_starts
from harness.arrange import new_checkpoint, new_request
from harness.model import Model
from harness.model_rows import ModelCheckpoint
from harness.settings_requests import set_retention
from harness.study_action import StudyAction
from studydb.db import Database
from studydb.domain.checkpoint import Checkpoint
from studydb.domain.life.retention import Keep
from studydb.domain.life.states import Status
from studydb.domain.records import Lease, Study
from studydb.domain.resources import read_resources
from studydb.operations.control import set_status
from studydb.operations.delete import stop_for_deletion
from studydb.operations.discard import discard
from studydb.operations.enqueue import enqueue
from studydb.operations.quota import recount
from studydb.operations.start_checkpoints import FromTrial, Uploaded
from studydb.operations.unkept_checkpoints import remove_unkept
from studydb.operations.uploads import begin_upload_of_person


class StartActions:
    """
    Makes the actions for one study.

    Attributes:
        begun_by_people: The checkpoints of the actions that `begin_upload_of_person` has made.
        keep: The value of `keep` for the next saves.
    """

    def __init__(self, study: Study) -> None:
        self.study, self.keep = study, study.keep
        self.begun_by_people: list[Checkpoint] = []

    def enqueue(self, *, priority: int = 0, asks: str | None = None) -> StudyAction:
        request = new_request()
        asked = None if asks is None else read_resources("asks", asks)
        return StudyAction(
            "enqueue",
            lambda database: enqueue(
                database, self.study, {"lr": 0.5}, request, priority=priority, resources=asked
            ),
            lambda model: model_starts.enqueue(model, request, priority=priority, asks=asks),
        )

    def enqueue_from(
        self, number: int, *, step: int | None = None, of: Study | None = None
    ) -> StudyAction:
        """
        Enqueue a trial that begins from a checkpoint of trial `number`.

        If the study `of` is given, `number` is ignored: the checkpoint is of trial 0 of that study.
        """
        request, source = new_request(), of or self.study
        start = FromTrial(source.id, source.name, 0 if of else number, step)
        of_model = model_starts.StartOf(model_starts.OTHER if of else number, step)
        return StudyAction(
            "enqueue_from_another_study" if of else "enqueue_from_a_trial",
            lambda database: enqueue(database, self.study, {"lr": 0.5}, request, start=start),
            lambda model: model_starts.enqueue(model, request, start=of_model),
        )

    def begin_upload_of_person(self) -> StudyAction:
        """Record that the bytes of a checkpoint for a new trial will be written."""
        new = self._new_checkpoint(step=0)
        begun = structs.replace(new, url=url_of(new.uuid))
        self.begun_by_people.append(begun)
        given = {"uuid": begun.uuid}
        return StudyAction(
            "begin_upload_of_person",
            lambda database: begin_upload_of_person(database, self.study, url=begun.url, **given),
            lambda model: model_starts.begin_upload_of_person(model, **given),
        )

    def enqueue_upload(self, begun: Checkpoint, *, step: int) -> StudyAction:
        """Enqueue a trial that begins from a checkpoint whose upload a person has begun."""
        return self._enqueue_uploaded("enqueue_an_upload", structs.replace(begun, step=step), None)

    def enqueue_dict(self, *, step: int) -> StudyAction:
        """Enqueue a trial that begins from an inline checkpoint."""
        return self._enqueue_uploaded("enqueue_a_dict", self._new_checkpoint(step=step), b"ab")

    def _new_checkpoint(self, *, step: int) -> Checkpoint:
        of_new_trial = Lease(self.study.id, 0, 0, 0, attempt=0, token="")
        return structs.replace(new_checkpoint(of_new_trial, step=step), size_bytes=2)

    def _enqueue_uploaded(self, name: str, what: Checkpoint, data: bytes | None) -> StudyAction:
        request, start = new_request(), Uploaded(what, data)

        def expect(model: Model) -> int:
            row = row_of(what, len(model.trials), has_data=data is not None)
            return model_starts.enqueue(model, request, start=row)

        return StudyAction(
            name,
            lambda database: enqueue(database, self.study, {"lr": 0.5}, request, start=start),
            expect,
        )

    def discard_other(self, other: Study) -> StudyAction:
        """Discard the checkpoints of the other study's trial, except pinned and corrupt ones."""
        request = new_request()

        def act(database: Database) -> None:
            discard(database, other, 0, request)

        return StudyAction(
            "discard_other", act, lambda model: model_starts.discard_other(model, request.token)
        )

    def close_other(self, other: Study) -> StudyAction:
        """Begin to delete the other study."""
        return StudyAction(
            "close_other",
            lambda database: stop_for_deletion(database, other),
            model_starts.close_other,
        )

    def reopen_other(self, other: Study) -> StudyAction:
        """Resume the other study, whose deletion has failed."""
        request = new_request()
        return StudyAction(
            "reopen_other",
            lambda database: set_status(database, other, Status.RUNNING, request),
            lambda model: model_starts.reopen_other(model, request.token),
        )

    def set_keep(self, keep: Keep) -> StudyAction:
        """
        Change `keep`.

        A save action that was made earlier obeys only the quota of the new `keep`; a save action
        that is made later obeys all options of the new `keep`.
        """
        request, self.keep = new_request(), keep
        return StudyAction(
            "set_keep",
            lambda database: set_retention(database, self.study, keep, request),
            lambda model: model_checkpoints.set_keep(model, keep, request),
        )

    def remove_unkept(self, number: int) -> StudyAction:
        """Mark a trial's unpinned checkpoints as removed if `keep` does not keep them."""
        return StudyAction(
            "remove_unkept",
            lambda database: remove_unkept(database, self.study, number),
            lambda model: model_checkpoints.remove_unkept(model, number),
        )

    def recount(self) -> StudyAction:
        """Sum up the sizes of the study's kept checkpoints again, if the study has a quota."""
        return StudyAction(
            "recount", lambda database: recount(database, self.study), lambda _: None
        )


def url_of(uuid: str) -> str:
    return f"file:///store/{uuid}"


def row_of(what: Checkpoint, number: int, *, has_data: bool) -> ModelCheckpoint:
    given = (what.uuid, number, what.attempt, what.step, what.size_bytes, what.url)
    return ModelCheckpoint(*given, data=has_data)
