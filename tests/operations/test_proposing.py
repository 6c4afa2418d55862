"""An asker fits the model, or waits for the process that fits it, or takes a point by index."""

import threading
from types import SimpleNamespace

import pytest
from harness.arrange import (
    Run,
    SimulatedWorker,
    change,
    new_request,
    new_study,
    retry_while_busy,
    rows,
    run_together,
)
from harness.model_searcher import ModelSearch, TestModel

from studydb.analysis.overview_text import problem_text
from studydb.db import connect
from studydb.domain.canonical import params_hash
from studydb.domain.errors import InvalidSpec, StorageBusy
from studydb.domain.life.states import Origin, Status
from studydb.domain.space.search_space import Space, choice, randint
from studydb.lease import proposing
from studydb.lease.acquire import Acquirer
from studydb.lease.proposing import Proposer, Step
from studydb.operations import control, proposer
from studydb.operations.enqueue import enqueue
from studydb.operations.overview import study_problems
from studydb.operations.reads import list_trials

LEASE_S = 90.0


@pytest.fixture
def study(database):
    return new_study(database, searcher=ModelSearch(), num_trials=20)


@pytest.fixture
def timer(monkeypatch):
    """The clock that measures waits; the test advances it."""
    timer = SimpleNamespace(now_s=100.0)
    monkeypatch.setattr(proposing, "monotonic", lambda: timer.now_s)
    return timer


@pytest.fixture
def models(monkeypatch):
    """The models that are made in this test."""
    made = []
    monkeypatch.setattr(ModelSearch, "models", made)
    return made


class Asker:
    """A process that acquires trials; `take` leaves a trial RUNNING, and `finished` ends it."""

    def __init__(self, database, study):
        self.worker = SimulatedWorker(database, study)
        self.acquirer = Acquirer(database, study, worker_id=self.worker.id, lease_s=LEASE_S)

    def take(self):
        return self.acquirer.acquire()

    def run(self, n):
        return [self.finished(self.take()) for _ in range(n)]

    def finished(self, claimed):
        Run(self.worker, claimed).finish(claimed.params["lr"])
        return claimed.params


@pytest.fixture
def asker(database, study):
    return Asker(database, study)


def held_by_another(database, study, token="another"):
    """Let another process have the proposer's lease."""
    assert proposer.take_lease(database, study, token=token, worker_id=0, lease_s=60.0)


def origins(database, study):
    return [trial.origin for trial in list_trials(database, study)]


def test_lone_asker_gets_every_point_from_the_model(database, study, asker, models):
    params = asker.run(20)

    assert asker.take() is None
    assert origins(database, study) == [Origin.SEARCHER] * 20
    assert [one.params for one in list_trials(database, study)] == params
    assert len(models) == 1


def test_lone_asker_gets_the_same_points_after_restarts(database, study):
    other = new_study(database, searcher=ModelSearch(), num_trials=20)

    whole = Asker(database, study).run(12)
    parts = [one for n in (5, 1, 6) for one in Asker(database, other).run(n)]

    assert parts == whole


def test_model_is_told_only_what_has_changed(asker, models):
    asker.run(3)
    running = asker.take()
    asker.run(1)

    told = [[one.number for one in call] for call in models[0].calls]
    # The first ask tells the model nothing; each later ask tells it of the previous ask's trial.
    assert [numbers for numbers in told if numbers] == [[0], [1], [2], [3]]
    assert models[0].told[3].reason is None
    assert running.lease.number == 3


def test_asker_waits_while_another_process_fits(database, study, asker, timer):
    held_by_another(database, study)

    assert asker.take() is None
    assert asker.acquirer.poll_wait_s is not None
    timer.now_s += 0.99
    assert asker.take() is None
    assert asker.acquirer.poll_wait_s == pytest.approx(0.01)

    timer.now_s += 0.01
    claimed = asker.take()

    assert claimed is not None
    assert asker.acquirer.poll_wait_s is None
    assert origins(database, study) == [Origin.BY_INDEX]
    expected = ModelSearch().propose(study.space, seed=study.seed, draw=0)
    assert claimed.params == expected


def test_waiting_asker_writes_nothing(database, study, asker, timer):
    held_by_another(database, study)
    asker.take()
    sent = []
    database.observer = sent.append

    asker.take()

    database.observer = None
    assert not [sql for sql in sent if "INSERT" in sql or "UPDATE" in sql]


