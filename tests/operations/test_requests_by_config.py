"""A resource function says what trials ask for; no lock is held while the function is asked."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from harness import arrange
from harness.arrange import SimulatedWorker, new_request, new_study, rows, unchanged_rows
from harness.model_searcher import ModelSearch
from harness.nodes import Node
from harness.settings_requests import set_resources
from msgspec import structs

from studydb.analysis.fit_text import fit_texts
from studydb.domain.deciding import DecisionFailed, NotAsked
from studydb.domain.errors import InvalidSpec, NotAllowed, StorageBusy
from studydb.domain.life.states import Status
from studydb.domain.resource_function import RequestNeeded, ResourceFunction
from studydb.domain.resources import Resources, read_capacity
from studydb.domain.space.search_space import Space, choice, randint
from studydb.lease import proposing
from studydb.lease.proposing import Proposer, Step
from studydb.operations import control, propose, requesting
from studydb.operations.ask import ask
from studydb.operations.enqueue import enqueue
from studydb.operations.leave_draw import leave_draw
from studydb.operations.overview import read_overview
from studydb.operations.propose import proposal_of, propose_by_index
from studydb.operations.requesting import store_proposals, with_answers
from studydb.operations.study_progress import read_progress
from studydb.searchers import RandomSearch
from studydb.store import resource_classes, set_aside

SPACE = Space.read({"size": randint(1, 1000), "kind": "k"})


class Needs:
    """
    A resource function that answers with the custom resources that `says` returns for a config.

    If `says` returns an exception, the function raises it. `configs` has the configs of all calls.
    """

    def __init__(self, says=lambda config: {"licence": 1 + config["size"] % 3}):
        self.says, self.configs = says, []

    def __call__(self, config):
        self.configs.append(config)
        answer = self.says(config)
        if isinstance(answer, Exception):
            raise answer
        return Resources(custom=answer)


def study_with(database, needs=None, **options):
    function = ResourceFunction("needs:f", ask=needs or Needs())
    given = {"space": SPACE, "num_trials": 200, "resources": function}
    return new_study(database, **given | options)


def classes(database, column="resource_class", table="trial", order="number"):
    found = rows(database, f"SELECT {column} FROM {table} ORDER BY {order}")
    return [row[0] for row in found]


def test_a_trial_asks_for_what_its_proposal_says(database):
    needs = Needs()
    worker = SimulatedWorker(database, study_with(database, needs))

    runs = [worker.ask() for _ in range(3)]

    said = [str(Resources(custom=needs.says(run.claimed.config))) for run in runs]
    assert [run.claimed.resource_class for run in runs] == said
    assert classes(database) == said


def test_the_function_is_asked_once_for_each_draw(database):
    needs = Needs()
    worker = SimulatedWorker(database, study_with(database, needs, num_trials=30))

    for _ in range(30):
        worker.take()

    assert len(needs.configs) == 30


def test_a_study_with_a_resource_function_has_resource_classes_from_its_first_trial(database):
    study = study_with(database)
    node = Node(database, study, read_capacity(custom={"licence": 3}))

    node.start()

    assert node.fitting.is_classed
    assert study.common_request == Resources()


def test_a_resent_ask_returns_its_trial_with_the_same_request(database):
    worker = SimulatedWorker(database, study_with(database))
    token = arrange.token()
    first = worker.ask(token)

    again = worker.ask(token)

    assert again.claimed.resource_class == first.claimed.resource_class == classes(database)[0]


def test_each_trial_that_does_not_fit_a_worker_is_left_to_other_workers(database):
    study = study_with(database)
    small = Node(database, study, read_capacity(custom={"licence": 2}))
    large = Node(database, study, read_capacity(custom={"licence": 3}))

    taken = [small.start() for _ in range(20)]

    held = {claim.resource_class for claim in taken if claim}
    assert held <= {"licence=1", "licence=2"}
    states = rows(database, "SELECT resource_class, state FROM trial ORDER BY number")
    waiting = [name for name, state in states if state == "PENDING"]
    assert waiting
    assert set(waiting) <= {"licence=2", "licence=3"}
    assert large.start().resource_class == waiting[0]


def taking(database, node, n):
    """Search for a trial `n` times, and end each trial that is found."""
    for _ in range(n):
        if (claim := node.start()) is not None:
            node.end(claim)


def mostly_large(config):
    return {"licence": 1 if config["size"] % 4 == 0 else 9}


def n_left(database, searcher):
    """Let a small worker search 60 times; return how many trials it has set aside for others."""
    study = study_with(database, Needs(mostly_large), searcher=searcher)
    node = Node(database, study, read_capacity(custom={"licence": 1}))

    taking(database, node, 60)

    assert node.start() is None
    assert not node.acquirer.look().can_claim
    waiting = rows(database, "SELECT resource_class FROM trial WHERE state = 'PENDING'")
    assert set(waiting) == {("licence=9",)}
    return len(waiting)


def test_at_most_sixteen_trials_of_a_class_are_set_aside_if_the_searcher_learns(database):
    assert n_left(database, ModelSearch()) == 16


def test_many_trials_of_a_class_are_set_aside_if_the_searcher_does_not_learn(database, monkeypatch):
    assert set_aside.MOST == 1000
    monkeypatch.setattr(set_aside, "MOST", 30)

    assert n_left(database, RandomSearch()) == 30


def test_an_idle_worker_may_make_a_trial_once_another_worker_has_claimed_a_waiting_trial(
    database, monkeypatch
):
    """While five trials wait, no sixth is set aside, so the small worker reaches no later draw."""
    monkeypatch.setattr(set_aside, "MOST", 5)
    study = study_with(database, Needs(mostly_large))
    small = Node(database, study, read_capacity(custom={"licence": 1}))
    large = Node(database, study, read_capacity(custom={"licence": 18}))
    taking(database, small, 30)
    large.start()
    taking(database, small, 30)
    assert not small.acquirer.look().can_claim

    large.start()

    assert small.acquirer.look().can_claim


@pytest.mark.parametrize(
    ("licence", "said"),
    [
        (
            1,
            "5 trials that ask for licence=9 wait, and fit no live worker. Start a worker that",
        ),
        (9, "5 trials that ask for licence=9 wait for the workers that they fit. Start more such"),
    ],
    ids=["no worker fits them", "a worker fits them"],
)
def test_status_says_why_no_new_trial_is_made(database, monkeypatch, licence, said):
    monkeypatch.setattr(set_aside, "MOST", 5)
    study = study_with(database, Needs(mostly_large))
    small = Node(database, study, read_capacity(custom={"licence": 1}))
    assert "No new trial" not in shown_resources(database, study)
    taking(database, small, 30)
    Node(database, study, read_capacity(custom={"licence": licence}))

    assert f"No new trial is made: {said}" in shown_resources(database, study)

    number = rows(database, "SELECT min(number) FROM trial WHERE state = 'PENDING'")[0][0]
    control.stop(database, study, [number], new_request())
    assert "No new trial" not in shown_resources(database, study)


def shown_resources(database, study):
    return " ".join(fit_texts(read_overview(database, study).fit))


def test_no_trial_is_set_aside_while_the_worker_could_start_no_trial_of_any_class(database):
    """Each trial needs two of the worker's three licences; while a trial runs, no other is made."""
    node = Node(
        database,
        study_with(database, Needs(lambda _: {"licence": 2})),
        read_capacity(custom={"licence": 3}),
    )

    assert [node.number(), node.number()] == [0, None]

    assert classes(database) == ["licence=2"]
    assert not node.acquirer.look().can_claim


