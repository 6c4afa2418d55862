"""The user's handle on a study."""

import dataclasses
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Never, Unpack
from uuid import UUID, uuid4

from studydb.analysis.best_by import find_best
from studydb.db import Database
from studydb.domain.arguments import LARGEST_32, count, flag, integer
from studydb.domain.errors import InvalidSpec, NotAllowed
from studydb.domain.life.retention import Keep, read_keep
from studydb.domain.life.states import Status
from studydb.domain.limits import LimitOptions
from studydb.domain.records import Counts, Request
from studydb.domain.records import Study as Record
from studydb.domain.resources import read_resources, read_resources_or_none
from studydb.domain.study_spec import read_settings
from studydb.domain.text.names import check_tags, check_trial_name
from studydb.domain.text.other_tools import missing_attribute, suggesting_keywords
from studydb.domain.trainable import Trainable
from studydb.lease.loop import OwnLoop
from studydb.lease.own_trial import OwnTrial
from studydb.lease.retries import locked_until
from studydb.lease.study_folders import make_study_folder
from studydb.operations import control, reads
from studydb.operations.change_settings import Changes, change_settings
from studydb.operations.create import create, reload
from studydb.operations.refresh import refreshed
from studydb.operations.rename import rename
from studydb.operations.study_progress import StudyProgress, read_progress
from studydb.settings import load_keyring
from studydb.study import checking
from studydb.study.checkpoint_requests import CheckpointRequests
from studydb.study.cloning import cloned
from studydb.study.code import Code, described, signed
from studydb.study.frozen_trial import FrozenTrial
from studydb.study.loops import open_loop
from studydb.study.resource_requests import ResourceRequests
from studydb.study.running import full_url, refuse_during_import, run
from studydb.study.starting import Starting, StartLike
from studydb.study.storage import (
    Answered,
    closed_on_error,
    open_database,
    read_patiently,
    whoami,
    write_patiently,
)
from studydb.study.trial_requests import TrialRequests
from studydb.study.waiting import wait

if TYPE_CHECKING:
    import pandas as pd


