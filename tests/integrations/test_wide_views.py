"""
A study has two wide views: one has a column for each parameter, the other for each metric.

The name of a parameter or metric may be any text.

`studydb views` replaces the views of a renamed study. An upgrade drops all wide views and makes
them again; a downgrade drops them.
"""

import math
import re

import pytest
from harness import arrange

from studydb.analysis.wide import make_wide_views
from studydb.db import migrate, wide_view_sql
from studydb.db.wide_view_sql import FIXED, Kind, view_name
from studydb.domain.errors import NotAllowed
from studydb.domain.life.states import Mode
from studydb.domain.listed_rows import ListedResult, ListedTrial
from studydb.domain.space import search_space
from studydb.domain.space.search_space import Space, choice, loguniform
from studydb.operations.rename import rename

pytestmark = pytest.mark.each_database


NAMES = ["it's", 'so "quoted"', "100%", "ä", "select", "a b", r"back\slash", ":bind", "* x *"]
METRICS = [*NAMES, "/* x */", "val/acc", "new\nline"]


def wide_rows(database, name):
    """Return the rows of a view, each as a dict by column name, in the order of trial numbers."""
    with database.begin(write=False) as txn:
        columns, rows = txn.raw(f"SELECT * FROM {wide_view_sql.quoted(name)} ORDER BY number")
    return [dict(zip(columns, row, strict=True)) for row in rows]


def view_names(database):
    with database.begin(write=False) as txn:
        return [view.name for view in wide_view_sql.found(txn)]


def test_wide_views_begin_and_end_with_the_columns_of_v_trial_and_v_result():
    for kind, row, spread in (
        (Kind.TRIAL, ListedTrial, "params"),
        (Kind.RESULT, ListedResult, "metrics"),
    ):
        before, after = FIXED[kind]

        assert [*before, spread, *after] == list(row._fields)


def test_views_command_makes_both_views_and_prints_queries_for_them(console, database):
    study = arrange.new_study(
        database,
        name="digits",
        mode=Mode.MAX,
        space=Space.read({"lr": loguniform(0.1, 1), "net": {"act": choice(["relu"])}, "k": 3}),
    )
    arrange.SimulatedWorker(database, study).take().finish(0.25, 0.5)

    made = console("views", "digits")
    (trial,) = console("query", "SELECT * FROM v_trial_digits", "--format", "json").json
    steps = console("query", "SELECT * FROM v_result_digits ORDER BY step", "--format", "json").json

    assert made.lines[0] == "Study 'digits': made v_trial_digits and v_result_digits."
    assert "  studydb query 'SELECT * FROM v_result_digits'" in made.lines
    assert [*trial] == [*FIXED[Kind.TRIAL][0], "lr", "net/act", *FIXED[Kind.TRIAL][1]]
    assert (trial["study"], trial["best_value"], trial["net/act"]) == ("digits", 0.5, "relu")
    assert trial["lr"] == arrange.trial_of(database, study, 0).params["lr"]
    assert [*steps[0]] == ["study", "number", "step", "value", "loss", "attempt", "reported_at"]
    assert [row["loss"] for row in steps] == [0.25, 0.5]


def test_wide_views_show_new_rows_immediately_and_new_metrics_when_made_again(database):
    study = arrange.new_study(database, name="digits")
    worker = arrange.SimulatedWorker(database, study)
    worker.take().finish(0.5)
    make_wide_views(database, study)

    worker.take().report(0.25, acc=0.75, note="fine")
    before = wide_rows(database, "v_result_digits")
    make_wide_views(database, study)
    after = wide_rows(database, "v_result_digits")

    assert [row["loss"] for row in before] == [0.5, 0.25]
    assert "acc" not in before[1]
    assert [(row["acc"], row["note"]) for row in after] == [(None, None), (0.75, "fine")]


def test_wide_view_does_not_show_superseded_results(database, clock):
    study = arrange.new_study(database, name="digits")
    first = arrange.SimulatedWorker(database, study).take()
    first.report(0.5, 0.25)
    arrange.recover_after_expiry(clock, database, study)
    clock.advance(600)
    arrange.recover(database, study)
    second = arrange.SimulatedWorker(database, study).take()
    second.report(0.75)
    make_wide_views(database, study)

    rows = wide_rows(database, "v_result_digits")

    assert [(row["attempt"], row["step"], row["loss"]) for row in rows] == [(2, 1, 0.75)]


def test_parameters_and_metrics_of_any_name_become_columns(database):
    tree = {name: {"x y": choice([f"<{name}>"])} for name in NAMES}
    study = arrange.new_study(database, name="odd", space=Space.read(tree), metric="val/loss")
    arrange.SimulatedWorker(database, study).take().report(0.5, **dict.fromkeys(METRICS, 7.0))
    make_wide_views(database, study)

    (trial,) = wide_rows(database, "v_trial_odd")
    (result,) = wide_rows(database, "v_result_odd")

    assert {name: trial[f"{name}/x y"] for name in NAMES} == {name: f"<{name}>" for name in NAMES}
    assert {name: result[name] for name in METRICS} == dict.fromkeys(METRICS, 7.0)
    assert result["val/loss"] == 0.5


