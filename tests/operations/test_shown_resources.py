"""Views, data frames and `status` show what trials ask for, and what workers offer and use."""

import json

import pytest
from harness.arrange import SimulatedWorker, new_request, new_study, rows
from harness.nodes import Node
from harness.settings_requests import set_resources

from studydb.analysis.fit_text import load_text
from studydb.analysis.frames import trials_dataframe
from studydb.domain.life.states import Reason
from studydb.domain.records import Batch
from studydb.domain.resources import Resources, read_capacity, read_resources
from studydb.operations.enqueue import enqueue
from studydb.operations.finish import finish
from studydb.operations.retry import retry
from studydb.operations.workers import list_workers
from studydb.store import resource_classes


def as_json(value):
    return json.loads(value) if isinstance(value, str) else value


def shown(database, select):
    return [tuple(map(as_json, row)) for row in rows(database, select)]


def of_trials(database):
    return [row[0] for row in shown(database, "SELECT resources FROM v_trial ORDER BY number")]


def of_workers(database):
    select = "SELECT resources, uses, tags, reserved_for FROM v_worker ORDER BY started_at, worker"
    return shown(database, select)


def put(database, study, *requests):
    for one in requests:
        given = None if one is None else read_resources("r", one)
        enqueue(database, study, {}, new_request(), resources=given)


def test_v_trial_shows_what_each_trial_asks_for(database):
    study = new_study(database, resources=Resources(gpus=1), num_trials=20)
    put(database, study, None, "cpus=2, licence=0.5", {})

    assert of_trials(database) == [{"gpus": 1}, {"cpus": 2, "licence": 0.5}, {}]
    set_resources(database, study, Resources(gpus=2), [], new_request())
    assert of_trials(database)[0] == {"gpus": 2}
    assert list(trials_dataframe(database, study)["resources"]) == of_trials(database)


def test_v_trial_shows_no_resources_in_a_study_without_requests_for_resources(database):
    study = new_study(database)
    put(database, study, None)

    assert of_trials(database) == [None]
    assert trials_dataframe(database, study)["resources"].isna().all()


def test_v_worker_shows_what_a_worker_offers_and_uses(database):
    study = new_study(database, searcher=None, num_trials=20)
    put(database, study, "licence=0.1", "licence=0.2, gpus=1", "gpus=1", "gpus=9")
    offered = read_capacity(cpus=4, gpus=2, memory_gb=8, custom="licence=1", tags=["a100"])
    node = Node(database, study, offered)
    amounts = {"cpus": 4, "gpus": 2, "memory_gb": 8, "licence": 1}

    assert of_workers(database) == [(amounts, None, ["a100"], None)]
    claims = [node.start() for _ in range(3)]
    assert of_workers(database) == [(amounts, {"gpus": 2, "licence": 0.3}, ["a100"], None)]
    for claim in claims:
        node.end(claim)
    assert of_workers(database) == [(amounts, None, ["a100"], None)]


def test_v_worker_shows_no_offer_of_an_own_loop(database):
    study = new_study(database, num_trials=20, resources=Resources(gpus=1))
    worker = SimulatedWorker(database, study)
    worker.take()

    assert of_workers(database) == [(None, {"gpus": 1}, None, None)]


def uses(database, study):
    (load,) = list_workers(database, study).loads.values()
    return load_text(load)


@pytest.mark.parametrize("n_changes", [1, 2])
def test_a_worker_uses_what_its_attempt_holds_until_the_attempt_ends(database, n_changes):
    """A scheduler may change what a trial asks for while the trial's attempt still runs."""
    study = new_study(database, num_trials=20, searcher=None)
    put(database, study, "gpus=1")
    node = Node(database, study, read_capacity(gpus=4))
    held = node.start()

    for n in range(n_changes):
        change(database, study, held.lease, Resources(gpus=2 + n))

    asked_now = {"gpus": 1 + n_changes}
    assert of_trials(database) == [asked_now]
    assert of_workers(database)[0][1] == {"gpus": 1}
    assert uses(database, study).startswith("gpus=1 of ")
    node.end(held)
    assert of_workers(database)[0][1] is None


def test_the_next_attempt_uses_what_the_trial_asks_for_when_the_attempt_starts(database):
    study = new_study(database, num_trials=20, searcher=None)
    put(database, study, "gpus=1")
    node = Node(database, study, read_capacity(gpus=4))
    held = node.start()
    change(database, study, held.lease, Resources(gpus=2))
    give_back(node, held)

    assert node.start().lease.attempt == 2

    assert of_workers(database)[0][1] == {"gpus": 2}
    assert uses(database, study).startswith("gpus=2 of ")


def change(database, study, lease, request):
    with database.begin() as txn:
        name = resource_classes.add(txn, study_id=study.id, asked=request)
        resource_classes.move_of_attempt(txn, lease=lease, name=name)


def give_back(node, claim):
    finish(node.database, node.study, lease=claim.lease, outcome=Reason.PREEMPTED, batch=Batch(1))
    node.fitting.release(claim)


def test_worker_uses_what_a_clone_asks_for_although_the_request_of_its_parent_has_changed(database):
    study = new_study(database, num_trials=20)
    put(database, study, "gpus=1")
    node = Node(database, study, read_capacity(gpus=4))
    held = node.start()
    with database.begin() as txn:
        name = resource_classes.add(txn, study_id=study.id, asked=Resources(gpus=3))
        resource_classes.move_of_attempt(txn, lease=held.lease, name=name)
    node.end(held)

    retry(database, study, [0], new_request(), from_scratch=True)
    node.start()

    assert of_workers(database)[0][1] == {"gpus": 3}