def test_a_look_sees_that_the_next_draw_fits_after_a_trial_has_ended(database):
    node = Node(
        database,
        study_with(database, Needs(lambda _: {"licence": 2})),
        read_capacity(custom={"licence": 3}),
    )
    held = node.start()
    assert node.start() is None
    assert not node.acquirer.look().can_claim

    node.end(held)

    assert node.acquirer.look().can_claim
    assert node.number() == 1


def test_a_draw_is_left_to_other_workers_once_however_often_the_request_is_sent(database):
    study = study_with(database, Needs(lambda _: {"licence": 9}))
    propose_by_index(database, study, draws=range(3))

    assert leave_draw(database, study, fits=["licence=1"], if_nothing_waits=False)

    with unchanged_rows(database):
        assert set_aside_of(database, study, draw=0) is None
    assert classes(database, "draw") == [0]
    assert read_progress(database, study).counts.pending == 1


def set_aside_of(database, study, *, draw):
    with database.begin() as txn:
        return set_aside.take_draw(txn, study_id=study.id, draw=draw, most=16)


@pytest.mark.parametrize("status", [Status.PAUSED, Status.STOPPED])
def test_no_draw_is_left_to_other_workers_in_a_study_that_does_not_run(database, status):
    study = study_with(database, Needs(lambda _: {"licence": 9}))
    propose_by_index(database, study, draws=range(3))
    control.set_status(database, study, status, new_request())

    assert not leave_draw(database, study, fits=["licence=1"], if_nothing_waits=False)
    assert set_aside_of(database, study, draw=0) is None


