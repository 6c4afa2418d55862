"""ASHA's decisions on reports of several processes equal those of an independent reference."""

import multiprocessing

import pytest
from harness.arrange import live_results, new_study, rows
from harness.asha_reference import decisions
from harness.curve_reader import DIVERGES_AT, read_curves, report_curves

from studydb.db import connect
from studydb.db.decision_schema import rung, rung_entry
from studydb.db.schema import trial
from studydb.domain.life.states import Reason
from studydb.operations.reads import list_trials
from studydb.schedulers import ASHA

PROCESSES = 4

SCHEDULER = ASHA(max_t=27, grace_period=1, reduction_factor=3)


@pytest.fixture
def trained(storage_url):
    """A database and its study, after 4 processes reported curves until ASHA ended each trial."""
    database = connect(storage_url)
    study = new_study(database, scheduler=SCHEDULER, num_trials=len(read_curves()))
    context = multiprocessing.get_context("spawn")
    given = (storage_url, study.name, context.Barrier(PROCESSES))
    processes = [context.Process(target=report_curves, args=given) for _ in range(PROCESSES)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
        if process.is_alive():
            process.kill()
            process.join()
    assert [process.exitcode for process in processes] == [0] * PROCESSES
    yield database, study
    database.close()


def entries_of(database, step):
    """Read the entries of a rung, with the numbers of their trials, in the order of arrival."""
    query = (
        rung_entry.select()
        .add_columns(trial.c.number)
        .join(rung, rung.c.id == rung_entry.c.rung_id)
        .join(trial, trial.c.id == rung_entry.c.trial_id)
        .where(rung.c.step == step)
        .order_by(rung_entry.c.ordinal)
    )
    with database.begin(write=False) as txn:
        return txn.all(query)


@pytest.mark.slow
@pytest.mark.row("A1", "E2")
def test_decisions_equal_those_of_a_reference_that_gets_the_reports_in_order_of_arrival(trained):
    database, study = trained
    curves = read_curves()
    stopped = {}

    assert len(rows(database, "SELECT DISTINCT worker_id FROM attempt")) > 1
    for step in (1, 3, 9):
        entries = entries_of(database, step)
        expected = decisions([entry.value for entry in entries], "min", 3)

        assert [entry.ordinal for entry in entries] == list(range(len(entries)))
        assert [str(entry.value) for entry in entries] == [
            str(curves[entry.number][step - 1]) for entry in entries
        ]
        assert [entry.action == "STOP" for entry in entries] == [stop for stop, _ in expected]
        assert [entry.cutoff for entry in entries] == [
            None if cutoff is None else -cutoff for _, cutoff in expected
        ]
        stopped |= {entry.number: step for entry in entries if entry.action == "STOP"}

    for row in list_trials(database, study):
        last = stopped.get(row.number, 27)
        ran = [result.step for result in live_results(database, study, row.number)]
        assert ran == list(range(1, last + 1))
        assert row.reason is (Reason.COMPLETED if last == 27 else Reason.EARLY_STOPPED)
    assert {stopped[number] for number in range(7, len(curves), 10)} <= {1, DIVERGES_AT}
