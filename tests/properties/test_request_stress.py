"""
Half of the processes run trials; the other processes send people's requests as fast as they can.

The processes that run trials are killed now and then. Calls raise no errors except refusals
(a deadlock would raise an error), and the promises of `harness.row_invariants` hold afterwards.
`STUDYDB_NIGHTLY=1` runs 16 processes, instead of 4, for 60 s or more.
"""

import os
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest
from fleet.trainables.scheduling import Halving
from harness.arrange import rows
from harness.request_stress import Stress
from harness.row_invariants import broken_promises

import studydb
from studydb.db import connect
from studydb.operations.create import load

NIGHTLY = os.environ.get("STUDYDB_NIGHTLY") == "1"
PROCESSES, SECONDS, KILL_EVERY_S = (16, 60.0, 2.0) if NIGHTLY else (4, 6.0, 2.0)

KINDS_OF_EVENTS, MOST_RUNS = 9, 4
"""
At least 9 kinds of events must happen, and a process must be killed. If a run on a slow host does
too little, up to 3 longer runs follow the first.
"""

SCHEDULERS = {
    "stopping": studydb.ASHA(max_t=9, reduction_factor=3, brackets=2),
    "promotion": studydb.ASHA(max_t=9, reduction_factor=3, type="promotion"),
    "hyperband": studydb.HyperBand(max_t=9),
    "median": studydb.MedianStopping(),
    "one epoch": studydb.OneEpoch(i=2, top_k=3, max_t=9),
    "end game": studydb.ASHA(9, 1, 3, type="promotion", end_game=0.5),
    "custom": Halving(max_t=9, reduction_factor=3),
    "custom promotion": Halving(max_t=9, reduction_factor=3, type="promotion"),
}
"""The schedulers under stress, by the name of their study."""

KINDS = """
    SELECT kind || CASE WHEN actor = 'scheduler' THEN ' by the scheduler' ELSE '' END, count(*)
    FROM event WHERE study_id = {study} GROUP BY 1
"""
ENTRIES = "SELECT coalesce(sum(n_entries), 0) FROM rung WHERE study_id = {study}"


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_calls_of_many_processes_raise_only_refusals_while_processes_are_killed(
    storage_url, monkeypatch
):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))  # for the custom schedulers
    for name, scheduler in SCHEDULERS.items():
        studydb.create_study(
            name,
            None,
            space={"lr": studydb.uniform(0, 1)},
            metric="loss",
            mode="min",
            num_trials=20,
            max_failures=1,
            max_steps=10**6,
            scheduler=scheduler,
            storage=storage_url,
        ).close()
    stress = Stress(storage_url, list(SCHEDULERS), processes=PROCESSES)

    kinds: Counter[str] = Counter()
    for n in range(1, MOST_RUNS + 1):
        exit_codes = stress.run(seconds=n * SECONDS, kill_every_s=n * KILL_EVERY_S)
        assert exit_codes == [0] * PROCESSES
        kinds, entries = what_happened(storage_url)
        print(dict(kinds), entries, stress.n_killed, "killed")  # noqa: T201  for pytest -rP
        if stress.n_killed and len(kinds) >= KINDS_OF_EVENTS:
            break

    assert stress.n_killed > 0
    assert len(kinds) >= KINDS_OF_EVENTS


def what_happened(storage_url):
    """Check the studies; count their events by kind, and the rung entries of each study."""
    kinds: Counter[str] = Counter()
    entries = {}
    with closing(connect(storage_url)) as database:
        for name in SCHEDULERS:
            study = load(database, name)
            assert broken_promises(database, study) == {}
            kinds.update(dict(rows(database, KINDS.format(study=study.id))))
            entries[name] = int(rows(database, ENTRIES.format(study=study.id))[0][0])
    return kinds, entries