def test_no_draw_is_left_to_other_workers_once_the_budget_is_spent(database):
    study = study_with(database, Needs(lambda _: {"licence": 9}), num_trials=1)
    propose_by_index(database, study, draws=range(3))

    assert leave_draw(database, study, fits=["licence=1"], if_nothing_waits=False)
    assert not leave_draw(database, study, fits=["licence=1"], if_nothing_waits=False)
    assert set_aside_of(database, study, draw=1) is None
    assert classes(database) == ["licence=9"]


def test_a_draw_whose_params_exist_is_skipped_and_not_left_to_other_workers(database):
    space = Space.read({"size": choice([1, 2])})
    study = study_with(
        database, Needs(lambda _: {"licence": 9}), space=space, searcher=ModelSearch()
    )
    first = proposer_of(database, study)
    assert first.advance(if_nothing_waits=False) is Step.ASK
    params = rows(database, "SELECT params FROM proposal")[0][0]
    arrange.change(
        database,
        "INSERT INTO proposal (study_id, draw, params, params_hash, config, origin, space_version, "
        "bracket, is_unique, proposed_at, resource_class) SELECT study_id, 1, params, params_hash, "
        "config, origin, space_version, bracket, is_unique, proposed_at, resource_class "
        "FROM proposal",
    )

    for _ in range(2):
        assert leave_draw(database, study, fits=["licence=1"], if_nothing_waits=False)

    assert params is not None
    assert classes(database) == ["licence=9"]
    assert rows(database, "SELECT next_draw, next_number FROM study") == [(2, 1)]


def test_a_failure_at_a_later_draw_pauses_the_study_when_that_draw_is_due(database):
    """The function fails for the config of draw 3; the trials of draws 0 to 2 are still made."""
    bad = {}

    def says(config):
        bad.setdefault("sizes", []).append(config["size"])
        if config["size"] == bad.get("size"):
            return DecisionFailed("it raised ValueError: no.")
        return {"licence": 1}

    drawn = study_with(database)
    sizes = [drawn.searcher.propose(SPACE, seed=drawn.seed, draw=draw)["size"] for draw in range(5)]
    bad["size"] = sizes[3]
    study = study_with(database, Needs(says))
    worker = SimulatedWorker(database, study)

    runs = [worker.ask() for _ in range(3)]
    assert read_progress(database, study).status is Status.RUNNING
    refused = worker.ask()

    assert all(run is not None for run in runs)
    assert refused is None
    progress = read_progress(database, study)
    assert progress.status is Status.PAUSED
    assert progress.keeps_workers
    assert "the resource function needs:f(config) has not said" in progress.pause_reason
    assert "no." in progress.pause_reason
    assert runs[0].report(0.5).verdict is None  # a running trial goes on

    bad["size"] = None
    control.set_status(database, study, Status.RUNNING, new_request())
    assert worker.ask() is not None


