"""
Requests of people: enqueue, pause, resume, stop, extend.

Each request has a token, which is UNIQUE in `event`: a duplicate request asks for nothing new.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from studydb.db import Database, Txn
from studydb.db.faults import Duplicate
from studydb.domain.errors import (
    BudgetSpent,
    NotAllowed,
    StorageError,
    TrialExists,
    UsageError,
)
from studydb.domain.life.decisions import Action, DecidedBy
from studydb.domain.life.event_kinds import EventKind
from studydb.domain.life.states import FINAL, Origin, State, Status
from studydb.domain.records import Request, Study, TrialRow
from studydb.domain.scheduling import ENQUEUED_DRAWS
from studydb.operations import summing
from studydb.operations.reads import existing_trial
from studydb.operations.spending import check_limits
from studydb.searchers import RandomSearch
from studydb.store import counters, events, promotions, studies, sweeps, trials
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
) -> int:
    """
    Add a PENDING trial with given parameters; missing parameters are drawn from the space.

    Args:
        priority: PENDING trials are claimed in ascending order of this value.
        name: A name that `check_trial_name` has accepted; no other trial of the study may have it.
        tags: Tags that `check_tags` has accepted.

    Returns:
        The trial's number.

    Raises:
        InvalidSpec: A given parameter is not in the space, or its value is outside its domain.
        BudgetSpent: `num_trials` trials already exist.
        TrialExists: Another trial of the study has the name.
    """
    given = study.space.check_params(params)
    uuid = str(UUID(hex=request.token))
    try:
        with database.begin() as txn:
            number = studies.admit(txn, study_id=study.id)
            # The lock of the study's row keeps two enqueued trials from getting the same name.
            own = _number_if_own(txn, study, name, uuid)
            if number is None or own is not None:
                txn.abandon()
                return _enqueued_before(txn, study, request) if own is None else own

            draw = ENQUEUED_DRAWS + number
            drawn = RandomSearch().propose(study.space, seed=study.seed, draw=draw)
            completed = study.space.complete(given, drawn)
            trial_id = trials.insert(
                txn,
                study_id=study.id,
                uuid=uuid,
                number=number,
                name=name,
                params=completed,
                config=study.space.config(completed),
                space_version=study.space_version,
                origin=Origin.ENQUEUED,
                wants_unique=study.searcher is not None and study.searcher.wants_unique,
                bracket=study.scheduler.bracket_of(seed=study.seed, draw=draw),
                priority=priority,
            )
            insert_tags(txn, study_id=study.id, trial_id=trial_id, tags=tags)
            _record(txn, study, EventKind.ENQUEUED, request, {"number": number})
            counters.move(txn, study_id=study.id, key=0, out_of=None, into=State.PENDING)
        return number
    except Duplicate as error:
        with database.begin(write=False) as txn:
            recorded = events.data_of(txn, token=request.token)
            if recorded:
                return int(recorded["number"])
            _number_if_own(txn, study, name, uuid)
        raise StorageError(  # a worker's login has inserted a trial
            f"Study {study.name!r} has a trial that neither ask nor enqueue has made; a new trial "
            f"collides with it ({error}). Delete the row of that trial."
        ) from None


def _enqueued_before(txn: Txn, study: Study, request: Request) -> int:
    # An earlier send of the same request may have made the last trial of the budget.
    recorded = events.data_of(txn, token=request.token)
    if not recorded:
        studies.check_exists(txn, study_id=study.id)
        raise BudgetSpent(
            f"Study {study.name!r} has all of its {study.num_trials} trials. "
            f"Raise the number first: `studydb extend {study.name} --trials N`."
        )
    return int(recorded["number"])


def _number_if_own(txn: Txn, study: Study, name: str | None, uuid: str) -> int | None:
    """Return the number of the trial of this name if the same request has made it."""
    namesake = None if name is None else trials.named(txn, study_id=study.id, name=name)
    if namesake is None:
        return None
    if namesake.uuid != uuid:
        raise TrialExists(
            f"Study {study.name!r} has a trial named {name!r}: number {namesake.number}. "
            "Choose another name."
        )
    return namesake.number


def pause(database: Database, study: Study, numbers: Sequence[int], request: Request) -> None:
    """
    Pause trials: PENDING trials now, RUNNING trials at their next flush or renewal.

    A request to pause replaces a request to stop that no attempt has carried out yet. If a trial is
    PAUSED because its study is paused, this request keeps it PAUSED when the study is resumed.

    Raises:
        UnknownTrial: No such trial; nothing was changed.
        NotAllowed: A trial has ended; nothing was changed.
    """
    steering = _Steering(EventKind.PAUSED, Action.PAUSE, {State.PENDING: State.PAUSED})
    _steer(database, study, numbers, steering, request)


def resume(database: Database, study: Study, numbers: Sequence[int], request: Request) -> None:
    """
    Let PAUSED trials run again, and withdraw requests to pause or stop RUNNING trials.

    A trial that waits at a rung is resumed without a promotion. If a person has paused the waiting
    trial, only this pause is withdrawn, and the scheduler may promote the trial again.

    An attempt that has received the withdrawn request may still end; a new attempt then follows.

    Raises:
        UnknownTrial: No such trial; nothing was changed.
        NotAllowed: A trial has ended; nothing was changed.
    """
    steering = _Steering(EventKind.RESUMED, None, {State.PAUSED: State.PENDING})
    _steer(database, study, numbers, steering, request)


def stop(database: Database, study: Study, numbers: Sequence[int], request: Request) -> None:
    """
    End PENDING and PAUSED trials as CANCELLED now, RUNNING trials at their next flush or renewal.

    Raises:
        UnknownTrial: No such trial; nothing was changed.
        NotAllowed: A trial has ended; nothing was changed.
    """
    ended = State.TERMINATED
    steering = _Steering(
        EventKind.STOPPED, Action.STOP, {State.PENDING: ended, State.PAUSED: ended}
    )
    _steer(database, study, numbers, steering, request)


def set_status(database: Database, study: Study, status: Status, request: Request) -> None:
    """
    Pause, resume or stop a whole study.

    Trials are claimed only while the study is RUNNING. RUNNING trials obey at their next flush or
    renewal. When a study is resumed, further transactions make the trials PENDING that were paused
    with the study. If this process dies before all are PENDING, sweeps do the rest.

    Raises:
        NotAllowed: The study is to be resumed, and has reached one of its limits.
    """
    with suppress(Duplicate), database.begin() as txn:
        _record(txn, study, EventKind(f"study {status.lower()}"), request)
        if status is Status.RUNNING:
            check_limits(txn, study)
        studies.set_status(txn, study_id=study.id, status=status)
    n_moved = sweeps.MOST
    while status is Status.RUNNING and n_moved == sweeps.MOST:
        with database.begin() as txn:
            n_moved = sweeps.unpause(txn, study_id=study.id)


def extend(database: Database, study: Study, request: Request, *, n_more: int) -> int:
    """
    Raise `num_trials`.

    Returns:
        The new `num_trials`.

    Raises:
        UsageError: `n_more` is not positive.
        NotAllowed: The study has no `num_trials`.
    """
    if n_more < 1:
        raise UsageError(f"A study is extended by 1 trial or more, not by {n_more}.")
    try:
        with database.begin() as txn:
            num_trials = studies.extend(txn, study_id=study.id, n_more=n_more)
            if num_trials is None:
                studies.check_exists(txn, study_id=study.id)
                raise NotAllowed(f"Study {study.name!r} has no num_trials: it never runs out.")
            _record(txn, study, EventKind.EXTENDED, request, {"num_trials": num_trials})
        return num_trials
    except Duplicate:
        with database.begin(write=False) as txn:
            return int(events.data_of(txn, token=request.token)["num_trials"])


@dataclass(frozen=True, slots=True)
class _Steering:
    kind: EventKind
    request: Action | None
    targets: Mapping[State, State]


def _steer(
    database: Database, study: Study, numbers: Sequence[int], steering: _Steering, request: Request
) -> None:
    """Move PENDING and PAUSED trials, and store the request for RUNNING trials."""
    numbers = sorted(set(numbers))
    try:
        with database.begin() as txn:
            _record(txn, study, steering.kind, request, {"numbers": numbers})
            steered = [_lock(txn, study, number) for number in numbers]  # lock order: rising ids
            if steering.kind is EventKind.RESUMED:
                steered = [one for one in steered if not _waits_again(txn, study, one)]
            unsummed = _apply(txn, study, steered, steering)
    except Duplicate:
        with database.begin(write=False) as txn:
            found = [trials.find(txn, study_id=study.id, number=number) for number in numbers]
        unsummed = [trial.id for trial in found if trial is not None and trial.state in FINAL]
    for trial_id in unsummed:
        summing.after_end(database, study, trial_id=trial_id)


def _waits_again(txn: Txn, study: Study, trial: TrialRow) -> bool:
    """Withdraw a person's pause of a trial that waits at a rung; False for any other trial."""
    if trial.paused_by != DecidedBy.PERSON or not study.scheduler.resumes:
        return False
    if not promotions.waits(txn, study_id=study.id, trial_id=trial.id):
        return False
    trials.pause_by(txn, trial_id=trial.id, by=DecidedBy.SCHEDULER)
    return True


