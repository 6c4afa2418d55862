"""The database refuses rows with contradictory columns, unknown words or duplicate values."""

import sqlite3

import psycopg
import pytest
from harness.arrange import change, dump, new_study, trial_in

from studydb.db.faults import Duplicate
from studydb.domain.life.states import State

CASES = [
    (State.PENDING, "trial_state_check", "state = 'DONE'"),
    (State.PENDING, "trial_lease_check", "state = 'RUNNING'"),
    (State.PENDING, "trial_lease_check", "token = 'text'"),
    (State.RUNNING, "trial_lease_check", "token = NULL"),
    (State.RUNNING, "trial_verdict_check", "verdict = 'DANCE', verdict_reason = 'CANCELLED'"),
    (State.RUNNING, "trial_verdict_why_check", "verdict = 'STOP'"),
    (State.PENDING, "trial_verdict_runs_check", "verdict = 'STOP', verdict_reason = 'CANCELLED'"),
    (State.PENDING, "trial_paused_check", "state = 'PAUSED'"),
    (State.PENDING, "trial_paused_check", "paused_by = 'person'"),
    (State.PENDING, "trial_ended_check", "state = 'ERROR'"),
    (State.TERMINATED, "trial_ended_check", "ended_at = NULL, reason = NULL"),
    (State.TERMINATED, "trial_why_check", "reason = NULL"),
    (State.TERMINATED, "trial_reason_check", "reason = 'BORED'"),
    (State.RUNNING, "trial_request_check", "request = 'JUMP'"),
    (State.PENDING, "trial_origin_check", "origin = 'UNKNOWN'"),
]


@pytest.mark.row("B1")
def test_trial_with_contradictory_or_unknown_values_is_refused(database, subtests):
    for state, check, values in CASES:
        trial = trial_in(database, new_study(database), state)
        before = dump(database)

        with subtests.test(values):
            with pytest.raises(Exception, match=check) as refusal:
                change(database, f"UPDATE trial SET {values} WHERE id = {trial.id}")

            assert isinstance(refusal.value, psycopg.IntegrityError | sqlite3.IntegrityError)
            assert dump(database) == before


def test_value_outside_an_enumeration_is_refused(database, subtests):
    trial_in(database, new_study(database), State.RUNNING)

    for check, statement in [
        ("study_status_check", "UPDATE study SET status = 'FINISHED'"),
        ("study_mode_check", "UPDATE study SET mode = 'median'"),
        ("attempt_reason_check", "UPDATE attempt SET reason = 'BORED'"),
    ]:
        with subtests.test(statement), pytest.raises(Exception, match=check):
            change(database, statement)


def test_duplicate_of_a_unique_value_is_refused(database, subtests):
    for study in (new_study(database), new_study(database)):
        for _ in range(2):
            trial_in(database, study, State.RUNNING)

    for statement in [
        "INSERT INTO attempt SELECT * FROM attempt",
        "UPDATE trial SET draw = 0",
        "UPDATE trial SET number = 0",
        "UPDATE study SET name = 'same'",
        "UPDATE attempt SET token = 'same'",
    ]:
        with subtests.test(statement), pytest.raises(Duplicate):
            change(database, statement)
