"""
Processes run trials while others make every request of a person, as fast as they can.

No call ends in an error that is no refusal, such as a deadlock, and the promises of
`harness.row_invariants` hold afterwards. `STUDYDB_NIGHTLY=1`: 16 processes for 60 s.
"""

import multiprocessing
import os
from contextlib import closing

import pytest
from harness.request_stress import START_PATIENCE_S, request_or_run
from harness.row_invariants import broken_promises

import studydb
from studydb.db import connect
from studydb.operations.create import load

NIGHTLY = os.environ.get("STUDYDB_NIGHTLY") == "1"
PROCESSES, SECONDS = (16, 60.0) if NIGHTLY else (4, 4.0)


@pytest.mark.timeout(600)
def test_requests_and_trials_of_many_processes_end_in_no_error(storage_url):
    studydb.create_study(
        "stress",
        None,
        space={"lr": studydb.uniform(0, 1)},
        metric="loss",
        mode="min",
        num_trials=20,
        max_failures=1,
        max_steps=10**6,
        scheduler=studydb.ASHA(max_t=9, reduction_factor=3, type="promotion"),
        storage=storage_url,
    ).close()
    context = multiprocessing.get_context("spawn")
    begin = context.Barrier(PROCESSES)
    processes = [
        context.Process(target=request_or_run, args=(storage_url, "stress", place, SECONDS, begin))
        for place in range(PROCESSES)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(SECONDS + 2 * START_PATIENCE_S)
        if process.is_alive():
            process.kill()
            process.join()

    assert [process.exitcode for process in processes] == [0] * PROCESSES
    with closing(connect(storage_url)) as database:
        study = load(database, "stress")
        assert broken_promises(database, study) == {}
        with database.begin(write=False) as txn:
            kinds = txn.raw(
                f"SELECT kind, count(*) FROM event WHERE study_id = {study.id} GROUP BY kind"
            )[1]
    print(dict(kinds))  # noqa: T201  for pytest -rP
    assert len(kinds) > 8
