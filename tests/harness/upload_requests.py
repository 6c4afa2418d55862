"""The part of `duplicate_requests` for uploads, quotas and starts from a checkpoint."""

from uuid import uuid4

from msgspec import structs

from harness.arrange import SimulatedWorker, new_request, new_study
from harness.control_requests import Arranged, Call
from studydb.db import Database
from studydb.domain.life.retention import Keep
from studydb.operations.enqueue import enqueue
from studydb.operations.quota import recount
from studydb.operations.save import save
from studydb.operations.start_checkpoints import FromTrial, Uploaded
from studydb.operations.uploads import begin_upload, begin_upload_of_person, end_upload


def _beginning_an_upload(database: Database) -> Call:
    run, uuid = SimulatedWorker(database, new_study(database)).take(), str(uuid4())
    return lambda over: begin_upload(over, lease=run.lease, uuid=uuid, url="file:///store/x")


def _saving_an_upload(database: Database) -> Call:
    run = SimulatedWorker(database, new_study(database)).take()
    run.report(0.4)
    checkpoint = run.checkpoint()
    begin_upload(database, lease=run.lease, uuid=checkpoint.uuid, url="file:///store/x")
    return lambda over: save(over, lease=run.lease, checkpoint=checkpoint)


def _saving_at_the_quota(database: Database) -> Call:
    """A save that makes room by removing the checkpoint of an ended trial."""
    study = new_study(database, keep=Keep(quota=5))
    ended, run = (SimulatedWorker(database, study).take() for _ in range(2))
    ended.save()
    ended.finish(0.5)
    run.report(0.4)
    checkpoint = run.checkpoint()
    return lambda over: save(
        over, lease=run.lease, checkpoint=checkpoint, data=b"abc", keep=study.keep
    )


def _enqueuing_from_a_checkpoint(database: Database) -> Call:
    """A trial that begins from the checkpoint of another study's trial."""
    run = SimulatedWorker(database, new_study(database)).take()
    run.save(run.checkpoint(step=1))
    other = run.worker.study
    study, request = new_study(database), new_request()
    start = FromTrial(other.id, other.name, run.lease.number)
    return lambda over: enqueue(over, study, {}, request, start=start)


def _enqueuing_from_an_upload(database: Database) -> Call:
    study, request = new_study(database, keep=Keep(quota=99)), new_request()
    run = SimulatedWorker(database, study).take()
    what = structs.replace(run.checkpoint(step=3), url="file:///store/x")
    begin_upload_of_person(database, study, uuid=what.uuid, url=what.url)
    return lambda over: enqueue(over, study, {}, request, start=Uploaded(what))


def _beginning_an_upload_of_a_person(database: Database) -> Call:
    study, uuid = new_study(database), str(uuid4())
    return lambda over: begin_upload_of_person(over, study, uuid=uuid, url="file:///store/x")


def _ending_an_upload(database: Database) -> Call:
    study, uuid = new_study(database), str(uuid4())
    begin_upload_of_person(database, study, uuid=uuid, url="file:///store/x")
    return lambda over: end_upload(over, uuid=uuid)


def _recounting(database: Database) -> Call:
    study = new_study(database, keep=Keep(quota=5))
    SimulatedWorker(database, study).take().save()
    return lambda over: recount(over, study)


UPLOADS: dict[str, Arranged] = {
    "begin_upload": _beginning_an_upload,
    "save_an_upload": _saving_an_upload,
    "save_at_the_quota": _saving_at_the_quota,
    "recount": _recounting,
    "enqueue_from_a_checkpoint": _enqueuing_from_a_checkpoint,
    "enqueue_from_an_upload": _enqueuing_from_an_upload,
    "begin_upload_of_person": _beginning_an_upload_of_a_person,
    "end_upload": _ending_an_upload,
}
