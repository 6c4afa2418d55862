"""Check custom stop rules and schedulers; sign custom code, and run it in a child process."""

import dataclasses
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

from studydb.child.job import TrainableImport
from studydb.domain.custom_scheduler import SchedulerPlan
from studydb.domain.deciding import DecisionFailed
from studydb.domain.errors import TrainableError
from studydb.domain.life.custom_rule import CustomRule
from studydb.domain.life.rules import Rule
from studydb.domain.scheduling import Scheduler
from studydb.domain.trainable import Trainable, TrainableRole
from studydb.schedulers import UserScheduler
from studydb.settings import load_keyring
from studydb.temporary import TemporaryDirectory
from studydb.trainables import sign
from studydb.trainables.custom_schedulers import DECLARED
from studydb.trainables.describing import describe_import
from studydb.worker.decider_client import Decider
from studydb.worker.rule_code import RuleProcess, asked_by


def described_rules(
    rules: Sequence[Rule], *, workdir: Path
) -> tuple[tuple[Rule, ...], tuple[Trainable, ...]]:
    """
    Make the custom rules once, in a process like a worker's decider, and describe their code.

    Args:
        workdir: Workers look for the code in their own directory first, then in this one.

    Returns:
        The rules, with the number of results that each custom rule reads; and the unsigned code.

    Raises:
        TrainableError: A rule cannot be imported or made.
    """
    checked: list[Rule] = []
    found: list[Trainable] = []
    for rule in rules:
        if not isinstance(rule, CustomRule):
            checked.append(rule)
            continue
        code = describe_import(rule.path, rule.options, workdir=workdir, role=TrainableRole.RULE)
        checked.append(dataclasses.replace(rule, reads=_declared_reads(rule, code)))
        found.append(code)
    return tuple(checked), tuple(found)


def described_scheduler(
    scheduler: Scheduler, *, workdir: Path
) -> tuple[Scheduler, Trainable | None]:
    """
    Make a custom scheduler once, in a process like a worker's decider, and describe its code.

    Args:
        workdir: Workers look for the code in their own directory first, then in this one.

    Returns:
        For a custom scheduler, the scheduler with its plan, and the unsigned code; for any other,
        the scheduler and None.

    Raises:
        TrainableError: The scheduler cannot be imported or made, or its plan is refused.
    """
    if not isinstance(scheduler, UserScheduler):
        return scheduler, None
    code = _code_of(scheduler, workdir)
    with running(f"scheduler {scheduler}", code) as decider:
        return _planned(scheduler, decider), code


@contextmanager
def asked_scheduler(scheduler: Scheduler, *, workdir: Path) -> Iterator[Scheduler]:
    """
    Make a custom scheduler in a child process; yield a scheduler that asks this child.

    A scheduler that is not custom is yielded unchanged.

    Raises:
        TrainableError: See `described_scheduler`.
    """
    if not isinstance(scheduler, UserScheduler):
        yield scheduler
        return
    code = _code_of(scheduler, workdir)
    with running(f"scheduler {scheduler}", code) as decider:
        yield asked_by(decider, _planned(scheduler, decider))


def _code_of(scheduler: UserScheduler, workdir: Path) -> Trainable:
    role = TrainableRole.SCHEDULER
    return describe_import(scheduler.path, scheduler.options, workdir=workdir, role=role)


def _planned(scheduler: UserScheduler, decider: Decider) -> UserScheduler:
    declared = decider.decide(0, DECLARED, {}, dict[str, Any])
    return dataclasses.replace(scheduler, plan=SchedulerPlan.from_json(declared))


def _declared_reads(rule: CustomRule, code: Trainable) -> int:
    with running(f"stop rule {rule}", code) as decider:
        (reads,) = decider.reads()
        return reads


@contextmanager
def running(what: str, code: Trainable) -> Iterator[Decider]:
    """Yield a decider that runs code in a child process; DecisionFailed becomes TrainableError."""
    to_import = TrainableImport(str(uuid4()), code, True, (code.workdir,))
    with (
        TemporaryDirectory() as folder,
        closing(RuleProcess([to_import], Path(folder))) as process,
    ):
        try:
            yield process.decider
        except DecisionFailed as error:
            why = str(error).rstrip(".")
            raise TrainableError(
                f"The {what} cannot be used: {why}. Correct it, and try again."
            ) from None


def signed_rules(code: Sequence[Trainable], study_uuid: str) -> tuple[Trainable, ...]:
    """Sign, with the user's key, the custom code of a study."""
    keyring = load_keyring()
    return tuple(sign(each, study_uuid, keyring) for each in code)