def test_values_of_wide_views_are_integers_doubles_or_texts(database):
    texts = ["NaN", r"\NaN", "plain", None, True, 3, [1], {"a": 1}]
    space = {
        "n": search_space.randint(1, 3),
        "log": search_space.lograndint(1, 9),
        "size": choice([16, 32, 2**63 - 1]),
        "wide": choice([1, 2**63]),
        "step": search_space.quniform(0, 4, 2),
        "flag": choice([True, False]),
        "mixed": choice(texts),
        "ratio": choice([1, 0.5]),
        "late": choice([*range(1000), "text"]),
    }
    study = arrange.new_study(database, name="typed", space=Space.read(space), num_trials=None)
    for text in texts:
        given = {"log": 4, "size": 2**63 - 1, "wide": 1, "step": 2, "flag": True}
        arrange.enqueued(database, study, n=2, mixed=text, ratio=1, late="text", **given)
    make_wide_views(database, study)

    rows = wide_rows(database, "v_trial_typed")

    integers = {"n": 2, "log": 4, "size": 2**63 - 1}
    doubles = {"wide": 1.0, "step": 2.0, "ratio": 1.0}
    for row in rows:
        for kind, values in (
            (int, integers),
            (float, doubles),
            (str, {"flag": "true", "late": "text"}),
        ):
            assert {name: row[name] for name in values} == values
            assert {type(row[name]) for name in values} == {kind}
    mixed = [row["mixed"] for row in rows]
    assert mixed[:6] == ["NaN", r"\NaN", "plain", None, "true", "3"]
    assert [text.replace(" ", "") for text in mixed[6:]] == ["[1]", '{"a":1}']


def test_mark_of_a_view_that_an_earlier_studydb_made_without_integer_columns_can_be_read():
    mark = '{"study": 7, "kind": "trial", "columns": [[["n"], "n", true], [["a"], "a", false]]}'

    view = wide_view_sql.read_mark("v_trial_old", wide_view_sql.MARK + mark)

    assert [column.kind for column in view.columns] == ["double", "text"]
    assert wide_view_sql.read_mark("v_trial_old", view.mark) == view


def test_nan_and_infinity_are_the_same_in_the_wide_view_and_in_v_result(database):
    study = arrange.new_study(database, name="wild")
    worker = arrange.SimulatedWorker(database, study)
    for value in (math.nan, math.inf, -math.inf):
        worker.take().report(value, acc=value)
    make_wide_views(database, study)

    rows = wide_rows(database, "v_result_wild")
    stable = arrange.rows(database, "SELECT value FROM v_result ORDER BY number")

    assert [str(row["acc"]) for row in rows] == [str(value) for (value,) in stable]
    assert [str(row["loss"]) for row in rows] == [str(value) for (value,) in stable]


def test_metric_that_becomes_text_is_null_until_the_views_are_made_again(database):
    study = arrange.new_study(database, name="moody")
    run = arrange.SimulatedWorker(database, study).take()
    run.report(0.5, acc=0.5)
    make_wide_views(database, study)
    run.report(0.5, acc="none")
    run.report(0.5, acc={"deep": 1})

    numbers = [row["acc"] for row in wide_rows(database, "v_result_moody")]
    make_wide_views(database, study)
    texts = [row["acc"] for row in wide_rows(database, "v_result_moody")]

    assert sorted(numbers, key=str) == [0.5, None, None]
    assert {"0.5", "none"} <= set(texts)


def test_clashing_column_names_are_made_unique(database):
    long = "x" * 80
    names = ["state", "lr", "LR", f"{long}1", f"{long}2", "é" * 40]
    space = Space.read({name: choice([name]) for name in names})
    study = arrange.new_study(database, name="same", space=space)
    arrange.enqueued(database, study)
    ((view, _), _) = make_wide_views(database, study)

    (row,) = wide_rows(database, "v_trial_same")

    columns = {column.keys[0]: column.name for column in view.columns}
    assert {name: row[columns[name]] for name in names} == {name: name for name in names}
    assert (columns["state"], columns["lr"]) == ("param/state", "lr")
    assert len({name.lower() for name in columns.values()}) == len(names)
    assert max(len(name.encode()) for name in columns.values()) <= 63


@pytest.mark.parametrize(
    ("name", "view"),
    [
        ("digits", "v_trial_digits"),
        ("Digits 2", "v_trial_digits_2__7"),
        ("digits_2", "v_trial_digits_2"),
        ("digits_2__7", "v_trial_digits_2_7__7"),
        ("été", "v_trial_t__7"),
        ("日本", "v_trial___7"),
        ("'; DROP TABLE trial; --", "v_trial_drop_table_trial__7"),
        ("y" * 55, f"v_trial_{'y' * 55}"),
        ("y" * 56, f"v_trial_{'y' * 52}__7"),
    ],
)
def test_view_name_has_only_lower_case_letters_digits_and_underscores(name, view):
    found = view_name(Kind.TRIAL, name, 7)

    assert found == view
    assert re.fullmatch(r"[a-z0-9_]{1,63}", found)


