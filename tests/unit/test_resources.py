"""A trial's request for resources; a worker's capacity, ledger and next claim."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from studydb.domain.class_queues import READ_AGAIN_S, ClassQueues
from studydb.domain.errors import InvalidName, InvalidSpec
from studydb.domain.records import QueuePosition
from studydb.domain.resources import (
    UNLIMITED,
    Capacity,
    Ledger,
    Resources,
    choose_cards,
    nearest_offer,
    read_capacity,
    read_resources,
    without_cards,
)

AMOUNTS = st.dictionaries(
    st.sampled_from(["cpus", "memory_gb", "licence", "tape-drive"]),
    st.floats(0, 100, allow_nan=False),
    max_size=4,
)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({}, "nothing"),
        ("nothing", "nothing"),
        ({"gpus": 0}, "nothing"),
        ("licence=2,gpus=0.50", "gpus=0.5, licence=2"),
        ({"memory_gb": 8.0, "cpus": 1}, "cpus=1, memory_gb=8"),
        ({"cpus": 1 / 3}, "cpus=0.333333"),
        ({"cpus": 0.29, "gpus": 1 / 6}, "cpus=0.29, gpus=0.166666"),
        ({"cpus": 0.7 + 0.1, "gpus": (0.1 + 0.7) * 10, "licence": -1e-12}, "cpus=0.8, gpus=8"),
    ],
)
def test_every_spelling_of_a_request_gives_the_same_text(value, text):
    assert str(read_resources("resources", value)) == text
    assert str(read_resources("resources", text)) == text


@given(AMOUNTS)
def test_a_request_survives_text_and_json(amounts):
    asked = read_resources("resources", amounts)

    assert read_resources("resources", str(asked)) == asked
    assert read_resources("resources", asked.to_json()) == asked


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("gpu=1", "the name is 'gpus'"),
        ({"CPUS": 1}, "the name is 'cpus'"),
        ("gpus", "is not NAME=AMOUNT"),
        ("gpus=1,gpus=2", "twice"),
        ("gpus=-1", "from 0 to"),
        ({"gpus": math.nan}, "from 0 to"),
        ({"gpus": True}, "from 0 to"),
        ({"licence": "many"}, "from 0 to"),
        ({"gpus": 1.5}, "whole GPUs"),
        ({"a b": 1}, "letters, digits"),
        ({7: 1}, "letters, digits"),
        ([1], "amounts by name"),
        ({f"r{n}": 1 for n in range(17)}, "at most 16"),
    ],
)
def test_a_wrong_request_is_refused(value, says):
    with pytest.raises(InvalidSpec, match=says):
        read_resources("resources", value)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"cpus": -1}, InvalidSpec),
        ({"custom": "gpus=1"}, InvalidSpec),
        ({"custom": "licence"}, InvalidSpec),
        ({"gpus": -1}, InvalidSpec),
        ({"gpus": 1025}, InvalidSpec),
        ({"tags": [""]}, InvalidName),
        ({"tags": "a100"}, InvalidName),
    ],
)
def test_a_wrong_capacity_is_refused(options, error):
    with pytest.raises(error):
        read_capacity(**options)


def test_a_part_of_a_gpu_must_fit_on_one_card():
    two = read_capacity(gpus=2)
    left = two.minus(read_resources("r", "gpus=0.6")).minus(read_resources("r", "gpus=0.6"))

    assert left.gpus == 0.8
    assert not left.fits(read_resources("r", "gpus=0.6"))
    assert left.fits(read_resources("r", "gpus=0.4"))
    assert not left.fits(read_resources("r", "gpus=1"))


def test_two_halves_of_a_gpu_share_one_card_and_leave_the_other_card_whole():
    left = read_capacity(gpus=2).minus(read_resources("r", "gpus=0.5"))

    assert left.minus(read_resources("r", "gpus=0.5")).fits(read_resources("r", "gpus=1"))


def test_request_for_a_resource_that_is_not_offered_does_not_fit():
    assert not Capacity().fits(read_resources("r", "licence=1"))
    assert UNLIMITED.fits(read_resources("r", "licence=1, gpus=99"))


def test_a_capacity_survives_json():
    offered = read_capacity(cpus=4, gpus=2, memory_gb=9.5, custom="licence=3", tags=["b", "a"])

    assert Capacity.from_json(offered.to_json()) == offered
    assert Capacity.from_json(UNLIMITED.to_json()) == UNLIMITED == Capacity.from_json(None)
    assert offered.lacks(["a", "c"]) == ["c"]


@given(st.lists(st.tuples(st.sampled_from([0.1, 0.2, 0.3, 0.5, 1.0, 2.0]), st.booleans())))
def test_a_ledger_never_gives_more_than_its_capacity(steps):
    ledger, held = Ledger(read_capacity(cpus=3, gpus=2)), []
    for number, (gpus, is_release) in enumerate(steps):
        if is_release and held:
            ledger.release(held.pop(0)[0])
        asked = Resources(cpus=0.5, gpus=gpus)
        if ledger.hold(number, asked):
            held.append((number, asked))
        assert all(0 <= part <= 1 for part in ledger.free.cards)
        assert ledger.free.cpus == 3 - 0.5 * len(held) >= 0
    for number, _ in held:
        ledger.release(number)
    assert ledger.free == ledger.capacity


def test_second_hold_by_the_same_holder_is_refused():
    ledger = Ledger(read_capacity(cpus=2))

    assert ledger.hold("a", Resources(cpus=1))
    assert not ledger.hold("a", Resources(cpus=1))
    assert ledger.held_by("a") == Resources(cpus=1)
    ledger.release("a")
    ledger.release("a")
    assert ledger.held_by("a") is None


def test_nearest_offer_lacks_the_fewest_resources_and_among_equals_has_the_most_gpus():
    small, large = read_capacity(cpus=1, gpus=1), read_capacity(cpus=9)

    assert nearest_offer(Resources(gpus=2, cpus=1), [small, large]) == small
    assert nearest_offer(Resources(gpus=2), []) is None


def queues_of(ledger, classes, **options):
    """Return a worker's queues; `classes` maps each request to the numbers of its trials."""
    queues = ClassQueues(ledger, **options)
    queues.take_in(
        {
            text: (read_resources("r", text), [QueuePosition(0, n) for n in numbers])
            for text, numbers in classes.items()
        },
        depth=3,
    )
    return queues