def test_a_stopping_process_makes_no_trial_and_does_not_pause_the_study(database):
    study = study_with(database, Needs(lambda _: NotAsked()))

    assert SimulatedWorker(database, study).ask() is None

    assert read_progress(database, study).status is Status.RUNNING


def test_a_slow_function_is_asked_about_only_a_few_draws_ahead(database, monkeypatch):
    clock = iter(range(1000))
    monkeypatch.setattr(requesting, "monotonic", lambda: next(clock) * 0.2)
    needs = Needs()
    worker = SimulatedWorker(database, study_with(database, needs))

    worker.take()

    assert len(needs.configs) < 10  # a block has 64 draws, and further blocks are due


def test_the_65th_resource_class_pauses_the_study_when_its_draw_is_due(database):
    needs = Needs(lambda config: {"licence": config["size"]})
    study = study_with(database, needs)
    worker = SimulatedWorker(database, study)

    made = 0
    while worker.ask() is not None:
        made += 1

    progress = read_progress(database, study)
    assert progress.status is Status.PAUSED
    assert "64 different sets of resources already" in progress.pause_reason
    assert made == len(classes(database)) >= 63
    assert rows(database, "SELECT count(*) FROM resource_class") == [(64,)]


def test_the_65th_resource_class_at_a_later_draw_does_not_pause_the_study(database, monkeypatch):
    """Each proposal is stored in a separate transaction, as if its config were large."""
    monkeypatch.setattr(propose, "MOST_BYTES", 1)
    monkeypatch.setattr(requesting, "ASKING_S", 600.0)
    needs = Needs(lambda config: {"licence": config["size"]})
    study = study_with(database, needs, num_trials=70)

    propose_by_index(database, study, draws=range(70))

    n_stored = len(classes(database, table="proposal", order="draw"))
    assert 60 < n_stored < 70
    with pytest.raises(DecisionFailed, match="64 different sets of resources already"):
        propose_by_index(database, study, draws=range(n_stored, 70))


def test_of_two_processes_only_one_adds_the_64th_resource_class(connections):
    """A proposal of a new class is stored while a person enqueues a trial of another new class."""
    worker, person = connections
    study = study_with(worker, Needs(lambda _: {"licence": 1}))
    with worker.begin() as txn:
        for number in range(62):
            asked = Resources(custom={"tape": number + 1})
            resource_classes.add(txn, study_id=study.id, asked=asked)
    one = structs.replace(proposal_of(study, 0), request=Resources(custom={"licence": 1}))

    with ThreadPoolExecutor() as threads:
        with worker.begin() as txn:
            store_proposals(txn, study, {0: one})
            given = {"resources": Resources(gpus=1)}
            added = threads.submit(enqueue, person, study, {}, new_request(), **given)
            with pytest.raises(TimeoutError):
                added.result(timeout=0.5)  # the enqueue waits for the lock of the study's row
        with pytest.raises(InvalidSpec, match="64 different sets"):
            added.result(timeout=30)

    assert rows(worker, "SELECT count(*) FROM resource_class") == [(64,)]


def test_an_ask_is_refused_in_a_process_that_cannot_call_the_function(database):
    study = study_with(database)
    mute = replace(study, resources=ResourceFunction("needs:f"))

    with pytest.raises(NotAllowed, match="this process cannot ask it"):
        ask(database, mute, SimulatedWorker(database, study).claimant())


def test_status_does_not_call_the_next_trial_a_misfit(database):
    """What the next trial asks for is unknown. Only PENDING trials that fit no worker are shown."""
    study = study_with(database)
    Node(database, study, read_capacity())

    assert read_overview(database, study).fit.misfits == []


