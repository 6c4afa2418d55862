"""
Every searcher proposes points that fit the space, and the same points in every process.

Studies keep their budgets with every searcher. To have a searcher tested, add a line to SEARCHERS;
docs/searchers.md says how to write a searcher.
"""

import math
from itertools import count

import pytest
from harness.arrange import Run, SimulatedWorker, new_study
from harness.documented_code import names_defined_in
from harness.model_searcher import ModelSearch

from studydb import searchers
from studydb.domain.canonical import params_hash
from studydb.domain.life.states import Origin, Reason, State
from studydb.domain.objective import Objective
from studydb.domain.searching import HistorySearcher, Observation
from studydb.domain.space.search_space import (
    Space,
    choice,
    lograndint,
    loguniform,
    randint,
    uniform,
)
from studydb.domain.specs.building import rebuild
from studydb.lease.acquire import Acquirer
from studydb.operations.reads import list_trials
from studydb.searchers import GridSearch, OptunaSearch, RandomSearch

EvolutionarySearch = names_defined_in("searchers.md")["EvolutionarySearch"]

SEARCHERS = {
    "random": RandomSearch(),
    "grid": GridSearch(),
    "test model": ModelSearch(),
    "docs/searchers.md": EvolutionarySearch(parents=3),
    "TPE of Optuna": OptunaSearch("TPESampler", n_startup_trials=3),
}
"""The searchers under test, by name."""

FLAT = {"width": randint(1, 9), "layers": randint(1, 4), "kind": choice(["a", "b", None])}
NESTED = {"opt": {"name": choice(["sgd", "adam"]), "deep": {"k": randint(0, 50)}}, "fixed": 7}
FLOATS = {"lr": loguniform(1e-4, 1), "momentum": uniform(0, 1), "units": lograndint(1, 512)}
SPACES = {"flat": Space.read(FLAT), "nested": Space.read(NESTED), "floats": Space.read(FLOATS)}
OBJECTIVE = Objective("loss", "min")
SEED = 5
N_TRIALS = 24

every_searcher = pytest.mark.parametrize("name", SEARCHERS)
every_space = pytest.mark.parametrize("space", SPACES.values(), ids=SPACES)
every_search = pytest.mark.parametrize(
    ("name", "space"),
    [
        pytest.param(name, space, id=f"{name}-{kind}")
        for name in SEARCHERS
        for kind, space in SPACES.items()
        if (name, kind) != ("grid", "floats")
    ],
)
"""Each searcher in each space; grid search refuses the space of floats."""
with_model = pytest.mark.parametrize(
    "name", [name for name, one in SEARCHERS.items() if isinstance(one, HistorySearcher)]
)


@pytest.fixture
def searcher(name, monkeypatch):
    chosen = SEARCHERS[name]
    monkeypatch.setitem(searchers.BY_NAME, chosen.kind, type(chosen))
    return chosen


def model_of(searcher, space):
    return searcher.model(space, seed=SEED, objectives=[OBJECTIVE])


def observation(space, number, value=0.5, **facts):
    """Return the observation of a completed trial; `facts` replace fields of the observation."""
    usual = {
        "number": number,
        "params": RandomSearch().propose(space, seed=99, draw=number),
        "state": State.TERMINATED,
        "reason": Reason.COMPLETED,
        "values": None if value is None else (value,),
        "scores": None if value is None else (math.inf if math.isnan(value) else value,),
        "last_step": None if value is None else 3,
        "origin": Origin.SEARCHER,
    }
    return Observation(**usual | facts)


def history(space):
    """Return observations of trials of many kinds, by ascending number."""
    number = count()
    kinds = [
        *({"value": value} for value in (0.9, 0.1, 0.4, 0.4, math.nan, math.inf, -3.0)),
        {"state": State.RUNNING, "reason": None, "value": 0.2},
        {"state": State.RUNNING, "reason": None, "value": None},
        {"state": State.PENDING, "reason": None, "value": None},
        {"state": State.PAUSED, "reason": None, "value": 0.3},
        {"state": State.ERROR, "reason": Reason.FAILED, "value": None},
        {"state": State.ERROR, "reason": Reason.LOST, "value": 0.6},
        {"reason": Reason.EARLY_STOPPED, "value": 0.8},
        {"reason": Reason.CANCELLED, "value": None},
        {"reason": Reason.INVALIDATED, "value": None},
        {"origin": Origin.ENQUEUED, "value": 0.05},
        {"params": {"of another program": 1}},
    ]
    return [observation(space, next(number), **kind) for kind in kinds]


