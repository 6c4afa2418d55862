"""A call is sent again while the COMMIT of its first send is on its way: PostgreSQL, two connections."""

from harness.arrange import dump
from harness.concurrent import send_twice
from harness.duplicate_requests import (
    FINISHES,
    OPERATIONS,
    claiming_or_asking,
    draining,
    leaving,
    pausing_the_study,
    renaming,
    resuming_the_study,
    summing_up,
)

BLIND = (
    leaving,
    pausing_the_study,
    resuming_the_study,
    renaming,
    draining,
    summing_up,
    claiming_or_asking,
)
"""
They have locked nothing where they are held, so the resend overtakes its earlier send: most read
nothing, one is held while it reads the results, and the last at the end of a claim of nothing.
"""


def test_request_that_is_sent_twice_at_once_counts_once(connections, postgres_url, subtests):
    slow, fresh = connections

    for arranged in OPERATIONS:
        call = arranged(slow)

        first, second, waited = send_twice(call, slow, fresh, postgres_url)
        after = dump(fresh)
        third = call(fresh)

        with subtests.test(arranged.__name__):
            assert waited or arranged in BLIND
            assert dump(fresh) == after
            assert third is None if arranged in FINISHES else first == second == third
