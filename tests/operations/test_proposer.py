"""One process at a time fits a study's model; each point is stored once, within the budget."""

import json

import pytest
from harness.arrange import (
    SimulatedWorker,
    change,
    enqueued,
    new_request,
    new_study,
    process,
    rows,
    run_together,
    token,
    unchanged_rows,
)
from harness.model_searcher import ModelSearch

from studydb.db import connect
from studydb.domain.errors import UnknownStudy
from studydb.domain.life.states import Origin, Status
from studydb.domain.space.search_space import Space, choice, loguniform, randint
from studydb.operations import control, proposer
from studydb.operations.ask import ask
from studydb.operations.delete import delete
from studydb.operations.proposer import LARGEST_BLOCK, Assignment, Point
from studydb.operations.register import leave
from studydb.operations.study_progress import read_progress

LEASE_S = 8.0


@pytest.fixture
def study(database):
    return new_study(database, searcher=ModelSearch())


def take(database, study, token_, worker_id=1):
    given = {"token": token_, "worker_id": worker_id, "lease_s": LEASE_S}
    return proposer.take_lease(database, study, **given)


def look(database, study, *, if_nothing_waits=False, token_="other"):
    return proposer.look(database, study, token=token_, if_nothing_waits=if_nothing_waits)


def is_proposed(database, study):
    """Return a `by_model` for `ask` that only tells whether the next draw has a proposal."""

    def by_model(_if_nothing_waits):
        seen = look(database, study)
        return seen is not None and seen.is_proposed

    return by_model


def points(*rates, origin=Origin.SEARCHER):
    return [Point({"lr": rate}, origin) for rate in rates]


def stored(database, study):
    """Read the draw, learning rate and origin of each proposal."""
    sql = f"SELECT draw, params, origin FROM proposal WHERE study_id = {study.id} ORDER BY draw"
    found = [(row[0], row[1], row[2]) for row in rows(database, sql)]
    return [(draw, _rate(params), origin) for draw, params, origin in found]


def _rate(params):
    return (json.loads(params) if isinstance(params, str) else params)["lr"]


def test_lease_is_given_to_one_token(database, study):
    assert take(database, study, "a") == Assignment(draw=0, n_points=1)

    assert take(database, study, "b") is None
    assert take(database, study, "a") == Assignment(draw=0, n_points=1)  # a duplicate request


def test_concurrent_takes_give_the_lease_to_one_process(database, storage_url, study):
    databases = [connect(storage_url) for _ in range(4)]

    taken = run_together(
        [
            lambda one=one, name=str(name): take(one, study, name)
            for name, one in enumerate(databases)
        ]
    )

    assert len([each for each in taken if each is not None]) == 1
    for one in databases:
        one.close()


def test_expired_lease_is_taken_by_another_process(database, clock, study):
    take(database, study, "a")
    clock.advance(LEASE_S - 1)
    assert take(database, study, "b") is None
    assert not look(database, study).is_free

    clock.advance(1)

    assert look(database, study).is_free
    assert take(database, study, "b") is not None


def test_renewed_lease_does_not_expire(database, clock, study):
    take(database, study, "a")
    clock.advance(LEASE_S - 1)

    assert proposer.renew_lease(database, study, token="a", lease_s=LEASE_S)

    clock.advance(LEASE_S - 1)
    assert take(database, study, "b") is None


def test_lost_lease_cannot_be_renewed(database, clock, study):
    take(database, study, "a")
    clock.advance(LEASE_S)
    take(database, study, "b")

    assert not proposer.renew_lease(database, study, token="a", lease_s=LEASE_S)


def test_lease_of_a_worker_that_has_ended_is_free(database, study):
    worker = SimulatedWorker(database, study)
    take(database, study, "a", worker_id=worker.id)
    assert not look(database, study).is_free

    leave(database, worker_id=worker.id)

    assert look(database, study).is_free
    assert take(database, study, "b") is not None


def test_lease_of_a_dead_process_of_this_host_is_given_up(database, study):
    worker = SimulatedWorker(database, study, of=process(pid=7))
    take(database, study, "a", worker_id=worker.id)

    assert not proposer.release_lease_of_dead(database, study, is_alive=lambda _: True)
    assert take(database, study, "b") is None
    assert proposer.release_lease_of_dead(database, study, is_alive=lambda holder: holder.pid != 7)

    assert take(database, study, "b") is not None


def test_block_is_stored_from_the_first_draw_without_a_proposal(database, study):
    take(database, study, "a")

    assert proposer.store_block(database, study, points(0.1, 0.2), token="a")

    assert stored(database, study) == [(0, 0.1, "searcher"), (1, 0.2, "searcher")]
    assert take(database, study, "b") is None  # the next draw has a proposal


def test_duplicate_request_stores_no_second_block(database, study):
    # If the point had to be unique, a second block would be empty, because the study has the point.
    # The test would then pass even if the duplicate request stored its block.
    block = [point._replace(is_unique=False) for point in points(0.1)]
    take(database, study, "a")
    proposer.store_block(database, study, block, token="a")

    assert proposer.store_block(database, study, block, token="a")

    assert stored(database, study) == [(0, 0.1, "searcher")]


def test_process_that_lost_the_lease_stores_nothing(database, clock, study):
    take(database, study, "a")
    clock.advance(LEASE_S)
    take(database, study, "b")

    with unchanged_rows(database):
        assert not proposer.store_block(database, study, points(0.1), token="a")
    assert proposer.store_block(database, study, points(0.2), token="b")


