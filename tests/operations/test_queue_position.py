"""A claim may go on where the last one was found; nothing waits for ever before that place."""

from harness.arrange import LEASE_S, PERSON, SimulatedWorker, enqueued, new_study, token

from studydb.domain.life.states import Reason
from studydb.lease import acquire
from studydb.lease.acquire import Acquirer
from studydb.operations.claim import claim
from studydb.operations.control import extend


def claimed_beyond(database, study, number):
    found = claim(
        database,
        study,
        worker_id=1,
        token=token(),
        lease_s=LEASE_S,
        again=False,
        beyond=(0, number),
    )
    return found and found.lease.number


def test_trials_beyond_a_place_come_first_and_those_before_it_then(database):
    study = new_study(database)
    for _ in range(3):
        enqueued(database, study)

    numbers = [claimed_beyond(database, study, 1) for _ in range(4)]

    assert numbers == [2, 0, 1, None]


def test_worker_that_finds_nothing_polls_without_writing(database):
    study = new_study(database, num_trials=0)
    worker = SimulatedWorker(database, study)
    acquirer = Acquirer(database, study, worker_id=worker.id, lease_s=LEASE_S)
    assert acquirer.acquire() is None
    seen = []
    database.observer = seen.append

    assert acquirer.acquire() is None
    assert not [what for what in seen if "UPDATE" in what or "INSERT" in what]

    extend(database, study, by=1, token=token(), actor=PERSON)
    assert acquirer.acquire() is not None


def test_what_came_back_is_claimed_before_the_rest_after_a_while(database, monkeypatch):
    study = new_study(database)
    for _ in range(5):
        enqueued(database, study)
    worker = SimulatedWorker(database, study)
    acquirer = Acquirer(database, study, worker_id=worker.id, lease_s=LEASE_S)
    first = worker.claim()

    numbers = []
    for now_s in (0.0, 1.9, 2.1, 2.2):
        monkeypatch.setattr(acquire, "monotonic", lambda now_s=now_s: now_s)
        numbers.append(acquirer.acquire().lease.number)
        if now_s == 0.0:
            first.finish(outcome=Reason.PREEMPTED)  # number 0 waits again, before all others

    assert numbers == [1, 2, 0, 3]
