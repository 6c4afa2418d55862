"""
Saves at the quota, interleaved statement by statement with other operations on checkpoints.

In any schedule there is no deadlock, the study's row has the exact sum of the sizes, the sum is
within the quota, and each trial that has not ended keeps the checkpoint that its next attempt
restores. `STUDYDB_SCHEDULES=200` runs more schedules.

Two tests create trials that need a checkpoint of another study while that study is deleted. Two
tests run requests and saves while an attempt finds a checkpoint corrupt. One test sets the first
quota of a study.
"""

import itertools
import os
from contextlib import nullcontext
from datetime import UTC, datetime
from functools import partial
from random import Random

import pytest
from harness.arrange import SimulatedWorker, new_request, new_study, rows
from harness.interleaver import step_by_step
from harness.settings_requests import set_retention
from msgspec import structs

from studydb.domain.errors import NotAllowed, NotFound
from studydb.domain.life.retention import Keep
from studydb.domain.life.states import Reason
from studydb.operations.checkpoints import mark_corrupt
from studydb.operations.delete import stop_for_deletion
from studydb.operations.discard import discard
from studydb.operations.enqueue import enqueue
from studydb.operations.finish import finish
from studydb.operations.pin import pin, unpin
from studydb.operations.quota import recount
from studydb.operations.retry import retry
from studydb.operations.save import save
from studydb.operations.start_checkpoints import FromTrial
from studydb.store import checkpoints

SCHEDULES = int(os.environ.get("STUDYDB_SCHEDULES", "3"))

NOW = datetime(2026, 1, 1, tzinfo=UTC)

QUOTAS = (14, 17)
"""14 bytes are stored already, so a save of 3 bytes fits into the second quota, not the first."""

CALLS = (
    *("save first", "save second", "corrupt first", "finish first", "discard ended"),
    *("pin ended", "unpin first", "retry ended", "set", "recount", "begin from ended"),
)
PAIRS = [pair for pair in itertools.combinations(CALLS, 2) if "save" in "".join(pair)]


class Situation:
    """
    Two running trials and an ended trial, each with two checkpoints of 2 bytes.

    The first running trial has a third checkpoint, which is pinned.
    """

    def __init__(self, database, quota):
        self.keep = Keep(last=9, quota=quota)
        self.study = new_study(database, keep=self.keep, num_trials=9)
        worker = SimulatedWorker(database, self.study)
        self.ended, self.first, self.second = (worker.take() for _ in range(3))
        self.first.save(structs.replace(self.first.checkpoint(step=0), size_bytes=2), self.keep)
        for step, run in itertools.product((1, 2), (self.first, self.ended, self.second)):
            run.save(structs.replace(run.checkpoint(step=step), size_bytes=2), self.keep)
        self.ended.finish(0.5)
        pin(database, self.study, self.first.lease.number, new_request(), step=0)
        with database.begin(write=False) as txn:
            self.newest = checkpoints.find(txn, checkpoint_id=self.first.trial().checkpoint_id)

    def call(self, name):
        study, request, ended = self.study, new_request(), self.ended.lease.number
        first, lease = self.first.lease.number, self.first.lease
        ending = {"lease": lease, "outcome": Reason.COMPLETED, "batch": self.first.batch(0.5)}
        calls = {
            "save first": self._saving(self.first),
            "save second": self._saving(self.second),
            "corrupt first": lambda over: mark_corrupt(over, lease=lease, checkpoint=self.newest),
            "finish first": lambda over: finish(over, study, **ending),
            "discard ended": lambda over: discard(over, study, ended, request),
            "pin ended": lambda over: pin(over, study, ended, request),
            "unpin first": lambda over: unpin(over, study, first, request),
            "retry ended": lambda over: retry(over, study, [ended], request),
            "begin from ended": lambda over: enqueue(
                over, study, {}, request, start=FromTrial(study.id, study.name, ended)
            ),
            "set": lambda over: set_retention(over, study, self.keep, request),
            "recount": lambda over: recount(over, study),
        }
        return calls[name]

    def _saving(self, run):
        what = structs.replace(run.checkpoint(step=3), size_bytes=3)
        given = {"checkpoint": what, "data": b"abc", "keep": self.keep}
        return lambda over: save(over, lease=run.lease, **given, objective=self.study.objective)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("pair", PAIRS, ids=" + ".join)
