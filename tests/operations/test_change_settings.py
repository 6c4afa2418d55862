"""Several settings of a study are changed together: all of them, or none."""

from uuid import uuid4

import pytest
from harness.arrange import SimulatedWorker, dump, enqueued, new_request, new_study, rows
from msgspec import structs

from studydb.domain.errors import InvalidSpec, NotAllowed, UnknownTrial
from studydb.domain.life.retention import Keep
from studydb.domain.limits import CostLimit
from studydb.domain.resources import Resources
from studydb.domain.trainable import Trainable, TrainableKind
from studydb.operations.change_settings import Changes, change_settings
from studydb.operations.create import load
from studydb.operations.refresh import refreshed
from studydb.store import resource_classes


def described(name):
    signatures = {"key": "mac"}
    return Trainable(str(uuid4()), TrainableKind.IMPORT, name, "/nowhere", "3.11", None, signatures)


SECOND = described("second:train")
VALID = {
    "resources": Resources(gpus=1),
    "keep": Keep(best=2, quota=1000),
    "limits": {"max_steps": 9},
    "checkpoints": "file:///second",
    "trainable": SECOND,
}
REFUSED = {
    "a limit that the study was created without": (NotAllowed, {"limits": {"time_limit_s": 60.0}}),
    "a cost limit on another metric": (
        NotAllowed,
        {"limits": {"cost_limit": CostLimit("eur", 1.0)}},
    ),
    "the removal of a limit": (NotAllowed, {"limits": {"max_steps": None}}),
    "resources of a missing trial": (UnknownTrial, {"resources": Resources(), "of_trials": [1, 7]}),
    "resources of a running trial": (NotAllowed, {"resources": Resources(), "of_trials": [0]}),
    "one resource class too many": (
        InvalidSpec,
        {"resources": Resources(memory_gb=7), "of_trials": [1]},
    ),
}


@pytest.fixture
def study(database):
    """A study with limits and a trainable; trial 0 is RUNNING, and trial 1 is PENDING."""
    limits = {"max_steps": 5, "cost_limit": CostLimit("usd", 10.0)}
    study = new_study(database, trainable=described("first:train"), **limits)
    SimulatedWorker(database, study).take()
    enqueued(database, study)
    return study


def use_all_resource_classes(database, study):
    with database.begin() as txn:
        for n in range(1, resource_classes.MOST):
            resource_classes.add(txn, study_id=study.id, asked=Resources(gpus=n))


PAIRS = [
    (valid, refused)
    for valid in VALID
    for refused, (_, changes) in REFUSED.items()
    if valid != "resources" or "resources" not in changes
]


@pytest.mark.parametrize(("valid", "refused"), PAIRS)
def test_nothing_is_changed_if_one_setting_is_refused(database, study, valid, refused):
    error, changes = REFUSED[refused]
    use_all_resource_classes(database, study)
    together = {valid: VALID[valid]} | changes
    if valid == "limits" and "limits" in changes:
        together["limits"] = VALID["limits"] | changes["limits"]
    before = dump(database)

    with pytest.raises(error):
        change_settings(database, study, Changes(**together), new_request())

    assert dump(database) == before


def test_all_settings_are_changed_and_each_is_recorded(database, study):
    change_settings(database, study, Changes(**VALID), new_request())

    now = load(database, study.name)
    assert (now.resources, now.keep) == (VALID["resources"], VALID["keep"])
    assert (now.limits.max_steps, now.limits.cost_limit) == (9, CostLimit("usd", 10.0))
    assert refreshed(database, study).checkpoints == "file:///second"
    assert structs.replace(now.trainable, source=None) == SECOND
    recorded = rows(database, "SELECT kind FROM event ORDER BY id DESC")[: len(VALID)]
    kinds = ["resources set", "retention set", "limits set", "checkpoints set", "revised"]
    assert [kind for (kind,) in recorded] == kinds[::-1]


def test_a_resent_change_of_several_settings_changes_nothing(database, study):
    first = new_request()
    change_settings(database, study, Changes(**VALID), first)
    later = VALID | {"keep": Keep(best=3), "limits": {"max_steps": 8}, "checkpoints": "inline:"}
    change_settings(database, study, Changes(**later), new_request())
    before = dump(database)

    change_settings(database, study, Changes(**VALID), first)

    assert dump(database) == before
