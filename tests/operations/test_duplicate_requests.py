"""On PostgreSQL, a call is sent again on another connection before the first call has committed."""

import pytest
from harness.arrange import dump, leave_one_study
from harness.concurrent import send_twice
from harness.duplicate_requests import FINISHES, OPERATIONS

WITHOUT_LOCK = (
    *("leave", "pause_the_study", "resume_the_study", "rename", "drain"),
    *("sum_up", "claim_or_ask", "ask_past_a_duplicate", "promote", "give_up", "store_by_index"),
    *("ask_for_the_first_trial", "claim_in_an_old_study", "claim_what_fits", "ask_by_config"),
    "promote_in_the_end_game",
)
"""Operations whose duplicate need not wait for a lock of the first call."""


OF_SEVERAL_TRANSACTIONS = ("claim_without_a_config",)
"""
Operations whose calls both go on after the first COMMIT. A call returns None if the other call has
locked the trial just then. A client sends a request again only once the first call has ended.
"""


@pytest.mark.slow
def test_concurrent_duplicate_requests_count_once(connections, postgres_url, subtests):
    slow, fresh = connections

    for operation, arranged in OPERATIONS.items():
        leave_one_study(fresh)
        call = arranged(slow)

        first, second, waited = send_twice(call, slow, fresh, postgres_url)
        after = dump(fresh)
        third = call(fresh)

        with subtests.test(operation):
            assert waited or operation in WITHOUT_LOCK
            assert dump(fresh) == after
            if operation in OF_SEVERAL_TRANSACTIONS:
                assert third is not None
                assert all(answer in (None, third) for answer in (first, second))
            else:
                assert third is None if operation in FINISHES else first == second == third
