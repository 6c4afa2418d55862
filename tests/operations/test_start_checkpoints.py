"""
An enqueued trial begins from another trial's checkpoint, or from an uploaded checkpoint.

The other trial's checkpoint is pinned until the enqueued trial has ended or has found the
checkpoint corrupt.
"""

from uuid import uuid4

import pytest
from harness.arrange import SimulatedWorker, new_request, new_study, rows, trial_of
from msgspec import structs

from studydb.analysis.overview_text import checkpoints_text
from studydb.domain.errors import NotAllowed, NotFound, UnknownStudy, UnknownTrial
from studydb.domain.life.decisions import Action, RungKey
from studydb.domain.life.retention import Keep
from studydb.domain.life.states import Reason, Status
from studydb.domain.listed_rows import CheckpointSizes
from studydb.domain.metrics import Result
from studydb.lease.held import HeldAttempt
from studydb.operations import control
from studydb.operations.checkpoints import mark_corrupt
from studydb.operations.create import load
from studydb.operations.delete import delete, stop_for_deletion
from studydb.operations.discard import discard
from studydb.operations.enqueue import enqueue
from studydb.operations.overview import read_overview
from studydb.operations.restore import newest
from studydb.operations.start_checkpoints import FromTrial, Uploaded
from studydb.operations.uploads import abandoned_uploads, begin_upload_of_person, delete_upload
from studydb.schedulers import ASHA, HyperBand, OneEpoch
from studydb.store import checkpoint_listing
from studydb.store.uploads import COMMIT_S, PATIENCE_S


@pytest.fixture
def source(run):
    """A running trial that has saved checkpoints of the steps 3 and 5."""
    for step in (3, 5):
        run.save(run.checkpoint(step=step))
    return run


def start_of(run, **more):
    study = run.worker.study
    return FromTrial(study.id, study.name, run.lease.number, **more)


def begin(database, study, start, request=None):
    return enqueue(database, study, {}, request or new_request(), start=start)


def pins(database):
    return rows(database, "SELECT step, pins FROM checkpoint ORDER BY id")


@pytest.mark.row("C1", "B9")
@pytest.mark.parametrize("steps", [(None, 5), (3, 3), (5, 5)])
def test_trial_begins_from_the_pinned_checkpoint_of_another_trial(
    database, study, worker, source, steps
):
    step, chosen = steps
    number = begin(database, study, start_of(source, step=step))
    for later in (7, 8, 9):
        source.save(source.checkpoint(step=later))

    run = worker.claim()

    assert run.lease.number == number
    assert (run.claimed.checkpoint.step, run.claimed.checkpoint.trial_uuid) == (
        chosen,
        source.claimed.uuid,
    )
    assert (chosen, 1) in pins(database)
    run.finish(0.5)
    assert all(n == 0 for _, n in pins(database))


@pytest.mark.parametrize("how", ["finish", "fail", "stop", "stop while it is pending"])
def test_pin_is_removed_when_the_enqueued_trial_ends(database, study, worker, source, how):
    number = begin(database, study, start_of(source))
    if how.endswith("pending"):
        control.stop(database, study, [number], new_request())
    else:
        run = worker.claim()
        if how == "stop":
            control.stop(database, study, [number], new_request())
        run.finish(0.5, outcome=Reason.FAILED if how == "fail" else Reason.COMPLETED)

    assert trial_of(database, study, number).ended_at is not None
    assert rows(database, "SELECT count(*) FROM pin") == [(0,)]
    assert {n for _, n in pins(database)} == {0}


@pytest.mark.row("C1", "C2")
@pytest.mark.parametrize("url", ["file:///a/x", "inline:"])
def test_trial_begins_from_a_checkpoint_of_another_study_and_reads_that_studys_stores(
    database, url
):
    """An inline checkpoint may be corrupt, and the older one, which is then used, may be a file."""
    other = new_study(database, checkpoints="file:///a")
    source = SimulatedWorker(database, other).take()
    source.save(structs.replace(source.checkpoint(step=4), url=url))
    study = new_study(database, checkpoints="file:///b")

    begin(database, study, start_of(source))

    claimed = SimulatedWorker(database, study).claim().claimed
    assert claimed.checkpoint.step == 4
    now = load(database, study.name)
    assert (now.checkpoints, now.source_checkpoints) == ("file:///b", {other.uuid: ("file:///a",)})
    assert now.former_checkpoints == ()


