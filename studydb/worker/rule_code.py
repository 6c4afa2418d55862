"""
Call a study's custom rules, custom scheduler and resource function.

Call `trusted_code` first: it checks that this process trusts their code.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from studydb.child.job import TrainableImport
from studydb.db import Database
from studydb.domain.custom_scheduler import JUDGE, NEXT_WORK, Question
from studydb.domain.deciding import DecisionFailed
from studydb.domain.errors import NotAllowed
from studydb.domain.life.custom_rule import CustomRule, TrialView
from studydb.domain.life.decisions import Decision
from studydb.domain.life.rules import custom_rules
from studydb.domain.records import Study
from studydb.domain.resource_function import NOUN, AskRequest, ResourceFunction
from studydb.domain.resources import Resources
from studydb.domain.scheduling import Work
from studydb.domain.trainable import Trainable, TrainableKind
from studydb.lease.rule_judge import AskRule
from studydb.schedulers import UserScheduler
from studydb.settings import Keyring, load_keyring
from studydb.trainables import Trust, check_trusted
from studydb.trainables.custom_rules import METHOD, options_of, view_arguments
from studydb.trainables.custom_schedulers import (
    JudgeAnswer,
    WorkAnswer,
    read_decision,
    read_work,
)
from studydb.trainables.resource_functions import REQUEST, read_answer
from studydb.worker.attempt_output import OutputPump
from studydb.worker.decider_client import Decider
from studydb.worker.fork_server_client import ForkServer
from studydb.worker.worker_options import WorkerOptions

DIRECTORY = "decider"
"""The folder for the output of the decider, in the folder of a study's logs."""


def trusted_rules(
    study: Study, keyring: Keyring, options: WorkerOptions | None = None
) -> list[TrainableImport]:
    """
    Check that the code of a study's custom stop rules may run here, and describe its import.

    Args:
        options: The options of the worker; None in a process that is no worker. Python looks for
            the code in `options.workdir`, by default the current directory. Python then looks for
            signed code in the directory that was stored with the code. Unsigned code may run only
            if `options.allow_imports` allows the code.

    Returns:
        The code in the order of `custom_rules(study.rules)`.

    Raises:
        NotAllowed: The study has a rule, but not the rule's code.
        Untrusted: See `check_trusted`.
    """
    code = (_code_of(study, rule, study.rule_code) for rule in custom_rules(study.rules))
    return [_trusted(study, each, keyring, options) for each in code]


def trusted_code(
    study: Study, keyring: Keyring, options: WorkerOptions | None = None
) -> list[TrainableImport]:
    """
    Do what `trusted_rules` does, also for a custom scheduler and a resource function.

    The scheduler comes after the rules, and the resource function comes last.
    """
    imports = trusted_rules(study, keyring, options)
    if isinstance(study.scheduler, UserScheduler):
        known = [] if study.scheduler_code is None else [study.scheduler_code]
        code = _code_of(study, study.scheduler, known)
        imports.append(_trusted(study, code, keyring, options))
    if isinstance(study.resources, ResourceFunction):
        imports.append(_trusted(study, _code_of_function(study, study.resources), keyring, options))
    return imports


def _code_of_function(study: Study, function: ResourceFunction) -> Trainable:
    code = study.request_code
    if code is None or code.name != function.path or code.kind != TrainableKind.IMPORT:
        raise _without_code(study, f"{NOUN} {function.path}")
    return code


def _trusted(
    study: Study, code: Trainable, keyring: Keyring, options: WorkerOptions | None
) -> TrainableImport:
    own = str((options and options.workdir) or Path.cwd())
    allow_imports = options.allow_imports if options else ()
    trust = check_trusted(code, study.uuid, keyring, allow_imports)
    signed = trust is Trust.SIGNED
    workdirs = (own, code.workdir) if signed else (own,)
    return TrainableImport(study.uuid, code, signed, workdirs)


def _code_of(
    study: Study, described: CustomRule | UserScheduler, known: Iterable[Trainable]
) -> Trainable:
    for code in known:
        if described.is_made_by(code.name, options_of(code)):
            return code
    noun = "stop rule" if isinstance(described, CustomRule) else "scheduler"
    raise _without_code(study, f"{noun} {described}")


def _without_code(study: Study, what: str) -> NotAllowed:
    return NotAllowed(
        f"Study {study.name!r} has the {what}, but not its code. studydb never writes a study like "
        "this, so something else has changed the database: find out who did, and create the study "
        "again."
    )


