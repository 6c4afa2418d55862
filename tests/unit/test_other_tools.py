"""`WORDS` lists names of other tools; an error about such a name says what to write in studydb."""

import importlib.util

import pytest
from harness.refusal import check_refused

import studydb
from studydb.child.running_trial import RunningTrial
from studydb.cli.commands import COMMANDS
from studydb.domain.space.parameters import parse_parameter
from studydb.domain.specs.grammar import parse_call
from studydb.domain.text.other_tools import SAMPLES, WORDS, hint, in_studydb
from studydb.lease.own_trial import OwnTrial
from studydb.schedulers import from_call as scheduler_of
from studydb.searchers import from_call as searcher_of
from studydb.study import Study

ASK = {"metric": "loss", "mode": "min"}


@pytest.mark.parametrize(
    ("name", "ours"),
    [
        ("TPE", "RandomSearch() or GridSearch()"),
        ("PBT", "scheduler=ASHA("),
        ("grid_search", "choice([…]) with searcher=GridSearch()"),
        ("suggest_float", "uniform(low, high)"),
        ("tune", "studydb.uniform, loguniform"),
        ("optimize", "study.run(workers=2)"),
    ],
)
def test_error_about_a_name_of_another_tool_says_what_to_write_in_studydb(name, ours):
    with pytest.raises(AttributeError) as asked:
        getattr(studydb, name)
    with pytest.raises(ImportError) as imported:
        exec(f"from studydb import {name}")

    assert in_studydb(name) in str(asked.value)
    assert ours in str(asked.value)
    assert ours in str(imported.value)
    assert not hasattr(studydb, name)


def test_name_of_no_known_tool_raises_the_usual_error_of_python():
    with pytest.raises(AttributeError, match=r"^module 'studydb' has no attribute 'nonsense'$"):
        _ = studydb.nonsense
    with pytest.raises(ImportError, match=r"^cannot import name 'nonsense'"):
        exec("from studydb import nonsense")


def test_no_name_of_studydb_is_listed_as_a_name_of_another_tool():
    folded = {name.casefold() for name in studydb.__all__}

    assert folded & set(WORDS) == set()
    assert [word for word in WORDS if importlib.util.find_spec(f"studydb.{word}")] == []
    assert all(word == word.casefold() for word in WORDS)
    assert set(WORDS) > SAMPLES


@pytest.mark.parametrize(
    ("keyword", "ours"),
    [
        ("num_samples", "num_trials=N"),
        ("n_trials", "num_trials=N"),
        ("points_to_evaluate", "study.enqueue("),
        ("direction", 'mode="min"'),
        ("n_jobs", "max_concurrent=N"),
        ("metrics", "Did you mean 'metric'?"),
        ("exist_ok", "load_if_exists=True"),
        ("if_exists", "Did you mean 'load_if_exists'?"),
        ("colour", "it takes name, trainable, metric, mode, space"),
    ],
)
def test_error_about_an_unknown_keyword_says_what_to_write(tmp_path, keyword, ours):
    place = {"storage": f"sqlite:///{tmp_path}/s.db"}

    with pytest.raises(TypeError) as refused:
        studydb.create_study("x", None, **ASK, **place, **{keyword: 3})

    assert f"create_study() has no argument {keyword!r}; it takes" in str(refused.value)
    assert ours in str(refused.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("report", [studydb.report, RunningTrial.report, OwnTrial.report])
def test_error_about_metrics_and_steps_as_keywords_of_report_says_what_to_write(report):
    with pytest.raises(TypeError, match=r'report\(\{"loss": 1.0\}\): all metrics in one dict'):
        report(loss=1.0)
    with pytest.raises(TypeError, match='"training_iteration": 5'):
        report({"loss": 1.0}, step=5)


@pytest.mark.parametrize(
    ("kind", "name", "ours"),
    [
        (Study, "optimize", "study.run(workers=2)"),
        (Study, "best_config", "study.best_params"),
        (RunningTrial, "suggest_float", "uniform(low, high)"),
        (RunningTrial, "params", "trial.config"),
        (OwnTrial, "should_prune", "returns False in a loop of your own"),
    ],
)
def test_error_about_an_attribute_of_another_tool_says_what_to_write(kind, name, ours):
    bare = object.__new__(kind)

    words = [f"{kind.__name__!r} object has no attribute {name!r}. In studydb: ", ours]
    check_refused(words, getattr, bare, name, error=AttributeError)
    assert not hasattr(bare, "__no_such__")


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: scheduler_of(parse_call("PBT(interval=3)")), "In studydb: scheduler=ASHA("),
        (lambda: scheduler_of(parse_call("ASHA(max_t=9, eta=3)")), "In studydb: reduction_factor"),
        (lambda: scheduler_of(parse_call("asha(max_t=9)")), "Did you mean 'ASHA'"),
        (lambda: studydb.ASHA(metric="loss"), 'In studydb: metric="loss", mode="min" of create_st'),
        (
            lambda: studydb.FIFO(mode="min"),
            'it takes no arguments. In studydb: metric="loss", mode=',
        ),
        (lambda: studydb.HyperBand(max_t=9, eta=3), "In studydb: reduction_factor"),
        (lambda: studydb.MedianStopping(metric="loss"), "MedianStopping has no argument 'metric'"),
        (lambda: studydb.OneEpoch(max_t=9, metric="loss"), "OneEpoch has no argument 'metric'"),
        (lambda: studydb.RandomSearch(sed=3), "it takes seed. Did you mean 'seed'"),
        (lambda: studydb.GridSearch(metric="loss"), "GridSearch has no argument 'metric'"),
        (lambda: searcher_of(parse_call("TPE")), 'In studydb: searcher=OptunaSearch("TPESampler")'),
        (lambda: parse_parameter("lr=suggest_float(0, 1)"), "In studydb: uniform(low, high)"),
        (lambda: parse_parameter("lr=logunifrm(1, 2)"), "Did you mean 'loguniform'"),
    ],
)
def test_error_about_an_unknown_spec_says_what_to_write(make, words):
    check_refused([words], make)


def test_similar_known_name_is_suggested_instead_of_a_translation():
    assert hint("metrics", ["metric"]) == " Did you mean 'metric'?"
    assert hint("metrics") == ' In studydb: report({"loss": 1.0}): all metrics in one dict.'
    assert hint("timeout", ["timeout_s"]) == " Did you mean 'timeout_s'?"
    assert hint("timeout", ["workers"]).startswith(" In studydb: time_limit_s=SECONDS of create_s")
    assert hint("xyz", COMMANDS) == ""