def test_pinned_source_is_removed_neither_by_retention_nor_by_a_discard(database, study, source):
    begin(database, study, start_of(source))
    for step in (6, 7, 8):
        source.save(source.checkpoint(step=step))
    source.finish(0.5)
    discard(database, study, source.lease.number, new_request())

    assert rows(database, "SELECT step FROM checkpoint WHERE removed_at IS NULL") == [(5,)]


def test_trial_whose_source_is_corrupt_begins_from_the_checkpoint_before_it_or_else_from_scratch(
    database, study, worker, source
):
    begin(database, study, start_of(source))
    run = worker.claim()

    before = mark_corrupt(database, lease=run.lease, checkpoint=run.claimed.checkpoint)
    pinned = pins(database)
    reasons = rows(database, "SELECT reason FROM pin")
    last = mark_corrupt(database, lease=run.lease, checkpoint=before)

    assert (before.step, last) == (3, None)
    assert reasons == [("start",)]
    assert pinned == [(3, 1), (5, 0)]
    assert rows(database, "SELECT count(*) FROM pin") == [(0,)]
    kind = "checkpoint corrupt"
    assert rows(database, f"SELECT count(*) FROM event WHERE kind = '{kind}'") == [(2,)]


def test_start_step_of_an_attempt_is_set_again_if_its_checkpoint_is_corrupt(
    database, study, worker, source
):
    begin(database, study, start_of(source))
    run = worker.claim()
    start = f"SELECT start_step FROM attempt WHERE token = '{run.lease.token}'"

    before = mark_corrupt(database, lease=run.lease, checkpoint=run.claimed.checkpoint)
    second = rows(database, start)
    mark_corrupt(database, lease=run.lease, checkpoint=before)

    assert (second, rows(database, start)) == ([(4,)], [(1,)])


def test_newest_checkpoint_of_an_ended_trial_is_the_newest_that_is_not_corrupt(
    database, study, worker, source
):
    begin(database, study, start_of(source))
    source.finish(0.5)
    run = worker.claim()
    mark_corrupt(database, lease=run.lease, checkpoint=run.claimed.checkpoint)

    ended = trial_of(database, study, source.lease.number)
    assert newest(database, trial=ended, study_id=study.id).row.step == 3


def test_trial_falls_back_even_if_another_trial_was_the_first_to_find_the_checkpoint_corrupt(
    database, study, worker, source
):
    begin(database, study, start_of(source))
    source.finish(outcome=Reason.PREEMPTED)
    own, other = sorted([worker.claim(), worker.claim()], key=lambda run: run.lease.number)
    mark_corrupt(database, lease=other.lease, checkpoint=other.claimed.checkpoint)

    before = mark_corrupt(database, lease=own.lease, checkpoint=own.claimed.checkpoint)

    assert own.claimed.checkpoint.step == 5
    assert before.step == 3
    start = f"SELECT start_step FROM attempt WHERE token = '{own.lease.token}'"
    assert rows(database, start) == [(4,)]


@pytest.mark.parametrize(
    "refused",
    [
        (FromTrial(1, "x", 99), UnknownTrial, "has no trial 99"),
        (FromTrial(1, "x", 0, step=4), NotFound, "keeps no checkpoint of step 4"),
        (FromTrial(1, "x", 0, checkpoint_id=10**6), NotFound, "keeps no checkpoint"),
    ],
)
def test_unknown_source_is_refused_and_adds_no_trial(database, study, source, refused):
    start, error, says = refused
    start = structs.replace(start, study_id=study.id)
    before = rows(database, "SELECT count(*) FROM trial")

    with pytest.raises(error, match=says):
        begin(database, study, start)

    assert rows(database, "SELECT count(*) FROM trial") == before
    assert {n for _, n in pins(database)} == {0}


def test_resent_request_gives_the_first_answer_although_the_source_is_gone(database, study, source):
    request = new_request()
    number = begin(database, study, start_of(source, step=3), request)
    control.stop(database, study, [number], new_request())
    for step in (6, 7, 8):
        source.save(source.checkpoint(step=step))

    assert begin(database, study, start_of(source, step=3), request) == number


def test_trial_enters_only_the_rungs_above_its_checkpoint(database):
    study = new_study(database, scheduler=ASHA(max_t=9, grace_period=1, reduction_factor=3))
    worker = SimulatedWorker(database, study)
    source = worker.take()
    source.save(source.checkpoint(step=2))
    begin(database, study, start_of(source))
    run = worker.claim()

    run.report(0.5, first=3)

    entered = rows(
        database,
        "SELECT g.step FROM rung_entry e JOIN rung g ON g.id = e.rung_id "
        f"WHERE e.trial_id = {run.lease.trial_id}",
    )
    assert run.claimed.next_decision_step == RungKey(0, 3).step
    assert entered == [(3,)]


