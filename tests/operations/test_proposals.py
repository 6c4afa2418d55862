"""On PostgreSQL, an ask makes the same trial in a single statement as in several statements."""

import pytest
from harness.arrange import SimulatedWorker, change, new_study, rows

from studydb.db import connect
from studydb.domain.space.search_space import (
    Space,
    choice,
    constant,
    lograndint,
    loguniform,
    quniform,
    randint,
    uniform,
)
from studydb.operations import ask as asks
from studydb.searchers import GridSearch, RandomSearch
from studydb.store import proposals

ODD = [
    "NaN",
    "\\NaN",
    "\\\\-Infinity",
    "Infinity",
    "%(study)s %% $1",
    '"{,}\\"',
    "naïve ☃ 𝄞\u2028",
    2**53 + 1,
    -(2**70),
    1e16,
    1e22,
    5e-324,
    1.7976931348623157e308,
    0.1 + 0.2,
    -0.0,
    True,
    None,
    1,
    [1, [2.0, "NaN"]],
    {"hash": "x", "params": {"a": None}},
    "x" * 500,
]
SPACES = {
    "empty": {},
    "constants": {"a": 1e16, "b": "NaN", "c": constant([1, 2.0, {"d": None}]), "e": -1.5e308},
    "odd": {"odd": choice(ODD), "params": uniform(0, 1), "%(x)s": 1, "ü 'q'": choice(["a", "b"])},
    "numbers": {
        "lr": loguniform(1e-300, 1e300),
        "wide": uniform(-1e300, 1e300),
        "large": uniform(1e15, 1e18),
        "n": randint(2**60, 2**60 + 2**52),
        "m": lograndint(1, 2**53),
        "q": quniform(0, 1, 0.1),
    },
    "nested": {"model": {"lr": uniform(0, 1), "kind": "NaN"}, "x": choice(ODD)},
}
GRIDS = {
    "one point": {},
    "a part of a batch": {"a": randint(1, 3), "b": choice(ODD)},
    "one batch": {"a": randint(0, 63)},
    "a batch and one": {"a": randint(0, 64)},
    "three batches": {"a": randint(0, 139), "c": 1e16},
}


@pytest.fixture
def database(postgres_url):
    database = connect(postgres_url)
    yield database
    database.close()


def made(database, space, searcher):
    """Ask for up to 150 trials; return the claims as a text, and the stored rows."""
    study = new_study(database, space=space, searcher=searcher, num_trials=None, seed=7)
    worker, claims = SimulatedWorker(database, study), []
    while len(claims) < 150 and (run := worker.ask()):
        claims.append((run.lease.number, run.claimed.params, run.claimed.config, run.claimed.seed))
    stored = rows(
        database,
        "SELECT number, draw, origin, params::text, params_hash, attempt.config::text, space_version "
        f"FROM trial JOIN attempt ON trial_id = id WHERE trial.study_id = {study.id} ORDER BY 1",
    )
    return repr(claims), stored


@pytest.mark.parametrize(
    ("space", "searcher"),
    [
        *((space, RandomSearch()) for space in SPACES.values()),
        *((space, GridSearch()) for space in GRIDS.values()),
    ],
    ids=[*SPACES, *GRIDS],
)
def test_asks_in_a_single_statement_and_in_several_make_the_same_trials(
    database, monkeypatch, space, searcher
):
    space = Space.read(space)

    in_single_statement = made(database, space, searcher)
    monkeypatch.setattr(asks, "_ask_in_single_statement", asks._ask_in_steps)
    in_steps = made(database, space, searcher)

    assert in_single_statement == in_steps
    assert len(in_steps[1]) == min(searcher.size(space) or 150, 150)


@pytest.mark.parametrize(("width", "kept"), [(900, True), (1100, False)])
def test_params_of_more_than_1000_characters_are_not_stored_as_proposals(database, width, kept):
    study = new_study(database, space=Space.read({"text": choice(["-", "x" * width])}))

    SimulatedWorker(database, study).ask()

    assert rows(database, "SELECT points IS NOT NULL FROM study") == [(kept,)]


def test_batch_of_proposals_whose_draws_are_taken_is_not_stored(database):
    study = new_study(database, space=Space.read({}), num_trials=None)
    change(database, f"UPDATE study SET next_draw = {20 * proposals.PROPOSALS_PER_BATCH}")
    SimulatedWorker(database, study).ask()

    asks._propose(database, study, batch=2, current=0)  # as a delayed client does

    kept = rows(database, "SELECT jsonb_object_keys(points) FROM study ORDER BY 1")
    assert kept == [("20",), ("22",)]
