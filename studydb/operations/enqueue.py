"""Add a PENDING trial that a person asks for."""

import shlex
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from studydb.db import Database, Txn
from studydb.db.faults import Duplicate
from studydb.domain.errors import BudgetSpent, StorageError, TrialExists
from studydb.domain.life.event_kinds import EventKind
from studydb.domain.life.states import Origin, State
from studydb.domain.records import Request, Study
from studydb.domain.resource_function import Answers, answer_for
from studydb.domain.resources import OF_STUDY, Resources
from studydb.domain.scheduling import ENQUEUED_DRAWS
from studydb.domain.text.display import counted
from studydb.operations.start_checkpoints import Start, begin_from, lock_source
from studydb.searchers import RandomSearch
from studydb.store import counters, events, resource_classes, studies, trials
from studydb.store.tags import insert as insert_tags


def enqueue(
    database: Database,
    study: Study,
    params: Mapping[str, Any],
    request: Request,
    *,
    priority: int = 0,
    name: str | None = None,
    tags: Sequence[str] = (),
    start: Start | None = None,
    resources: Resources | None = None,
    answers: Answers | None = None,
) -> int:
    """
    Add a PENDING trial with given parameters; missing parameters are drawn from the space.

    Args:
        priority: PENDING trials are claimed in ascending order of this value.
        name, tags: The caller has checked them; no other trial of the study may have the name.
        start: The checkpoint from which the trial begins; None to begin from scratch.
        resources: What the trial asks for. If None, a study with a resource function takes the
            request from `answers`; in any other study, the trial asks for what the study asks for.
        answers: What the resource function has said about configs.

    Returns:
        The trial's number.

    Raises:
        InvalidSpec: A parameter does not fit the space, or 64 other resource classes exist.
        BudgetSpent: `num_trials` trials already exist.
        TrialExists: Another trial of the study has the name.
        UnknownTrial, NotFound, NotAllowed, UnknownStudy: See `lock_source` and `begin_from`.
        RequestNeeded: `answers` lacks the trial's config; nothing was stored.
    """
    given = study.space.check_params(params)
    uuid = str(UUID(hex=request.token))
    try:
        with database.begin() as txn:
            # A duplicate request must not fail for lack of the checkpoint or the function's answer.
            may_fail = start is not None or (resources is None and study.asks_by_config)
            if may_fail and (sent := events.data_of(txn, token=request.token)):
                return int(sent["number"])
            source = lock_source(txn, study, start)
            number = studies.admit(txn, study_id=study.id)
            # The lock of the study's row keeps two enqueued trials from getting the same name.
            own = _number_if_own(txn, study, name, uuid)
            if number is None or own is not None:
                txn.abandon()
                return _enqueued_before(txn, study, request) if own is None else own
            trial_id = _insert(
                txn,
                study,
                _completed(study, given, ENQUEUED_DRAWS + number),
                number,
                (resources, answers or {}),
                uuid=uuid,
                name=name,
                priority=priority,
            )
            insert_tags(txn, study_id=study.id, trial_id=trial_id, tags=tags)
            begin_from(txn, study, start, source, request, trial_id=trial_id)
            _record(txn, study, request, number)
            counters.move(txn, study_id=study.id, key=0, out_of=None, into=State.PENDING)
        return number
    except Duplicate as error:
        with database.begin(write=False) as txn:
            if recorded := events.data_of(txn, token=request.token):
                return int(recorded["number"])
            _number_if_own(txn, study, name, uuid)
        raise StorageError(_collision(study, error)) from None


def _collision(study: Study, error: Duplicate) -> str:
    """Describe a collision with a trial that someone has inserted by SQL with a worker's login."""
    return (
        f"Study {study.name!r} has a trial that neither ask nor enqueue has made; a new trial "
        f"collides with it ({error}). Delete the row of that trial."
    )


def _completed(study: Study, given: Mapping[str, Any], draw: int) -> dict[str, Any]:
    drawn = RandomSearch().propose(study.space, seed=study.seed, draw=draw)
    return study.space.complete(given, drawn)


def _insert(
    txn: Txn,
    study: Study,
    params: Mapping[str, Any],
    number: int,
    requested: tuple[Resources | None, Answers],
    **given: Any,
) -> int:
    config = study.space.config(params)
    return trials.insert(
        txn,
        study_id=study.id,
        number=number,
        params=params,
        config=config,
        space_version=study.space_version,
        origin=Origin.ENQUEUED,
        wants_unique=study.searcher is not None and study.searcher.wants_unique,
        bracket=study.scheduler.bracket_of(seed=study.seed, draw=ENQUEUED_DRAWS + number),
        resource_class=_class_of(txn, study, config, *requested),
        **given,
    )


def _class_of(
    txn: Txn,
    study: Study,
    config: Mapping[str, Any],
    resources: Resources | None,
    answers: Answers,
) -> str:
    if resources is None:
        resources = answer_for(study.resources, config, answers)
    if resources is None:
        return OF_STUDY
    return resource_classes.add(txn, study_id=study.id, asked=resources)


def _record(txn: Txn, study: Study, request: Request, number: int) -> None:
    events.append_request(
        txn,
        study_id=study.id,
        kind=EventKind.ENQUEUED,
        request=request,
        data={"number": number},
    )


def _enqueued_before(txn: Txn, study: Study, request: Request) -> int:
    # An earlier send of the same request may have made the last trial of the budget.
    recorded = events.data_of(txn, token=request.token)
    if not recorded:
        num_trials = studies.budget(txn, study_id=study.id).num_trials  # `extend` can change it
        assert num_trials is not None
        raise BudgetSpent(
            f"Study {study.name!r} has its {counted(num_trials, 'trial')} already. "
            f"Raise the number first: `studydb extend {shlex.quote(study.name)} --trials N`."
        )
    return int(recorded["number"])


def _number_if_own(txn: Txn, study: Study, name: str | None, uuid: str) -> int | None:
    """
    Return the number of the trial with this name; None if no trial has the name.

    Raises:
        TrialExists: Another request has made the trial with this name.
    """
    namesake = None if name is None else trials.named(txn, study_id=study.id, name=name)
    if namesake is None:
        return None
    if namesake.uuid != uuid:
        raise TrialExists(
            f"Study {study.name!r} has a trial named {name!r}: number {namesake.number}. "
            "Choose another name."
        )
    return namesake.number
