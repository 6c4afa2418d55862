"""A worker prints the operation and the time of a slow transaction, at most one line a minute."""

import pytest
from harness.arrange import new_study

from studydb.db import transaction_block
from studydb.operations.recover import recover
from studydb.operations.study_progress import read_progress
from studydb.worker import notices
from studydb.worker.notices import Notices


@pytest.mark.row("A20")
def test_worker_prints_one_line_about_many_slow_transactions(stage):
    stage.create("obedient:one_step", num_trials=3)

    worker = stage.start(constants={"db.transaction_block.SLOW_S": 0.0})

    assert worker.exit_code() == 0
    lines = [line for line in worker.output().splitlines() if "instead of milliseconds" in line]
    assert len(lines) == 1
    assert " s instead of milliseconds: the database or its disk is busy" in lines[0]


def test_slow_transaction_is_reported_with_the_name_of_its_operation(database, monkeypatch):
    study = new_study(database)
    seen = []
    database.on_slow = lambda operation, seconds: seen.append((operation, seconds >= 0))

    read_progress(database, study)
    monkeypatch.setattr(transaction_block, "SLOW_S", 0.0)
    read_progress(database, study)
    recover(database, study)

    assert seen == [("study progress", True), ("recover", True)]


def test_slow_transactions_are_printed_at_most_once_a_minute(monkeypatch):
    now_s, lines = [100.0], []
    monkeypatch.setattr(notices.time, "monotonic", lambda: now_s[0])
    printed = Notices("study", lines.append)

    for _ in range(4):
        printed.slow_transaction("report", 2.34)
        now_s[0] += 30.0

    assert len(lines) == 2
    assert lines[0].startswith("a transaction (report) took 2.3 s instead of milliseconds")
