"""
Idle workers soon react to new trials and requests; one slot per worker looks at the study.

A claim whose reply was lost is sent again, and its trial runs or is given back.
"""

import itertools
import threading
import time
from collections import Counter

import pytest
from fleet.workers import eventually
from harness.arrange import enqueued
from harness.supervised_slot import GOOD, GRACE_S, Supervised

import studydb
from studydb.domain.errors import StorageTransient
from studydb.domain.records import Counts
from studydb.lease.acquire import Acquirer
from studydb.operations.reads import list_trials
from studydb.worker.interruption import Interruption
from studydb.worker.slot import Slot, TrialLimit
from studydb.worker.templates import Templates

START_S = 2.0
NOTICE_S = 5.0

IDLE_S = 4.0
"""After this time without a trial, a worker's pause between two looks has reached its maximum."""


def seconds_to_start(stage, number):
    row = stage.await_trial(lambda row: row.started_at is not None, number)
    return (row.started_at - row.created_at).total_seconds()


@pytest.fixture
def idle(stage):
    """A worker of four slots that has been idle for `IDLE_S` since it saw its study FINISHED."""
    one_point = {"x": studydb.choice([0.25])}
    stage.create(
        "obedient:one_step", space=one_point, searcher=studydb.GridSearch(), num_trials=None
    )
    worker = stage.start(wait=True, slots=4)
    eventually(lambda: "FINISHED; waiting" in worker.output(), what="the first look")
    time.sleep(IDLE_S)
    return worker


@pytest.mark.nightly
@pytest.mark.row("A2")
def test_study_wait_returns_the_counts_and_a_worker_ends_with_its_study_unless_told_to_wait(stage):
    stage.create("obedient:one_step", num_trials=2)
    ends, waits = stage.start(), stage.start(wait=True)

    counts = stage.study.wait(timeout_s=60.0)

    assert counts == Counts(terminated=2)
    assert ends.exit_code() == 0
    assert waits.runs
    stage.study.extend(num_trials=1)
    stage.await_state("TERMINATED", number=2)
    assert stage.study.wait() == Counts(terminated=3)
    assert waits.runs


@pytest.mark.nightly
def test_enqueued_trials_start_on_all_slots_of_an_idle_worker_within_2_s(stage, idle):
    numbers = [enqueued(stage.study.database, stage.study.record) for _ in range(4)]

    took_s = [seconds_to_start(stage, number) for number in numbers]

    assert max(took_s) <= START_S
    assert idle.runs


@pytest.mark.slow
def test_idle_worker_notices_a_pause_within_5_s_and_a_resumption_within_2_s(stage, idle):
    stage.study.pause()
    eventually(lambda: "'staged' is paused" in idle.output(), NOTICE_S)
    number = stage.study.enqueue({})
    stage.study.resume()

    stage.await_trial(lambda row: row.started_at is not None, number, START_S)


@pytest.mark.nightly
@pytest.mark.parametrize("asks", [lambda study: study.stop(), lambda study: study.stop(0)])
def test_trial_that_reports_nothing_learns_of_a_stop_within_5_s(sqlite_stage, asks):
    stage = sqlite_stage
    stage.create("obedient:slow")
    stage.start(lease=90, grace=0.1)
    eventually((stage.folder / "began-1").exists)

    asks(stage.study)

    stage.await_trial(lambda row: row.verdict or row.state == "TERMINATED", timeout_s=NOTICE_S)
    assert stage.await_state("TERMINATED").reason == "CANCELLED"


@pytest.fixture
def lost_reply(monkeypatch):
    """Lose the reply to the first claim."""
    acquire, lost = Acquirer._acquire, []

    def losing_the_first_reply(acquirer, **given):
        claimed = acquire(acquirer, **given)
        if not lost:
            lost.append(claimed)
            raise StorageTransient("The connection was lost.")
        return claimed

    monkeypatch.setattr(Acquirer, "_acquire", losing_the_first_reply)


@pytest.mark.usefixtures("lost_reply")
def test_claim_whose_reply_was_lost_is_sent_again_and_its_trial_runs(
    database, tmp_path, monkeypatch
):
    supervised = Supervised(database, tmp_path, num_trials=1)

    supervised.run(GOOD)
    supervised.close()

    (trial,) = list_trials(database, supervised.study)
    assert (trial.state, trial.attempt, trial.losses) == ("TERMINATED", 1, 0)


@pytest.mark.usefixtures("lost_reply")
def test_claim_whose_reply_was_lost_still_counts_towards_max_trials(
    database, tmp_path, monkeypatch
):
    supervised = Supervised(database, tmp_path, num_trials=1)
    give_back = TrialLimit.give_back

    def give_back_to_another_slot(limit):
        give_back(limit)
        limit.take()

    monkeypatch.setattr(TrialLimit, "give_back", give_back_to_another_slot)

    supervised.run(GOOD)
    supervised.close()

    (trial,) = list_trials(database, supervised.study)
    assert (trial.state, trial.attempt) == ("TERMINATED", 1)


