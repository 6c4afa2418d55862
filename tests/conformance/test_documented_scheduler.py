"""The scheduler of docs/schedulers.md does what the page says."""

import pytest
from harness.contract_executor import ContractExecutor
from harness.documented_code import names_defined_in
from harness.row_invariants import broken_promises
from harness.scheduled_study import ScheduledStudy

from studydb.domain.life.decisions import RungKey
from studydb.domain.life.states import Reason
from studydb.operations.reads import list_trials

Heats = names_defined_in("schedulers.md")["Heats"]


def value(number, step):
    return (number * 37 + step) % 101


def test_best_trials_of_each_heat_train_on(database, registered):
    running = ScheduledStudy(
        database, registered(Heats(max_t=5)), num_trials=10, curve=value, skips=False
    )

    running.run()

    ended = {one.number: one.reason for one in list_trials(database, running.study)}
    heat = [min(range(first, first + 4), key=lambda n: value(n, 2)) for first in (0, 4)]
    winners = {*heat, min(8, 9, key=lambda n: value(n, 2))}
    assert {n for n, reason in ended.items() if reason is Reason.COMPLETED} == winners
    assert set(ended.values()) == {Reason.COMPLETED, Reason.GIVEN_UP}


@pytest.mark.parametrize("seed", range(2))
def test_documented_scheduler_survives_mishaps(database, registered, seed):
    running = ScheduledStudy(
        database, registered(Heats(max_t=5)), seed=seed, mishaps=0.15, cuts=0.1
    )

    running.run()

    assert broken_promises(database, running.study) == {}
    assert {by for _, by in running.paused()} <= {"person"}


@pytest.mark.parametrize("seed", range(20))
def test_documented_scheduler_closes_the_rung_of_every_full_heat(seed):
    executor = ContractExecutor(Heats(max_t=5), num_trials=21, curve=value, seed=seed)

    executor.run(workers=4, mishaps=0.1)

    assert {RungKey(bracket, 2) for bracket in range(5)} <= executor.closings.keys()


def test_trial_that_begins_from_the_last_step_is_complete_at_its_first_report():
    assert [Heats(max_t=5).next_decision_step(0, step) for step in (5, 9)] == [6, 10]
