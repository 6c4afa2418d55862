"""Claims, asks, reserved workers, and waits for GPUs in a study whose trials ask for resources."""

import threading
from contextlib import closing

import pytest
from harness import arrange
from harness.arrange import change, new_request, new_study
from harness.nodes import Clock, Node
from harness.settings_requests import set_resources

from studydb.db import connect
from studydb.domain.errors import HostError, InvalidSpec, NotAllowed, StorageTransient
from studydb.domain.life.states import Status
from studydb.domain.resources import (
    OF_STUDY,
    Capacity,
    Ledger,
    Resources,
    read_capacity,
    read_resources,
)
from studydb.lease import fitting
from studydb.lease.watch import Watch
from studydb.operations import control
from studydb.operations.enqueue import enqueue
from studydb.operations.reservations import read_classes, reserve
from studydb.store import resource_classes, studies, trials

BIG, SMALL = read_resources("big", "gpus=2"), read_resources("small", "gpus=1")


@pytest.fixture
def study(database):
    return new_study(database, searcher=None, num_trials=100)


def put(database, study, *asked):
    return [
        enqueue(database, study, {}, new_request(), resources=one and read_resources("r", one))
        for one in asked
    ]


@pytest.mark.row("A6")
def test_a_worker_claims_the_first_trial_that_fits(database, study):
    put(database, study, "gpus=4", "gpus=1", None, "licence=1")
    node = Node(database, study, read_capacity(gpus=1))

    started = [node.number() for _ in range(3)]

    assert started == [1, 2, None]


def test_trials_that_an_earlier_studydb_stored_without_a_config_are_claimed(database, study):
    put(database, study, "gpus=4", "gpus=1", None)
    change(database, "UPDATE trial SET config = NULL")
    node = Node(database, study, read_capacity(gpus=1))

    assert [node.number() for _ in range(3)] == [1, 2, None]


def test_trials_are_claimed_in_the_order_of_the_queue_whatever_they_ask_for(database, study):
    put(database, study, "gpus=1", "gpus=0.5", None, "gpus=1", "cpus=1", "gpus=0.5")
    node = Node(database, study, read_capacity(cpus=8, gpus=8))

    assert [node.number() for _ in range(7)] == [0, 1, 2, 3, 4, 5, None]


def test_a_worker_is_never_given_more_than_it_has(database, study):
    put(database, study, *["gpus=0.6"] * 3, *["gpus=1"] * 2)
    node = Node(database, study, read_capacity(gpus=2))

    claims = [node.start() for _ in range(4)]

    assert [claim and claim.lease.number for claim in claims] == [0, 1, None, None]
    node.end(claims[0])
    assert node.number() == 2
    assert node.number() is None


def test_trials_that_ask_for_different_resources_are_claimed_by_priority_and_then_by_number(
    database, study
):
    for priority, asked in ((5, "gpus=1"), (0, None), (-1, "cpus=1"), (0, "gpus=1")):
        request = asked and read_resources("r", asked)
        enqueue(database, study, {}, new_request(), priority=priority, resources=request)
    node = Node(database, study, read_capacity(cpus=8, gpus=8))

    assert [node.number() for _ in range(4)] == [2, 1, 3, 0]


def test_a_study_whose_trials_ask_for_nothing_has_no_resource_classes(database):
    plain = new_study(database)

    assert read_classes(database, plain) == {}


def test_a_worker_makes_no_new_trial_that_asks_for_more_than_is_free(database):
    greedy = new_study(database, resources=BIG)
    small, big = (
        Node(database, greedy, read_capacity(gpus=1)),
        Node(database, greedy, read_capacity(gpus=2)),
    )

    assert small.start() is None
    assert big.number() == 0
    assert big.start() is None


def test_a_worker_makes_new_trials_while_trials_wait_that_do_not_fit(database):
    mixed = new_study(database, resources=SMALL)
    put(database, mixed, "gpus=2")
    node = Node(database, mixed, read_capacity(gpus=1))

    assert node.number() == 1


def test_a_waiting_trial_that_fits_comes_before_a_new_trial(database):
    mixed = new_study(database, resources=SMALL)
    put(database, mixed, "gpus=0.5")
    node = Node(database, mixed, read_capacity(gpus=2))
    acquirer = node._new_acquirer()
    acquirer._claims_first = False

    assert acquirer.acquire().lease.number == 0


