"""
A person's request to a trial in some state, together with an operation of a worker.

A cell is a request, a state and an operation of `harness.matrix_cells`. On PostgreSQL the request
and the operation run at the same moment, statement by statement; on SQLite, which has one writer,
they run one after the other, in both orders. Answers and rows are those of the model, no call ends
in a deadlock, and the trial obeys the person's last request from the next renewal on. On each
database, a sixth of the pairs of a request and a state run, each with one operation.
`STUDYDB_EVERY_CASE=1` runs all pairs; over all states, each request then meets each operation.
`STUDYDB_NIGHTLY=1` runs all cells.
"""

import os
from functools import partial
from itertools import permutations
from random import Random

import pytest
from harness.actions import outcome_of
from harness.arrange import rows
from harness.expected_rows import expected_rows
from harness.matrix_cells import ACTORS, REQUESTS, STATES, prepared
from harness.row_invariants import broken_promises, ended_rows
from harness.serial_orders import explaining_order, unordered
from harness.snapshot import take_snapshot

from studydb.domain.life.decisions import Action, DecidedBy
from studydb.domain.life.states import FINAL, State
from studydb.domain.records import DRAIN
from studydb.operations.reads import existing_trial
from studydb.operations.renew import renew

ASKED = {"set resources": "gpus=1", "set resources beyond all": "gpus=3"}

ALL = os.environ.get("STUDYDB_NIGHTLY") == "1"
SHARE = len(ACTORS)


def actors_beside(request, state):
    """Yield the names and the makers of the operations that run with a request in this state."""
    first = list(REQUESTS).index(request) + STATES.index(state)
    for place, (name, make) in enumerate(ACTORS.items(), first):
        if ALL or place % SHARE == 0:
            yield name, make


@pytest.mark.sampled(6)
@pytest.mark.parametrize("state", STATES, ids=lambda state: state.__name__)
@pytest.mark.parametrize("request_", REQUESTS)
def test_request_during_an_operation_has_the_effect_of_a_serial_order(stage, request_, state):
    database, interleaver = stage
    for actor, make in actors_beside(request_, state):
        rng = Random(f"{request_} {state.__name__} {actor}")
        subject = prepared(database, rng, request_, state)
        actions = [REQUESTS[request_](subject), make(subject)]
        ended = ended_rows(database, subject.walk.study)

        result = interleaver.run([each.act for each in actions], rng, clock=subject.walk.clock)

        message = f"beside {actor}: {result}"
        assert result.faults == [], message
        assert broken_promises(database, subject.walk.study) == {}, message
        assert ended.items() <= ended_rows(database, subject.walk.study).items(), message
        shown = take_snapshot(database, subject.walk.study)
        order = explaining_order(subject.walk.model, actions, result.answers, shown)
        assert order is not None, message
        if not isinstance(result.answers[0], type):  # the request was not refused
            check_that_the_request_is_obeyed(database, subject, request_, message)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("state", STATES, ids=lambda state: state.__name__)
@pytest.mark.parametrize("request_", REQUESTS)
def test_request_before_and_after_an_operation_does_what_the_model_does(
    sqlite_database, request_, state
):
    for actor, make in actors_beside(request_, state):
        for order in permutations([REQUESTS[request_], make]):
            rng = Random(f"{request_} {state.__name__} {actor}")
            subject = prepared(sqlite_database, rng, request_, state)
            answers = do_in_turn(sqlite_database, subject, order)
            answer = answers[order.index(REQUESTS[request_])]
            if not isinstance(answer, type):
                check_that_the_request_is_obeyed(sqlite_database, subject, request_, actor)


def do_in_turn(database, subject, order):
    model, study = subject.walk.model, subject.walk.study
    ended = ended_rows(database, study)
    actions = [make(subject) for make in order]

    answers = [outcome_of(partial(action.act, database)) for action in actions]

    assert answers == [outcome_of(partial(action.expect, model)) for action in actions]
    assert unordered(take_snapshot(database, study)) == unordered(expected_rows(model))
    assert broken_promises(database, study) == {}
    assert ended.items() <= ended_rows(database, study).items()
    return answers


def check_that_the_request_is_obeyed(database, subject, request, message):
    """
    Check that the trial obeys, or that a renewal tells its attempt to obey.

    A drain is a request for the worker: a renewal must tell the worker.
    """
    with database.begin(write=False) as txn:
        trial = existing_trial(txn, subject.walk.study, subject.number)
    if request in ("stop", "invalidate"):
        assert trial.state in {*FINAL, State.RUNNING}, message
    if request == "pause":
        assert trial.state in {*FINAL, State.RUNNING, State.PAUSED}, message
    if request.startswith("resume") and request != "resume the study":
        assert trial.paused_by != DecidedBy.PERSON, message
    if request in ASKED:
        asks = rows(database, f"SELECT resource_class FROM trial WHERE id = {trial.id}")
        assert asks == [(ASKED[request],)], message
    if request == "drain":
        worker_id = subject.attempt.worker.id
        answer = renew(database, subject.walk.study, worker_id=worker_id, held=[])
        assert answer.request == DRAIN, message
    if trial.state is State.RUNNING:
        check_the_verdict(database, subject, request, trial, message)


def check_the_verdict(database, subject, request, trial, message):
    holder = max(
        (each for each in subject.factory.attempts if each.lease.number == trial.number),
        key=lambda each: each.lease.attempt,
    )
    assert holder.lease.attempt == trial.attempt, message
    held = renew(database, subject.walk.study, worker_id=holder.worker.id, held=[holder.lease]).held
    verdict = held.get(holder.lease.token)
    if verdict is not None and verdict.refuses_results:
        return  # the decision of the scheduler or of a rule stands
    wanted = {
        "stop": Action.STOP,
        "invalidate": Action.STOP,
        "pause": Action.PAUSE,
        "resume": None,
        "resume changed": None,
    }
    if request in wanted:
        assert (verdict and verdict.action) == wanted[request], message