def test_save_at_the_quota_keeps_the_sum_exact_and_removes_no_pinned_or_needed_checkpoint(
    stage, pair
):
    database, interleaver = stage
    # For these pairs, only a few schedules could break a promise.
    are_rare = all(name.startswith("save") for name in pair) or "corrupt first" in pair
    for seed in range(SCHEDULES * (4 if are_rare else 1)):
        rng = Random(f"{pair} {seed}")
        quota = QUOTAS[seed % len(QUOTAS)]
        situation = Situation(database, quota)
        study_id = situation.study.id
        calls = [situation.call(name) for name in pair]

        with rng.choice([nullcontext, step_by_step])():
            result = interleaver.run(calls, rng, clock=lambda: NOW)

        kept = f"FROM checkpoint WHERE study_id = {study_id} AND removed_at IS NULL"
        ((total, counted),) = rows(
            database,
            f"SELECT (SELECT sum(size_bytes) {kept}), checkpoint_bytes FROM study "
            f"WHERE id = {study_id}",
        )
        lost = rows(
            database,
            f"SELECT number FROM trial WHERE study_id = {study_id} AND ended_at IS NULL "
            f"AND checkpoint_id IS NOT NULL AND checkpoint_id NOT IN (SELECT id {kept})",
        )
        removed_pinned = rows(
            database,
            f"SELECT id FROM checkpoint WHERE study_id = {study_id} AND pins > 0 "
            "AND removed_at IS NOT NULL AND corrupt_at IS NULL",
        )
        assert result.faults == [], result
        assert total == counted <= quota, result
        assert (lost, removed_pinned) == ([], []), result


ACROSS = [
    ("begin in a", "begin in b"),
    ("begin in a", "delete b"),
    ("begin in a", "delete b", "begin in b"),
    ("begin in a", "discard in b"),
]


@pytest.mark.slow
@pytest.mark.parametrize("plan", ACROSS, ids=" + ".join)
def test_checkpoint_from_which_another_study_began_a_trial_is_not_removed(stage, plan):
    database, interleaver = stage
    for seed in range(4 * SCHEDULES):  # only a few schedules could lead to a deadlock
        rng = Random(f"{plan} {seed}")
        a, b = (new_study(database, num_trials=9) for _ in range(2))
        for study in (a, b):
            run = SimulatedWorker(database, study).take()
            run.save(run.checkpoint(step=1))
            run.finish(0.5)
        calls = {
            "begin in a": begin(a, of=b),
            "begin in b": begin(b, of=a),
            "delete b": lambda over, b=b: stop_for_deletion(over, b),
            "discard in b": discarding(b),
        }

        with rng.choice([nullcontext, step_by_step])():
            result = interleaver.run([calls[name] for name in plan], rng, clock=lambda: NOW)

        ((n_begun,),) = rows(
            database, f"SELECT count(*) FROM trial WHERE study_id = {a.id} AND number = 1"
        )
        ((deleting, n_kept),) = rows(
            database,
            "SELECT deleting_at IS NOT NULL, (SELECT count(*) FROM checkpoint WHERE "
            f"study_id = {b.id} AND removed_at IS NULL) FROM study WHERE id = {b.id}",
        )
        assert result.faults == [], result
        assert not (n_begun and (deleting or not n_kept)), result