def test_a_worker_learns_that_trials_of_a_study_have_begun_to_ask_for_resources(database, study):
    put(database, study, None)
    node = Node(database, study, read_capacity(gpus=1))
    assert node.number() == 0

    put(database, study, "gpus=2", "gpus=1")

    assert node.start() is None  # the worker searches only class "", and then reads the classes
    assert node.number() == 2


def test_an_own_loop_without_a_capacity_takes_every_trial(database, study):
    put(database, study, "gpus=4", "licence=9", None)
    node = Node(database, study, Capacity(is_unlimited=True))

    assert [node.number() for _ in range(4)] == [0, 1, 2, None]


def test_the_65th_resource_class_of_a_study_is_refused(database, study):
    put(database, study, *(f"cpus={n}" for n in range(1, 64)))

    with pytest.raises(InvalidSpec, match="64 different sets"):
        put(database, study, "cpus=64")

    assert put(database, study, "cpus=63") == [63]


def test_new_resources_of_the_study_apply_to_waiting_trials_without_their_own_request(database):
    greedy = new_study(database, resources=BIG)
    put(database, greedy, None, "gpus=3")
    node = Node(database, greedy, read_capacity(gpus=1))
    assert node.start() is None

    set_resources(database, greedy, SMALL, [], new_request())

    assert node.number() == 0
    assert read_classes(database, greedy)[""] == SMALL


def test_the_resources_of_a_waiting_trial_can_be_changed(database, study):
    put(database, study, "gpus=3", "gpus=3")

    set_resources(database, study, SMALL, [1], new_request())

    assert Node(database, study, read_capacity(gpus=1)).number() == 1


def test_the_resources_of_a_running_trial_cannot_be_changed(database, study):
    put(database, study, "gpus=1", "gpus=1")
    Node(database, study, read_capacity(gpus=1)).start()

    with pytest.raises(NotAllowed, match="RUNNING"):
        set_resources(database, study, Resources(), [1, 0], new_request())

    rows = arrange.rows(database, "SELECT resource_class FROM trial")
    assert set(rows) == {("gpus=1",)}


def test_a_worker_is_reserved_for_a_trial_after_later_trials_have_overtaken_it_for_60_s(
    database, study
):
    put(database, study, "gpus=1", "gpus=2", *["gpus=1"] * 9)
    node = Node(database, study, read_capacity(gpus=2), reserve_after_s=60.0)
    first, second = node.start(), node.start()
    assert [first.lease.number, second.lease.number] == [0, 2]

    node.clock.now_s += 59
    node.end(second)
    third = node.start()
    node.clock.now_s += 2
    node.end(third)
    refused = node.start()
    node.end(first)

    assert third.lease.number == 3
    assert refused is None
    assert node.number() == 1


def test_a_reserved_trial_that_now_asks_for_less_is_started(database, study):
    put(database, study, "gpus=1", "gpus=2", "gpus=1", "gpus=1")
    node = Node(database, study, read_capacity(gpus=2), reserve_after_s=60.0)
    node.start()
    held = node.start()
    node.clock.now_s += 61
    node.end(held)
    assert node.number() is None  # the worker is reserved for trial 1

    set_resources(database, study, SMALL, [1], new_request())

    assert node.number() == 1


def test_at_most_one_worker_is_reserved_for_a_trial(database, study):
    put(database, study, *["gpus=1"] * 4, "gpus=2", *["gpus=1"] * 9)
    clock = Clock()
    nodes = [Node(database, study, read_capacity(gpus=2), clock) for _ in range(2)]
    claims = [[node.start(), node.start()] for node in nodes]
    for node, held in zip(nodes, claims, strict=True):
        node.end(held[0])
        held[0] = node.start()
    clock.now_s += 61
    for node, held in zip(nodes, claims, strict=True):
        node.end(held[0])

    assert [node.number() for node in nodes] == [None, 7]
    rows = arrange.rows(database, "SELECT reserved_for FROM worker ORDER BY id")
    assert rows == [(4,), (None,)]


