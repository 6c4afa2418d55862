"""Workers and own loops that run trials or wait can be drained; ended or dead workers cannot."""

import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from fleet.workers import eventually
from harness import arrange

import studydb
from studydb.db.schema import worker as worker_table
from studydb.domain.errors import NotAllowed, NotFound, UsageError
from studydb.domain.records import Request
from studydb.operations.drain import drain, find_worker
from studydb.processes import this_process

PERSON = "ada@laptop"

END_S = 3.0
"""The longest time in which a drained worker ends its trials and exits, on a busy host."""


def drain_worker(database, text):
    drain(database, find_worker(database, text), arrange.new_request())


def worker_uuid(database):
    ((uuid,),) = arrange.rows(database, "SELECT worker FROM v_worker")
    return uuid


@pytest.mark.slow
def test_drained_worker_releases_its_trials_and_exits_with_0(stage):
    stage.create("obedient:unhurried", num_trials=2)
    worker = stage.start(slots=2)
    for number in (0, 1):
        stage.await_result(number)

    drain_worker(stage.study.database, worker_uuid(stage.study.database)[:8])

    assert worker.exit_code() == 0
    assert "a person drained this worker; trials that ran here are released" in worker.output()
    for number in (0, 1):
        assert stage.expect_released(number).checkpoint_step > 0
        assert [one.reason for one in stage.attempts(number)] == ["PREEMPTED"]
    actors = "SELECT actor FROM event WHERE kind = 'drained' AND worker_id IS NOT NULL"
    assert arrange.rows(stage.study.database, actors) == [(PERSON,)]


@pytest.mark.slow
@pytest.mark.parametrize("busy", [True, False])
def test_worker_with_a_long_lease_hears_of_a_drain_within_5_s(sqlite_stage, busy):
    study = sqlite_stage.create("obedient:unhurried", num_trials=1)
    if not busy:
        study.pause()
    worker = sqlite_stage.start(lease=900)
    if busy:
        sqlite_stage.await_result()
    eventually(lambda: busy or "is paused" in worker.output())

    drain_worker(study.database, worker_uuid(study.database))
    asked_s = time.monotonic()

    assert worker.exit_code() == 0
    assert time.monotonic() - asked_s < 5.0 + END_S


def test_waiting_ask_of_a_drained_own_loop_returns_none_within_5_s(storage_url):
    study = studydb.create_study("mine", None, metric="loss", mode="min", storage=storage_url)
    study.pause()
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(study.ask, timeout=30.0)
        eventually(lambda: arrange.rows(study.database, "SELECT 1 FROM worker"))

        drain_worker(study.database, worker_uuid(study.database))

        assert asked.result(5.0) is None
    study.close()


@pytest.mark.nightly
def test_drain_ends_only_the_named_worker(sqlite_stage):
    sqlite_stage.create("obedient:unhurried", num_trials=2)
    first, second = sqlite_stage.start(), sqlite_stage.start()
    for number in (0, 1):
        sqlite_stage.await_result(number)
    uuid = sqlite_stage.row(worker_table, worker_table.c.pid == first.pid).uuid

    drain_worker(sqlite_stage.study.database, uuid)
    assert first.exit_code() == 0
    sqlite_stage.open_gate("all")

    assert second.exit_code() == 0
    assert {sqlite_stage.trial(number).reason for number in (0, 1)} == {"COMPLETED"}


def test_worker_says_once_that_it_waits_for_a_paused_study_and_ends_when_drained(sqlite_stage):
    study = sqlite_stage.create("obedient:one_step", num_trials=10_000)
    study.pause()
    worker = sqlite_stage.start(slots=2)
    line = "study 'staged' is paused; waiting for `studydb resume staged`"
    eventually(lambda: line in worker.output())

    drain_worker(study.database, worker_uuid(study.database))

    assert worker.exit_code() == 0
    assert worker.output().count(line) == 1
    assert study.trials == []


def test_drained_own_loop_gets_no_further_trial(storage_url):
    study = studydb.create_study("mine", None, metric="loss", mode="min", storage=storage_url)
    with study.ask() as trial:
        drain_worker(study.database, worker_uuid(study.database))
        study._loop._heartbeat.beat()
        assert trial.report({"loss": 0.5})

    assert study.ask() is None
    assert study.counts.terminated == 1
    study.close()


def test_duplicate_drain_request_is_recorded_once(database):
    worker = arrange.SimulatedWorker(database, arrange.new_study(database), of=this_process())
    ((uuid,),) = arrange.rows(database, "SELECT uuid FROM worker")
    found, token = find_worker(database, uuid), arrange.token()

    for _ in range(2):
        drain(database, found, Request(token, PERSON))

    assert worker.renew().request == "DRAIN"
    assert arrange.rows(database, "SELECT count(*) FROM event WHERE kind = 'drained'") == [(1,)]


def test_drain_refuses_an_unknown_ambiguous_ended_or_dead_worker(database):
    study = arrange.new_study(database)
    ended, dead = (arrange.SimulatedWorker(database, study, of=this_process()) for _ in range(2))
    first, second = "ab1" + "0" * 29, "ab2" + "0" * 29
    arrange.change(
        database,
        f"UPDATE worker SET uuid = '{first}', ended_at = started_at WHERE id = {ended.id}",
    )
    arrange.change(
        database, f"UPDATE worker SET uuid = '{second}', pid = 4194305 WHERE id = {dead.id}"
    )

    for text in ("nobody", "", "%", "abc", "a_1"):
        with pytest.raises(NotFound, match="There is no worker"):
            find_worker(database, text)
    with pytest.raises(UsageError, match=r"'ab' is the beginning of several .*: ab2000, ab1000"):
        find_worker(database, "ab")
    with pytest.raises(NotAllowed, match=r"The worker ab10* has ended already"):
        drain_worker(database, "ab1")
    with pytest.raises(NotAllowed, match=r"The process of worker ab20* is dead"):
        drain_worker(database, "ab2")
    assert arrange.rows(database, "SELECT count(*) FROM event WHERE kind = 'drained'") == [(0,)]
