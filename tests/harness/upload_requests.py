"""Saves to stores outside the database, arranged so that they can be sent again."""

from uuid import uuid4

from harness.arrange import SimulatedWorker, new_study
from harness.control_requests import Arranged, Call
from studydb.db import Database
from studydb.domain.life.retention import Keep
from studydb.operations.quota import recount
from studydb.operations.save import save
from studydb.operations.uploads import begin_upload


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
    """A save for which the checkpoint of another trial, which has ended, is removed."""
    study = new_study(database, keep=Keep(quota=5))
    ended, run = (SimulatedWorker(database, study).take() for _ in range(2))
    ended.save()
    ended.finish(0.5)
    run.report(0.4)
    checkpoint = run.checkpoint()
    return lambda over: save(
        over, lease=run.lease, checkpoint=checkpoint, data=b"abc", keep=study.keep
    )


def _recounting(database: Database) -> Call:
    study = new_study(database, keep=Keep(quota=5))
    SimulatedWorker(database, study).take().save()
    return lambda over: recount(over, study)


UPLOADS: dict[str, Arranged] = {
    "begin_upload": _beginning_an_upload,
    "save_an_upload": _saving_an_upload,
    "save_at_the_quota": _saving_at_the_quota,
    "recount": _recounting,
}
