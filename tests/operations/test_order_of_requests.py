"""
The last request to pause, resume or stop wins, both for a trial and for its study.

Requests are made in all pairs and in some longer sequences. The attempt receives them at a flush,
at a renewal or not at all, and ends before, between or after them. The class `Expected` says which
states the rows must have.
"""

import itertools
from random import Random

import pytest
from harness.arrange import SimulatedWorker, new_request, new_study, trial_of

from studydb.domain.errors import NotAllowed
from studydb.domain.life.states import FINAL, Reason, State, Status
from studydb.operations import control
from studydb.operations.study_progress import read_progress

OF_TRIAL = {"pause": control.pause, "resume": control.resume, "stop": control.stop}
OF_STUDY = {"pause": Status.PAUSED, "resume": Status.RUNNING, "stop": Status.STOPPED}
REQUESTS = [(whose, what) for whose in ("trial", "study") for what in OF_TRIAL]

RECEIVE = {
    "nothing": lambda _: None,
    "flush": lambda run: run.report(0.5),
    "renewal": lambda run: run.worker.renew(run),
}


class Expected:
    """The states that a study and its trial must have after requests; both are RUNNING at first."""

    def __init__(self):
        self.state, self.paused_by = State.RUNNING, None
        self.request, self.status = "resume", Status.RUNNING

    def ask(self, whose, what):
        if whose == "study":
            self.status = OF_STUDY[what]
            if what == "resume" and self.paused_by == "study":
                self._become(State.PENDING)
        elif self.state in FINAL:
            return NotAllowed
        elif self.state is State.RUNNING:
            self.request = what
        elif what == "pause":
            self._become(State.PAUSED, "person")
        elif what == "stop":
            self._become(State.TERMINATED)
        else:
            self._become(State.PENDING)
        return None

    def end(self):
        if self.request == "stop" or self.status is Status.STOPPED:
            self._become(State.TERMINATED)
        elif self.request == "pause":
            self._become(State.PAUSED, "person")
        elif self.status is Status.PAUSED:
            self._become(State.PAUSED, "study")
        else:
            self._become(State.PENDING)

    def _become(self, state, paused_by=None):
        self.state, self.paused_by = state, paused_by


def play(database, requests, received, ends_after):
    """Make requests; after `ends_after` of them, release the attempt. Compare with `Expected`."""
    study = new_study(database, num_trials=1)
    run, expected = SimulatedWorker(database, study).take(), Expected()
    for place, request in enumerate([*requests, None]):
        if place == ends_after:
            run.finish(outcome=Reason.PREEMPTED)
            expected.end()
        if request is not None:
            assert make(database, study, *request) == expected.ask(*request)
            if place < ends_after:
                RECEIVE[received[place]](run)
    trial = trial_of(database, study, 0)
    assert (trial.state, trial.paused_by) == (expected.state, expected.paused_by)
    assert trial.reason is (Reason.CANCELLED if expected.state in FINAL else None)
    status = expected.status
    if status is Status.RUNNING and expected.state is not State.PENDING:
        status = Status.FINISHED
    assert read_progress(database, study).status is status


def make(database, study, whose, what):
    if whose == "study":
        control.set_status(database, study, OF_STUDY[what], new_request())
        return None
    try:
        OF_TRIAL[what](database, study, [0], new_request())
    except NotAllowed:
        return NotAllowed
    return None


@pytest.mark.slow
@pytest.mark.sampled(6)
@pytest.mark.parametrize("first", REQUESTS, ids=" ".join)
def test_last_of_two_requests_wins_before_and_after_the_attempt_receives_them(
    database, subtests, first
):
    for second, ends_after in itertools.product(REQUESTS, range(3)):
        for received in itertools.product(RECEIVE, repeat=min(ends_after, 1)):
            with subtests.test(second=second, ends_after=ends_after, received=received):
                play(database, (first, second), received * 2, ends_after)


def test_the_last_of_many_requests_wins(database, subtests):
    for seed in range(20):
        rng = Random(seed)
        requests = rng.choices(REQUESTS, k=rng.randint(3, 6))
        received = rng.choices(list(RECEIVE), k=len(requests))
        with subtests.test(seed=seed):
            play(database, requests, received, rng.randint(2, len(requests)))


@pytest.mark.parametrize("received", RECEIVE)
@pytest.mark.parametrize("last", ["pause", "resume", "stop"])
def test_requests_do_not_change_the_reason_of_a_completion(database, study, run, last, received):
    make(database, study, "trial", "pause")
    RECEIVE[received](run)

    make(database, study, "trial", last)
    run.finish(0.4)

    assert run.trial().reason is Reason.COMPLETED