def test_the_first_trial_that_fits_is_chosen():
    queues = queues_of(
        Ledger(read_capacity(gpus=1)), {"gpus=2": [0], "gpus=1": [4, 5], "nothing": [2]}
    )

    assert queues.next_claim(()) == ("nothing", (0, 2))
    assert queues.next_claim({"nothing"}) == ("gpus=1", (0, 4))
    queues.claimed("gpus=1", QueuePosition(0, 4))
    queues.emptied("nothing")
    assert queues.next_claim(()) == ("gpus=1", (0, 5))
    queues.claimed("gpus=1", QueuePosition(0, 5))
    assert queues.next_claim(()) is None


def test_partly_read_queue_begins_after_the_claimed_position():
    queues = queues_of(Ledger(UNLIMITED), {"cpus=1": [1, 2, 3]})

    queues.claimed("cpus=1", QueuePosition(0, 9))

    assert queues.next_claim(()) == ("cpus=1", (0, 10))


def test_learn_keeps_a_known_class_that_the_given_classes_lack():
    queues = queues_of(Ledger(UNLIMITED), {"cpus=1": [1], "cpus=2": [2]})

    queues.learn({"cpus=1": Resources(cpus=1)})
    queues.emptied("cpus=2")

    assert queues.next_claim(()) == ("cpus=1", (0, 1))


def waiting_for_gpus(reserve=lambda _: True):
    """
    Return the queues of a worker, and the classes that the worker has read.

    The worker has asked to be reserved for trial 0. It offers two GPUs, and another worker holds
    one of these.
    """
    now_s = iter(range(0, 1000, 10))
    positions = {"cpus=3, gpus=2": [0], "gpus=1": [1], "cpus=2": [2], "cpus=1": [3]}
    queues = ClassQueues(
        Ledger(read_capacity(cpus=4, gpus=2), free_cards=lambda: (1.0, 0.0)),
        reserve_after_s=5.0,
        reserve=reserve,
        clock_s=lambda: float(next(now_s)),
    )
    read = {
        text: (read_resources("r", text), [QueuePosition(0, n) for n in numbers])
        for text, numbers in positions.items()
    }
    for _ in range(2):
        queues.take_in(read, depth=3)
    return queues, read


def test_trials_without_gpus_start_while_the_reserved_trial_waits_for_gpus_of_other_workers():
    queues, _ = waiting_for_gpus()

    assert queues.reserved == (0, 0)
    assert queues.fitting() == ["cpus=1"]


