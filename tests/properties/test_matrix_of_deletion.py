"""
The deletion of a study, together with a request or an operation of a worker (`OTHERS`).

A cell is an entry of `OTHERS`, and a state of a trial of the study (`harness.matrix_cells`). On
PostgreSQL the deletion and the other call run at the same moment, statement by statement; on
SQLite they run one after the other, in both orders. If trials run, the deletion is refused; it
succeeds once they have ended. In the end no row of the study is left in any table, and the study's
attempts can store nothing more. A third of the states run, each with an eighth of `OTHERS`;
`STUDYDB_EVERY_CASE=1` runs all states, each with an eighth of `OTHERS`; `STUDYDB_NIGHTLY=1` runs
all cells.
"""

import os
from functools import partial
from itertools import permutations
from random import Random
from uuid import uuid4

import pytest
from harness.actions import outcome_of
from harness.arrange import delete_all_rows, dump, new_request, process, rows, token
from harness.matrix_cells import ACTORS, REQUESTS, STATES, prepared
from harness.row_invariants import broken_promises
from harness.settings_requests import relocate, revise

from studydb.domain.errors import (
    BudgetSpent,
    LeaseLost,
    NotAllowed,
    NotFound,
    UnknownStudy,
)
from studydb.domain.life.states import Reason
from studydb.domain.roles import Role
from studydb.domain.trainable import Trainable, TrainableKind
from studydb.operations import annotate
from studydb.operations.delete import delete
from studydb.operations.quota import recount
from studydb.operations.register import register
from studydb.operations.rename import rename
from studydb.operations.reservations import reserve
from studydb.operations.writing import write

REFUSALS = (BudgetSpent, LeaseLost, NotAllowed, NotFound)
GONE = (LeaseLost, UnknownStudy)
"""The errors that the calls of an attempt of a deleted study raise."""


def of_study(operation, *arguments, **options):
    """Return a function that makes the call of a request about the study as a whole."""

    def make(subject):
        return lambda database: operation(
            database, subject.walk.study, *arguments, new_request(), **options
        )

    return make


def tag(subject):
    numbers = [subject.number]
    return lambda database: annotate.tag(
        database, subject.walk.study, numbers, new_request(), add=["good"]
    )


def note(subject):
    given = {"text": "seen", "number": subject.number}
    return lambda database: annotate.note(database, subject.walk.study, new_request(), **given)


def worker_starts(subject):
    given = {"uuid": token(), "process": process(77), "slots": 1, "lease_s": 9.0, "version": "0"}
    return lambda database: register(database, subject.walk.study, **given)


def code(subject):
    made = Trainable(
        str(uuid4()),
        TrainableKind.IMPORT,
        "other:train",
        "/nowhere",
        "3.11",
        signatures={"key": "mac"},
    )
    return lambda database: revise(database, subject.walk.study, made, new_request())


def reserve_a_worker(subject):
    study, worker = subject.walk.study, subject.walk.workers[0]
    return lambda database: reserve(database, study, worker_id=worker.id, number=subject.number)


def acting(make):
    return lambda subject: make(subject).act


OTHERS = {
    **{name: acting(make) for name, make in (REQUESTS | ACTORS).items()},
    "tag": tag,
    "note": note,
    "note on the study": of_study(annotate.note, text="seen"),
    "rename": of_study(rename, "another name"),
    "relocate": of_study(relocate, "/elsewhere"),
    "replace the code": code,
    "register a worker": worker_starts,
    "reserve with resources": reserve_a_worker,
    "recount": lambda subject: partial(recount, study=subject.walk.study),
    "delete": lambda subject: partial(delete, study=subject.walk.study),
}

ALL = os.environ.get("STUDYDB_NIGHTLY") == "1"
SHARE = 8


def others_beside(state):
    """Yield the names and the makers of the calls that run with a deletion in this state."""
    for place, (name, make) in enumerate(OTHERS.items(), STATES.index(state)):
        if ALL or place % SHARE == 0:
            yield name, make


def asked_by_a_person(call):
    """A call as `studydb.Study` makes it: a write to a deleted study raises UnknownStudy."""
    return lambda database: write(database, lambda: call(database), role=Role.OWNER)


def cell(database, name, make, state):
    rng = Random(f"delete {state.__name__} {name}")
    delete_all_rows(database)  # an earlier cell that failed leaves rows
    subject = prepared(database, rng, name, state)
    deletion = partial(delete, study=subject.walk.study)
    return subject, [asked_by_a_person(deletion), asked_by_a_person(make(subject))], rng


def end_attempts(database, subject):
    """End the attempts of a study that was not deleted, as their workers would."""
    for attempt in subject.factory.attempts:
        finish = subject.factory.finish(attempt, [], Reason.PREEMPTED)
        outcome_of(partial(finish.act, database))


def check_deleted(database, subject, answer, message):
    """
    Check that no row of the study is left, and that late writes of its attempts fail.

    If the deletion was refused, first end the attempts and delete the study.
    """
    study = subject.walk.study
    assert answer in (None, NotAllowed, UnknownStudy), message
    if answer is NotAllowed:
        assert broken_promises(database, study) == {}, message
        end_attempts(database, subject)
        delete(database, study)

    left = {table: found for table, found in dump(database).items() if found}
    assert left == {}, message
    assert rows(database, "SELECT draw FROM proposal") == [], message
    for attempt in subject.factory.attempts:
        factory = subject.factory
        for late in (
            factory.report(attempt, [0.4]),
            factory.save(attempt),
            factory.record_event(attempt),
            factory.finish(attempt, [0.3], Reason.COMPLETED),
        ):
            assert outcome_of(partial(late.act, database)) in GONE, f"{late.name} {message}"
    assert not any(dump(database).values()), message


@pytest.mark.sampled(3)
@pytest.mark.parametrize("state", STATES, ids=lambda state: state.__name__)
def test_deletion_during_an_operation_leaves_no_row(stage, state):
    database, interleaver = stage
    for name, make in others_beside(state):
        subject, calls, rng = cell(database, name, make, state)

        result = interleaver.run(calls, rng, clock=subject.walk.clock)

        message = f"beside {name}: {result}"
        assert result.faults == [], message
        assert_is_an_answer(result.answers[1], message)
        check_deleted(database, subject, result.answers[0], message)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("state", STATES, ids=lambda state: state.__name__)
def test_deletion_before_and_after_an_operation_leaves_no_row(sqlite_database, state):
    for name, make in others_beside(state):
        for order in permutations([0, 1]):
            subject, calls, _ = cell(sqlite_database, name, make, state)
            answers = {place: outcome_of(partial(calls[place], sqlite_database)) for place in order}

            assert_is_an_answer(answers[1], f"{order} {name}")
            check_deleted(sqlite_database, subject, answers[0], f"{order} {name}")


def assert_is_an_answer(answer, message):
    assert not isinstance(answer, type) or issubclass(answer, REFUSALS), message