def asking(decider: Decider, *, say: Callable[[str], None] = lambda _: None) -> AskRule:
    """
    Make the function that asks a study's custom stop rules in a child process.

    Args:
        say: Prints why a rule has not decided; the same cause is printed once.
    """
    printer = _FailurePrinter("a stop rule", say)

    def ask(position: int, view: TrialView, is_moot: Callable[[], bool]) -> bool | str:
        with printer:
            answer: bool | str = decider.decide(
                position, METHOD, view_arguments(view), bool | str, is_moot=is_moot
            )
        return answer

    return ask


def with_asked_code(
    study: Study, decider: Decider, *, say: Callable[[str], None] = lambda _: None
) -> Study:
    """
    Return a study whose scheduler and resource function this process can ask.

    A scheduler of studydb and a fixed request for resources stay as they are.

    Args:
        decider: The decider that was started with the code that `trusted_code` returned.
        say: Prints why the code has not decided; the same cause is printed once.
    """
    position = len(custom_rules(study.rules))
    if isinstance(study.scheduler, UserScheduler):
        asked = asked_by(decider, study.scheduler, position=position, say=say)
        study, position = replace(study, scheduler=asked), position + 1
    if isinstance(study.resources, ResourceFunction):
        ask = asking_requests(decider, position=position, say=say)
        study = replace(study, resources=study.resources.asked_by(ask))
    return study


def asking_requests(
    decider: Decider, *, position: int = 0, say: Callable[[str], None] = lambda _: None
) -> AskRequest:
    """
    Make the function that asks a study's resource function in a child process.

    Args:
        position: The position of the function's code among the objects of the decider.
        say: Prints why the function has not answered; the same cause is printed once.
    """
    printer = _FailurePrinter("the resource function", say)

    def ask(config: Mapping[str, Any]) -> Resources:
        arguments = {"config": json.dumps(dict(config))}
        with printer:
            return read_answer(decider.decide(position, REQUEST, arguments, dict[str, float]))

    return ask


def asked_by(
    decider: Decider,
    scheduler: UserScheduler,
    *,
    position: int = 0,
    say: Callable[[str], None] = lambda _: None,
) -> UserScheduler:
    """
    Return a scheduler that this process can ask.

    Args:
        position: The position of the scheduler's code among the objects of the decider.
        say: Prints why the scheduler has not decided; the same cause is printed once.
    """
    printer = _FailurePrinter("the scheduler", say)

    def ask(question: Question) -> Decision | Work:
        arguments = {"text": question.text}
        with printer:
            if question.method == JUDGE:
                judged = decider.decide(position, JUDGE, arguments, JudgeAnswer)
                return read_decision(question, judged, scheduler.plan)
            return read_work(question, decider.decide(position, NEXT_WORK, arguments, WorkAnswer))

    return scheduler.asked_by(ask)


class _FailurePrinter:
    """Prints the cause of each failed decision; the same cause is printed once."""

    def __init__(self, what: str, say: Callable[[str], None]) -> None:
        self._what, self._say = what, say
        self._said: set[str] = set()

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, DecisionFailed) and (why := str(error)) not in self._said:
            self._said.add(why)
            self._say(f"{self._what} has not decided, so the study pauses itself: {why}")


class RuleProcess:
    """
    A decider that a process other than a worker starts, for a study's code that decides.

    The first question starts the decider and its fork server.
    """

    def __init__(self, imports: list[TrainableImport], directory: Path) -> None:
        self._opened = ExitStack()
        pump = OutputPump()
        self._opened.callback(pump.close)
        forkserver = ForkServer()
        self._opened.callback(forkserver.close)
        self.decider = Decider(forkserver, pump, objects=imports, directory=directory)
        self._opened.callback(self.decider.close)

    @classmethod
    def of(cls, database: Database, study: Study) -> Self | None:
        """
        Make the decider for a study; None if the study has no code that decides.

        Raises:
            NotAllowed, Untrusted: See `trusted_rules`.
        """
        has_scheduler = isinstance(study.scheduler, UserScheduler)
        if not (custom_rules(study.rules) or has_scheduler or study.asks_by_config):
            return None  # such a study needs no key file
        imports = trusted_code(study, load_keyring())
        return cls(imports, database.locations.log_root(study) / DIRECTORY)

    def close(self) -> None:
        """End the decider and its fork server."""
        self._opened.close()
