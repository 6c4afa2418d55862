"""How long an idle worker waits before its next look at the study."""

from itertools import pairwise

from studydb.lease import watch
from studydb.lease.watch import FIRST_WAIT_S, LONGEST_WAIT_S, PollInterval


def waits(poll_interval, number):
    return [poll_interval.next_s() for _ in range(number)]


def test_wait_is_at_most_100_ms_longer_than_twice_the_time_since_the_last_claim():
    drawn = waits(PollInterval(), 20)

    idle_s = 0.0
    for wait_s in drawn:
        assert wait_s <= min(2 * idle_s + FIRST_WAIT_S, LONGEST_WAIT_S)
        idle_s += wait_s


def test_waits_grow_to_the_longest_wait_and_are_jittered():
    drawn = waits(PollInterval(), 40)

    assert all(wait_s >= LONGEST_WAIT_S / 2 for wait_s in drawn[-20:])
    assert len({*pairwise(drawn[-20:])}) > 1  # jittered: idle workers do not poll together


def test_reset_makes_the_next_wait_the_shortest():
    poll_interval = PollInterval()
    waits(poll_interval, 20)

    poll_interval.reset()

    assert poll_interval.next_s() <= FIRST_WAIT_S


def test_wait_that_has_begun_is_over_after_the_seconds_that_were_drawn(monkeypatch):
    now_s = [100.0]
    monkeypatch.setattr(watch, "monotonic", lambda: now_s[0])
    interval = PollInterval(longest_s=15.0)
    is_over_at_first = interval.is_over

    interval.begin()
    seen = [interval.is_over]
    now_s[0] += FIRST_WAIT_S
    seen.append(interval.is_over)

    assert (is_over_at_first, seen) == (True, [False, True])