def test_waiting_time_of_an_overtaken_trial_is_not_reset_while_max_concurrent_trials_run(database):
    study = new_study(database, num_trials=11, max_concurrent=2)
    put(database, study, "gpus=1", "gpus=2", *["gpus=1"] * 9)
    node = Node(database, study, read_capacity(gpus=2), reserve_after_s=60.0)
    first, second = node.start(), node.start()
    node.end(second)
    third = node.start()

    for _ in range(7):
        node.clock.now_s += 10
        assert node.number() is None  # max_concurrent trials run
        node.acquirer.look()
    node.end(third)

    assert node.number() is None
    node.end(first)
    assert node.number() == 1


def test_only_one_of_two_concurrent_reservations_for_a_trial_succeeds(database, study, storage_url):
    if not database.features.concurrent_writers:
        pytest.skip("SQLite has one writer at a time")
    put(database, study, "gpus=2")
    first, second = (Node(database, study, read_capacity(gpus=2)) for _ in range(2))
    answers = []

    with closing(connect(storage_url, connections=1)) as other:

        def reserve_too():
            answers.append(reserve(other, study, worker_id=second.id, number=0))

        rival = threading.Thread(target=reserve_too)
        with database.begin() as txn:
            studies.lock(txn, study_id=study.id)
            assert resource_classes.reserve(txn, study_id=study.id, worker_id=first.id, number=0)
            rival.start()
            rival.join(0.3)
        rival.join()

    assert answers == [False]


def test_a_reservation_ends_when_its_trial_runs_elsewhere(database, study):
    put(database, study, "gpus=1", "gpus=2", *["gpus=1"] * 9)
    node = Node(database, study, read_capacity(gpus=2))
    node.start()
    held = node.start()
    node.clock.now_s += 61
    node.end(held)
    assert node.start() is None

    assert Node(database, study, read_capacity(gpus=2)).number() == 1

    assert node.number() == 3
    assert arrange.rows(database, "SELECT reserved_for FROM worker ORDER BY id")[0] == (None,)


def test_a_class_whose_trials_are_locked_does_not_hide_other_classes(database, study, storage_url):
    if not database.features.concurrent_writers:
        pytest.skip("SQLite has one writer at a time")
    put(database, study, "gpus=1", "cpus=1")
    node = Node(database, study, read_capacity(cpus=1, gpus=1))

    with database.begin() as txn:
        trials.find(txn, study_id=study.id, number=0, lock=True)
        with closing(connect(storage_url, connections=1)) as other:
            node.database = node.fitting._database = other
            assert node.number() == 1


def test_the_reservation_of_a_dead_worker_does_not_prevent_another_reservation(database, study):
    put(database, study, "gpus=1", "gpus=2", *["gpus=1"] * 9)
    dead, node = (Node(database, study, read_capacity(gpus=2)) for _ in range(2))
    assert reserve(database, study, worker_id=dead.id, number=1)
    arrange.change(database, f"UPDATE worker SET lease_s = 0 WHERE id = {dead.id}")
    first = node.start()
    held = node.start()
    node.clock.now_s += 61
    node.end(held)

    assert node.start() is None
    assert first.lease.number == 0
    assert arrange.rows(database, "SELECT reserved_for FROM worker ORDER BY id")[1] == (1,)


def test_watch_sees_that_other_resource_classes_fit_although_the_study_has_not_changed(database):
    study = new_study(database, num_trials=1)
    watch = Watch(database, study)
    for _ in range(3):
        assert not watch.read(fits=[]).can_claim

    assert watch.read(fits=[OF_STUDY]).can_claim


def test_a_trial_is_refused_if_the_locks_of_gpus_cannot_be_read(database, study):
    put(database, study, "gpus=1")
    node = Node(database, study, read_capacity(gpus=1))
    claim = node.start()
    node.fitting.release(claim)

    def refuse():
        raise HostError("This host cannot open the lock file.")

    node.fitting.ledger = Ledger(read_capacity(gpus=1), free_cards=refuse)

    assert not node.fitting.hold(claim)
    assert node.fitting.is_refused(claim)


