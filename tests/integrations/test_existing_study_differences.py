"""`load_if_exists` warns if specs or settings differ; it refuses another objective or space."""

import warnings

import pytest

import studydb

OPTIONS = {
    "metric": "loss",
    "mode": "min",
    "space": {"x": studydb.uniform(0, 1)},
    "load_if_exists": True,
}
CREATE = ("create", "digits", "--metric", "loss", "--mode", "min", "--param", "x=uniform(0, 1)")


@pytest.mark.parametrize(
    ("others", "message"),
    [
        ({"num_trials": 50}, "is 30, not 50. To change it: study.extend(num_trials=20)"),
        ({"scheduler": studydb.ASHA(max_t=9)}, "scheduler is FIFO(), not ASHA(max_t=9,"),
        ({"searcher": studydb.RandomSearch(seed=3)}, "not RandomSearch(seed=3)"),
        (
            {"stop": {"loss": 3}},
            "stop is none, not loss>=3. To change it: create a study of another name",
        ),
        ({"stop": {"loss": 1234567}}, "stop is none, not loss>=1234567. To change it"),
        ({"max_concurrent": 2}, "max_concurrent is None, not 2"),
        ({"max_failures": 2}, "max_failures is 0, not 2"),
        ({"max_losses": 1}, "max_losses is 10, not 1"),
        ({"checkpoints": "elsewhere"}, "checkpoints is None, not file:///"),
        ({"keep": "best=1"}, "To change it: study.set(keep=…) or `studydb set digits keep=…`."),
        ({"resources": {"cpus": 2}}, "study.set(resources=…) or `studydb set digits resources=…`."),
        ({"retry": studydb.Retry(on=[OSError])}, "retry is None, not Retry(on=[OSError])"),
        (
            {"time_limit_s": "2h"},
            "time_limit_s is None, not 7200.0. To change it: create a study of another name",
        ),
    ],
    ids=lambda value: str(value)[:30],
)
def test_different_limit_or_spec_gives_a_warning_at_the_line_of_the_caller(
    storage_url, here, others, message
):
    studydb.create_study("digits", None, num_trials=30, storage=storage_url, **OPTIONS).close()

    with pytest.warns(studydb.StudyDiffers) as warned:
        study = studydb.create_study("digits", None, storage=storage_url, **OPTIONS, **others)

    assert [warning.filename for warning in warned] == [__file__]
    assert str(warned[0].message).startswith("Study 'digits' continues as it is: ")
    assert message in str(warned[0].message)
    assert study.record.num_trials == 30
    study.close()


def test_different_limit_that_can_be_changed_is_named_with_its_cure(storage_url):
    given = {"num_trials": 3, "storage": storage_url, **OPTIONS}
    studydb.create_study("digits", None, cost_limit=("usd", 50), max_steps=9, **given).close()

    with pytest.warns(studydb.StudyDiffers) as warned:
        studydb.create_study("digits", None, cost_limit="usd<=80", max_steps=9, **given).close()

    assert str(warned[0].message).endswith(
        "cost_limit is usd<=50, not usd<=80. To change it: study.set(cost_limit=…) or "
        "`studydb set digits cost_limit=…`."
    )


def test_amount_that_an_older_version_has_rounded_up_gives_no_warning(storage_url, monkeypatch):
    options = {"storage": storage_url, "resources": {"gpus": 2 / 3}}
    with monkeypatch.context() as older:
        older.setattr("studydb.domain.resources.floor", round)
        study = studydb.create_study("digits", None, **OPTIONS | options)
        assert study.record.resources.gpus == 0.666667
        study.close()

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        studydb.create_study("digits", None, **OPTIONS | options).close()


@pytest.mark.parametrize("others", [{}, {"num_trials": 30}, {"searcher": studydb.RandomSearch()}])
def test_omitted_or_equal_argument_gives_no_warning(storage_url, others):
    options = {"storage": storage_url, "searcher": studydb.RandomSearch(seed=3), "num_trials": 30}
    studydb.create_study("digits", None, **OPTIONS | options).close()

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        studydb.create_study("digits", None, storage=storage_url, **OPTIONS, **others).close()


@pytest.mark.parametrize(
    "others", [{"metric": "acc"}, {"mode": "max"}, {"space": {"x": studydb.uniform(0, 2)}}], ids=str
)
def test_different_objective_or_space_is_refused(storage_url, others):
    studydb.create_study("digits", None, num_trials=30, storage=storage_url, **OPTIONS).close()

    with pytest.raises(studydb.StudyExists, match="Choose another name"):
        studydb.create_study("digits", None, num_trials=30, storage=storage_url, **OPTIONS | others)


def test_create_with_if_not_exists_prints_the_warning_as_one_line(console):
    console(*CREATE, "--num-trials", "30")

    again = console(*CREATE, "--num-trials", "50", "--if-not-exists")

    assert again.err == (
        "studydb: Study 'digits' continues as it is: num_trials is 30, not 50. To change "
        "it: study.extend(num_trials=20) or `studydb extend digits --trials 20`.\n"
    )
    assert "30 trials" in again.lines[0]