@pytest.mark.parametrize(("mean_s", "wait_s"), [(0.0, 1.0), (100.0, 10.0), (6000.0, 60.0)])
def test_wait_is_a_tenth_of_the_mean_time_of_a_trial_but_at_least_1_s_and_at_most_60_s(
    database, study, timer, mean_s, wait_s
):
    asker = Asker(database, study)
    asker.run(1)
    change(database, f"UPDATE trial SET time_total_s = {mean_s}")
    held_by_another(database, study)

    asker.take()
    timer.now_s += wait_s - 0.01
    assert asker.take() is None
    timer.now_s += 0.02

    assert asker.take() is not None


def test_waiting_asker_takes_the_points_of_the_other_process(database, study, asker, timer):
    held_by_another(database, study)
    assert asker.take() is None

    point = proposer.Point({"lr": 0.25}, Origin.SEARCHER)
    proposer.store_block(database, study, [point], token="another")

    assert asker.take().params == {"lr": 0.25}


def test_waiting_asker_takes_a_trial_that_becomes_pending(database, study, asker, timer):
    held_by_another(database, study)
    assert asker.take() is None

    enqueue(database, study, {"lr": 0.5}, new_request())

    assert asker.take().params == {"lr": 0.5}


def test_waiting_asker_notices_that_the_study_is_paused(database, study, asker, timer):
    held_by_another(database, study)
    assert asker.take() is None

    control.set_status(database, study, Status.PAUSED, new_request())

    assert asker.take() is None
    assert asker.acquirer.poll_wait_s is None


def test_waiting_asker_fits_when_the_lease_expires(database, study, asker, timer, clock):
    held_by_another(database, study)
    assert asker.take() is None

    clock.advance(60.0)

    assert asker.take() is not None
    assert origins(database, study) == [Origin.SEARCHER]


def test_asker_takes_the_proposers_lease_again_if_the_points_of_its_fit_could_not_be_stored(
    database, study, asker, monkeypatch
):
    store = proposer.store_block
    monkeypatch.setattr(proposer, "store_block", _raise_once(StorageBusy("away"), then=store))

    with pytest.raises(StorageBusy):
        asker.take()

    assert asker.take() is not None
    assert origins(database, study) == [Origin.SEARCHER]


def test_points_of_a_fit_are_stored_once_if_the_reply_is_lost(database, study, asker, monkeypatch):
    store = proposer.store_block

    def store_without_reply(*args, **given):
        store(*args, **given)
        raise StorageBusy("away")

    monkeypatch.setattr(proposer, "store_block", store_without_reply)
    with pytest.raises(StorageBusy):
        asker.take()
    monkeypatch.setattr(proposer, "store_block", store)
    (n_stored,) = rows(database, "SELECT count(*) FROM proposal")

    asker.run(3)

    assert n_stored > (0,)
    assert rows(database, "SELECT next_draw FROM study") == [(3,)]
    assert origins(database, study) == [Origin.SEARCHER] * 3


def test_duplicate_request_to_store_a_block_stores_nothing_and_gets_the_first_answer(
    database, study
):
    points = [proposer.Point({"lr": lr}, Origin.SEARCHER) for lr in (0.25, 0.5)]
    held_by_another(database, study)

    answers = [
        proposer.store_block(database, study, points, token=token)
        for token in ("another", "another", "third")
    ]

    assert answers == [True, True, False]
    assert rows(database, "SELECT count(*) FROM proposal") == [(2,)]


def _raise_once(error, *, then):
    raised = []

    def call(*args, **given):
        if not raised:
            raised.append(error)
            raise error
        return then(*args, **given)

    return call


@pytest.mark.parametrize("method", ["tell", "propose"])
def test_trials_come_by_index_while_the_model_fails(database, study, asker, monkeypatch, method):
    def fail(*_, **__):
        raise RuntimeError("broken")

    with monkeypatch.context() as patch:
        patch.setattr(TestModel, method, fail)
        asker.run(3)
    asker.run(1)

    assert origins(database, study) == [Origin.BY_INDEX] * 3 + [Origin.SEARCHER]
    (problem,) = study_problems(database, study)
    assert (problem.kind, problem.times, problem.number) == ("model failed", 1, None)
    assert problem_text(problem) == "model failed: RuntimeError: broken"


def test_asker_gives_up_the_lease_if_a_package_of_the_model_is_missing(
    database, study, asker, monkeypatch
):
    monkeypatch.setattr(TestModel, "propose", _raise_once(InvalidSpec("missing"), then=None))

    with pytest.raises(InvalidSpec):
        asker.take()

    assert proposer.take_lease(database, study, token="other", worker_id=0, lease_s=8.0)


