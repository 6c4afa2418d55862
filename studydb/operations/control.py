"""
People's requests: pause, resume or stop trials or a whole study, and raise `num_trials`.

Each request has a token, which is UNIQUE in `event`, so that a duplicate request changes nothing.
"""

import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType
from typing import Any

from msgspec import Struct, field

from studydb.db import Database, Txn
from studydb.db.faults import Duplicate
from studydb.domain.arguments import LARGEST
from studydb.domain.errors import NotAllowed, UsageError
from studydb.domain.life.decisions import Action, DecidedBy
from studydb.domain.life.event_kinds import EventKind
from studydb.domain.life.states import FINAL, State, Status
from studydb.domain.records import Request, Study, TrialRow
from studydb.operations import summing
from studydb.operations.reads import existing_trial
from studydb.operations.spending import check_limits
from studydb.store import counters, events, pins, promotions, studies, sweeps, trials


def pause(database: Database, study: Study, numbers: Sequence[int], request: Request) -> None:
    """
    Pause trials: PENDING trials now, RUNNING trials at their next flush or renewal.

    A request to pause replaces a request to stop that no attempt has carried out yet. A trial that
    is PAUSED already, with its study or at a rung, stays PAUSED at least until a person resumes it.

    Raises:
        UnknownTrial: No such trial; nothing was changed.
        NotAllowed: A trial has ended or is invalidated; nothing was changed.
    """
    steering = _Steering(EventKind.PAUSED, Action.PAUSE, {State.PENDING: State.PAUSED})
    _steer(database, study, numbers, steering, request)


def resume(
    database: Database,
    study: Study,
    numbers: Sequence[int],
    request: Request,
    *,
    changes: Mapping[str, Any] = MappingProxyType({}),
) -> None:
    """
    Let PAUSED trials run again, and withdraw requests to pause or stop RUNNING trials.

    With `changes`, all later attempts get these values of parameters; `params` does not change. A
    PENDING trial can be changed, too, and stays PENDING; a RUNNING trial cannot.

    A trial that waits at a rung is resumed without a promotion. If a person has also paused such a
    trial, only the person's pause is withdrawn: the trial stays PAUSED at its rung until the
    scheduler promotes it.

    An attempt that has received the withdrawn request may still end; a new attempt then follows.

    Args:
        changes: Values of parameters of the space, nested or by path.

    Raises:
        UnknownTrial: No such trial; nothing was changed.
        NotAllowed: A trial has ended, is invalidated, or runs and is to get `changes`; nothing was
            changed.
        InvalidSpec: A change names no parameter of the space, or its value is not in the
            parameter's domain; nothing was changed.
    """
    given = study.space.check_params(changes)
    steering = _Steering(EventKind.RESUMED, None, {State.PAUSED: State.PENDING}, given)
    _steer(database, study, numbers, steering, request)


def stop(
    database: Database,
    study: Study,
    numbers: Sequence[int],
    request: Request,
    *,
    now: bool = False,
) -> None:
    """
    End PENDING and PAUSED trials as CANCELLED now, RUNNING trials at their next flush or renewal.

    Args:
        now: Whether workers kill RUNNING trials without their grace.

    Raises:
        UnknownTrial: No such trial; nothing was changed.
        NotAllowed: A trial has ended; nothing was changed.
    """
    ended = State.TERMINATED
    steering = _Steering(
        EventKind.STOPPED, Action.STOP, {State.PENDING: ended, State.PAUSED: ended}, now=now
    )
    _steer(database, study, numbers, steering, request)


def set_status(
    database: Database, study: Study, status: Status, request: Request, *, now: bool = False
) -> None:
    """
    Pause, resume or stop a whole study.

    Trials are claimed only while the study is RUNNING. RUNNING trials obey at their next flush or
    renewal. When a study is resumed, further transactions move the trials that were paused with the
    study to PENDING. If this process dies before all are PENDING, sweeps move the remaining trials.
    If a deletion of the study has begun, and the study is not half deleted, the deletion is
    cancelled.

    Args:
        now: Whether workers kill RUNNING trials of a stopped study without their grace. The next
            request to pause, resume or stop the study replaces this value.

    Raises:
        NotAllowed: The study is to be resumed, and has reached one of its limits; or a deletion
            has removed the study's files.
    """
    with suppress(Duplicate), database.begin() as txn:
        _record(txn, study, EventKind(f"study {status.lower()}"), request)
        if studies.is_half_deleted(txn, study_id=study.id):
            raise half_deleted(study)
        if status is Status.RUNNING:
            check_limits(txn, study)
        studies.set_status(txn, study_id=study.id, status=status, now=now)
    n_moved = sweeps.MOST
    while status is Status.RUNNING and n_moved == sweeps.MOST:
        with database.begin() as txn:
            n_moved = sweeps.unpause(txn, study_id=study.id)


def half_deleted(study: Study) -> NotAllowed:
    """Make the error of a request about a study that can only be deleted."""
    return NotAllowed(
        f"Study {study.name!r} is half deleted: a deletion has removed its files, and perhaps "
        f"trials. Delete the rest: `studydb delete {shlex.quote(study.name)} --yes`."
    )


