"""
Workers claim trials that fit them, interleaved with changes of what trials ask for.

Some calls reserve a worker for a trial. In any schedule there is no deadlock, no trial is claimed
twice, and each claimed trial fits its worker. At most one worker is reserved for a trial, and a
study has at most 64 resource classes. `STUDYDB_SCHEDULES=200` runs more schedules.
"""

import os
from datetime import UTC, datetime
from random import Random

import pytest
from fleet.trainables.scheduling import Growing
from harness.arrange import SimulatedWorker, new_request, new_study, rows
from harness.asked_scheduler import asked, sent
from harness.settings_requests import set_resources

from studydb.domain.class_queues import ClassQueues
from studydb.domain.resources import Ledger, read_capacity, read_resources
from studydb.operations.claim_fitting import claim_fitting
from studydb.operations.enqueue import enqueue
from studydb.operations.report import report
from studydb.operations.reservations import reserve
from studydb.store import resource_classes

ONE_CPU = read_resources("r", "cpus=1")
START = datetime(2026, 1, 1, tzinfo=UTC)
SCHEDULES = int(os.environ.get("STUDYDB_SCHEDULES", "3"))

FITS = {
    "claim": {"", "gpus=1", "cpus=1"},
    "send": {"", "gpus=1", "cpus=1"},
    "claim_cpus": {"", "cpus=1"},
}
"""For each call that claims: the resource classes whose trials fit the call's worker."""


class Plan:
    """
    A study, and the calls of one schedule.

    Three trials are PENDING, one runs, and the study has 63 resource classes. When the scheduler
    pauses the running trial, the scheduler changes what this trial asks for.
    """

    def __init__(self, database):
        database.clock = lambda: START
        scheduler = asked(Growing(type="promotion"))
        self.study = new_study(database, searcher=None, num_trials=20, scheduler=scheduler)
        self.worker, self.other = (SimulatedWorker(database, self.study) for _ in range(2))
        self.claimant = self.worker.claimant()
        self._enqueue(database, None)
        self.running = self.worker.take()
        for wanted in ("gpus=1", "cpus=1", None):
            self._enqueue(database, wanted)
        with database.begin() as txn:
            for number in range(60):
                licences = read_resources("r", {"licence": number + 1})
                resource_classes.add(txn, study_id=self.study.id, asked=licences)
        self.n_new = 0

    def _enqueue(self, database, wanted):
        request = None if wanted is None else read_resources("r", wanted)
        return enqueue(database, self.study, {}, new_request(), resources=request)

    def _claim(self, database, claimant, gpus=1):
        queues = ClassQueues(Ledger(read_capacity(cpus=1, gpus=gpus)))
        claimed = claim_fitting(database, self.study, claimant, queues)
        return claimed and (claimed.lease.number, claimed.resource_class)

    def claim(self, database):
        return self._claim(database, self.worker.claimant())

    def send(self, database):
        """Claim with the same token every time, so that a second call is a duplicate request."""
        return self._claim(database, self.claimant)

    def claim_cpus(self, database):
        return self._claim(database, self.other.claimant(), gpus=0)

    def enlarge(self, database):
        more = read_resources("r", "gpus=1, cpus=9")
        return set_resources(database, self.study, more, [1, 2], new_request())

    def change_the_study(self, database):
        return set_resources(database, self.study, ONE_CPU, [], new_request())

    def pause(self, database):
        batch = self.running.batch(0.9)
        return sent(
            self.study,
            lambda whole: report(database, self.study, lease=self.running.lease, batch=whole),
            batch,
        )

    def reserve(self, database):
        return reserve(database, self.study, worker_id=self.worker.id, number=1)

    def reserve_other(self, database):
        return reserve(database, self.study, worker_id=self.other.id, number=1)

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
    ("claim", "claim_cpus", "claim_cpus"),
    ("claim_cpus", "change_the_study", "claim"),
    ("claim", "pause", "enlarge"),
    ("add", "add", "pause"),
    ("change_the_study", "pause"),
    ("reserve", "reserve_other"),
    ("reserve", "reserve_other", "claim", "pause"),
]


@pytest.mark.sampled(6)
@pytest.mark.parametrize("names", PLANS, ids=" ".join)
def test_each_trial_is_claimed_once_and_by_a_worker_that_it_fits(stage, names):
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
    trials = rows(
        database,
        f"SELECT number, state, resource_class FROM trial WHERE study_id = {study} ORDER BY number",
    )
    running = [number for number, state, _ in trials if state == "RUNNING" and number != 0]
    ((n_classes,),) = rows(
        database, f"SELECT count(*) FROM resource_class WHERE study_id = {study}"
    )
    claims = {
        (answer if name == "send" else (place, answer))
        for place, (name, answer) in enumerate(zip(names, answers, strict=True))
        if name in FITS and answer is not None
    }
    named = list(zip(names, answers, strict=True))
    reserved = rows(
        database, f"SELECT count(*) FROM worker WHERE study_id = {study} AND reserved_for = 1"
    )
    promises = {
        "no two claims get the same trial": len(running) == len(claims),
        "what is claimed fits": all(
            answer is None or answer[1] in FITS[name] for name, answer in named if name in FITS
        ),
        "at least one claim gets a trial": len(claims) >= min(1, names.count("claim")),
        "one worker is reserved for a trial": reserved[0][0] == ("reserve" in names),
        "one reservation is answered True": (
            [answer for name, answer in named if "reserve" in name].count(True)
            == ("reserve" in names)
        ),
        "a paused trial asks for what the scheduler says": (
            trials[0][2] == ("cpus=1" if "pause" in names else "")
        ),
        "at most 64 resource classes": n_classes <= resource_classes.MOST,
    }
    return [promise for promise, is_kept in promises.items() if not is_kept]
