"""
Asks, proposals, enqueues and calls of `leave_draw`, interleaved statement by statement.

`leave_draw` leaves a draw to other workers. A resource function says which resources each trial
asks for.

In any schedule there is no deadlock, no draw has two trials, no draw is lost, no worker gets a
trial that does not fit it, and a study has at most 64 resource classes. `STUDYDB_SCHEDULES=200`
runs more schedules.
"""

import os
from datetime import UTC, datetime
from random import Random

import pytest
from harness.arrange import SimulatedWorker, new_request, new_study, rows

from studydb.domain.deciding import DecisionFailed
from studydb.domain.resource_function import ResourceFunction
from studydb.domain.resources import Resources, read_resources
from studydb.domain.space.search_space import Space, randint
from studydb.operations.ask import ask
from studydb.operations.enqueue import enqueue
from studydb.operations.leave_draw import leave_draw
from studydb.operations.propose import propose_by_index
from studydb.operations.requesting import with_answers
from studydb.store import resource_classes

START = datetime(2026, 1, 1, tzinfo=UTC)
SCHEDULES = int(os.environ.get("STUDYDB_SCHEDULES", "3"))
FITS = ["licence=1"]


class Plan:
    """
    The calls of one schedule.

    The study has 62 resource classes. The trial of a draw asks for 1 or 2 licences.
    """

    def __init__(self, database):
        database.clock = lambda: START
        function = ResourceFunction("needs:f", ask=self._needs)
        space = Space.read({"size": randint(1, 2)})
        self.study = new_study(database, resources=function, space=space, num_trials=6)
        with database.begin() as txn:
            for number in range(61):
                asked = read_resources("r", {"tape": number + 1})
                resource_classes.add(txn, study_id=self.study.id, asked=asked)
        self.worker = SimulatedWorker(database, self.study)
        self.claimant = self.worker.claimant()
        self.n_new = 0

    @staticmethod
    def _needs(config):
        return Resources(custom={"licence": config["size"]})

    def _ask(self, database, claimant, **limits):
        made = ask(database, self.study, claimant, **limits)
        return made and (made.lease.number, made.resource_class)

    def ask(self, database):
        return self._ask(database, self.worker.claimant())

    def fit(self, database):
        return self._ask(database, self.worker.claimant(), fits=FITS, must_fit=True)

    def send(self, database):
        """Ask with the same token every time, so that a second call is a duplicate request."""
        return self._ask(database, self.claimant)

    def leave(self, database):
        return leave_draw(database, self.study, fits=FITS, if_nothing_waits=False)

    def propose(self, database):
        try:
            propose_by_index(database, self.study, draws=range(3))
        except DecisionFailed as error:
            return str(error)
        return None

    def add(self, database):
        self.n_new += 1
        asked, request = read_resources("r", {"gpus": self.n_new}), new_request()
        return enqueue(database, self.study, {}, request, resources=asked)

    def enqueue(self, database):
        request = new_request()
        return with_answers(
            self.study, lambda known: enqueue(database, self.study, {}, request, answers=known)
        )


PLANS = [
    ("ask", "ask"),
    ("ask", "leave"),
    ("leave", "leave"),
    ("leave", "leave", "fit"),
    ("fit", "leave", "ask"),
    ("send", "send", "leave"),
    ("propose", "propose"),
    ("propose", "ask", "leave"),
    ("add", "propose"),
    ("enqueue", "enqueue", "leave"),
    ("enqueue", "propose", "ask"),
]


@pytest.mark.parametrize("names", PLANS, ids=" ".join)
def test_each_draw_has_one_trial_whatever_the_trial_asks_for(stage, names):
    database, interleaver = stage
    for seed in range(SCHEDULES):
        plan = Plan(database)
        if "add" not in names and "propose" not in names:
            plan.propose(database)

        result = interleaver.run(
            [getattr(plan, name) for name in names], Random(f"{names} {seed}"), clock=lambda: START
        )

        message = f"seed {seed}: {result}"
        assert result.faults == [], message
        assert broken_promises(database, plan, names, result.answers) == [], message


def broken_promises(database, plan, names, answers):
    study = plan.study.id
    of_study = f"FROM trial WHERE study_id = {study}"
    made = rows(database, f"SELECT number, draw, state {of_study} ORDER BY number")
    ((next_number, next_draw, n_counted),) = rows(
        database, f"SELECT next_number, next_draw, n_counted FROM study WHERE id = {study}"
    )
    counts = rows(
        database,
        f"SELECT sum(pending), sum(running) FROM counter WHERE study_id = {study}",
    )
    states = [state for _, _, state in made]
    known = {
        name
        for (name,) in rows(database, f"SELECT name FROM resource_class WHERE study_id = {study}")
    }
    used = {name for (name,) in rows(database, f"SELECT DISTINCT resource_class {of_study}")}
    draws = sorted(draw for _, draw, _ in made if draw is not None)
    fitting = [
        answer[1] for name, answer in zip(names, answers, strict=True) if name == "fit" and answer
    ]
    promises = {
        "numbers are consecutive": [row[0] for row in made] == list(range(next_number)),
        "each draw has one trial": draws == list(range(next_draw)),
        "the budget counts each trial": n_counted == len(made),
        "the counters are right": counts == [(states.count("PENDING"), states.count("RUNNING"))],
        "at most 64 resource classes": len(known) <= resource_classes.MOST,
        "each trial's resource class is in the table": used <= known,
        "a worker gets what fits": set(fitting) <= set(FITS),
    }
    return [promise for promise, is_kept in promises.items() if not is_kept]