def test_only_one_slot_of_a_worker_searches_for_a_trial_at_a_time(database, study):
    put(database, study, "gpus=1", "gpus=1")
    node = Node(database, study, read_capacity(gpus=1))
    first, second = node._new_acquirer(), node._new_acquirer()
    node.fitting.learn(now=True)
    assert node.fitting.take_turn(0.0)

    assert first.acquire() is None  # another slot searches
    node.fitting.end_turn()
    assert first.acquire().lease.number == 0
    assert second.acquire() is None


def test_slot_whose_claim_got_no_reply_keeps_the_turn_to_search(database, study, monkeypatch):
    put(database, study, "gpus=1", "gpus=1")
    node = Node(database, study, read_capacity(gpus=2))
    node.fitting.learn(now=True)
    lost, other = node._new_acquirer(), node._new_acquirer()
    claim_of = node.fitting.claim

    def lose_the_reply(*args, **options):
        claim_of(*args, **options)
        raise StorageTransient("the reply was lost")

    monkeypatch.setattr(node.fitting, "claim", lose_the_reply)
    with pytest.raises(StorageTransient):
        lost.acquire()
    monkeypatch.undo()

    assert other.acquire() is None
    assert lost.acquire().lease.number == 0
    assert other.acquire().lease.number == 1


def test_slots_wait_until_one_of_them_has_read_the_resource_classes(database, study, monkeypatch):
    put(database, study, "gpus=1")
    node = Node(database, study, read_capacity(gpus=1))
    is_reading, may_end, reads = threading.Event(), threading.Event(), []

    def read_slowly(*given):
        reads.append(given)
        is_reading.set()
        assert may_end.wait(10.0)
        return read_classes(*given)

    monkeypatch.setattr(fitting, "read_classes", read_slowly)
    first = threading.Thread(target=node.fitting.learn)
    first.start()
    assert is_reading.wait(10.0)
    second = threading.Thread(target=node.fitting.learn)
    second.start()
    second.join(0.1)
    assert second.is_alive()
    assert len(reads) == 1

    may_end.set()
    first.join()
    second.join()
    assert node.fitting.is_classed


@pytest.mark.parametrize(
    ("free", "changes", "waits"),
    [
        ((0.0,), {}, True),
        ((1.0,), {}, False),
        ((0.0,), {"status": Status.PAUSED}, False),
        ((0.0,), {"resources": Resources(cpus=1)}, False),
        ((0.0,), {"resources": Resources(gpus=2)}, False),
    ],
    ids=["held by others", "free", "paused", "asks for no gpu", "never fits"],
)
@pytest.mark.parametrize("is_new", [True, False], ids=["a new trial", "a pending trial"])
def test_an_idle_worker_shows_whether_a_trial_waits_for_gpus_of_other_workers(
    database, free, changes, waits, is_new
):
    asked = changes.get("resources", Resources(gpus=1))
    study = new_study(database, resources=asked, num_trials=5 if is_new else 1)
    if not is_new:
        enqueue(database, study, {}, new_request())
    if (status := changes.get("status")) is not None:
        control.set_status(database, study, status, new_request())
    shown = []
    node = Node(
        database,
        study,
        read_capacity(cpus=1, gpus=1),
        free_cards=lambda: free,
        wait_for_cards=shown.append,
    )

    node.acquirer.look()

    assert shown == [waits]


def test_a_worker_shows_no_wait_if_its_own_trial_has_the_gpu(database):
    study, shown = new_study(database, resources=Resources(gpus=1), num_trials=5), []
    capacity, free = read_capacity(gpus=1), [1.0]
    node = Node(
        database, study, capacity, free_cards=lambda: tuple(free), wait_for_cards=shown.append
    )
    claim = node.start()
    free[0] = 0.0
    node.fitting.place(claim, [0])

    node.acquirer.look()

    assert shown == [False]


def test_an_idle_worker_shows_no_wait_once_the_budget_is_spent(database):
    study, shown = new_study(database, resources=Resources(gpus=1), num_trials=1), []
    assert Node(database, study, read_capacity(gpus=1)).start() is not None
    node = Node(
        database,
        study,
        read_capacity(gpus=1),
        free_cards=lambda: (0.0,),
        wait_for_cards=shown.append,
    )

    node.acquirer.look()

    assert shown == [False]