def test_asker_makes_a_new_model_after_the_database_was_restored(database, study, asker, models):
    asker.run(3)
    change(
        database, "UPDATE trial SET uuid = '00000000-0000-4000-8000-000000000000' WHERE number = 1"
    )

    asker.run(1)

    assert len(models) == 2
    assert sorted(models[1].told) == [0, 1, 2]


@pytest.mark.slow
def test_lease_is_renewed_during_a_long_fit(database, study, monkeypatch):
    monkeypatch.setattr(proposing, "PROPOSER_LEASE_S", 0.5)
    asker, seen = Asker(database, study), []
    fit = TestModel.propose

    def fit_slowly(self, n, *, draw):
        ended = threading.Event()
        for _ in range(4):
            ended.wait(0.3)
            seen.append(
                proposer.look(database, study, token="other", if_nothing_waits=False).is_free
            )
        return fit(self, n, draw=draw)

    monkeypatch.setattr(TestModel, "propose", fit_slowly)

    assert retry_while_busy(asker.take) is not None
    assert seen == [False] * 4


def test_process_that_lost_its_lease_stores_nothing(database, study, asker, timer, monkeypatch):
    def lose(self, n, *, draw):
        change(database, "UPDATE study SET proposer_token = 'another'")
        return [{"lr": 0.123}]

    monkeypatch.setattr(TestModel, "propose", lose)

    assert asker.take() is None
    assert rows(database, "SELECT count(*) FROM proposal") == [(0,)]


def test_threads_of_a_process_fit_one_at_a_time(database, study, monkeypatch, storage_url):
    shared = Proposer.of(database, study, worker_id=0)
    inside, go = threading.Event(), threading.Event()
    fit = TestModel.propose

    def hold(self, n, *, draw):
        inside.set()
        assert go.wait(20)
        return fit(self, n, draw=draw)

    monkeypatch.setattr(TestModel, "propose", hold)
    first = threading.Thread(target=shared.advance, kwargs={"if_nothing_waits": False})
    first.start()
    assert inside.wait(20)

    assert shared.advance(if_nothing_waits=False) is Step.WAIT

    go.set()
    first.join()
    assert shared.advance(if_nothing_waits=False) is Step.ASK


FINITE = Space.read({"lr": choice([0.1, 0.2, 0.3]), "width": randint(1, 4), "epochs": 27})


def test_each_point_of_a_finite_space_is_tried_once(database):
    study = new_study(database, searcher=ModelSearch(), space=FINITE, num_trials=None)
    asker = Asker(database, study)
    enqueue(database, study, {"lr": 0.2, "width": 3}, new_request())

    params = asker.run(12)

    assert len({params_hash(one) for one in params}) == 12
    assert asker.take() is None
    progress = asker.acquirer.look()
    assert progress.status is Status.FINISHED


def test_points_by_index_of_a_finite_space_are_tried_once(database, timer):
    study = new_study(database, searcher=ModelSearch(), space=FINITE, num_trials=None)
    asker, params = Asker(database, study), []
    held_by_another(database, study)

    for _ in range(12):
        assert asker.take() is None
        timer.now_s += 1.0
        params.append(asker.finished(asker.take()))

    assert len({params_hash(one) for one in params}) == 12
    assert set(origins(database, study)) == {Origin.BY_INDEX}
    asker.take()
    timer.now_s += 1.0
    assert asker.take() is None
    assert asker.acquirer.look().status is Status.FINISHED


def test_study_of_one_point_makes_one_trial(database):
    space = Space.read({"lr": choice([0.1]), "epochs": 27})
    asker = Asker(database, new_study(database, searcher=ModelSearch(), space=space))

    assert asker.run(1) == [{"lr": 0.1}]
    assert asker.take() is None


def test_concurrent_askers_make_exactly_num_trials(storage_url):
    n_askers = 6
    databases = [connect(storage_url) for _ in range(n_askers)]
    study = new_study(databases[0], searcher=ModelSearch(), space=FINITE, num_trials=12)

    def work(database):
        asker, n_made = Asker(database, study), 0
        while n_made < 20:
            claimed = retry_while_busy(asker.take)
            if claimed is not None:
                retry_while_busy(lambda claimed=claimed: asker.finished(claimed))
                n_made += 1
            elif (wait_s := asker.acquirer.poll_wait_s) is not None:
                threading.Event().wait(wait_s)
            elif not retry_while_busy(asker.acquirer.look).can_claim:
                return n_made
        return n_made

    made = run_together([lambda one=one: work(one) for one in databases])

    trials = list_trials(databases[0], study)
    assert sum(made) == len(trials) == 12
    assert len({params_hash(one.params) for one in trials}) == 12
    for one in databases:
        one.close()
