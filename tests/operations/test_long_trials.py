"""The summary of a trial is exact even if one transaction cannot read all of its results."""

import math
import random
import sys

import pytest
from harness.arrange import (
    SimulatedWorker,
    live_results,
    new_request,
    new_study,
    recover_after_expiry,
    retry_while_busy,
    rows,
    trial_of,
)

from studydb.db.schema import trial
from studydb.domain import tally
from studydb.domain.errors import StorageBusy
from studydb.domain.life.states import Mode, Reason, State
from studydb.domain.metrics import Result, Summary
from studydb.domain.records import Batch
from studydb.operations import summing
from studydb.operations.control import pause, stop

LARGEST = sys.float_info.max
VALUES = [0.1, -0.0, 0, 3, -(2**70), 1e308, -1e308, LARGEST, 5e-324, math.nan, math.inf, -math.inf]
METRICS = [*VALUES, True, None, "NaN", "Infinity", "\\NaN", "text", [1.0, math.nan], 2**53 + 1]


@pytest.fixture(params=[summing.MOST_IN_TRANSACTION, 0], ids=["short", "long"])
def limit(request, monkeypatch):
    """The most results that are read under the trial's lock. A page has at most 7 results."""
    monkeypatch.setattr(summing, "MOST_IN_TRANSACTION", request.param)
    monkeypatch.setattr(summing, "FIRST_PAGE", 3)
    monkeypatch.setattr(summing, "LARGEST_PAGE", 7)
    return request.param


def expected_summary(results, metric="loss"):
    """Compute the summary from all results together, in plain Python."""
    series = {}
    for result in results:
        for name, value in {**result.metrics, metric: result.value}.items():
            if isinstance(value, int | float) and not isinstance(value, bool):
                series.setdefault(name, []).append(float(value))
    return {name: expected_analysis(values) for name, values in series.items()}


def expected_analysis(values):
    numbers = [value for value in values if not math.isnan(value)]
    if not numbers:
        return {"last": values[-1]}
    least, most, average = min(numbers), max(numbers), math.nan
    if math.isfinite(least) and math.isfinite(most):
        try:
            average = math.fsum(numbers) / len(numbers)
        except OverflowError:
            average = math.fsum(number / 2**64 for number in numbers) / len(numbers) * 2**64
    return {"min": least, "max": most, "avg": average, "last": values[-1]}


def stored_summary(database):
    with database.begin(write=False) as txn:
        (row,) = txn.all(trial.select())
    return row.metric_summary


def report_at_random(run, rng, *, first, n):
    step = first
    while step < first + n:
        batch = tuple(
            Result(
                step + offset,
                rng.choice(VALUES) + 0.0,
                {f"m{name}": rng.choice(METRICS) for name in range(rng.randrange(4))},
            )
            for offset in range(rng.randint(1, 5))
        )
        run.send(Batch(run.flush_no + 1, batch, run.after_step, run.summary))
        step = batch[-1].step + 1


def two_attempts(database, rng, *, second_begins=15, **overrides):
    """Run an attempt; begin a second, which supersedes results from step `second_begins` on."""
    study = new_study(database, num_trials=1, max_failures=1, **overrides)
    worker = SimulatedWorker(database, study)
    run = worker.take()
    report_at_random(run, rng, first=1, n=20)
    run.finish(outcome=Reason.PREEMPTED)
    run = worker.take()
    report_at_random(run, rng, first=second_begins, n=10)
    return study, run


@pytest.mark.parametrize("second_begins", [1, 7, 15])
def test_summary_of_a_completed_trial_is_computed_from_its_live_results(
    database, limit, second_begins
):
    rng = random.Random(second_begins)
    study, run = two_attempts(database, rng, second_begins=second_begins)

    run.finish()

    results = live_results(database, study, 0)
    check_summary(stored_summary(database), expected_summary(results))


def check_summary(found, expected):
    """Compare two summaries; NaN equals NaN, and -0.0 equals 0.0."""
    assert found.keys() == expected.keys()
    for name, analysis in expected.items():
        assert {key: repr(value + 0.0) for key, value in found[name].items()} == {
            key: repr(value + 0.0) for key, value in analysis.items()
        }, name


def test_summary_of_a_stopped_trial_is_computed_from_its_live_results(database, limit):
    study, run = two_attempts(database, random.Random(0))
    pause(database, study, [0], new_request())
    run.finish(outcome=Reason.PREEMPTED)
    assert run.trial().state is State.PAUSED

    stop(database, study, [0], new_request())

    check_summary(stored_summary(database), expected_summary(live_results(database, study, 0)))


