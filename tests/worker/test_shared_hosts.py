"""Workers of unequal size are never oversubscribed and stay busy; no trial waits too long."""

import os
import sys

import pytest
from fleet import shared_hosts
from harness import postgres

pytestmark = pytest.mark.timeout(1600)

NIGHTLY = bool(os.environ.get("STUDYDB_NIGHTLY"))


@pytest.fixture(scope="module")
def outcome(crashable_server, tmp_path_factory):
    """A run of 3 workers and 60 trials; with STUDYDB_NIGHTLY, of 8 workers and 2,000 trials."""
    options = (
        {"n_trials": 2000, "trial_s": (0.3, 1.2), "n_kills": 12, "timeout_s": 1500.0}
        if NIGHTLY
        else {
            "n_trials": 60,
            "trial_s": (0.2, 0.8),
            "n_kills": 2,
            "sizes": [(1, 1), (4, 2), (8, 2)],
            "timeout_s": 120.0,
            "reserve_after_s": 1.0,
        }
    )
    folder = tmp_path_factory.mktemp("shared")
    server = crashable_server.url()
    with postgres.temporary_database(server, template="template") as url:
        run = shared_hosts.run(url, folder, **options)
    sys.stdout.write(run.summary())
    return run


@pytest.mark.nightly
def test_no_worker_is_ever_oversubscribed(outcome):
    assert len({span.worker for span in outcome.spans}) >= 3
    assert outcome.oversubscribed() == []


@pytest.mark.slow
def test_first_trial_of_the_queue_waits_at_most_reserve_after_and_the_time_of_three_trials(outcome):
    limit_s = outcome.reserve_after_s + 3 * outcome.longest_s

    assert {asked: s for asked, s in outcome.waits().items() if s > limit_s} == {}


def test_slots_are_busy_while_a_trial_fits(outcome):
    assert outcome.busy_share() >= (0.95 if NIGHTLY else 0.7)
