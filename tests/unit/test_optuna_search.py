"""The spec OptunaSearch and its model, whose points are a function of history, seed and draw."""

import builtins
import random
import sys

import pytest
from harness.refusal import check_refused

from studydb.domain.life.states import Mode, Origin, Reason, State
from studydb.domain.objective import Objective
from studydb.domain.searching import HistorySearcher, Observation
from studydb.domain.space.domains import Real
from studydb.domain.space.search_space import (
    Space,
    choice,
    lograndint,
    loguniform,
    quniform,
    randint,
    uniform,
)
from studydb.domain.specs.grammar import parse_call
from studydb.searchers import OptunaSearch, RandomSearch, from_call, read

SPACE = Space.read(
    {
        "x": uniform(-1, 1),
        "model": {"log": loguniform(1e-5, 1.0), "width": lograndint(1, 100)},
        "step": quniform(0.05, 1.0, 0.1),
        "act": choice([[1, 2], {"a": 1}, None, "relu", 3, [1, 2]]),
        "depth": randint(3, 7),
        "epochs": 27,
    }
)
LOSS = Objective("loss", Mode.MIN)
SEARCH = OptunaSearch("TPESampler", n_startup_trials=4)


def model(search=SEARCH, space=SPACE, objectives=(LOSS,), seed=3):
    return search.model(space, seed=seed, objectives=objectives)


def drawn(index, space=SPACE):
    return RandomSearch().propose(space, seed=99, draw=index)


def observed(number, value=None, *, params=None, **overrides):
    """Make an observation of a running trial, or of a completed trial if `value` is given."""
    values = None if value is None else (value,)
    given = {
        "number": number,
        "params": drawn(number) if params is None else params,
        "state": State.RUNNING if value is None else State.TERMINATED,
        "reason": None if value is None else Reason.COMPLETED,
        "values": values,
        "scores": values,
        "last_step": None if value is None else 1,
        "origin": Origin.SEARCHER,
    }
    return Observation(**(given | overrides))


def history(n=12):
    rng = random.Random(0)
    return [observed(number, rng.random()) for number in range(n)]


def states(made):
    return [trial.state.name for trial in made._study.get_trials()]


def test_spec_is_read_from_its_json_and_from_the_command_line():
    typed = from_call(parse_call("OptunaSearch(TPESampler, n_startup_trials=4)"))

    assert typed == SEARCH == read(SEARCH.to_json())
    assert SEARCH.to_json() == {
        "name": "OptunaSearch",
        "sampler": "TPESampler",
        "seed": None,
        "n_startup_trials": 4,
    }
    assert OptunaSearch(seed=5).seed == 5
    assert isinstance(SEARCH, HistorySearcher)
    assert not isinstance(RandomSearch(), HistorySearcher)


@pytest.mark.parametrize(
    ("given", "options", "words"),
    [
        ("CmaEsSampler", {}, "keeps its state"),
        ("GridSampler", {}, "GridSearch"),
        ("Nothing", {}, "studydb has TPESampler"),
        ("TPESampler", {"n_startup": 3}, "n_startup_trials"),
        ("TPESampler", {"n_startup_trials": "many"}, "integer"),
        ("TPESampler", {"n_startup_trials": 0}, "at least 1"),
        ("TPESampler", {"multivariate": 1}, "true or false"),
        ("TPESampler", {"gamma": 3}, "no option 'gamma'"),
        ("TPESampler", {"seed": -1}, "seed"),
    ],
)
def test_wrong_options_are_refused(given, options, words):
    check_refused([words], lambda: OptunaSearch(given, **options))


def test_space_without_parameters_is_refused():
    check_refused(["no parameter"], SEARCH.check, Space.read({"epochs": 3}), [LOSS])


def test_distribution_that_optuna_lacks_is_refused():
    class Other(Real):
        kind = "other"

        def from_unit(self, u):
            return u

    space = Space({"x": Other(0, 1)})

    check_refused(["cannot search 'x'"], SEARCH.check, space, [LOSS])


def test_missing_optuna_is_named_with_its_cure(monkeypatch):
    imported = builtins.__import__

    def without_optuna(name, *args, **given):
        if name.partition(".")[0] == "optuna":
            raise ModuleNotFoundError("No module named 'optuna'", name="optuna")
        return imported(name, *args, **given)

    monkeypatch.delitem(sys.modules, "studydb.searchers.optuna_model")
    monkeypatch.setattr(builtins, "__import__", without_optuna)

    check_refused(["pip install 'studydb[optuna]'"], SEARCH.check, SPACE, [LOSS])


def test_points_fit_the_space():
    made = model()
    made.tell(history())

    points = [point for draw in range(10) for point in made.propose(2, draw=draw)]

    assert [SPACE.misfit(point) for point in points] == [None] * 20


def test_params_that_optuna_is_told_come_back_unchanged():
    made = model()
    observations = [observed(number, 0.5) for number in range(60)]
    made.tell(observations)

    for trial, told in zip(made._study.get_trials(), observations, strict=True):
        assert made._point(trial.params) == told.params


