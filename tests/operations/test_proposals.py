"""
Proposals are stored before the asks that take them.

An ask makes its trial from the proposal of its draw. If params must be unique, an ask skips a draw
whose params a trial has already.
"""

import math
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

import pytest
from harness import postgres
from harness.arrange import (
    SimulatedWorker,
    change,
    enqueued,
    new_request,
    new_study,
    retry_while_busy,
    rows,
    run_together,
)
from harness.concurrent import PATIENCE_S, is_waiting_for_a_lock

from studydb.db import connect
from studydb.domain.canonical import params_hash
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
from studydb.operations import propose
from studydb.operations.control import extend
from studydb.operations.delete import delete
from studydb.operations.propose import BLOCK, proposal_of, propose_ahead, propose_by_index
from studydb.searchers import BY_NAME, GridSearch, RandomSearch
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
    "long": {"text": choice(["x" * 5000, "y"]), "model": {"notes": constant(["z" * 5000])}},
}
GRIDS = {
    "one point": {},
    "a part of a block": {"a": randint(1, 3), "b": choice(ODD)},
    "one block": {"a": randint(0, 63)},
    "a block and one": {"a": randint(0, 64)},
    "three blocks": {"a": randint(0, 139), "model": {"c": 1e16}},
}


@dataclass(frozen=True)
class UniqueGrid(GridSearch):
    """A grid search with unique params: asks skip the points that a trial has already."""

    wants_unique: ClassVar[bool] = True


@pytest.fixture
def unique_study(database, monkeypatch):
    monkeypatch.setitem(BY_NAME, "UniqueGrid", UniqueGrid)
    space = Space.read({"width": randint(0, 4)})
    return new_study(database, space=space, searcher=UniqueGrid(), num_trials=None)


@pytest.mark.sampled(6)
@pytest.mark.row("B3")
@pytest.mark.parametrize(
    ("space", "searcher"),
    [
        *((space, RandomSearch()) for space in SPACES.values()),
        *((space, GridSearch()) for space in GRIDS.values()),
    ],
    ids=[*SPACES, *GRIDS],
)
def test_asks_make_the_trials_that_the_searcher_proposes(database, space, searcher):
    study = new_study(database, space=Space.read(space), searcher=searcher, num_trials=None, seed=7)
    worker, runs = SimulatedWorker(database, study), []
    while len(runs) < 140 and (run := worker.ask()):
        runs.append(run)

    expected = [proposal_of(study, draw) for draw in range(searcher.size(study.space) or 140)]
    assert len(runs) == len(expected)
    for number, (run, proposed) in enumerate(zip(runs, expected, strict=True)):
        assert run.lease.number == number
        assert repr(run.claimed.config) == repr(proposed.config)
        assert run.claimed.misfit is None
    stored = rows(
        database,
        "SELECT draw, origin, params_hash, space_version, is_unique, t.config = a.config "
        "FROM trial t JOIN attempt a ON trial_id = id ORDER BY number",
    )
    assert stored == [
        (draw, one.origin, params_hash(one.params), 1, None, True)
        for draw, one in enumerate(expected)
    ]


# --- rows


def draws(database):
    return [draw for (draw,) in rows(database, "SELECT draw FROM proposal ORDER BY 1")]


def test_proposals_of_taken_draws_are_deleted_when_further_blocks_are_stored(database):
    study = new_study(database, num_trials=None)
    worker = SimulatedWorker(database, study)

    for _ in range(BLOCK):
        worker.ask()
    before = draws(database)
    worker.ask()

    assert before == list(range(1, 3 * BLOCK))
    assert draws(database) == list(range(BLOCK + 1, 5 * BLOCK))


def test_every_block_is_stored_once_and_up_to_eight_blocks_ahead(database, monkeypatch):
    due = []

    def record(*given, draws, **options):
        due.extend(draws)
        propose_by_index(*given, draws=draws, **options)

    monkeypatch.setattr(propose, "propose_by_index", record)
    study = new_study(database, num_trials=None)
    propose_by_index(database, study, draws=range(BLOCK))

    for taken in range(0, 20 * BLOCK, BLOCK):
        change(database, f"UPDATE study SET next_draw = {taken + 1}")
        propose_ahead(database, study, taken=taken)
        assert due[-1] >= min(2 * (taken + BLOCK - 1), taken + 8 * BLOCK - 1)

    assert due == list(range(BLOCK, 28 * BLOCK))