def _apply(txn: Txn, study: Study, steered: Sequence[TrialRow], steering: _Steering) -> list[int]:
    """Move locked trials or store the request; return the ids of ended trials without summary."""
    targets = steering.targets
    unsummed: list[int] = []
    n_results = 0
    for trial in steered:
        if trial.state is State.RUNNING:
            trials.request(txn, trial_id=trial.id, action=steering.request)
        elif trial.state in targets:
            summary, target = None, targets[trial.state]
            if target in FINAL and trial.summary.n_results:
                n_results += trial.summary.n_results
                summary = summing.in_transaction(txn, study, trial_id=trial.id, n_results=n_results)
                unsummed += [trial.id] if summary is None else []
            trials.move(txn, trial_id=trial.id, target=target, metric_summary=summary)
            if trial.state is State.PAUSED and study.scheduler.resumes:
                promotions.leave_rungs(txn, study_id=study.id, trial_id=trial.id)
        elif steering.request is Action.PAUSE:
            trials.pause_by(txn, trial_id=trial.id, by=DecidedBy.PERSON)

    moved = Counter(trial.state for trial in steered if trial.state in targets)
    for source, n in moved.items():
        counters.move(txn, study_id=study.id, key=0, out_of=source, into=targets[source], n=n)
    return unsummed


def _lock(txn: Txn, study: Study, number: int) -> TrialRow:
    trial = existing_trial(txn, study, number, lock=True)
    if trial.state in FINAL:
        raise NotAllowed(
            f"Trial {number} of {study.name!r} has ended ({trial.state}, {trial.reason}); "
            "ended trials do not change."
        )
    return trial


def _record(
    txn: Txn, study: Study, kind: EventKind, request: Request, data: Mapping[str, Any] | None = None
) -> None:
    events.append_request(txn, study_id=study.id, kind=kind, request=request, data=data)