def test_points_are_a_function_of_history_seed_and_draw():
    first, second, other = model(), model(), model(seed=4)
    for made in (first, second, other):
        made.tell(history())
    second.propose(3, draw=1)

    assert first.propose(2, draw=7) == second.propose(2, draw=7)
    assert first.propose(1, draw=8) != first.propose(1, draw=7)
    assert other.propose(2, draw=7) != first.propose(2, draw=7)


def test_points_do_not_depend_on_the_time_or_order_in_which_the_model_is_told_of_trials():
    told = [*history(), observed(12)]
    at_once, one_by_one = model(), model()
    at_once.tell(told)
    for one in told:
        one_by_one.tell([observed(one.number)])
        one_by_one.propose(2, draw=1)
    for one in reversed(told):
        one_by_one.tell([one])

    assert at_once.propose(3, draw=5) == one_by_one.propose(3, draw=5)


def test_points_that_are_proposed_together_differ():
    made = model()
    made.tell(history())

    points = made.propose(8, draw=0)

    assert len({repr(point) for point in points}) == 8


def test_startup_points_do_not_depend_on_values():
    made, other = model(), model()
    made.tell(history(3))
    other.tell([observed(number, 0.5) for number in range(3)])

    assert made.propose(1, draw=0) == other.propose(1, draw=0)
    made.tell(history())
    other.tell([observed(number, float(number)) for number in range(12)])
    assert made.propose(1, draw=0) != other.propose(1, draw=0)


@pytest.mark.parametrize(
    ("overrides", "state"),
    [
        ({}, "COMPLETE"),
        ({"reason": Reason.RULE_STOPPED}, "COMPLETE"),
        ({"reason": Reason.EARLY_STOPPED}, "PRUNED"),
        ({"reason": Reason.CANCELLED}, "PRUNED"),
        ({"reason": None, "state": State.PAUSED}, "PRUNED"),
        ({"reason": None, "state": State.PENDING}, "RUNNING"),
        ({"reason": None, "state": State.RUNNING}, "RUNNING"),
        ({"reason": Reason.CANCELLED, "values": None}, "FAIL"),
        ({"reason": Reason.COMPLETED, "values": None}, "FAIL"),
        ({"reason": Reason.FAILED, "state": State.ERROR}, "FAIL"),
        ({"reason": Reason.INVALIDATED, "values": None}, "FAIL"),
        ({"values": (float("nan"),)}, "FAIL"),
        ({"reason": None, "state": State.PAUSED, "values": None}, "RUNNING"),
    ],
)
def test_trial_gets_the_matching_state_in_optuna(overrides, state):
    made = model()

    made.tell([observed(0, 0.5, **overrides)])

    assert states(made) == [state]


def test_trial_that_was_stopped_early_has_its_last_value_in_optuna():
    made = model()
    made.tell([observed(0)])

    made.tell([observed(0, 0.5, reason=Reason.EARLY_STOPPED, last_step=3)])

    (trial,) = made._study.get_trials()
    assert trial.intermediate_values == {3: 0.5}


def test_model_proposes_as_if_a_resumed_trial_had_never_been_paused():
    made, fresh = model(), model()
    told = history()
    told[5] = observed(5, 0.5, reason=None, state=State.PAUSED)
    made.tell(told)
    made.propose(1, draw=0)
    resumed = observed(5)
    told[5] = resumed
    fresh.tell(told)

    made.tell([resumed])

    assert made.propose(2, draw=3) == fresh.propose(2, draw=3)
    assert "RUNNING" in states(made)


def test_trial_whose_params_are_outside_the_space_is_not_added_to_the_model():
    made = model()

    made.tell([observed(0, 0.5, params={"x": "text"}), observed(1, 0.5)])

    assert len(states(made)) == 1


def test_maximised_objective_prefers_high_values():
    space = Space.read({"x": uniform(0, 1)})
    rng = random.Random(0)
    points = {}
    for mode in Mode:
        made = model(space=space, objectives=[Objective("loss", mode)])
        for number in range(30):
            x = rng.random()
            made.tell([observed(number, x, params={"x": x})])
        points[mode] = [made.propose(1, draw=draw)[0]["x"] for draw in range(10)]

    assert sum(points[Mode.MAX]) > sum(points[Mode.MIN]) + 3


def test_model_with_two_objectives_proposes_points_and_counts_stopped_trials_as_complete():
    both = [LOSS, Objective("time", Mode.MIN)]
    made = model(objectives=both)
    made.tell(
        [
            observed(number, values=(1.0, float(number)), reason=reason, state=State.TERMINATED)
            for number, reason in enumerate([Reason.COMPLETED, Reason.EARLY_STOPPED] * 4)
        ]
    )

    assert len(made.propose(1, draw=0)) == 1
    assert states(made)[:8] == ["COMPLETE"] * 8
