"""Operations on trials that ask for resources, arranged so that they can be sent again."""

from typing import Any

from harness.arrange import SimulatedWorker, enqueued, new_request, new_study
from harness.control_requests import Arranged, Call
from harness.settings_requests import set_resources
from studydb.db import Database
from studydb.domain.class_queues import ClassQueues
from studydb.domain.records import Study
from studydb.domain.resource_function import ResourceFunction, config_key
from studydb.domain.resources import Ledger, Resources, read_capacity, read_resources
from studydb.operations.ask import ask
from studydb.operations.claim_fitting import claim_fitting, read_queues
from studydb.operations.control import pause
from studydb.operations.enqueue import enqueue
from studydb.operations.leave_draw import leave_draw
from studydb.operations.propose import propose_by_index
from studydb.operations.record_devices import record_devices
from studydb.operations.reservations import reserve

ONE, TWO = read_resources("one", "gpus=1"), read_resources("two", "gpus=2")


def with_resources(database: Database, **overrides: Any) -> Study:
    """A study of three trials; a worker with one GPU can run the last two, and not the first."""
    study = new_study(database, **overrides)
    for asked in (TWO, ONE, None):
        enqueue(database, study, {"lr": 0.5}, new_request(), resources=asked)
    return study


def _claiming_what_fits(database: Database, **overrides: Any) -> Call:
    study = with_resources(database, **overrides)
    claimant = SimulatedWorker(database, study).claimant()
    queues = ClassQueues(Ledger(read_capacity(gpus=1)))
    read_queues(database, study, queues)

    def call(over: Database) -> Any:
        queues.forget()
        return claim_fitting(over, study, claimant, queues)

    return call


def _enqueueing_with_resources(database: Database) -> Call:
    study, request = new_study(database), new_request()
    return lambda over: enqueue(over, study, {"lr": 0.5}, request, resources=ONE)


def _setting_resources(database: Database) -> Call:
    study, request = with_resources(database), new_request()
    return lambda over: set_resources(over, study, TWO, [], request)


def _setting_resources_of_trials(database: Database) -> Call:
    study, request = with_resources(database), new_request()
    enqueued(database, study)
    return lambda over: set_resources(over, study, TWO, [1, 2], request)


def _reserving(database: Database) -> Call:
    study = with_resources(database)
    worker_id = SimulatedWorker(database, study).claimant().worker_id
    return lambda over: reserve(over, study, worker_id=worker_id, number=0)


def _withdrawing_a_reservation(database: Database) -> Call:
    study = with_resources(database)
    worker_id = SimulatedWorker(database, study).claimant().worker_id
    assert reserve(database, study, worker_id=worker_id, number=0)
    return lambda over: reserve(over, study, worker_id=worker_id, number=None)


def _setting_resources_of_a_paused_trial(database: Database) -> Call:
    study, request = with_resources(database), new_request()
    pause(database, study, [1], new_request())
    return lambda over: set_resources(over, study, TWO, [1, 2], request)


def _recording_devices(database: Database) -> Call:
    run = SimulatedWorker(database, new_study(database)).take()
    return lambda over: record_devices(over, run.lease, ["GPU-a", "GPU-b"])


BY_CONFIG = ResourceFunction("needs:f", ask=lambda _: Resources(custom={"licence": 1}))


def _asking_by_config(database: Database) -> Call:
    """The call also stores proposals, and the resource class of these proposals."""
    study = new_study(database, resources=BY_CONFIG)
    claimant = SimulatedWorker(database, study).claimant()
    return lambda over: ask(over, study, claimant)


def _enqueueing_by_config(database: Database) -> Call:
    study, request = new_study(database, resources=BY_CONFIG), new_request()
    params = {"lr": 0.5}
    answers = {config_key(study.space.config(params)): ONE}
    return lambda over: enqueue(over, study, params, request, answers=answers)


def leaving_a_draw(database: Database) -> Call:
    """The call leaves the only draw of the study to other workers."""
    study = new_study(database, resources=BY_CONFIG, num_trials=1)
    propose_by_index(database, study, draws=[0])
    return lambda over: leave_draw(over, study, fits=["gpus=1"], if_nothing_waits=False)


REQUESTS: dict[str, Arranged] = {
    "claim_what_fits": _claiming_what_fits,
    "enqueue_with_resources": _enqueueing_with_resources,
    "set_resources": _setting_resources,
    "set_resources_of_trials": _setting_resources_of_trials,
    "set_resources_of_a_paused_trial": _setting_resources_of_a_paused_trial,
    "reserve": _reserving,
    "ask_by_config": _asking_by_config,
    "enqueue_by_config": _enqueueing_by_config,
    "withdraw_a_reservation": _withdrawing_a_reservation,
    "record_devices": _recording_devices,
}
