"""The supervisor: starts the fork server, registers, runs its slots, and shuts down in order."""

import math
import os
import shlex
import signal
import time
from collections.abc import Callable
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from functools import partial
from typing import Any
from uuid import uuid4

from studydb.artifacts.restore_cache import cache_fault
from studydb.db import LONGEST_SILENCE_S, Database, connect
from studydb.domain.errors import (
    StorageMissing,
    StorageTransient,
    StorageUnreachable,
    StudydbError,
    StudyFailed,
    UsageError,
)
from studydb.domain.records import DRAIN, Study
from studydb.domain.roles import Role
from studydb.domain.text.display import counted
from studydb.lease.checkpoint_rows import Checkpoints
from studydb.lease.fitting import Fitting
from studydb.lease.heartbeat import Heartbeat
from studydb.lease.proposing import Proposer
from studydb.lease.retries import retry_until_answered
from studydb.lease.room import Room
from studydb.lease.upload_collector import UploadCollector
from studydb.operations.create import load, reload
from studydb.operations.failing import describe_failure
from studydb.operations.recover import recover, recover_host
from studydb.operations.register import leave, register
from studydb.operations.study_progress import read_progress
from studydb.operations.writing import write
from studydb.processes import die_with_parent, is_alive, pid_namespace, start_of, this_process
from studydb.settings import PARENT, expanded, load_keyring
from studydb.temporary import remove_abandoned
from studydb.version import __version__
from studydb.worker.attempt_output import OutputPump
from studydb.worker.current_code import CurrentCode, trusted_import
from studydb.worker.decider_client import Decider
from studydb.worker.equipment import Equipment
from studydb.worker.fork_server_client import ForkServer
from studydb.worker.host import host_error, is_host_fault
from studydb.worker.host_resources import HostResources
from studydb.worker.interruption import Interruption
from studydb.worker.notices import Notices
from studydb.worker.rule_code import DIRECTORY, asking, trusted_code, with_asked_code
from studydb.worker.slot import Slot, TrialLimit
from studydb.worker.templates import Templates
from studydb.worker.worker_options import WorkerOptions

START_PATIENCE_S = 30.0
"""How long a worker tries to connect at its start, unless the patience is shorter."""

SHORTEST_TIMEOUT_S = 10.0
"""
The least time to wait for one answer of the database, even if the patience is shorter. After a
signal or an error the worker waits less.
"""

STOPPING_TIMEOUT_S = 5.0
"""The time to wait for one answer after a signal or an error, until the grace is over."""

LATE_TIMEOUT_S = 1.0
"""The time to wait for one answer once the grace is over; the worker may soon be killed."""

SHORTEST_LEASE_S = 1.0
JOIN_S = 0.5


def run_worker(options: WorkerOptions) -> int:
    """
    Work on a study until it is done or the worker stops; call this from the main thread.

    Returns:
        The exit code; workers/README.md lists the codes.

    Raises:
        StudydbError: The worker cannot start, for example without a database or a study, or because
            the study's code is not trusted.
    """
    options = _checked(options)
    interruption = Interruption()
    interruption.listen(
        end_process=lambda number: os._exit(128 + number), preempt_signal=options.preempt_signal
    )
    _end_with_parent()
    remove_abandoned()
    with ExitStack() as stack:
        forkserver = stack.enter_context(
            closing(ForkServer(slots=options.slots, ignored_signal=options.preempt_signal))
        )
        try:
            forkserver.start()  # in the main thread; see `ForkServer.start`
            return _work(options, interruption, forkserver, stack)
        except (OSError, RuntimeError) as error:
            if not is_host_fault(error):
                raise
            raise host_error("start a worker", error) from error
        except StorageTransient:
            if interruption.signal is None:
                raise
            return 128 + interruption.signal  # the signal came during a wait for the database


def _end_with_parent() -> None:
    """
    Have the kernel end this worker when the process of `study.run` ends; end it now if that ended.

    A process of `study.run` that lives, but is not the parent, started this worker by a wrapper.
    """
    pid, _, namespace = os.environ.pop(PARENT, "").partition("@")
    if not pid or namespace != pid_namespace():
        return
    parent = int(pid)
    if parent == os.getppid() or start_of(parent) is None:
        die_with_parent(signal.SIGTERM, parent)


def _workdir(workdir: str | None) -> str | None:
    if workdir is None:
        return None
    path = expanded(workdir).absolute()
    if not path.is_dir():
        fact = "is not a directory" if path.exists() else "does not exist"
        raise UsageError(f"The working directory {path} {fact}. Correct --workdir.")
    return str(path)


