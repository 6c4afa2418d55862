"""Data frames have the rows of the SQL views, and the same values, bit for bit."""

import json
import math
import tracemalloc
from decimal import Decimal

import pytest
from harness import arrange

from studydb.analysis import frames
from studydb.analysis.columns import Values
from studydb.analysis.frames import results_dataframe, trials_dataframe
from studydb.domain.errors import StudydbError
from studydb.domain.life.states import Mode, Reason, State
from studydb.domain.listed_rows import ListedResult
from studydb.domain.metrics import Result
from studydb.domain.records import Batch
from studydb.domain.space.search_space import Space, choice, loguniform, quniform, randint, uniform
from studydb.operations import control, pages
from studydb.store import view_rows

pytestmark = pytest.mark.each_database


SPACE = Space.read(
    {
        "lr": loguniform(1e-4, 1.0),
        "net": {"width": randint(1, 64), "act": choice(["relu", {"leaky": 0.1}])},
        "state": uniform(0, 1),
        "epochs": 27,
    }
)

TRIAL_COLUMNS = [
    *("study", "number", "state", "reason", "lr", "net/width", "net/act", "param/state"),
    *("value", "best_value", "best_step", "last_step", "attempt", "failures", "losses"),
    *("started_at", "ended_at", "duration_s", "name", "tags"),
    *("changed", "parent", "invalidated_at", "resources"),
]


@pytest.fixture(scope="session")
def pd():
    import pandas  # noqa: PLC0415, ICN001  so that collecting the tests does not import it

    return pandas


@pytest.fixture
def study(database):
    """
    A study with ended and PENDING trials.

    Its values include NaN and ±Inf. One result is not live. Only some results have other metrics
    than the loss.
    """
    study = arrange.new_study(database, space=SPACE, mode=Mode.MAX, num_trials=None, max_failures=3)
    worker = arrange.SimulatedWorker(database, study)
    for value in (0.1, 1 / 3, math.nan, math.inf, -math.inf, -0.0, 5e-324, 1e100):
        worker.take().finish(value)
    rich = worker.take()
    rich.report(0.25, acc=math.inf, text="NaN", deep=[1, {"a": math.nan}])
    rich.report(0.5, math.nan, acc=0.1 + 0.2, value=1, big=2**60)
    rich.finish(outcome=Reason.PREEMPTED)
    again = worker.claim()
    again.send(Batch(1, (Result(3, 0.75, {"acc": -0.5, "flag": True}),), 0))
    again.finish(outcome=Reason.FAILED)
    arrange.enqueued(database, study, lr=0.5)
    arrange.enqueued(database, arrange.new_study(database, num_trials=1))
    return study


def test_trials_frame_equals_v_trial(database, study):
    frame = trials_dataframe(database, study)

    assert list(frame.columns) == TRIAL_COLUMNS
    rows = select(database, view_rows.TRIAL, study)
    assert len(frame) == len(rows) == 10
    for seen, row in zip(frame.to_dict("records"), rows, strict=True):
        params = study.space.flatten(row.pop("params"))
        params["param/state"] = params.pop("state")
        if row["state"] != State.RUNNING:
            assert same(seen["duration_s"], row["duration_s"])
        for name, value in (row | params).items():
            assert name == "duration_s" or same(seen[name], value), (name, seen[name], value)


def test_results_frame_equals_v_result(database, study):
    frame = results_dataframe(database, study)

    assert list(frame.columns) == [
        *("study", "number", "step", "value", "loss", "acc", "big", "deep", "flag", "text"),
        *("metric/value", "attempt", "reported_at"),
    ]
    rows = select(database, view_rows.view("v_result", ListedResult), study)
    assert len(frame) == len(rows) == 11
    for seen, row in zip(frame.to_dict("records"), rows, strict=True):
        metrics = row.pop("metrics")
        assert same(metrics["loss"] or row["value"], row["value"])  # jsonb loses the sign of -0.0
        metrics["metric/value"] = metrics.pop("value", None)
        others = {name: metrics.get(name) for name in ("acc", "big", "deep", "flag", "text")}
        for name, value in (row | others | {"loss": row["value"]}).items():
            assert same(seen[name], value), (name, seen[name], value)