def test_studies_with_similar_names_have_different_views(database):
    studies = [arrange.new_study(database, name=name) for name in ("a b", "a-b", "a_b", "A B")]
    for study in studies:
        arrange.enqueued(database, study)
        make_wide_views(database, study)

    shown = [wide_rows(database, view_name(Kind.TRIAL, one.name, one.id)) for one in studies]

    assert [[row["study"] for row in rows] for rows in shown] == [[one.name] for one in studies]


def test_view_that_studydb_did_not_make_is_not_replaced(database):
    study = arrange.new_study(database, name="digits")
    arrange.change(database, "CREATE VIEW v_trial_digits AS SELECT 1 AS mine")

    with pytest.raises(NotAllowed, match="'v_trial_digits' that `studydb views` did not make"):
        make_wide_views(database, study)

    assert arrange.rows(database, "SELECT * FROM v_trial_digits") == [(1,)]
    assert view_names(database) == []


def test_more_columns_than_a_view_holds_are_refused(database):
    space = Space.read({f"p{i}": choice([1]) for i in range(1001)})
    study = arrange.new_study(database, name="digits", space=space)

    with pytest.raises(NotAllowed, match="would have 1001 columns"):
        make_wide_views(database, study)


def test_views_of_a_renamed_study_are_replaced_under_the_new_name(console, database):
    study = arrange.new_study(database, name="old")
    arrange.enqueued(database, study)
    make_wide_views(database, study)

    rename(database, study, "new", arrange.new_request())
    still = wide_rows(database, "v_trial_old")
    again = console("views", "new")

    assert [row["study"] for row in still] == ["new"]
    assert "Dropped v_result_old and v_trial_old, made before the study was renamed." in again.lines
    assert view_names(database) == ["v_result_new", "v_trial_new"]


def test_drop_option_removes_only_the_views_of_the_named_study(console, database):
    for name in ("one", "two"):
        make_wide_views(database, arrange.new_study(database, name=name))

    dropped = console("views", "one", "--drop")
    nothing = console("views", "one", "--drop")

    assert dropped.lines == ["Study 'one': dropped v_result_one and v_trial_one."]
    assert nothing.lines == ["Study 'one': it has no views."]
    assert view_names(database) == ["v_result_two", "v_trial_two"]


def test_concurrent_calls_of_make_wide_views_succeed(database):
    study = arrange.new_study(database, name="digits")

    arrange.run_together(
        [
            lambda: arrange.retry_while_busy(lambda: make_wide_views(database, study))
            for _ in range(2)
        ]
    )

    assert view_names(database) == ["v_result_digits", "v_trial_digits"]


def test_upgrade_drops_the_views_and_makes_them_again(database, storage_url, monkeypatch):
    study = arrange.new_study(database, name="Digits", space=Space.read({"lr": 1}))
    make_wide_views(database, study)
    before = view_names(database)
    seen = []
    monkeypatch.setattr(migrate, "current_version", lambda _: "0001")
    monkeypatch.setattr(migrate.alembic.command, "upgrade", lambda *_: seen.append("upgraded"))

    migrate.upgrade(storage_url)

    assert seen == ["upgraded"]
    assert before == [f"v_result_digits__{study.id}", f"v_trial_digits__{study.id}"]
    assert view_names(database) == before
    assert wide_rows(database, before[1]) == []


def test_upgrade_renames_the_column_of_a_parameter_if_v_trial_now_has_a_column_of_that_name(
    database, storage_url, monkeypatch
):
    """When the view was made, `v_trial` had no "name", so the parameter's column got this name."""
    before, after = FIXED[Kind.TRIAL]
    study = arrange.new_study(database, name="digits", space=Space.read({"name": choice(["a"])}))
    arrange.enqueued(database, study)
    with monkeypatch.context() as earlier:
        earlier.setitem(FIXED, Kind.TRIAL, (before, after[: after.index("name")]))
        make_wide_views(database, study)
    assert [row["name"] for row in wide_rows(database, "v_trial_digits")] == ["a"]
    monkeypatch.setattr(migrate, "current_version", lambda _: "0001")
    monkeypatch.setattr(migrate.alembic.command, "upgrade", lambda *_: None)

    migrate.upgrade(storage_url)

    (row,) = wide_rows(database, "v_trial_digits")
    assert (row["param/name"], row["name"]) == ("a", None)


def test_downgrade_drops_wide_views(database, storage_url):
    study = arrange.new_study(database, name="digits")
    make_wide_views(database, study)
    made = view_names(database)
    database.close()

    migrate.downgrade(storage_url, "base")

    assert made == ["v_result_digits", "v_trial_digits"]
    assert view_names(database) == []
    assert migrate.current(storage_url) == ""