def idle_slots(supervised, folder, *, n):
    """Start the slots of a worker that finds no trial; return its interruption and the slots."""
    interruption = Interruption()
    templates = Templates(
        None,
        supervised._pump,
        directory=folder / "templates",
        enabled=False,
        say=print,
        is_stopping=lambda: False,
    )
    equipment = supervised._equipment(templates, interruption, {"wait": True})
    slots = [Slot(equipment, TrialLimit(None), number=n) for n in range(n)]

    for slot in slots:
        slot.start()
    return interruption, slots


@pytest.mark.parametrize("stops", [Interruption.drain, lambda one: one.give_up("no disk")])
def test_stopped_worker_gives_back_the_trial_of_a_claim_that_is_answered_late(
    database, tmp_path, monkeypatch, stops
):
    supervised = Supervised(database, tmp_path, num_trials=1)
    interruption, acquire, lost = Interruption(), Acquirer._acquire, []

    def losing_replies_while_the_worker_is_stopped(acquirer, **given):
        claimed = acquire(acquirer, **given)
        if len(lost) < 2:
            lost.append(claimed)
            stops(interruption)
            raise StorageTransient("The connection was lost.")
        return claimed

    monkeypatch.setattr(Acquirer, "_acquire", losing_replies_while_the_worker_is_stopped)

    supervised.run(GOOD, interruption=interruption)
    supervised.close()

    (trial,) = list_trials(database, supervised.study)
    assert (trial.state, trial.attempt, trial.losses) == ("PENDING", 1, 0)
    assert trial.summary.n_results == 0  # no process was started


@pytest.mark.nightly
def test_stopping_worker_waits_for_the_answer_to_a_claim_no_longer_than_its_grace(
    database, tmp_path, monkeypatch
):
    supervised = Supervised(database, tmp_path, num_trials=1)
    interruption = Interruption()

    def without_an_answer(acquirer, **_):
        interruption.drain()
        raise StorageTransient("The connection was lost.")

    monkeypatch.setattr(Acquirer, "_acquire", without_an_answer)
    began_s = time.monotonic()

    supervised.run(GOOD, interruption=interruption)
    supervised.close()

    assert time.monotonic() - began_s < 3 * GRACE_S
    assert interruption.gave_up is None


def test_idle_slots_end_at_once_when_their_worker_stops_although_a_slot_still_looks(
    database, tmp_path, monkeypatch
):
    looks, looking, answered = itertools.count(1), [], threading.Event()

    def slow_look(acquirer):
        if next(looks) > 3:
            looking.append(threading.current_thread().name)
            answered.wait(30)
        return look(acquirer)

    look = Acquirer.look
    monkeypatch.setattr(Acquirer, "look", slow_look)
    supervised = Supervised(database, tmp_path, num_trials=None, searcher=None)
    interruption, slots = idle_slots(supervised, tmp_path, n=3)
    eventually(lambda: looking)
    time.sleep(0.2)  # until the other slots wait for their turn to look

    began_s = time.monotonic()
    interruption.drain()
    waiting = [slot for slot in slots if slot.name not in looking]
    for slot in waiting:
        slot.join(10)
    took_s = time.monotonic() - began_s
    answered.set()
    for slot in slots:
        slot.join(10)
    supervised.close()

    assert len(looking) == 1
    assert took_s < 0.5


@pytest.mark.slow
def test_only_one_of_the_idle_slots_of_a_worker_keeps_looking_at_the_study(
    database, tmp_path, monkeypatch
):
    looks = Counter()
    look = Acquirer.look

    def counted_look(acquirer):
        looks[threading.current_thread().name] += 1
        return look(acquirer)

    monkeypatch.setattr(Acquirer, "look", counted_look)
    supervised = Supervised(database, tmp_path, num_trials=None, searcher=None)
    interruption, slots = idle_slots(supervised, tmp_path, n=4)
    eventually(lambda: max(looks.values(), default=0) >= 5 and len(looks) == 4)
    seen = sorted(looks.values())
    interruption.drain()
    for slot in slots:
        slot.join(10)
    supervised.close()

    assert seen[:3] == [1, 1, 1]
    assert not any(slot.is_alive() for slot in slots)


def test_worker_prints_the_new_name_of_a_study_that_was_renamed_while_it_ran(sqlite_stage):
    study = sqlite_stage.create("obedient:gated")
    worker = sqlite_stage.start()
    sqlite_stage.await_trial(lambda row: row.checkpoint_step == 1)

    study.rename("new")
    sqlite_stage.open_gate("all")

    assert worker.exit_code() == 0
    assert "study 'new' is FINISHED" in worker.output()
