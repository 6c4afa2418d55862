"""Change what trials ask for."""

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from studydb.db import Txn
from studydb.domain.errors import NotAllowed
from studydb.domain.life.event_kinds import EventKind
from studydb.domain.life.states import State
from studydb.domain.records import Request, Study, TrialRow
from studydb.domain.resource_function import ResourceFunction, read_requested
from studydb.domain.resources import Resources
from studydb.operations.reads import existing_trial
from studydb.store import events, resource_classes, studies

_WAITING = (State.PENDING, State.PAUSED)


def set_resources(
    txn: Txn, study: Study, asked: Resources, numbers: Sequence[int], request: Request
) -> None:
    """
    Change what some trials ask for, or what all trials without their own request ask for.

    The request of a RUNNING trial cannot be changed, because the trial already holds what it asked
    for. If the study's request is changed, RUNNING trials keep what they hold, and their next
    attempts ask for the new amounts. The study's request is a single row, so the cost of a change
    does not grow with the number of trials. After an error, the transaction must be rolled back.

    Args:
        numbers: The numbers of the trials; empty to change the study's request.

    Raises:
        UnknownTrial: No such trial.
        NotAllowed: A trial runs or has ended; or `numbers` is empty, and a resource function says
            what the study's trials need.
        InvalidSpec: `numbers` is not empty, the study has 64 different requests already, and
            `asked` would be one more.
    """
    ordered = sorted(set(numbers))
    data = {"numbers": ordered, "resources": asked.to_json()}
    kind = EventKind.RESOURCES_SET
    events.append_request(txn, study_id=study.id, kind=kind, request=request, data=data)
    waiting = [_lock(txn, study, number) for number in ordered]  # lock order: ascending ids

    settings = studies.locked_settings(txn, study_id=study.id)
    if not ordered:
        _refuse_function(study, settings)
        resource_classes.set_of_study(txn, study_id=study.id, asked=asked)
        stored = {**settings, "resources": asked.to_json()}
        studies.store_settings(txn, study_id=study.id, settings=stored)
        return
    name = resource_classes.add(txn, study_id=study.id, asked=asked)
    resource_classes.move(
        txn, study_id=study.id, trial_ids=[trial.id for trial in waiting], name=name
    )


def _refuse_function(study: Study, settings: Mapping[str, Any]) -> None:
    requested = read_requested("resources", settings.get("resources"))
    if isinstance(requested, ResourceFunction):
        raise NotAllowed(
            f"What the trials of {study.name!r} need is computed by {requested}. Change that "
            "function, which is asked about each trial when it is proposed; or name the trials: "
            f"`studydb set {shlex.quote(study.name)} resources=… --trial N`."
        )


def _lock(txn: Txn, study: Study, number: int) -> TrialRow:
    trial = existing_trial(txn, study, number, lock=True)
    if trial.state not in _WAITING:
        raise NotAllowed(
            f"Trial {number} of {study.name!r} is {trial.state}; what a trial needs can be changed "
            "while it is PENDING or PAUSED. Pause a trial that runs first: "
            f"`studydb pause {shlex.quote(study.name)} {number}`."
        )
    return trial