@pytest.mark.parametrize(
    "scheduler",
    [
        ASHA(max_t=9, grace_period=1, reduction_factor=3),
        ASHA(max_t=9, grace_period=1, reduction_factor=3, type="promotion"),
        HyperBand(max_t=9, reduction_factor=3),
        OneEpoch(i=1, max_t=9, top_k=1),
    ],
    ids=str,
)
@pytest.mark.parametrize("step", [9, 20])
def test_trial_that_begins_from_the_last_step_or_later_is_complete_at_its_first_report(
    database, scheduler, step
):
    study = new_study(database, scheduler=scheduler)
    worker = SimulatedWorker(database, study)
    source = worker.take()
    source.save(source.checkpoint(step=step))
    begin(database, study, start_of(source))
    run = worker.claim()

    answer = run.report(0.5, first=step + 1)

    assert (answer.verdict.action, answer.verdict.reason) == (Action.STOP, Reason.COMPLETED)


def test_trial_that_reports_a_step_before_its_checkpoint_enters_the_next_rung_above_this_step(
    database,
):
    study = new_study(
        database, scheduler=ASHA(max_t=9, grace_period=1, reduction_factor=3, type="promotion")
    )
    worker = SimulatedWorker(database, study)
    source = worker.take()
    source.save(source.checkpoint(step=9))
    begin(database, study, start_of(source))
    run = worker.claim()
    held = HeldAttempt(database, study, run.claimed)

    must_flush = [held.add(Result(step, 0.5, {})) for step in (1, 2, 3)]
    held.flush()

    assert run.claimed.next_decision_step == 10
    assert must_flush[0]
    assert held.verdict.action is Action.PAUSE
    entered = rows(database, f"SELECT step FROM rung_entry WHERE trial_id = {run.lease.trial_id}")
    assert entered == [(3,)]


def test_no_upload_begins_in_a_study_that_is_being_deleted(database, study):
    """A deletion deletes bytes before rows; bytes uploaded in between would stay in the store."""
    stop_for_deletion(database, study)

    with pytest.raises(NotAllowed, match="is being deleted, so it takes no new trial"):
        begin_upload_of_person(database, study, uuid=str(uuid4()), url="file:///store/x")
    assert rows(database, "SELECT count(*) FROM upload") == [(0,)]

    delete(database, study)
    with pytest.raises(UnknownStudy):
        begin_upload_of_person(database, study, uuid=str(uuid4()), url="file:///store/x")


def test_upload_adds_no_trial_to_a_study_whose_deletion_has_begun_meanwhile(database, study):
    run = SimulatedWorker(database, study).take()
    what = structs.replace(run.checkpoint(step=6), url="file:///store/x")
    begin_upload_of_person(database, study, uuid=what.uuid, url=what.url)
    run.finish(0.5)
    stop_for_deletion(database, study)

    with pytest.raises(NotAllowed, match="is being deleted, so it takes no new trial"):
        begin(database, study, Uploaded(what))
    assert rows(database, "SELECT count(*) FROM trial") == [(1,)]


def test_source_whose_signature_cannot_be_verified_here_stays_for_its_own_trial(
    database, study, worker, source
):
    begin(database, study, start_of(source))
    run = worker.claim()

    before = [
        mark_corrupt(
            database, lease=run.lease, checkpoint=run.claimed.checkpoint, is_verified=False
        )
        for _ in range(2)  # the reply of the first send is lost
    ]

    assert before[0] == before[1]
    assert rows(database, "SELECT step FROM checkpoint WHERE removed_at IS NULL ORDER BY step") == [
        (3,),
        (5,),
    ]
    assert len(rows(database, "SELECT id FROM event WHERE kind = 'checkpoint corrupt'")) == 1


# deletion


@pytest.mark.row("C2")
def test_study_whose_checkpoint_another_study_needs_is_not_deleted(database, source, study):
    other = new_study(database)
    number = begin(database, other, start_of(source))
    source.finish(0.5)

    with pytest.raises(NotAllowed, match=f"trial {number} of '{other.name}'") as refusal:
        delete(database, study)
    assert "Nothing was deleted" in str(refusal.value)
    assert rows(database, f"SELECT deleting_at, status FROM study WHERE id = {study.id}") == [
        (None, "RUNNING")
    ]
    control.stop(database, other, [number], new_request())
    delete(database, study)

    assert rows(database, "SELECT name FROM study") == [(other.name,)]


