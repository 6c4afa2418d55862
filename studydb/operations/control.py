"""
Requests of people: enqueue, pause, resume, stop, extend.

Each request carries a token, which is UNIQUE on `event`: a duplicate request changes nothing.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from studydb.db import Database, Txn
from studydb.db.faults import Duplicate
from studydb.domain.errors import BudgetSpent, NotAllowed, UnknownTrial, UsageError
from studydb.domain.life.decisions import Action
from studydb.domain.life.states import FINAL, Origin, State, Status
from studydb.domain.records import Study, TrialRow
from studydb.operations import summing
from studydb.searchers import RandomSearch
from studydb.store import counters, events, studies, sweeps, trials

ENQUEUED_DRAWS = 2**32
"""
The draws from this number on complete enqueued trials; the searcher never gets so far.
"""


def enqueue(
    database: Database,
    study: Study,
    params: Mapping[str, Any],
    *,
    token: str,
    actor: str,
    priority: int = 0,
) -> int:
    """
    Add a PENDING trial with given parameters; what is missing is drawn from the space.

    Args:
        priority: Lower runs first.

    Returns:
        The trial's number.

    Raises:
        InvalidSpec: A parameter that the space does not have, or a value outside it.
        BudgetSpent: `num_trials` trials exist.
    """
    given = study.space.check_params(params)
    try:
        with database.begin() as txn:
            number = studies.admit(txn, study_id=study.id)
            if number is None:
                txn.abandon()
                return _enqueued_before(txn, study, token=token)

            drawn = RandomSearch().propose(
                study.space, seed=study.seed, draw=ENQUEUED_DRAWS + number
            )
            trials.insert(
                txn,
                study_id=study.id,
                uuid=str(UUID(hex=token)),
                number=number,
                params=study.space.complete(given, drawn),
                space_version=study.space_version,
                origin=Origin.ENQUEUED,
                priority=priority,
            )
            _record(txn, study, "enqueued", token=token, actor=actor, data={"number": number})
            counters.move(txn, study_id=study.id, key=0, out_of=None, into=State.PENDING)
        return number
    except Duplicate:
        with database.begin(write=False) as txn:
            return int(events.data_of(txn, token=token)["number"])


def _enqueued_before(txn: Txn, study: Study, *, token: str) -> int:
    data = events.data_of(txn, token=token)  # an earlier send may have taken the last place
    if not data:
        raise BudgetSpent(
            f"Study {study.name!r} has all of its {study.num_trials} trials. "
            f"Make room first: `studydb extend {study.name} --trials N`."
        )
    return int(data["number"])


def pause(
    database: Database, study: Study, numbers: Sequence[int], *, token: str, actor: str
) -> None:
    """
    Pause trials: PENDING ones now, RUNNING ones at their next flush or renewal.

    The last request wins: it replaces a request to stop that no attempt has carried out yet. A
    trial that its study's pause has paused stays PAUSED when the study is resumed.

    Raises:
        UnknownTrial: No such trial; nothing was changed.
        NotAllowed: A trial has ended; nothing was changed.
    """
    steering = _Steering("paused", Action.PAUSE, {State.PENDING: State.PAUSED})
    _steer(database, study, numbers, steering, token=token, actor=actor)


def resume(
    database: Database, study: Study, numbers: Sequence[int], *, token: str, actor: str
) -> None:
    """
    Let PAUSED trials run again, and withdraw requests to pause or stop RUNNING ones.

    An attempt that has received such a request runs on; if it ends first, the trial runs again.

    Raises:
        UnknownTrial: No such trial; nothing was changed.
        NotAllowed: A trial has ended; nothing was changed.
    """
    steering = _Steering("resumed", None, {State.PAUSED: State.PENDING})
    _steer(database, study, numbers, steering, token=token, actor=actor)


def stop(
    database: Database, study: Study, numbers: Sequence[int], *, token: str, actor: str
) -> None:
    """
    End trials as CANCELLED: PENDING and PAUSED ones now, RUNNING ones as in `pause`.

    Raises:
        UnknownTrial: No such trial; nothing was changed.
        NotAllowed: A trial has ended; nothing was changed.
    """
    ended = State.TERMINATED
    steering = _Steering("stopped", Action.STOP, {State.PENDING: ended, State.PAUSED: ended})
    _steer(database, study, numbers, steering, token=token, actor=actor)


def set_status(database: Database, study: Study, status: Status, *, token: str, actor: str) -> None:
    """
    Pause, resume or stop a whole study.

    Trials are claimed only while the study is RUNNING. RUNNING trials obey at their next flush or
    renewal. A resumption then moves the trials that the study's pause has paused to PENDING, in
    further transactions, because trials are locked before their study. If this process dies between
    them, any worker's sweep moves the rest.
    """
    with suppress(Duplicate), database.begin() as txn:
        _record(txn, study, f"study {status.lower()}", token=token, actor=actor)
        studies.set_status(txn, study_id=study.id, status=status)
    while status is Status.RUNNING and _unpause_some(database, study) == sweeps.MOST:
        pass


def _unpause_some(database: Database, study: Study) -> int:
    with database.begin() as txn:
        return sweeps.unpause(txn, study_id=study.id)


def extend(database: Database, study: Study, *, by: int, token: str, actor: str) -> int:
    """
    Raise `num_trials`.

    Returns:
        The new budget.

    Raises:
        UsageError: `by` is not positive.
        NotAllowed: The study has no such budget.
    """
    if by < 1:
        raise UsageError(f"A study is extended by 1 trial or more, not by {by}.")
    try:
        with database.begin() as txn:
            num_trials = studies.extend(txn, study_id=study.id, by=by)
            if num_trials is None:
                raise NotAllowed(f"Study {study.name!r} has no num_trials: it never runs out.")
            _record(
                txn, study, "extended", token=token, actor=actor, data={"num_trials": num_trials}
            )
        return num_trials
    except Duplicate:
        with database.begin(write=False) as txn:
            return int(events.data_of(txn, token=token)["num_trials"])


@dataclass(frozen=True, slots=True)
class _Steering:
    kind: str
    request: Action | None
    targets: Mapping[State, State]


def _steer(
    database: Database,
    study: Study,
    numbers: Sequence[int],
    steering: _Steering,
    *,
    token: str,
    actor: str,
) -> None:
    """Move PENDING and PAUSED trials, send the request to RUNNING ones, by ascending number."""
    numbers = sorted(set(numbers))
    try:
        with database.begin() as txn:
            _record(txn, study, steering.kind, token=token, actor=actor, data={"numbers": numbers})
            steered = [_lock(txn, study, number) for number in numbers]  # ids rise with numbers
            unsummed = _apply(txn, study, steered, steering)
    except Duplicate:
        with database.begin(write=False) as txn:
            found = [trials.find(txn, study_id=study.id, number=number) for number in numbers]
        unsummed = [trial.id for trial in found if trial is not None and trial.state in FINAL]
    for trial_id in unsummed:
        summing.after_end(database, study, trial_id=trial_id)


def _apply(txn: Txn, study: Study, steered: Sequence[TrialRow], steering: _Steering) -> list[int]:
    """Move the locked trials or store the request; return the ids of ended ones not summed up."""
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
        elif steering.request is Action.PAUSE:
            trials.keep_paused(txn, trial_id=trial.id)

    moved = Counter(trial.state for trial in steered if trial.state in targets)
    for source, n in moved.items():
        counters.move(txn, study_id=study.id, key=0, out_of=source, into=targets[source], n=n)
    return unsummed


def _lock(txn: Txn, study: Study, number: int) -> TrialRow:
    trial = trials.find(txn, study_id=study.id, number=number, lock=True)
    if trial is None:
        raise UnknownTrial(f"Study {study.name!r} has no trial {number}.")
    if trial.state in FINAL:
        raise NotAllowed(
            f"Trial {number} of {study.name!r} has ended ({trial.state}, {trial.reason}); "
            "ended trials do not change."
        )
    return trial


def _record(
    txn: Txn,
    study: Study,
    kind: str,
    *,
    token: str,
    actor: str,
    data: Mapping[str, Any] | None = None,
) -> None:
    events.append(txn, study_id=study.id, kind=kind, actor=actor, token=token, data=data)