def test_proposals_stored_ahead_do_not_exceed_num_trials(database):
    study = new_study(database, num_trials=100)

    SimulatedWorker(database, study).ask()

    assert draws(database) == list(range(1, 100))


def test_first_ask_of_a_small_study_stores_no_more_than_its_budget(database):
    study = new_study(database, num_trials=3)

    SimulatedWorker(database, study).ask()

    assert draws(database) == [0, 1, 2]


def test_worker_stores_proposals_ahead_even_if_it_read_the_study_before_the_extension(database):
    study = new_study(database, num_trials=BLOCK)
    worker = SimulatedWorker(database, study)
    for _ in range(BLOCK):
        worker.ask()
    extend(database, study, new_request(), n_more=1000)

    worker.ask()

    assert draws(database) == list(range(BLOCK + 1, 5 * BLOCK))


@pytest.mark.parametrize("size", [2**20, 8 * 2**20])
def test_asks_make_trials_whose_configs_have_megabytes(database, size):
    space = Space.read({"lr": uniform(0, 1), "text": "x" * size})
    study = new_study(database, space=space, num_trials=None)
    worker = SimulatedWorker(database, study)

    runs = [worker.ask() for _ in range(3)]

    assert [run.claimed.config["text"] == "x" * size for run in runs] == [True] * 3
    assert len(draws(database)) <= propose.MOST_BYTES_AHEAD // size


def test_proposals_ahead_have_a_limited_number_of_bytes(database):
    size = 20_000
    study = new_study(database, space=Space.read({"text": "x" * size}), num_trials=None)
    worker = SimulatedWorker(database, study)

    ahead = [(worker.ask(), len(draws(database)))[1] for _ in range(3 * BLOCK)]

    assert max(ahead) * size <= propose.MOST_BYTES_AHEAD + BLOCK * size
    assert max(ahead) > 4 * BLOCK


def test_one_transaction_stores_a_limited_number_of_bytes(study):
    space = Space.read({"text": "x" * 300_000})
    proposed = proposal_of(replace(study, space=space), 0)

    parts = list(propose.in_parts((draw, proposed) for draw in range(7)))

    assert [list(part) for part in parts] == [[0, 1, 2], [3, 4, 5], [6]]


def test_skipped_draws_do_not_count_for_num_trials(database):
    study = new_study(database, num_trials=3)
    change(database, "UPDATE study SET next_draw = 10")  # as if 10 draws had been skipped
    worker = SimulatedWorker(database, study)

    runs = [worker.ask() for _ in range(4)]

    assert runs[3] is None
    assert rows(database, "SELECT draw FROM trial ORDER BY 1") == [(10,), (11,), (12,)]


def test_ask_makes_its_trial_even_if_proposals_ahead_raise_an_error(database, monkeypatch):
    study = new_study(database, num_trials=None)
    by_index = RandomSearch.propose

    def propose_few(self, space, *, seed, draw):
        if draw >= BLOCK:
            raise RuntimeError("broken")
        return by_index(self, space, seed=seed, draw=draw)

    monkeypatch.setattr(RandomSearch, "propose", propose_few)
    worker = SimulatedWorker(database, study)

    assert all(worker.ask() for _ in range(BLOCK))
    with pytest.raises(RuntimeError, match="broken"):
        worker.ask()


def test_late_block_of_taken_draws_leaves_no_rows(database):
    study = new_study(database, num_trials=None)
    change(database, "UPDATE study SET next_draw = 1000")

    propose_by_index(database, study, draws=range(BLOCK, 2 * BLOCK))  # as a delayed client does

    assert draws(database) == []


def test_deletion_of_many_taken_proposals_is_bounded_and_goes_on_later(database, monkeypatch):
    study = new_study(database, num_trials=None)
    most, last = proposals.MOST_DELETED, proposals.CLEAN_UP_DRAWS
    propose_by_index(database, study, draws=range(last))
    change(database, f"UPDATE study SET next_draw = {last - 10}")

    left = []
    # The oldest proposals are deleted only when a draw that is a multiple of CLEAN_UP_DRAWS is
    # stored.
    for draw in (last + 1, last, 2 * last, 3 * last):
        propose_by_index(database, study, draws=[draw])
        left.append([one for one in draws(database) if one < last])

    recent = range(last - 10, last)
    assert left[0] == [*range(last - 10 - most), *recent]
    assert left[1] == [*range(most, last - 10 - most), *recent]
    assert left[-1] == list(recent)