def test_points_that_a_trial_or_a_proposal_has_are_not_stored_again(database, study):
    enqueued(database, study, lr=0.1)
    take(database, study, "a")
    proposer.store_block(database, study, points(0.1, 0.2, 0.2, 0.3), token="a")

    assert stored(database, study) == [(0, 0.2, "searcher"), (1, 0.3, "searcher")]
    assert proposer.store_by_index(database, study, lambda _: points(0.3, 0.2, 0.4), draw=0)
    assert stored(database, study)[2:] == [(2, 0.4, "searcher")]


def test_point_for_a_deleted_study_is_refused(database, study):
    delete(database, study)

    with pytest.raises(UnknownStudy):
        proposer.store_by_index(database, study, lambda _: points(0.4), draw=0)


def test_block_stays_within_the_budget(database):
    study = new_study(database, searcher=ModelSearch(), num_trials=3)
    enqueued(database, study, lr=0.9)
    take(database, study, "a")

    proposer.store_block(database, study, points(0.1, 0.2, 0.3), token="a")

    assert [rate for _, rate, _ in stored(database, study)] == [0.1, 0.2]
    proposer.store_by_index(database, study, lambda _: points(0.4), draw=0)
    assert len(stored(database, study)) == 2


def test_block_has_a_quarter_as_many_points_as_running_trials_but_at_least_1_and_at_most_16(
    database,
):
    study = new_study(database, searcher=ModelSearch(), num_trials=100)
    worker = SimulatedWorker(database, study)
    sizes = {}
    for running in range(1, 81):
        enqueued(database, study, lr=running / 100)
        worker.claim()
        assigned = take(database, study, token())
        proposer.release_lease(database, study, token=_token_of(database, study))
        sizes[running] = assigned.n_points

    assert (sizes[3], sizes[8], sizes[64]) == (1, 2, LARGEST_BLOCK)
    assert sizes[80] == LARGEST_BLOCK


def _token_of(database, study):
    return rows(database, f"SELECT proposer_token FROM study WHERE id = {study.id}")[0][0]


def test_asker_stores_a_point_by_index_while_another_process_fits(database, study):
    take(database, study, "a")

    at = []
    proposer.store_by_index(
        database,
        study,
        lambda draw: (at.append(draw), points(0.5, origin=Origin.BY_INDEX))[1],
        draw=0,
    )
    proposer.store_block(database, study, points(0.1), token="a")

    assert at == [0]
    assert stored(database, study) == [(0, 0.5, "by index"), (1, 0.1, "searcher")]


def test_limited_number_of_points_by_index_is_stored_ahead(database, monkeypatch):
    monkeypatch.setattr(proposer, "MOST_BY_INDEX", 16)
    study = new_study(database, searcher=ModelSearch(), num_trials=100)
    for count in range(16 + 3):
        proposer.store_by_index(database, study, lambda _, n=count: points((n + 1) / 100), draw=0)

    assert len(stored(database, study)) == 16


def test_trial_is_made_from_the_stored_point(database, study):
    take(database, study, "a")
    proposer.store_block(database, study, points(0.25), token="a")
    worker = SimulatedWorker(database, study)

    claimed = ask(database, study, worker.claimant(), by_model=is_proposed(database, study))

    assert claimed.params == {"lr": 0.25}
    assert claimed.config == {"lr": 0.25, "epochs": 27}
    assert ask(database, study, worker.claimant(), by_model=is_proposed(database, study)) is None


def test_draw_is_skipped_if_a_person_enqueues_its_stored_point(database, study):
    take(database, study, "a")
    proposer.store_block(database, study, points(0.25, 0.5), token="a")
    enqueued(database, study, lr=0.25)

    claimed = ask(
        database,
        study,
        SimulatedWorker(database, study).claimant(),
        by_model=is_proposed(database, study),
    )

    assert claimed.params == {"lr": 0.5}
    assert read_progress(database, study).counts.total == 2


def test_proposer_has_nothing_to_do_while_no_trial_can_be_made(database, study):
    control.set_status(database, study, Status.PAUSED, new_request())
    assert look(database, study) is None
    assert take(database, study, "a") is None
    control.set_status(database, study, Status.RUNNING, new_request())
    enqueued(database, study, lr=0.1)

    assert look(database, study, if_nothing_waits=True) is None
    assert look(database, study) == (0, False, True)
    change(database, f"UPDATE study SET n_counted = 10 WHERE id = {study.id}")
    assert look(database, study) is None


def test_study_ends_when_no_point_is_left(database):
    space = Space.read({"lr": choice([0.1, 0.2]), "epochs": 27})
    study = new_study(database, searcher=ModelSearch(), space=space, num_trials=None)
    worker = SimulatedWorker(database, study)
    take(database, study, "a")
    proposer.store_block(database, study, points(0.1, 0.2), token="a")

    proposer.end_draws(database, study)

    for _ in range(2):
        assert ask(database, study, worker.claimant(), by_model=is_proposed(database, study))
    assert look(database, study) is None
    assert not read_progress(database, study).has_budget


def test_process_that_stores_no_points_releases_the_lease(database, study):
    take(database, study, "a")

    proposer.release_lease(database, study, token="a")

    assert take(database, study, "b") == Assignment(0, 1)
    with unchanged_rows(database):
        proposer.release_lease(database, study, token="a", no_point_left=True)


def test_next_holder_of_the_lease_begins_at_the_first_draw_without_a_proposal(database):
    space = Space.read({"lr": loguniform(1e-4, 1.0), "width": randint(1, 4)})
    study = new_study(database, searcher=ModelSearch(), space=space)
    take(database, study, "a")
    proposer.store_block(
        database, study, [Point({"lr": 0.1, "width": 1}, Origin.SEARCHER)], token="a"
    )
    ask(
        database,
        study,
        SimulatedWorker(database, study).claimant(),
        by_model=is_proposed(database, study),
    )

    assert take(database, study, "b") == Assignment(draw=1, n_points=1)
