"""The moves that a trial may make between its states."""

import pytest

from studydb.db.schema import trial
from studydb.domain.life import states
from studydb.domain.life.states import FINAL, MOVES, State, sources

TARGETS = {
    "PENDING": {"RUNNING", "PAUSED", "TERMINATED"},
    "RUNNING": {"RUNNING", "PENDING", "PAUSED", "TERMINATED", "ERROR"},
    "PAUSED": {"PENDING", "TERMINATED"},
    "TERMINATED": set(),
    "ERROR": set(),
}
"""For each state, the states to which a trial may move from it."""


def test_moves_are_exactly_the_listed_ones_and_the_docstring_of_the_module_names_every_state():
    targets = {source: {to for at, to in MOVES if at is source} for source in State}

    assert targets == TARGETS
    assert all(state in states.__doc__ for state in State)


def test_terminated_and_error_are_the_final_states():
    assert {State.TERMINATED, State.ERROR} == FINAL


@pytest.mark.parametrize("target", State)
def test_sources_are_the_states_with_a_move_to_the_target(target):
    assert sources(target) == {source for source, targets in TARGETS.items() if target in targets}


def test_check_constraint_of_the_trial_table_has_every_state():
    (check,) = (one for one in trial.constraints if one.name == "trial_state_check")

    assert all(f"'{state}'" in str(check.sqltext) for state in State)
