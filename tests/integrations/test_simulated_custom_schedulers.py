"""`studydb.simulate` asks a custom scheduler for decisions in the same way as real workers do."""

import pytest
from harness.curve_reader import CURVES

import studydb
from studydb.domain.errors import StudyFailed, TrainableError

MODULE = """
import math
from dataclasses import dataclass

from studydb import Action, Close, CustomScheduler, Decision, Entry, Idle


@dataclass(frozen=True)
class Third(CustomScheduler):
    max_t: int = 27
    milestones = (1, 3, 9)
    quantile = (1 - 1 / 3) * 100 / 100

    def judge(self, report, view):
        cutoff, entry = view.rung().cutoff, Entry(view.key, report.score)
        worse = report.is_nan or (cutoff is not None and report.score > cutoff)
        return Decision(Action.STOP if worse else Action.CONTINUE, entry=entry, cutoff=cutoff)


@dataclass(frozen=True)
class Heat(CustomScheduler):
    max_t: int = 27
    top_k: int = 2
    milestones = (3,)
    resumes = True

    def judge(self, report, view):
        return Decision(Action.PAUSE, entry=Entry(view.key, report.score, waits=True))

    def next_work(self, view):
        for key in view.rungs():
            if view.rung(key).is_closed:
                return view.best_waiting(key) or Idle.WAIT
            if not view.may_start and all(step >= 3 for step in view.underway(0)):
                return Close(key, self.top_k)
        return Idle.START_NEW if view.may_start else Idle.WAIT


class Raising(Third):
    def judge(self, report, view):
        raise KeyError("accuracy")
"""


@pytest.fixture(autouse=True)
def module(monkeypatch, tmp_path):
    """Write the schedulers' module to the working directory; `simulate` and a test import it."""
    (tmp_path / "simulated_rules.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))


@pytest.mark.slow
@pytest.mark.row("E12")
@pytest.mark.parametrize("kills", [0.0, 0.05])
def test_custom_scheduler_that_judges_like_asha_gives_the_same_trials_as_asha(kills):
    options = {"seed": 3, "num_trials": 40, "kills": kills}
    asha = studydb.simulate(studydb.ASHA(27, 1, 3), None, CURVES, **options)

    simulated = studydb.simulate("simulated_rules:Third(max_t=27)", None, CURVES, **options)

    assert simulated.trials == asha.trials
    assert simulated.n_after_decision == 0
    assert (simulated.n_judged, simulated.status) == (asha.n_judged, "FINISHED")


def test_trials_wait_and_are_resumed_as_the_users_code_says():
    from simulated_rules import Heat  # noqa: PLC0415  the fixture writes this module

    one_epoch = studydb.OneEpoch(i=3, top_k=2, max_t=27)
    by_studydb = studydb.simulate(one_epoch, None, CURVES, seed=4, num_trials=12)

    simulated = studydb.simulate(Heat(top_k=2), None, CURVES, seed=4, num_trials=12)

    assert simulated.trials == by_studydb.trials
    assert (simulated.status, len(simulated.completions)) == ("FINISHED", 2)


def test_curves_of_a_finished_study_are_simulated(storage_url):
    study = studydb.create_study(
        "whole", None, metric="error", mode="min", num_trials=6, storage=storage_url
    )
    while (trial := study.ask()) is not None:
        with trial:
            for step in range(1, 28):
                trial.report({"error": trial.number + 1 / step})

    simulated = studydb.simulate("simulated_rules:Heat(top_k=1)", None, study, workers=2)

    assert [trial.reason for trial in simulated.trials].count("GIVEN_UP") == 5
    assert simulated.best_value == pytest.approx(1 / 27)
    study.close()


def test_exception_in_the_users_code_ends_the_simulation_and_is_named_in_the_error():
    with pytest.raises(StudyFailed, match=r"Raising.*KeyError: 'accuracy'.* simulate again\."):
        studydb.simulate("simulated_rules:Raising()", None, CURVES, num_trials=4)


def test_scheduler_whose_module_is_not_found_is_refused():
    with pytest.raises(TrainableError, match="no_such_rules"):
        studydb.simulate("no_such_rules:Heat()", None, CURVES)