def test_deletion_does_not_look_for_the_oldest_proposals_each_time(database):
    """While a snapshot is open, the index keeps entries of deleted rows; `min` would read them all."""
    study, sent = new_study(database, num_trials=None), []
    database.observer = sent.append
    propose_by_index(database, study, draws=range(BLOCK, 2 * BLOCK))
    database.observer = None

    deletions = [sql for sql in sent if "DELETE FROM proposal" in sql]
    assert len(deletions) == 1
    assert "min(" not in deletions[0]
    assert "draw >=" in deletions[0]


def test_stored_proposal_is_not_replaced(database):
    study = new_study(database)
    propose_by_index(database, study, draws=[0])
    other = replace(study, seed=study.seed + 1)

    propose_by_index(database, other, draws=range(3))

    ask = SimulatedWorker(database, study).ask
    assert ask().claimed.params == proposal_of(study, 0).params
    assert ask().claimed.params == proposal_of(other, 1).params


def test_proposals_of_a_deleted_study_are_not_stored(database):
    study = new_study(database)
    SimulatedWorker(database, study).ask().finish(0.5)
    delete(database, study)

    propose_by_index(database, study, draws=range(3))

    assert draws(database) == []


def test_proposals_that_are_being_stored_are_deleted_with_their_study(postgres_url):
    database, other = connect(postgres_url), connect(postgres_url)
    study = new_study(database)
    with ThreadPoolExecutor(1) as pool:
        with other.begin() as txn:
            proposals.store(txn, study_id=study.id, proposed={0: proposal_of(study, 0)})
            # This read waits until the server has executed `store`.
            assert txn.all(proposals._KEEP_STUDY, study=study.id)
            deleted = pool.submit(delete, database, study)
            assert is_waiting_for_a_lock(postgres_url)
        deleted.result(PATIENCE_S)

    assert draws(database) == []
    database.close()
    other.close()


# --- the study's row and the proposals as a waiting ask sees them


@pytest.fixture
def clients(postgres_url):
    """A database, and a connection to it that does not come from the database's pool."""
    database = connect(postgres_url)
    with postgres.connect(postgres_url) as rival:
        yield database, rival
    database.close()


@contextmanager
def waiting_ask(database, rival, url, sql):
    """
    Change the study's row by `sql`, and run the block while an ask waits for the row's lock.

    Yield the study, the ask's future, and a list of the statements that the ask sends.
    """
    study = new_study(database, num_trials=None)
    worker, sent = SimulatedWorker(database, study), []
    worker.ask()
    with ThreadPoolExecutor(1) as pool:
        with rival.transaction():
            rival.execute(sql)
            database.observer = sent.append
            ask = pool.submit(worker.ask)
            assert is_waiting_for_a_lock(url)
            database.observer = None
            yield study, ask, sent
            database.observer = sent.append
        ask.result(PATIENCE_S)
    database.observer = None


@pytest.mark.parametrize("skips_queue", [False, True])
def test_ask_that_waited_takes_the_draw_after_the_draws_of_others(
    clients, postgres_url, skips_queue
):
    taken = "UPDATE study SET next_draw = next_draw + 5"
    if skips_queue:
        clients[0].no_queue_until_s = math.inf

    with waiting_ask(*clients, postgres_url, taken) as (study, ask, sent):
        pass

    assert ask.result().claimed.params == proposal_of(study, 6).params
    assert len(sent) == 1


def test_ask_that_finds_no_proposal_does_not_wait_in_the_queue_of_asks(clients):
    database, rival = clients
    study = new_study(database, num_trials=None)
    claimant = SimulatedWorker(database, study).claimant()

    rival.execute(f"SELECT pg_advisory_lock({proposals._QUEUE}, {study.id})")
    with database.begin(durable=False) as txn:
        asked = proposals.ask(txn, claimant, study_id=study.id, if_nothing_waits=False)

    # `rival` holds the queue's lock, so an ask that queues would raise LockTimeout.
    assert asked is None