def test_summary_of_a_lost_trial_is_stored_after_its_recovery(database, clock, limit):
    study, run = two_attempts(database, random.Random(0), max_losses=0)

    assert recover_after_expiry(clock, database, study) == 1

    assert run.trial().state is State.ERROR
    retry_while_busy(lambda: _await_summary(database))
    check_summary(stored_summary(database), expected_summary(live_results(database, study, 0)))


def _await_summary(database):
    if stored_summary(database) is None:
        raise StorageBusy("not yet")


@pytest.mark.parametrize("end", ["finish", "stop"])
def test_resent_finish_or_stop_stores_the_summary_that_was_missing(database, monkeypatch, end):
    monkeypatch.setattr(summing, "MOST_IN_TRANSACTION", 0)
    study, run = two_attempts(database, random.Random(0))
    request = new_request()
    if end == "stop":
        pause(database, study, [0], new_request())
        run.finish(outcome=Reason.PREEMPTED)

    def send():
        if end == "stop":
            stop(database, study, [0], request)
        else:
            run.finish()

    with monkeypatch.context() as patch:
        patch.setattr(summing, "pages", fail)
        with pytest.raises(StorageBusy):
            send()
    assert stored_summary(database) is None
    send()

    check_summary(stored_summary(database), expected_summary(live_results(database, study, 0)))


def fail(*_):
    raise StorageBusy("The server went away.")


def test_no_result_is_read_while_the_trial_is_locked(database, monkeypatch):
    monkeypatch.setattr(summing, "MOST_IN_TRANSACTION", 0)
    _study, run = two_attempts(database, random.Random(0))
    sent = []
    database.observer = sent.append

    run.finish()

    reads = [place for place, sql in enumerate(sent) if "FROM result" in sql and "SELECT" in sql]
    ended = next(place for place, sql in enumerate(sent) if sql == "COMMIT")
    assert reads
    assert min(reads) > ended


def test_attempt_with_a_tally_of_all_results_ends_its_trial_without_reading_them(
    database, study, run, monkeypatch
):
    monkeypatch.setattr(tally, "KEPT_NUMBERS", 10)
    report_at_random(run, random.Random(0), first=1, n=30)
    expected = expected_summary(live_results(database, study, 0))
    sent = []
    database.observer = sent.append

    run.finish()

    assert not [sql for sql in sent if "FROM result" in sql]
    check_summary(stored_summary(database), expected)


@pytest.mark.parametrize("mode", Mode)
@pytest.mark.parametrize("seed", range(3))
def test_summary_after_a_second_attempt_is_computed_from_the_live_results(database, mode, seed):
    rng = random.Random(seed)
    study, _run = two_attempts(database, rng, second_begins=rng.choice([2, 7, 15]), mode=mode)

    found = trial_of(database, study, 0).summary
    assert repr(found) == repr(Summary().add(live_results(database, study, 0), study.objective))


def test_pages_of_results_are_bounded_in_bytes(database, study, run, monkeypatch):
    monkeypatch.setattr(summing, "PAGE_BYTES", 10_000)
    for _ in range(60):
        run.report(0.5, text="x" * 1000)
    sizes = []

    def read(span, limit):
        page = summing.reader(database)(span, limit)
        sizes.append(len(page))
        return page

    with database.begin(write=False) as txn:
        spans = summing.results.spans(txn, study_id=study.id, trial_id=run.lease.trial_id)
    found = [result for page in summing.pages(spans, read) for result in page]

    assert [result.step for result in found] == list(range(1, 61))
    assert max(sizes[1:]) < 20
    assert rows(database, "SELECT count(*) FROM result") == [(60,)]


def test_metric_summary_is_stored_only_when_the_trial_has_ended(database, run):
    run.report(0.5)

    for _ in range(2):
        run.finish(outcome=Reason.PREEMPTED)

    assert run.trial().state is State.PENDING
    assert stored_summary(database) is None


@pytest.mark.parametrize(("mode", "best"), [(Mode.MIN, 0.5), (Mode.MAX, math.inf)])
def test_best_value_after_a_later_attempt_ignores_nan_and_follows_the_mode(database, mode, best):
    worker = SimulatedWorker(database, new_study(database, num_trials=1, mode=mode))
    run = worker.take()
    run.report(math.nan, 0.5, math.inf)
    run.finish(outcome=Reason.PREEMPTED)

    run = worker.take()
    run.report(math.nan, first=4)

    assert run.trial().best_value == best