def _checked(options: WorkerOptions) -> WorkerOptions:
    if options.slots < 1:
        raise UsageError(f"A worker needs 1 slot or more, not {options.slots}.")
    if not SHORTEST_LEASE_S <= options.lease_s < math.inf:
        raise UsageError(f"--lease is {options.lease_s}; give 1 second or more, not infinity.")
    if not options.patience_s >= 0:
        raise UsageError(f"--patience is {options.patience_s}; give 0 seconds or more.")
    if not 0 <= options.reserve_after_s < math.inf:
        raise UsageError(
            f"--reserve-after is {options.reserve_after_s}; give 0 seconds or more, not infinity."
        )
    if not options.grace_s >= 0:
        raise UsageError(f"--grace is {options.grace_s}; give 0 seconds or more.")
    return _with_usable_cache(replace(options, workdir=_workdir(options.workdir)))


def _host_for(study: Study, options: WorkerOptions) -> HostResources:
    """Find what the host offers; refuse a worker that could never claim a trial of the study."""
    host = HostResources.of(options, say=options.say)
    if lacking := host.capacity.lacks(study.require):
        tags = " ".join(f"--tag {shlex.quote(tag)}" for tag in lacking)
        raise UsageError(
            f"Study {study.name!r} requires workers with the tag {', '.join(map(repr, lacking))}, "
            "and this worker has no such tag. If it may run the study, start the "
            f"worker with {tags}."
        )
    return host


def _with_usable_cache(options: WorkerOptions) -> WorkerOptions:
    """Go on without a cache of remote checkpoints if its folder cannot be used; say so once."""
    fault = cache_fault() if options.cache_bytes else None
    if fault is None:
        return options
    options.say(fault)
    return replace(options, cache_bytes=0)


def _work(
    options: WorkerOptions, interruption: Interruption, forkserver: ForkServer, stack: ExitStack
) -> int:
    def is_stopping() -> bool:
        return interruption.is_stopping

    database = stack.enter_context(closing(_connect(options, interruption)))
    retry = partial(retry_until_answered, patience_s=options.patience_s, give_up=is_stopping)
    study = retry(lambda: load(database, options.study))
    log_root = database.locations.log_root(study)  # raises here if there is no home directory
    host = _host_for(study, options)
    keyring = load_keyring()
    to_import = trusted_import(database, study, keyring, options)
    deciding = trusted_code(study, keyring, options)
    heartbeat_database = stack.enter_context(closing(_connect(options, interruption)))
    notices = Notices(study.name, options.say)
    database.on_slow = heartbeat_database.on_slow = notices.slow_transaction
    worker_id = _register(database, study, options, host, retry)
    stack.callback(_leave, database, worker_id)
    collector = UploadCollector(heartbeat_database, study)
    heartbeat = Heartbeat(
        heartbeat_database,
        study,
        worker_id=worker_id,
        lease_s=options.lease_s,
        after_beat=lambda: _after_beat(heartbeat, interruption, heartbeat_database, collector),
    )
    pump = stack.enter_context(closing(OutputPump()))
    templates = Templates(
        forkserver,
        pump,
        directory=log_root / "templates",
        enabled=options.warm_starts,
        say=options.say,
        is_stopping=is_stopping,
    )
    stack.callback(templates.close)
    decider = Decider(
        forkserver, pump, objects=deciding, directory=log_root / DIRECTORY, is_stopping=is_stopping
    )
    stack.callback(decider.close)
    study = with_asked_code(study, decider, say=options.say)
    in_grace = partial(retry, give_up=lambda: interruption.is_late(options.grace_s))
    checkpoints = Checkpoints(database, study, keyring, retry=in_grace)
    current = partial(CurrentCode, database, keyring, options, to_import=to_import)
    equipment = Equipment(
        options=options,
        database=database,
        study=study,
        worker_id=worker_id,
        code=current(checkpoints=checkpoints, templates=templates),
        templates=templates,
        pump=pump,
        checkpoints=checkpoints,
        heartbeat=heartbeat,
        interruption=interruption,
        notices=notices,
        room=Room(spill_bytes=options.spill_bytes, say=options.say),
        host=host,
        fitting=_fitting(database, study, worker_id, host, options),
        ask_rule=asking(decider, say=options.say) if study.rule_code else None,
        proposer=Proposer.of(database, study, worker_id=worker_id),
    )
    heartbeat.start()
    stack.callback(heartbeat.stop)
    _run_slots(equipment)
    code = _exit_code(interruption, options)
    if code == 0 and not interruption.is_drained:
        code = _print_study_state(equipment)
    return code


def _fitting(
    database: Database, study: Study, worker_id: int, host: HostResources, options: WorkerOptions
) -> Fitting:
    return Fitting(
        database,
        study,
        worker_id=worker_id,
        capacity=host.capacity,
        free_cards=host.free_cards,
        wait_for_cards=host.wait_for_cards,
        reserve_after_s=options.reserve_after_s,
    )