def test_trials_frame_has_the_columns_of_the_csv_and_the_best_values_of_the_view(
    console, database, study
):
    frame = trials_dataframe(database, study)
    listed = console("trials", study.name, "--format", "csv").lines
    queried = console(
        "query",
        f"SELECT number, best_value FROM v_trial WHERE study = '{study.name}' ORDER BY number",
        *("--format", "json"),
    ).json

    assert listed[0].split(",") == list(frame.columns)
    for number, row in enumerate(queried):
        best = row["best_value"]
        assert same(frame.best_value[number], None if best is None else float(best))


def test_columns_of_frames_have_the_narrowest_type_that_keeps_every_value(database, study):
    trials = trials_dataframe(database, study).dtypes
    results = results_dataframe(database, study).dtypes

    assert trials["number"] == results["step"] == "int64"
    assert trials["net/width"] == "int64"
    assert trials["best_step"] == "Int64"
    assert trials["value"] == results["acc"] == "float64"
    assert results["big"] == "Int64"
    assert results["flag"] == "boolean"
    assert results["deep"] == "object"
    assert str(trials["started_at"]) == "datetime64[us, UTC]"


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        ([1, 2], "int64"),
        ([1, None], "Int64"),
        ([1, 0.5], "float64"),
        ([2**53 + 1, 0.5], "object"),
        ([2**60, 0.5], "float64"),
        ([2**70, 1], "float64"),
        ([2**70 + 1, 1], "object"),
        ([True, False], "bool"),
        ([True, None], "boolean"),
        ([True, 1], "object"),
        (["a", 1], "object"),
        ([None, None], "float64"),
        ([], "float64"),
        ([[1, 2], [3, 4]], "object"),
    ],
)
def test_type_of_a_column_follows_its_values(pd, values, dtype):
    column, paged = Values(), Values(n_missing=0)

    if values:
        column.extend(values)
    for value in values:
        paged.extend([value])

    for filled in (column, paged):
        series = pd.Series(filled.finish())
        assert series.dtype == dtype
        assert [None if missing(value) else value for value in series.tolist()] == values


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        ([1e23, 0.5, None], "float64"),
        ([7.234567890123456e20, 1e9], "float64"),
        ([1.1744127458518728e16, 2e17], "float64"),
        ([1e16], "float64"),
        ([0, -3e17], "float64"),
        ([2**60, 3], "int64"),
        ([10**16, 2**60 + 1], "int64"),
        ([10**16 - 1, 1], "int64"),
        ([1e23, 2**70 + 1], "object"),
    ],
)
def test_doubles_that_jsonb_returns_as_integers_make_the_same_column(pd, values, dtype):
    returned = Values()
    returned.extend([jsonb(value) for value in values])
    written = Values()
    written.extend(values)

    for column in (returned, written):
        series = pd.Series(column.finish())
        assert series.dtype == dtype
        if dtype != "object":
            assert all(same(seen, value) for seen, value in zip(series, values, strict=True))


def test_frames_have_doubles_for_large_doubles(database):
    space = Space.read({"net": {"x": loguniform(1.0, 1e22)}, "q": quniform(0, 1e20, 1e17)})
    study = arrange.new_study(database, space=space, num_trials=None)
    worker = arrange.SimulatedWorker(database, study)
    given = [(7.234567890123456e20, 1e17), (2.0, 0.0), (1e16, 1e20)]
    for x, q in given:
        arrange.enqueued(database, study, net={"x": x}, q=q)
        worker.take().report(0.5, 0.25, flops=x, exact=1e17)
    worker.take().finish(0.1)

    trials, results = trials_dataframe(database, study), results_dataframe(database, study)

    assert trials["net/x"].dtype == trials["q"].dtype == "float64"
    assert [*zip(trials["net/x"], trials["q"], strict=True)][:3] == given
    assert results["flops"].dtype == results["exact"].dtype == "float64"
    by_trial = results.groupby("number")["flops"].quantile(0.5)
    assert by_trial.tolist()[:3] == [x for x, _ in given]
    assert math.isnan(results["flops"].iloc[-1])


def test_frames_have_doubles_for_changed_doubles(database):
    space = Space.read({"net": {"x": loguniform(1.0, 1e22)}})
    study = arrange.new_study(database, space=space)
    number = arrange.enqueued(database, study, net={"x": 2.0})
    control.resume(database, study, [number], arrange.new_request(), changes={"net/x": 1e21})

    (changed,) = trials_dataframe(database, study)["changed"]

    assert repr(changed) == "{'net/x': 1e+21}"