def extend(database: Database, study: Study, request: Request, *, n_more: int) -> int:
    """
    Raise `num_trials`.

    Returns:
        The new `num_trials`.

    Raises:
        UsageError: `n_more` is not positive, or the new `num_trials` would be above `LARGEST`.
        NotAllowed: The study has no `num_trials`.
    """
    if n_more < 1:
        raise UsageError(f"A study is extended by 1 trial or more, not by {n_more}.")
    try:
        with database.begin() as txn:
            num_trials = studies.extend(txn, study_id=study.id, n_more=n_more)
            if num_trials is None:
                studies.check_exists(txn, study_id=study.id)
                if sent := events.data_of(txn, token=request.token):  # a duplicate request
                    return int(sent["num_trials"])
                if study.num_trials is not None:
                    raise UsageError(
                        f"With {n_more} more trials, study {study.name!r} would allow more than "
                        f"{LARGEST} trials. Add fewer."
                    )
                raise NotAllowed(
                    f"Study {study.name!r} has no num_trials, so there is no number to raise."
                )
            _record(txn, study, EventKind.EXTENDED, request, {"num_trials": num_trials})
        return num_trials
    except Duplicate:
        with database.begin(write=False) as txn:
            return int(events.data_of(txn, token=request.token)["num_trials"])


class _Steering(Struct, frozen=True):
    kind: EventKind
    request: Action | None
    targets: Mapping[State, State]
    changes: Mapping[str, Any] = field(default_factory=dict)
    now: bool = False


def _steer(
    database: Database, study: Study, numbers: Sequence[int], steering: _Steering, request: Request
) -> None:
    """Apply a person's request to trials in one transaction; then sum up the ended trials."""
    numbers = sorted(set(numbers))
    try:
        with database.begin() as txn:
            changes = {"params": steering.changes} if steering.changes else {}
            _record(txn, study, steering.kind, request, {"numbers": numbers, **changes})
            steered = [_lock(txn, study, number) for number in numbers]  # lock order: ascending ids
            if steering.kind is not EventKind.STOPPED:
                _refuse_invalidated(study, steered)
            if steering.changes:
                _change_configs(txn, study, steered, steering.changes)
            if steering.kind is EventKind.RESUMED:
                steered = [one for one in steered if not _waits_again(txn, study, one)]
            unsummed = _apply(txn, study, steered, steering)
    except Duplicate:
        with database.begin(write=False) as txn:
            found = [trials.find(txn, study_id=study.id, number=number) for number in numbers]
        unsummed = [trial.id for trial in found if trial is not None and trial.state in FINAL]
    for trial_id in unsummed:
        summing.after_end(database, study, trial_id=trial_id)


def _change_configs(
    txn: Txn, study: Study, steered: Sequence[TrialRow], changes: Mapping[str, Any]
) -> None:
    for trial in steered:
        config, changed = study.space.change(trial.params, trial.config, changes)
        if not trials.change_config(txn, trial_id=trial.id, config=config, changed=changed):
            raise NotAllowed(
                f"Trial {trial.number} of {study.name!r} is {trial.state}; an attempt keeps its "
                "config. Pause the trial first: "
                f"`studydb pause {shlex.quote(study.name)} {trial.number}`."
            )


def _waits_again(txn: Txn, study: Study, trial: TrialRow) -> bool:
    """Withdraw a person's pause of a trial that waits at a rung; False without such a pause."""
    if trial.paused_by != DecidedBy.PERSON or not study.scheduler.resumes:
        return False
    if not promotions.waits(txn, study_id=study.id, trial_id=trial.id):
        return False
    trials.set_paused_by(txn, trial_id=trial.id, by=DecidedBy.SCHEDULER)
    return True


def _apply(txn: Txn, study: Study, steered: Sequence[TrialRow], steering: _Steering) -> list[int]:
    """Move locked trials or store the request; return the ended trials that are to be summed up."""
    targets = steering.targets
    unsummed: list[int] = []
    n_results = 0
    for trial in steered:
        if trial.state is State.RUNNING:
            trials.request(txn, trial_id=trial.id, action=steering.request, now=steering.now)
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
            trials.set_paused_by(txn, trial_id=trial.id, by=DecidedBy.PERSON)

    ended = [one.id for one in steered if targets.get(one.state) in FINAL]
    if ended:
        pins.release(txn, trial_ids=ended)
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


def _refuse_invalidated(study: Study, steered: Sequence[TrialRow]) -> None:
    invalid = next((trial for trial in steered if trial.invalidated_at is not None), None)
    if invalid is not None:
        raise NotAllowed(
            f"Trial {invalid.number} of {study.name!r} is invalidated, and is being stopped. Undo "
            "the invalidation first: "
            f"`studydb invalidate {shlex.quote(study.name)} {invalid.number} --undo`."
        )


def _record(
    txn: Txn, study: Study, kind: EventKind, request: Request, data: Mapping[str, Any] | None = None
) -> None:
    events.append_request(txn, study_id=study.id, kind=kind, request=request, data=data)