def test_no_trial_begins_from_a_checkpoint_of_a_study_that_is_being_deleted(
    database, source, study
):
    source.finish(0.5)
    stop_for_deletion(database, study)

    with pytest.raises(NotAllowed, match="is being deleted or was deleted"):
        begin(database, new_study(database), start_of(source))
    control.set_status(database, study, Status.RUNNING, new_request())  # this cancels the deletion

    assert begin(database, new_study(database), start_of(source)) == 0


def test_deletion_of_a_study_unpins_the_checkpoints_that_its_trials_begin_from(database, source):
    other = new_study(database)
    begin(database, other, start_of(source))

    delete(database, other)

    assert pins(database) == [(3, 0), (5, 0)]


# uploads


def test_uploaded_checkpoint_becomes_the_trials_own_and_counts_for_the_quota(database):
    study = new_study(database, keep=Keep(quota=100))
    worker = SimulatedWorker(database, study)
    what = structs.replace(worker.take().checkpoint(step=6), size_bytes=8)

    number = begin(database, study, Uploaded(what, data=b"12345678"))

    claimed = worker.claim().claimed
    assert (claimed.lease.number, claimed.checkpoint.step) == (number, 6)
    assert (claimed.checkpoint.attempt, claimed.checkpoint.trial_uuid) == (0, claimed.uuid)
    assert rows(database, "SELECT checkpoint_bytes FROM study") == [(8,)]
    assert rows(database, "SELECT count(*) FROM pin") == [(0,)]
    with database.begin(write=False) as txn:
        (uploaded,) = checkpoint_listing.sizes(txn, trial_ids=[claimed.lease.trial_id])
    assert uploaded == CheckpointSizes(None, 1, 8, is_uploaded=True)
    assert checkpoints_text(read_overview(database, study)) == "1 (8 B): 8 B uploaded"


def test_upload_without_a_trial_is_found_after_a_day_and_an_hour_and_no_earlier(
    database, study, clock, run
):
    what = structs.replace(run.checkpoint(step=6), url="file:///store/x")
    begin_upload_of_person(database, study, uuid=what.uuid, url=what.url)
    clock.advance(PATIENCE_S + COMMIT_S - 1)
    early = abandoned_uploads(database, study)
    clock.advance(2)

    (late,) = abandoned_uploads(database, study)

    assert early == []
    assert (late.uuid, late.trial_uuid, late.attempt) == (what.uuid, None, 0)


def test_upload_that_was_collected_meanwhile_adds_no_trial(database, study, clock, run):
    what = structs.replace(run.checkpoint(step=6), url="file:///store/x")
    begin_upload_of_person(database, study, uuid=what.uuid, url=what.url)
    clock.advance(PATIENCE_S + COMMIT_S + 1)
    (abandoned,) = abandoned_uploads(database, study)
    delete_upload(database, upload_id=abandoned.id)

    with pytest.raises(NotFound, match="took longer than a day"):
        begin(database, study, Uploaded(what))

    assert rows(database, "SELECT count(*) FROM trial") == [(1,)]


def test_upload_that_took_longer_than_a_day_adds_no_trial_and_is_collected_an_hour_later(
    database, study, clock, run
):
    """
    A worker that looks for abandoned uploads does not see an enqueue that has not yet committed.

    So in the last hour before workers can find an upload, no trial can be enqueued with it.
    """
    what = structs.replace(run.checkpoint(step=6), url="file:///store/x")
    begin_upload_of_person(database, study, uuid=what.uuid, url=what.url)
    clock.advance(PATIENCE_S + 1)

    with pytest.raises(NotFound, match="took longer than a day"):
        begin(database, study, Uploaded(what))

    assert rows(database, "SELECT count(*) FROM trial") == [(1,)]
    assert abandoned_uploads(database, study) == []
    clock.advance(COMMIT_S)
    assert [one.uuid for one in abandoned_uploads(database, study)] == [what.uuid]


def test_upload_whose_uuid_a_checkpoint_has_is_never_collected(database, study, clock, run):
    what = run.checkpoint(step=6)
    run.save(what)
    begin_upload_of_person(database, study, uuid=what.uuid, url="file:///store/x")
    clock.advance(2 * PATIENCE_S)

    assert abandoned_uploads(database, study) == []
