"""Functions that move trials make only the moves in the table of domain/life/states.py."""

import pytest
from harness.arrange import SimulatedWorker, dump, new_request, new_study, token, trial_in, trial_of

from studydb.domain.errors import LeaseLost, NotAllowed
from studydb.domain.life.ending import Ending
from studydb.domain.life.states import FINAL, MOVES, Reason, State, Status
from studydb.domain.metrics import Summary
from studydb.domain.records import Batch, Lease
from studydb.operations import control
from studydb.operations.finish import finish
from studydb.operations.recover import recover
from studydb.operations.report import report
from studydb.store import leases, trials

BY_PERSON = (State.PENDING, State.PAUSED, State.TERMINATED)
BY_END = tuple(state for state in State if state is not State.RUNNING)
EXPLOIT = (State.RUNNING, State.RUNNING)


def move_by_person(database, trial, target):
    with database.begin() as txn:
        return trials.move(txn, trial_id=trial.id, target=target)


def move_by_end(database, trial, target):
    ending = Ending(
        target,
        Reason.COMPLETED if target in FINAL else None,
        Reason.COMPLETED,
        failures=0,
        losses=0,
        paused_by="person" if target is State.PAUSED else None,
    )
    with database.begin() as txn:
        leases.end(txn, trial_id=trial.id, ending=ending, summary=Summary(), time_total_s=None)


def assert_moves(database, subtests, move, targets, allowed):
    """Try to move a trial from every state to each target; only the allowed moves change rows."""
    for source in State:
        for target in targets:
            study = new_study(database)
            trial = trial_in(database, study, source)
            before = dump(database)

            moved = move(database, trial, target)

            with subtests.test(source=source, target=target):
                is_allowed = (source, target) in allowed
                assert moved in (None, is_allowed)
                if is_allowed:
                    assert trial_of(database, study, trial.number).state is target
                else:
                    assert dump(database) == before


def test_person_makes_all_allowed_moves_except_claims_and_moves_of_running_trials(
    database, subtests
):
    allowed = {move for move in MOVES if move[0] is not State.RUNNING}
    assert_moves(database, subtests, move_by_person, BY_PERSON, allowed)


@pytest.mark.row("B1")
def test_end_of_an_attempt_moves_trials_as_the_table_allows(database, subtests):
    assert_moves(database, subtests, move_by_end, BY_END, MOVES)


def test_only_pending_trials_are_claimed(database, subtests):
    for source in State:
        study = new_study(database)
        trial = trial_in(database, study, source)
        worker = SimulatedWorker(database, study)
        before = dump(database)

        run = worker.claim()

        with subtests.test(source=source):
            if source is State.PENDING:
                assert run.lease.trial_id == trial.id
                assert run.trial().state is State.RUNNING
            else:
                assert run is None
                assert dump(database) == before


def test_every_allowed_move_except_an_exploit_has_a_function_that_makes_it():
    by_person = {(source, target) for source, target in MOVES if target in BY_PERSON}
    by_end = {(source, target) for source, target in MOVES if target in BY_END}

    assert set(trials._MOVES) == set(BY_PERSON)
    assert set(leases._END) == set(BY_END)
    assert by_person | by_end | {(State.PENDING, State.RUNNING), EXPLOIT} == set(MOVES)


@pytest.mark.parametrize("state", sorted(FINAL))
def test_ended_trials_never_change(database, clock, state):
    study = new_study(database, max_failures=0)
    trial = trial_in(database, study, state)
    row = trial_row(database, trial)
    lease = Lease(study.id, trial.id, trial.number, 0, trial.attempt, token())

    for ask_for in (control.pause, control.resume, control.stop):
        with pytest.raises(NotAllowed, match="ended trials do not change"):
            ask_for(database, study, [trial.number], new_request())
    for write in (
        lambda: report(database, study, lease=lease, batch=Batch(9)),
        lambda: finish(database, study, lease=lease, outcome=Reason.FAILED, batch=Batch(9)),
    ):
        with pytest.raises(LeaseLost):
            write()
    for status in (Status.PAUSED, Status.RUNNING, Status.STOPPED):
        control.set_status(database, study, status, new_request())
        clock.advance(1000)
        recover(database, study)

    assert trial_row(database, trial) == row


def trial_row(database, trial):
    return [row for row in dump(database)["trial"] if row[0] == str(trial.id)]
