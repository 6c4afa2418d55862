"""Methods of a study: which resources trials need, and which resources this process offers."""

import dataclasses
import os
import threading
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from studydb.db import Database
from studydb.domain.deciding import DecisionFailed
from studydb.domain.errors import InvalidSpec, NotAllowed, TrainableError
from studydb.domain.records import Request
from studydb.domain.records import Study as Record
from studydb.domain.resources import (
    CPUS,
    GPUS,
    MEMORY_GB,
    UNLIMITED,
    Capacity,
    Resources,
    read_amounts,
    read_capacity,
    read_resources,
)
from studydb.domain.text.other_tools import suggesting_keywords
from studydb.operations.change_settings import Changes, change_settings
from studydb.operations.enqueue import enqueue
from studydb.operations.requesting import ask_function, with_answers
from studydb.worker.cores import available_cores
from studydb.worker.host_resources import memory_gb
from studydb.worker.rule_code import RuleProcess, with_asked_code

if TYPE_CHECKING:
    from studydb.lease.loop import OwnLoop


class ResourceRequests:
    """The methods `set_resources` and `offer` of `Study`; `_enqueue` asks a resource function."""

    database: Database
    record: Record
    number_of: Callable[[int | str], int]
    _ask_once: Callable[..., Any]
    _loop: "OwnLoop | None"
    _opening: "threading.RLock"

    def __init__(self) -> None:
        self._capacity: Capacity = UNLIMITED
        self._function_process: tuple[int, RuleProcess, Record] | None = None
        self._function_lock = threading.Lock()

    @suggesting_keywords
    def set_resources(self, resources: Mapping[str, float] | str, *numbers: int | str) -> None:
        """
        Set what these trials (numbers or names) need; without numbers, set the study's amounts.

        The study's amounts hold for all trials to which no amounts were given. If the study's
        amounts change, a RUNNING trial's attempt keeps what it has, and the trial's next attempt
        asks for the new amounts.

        Args:
            resources: Amounts such as {"gpus": 1, "memory_gb": 8} or "gpus=1"; {} for nothing.

        Raises:
            UnknownTrial: A trial does not exist; nothing was changed.
            NotAllowed: One of the given trials runs or has ended; or no trials are given, and a
                function says what the study's trials need. Nothing was changed.
            InvalidSpec: The amounts cannot be read; or trials are given, the study has 64 different
                sets of amounts already, and these amounts would be one more.
        """
        asked = read_resources("resources", resources)
        chosen = [self.number_of(each) for each in numbers]
        self._ask_once(change_settings, Changes(resources=asked, of_trials=chosen))
        if not chosen:
            self.record = dataclasses.replace(self.record, resources=asked)

    @suggesting_keywords
    def offer(self, resources: Mapping[str, float] | str, *, tags: Iterable[str] = ()) -> None:
        """
        Say what this process has for the trials that it runs itself; call this before `ask`.

        Then `ask` waits for a trial that fits the free amounts: the offered amounts without those
        that the trials of this process hold. Without this call, every trial fits.

        Args:
            resources: Amounts such as {"gpus": 2, "licence": 1}. If `cpus` or `memory_gb` is not
                given, its amount is what a worker would offer: the CPUs of this process, the memory
                of the host or container. Any other resource that is not given is not offered.
                studydb counts the GPUs; it does not lock them, and sets no environment variables.
            tags: What this process has that studies may require, such as ["a100"].

        Raises:
            InvalidSpec, InvalidName: An amount or a tag is wrong.
            NotAllowed: This process has asked for a trial already, or the study requires a tag that
                is not in `tags`.
        """
        capacity = _offered(resources, tags)
        if lacking := capacity.lacks(self.record.require):
            raise NotAllowed(
                f"Study {self.record.name!r} requires the tag {', '.join(map(repr, lacking))}. "
                "This process does not offer it; if this host has what the tag names, give "
                f"tags={lacking!r}."
            )
        with self._opening:
            if self._loop is not None and not self._loop.is_foreign:
                raise NotAllowed(
                    "This process has asked for a trial already, and offers what it offered then. "
                    "Call offer() before the first ask(), or call close() before offer()."
                )
            self._capacity = capacity

    def _enqueue(
        self,
        database: Database,
        study: Record,
        params: Mapping[str, Any],
        request: Request,
        **options: Any,
    ) -> int:
        send = partial(enqueue, database, study, params, request, **options)
        try:
            return with_answers(
                study, lambda answers: send(answers=answers), ask=self._ask_in_process
            )
        except DecisionFailed as error:
            raise TrainableError(
                f"The resource function {study.resources} has not said what the trial needs: "
                f"{str(error).rstrip('.')}. No trial was added. Correct the function, or say what "
                "this trial needs: resources={'gpus': 1}, --resources gpus=1."
            ) from None

    def _ask_in_process(self, study: Record, config: Mapping[str, Any]) -> Resources:
        """Ask the study's resource function in a child, which is kept until the handle closes."""
        with self._function_lock:
            if self._function_process is None or self._function_process[0] != os.getpid():
                process = RuleProcess.of(self.database, study)
                assert process is not None  # the study has a resource function
                asked = with_asked_code(study, process.decider)
                self._function_process = os.getpid(), process, asked
            return ask_function(self._function_process[2], config)

    def _close_function_process(self) -> None:
        with self._function_lock:
            if self._function_process is not None and self._function_process[0] == os.getpid():
                self._function_process[1].close()
            self._function_process = None


def _offered(resources: Mapping[str, float] | str, tags: Iterable[str]) -> Capacity:
    given = read_amounts("resources", resources)
    gpus = given.pop(GPUS, 0.0)
    if gpus != int(gpus):
        raise InvalidSpec(f"resources offers {gpus:g} gpus; give a whole number of GPUs.")
    cpus = given.pop(CPUS, available_cores())
    return read_capacity(
        cpus=cpus,
        gpus=int(gpus),
        memory_gb=given.pop(MEMORY_GB, memory_gb()),
        custom=given,
        tags=tags,
    )
