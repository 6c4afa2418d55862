"""Let studydb's schedulers decide on the cases of `harness.oracle_cases`, without a database."""

import math
from typing import Any

from harness.contract_executor import ContractExecutor, MemoryTrial
from studydb.domain.life.decisions import RungKey
from studydb.domain.life.states import Reason, State
from studydb.domain.scheduling import Close, Scheduler, WaitingTrial
from studydb.schedulers import ASHA, HyperBand, MedianStopping

Case = dict[str, Any]


def _executor(scheduler: Scheduler, n_trials: int) -> ContractExecutor:
    return ContractExecutor(scheduler, num_trials=n_trials, curve=lambda *_: math.nan)


def _stopped_otherwise(scheduler: Scheduler, case: Case) -> list[tuple[Any, ...]]:
    """
    Return the reports on which studydb decides differently from the other system.

    Each report comes with both decisions; the case records the decision of the other system.
    """
    n_trials = 1 + max(number for number, *_ in case["events"])
    executor = _executor(scheduler, n_trials)
    brackets, sign = case.get("brackets", [0] * n_trials), 1 if case["mode"] == "min" else -1
    executor.trials = [
        MemoryTrial(number, brackets[number], State.RUNNING) for number in range(n_trials)
    ]
    wrong = []
    for number, step, value, expected in case["events"]:
        executor.tell(executor.trials[number], step, sign * value)
        ours = executor.trials[number].state is not State.RUNNING
        if expected is not None and ours != expected:
            wrong.append((number, step, value, expected, ours))
    return wrong


def differences(name: str, case: Case) -> list[tuple[Any, ...]]:
    """
    Return where studydb decides differently from the other system.

    The case records the other system's decisions.
    """
    if name == "ray_hyperband":
        return _kept_otherwise(case)
    if name == "ray_median":
        return _stopped_otherwise(MedianStopping(**case["options"]), case)
    rule = "ray" if name == "ray_asha" else "syne_tune"
    return _stopped_otherwise(ASHA(**case["options"], rule=rule), case)


def _kept_otherwise(case: Case) -> list[tuple[Any, ...]]:
    """
    Return the rungs at which studydb and the case let different trials go on.

    An item has the number of rungs of the bracket, the step, and the trials that go on. If trials
    go on both in studydb and in the case, the rung has two items: studydb's, and the case's.
    """
    scheduler = HyperBand(**case["options"])
    n_trials, sign = len(case["brackets"]), 1 if case["mode"] == "min" else -1
    executor = _executor(scheduler, n_trials)
    number_of = {len(scheduler.milestones(one)): one for one in range(len(scheduler.sizes))}
    sizes = [case["brackets"].count(len(scheduler.milestones(one))) for one in number_of.values()]
    assert sorted(sizes) == sorted(scheduler.sizes)
    executor.trials = [
        MemoryTrial(number, number_of[rungs], State.RUNNING)
        for number, rungs in enumerate(case["brackets"])
    ]
    executor.next_draw = n_trials
    kept: dict[RungKey, list[int]] = {}
    for number, step, value in case["events"]:
        if value is None:
            executor._end(executor.trials[number], Reason.FAILED)
        else:
            executor.tell(executor.trials[number], step, sign * value)
        _work(executor, kept)
    found = [
        [len(scheduler.milestones(key.bracket)), key.step, sorted(trials)]
        for key, trials in kept.items()
    ]
    expected = [[rungs, step, sorted(trials)] for rungs, step, trials in case["kept"] if trials]
    return [(one,) for one in (*found, *expected) if (one in found) != (one in expected)]


def _work(executor: ContractExecutor, kept: dict[RungKey, list[int]]) -> None:
    """Close rungs and resume trials as the scheduler says; record the resumed trials in `kept`."""
    while isinstance(work := executor.next_work(), WaitingTrial | Close):
        if isinstance(work, Close):
            executor.close(work)
            continue
        executor._leave(work.trial_id)
        executor.trials[work.trial_id].state = State.RUNNING
        kept.setdefault(work.rung, []).append(work.trial_id)