@pytest.mark.parametrize("name", ["begin again", "retry"])
def test_study_is_not_deleted_while_a_trial_that_began_from_its_checkpoint_is_run_again(
    stage, name
):
    """
    The trial has saved nothing, so running it again needs the checkpoint of study `b`.

    Either the deletion of `b` or the request to run the trial again is refused.
    """
    database, interleaver = stage
    for seed in range(4 * SCHEDULES):
        rng = Random(f"{name} {seed}")
        a, b = (new_study(database, num_trials=9) for _ in range(2))
        source = SimulatedWorker(database, b).take()
        source.save(source.checkpoint(step=1))
        source.finish(0.5)
        begin(a, of=b)(database)
        SimulatedWorker(database, a).take().finish(0.5)
        request = new_request()
        calls = {
            "begin again": begin(a, of=a),
            "retry": lambda over, a=a, request=request: retry(over, a, [0], request),
        }
        deletion = partial(stop_for_deletion, study=b)

        with rng.choice([nullcontext, step_by_step])():
            result = interleaver.run([calls[name], deletion], rng, clock=lambda: NOW)

        refusals = [answer for answer in result.answers if answer is NotAllowed]
        assert result.faults == [], result
        assert len(refusals) == 1, result


@pytest.mark.slow
@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ["begin from ended", "retry ended", "pin ended", "save"])
def test_request_finds_an_older_checkpoint_while_an_attempt_finds_the_newest_corrupt(stage, name):
    database, interleaver = stage
    for seed in range(4 * SCHEDULES):
        rng = Random(f"{name} {seed}")
        situation = Situation(database, quota=99)
        study, ended = situation.study, situation.ended.lease.number
        start = FromTrial(study.id, study.name, ended)
        enqueue(database, study, {}, new_request(), start=start)
        run = SimulatedWorker(database, study).take()
        calls = [
            partial(mark_corrupt, lease=run.lease, checkpoint=run.claimed.checkpoint),
            situation._saving(run) if name == "save" else situation.call(name),
        ]

        with rng.choice([nullcontext, step_by_step])():
            result = interleaver.run(calls, rng, clock=lambda: NOW)

        assert result.faults == [], result
        assert_counted(database, study, result)
        assert NotFound not in result.answers, result  # an older checkpoint is kept


@pytest.mark.slow
@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "name", ["save first", "discard ended", "corrupt first", "begin from ended"]
)
def test_first_quota_of_a_study_counts_the_checkpoints_that_are_kept(stage, name):
    database, interleaver = stage
    for seed in range(4 * SCHEDULES):
        rng = Random(f"{name} {seed}")
        situation = Situation(database, quota=None)
        study, request = situation.study, new_request()
        calls = [
            situation.call(name),
            lambda over, study=study, request=request: set_retention(
                over, study, Keep(last=9, quota=99), request
            ),
        ]

        with rng.choice([nullcontext, step_by_step])():
            result = interleaver.run(calls, rng, clock=lambda: NOW)

        assert result.faults == [], result
        assert_counted(database, study, result)


@pytest.mark.slow
def test_sum_of_sizes_is_exact_if_a_checkpoint_is_found_corrupt_while_a_trial_begins_from_it(stage):
    """The new trial begins from a trial that saved nothing and itself began from `newest`."""
    database, interleaver = stage
    for seed in range(4 * SCHEDULES):
        rng = Random(seed)
        situation = Situation(database, quota=99)
        study, first = situation.study, situation.first.lease
        start = FromTrial(study.id, study.name, first.number)
        begun = enqueue(database, study, {}, new_request(), start=start)
        SimulatedWorker(database, study).take().finish(0.5)
        calls = [
            partial(mark_corrupt, lease=first, checkpoint=situation.newest),
            begin(study, of=study, number=begun),
        ]

        with rng.choice([nullcontext, step_by_step])():
            result = interleaver.run(calls, rng, clock=lambda: NOW)

        assert result.faults == [], result
        assert_counted(database, study, result)


def assert_counted(database, study, result):
    ((total, counted),) = rows(
        database,
        "SELECT (SELECT sum(size_bytes) FROM checkpoint c WHERE c.study_id = s.id "
        f"AND removed_at IS NULL), checkpoint_bytes FROM study s WHERE id = {study.id}",
    )
    assert total == counted, result


def begin(study, *, of, number=0):
    request = new_request()
    start = FromTrial(of.id, of.name, number)
    return lambda over: enqueue(over, study, {}, request, start=start)


def discarding(study):
    request = new_request()
    return lambda over: discard(over, study, 0, request)