def test_the_withdrawal_of_a_reservation_is_repeated_until_the_database_has_answered():
    answers, asked = [True, False, True], []

    def reserve(position):
        asked.append(position)
        return answers.pop(0)

    queues, read = waiting_for_gpus(reserve)
    del read["cpus=3, gpus=2"]
    for _ in range(3):
        queues.take_in(read, depth=3)

    assert asked == [(0, 0), None, None]


def test_a_reservation_without_an_answer_is_withdrawn():
    answers, asked = [False, True], []

    def reserve(position):
        asked.append(position)
        return answers.pop(0)

    queues, read = waiting_for_gpus(reserve)
    del read["cpus=3, gpus=2"]
    for _ in range(2):
        queues.take_in(read, depth=3)

    assert asked == [(0, 0), None]


def test_queues_are_read_again_after_a_tenth_of_a_second():
    now_s = 10.0
    queues = queues_of(Ledger(UNLIMITED), {"cpus=1": [1]}, clock_s=lambda: now_s)

    assert not queues.must_read
    now_s += 2 * READ_AGAIN_S
    assert queues.must_read


def test_request_for_gpus_that_other_workers_hold_does_not_fit():
    free = (0.5, 1.0)
    ledger = Ledger(read_capacity(gpus=2), free_cards=lambda: free)
    queues = queues_of(ledger, {"gpus=2": [0], "gpus=1": [1]})

    assert queues.fitting() == ["gpus=1"]
    free = (0.5, 0.5)
    assert queues.fitting() == []


class Host:
    """
    The ledger of a worker with two cards, and the locks of these cards.

    Args:
        others: The part of each card that processes of other workers have locked.
    """

    def __init__(self, *others):
        self.others, self.locked = list(others), {}
        self.ledger = Ledger(read_capacity(gpus=2), free_cards=self.free_cards)

    def free_cards(self):
        parts = tuple(1 - part for part in self.others)
        for gpus, chosen in self.locked.values():
            parts = without_cards(parts, chosen, gpus)
        return parts

    def start(self, holder, gpus):
        """Lock cards for a trial; return their positions, or None if the request does not fit."""
        if not self.ledger.hold(holder, Resources(gpus=gpus)):
            return None
        chosen = choose_cards(self.free_cards(), gpus)
        self.locked[holder] = gpus, chosen
        self.ledger.place(holder, chosen)
        return chosen

    def end(self, holder):
        del self.locked[holder]
        self.ledger.release(holder)


def test_a_whole_gpu_is_found_beside_a_part_that_another_process_holds():
    host = Host(0.5, 0.0)

    assert host.start("whole", 1) == (1,)
    assert host.start("half", 0.5) == (0,)
    assert host.start("more", 0.5) is None


def test_a_ledger_counts_each_trial_on_the_gpu_that_it_has_locked():
    host = Host(0.5, 0.0)
    chosen = [host.start(name, 0.5) for name in "abc"]
    host.others[0] = 0.0

    host.end("a")

    assert chosen == [(0,), (1,), (1,)]
    assert host.ledger.free.cards == host.ledger.free_now().cards == (1.0, 0.0)
    assert host.start("whole", 1) == (0,)


def test_a_trial_is_counted_on_another_gpu_if_another_process_has_locked_the_chosen_gpu_first():
    ledger = Host(0.0, 0.0).ledger
    assert ledger.hold("trial", Resources(gpus=0.5))
    assert ledger.free.cards == (0.5, 1.0)

    ledger.place("trial", (1,))

    assert ledger.free.cards == (1.0, 0.5)


def test_a_trial_that_has_not_locked_its_gpu_yet_is_counted():
    host = Host(0.5, 0.0)

    assert host.ledger.hold("first", Resources(gpus=0.5))
    assert host.ledger.free_now().cards == (0.0, 1.0)
    assert host.ledger.hold("second", Resources(gpus=1))
    assert not host.ledger.hold("third", Resources(gpus=0.5))


def test_a_gpu_that_is_unlocked_is_free_before_its_trial_is_released():
    host = Host(0.0, 1.0)
    host.start("first", 1)
    del host.locked["first"]

    assert host.start("second", 1) == (0,)
    host.ledger.release("first")

    assert host.ledger.free.cards == (0.0, 1.0)
    assert host.ledger.free_now().cards == (0.0, 0.0)