@every_searcher
def test_searcher_is_the_same_after_it_was_stored(searcher):
    stored = rebuild(searcher.to_json(), searchers.BY_NAME, noun="searcher")

    assert stored == searcher
    assert stored.to_json() == searcher.to_json()


@every_search
def test_points_by_index_fit_the_space_and_are_a_function_of_seed_and_draw(searcher, space):
    draws = range(min(40, searcher.size(space) or 40))

    points = [searcher.propose(space, seed=SEED, draw=draw) for draw in draws]

    assert [space.misfit(params) for params in points] == [None] * len(points)
    again = [searcher.propose(space, seed=SEED, draw=draw) for draw in reversed(draws)]
    assert again[::-1] == points


@with_model
@every_space
@pytest.mark.parametrize("n", [1, 5])
def test_points_of_a_model_fit_the_space_whatever_trials_it_knows(searcher, space, n):
    for known in ([], history(space)[:1], history(space)):
        model = model_of(searcher, space)
        model.tell(known)

        points = model.propose(n, draw=len(known))

        assert [space.misfit(params) for params in points] == [None] * n


@with_model
@every_space
def test_points_do_not_depend_on_the_calls_by_which_a_model_got_observations(searcher, space):
    whole, parts, moved = (model_of(searcher, space) for _ in range(3))
    known = history(space)

    whole.tell(known)
    for one in known:
        parts.tell([one])
        parts.propose(2, draw=one.number)
    moved.tell([observation(space, one.number, None, state=State.RUNNING) for one in known])
    moved.propose(3, draw=0)
    moved.tell(known)

    points = whole.propose(3, draw=20)
    assert parts.propose(3, draw=20) == points
    assert moved.propose(3, draw=20) == points


@with_model
def test_another_draw_gives_another_point(searcher):
    space = SPACES["floats"]
    model = model_of(searcher, space)
    model.tell(history(space))

    draws = [20, 21, 20 + 2**64]
    points = {params_hash(params) for draw in draws for params in model.propose(1, draw=draw)}

    assert len(points) == len(draws)


def value_of(params):
    """A loss that differs between most points and is the same in every run."""
    return int(params_hash(params)[:6], 16) / 2**24


def asker(database, study):
    worker = SimulatedWorker(database, study)
    acquirer = Acquirer(database, study, worker_id=worker.id, lease_s=90.0)
    return worker, acquirer


@every_search
def test_workers_that_take_turns_keep_the_budget_and_get_points_that_fit_the_space(
    database, searcher, space
):
    study = new_study(database, searcher=searcher, space=space, num_trials=N_TRIALS, seed=SEED)
    askers = [asker(database, study) for _ in range(3)]
    held = []

    for turn in range(N_TRIALS):
        worker, acquirer = askers[turn % 3]
        claimed = acquirer.acquire()
        assert claimed is not None
        assert claimed.misfit is None
        held.append(Run(worker, claimed))
        if turn % 4:
            run = held.pop(0)
            run.finish(value_of(run.claimed.params))

    assert [acquirer.acquire() for _, acquirer in askers] == [None] * 3
    trials = list_trials(database, study)
    assert len(trials) == N_TRIALS
    if searcher.wants_unique:
        assert len({params_hash(one.params) for one in trials}) == N_TRIALS


@every_searcher
def test_lone_worker_gets_the_same_points_after_restarts(database, searcher):
    def run(restart_after):
        study = new_study(
            database, searcher=searcher, space=SPACES["flat"], num_trials=N_TRIALS, seed=SEED
        )
        worker, acquirer = asker(database, study)
        points = []
        for turn in range(N_TRIALS):
            if turn in restart_after:
                worker, acquirer = asker(database, study)
            claimed = acquirer.acquire()
            Run(worker, claimed).finish(value_of(claimed.params))
            points.append(claimed.params)
        return points

    assert run(restart_after={4, 5, 17}) == run(restart_after=())