class Study(TrialRequests, CheckpointRequests, ResourceRequests):
    """
    A handle on a study in a database; threads can share a handle.

    Attributes:
        record: The study's row with its specs, as read when the handle was made or as this handle
            last changed it.
    """

    def __init__(self, database: Database, record: Record) -> None:
        self.database, self.record = database, record
        super().__init__()
        self._loop: OwnLoop | None = None
        self._opening = threading.RLock()

    def __reduce__(self) -> Never:
        raise TypeError(
            "A Study holds this process's connections to its database, so it cannot be pickled or "
            f"copied. In the other process, call studydb.load_study({self.name!r}, storage=…)."
        )

    @property
    def name(self) -> str:
        """The study's name."""
        return self.record.name

    @property
    def storage(self) -> str:
        """The database's URL, its password masked."""
        return self.database.url

    @property
    def trials(self) -> list[FrozenTrial]:
        """All trials, ordered by number. Every access reads all rows, but no checkpoints."""
        rows = self._read(reads.list_trials)
        return [FrozenTrial.of(row, self.database, self.record) for row in rows]

    def number_of(self, trial: int | str) -> int:
        """
        Return a trial's number, given its number or its name.

        Raises:
            UnknownTrial: The study has no trial of this name. Numbers are not looked up.
            InvalidSpec: A number is given as text, or is no integer.
        """
        if isinstance(trial, str) and not (trial.isascii() and trial.isdigit()):
            return self._read(lambda database, study: reads.number_of(database, study, trial))
        return integer("A trial's number", trial, most=2**63 - 1)

    def trial(self, number: int | str) -> FrozenTrial:
        """
        Read one trial by its number or name.

        Raises:
            UnknownTrial: The study has no such trial.
        """
        asked = self.number_of(number)
        found = self._read(lambda database, study: reads.find_trial(database, study, asked))
        return FrozenTrial.of(found, self.database, self.record)

    @property
    def best_trial(self) -> FrozenTrial:
        """
        The trial with the best `best_value`.

        NaN is never best. Of equal values the trial with the lower number is best. The trial's
        `checkpoint` is its newest checkpoint; the best value may be the value of an earlier step.

        Raises:
            NoResults: No trial has a value yet; NaN and invalidated trials do not count.
        """
        return FrozenTrial.of(self._read(reads.best_trials)[0], self.database, self.record)

    @suggesting_keywords
    def best(
        self, *, metric: str | None = None, mode: str | None = None, scope: str = "all"
    ) -> FrozenTrial:
        """
        Find the best trial by any metric; NaN is never best, and invalidated trials are left out.

        Without arguments, this returns `best_trial`. If the scope or the objective is not the
        default, all live results are read.

        Args:
            metric: Any metric that trials have reported; None for the study's.
            mode: "min" or "max"; None for the study's mode.
            scope: Which values of a trial count: "all" (the best of them), "last" (the last one),
                "avg" (their mean), "last-5-avg" or "last-10-avg" (the mean of the last 5 or 10).

        Raises:
            NoResults: In this scope, every trial's value of the metric is missing or NaN.
            InvalidSpec: The scope or the mode is unknown, or `metric` is not the study's and `mode`
                is missing.
        """
        found = self._read(lambda database, study: find_best(database, study, metric, mode, scope))
        return self.trial(found.number)

    @property
    def errors(self) -> dict[int, str]:
        """
        The error of each trial in ERROR, such as "ValueError: too large", by trial number.

        If a trial's last attempt stored no error, the text is the trial's reason, such as LOST.
        """
        return self._read(reads.errors)

    @property
    def best_params(self) -> Mapping[str, Any]:
        """The best trial's params, without values that a person has changed (`changed`)."""
        return self.best_trial.params

    @property
    def best_value(self) -> float:
        """The best trial's `best_value`."""
        value = self.best_trial.best_value
        assert value is not None
        return value

    @property
    def progress(self) -> StudyProgress:
        """The study's status, its counts, and whether trials can be claimed, in one read."""
        return self._read(read_progress)

    @property
    def status(self) -> Status:
        """The study's status; FINISHED if the budget is spent, and no trial runs or will run."""
        return self.progress.status

    @property
    def counts(self) -> Counts:
        """The number of trials in each state."""
        return self.progress.counts

    def trials_dataframe(self, *, invalidated: bool = False) -> "pd.DataFrame":
        """
        Read a row per trial: the columns of `v_trial`, with a column per parameter.

        Invalidated trials are left out, except with `invalidated=True`.
        """
        from studydb.analysis.frames import trials_dataframe  # noqa: PLC0415  pandas is an extra

        all_trials = flag("invalidated", invalidated)
        return trials_dataframe(self.database, self.record, invalidated=all_trials)

    def results_dataframe(self, *, invalidated: bool = False) -> "pd.DataFrame":
        """
        Read a row per live result: the columns of `v_result`, with a column per metric.

        Results of invalidated trials are left out, except with `invalidated=True`.
        """
        from studydb.analysis.frames import results_dataframe  # noqa: PLC0415  pandas is an extra

        all_trials = flag("invalidated", invalidated)
        return results_dataframe(self.database, self.record, invalidated=all_trials)

    @suggesting_keywords
    def enqueue(
        self,
        params: Mapping[str, Any],
        *,
        priority: int = 0,
        name: str | None = None,
        tags: Iterable[str] = (),
        checkpoint: StartLike | None = None,
        checkpoint_step: int = 0,
        resources: Mapping[str, float] | str | None = None,
    ) -> int:
        """
        Add a PENDING trial with these params; missing values are drawn from the space.

        Args:
            params: Values by name, nested or by path.
            priority: The trial with the lowest value runs first; from -(2**31 - 1) to 2**31 - 1.
            name: A name for the trial, unique in the study; commands and methods take it in place
                of the number. It has up to 200 printable characters and no "/", does not begin
                with "-", and cannot be a number such as "7" or "1e3".
            tags: Up to 50 texts by which listings and SQL find the trial.
            checkpoint: What the trial begins from. The trial's first step is the checkpoint's step
                plus 1, and the trial enters only rungs at later steps. Give one of
                `trial.checkpoints` of this database. For a trial's newest checkpoint, give the
                trial or, if the trial is in this study, its number. Either checkpoint is pinned
                until the new trial ends. Or give a dict, the path of a directory, or the path of a
                file checkpoint.pkl from `export`; the data is uploaded and signed with your key.
            checkpoint_step: The last step that the dict, the directory or the file contains.
            resources: What this trial needs instead of the study's `resources`, such as
                {"gpus": 2}; {} for nothing.

        Returns:
            The trial's number.

        Raises:
            UnknownTrial: The trial of `checkpoint` does not exist.
            NotFound: That trial does not keep the checkpoint; or the upload took more than a day.
            NotAllowed: The study, or the study of the checkpoint, is being deleted.
            CheckpointError: The dict or path cannot be read or stored; no trial was added.
            BudgetSpent: `num_trials` trials exist; `extend` allows more.
            InvalidSpec: A name is not a parameter of the space, or a value is outside its domain;
                or `checkpoint`, `checkpoint_step` or `resources` is wrong.
            TrainableError, Untrusted: The study's resource function has not said what the trial
                needs, or may not run here; give `resources`.
            InvalidName: The name or a tag breaks a rule.
            TrialExists: Another trial of the study has the name.
        """
        checked_priority = integer("priority", priority, most=LARGEST_32)
        checked_name = None if name is None else check_trial_name(name)
        checked_tags = check_tags(tags)
        asked = read_resources_or_none("resources", resources)
        options: dict[str, Any] = {
            "priority": checked_priority,
            "name": checked_name,
            "tags": checked_tags,
            "resources": asked,
        }
        step = _start_step(checkpoint, checkpoint_step)
        if checkpoint is None:
            return int(self._ask_once(self._enqueue, params, **options))
        self.record.space.check_params(params)  # before anything is uploaded
        request = Request(uuid4().hex, whoami())
        starting = Starting(self.database, self.record, str(UUID(hex=request.token)))
        with starting.begin(checkpoint, step=step) as start:
            return write_patiently(
                self.database,
                lambda: self._enqueue(
                    self.database, self.record, params, request, start=start, **options
                ),
            )

    @suggesting_keywords
    def extend(self, *, num_trials: int) -> int:
        """
        Raise the study's limit of trials by the argument `num_trials`; a FINISHED study continues.

        Returns:
            The study's new `num_trials`.

        Raises:
            UsageError: The argument is no integer, is less than 1, or raises the limit above 2**62.
            NotAllowed: The study has no `num_trials`.
        """
        return int(self._ask_once(control.extend, n_more=count("num_trials", num_trials, least=1)))

    @suggesting_keywords
    def set(
        self,
        *,
        checkpoints: str | os.PathLike[str] | None = None,
        trainable: Code | None = None,
        workdir: str | Path | None = None,
        keep: Keep | str | None = None,
        resources: Mapping[str, float] | str | None = None,
        **limits: Unpack[LimitOptions],
    ) -> None:
        """
        Change settings of the study, all in one transaction; attempts that start later obey them.

        Limits, and a quota in `keep`, also hold for running attempts. A study that has stopped at a
        limit goes on after `resume`.

        Args:
            checkpoints: The URL or path of the store for new checkpoints, "inline:" for the
                database. Older checkpoints stay in their store and can still be read.
            trainable: New code, in a form that `create_study` takes; your key signs it. Workers run
                it without a restart; a worker of a user without this key gives its next trial back,
                and ends after its running trials.
            workdir: The directory that workers search for `trainable` after their own directory;
                None for the current directory.
            keep: Which checkpoints of each trial are kept; see `Keep`.
            resources: What each trial asks for; see `set_resources`.
            limits: New values of limits; see `LimitOptions`. Only a limit that the study was
                created with can be changed.

        Raises:
            UsageError: A value is wrong, studydb has no store for the URL, a command does not agree
                with the space, no setting is given, or `workdir` is given without `trainable`.
            TrainableError: Workers could not find or call the trainable.
            CheckpointError: The store cannot keep the objects that `with_parameters` has bound to
                the trainable.
            NotAllowed: `trainable` is given, but the study has none; a limit is given that the
                study was created without; or `resources` is given, but a function says what the
                study's trials need. After any of these errors, all settings are as before.
        """
        to_set = read_settings(**limits)
        if workdir is not None and trainable is None:
            raise InvalidSpec(
                f"workdir={workdir!r} says where workers search for a trainable; give the "
                "trainable, too."
            )
        url = checking.store_url(checkpoints)
        new = None if trainable is None else self._signed(trainable, workdir, url)
        kept = None if keep is None else read_keep("keep", keep)
        asked = None if resources is None else read_resources("resources", resources)
        changes = Changes(resources=asked, keep=kept, limits=to_set, checkpoints=url, trainable=new)
        if changes == Changes():
            raise InvalidSpec(
                "No setting is given; give checkpoints, trainable, keep, resources or a limit."
            )
        self._ask_once(change_settings, changes)
        if asked is not None:
            to_set = {**to_set, "resources": asked}
        self.record = dataclasses.replace(self.record, **to_set)
        self.record = self._read(refreshed)

    def _signed(self, code: Code, workdir: str | Path | None, url: str | None) -> Trainable:
        if self.record.trainable is None:
            raise NotAllowed(
                f"Study {self.name!r} has no trainable to replace: your own program runs its "
                "trials, through study.ask()."
            )
        record, place = self._read(refreshed), checking.working_directory(workdir)
        store = self.database.locations.store_url(url or record.checkpoints)
        new = described(code, record, workdir=place)
        return signed(
            new,
            code,
            study_uuid=record.uuid,
            store=store,
            keyring=load_keyring(),
            make_folder=partial(make_study_folder, self.database, record),
        )

    def rename(self, new_name: str) -> None:
        """
        Give the study another name; its workers continue.

        Raises:
            InvalidName: The name breaks a rule for names.
            StudyExists: Another study has this name.
        """
        self._ask_once(rename, new_name)
        self.record = dataclasses.replace(self.record, name=new_name)

    def clone(self, new_name: str) -> "Study":
        """
        Create a study with this study's definition under a new name, without trials.

        The definition is the space, the objective, the searcher and its seed, the scheduler, the
        rules, all settings as they are now, the store of checkpoints, and the code, signed with
        your key. Close the new handle when it is no longer needed.

        Raises:
            InvalidName: The name breaks a rule for names.
            StudyExists: Another study has this name.
            NotAllowed: You have not signed this study's code, or the code has bound objects whose
                bytes are in this study's store, not in the database.
        """
        definition = self._read(reload)
        new = cloned(definition, new_name)
        database = open_database(full_url(self.database), make=False)
        with closed_on_error(database):
            send = partial(create, database, new, can_continue=False)
            return Study(database, write_patiently(database, send))

    @suggesting_keywords
    def ask(self, timeout: float | None = None) -> OwnTrial | None:
        """
        Claim a PENDING trial for this process to run; make a new trial if none is PENDING.

        The call waits, for example while the study is paused or at `max_concurrent`. If the
        study is RUNNING and other processes run all its remaining trials, the call waits in two
        cases only: the results of these trials can let the scheduler promote a trial, or the lease
        of one of these trials has expired. If one of these processes dies, its trial goes on in a
        process that asks after the lease has expired.

        Args:
            timeout: Seconds to wait; None to wait without limit.

        Returns:
            The trial; None when the study has no more trials to run or is stopped, or when a person
            has drained this process.

        Raises:
            TimeoutError: No trial could be claimed in time.
            StudyFailed: The study has paused itself, because its first trials failed alike, or
                because a trial failed and `fail_fast` is set.
            NotAllowed, Untrusted: The study's custom code (rules, scheduler, resource function) may
                not run in this process.
            HostError: The trial's checkpoint cannot be fetched on this host; the trial is given
                back.
            UsageError: The key file, which verifies checkpoints, cannot be used; the trial is given
                back.
        """
        refuse_during_import("study.ask()")
        timeout_s = checking.seconds_or_none("timeout", timeout)
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        with locked_until(self._opening, deadline):
            if self._loop is None or self._loop.is_foreign:
                self._loop = open_loop(
                    self.database, self.record, capacity=self._capacity, deadline=deadline
                )
        return self._loop.ask(deadline)

    @suggesting_keywords
    def run(self, workers: int = 1) -> Counts:
        """
        Run the study with worker processes on this machine until it is done, and show its progress.

        On Ctrl-C the workers release their trials, and KeyboardInterrupt is raised. A second Ctrl-C
        kills the workers. On Linux the workers also end when this process is killed.

        Returns:
            The number of trials in each state. If the study is done (see `wait`), no worker starts.

        Raises:
            NotAllowed: The study has no trainable.
            StudyFailed: The study has paused itself because of failed trials (`guard`,
                `fail_fast`); or it is done, trials are in ERROR, and no trial has succeeded.
            StudydbError: All workers ended with an error; the message shows one worker's output.
        """
        refuse_during_import("study.run()")
        n_workers = count("workers", workers, least=1)
        if self.record.trainable is None:
            raise NotAllowed(
                f"Study {self.name!r} has no trainable for workers to run; use study.ask()."
            )
        return run(self.database, self.record, workers=n_workers)

    @suggesting_keywords
    def wait(self, timeout_s: float | None = None) -> Counts:
        """
        Wait until other processes have run the study to its end; this call starts no worker.

        The study is done if no trial runs or will run, or if it was stopped and no trial runs any
        more. A study that has trials left is not done while a person has paused it, or while it has
        paused itself because a custom rule, a custom scheduler or a resource function gave no
        answer. Every 2 s or more often, the call asks the database whether the study has changed.

        Args:
            timeout_s: Seconds to wait; None to wait without limit.

        Returns:
            The number of trials in each state.

        Raises:
            TimeoutError: The study is not done in time; you may call again.
            StudyFailed: See `run`.
            UnknownStudy: The study was deleted meanwhile.
        """
        limit_s = checking.seconds_or_none("timeout_s", timeout_s)
        return wait(self.database, self.record, timeout_s=limit_s)

    def close(self) -> None:
        """
        Release the trials that `ask` has claimed, end child processes, close the connections.

        If the handle and its trials are dropped, the trials are released within about a second, and
        this process is no longer a worker of the study.
        """
        if self._loop is not None:
            self._loop.close()
            self._loop = None
        self._close_function_process()
        self.database.close()

    def _read(self, operation: Callable[[Database, Record], Answered]) -> Answered:
        return read_patiently(lambda: operation(self.database, self.record))

    def _ask_once(self, operation: Callable[..., Any], *args: Any, **options: Any) -> Any:
        if self.record.is_half_deleted:
            raise control.half_deleted(self.record)
        request = Request(uuid4().hex, whoami())
        return write_patiently(
            self.database, lambda: operation(self.database, self.record, *args, request, **options)
        )

    if not TYPE_CHECKING:  # a type checker finds wrong names itself

        def __getattr__(self, name: str) -> Any:
            """Raise AttributeError; if another tool has the name, suggest studydb's attribute."""
            raise missing_attribute(self, name)

    def __repr__(self) -> str:
        return f"<Study {self.name!r} in {self.storage}>"


def _start_step(checkpoint: StartLike | None, step: int) -> int:
    read = count("checkpoint_step", step, least=0)
    if read and checkpoint is None:
        raise InvalidSpec(
            f"checkpoint_step is {read}, but no checkpoint is given. It says which step the "
            "checkpoint contains: give the checkpoint, too, or leave the step out."
        )
    return read