def test_column_of_texts_marks_missing_values(pd):
    column = Values(n_missing=1)
    column.extend(["a", None, "NaN"])

    series = pd.Series(column.finish())

    assert pd.api.types.is_string_dtype(series.dropna())
    assert series.isna().tolist() == [True, False, True, False]
    assert series.tolist()[3] == "NaN"


def test_frames_of_a_study_without_trials_have_all_columns(database):
    study = arrange.new_study(database, space=SPACE)

    trials, results = trials_dataframe(database, study), results_dataframe(database, study)

    assert list(trials.columns) == TRIAL_COLUMNS
    assert list(results.columns) == [
        *("study", "number", "step", "value", "loss", "attempt", "reported_at")
    ]
    assert (len(trials), len(results)) == (0, 0)
    assert str(results.dtypes["reported_at"]) == "datetime64[us, UTC]"


def test_frames_read_in_pages_equal_frames_of_one_page(pd, database, study, monkeypatch):
    whole = trials_dataframe(database, study), results_dataframe(database, study)

    monkeypatch.setattr(pages, "TRIALS_PER_PAGE", 3)
    monkeypatch.setattr(pages, "RESULTS_PER_PAGE", 2)
    paged = trials_dataframe(database, study), results_dataframe(database, study)

    for one, other in zip(whole, paged, strict=True):
        shared = one.columns.difference(["duration_s"])  # it grows while a trial is RUNNING
        pd.testing.assert_frame_equal(one[shared], other[shared])


def test_all_pages_belong_to_one_snapshot(database, study, monkeypatch):
    monkeypatch.setattr(pages, "RESULTS_PER_PAGE", 2)
    before = results_dataframe(database, study)

    read = pages.result_pages(database, study)
    seen = [*next(read)]
    arrange.change(database, "UPDATE attempt SET live_through = 0")
    seen += [row for page in read for row in page]

    assert [(row.number, row.step) for row in seen] == list(
        zip(before.number, before.step, strict=True)
    )


def test_error_without_pandas_names_the_pip_command(database, study, monkeypatch):
    monkeypatch.setattr(frames, "find_spec", lambda _: None)

    for frame in (trials_dataframe, results_dataframe):
        with pytest.raises(StudydbError, match=r"Run: pip install 'studydb\[pandas\]'"):
            frame(database, study)


@pytest.mark.nightly
def test_results_dataframe_needs_less_memory_than_three_frames_and_one_page(database, monkeypatch):
    monkeypatch.setattr(pages, "RESULTS_PER_PAGE", 300)
    study = arrange.new_study(database, num_trials=None)
    for _ in range(10):
        worker = arrange.SimulatedWorker(database, study)
        worker.take().report(*range(1_000), acc=0.25, epoch_s=1.5)
    assert len(results_dataframe(database, study)) == 10_000  # imports pandas before the trace

    tracemalloc.start()
    frame = results_dataframe(database, study)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    page_bytes = 300 * 2_000
    assert peak_bytes < 3 * frame.memory_usage().sum() + page_bytes


def select(database, view, study):
    """Return a study's rows of a view, each as a dict by column name."""
    keys = [view.c.number, *([view.c.step] if "step" in view.c else [])]
    with database.begin(write=False) as txn:
        rows = txn.all(view.select().where(view.c.study == study.name).order_by(*keys))
    return [row._asdict() for row in rows]


def jsonb(value):
    """Return a number as PostgreSQL returns it."""
    text = json.dumps(value)
    return int(Decimal(text)) if "e+" in text else json.loads(text)


def missing(value):
    return value is None or repr(value) in {"<NA>", "NaT"} or value != value  # noqa: PLR0124


def same(seen, stored):
    """
    Whether a frame's value equals a stored value; -0.0 is not equal to 0.0.

    A missing value equals NULL and NaN.
    """
    if isinstance(stored, list | dict):
        return repr(seen) == repr(stored)
    if stored is None or (isinstance(stored, float) and math.isnan(stored)):
        return bool(missing(seen))
    if isinstance(stored, float):
        return float(seen) == stored and math.copysign(1, seen) == math.copysign(1, stored)
    return seen == stored