def test_second_try_of_an_ask_finds_the_proposals_that_were_stored_while_it_waited(
    clients, postgres_url, monkeypatch
):
    monkeypatch.setattr(propose, "_last_due", lambda _: 0)
    taken = f"UPDATE study SET next_draw = {BLOCK}"

    with waiting_ask(*clients, postgres_url, taken) as (study, ask, sent):
        other = connect(postgres_url)
        propose_by_index(other, study, draws=range(BLOCK, 2 * BLOCK))
        other.close()

    assert ask.result().claimed.params == proposal_of(study, BLOCK).params
    asks = [sql for sql in sent if "INTO trial" in sql]
    assert len(asks) == 2
    assert not [sql for sql in sent if "INTO proposal" in sql]


@pytest.mark.parametrize("n_clients", [8])
def test_concurrent_first_asks_take_every_draw_once(storage_url, n_clients):
    database = connect(storage_url, connections=n_clients + 1)
    study = new_study(database, num_trials=4 * BLOCK, space=Space.read(SPACES["nested"]))

    def ask_all():
        worker, made = SimulatedWorker(database, study), 0
        while retry_while_busy(worker.ask) is not None:
            made += 1
        return made

    made = run_together([ask_all] * n_clients)

    assert sum(made) == 4 * BLOCK
    assert rows(database, "SELECT count(DISTINCT draw), max(draw) FROM trial") == [
        (4 * BLOCK, 4 * BLOCK - 1)
    ]
    database.close()


# --- unique params


def widths(database):
    """Read each trial's width and `is_unique`, in the order of numbers; NULL is read as False."""
    width = "CAST(params->>'width' AS integer)"
    found = rows(
        database, f"SELECT {width}, coalesce(is_unique, (1 = 0)) FROM trial ORDER BY number"
    )
    return [(width, bool(is_unique)) for width, is_unique in found]


def test_ask_skips_a_draw_whose_params_a_person_has_enqueued(database, unique_study):
    enqueued(database, unique_study, width=1)
    worker = SimulatedWorker(database, unique_study)

    runs = [worker.ask() for _ in range(4)]

    assert widths(database) == [(1, True), (0, True), (2, True), (3, True), (4, True)]
    assert [run.claimed.params["width"] for run in runs] == [0, 2, 3, 4]
    assert worker.ask() is None
    assert rows(database, "SELECT next_number, next_draw, n_counted FROM study") == [(5, 5, 5)]


def test_person_may_enqueue_the_params_of_a_trial_again(database, unique_study):
    SimulatedWorker(database, unique_study).ask()

    for width in (0, 3, 3):
        enqueued(database, unique_study, width=width)

    assert widths(database) == [(0, True), (0, False), (3, True), (3, False)]


def test_last_draw_is_skipped_if_its_params_exist(database, unique_study):
    enqueued(database, unique_study, width=4)
    worker = SimulatedWorker(database, unique_study)

    runs = [worker.ask() for _ in range(5)]

    assert runs[4] is None
    assert all(runs[:4])


def test_resent_ask_skips_no_draw(database, unique_study):
    worker = SimulatedWorker(database, unique_study)
    run = worker.ask("a" * 32)
    enqueued(database, unique_study, width=1)

    again = worker.ask("a" * 32)

    assert again.claimed == run.claimed
    assert rows(database, "SELECT next_draw FROM study") == [(1,)]


def test_duplicate_is_skipped_only_while_its_draw_is_the_next(database, unique_study):
    enqueued(database, unique_study, width=0)
    propose_by_index(database, unique_study, draws=range(5))

    def skip():
        with database.begin() as txn:
            return proposals.skip_duplicate(txn, study_id=unique_study.id)

    assert [skip() for _ in range(2)] == [True, False]


def test_concurrent_asks_and_enqueues_make_one_unique_trial_of_each_point(storage_url, monkeypatch):
    monkeypatch.setitem(BY_NAME, "UniqueGrid", UniqueGrid)
    database = connect(storage_url, connections=5)
    space = Space.read({"width": randint(0, 39)})
    study = new_study(database, space=space, searcher=UniqueGrid(), num_trials=None)

    def enqueue_some(first):
        for width in range(first, 40, 7):
            retry_while_busy(partial(enqueued, database, study, width=width))

    def ask_all():
        worker = SimulatedWorker(database, study)
        while retry_while_busy(worker.ask) is not None:
            pass

    run_together([ask_all, ask_all, partial(enqueue_some, 3), partial(enqueue_some, 39)])

    unique = sorted(width for width, is_unique in widths(database) if is_unique)
    assert unique == list(range(40))
    database.close()
