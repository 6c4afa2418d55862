"""
Claims of what fits run interleaved with requests that change what trials ask for.

In any schedule there is no deadlock, no trial is claimed twice, no worker gets a trial that it does
not fit, and a study has at most 64 different requests. `STUDYDB_SCHEDULES=200` runs more schedules.
"""

import os
from contextlib import closing
from datetime import UTC, datetime
from random import Random

import pytest
from harness import postgres
from harness.arrange import SimulatedWorker, new_request, new_study, rows
from harness.interleaver import Interleaver

from studydb.db import connect
from studydb.domain.class_queues import ClassQueues
from studydb.domain.resources import Ledger, read_capacity, read_resources
from studydb.operations.claim_fitting import claim_fitting
from studydb.operations.enqueue import enqueue
from studydb.operations.set_resources import set_resources
from studydb.store import resource_classes

START = datetime(2026, 1, 1, tzinfo=UTC)
SCHEDULES = int(os.environ.get("STUDYDB_SCHEDULES", "3"))

FITS = ("", "gpus=1", "cpus=1")


@pytest.fixture(scope="module")
def stage(postgres_server, postgres_template):
    with (
        postgres.temporary_database(postgres_server, template=postgres_template) as url,
        closing(connect(url)) as database,
        closing(Interleaver(url, connections=4)) as interleaver,
    ):
        yield database, interleaver


class Plan:
    """The calls of one schedule: three trials wait, and the study has 63 requests."""

    def __init__(self, database):
        database.clock = lambda: START
        self.study = new_study(database, searcher=None, num_trials=20)
        self.worker = SimulatedWorker(database, self.study)
        self.token = self.worker.claimant()
        for asked in ("gpus=1", "cpus=1", None):
            self._enqueue(database, asked)
        with database.begin() as txn:
            for number in range(60):
                asked = read_resources("r", {"licence": number + 1})
                resource_classes.add(txn, study_id=self.study.id, asked=asked)
        self.n_new = 0

    def _enqueue(self, database, asked):
        request = None if asked is None else read_resources("r", asked)
        return enqueue(database, self.study, {}, new_request(), resources=request)

    def _claim(self, database, claimant):
        queues = ClassQueues(Ledger(read_capacity(cpus=1, gpus=1)))
        claimed = claim_fitting(database, self.study, claimant, queues)
        return claimed and (claimed.lease.number, claimed.resource_class)

    def claim(self, database):
        return self._claim(database, self.worker.claimant())

    def send(self, database):
        return self._claim(database, self.token)

    def enlarge(self, database):
        asked = read_resources("r", "gpus=1, cpus=9")
        return set_resources(database, self.study, asked, [0, 1], new_request())

    def add(self, database):
        self.n_new += 1
        return self._enqueue(database, {"tape": self.n_new})


PLANS = [
    ("claim", "claim"),
    ("claim", "claim", "claim"),
    ("send", "send"),
    ("send", "send", "claim"),
    ("claim", "enlarge"),
    ("claim", "claim", "enlarge"),
    ("add", "add"),
    ("add", "add", "claim"),
    ("add", "enlarge", "claim"),
]


@pytest.mark.parametrize("names", PLANS, ids=" ".join)
def test_trials_run_once_and_where_they_fit(stage, names):
    database, interleaver = stage
    for seed in range(SCHEDULES):
        plan = Plan(database)

        result = interleaver.run(
            [getattr(plan, name) for name in names], Random(f"{names} {seed}"), clock=lambda: START
        )

        message = f"seed {seed}: {result}"
        assert result.faults == [], message
        assert broken_promises(database, plan, names, result.answers) == [], message


def broken_promises(database, plan, names, answers):
    study = plan.study.id
    running = rows(
        database,
        f"SELECT number, resource_class FROM trial WHERE study_id = {study} AND state = 'RUNNING'",
    )
    ((n_classes,),) = rows(
        database, f"SELECT count(*) FROM resource_class WHERE study_id = {study}"
    )
    claims = {
        (answer if name == "send" else (place, answer))
        for place, (name, answer) in enumerate(zip(names, answers, strict=True))
        if name in ("claim", "send") and answer is not None
    }
    promises = {
        "each claim has a trial of its own": len(running) == len(claims),
        "what runs fits": {asked for _, asked in running} <= set(FITS),
        "no trial that fits is left out": len(claims) >= min(1, names.count("claim")),
        "at most 64 requests": n_classes <= resource_classes.MOST,
    }
    return [promise for promise, is_kept in promises.items() if not is_kept]