def _connect(options: WorkerOptions, interruption: Interruption) -> Database:
    """Connect; if the server does not answer, print that once, and try again for up to 30 s."""
    patience_s = min(START_PATIENCE_S, options.patience_s)
    deadline_s = time.monotonic() + patience_s
    is_printed = False
    while True:
        try:
            return connect(
                options.storage,
                connections=1,
                longest_silence=partial(_answer_timeout_s, options, interruption),
            )
        except StorageUnreachable as error:
            if time.monotonic() >= deadline_s or interruption.is_stopping:
                raise
            if not is_printed:
                options.say(f"{error} Trying again for {patience_s:.0f} s.")
                is_printed = True
            interruption.wait(1.0)


def _answer_timeout_s(options: WorkerOptions, interruption: Interruption) -> float:
    since_s = interruption.urgent_since_s
    if since_s is None:
        return min(LONGEST_SILENCE_S, max(SHORTEST_TIMEOUT_S, options.patience_s))
    is_late = time.monotonic() - since_s > options.grace_s
    return LATE_TIMEOUT_S if is_late else STOPPING_TIMEOUT_S


def _register(
    database: Database,
    study: Study,
    options: WorkerOptions,
    host: HostResources,
    retry: Callable[..., Any],
) -> int:
    uuid, process = str(uuid4()), this_process()
    send = partial(
        register,
        database,
        study,
        uuid=uuid,
        process=process,
        slots=options.slots,
        lease_s=options.lease_s,
        version=__version__,
        capacity=host.capacity,
    )
    worker_id: int = retry(lambda: write(database, send, role=Role.WORKER))
    recovered = retry(lambda: recover_host(database, study, process=process, is_alive=is_alive))
    options.say(f"worker {uuid[:8]} works on {study.name!r} in {database.url}")
    if recovered:
        options.say(f"recovered {counted(recovered, 'trial')} of workers that died on this host")
    return worker_id


def _after_beat(
    heartbeat: Heartbeat, interruption: Interruption, database: Database, uploads: UploadCollector
) -> None:
    if heartbeat.request == DRAIN:
        interruption.drain()
    recover(database, uploads.study)
    uploads.look()


def _run_slots(equipment: Equipment) -> None:
    trial_limit = TrialLimit(equipment.options.max_trials)
    slots = [Slot(equipment, trial_limit, number=n) for n in range(equipment.options.slots)]
    for slot in slots:
        try:
            slot.start()
        except RuntimeError as error:
            equipment.interruption.give_up(str(host_error("start a slot", error)))
    is_wait_printed = False
    for slot in slots:
        while slot.is_alive():  # each join is short: Python runs signal handlers in between
            slot.join(JOIN_S)
            if isinstance(missing := equipment.heartbeat.error, StorageMissing):
                equipment.interruption.give_up(str(missing))
            if equipment.interruption.is_stopping and slot.is_alive() and not is_wait_printed:
                equipment.options.say(_wait_for_trials(equipment))
                is_wait_printed = True


def _wait_for_trials(equipment: Equipment) -> str:
    """Say what a stopping worker waits for, and how a person ends the wait."""
    number = equipment.interruption.signal
    to_kill = (
        f"; a second {signal.Signals(number).name} kills them"
        if number in (signal.SIGINT, signal.SIGTERM)
        else ""
    )
    grace_s = equipment.options.grace_s
    return f"waiting up to {grace_s:g} s for the running trials to save and end{to_kill}"


def _print_study_state(equipment: Equipment) -> int:
    """Print what became of the study; return 3 if the study has failed, else 0."""
    database, say = equipment.database, equipment.options.say
    with suppress(StudydbError):
        study = reload(database, equipment.study)  # a person may have renamed it
        progress = read_progress(database, study)
        if progress.is_done:
            say(f"study {study.name!r} is {progress.status}: {progress.counts.text}")
        if progress.limit_reached is not None:
            say(f"the study has stopped itself: its {progress.limit_reached}")
        if progress.has_failed:
            say(describe_failure(database, study, progress))
            return StudyFailed.exit_code
        if progress.counts.error:
            name = shlex.quote(study.name)
            say(
                f"`studydb trials {name} --state ERROR` lists the trials that ended with an error; "
                f"`studydb show {name} NUMBER` shows why; "
                f"`studydb retry {name} --errored` runs them again"
            )
    return 0


def _leave(database: Database, worker_id: int) -> None:
    with suppress(StudydbError):
        leave(database, worker_id=worker_id)


def _exit_code(interruption: Interruption, options: WorkerOptions) -> int:
    if interruption.gave_up is not None:
        options.say(interruption.gave_up)
    if interruption.signal is not None:
        if interruption.gave_up is None:
            name = signal.Signals(interruption.signal).name
            options.say(
                f"ended by {name}; trials that ran here are released, and any worker continues them"
            )
        return 128 + interruption.signal
    if interruption.gave_up is not None:
        return 1
    if interruption.is_drained:
        options.say("a person drained this worker; trials that ran here are released")
    return 0