def test_resources_that_a_function_computes_can_be_set_for_a_trial_but_not_for_the_study(database):
    study = study_with(database)

    with pytest.raises(NotAllowed, match="is computed by needs:f"):
        set_resources(database, study, Resources(gpus=1), [], new_request())

    number = with_answers(
        study, lambda known: enqueue(database, study, {}, new_request(), answers=known)
    )
    set_resources(database, study, Resources(gpus=1), [number], new_request())
    assert classes(database) == ["gpus=1"]


def test_an_enqueued_trial_asks_for_what_the_function_says_of_the_config_that_it_gets(database):
    """
    Params that an enqueue does not give depend on the trial's number.

    Before the second send, another enqueue takes number 0. So the trial gets number 1 and another
    config, and the function is asked again.
    """
    needs = Needs()
    study = study_with(database, needs)
    request = new_request()

    def send(known):
        if len(known) == 1:
            enqueue(database, study, {"size": 5}, new_request(), resources=Resources(gpus=1))
        return enqueue(database, study, {}, request, answers=known)

    number = with_answers(study, send)

    assert number == 1
    asked = str(Resources(custom=needs.says(arrange.trial_of(database, study, 1).config)))
    assert classes(database) == ["gpus=1", asked]
    assert len(needs.configs) == 2


def test_a_resent_enqueue_does_not_ask_the_function_again(database):
    needs = Needs()
    study, request = study_with(database, needs), new_request()
    first = with_answers(study, lambda known: enqueue(database, study, {}, request, answers=known))

    with unchanged_rows(database):
        again = enqueue(database, study, {}, request)

    assert (first, again) == (0, 0)
    assert len(needs.configs) == 1


def test_an_enqueue_without_the_functions_answer_stores_nothing(database):
    study = study_with(database)

    with unchanged_rows(database), pytest.raises(RequestNeeded):
        enqueue(database, study, {}, new_request())


def test_an_enqueue_whose_config_changes_each_time_gives_up(database):
    study = study_with(database)

    def send(known):
        raise RequestNeeded({"size": len(known)})

    with pytest.raises(StorageBusy, match="Nothing was stored"):
        with_answers(study, send)


def proposer_of(database, study):
    return Proposer(
        database, study, study.searcher, worker_id=arrange.register_worker(database, study)
    )


def test_a_point_of_a_model_asks_for_what_the_function_says_of_its_config(database):
    needs = Needs()
    study = study_with(database, needs, searcher=ModelSearch())
    asker = proposer_of(database, study)

    assert asker.advance(if_nothing_waits=False) is Step.ASK

    assert classes(database, table="proposal", order="draw") == [
        str(Resources(custom=needs.says(needs.configs[0])))
    ]


def test_a_function_that_fails_for_a_models_point_pauses_the_study_and_frees_the_proposers_lease(
    database,
):
    needs = Needs(lambda _: DecisionFailed("it hangs."))
    study = study_with(database, needs, searcher=ModelSearch())
    asker = proposer_of(database, study)

    assert asker.advance(if_nothing_waits=False) is not Step.ASK

    assert read_progress(database, study).status is Status.PAUSED
    assert rows(database, "SELECT proposer_expires_at FROM study") == [(None,)]
    assert classes(database, table="proposal", order="draw") == []


def test_a_point_by_index_asks_for_what_the_function_says_of_its_config(database, monkeypatch):
    """Another process fits the model; the asker has waited long enough."""
    needs = Needs()
    study = study_with(database, needs, searcher=ModelSearch())
    holder = proposer_of(database, study)
    monkeypatch.setattr(holder, "_choose", lambda _: (_ for _ in ()).throw(StorageBusy("later")))
    with pytest.raises(StorageBusy):
        holder.advance(if_nothing_waits=False)
    now_s = [100.0]
    monkeypatch.setattr(proposing, "monotonic", lambda: now_s[0])
    asker = proposer_of(database, study)
    assert asker.advance(if_nothing_waits=False) is Step.WAIT

    now_s[0] += 60.0
    assert asker.advance(if_nothing_waits=False) is Step.ASK

    assert classes(database, table="proposal", order="draw") == [
        str(Resources(custom=needs.says(needs.configs[-1])))
    ]
