"""Wait for the end of a study that other processes run."""

import time

from studydb.db import Database
from studydb.domain.records import Counts, Study
from studydb.lease.retries import retry_until
from studydb.lease.watch import PollInterval, Watch
from studydb.study.running import checked


def wait(database: Database, study: Study, *, timeout_s: float | None) -> Counts:
    """Wait until a study is done; see `Study.wait`."""
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    watch, poll_interval = Watch(database, study), PollInterval()
    while not (progress := retry_until(deadline, watch.read)).is_done:
        wait_s = poll_interval.next_s()
        if deadline is not None:
            wait_s = min(wait_s, deadline - time.monotonic())
        if wait_s <= 0:
            raise TimeoutError(
                f"Study {study.name!r} is not done after {timeout_s:g} s. It is {progress.status}, "
                f"with {progress.counts.text}. `studydb workers` lists the workers that run it."
            )
        time.sleep(wait_s)
    return checked(database, study, progress)
