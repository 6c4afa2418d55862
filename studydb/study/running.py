"""Run a study with worker processes on this machine, and show its progress."""

import shlex
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from studydb.analysis.overview_text import problem_text
from studydb.child.running_trial import running_study
from studydb.db import Database
from studydb.domain.errors import (
    NoResults,
    NotAllowed,
    StorageTransient,
    StudydbError,
    StudyFailed,
)
from studydb.domain.life.ending import DIED
from studydb.domain.life.states import Status
from studydb.domain.limits import LIMITS
from studydb.domain.records import Counts
from studydb.domain.records import Study as Record
from studydb.domain.text.display import counted, visible
from studydb.operations import reads
from studydb.operations.create import reload
from studydb.operations.failing import describe_failure, last_error
from studydb.operations.overview import study_problems
from studydb.operations.study_progress import StudyProgress, read_progress
from studydb.study.storage import read_patiently
from studydb.trainables import code_in_import
from studydb.worker.worker_processes import WorkerProcesses

if TYPE_CHECKING:
    from studydb.analysis.progress_line import ProgressLine

LOOK_S = 0.5
"""Seconds between two reads of the study's progress."""

ERRORS_EVERY_S = 2.0
"""Seconds between two reads of the last error; another trial in ERROR causes a read at once."""

RELEASING = "Waiting for the workers to save and release their trials; Ctrl-C again kills them."
RELEASED = "The workers have ended; run the study again to continue their trials."


def refuse_during_import(call: str) -> None:
    """
    Raise `NotAllowed` if this process imports modules to run a study's code.

    If a worker imported a script that calls `study.run()`, each trial would run the whole study.
    """
    if (code := code_in_import()) is not None:
        raise NotAllowed(
            f"{code} calls {call} when it is imported, and a worker imports it for "
            f'the study\'s code. Put the call below `if __name__ == "__main__":`.'
        )


def _refuse_in_own_trial(study: Record) -> None:
    """
    Raise `NotAllowed` if this process runs a trial of the study; trials may run other studies.

    The run would wait until its own trial has ended. A trial calls `study.run` by mistake if it
    imports the script that runs the study.
    """
    if running_study() == study.uuid:
        raise NotAllowed(
            f"A trial of study {study.name!r} calls study.run() of this study, so the run would "
            "wait for its own trial without end. If the trial imports the script that runs the "
            'study, put the call in the script below `if __name__ == "__main__":`.'
        )


def run(database: Database, study: Record, *, workers: int) -> Counts:
    """Start worker processes that run a study until it is done; see `Study.run`."""
    from studydb.analysis.progress_line import ProgressLine  # noqa: PLC0415  imports the display

    _refuse_in_own_trial(study)
    study = replace(study, name=read_patiently(lambda: reload(database, study)).name)
    progress = read_patiently(lambda: read_progress(database, study))
    display = ProgressLine(study.name, study.objective)
    if progress.is_done:
        if progress.status is Status.STOPPED:
            display.show_message(_why_nothing_runs(study, progress))
        return checked(database, study, progress)
    known = set(_error_numbers(database, study, progress.counts))
    watch = _Watch(database, study, display, n_errors=len(known))
    team = WorkerProcesses(storage=full_url(database), study=study.name, workers=workers)
    try:
        with closing(display), team:
            try:
                watch.until_ended(team)
            except KeyboardInterrupt:
                display.show_message(RELEASING)
                raise
    except KeyboardInterrupt as interrupt:
        display.show_message(RELEASED)
        _hide_traceback(interrupt)
        raise
    progress = read_patiently(lambda: read_progress(database, study))
    for problem in read_patiently(lambda: study_problems(database, study)):
        display.show_message(f"Problem: {problem_text(problem)}")
    if progress.limit_reached is not None:
        display.show_message(f"The study has stopped itself: its {progress.limit_reached}.")
    counts = checked(database, study, progress)
    if new := [n for n in _error_numbers(database, study, counts) if n not in known]:
        display.show_message(_describe_errors(database, study, new))
    return counts


def _why_nothing_runs(study: Record, progress: StudyProgress) -> str:
    """Say why a run of a STOPPED study starts no trial, and how to go on."""
    name, reached = shlex.quote(study.name), progress.limit_reached
    why = "was stopped" if reached is None else f"has stopped itself: its {visible(reached)}"
    limit, to_raise = (reached or "").partition(" ")[0], ""
    if limit in LIMITS:
        to_raise = f"study.set({limit}=…), then "
    elif progress.is_over and progress.num_trials is not None:
        to_raise = "study.extend(num_trials=…), then "
    return (
        f"Study {study.name!r} {why}. No trial runs. To go on: {to_raise}study.resume() or "
        f"`studydb resume {name}`."
    )


