"""How long an idle worker waits before it asks the database for a trial again."""

from itertools import pairwise

from studydb.lease.acquire import BUSY_WAIT_S, FIRST_WAIT_S, LONGEST_WAIT_S, PollInterval


def waits(poll_interval, number):
    return [poll_interval.next_s() for _ in range(number)]


def test_wait_is_at_most_100_ms_longer_than_twice_the_time_since_the_last_trial():
    drawn = waits(PollInterval(), 20)

    idle_s = 0.0
    for wait_s in drawn:
        assert wait_s <= min(2 * idle_s + FIRST_WAIT_S, LONGEST_WAIT_S)
        idle_s += wait_s


def test_waits_grow_to_the_longest_wait_and_are_jittered():
    drawn = waits(PollInterval(), 40)

    assert all(wait_s >= LONGEST_WAIT_S / 2 for wait_s in drawn[-20:])
    assert len({*pairwise(drawn[-20:])}) > 1  # jittered: idle workers do not poll together


def test_shorten_limits_the_next_wait_to_one_second():
    poll_interval = PollInterval()
    waits(poll_interval, 20)

    poll_interval.shorten()

    assert FIRST_WAIT_S < poll_interval.next_s() <= BUSY_WAIT_S


def test_reset_makes_the_next_wait_the_shortest():
    poll_interval = PollInterval()
    waits(poll_interval, 20)

    poll_interval.reset()

    assert poll_interval.next_s() <= FIRST_WAIT_S
