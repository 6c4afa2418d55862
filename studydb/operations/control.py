"""
What people ask of a study and its trials: enqueue, pause, resume, stop, extend.

Each carries a token, UNIQUE on `event`: a request that is sent again because its reply was lost
counts once.
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
Parameters that an enqueued trial leaves open are drawn from here on, so that no point is eaten.
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
    told = events.data_of(txn, token=token)  # this very request may have taken the last place
    if not told:
        raise BudgetSpent(
            f"Study {study.name!r} has all of its {study.num_trials} trials. "
            f"Make room first: `studydb extend {study.name} --trials N`."
        )
    return int(told["number"])


def pause(
    database: Database, study: Study, numbers: Sequence[int], *, token: str, actor: str
) -> None:
    """
    Pause trials: waiting ones at once, running ones at their next flush or renewal.

    A request to stop that no attempt has obeyed yet is replaced: the last request wins. Trials
    that are paused already wait for a person from now on, not for their study's resumption.

    Raises:
        UnknownTrial: No such trial; nothing was changed.
        NotAllowed: A trial has ended; nothing was changed.
    """
    orders = _Orders("paused", Action.PAUSE, {State.PENDING: State.PAUSED})
    _steer(database, study, numbers, orders, token=token, actor=actor)


def resume(
    database: Database, study: Study, numbers: Sequence[int], *, token: str, actor: str
) -> None:
    """
    Let paused trials run again, and withdraw what was asked of running ones.

    An attempt that was told to pause or stop, and has not ended, runs on or is run again.

    Raises:
        UnknownTrial: No such trial; nothing was changed.
        NotAllowed: A trial has ended; nothing was changed.
    """
    orders = _Orders("resumed", None, {State.PAUSED: State.PENDING})
    _steer(database, study, numbers, orders, token=token, actor=actor)


def stop(
    database: Database, study: Study, numbers: Sequence[int], *, token: str, actor: str
) -> None:
    """
    End trials as CANCELLED: waiting and paused ones at once, running ones as `pause` says.

    Raises:
        UnknownTrial: No such trial; nothing was changed.
        NotAllowed: A trial has ended; nothing was changed.
    """
    ended = State.TERMINATED
    orders = _Orders("stopped", Action.STOP, {State.PENDING: ended, State.PAUSED: ended})
    _steer(database, study, numbers, orders, token=token, actor=actor)


def set_status(database: Database, study: Study, status: Status, *, token: str, actor: str) -> None:
    """
    Pause, resume or stop a whole study.

    No trial is claimed from then on unless it is RUNNING; running trials obey at their next flush
    or renewal. A resumption wakes what the study's pause has paused, in transactions of their own,
    because trials are locked before their study; any sweep does the rest if they are cut short.
    """
    with suppress(Duplicate), database.begin() as txn:
        _record(txn, study, f"study {status.lower()}", token=token, actor=actor)
        studies.set_status(txn, study_id=study.id, status=status)
    while status is Status.RUNNING and _wake(database, study) == sweeps.MOST:
        pass


def _wake(database: Database, study: Study) -> int:
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
class _Orders:
    kind: str
    request: Action | None
    targets: Mapping[State, State]


def _steer(
    database: Database,
    study: Study,
    numbers: Sequence[int],
    orders: _Orders,
    *,
    token: str,
    actor: str,
) -> None:
    """Move what nobody runs, ask those that run: trials ascending, then the counters."""
    numbers = sorted(set(numbers))
    try:
        with database.begin() as txn:
            _record(txn, study, orders.kind, token=token, actor=actor, data={"numbers": numbers})
            steered = [_lock(txn, study, number) for number in numbers]  # ids rise with numbers
            unsummed = _obey(txn, study, steered, orders)
    except Duplicate:
        with database.begin(write=False) as txn:
            found = [trials.find(txn, study_id=study.id, number=number) for number in numbers]
        unsummed = [trial.id for trial in found if trial is not None and trial.state in FINAL]
    for trial_id in unsummed:
        summing.after_end(database, study, trial_id=trial_id)


def _obey(txn: Txn, study: Study, steered: Sequence[TrialRow], orders: _Orders) -> list[int]:
    """Move or ask the locked trials; the ids of those that have ended without a summary."""
    targets = orders.targets
    unsummed: list[int] = []
    n_results = 0
    for trial in steered:
        if trial.state is State.RUNNING:
            trials.request(txn, trial_id=trial.id, action=orders.request)
        elif trial.state in targets:
            summary, target = None, targets[trial.state]
            if target in FINAL and trial.summary.n_results:
                n_results += trial.summary.n_results
                summary = summing.in_transaction(txn, study, trial_id=trial.id, n_results=n_results)
                unsummed += [trial.id] if summary is None else []
            trials.move(txn, trial_id=trial.id, target=target, metric_summary=summary)
        elif orders.request is Action.PAUSE:
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