def _hide_traceback(interrupt: KeyboardInterrupt) -> None:
    """Print no traceback if this interrupt ends the script."""
    show = sys.excepthook

    def show_others(kind: type[BaseException], error: BaseException, trace: Any) -> None:
        if error is not interrupt:
            show(kind, error, trace)

    sys.excepthook = show_others


def checked(database: Database, study: Record, progress: StudyProgress) -> Counts:
    """Return the counts of a study that is done; raise StudyFailed if the study has failed."""
    if progress.has_failed:
        raise StudyFailed(read_patiently(lambda: describe_failure(database, study, progress)))
    return progress.counts


def full_url(database: Database) -> str:
    """Return the URL with its password, for further connections; never show it."""
    return database.secret_url.render_as_string(hide_password=False)


class _Watch:
    """Shows the progress of a run, and the errors of trials since the run began."""

    def __init__(
        self, database: Database, study: Record, display: "ProgressLine", *, n_errors: int
    ) -> None:
        self._database, self._study, self._display = database, study, display
        self._began_s = time.monotonic()
        self._was_paused = self._is_away = False
        self._n_errors = n_errors
        self._last_error = read_patiently(lambda: last_error(database, study))
        self._shown_error = ""
        self._error_due_s = 0.0

    def until_ended(self, team: WorkerProcesses) -> None:
        while team.alive:
            self._look_if_answered()
            team.wait(LOOK_S)
        if team.failed is not None and not self._is_over():
            raise StudydbError(
                f"All workers of {self._study.name!r} ended before the study was done. The study's "
                f"results are kept; run it again to continue. The cause: {team.failed}"
            )
        read_patiently(self._look)

    def _look_if_answered(self) -> None:
        try:
            self._look()
        except StorageTransient as error:
            if not self._is_away:
                line = f"The database does not answer; the workers wait: {error}"
                self._display.show_message(line)
            self._is_away = True
            return
        if self._is_away:
            self._display.show_message("The database answers again.")
        self._is_away = False

    def _look(self) -> None:
        progress = read_progress(self._database, self._study)
        elapsed_s = time.monotonic() - self._began_s
        self._display.update(
            progress.counts,
            self._best_value(),
            elapsed_s,
            n_to_make=progress.n_to_make,
            n_clones=progress.n_clones,
        )
        # The failure of a trial that is retried does not increase `counts.error`, so the last error
        # is also read every `ERRORS_EVERY_S`.
        if progress.counts.error > self._n_errors or elapsed_s >= self._error_due_s:
            self._error_due_s = elapsed_s + ERRORS_EVERY_S
            self._show_last_error()
        self._n_errors = progress.counts.error
        is_paused = progress.status is Status.PAUSED and not progress.is_done
        if is_paused and not self._was_paused:
            name = shlex.quote(self._study.name)
            why = "is paused"
            if progress.pause_reason is not None:
                why = f"has paused itself: {visible(progress.pause_reason)}"
            self._display.show_message(
                f"Study {self._study.name!r} {why}; the workers wait for "
                f"`studydb resume {name}` or study.resume()."
            )
        self._was_paused = is_paused

    def _show_last_error(self) -> None:
        error = last_error(self._database, self._study)
        if error is None or error == self._last_error:
            return
        self._last_error = error
        if error.summary != self._shown_error:
            self._shown_error = error.summary
            verb = "was lost" if error.type == DIED else "failed"
            self._display.show_message(f"trial {error.number} {verb}: {error.summary}")

    def _best_value(self) -> float | None:
        try:
            return reads.best_trials(self._database, self._study)[0].best_value
        except NoResults:
            return None

    def _is_over(self) -> bool:
        try:
            return read_progress(self._database, self._study).is_done
        except StorageTransient:
            return False


def _error_numbers(database: Database, study: Record, counts: Counts) -> list[int]:
    """Read the numbers of the trials in ERROR, ascending."""
    return read_patiently(lambda: reads.error_numbers(database, study)) if counts.error else []


def _describe_errors(database: Database, study: Record, numbers: Sequence[int]) -> str:
    first = numbers[0]
    error = read_patiently(lambda: reads.errors(database, study, first)).get(first)
    # `error` is None if the trial was deleted meanwhile, and its study is still being deleted.
    why = "" if error is None else f" with {error.splitlines()[0]}"
    return (
        f"{counted(len(numbers), 'trial')} of {study.name!r} ended with an error, "
        f"trial {first}{why}\n"
        f"Details: studydb show {shlex.quote(study.name)} {first}"
    )
