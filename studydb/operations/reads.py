"""
Read what people look up: studies, trials, attempts, errors, rungs and checkpoints.

A function that takes a trial's number raises UnknownTrial if the study has no such trial; `errors`
returns {} instead. The functions that an open handle of a study (`study/handle.py`) calls raise
UnknownStudy if the study was deleted. To save a statement, these functions check that the study
exists only after they have found nothing.
"""

import shlex
from typing import Any

from msgspec import Struct

from studydb.db import Database, Txn
from studydb.domain.errors import NoResults, UnknownTrial
from studydb.domain.life.rules import custom_rules
from studydb.domain.life.states import Reason, State
from studydb.domain.listed_rows import (
    AttemptDetails,
    Judgement,
    ListedAttempt,
    ListedCheckpoint,
    ListedNote,
    ListedRung,
    ListedStudy,
    ListedTrial,
    Unranked,
)
from studydb.domain.metrics import Result
from studydb.domain.records import Study, TrialRow
from studydb.domain.text.suggestions import did_you_mean
from studydb.operations.fit_report import TrialFit, trial_fit_in
from studydb.schedulers import UserScheduler
from studydb.store import (
    attempts,
    checkpoint_listing,
    clones,
    events,
    notes,
    ranking,
    results,
    rung_listing,
    studies,
    trials,
    view_rows,
)

MOST_NOTES = 20
"""How many of a trial's newest notes a page shows."""

MOST_NAMES = 1_000
"""To suggest similar names, an unknown name is compared with at most this many names of trials."""


class TrialDetails(Struct, frozen=True):
    """
    All that a page about a trial shows.

    `limit_reached` and `rule_met` come from events. They are also None if the event is not among
    the study's newest 2,000 events.

    Attributes:
        listed: The rows of `v_attempt` about the trial, oldest first.
        attempts: Further columns of the same attempts, in the same order.
        judgements: How the scheduler judged the trial at its last 100 rungs, ordered by step.
        clones: The numbers of the trial's clones.
        notes: The newest notes on the trial, oldest first.
        last_result: None if the trial has reported nothing.
        limit_reached: If the trial is BUDGET_SPENT: which limit or stop rule has stopped the whole
            study. None for other trials.
        rule_met: Which custom rule has stopped the trial, with the reason that the rule gave; None
            for other trials.
        fit: What the trial asks for; None in a study without requests for resources.
    """

    trial: TrialRow
    listed: list[ListedAttempt]
    attempts: list[AttemptDetails]
    judgements: list[Judgement]
    clones: list[int]
    notes: list[ListedNote]
    last_result: Result | None
    limit_reached: str | None
    rule_met: str | None
    fit: TrialFit | None


def list_studies(database: Database) -> list[ListedStudy]:
    """Read every study's row of `v_study`, oldest first."""
    with database.begin(write=False) as txn:
        return view_rows.studies(txn)


def listed_trials(
    database: Database,
    study: Study,
    *,
    state: State | None = None,
    tag: str | None = None,
    best_first: bool = False,
    limit: int | None = None,
) -> list[ListedTrial]:
    """Read a study's rows of `v_trial`, ordered by number, or by rank with unranked trials last."""
    which: dict[str, Any] = {"study_id": study.id, "state": state, "tag": tag, "limit": limit}
    if best_first:  # takes two reads or more
        with database.begin(write=False, snapshot=True) as txn:
            return view_rows.best_trials(txn, **which)
    # Without `single`, a transaction would stay open while 100,000 rows are decoded, and PostgreSQL
    # ends a session whose transaction is idle for 10 s.
    with database.begin(write=False, single=True) as txn:
        return view_rows.trials(txn, **which)


def list_trials(
    database: Database, study: Study, *, state: State | None = None, limit: int | None = None
) -> list[TrialRow]:
    """Read a study's trials, ordered by number."""
    with database.begin(write=False, single=True) as txn:
        found = trials.listing(txn, study_id=study.id, state=state, limit=limit)
    if not found:
        with database.begin(write=False, single=True) as txn:
            studies.check_exists(txn, study_id=study.id)
    return found


def trials_begun_from_checkpoints(database: Database, study: Study) -> set[int]:
    """
    Read the numbers of the trials that did not begin from scratch.

    They are clones, and trials that were enqueued with a checkpoint.
    """
    with database.begin(write=False, single=True) as txn:
        return attempts.begun_from_checkpoints(txn, study_id=study.id)


def best_trials(database: Database, study: Study, *, limit: int = 1) -> list[TrialRow]:
    """
    Read the best trials of a study by `best_value`, best first.

    Raises:
        NoResults: No trial has a rank; see `store/ranking.py`.
    """
    with database.begin(write=False, snapshot=True) as txn:
        found = ranking.best(txn, study_id=study.id, limit=limit)
        if not found:
            studies.check_exists(txn, study_id=study.id)
            unranked = ranking.unranked(txn, study_id=study.id)
    if not found:
        raise NoResults(
            f"{_no_best(study, unranked)}; NaN and the values of invalidated trials do not count. "
            f"`studydb status {shlex.quote(study.name)}` shows what the study is doing."
        )
    return found


def _no_best(study: Study, unranked: Unranked) -> str:
    metric = repr(study.objective.metric)
    if unranked.has_invalidated:
        return f"Study {study.name!r} has no best trial: all trials with {metric} are invalidated"
    reported = f"any {metric} but NaN" if unranked.has_nan else metric
    return f"No trial of study {study.name!r} has reported {reported} yet"


def error_numbers(database: Database, study: Study) -> list[int]:
    """Read the numbers of the trials in ERROR, ascending."""
    with database.begin(write=False) as txn:
        return view_rows.error_numbers(txn, study_id=study.id)


def errors(database: Database, study: Study, number: int | None = None) -> dict[int, str]:
    """
    Read why each trial in ERROR has failed; the keys are the trials' numbers, ascending.

    Args:
        number: The only trial to read; None for all.
    """
    with database.begin(write=False) as txn:
        found = view_rows.errors(txn, study_id=study.id, number=number)
        if not found:
            studies.check_exists(txn, study_id=study.id)
    return {
        one.number: ": ".join(filter(None, (one.type or str(one.reason), one.message)))
        for one in found
    }


def find_trial(database: Database, study: Study, number: int) -> TrialRow:
    """Find a trial of a study."""
    with database.begin(write=False) as txn:
        return existing_trial(txn, study, number)


def number_of(database: Database, study: Study, name: str) -> int:
    """
    Find the number of a trial by its name.

    Raises:
        UnknownTrial: The study has no trial of this name; the message suggests similar names.
    """
    with database.begin(write=False) as txn:
        found = trials.named(txn, study_id=study.id, name=name)
        if found is None:
            studies.check_exists(txn, study_id=study.id)
            known = trials.some_names(txn, study_id=study.id, limit=MOST_NAMES)
            raise UnknownTrial(
                f"Study {study.name!r} has no trial named {name!r}.{did_you_mean(name, known)} "
                "Trials without a name are called by their number, from 0."
            )
        return found.number


def existing_trial(txn: Txn, study: Study, number: int, *, lock: bool = False) -> TrialRow:
    """Find a trial of a study within a transaction; `lock` locks its row."""
    trial = trials.find(txn, study_id=study.id, number=number, lock=lock)
    if trial is None:
        studies.check_exists(txn, study_id=study.id)
        raise unknown_trial(txn, number, study_id=study.id, study_name=study.name)
    return trial


def unknown_trial(txn: Txn, number: int, *, study_id: int, study_name: str) -> UnknownTrial:
    """Make the error for a number that no trial has; the message names the newest trial."""
    end = view_rows.next_number(txn, study_id=study_id)
    newest = f"Its newest trial is {end - 1}." if end else "It has no trials yet."
    return UnknownTrial(f"Study {study_name!r} has no trial {number}. {newest}")


def trial_details(database: Database, study: Study, number: int) -> TrialDetails:
    """Read a trial with all that a page about it shows."""
    with database.begin(write=False) as txn:
        trial = existing_trial(txn, study, number)
        return TrialDetails(
            trial=trial,
            listed=view_rows.attempts(txn, study_id=study.id, number=number),
            attempts=attempts.of_trial(txn, trial_id=trial.id),
            judgements=_judgements(txn, study, trial),
            clones=[
                clone.number for clone in clones.of_trial(txn, study_id=study.id, trial_id=trial.id)
            ],
            notes=notes.newest(txn, study_id=study.id, trial_id=trial.id, limit=MOST_NOTES),
            last_result=results.last(txn, trial_spans(txn, study, trial)),
            limit_reached=_limit_reached(txn, study, trial),
            rule_met=_rule_met(txn, study, trial),
            fit=trial_fit_in(txn, study, trial),
        )


def _judgements(txn: Txn, study: Study, trial: TrialRow) -> list[Judgement]:
    reasons = scheduler_reasons(txn, study)
    return rung_listing.judgements(
        txn,
        study_id=study.id,
        trial_id=trial.id,
        mode=study.objective.mode,
        reasons={step: why for (trial_id, step), why in reasons.items() if trial_id == trial.id},
    )


def scheduler_reasons(txn: Txn, study: Study) -> dict[tuple[int, int], str]:
    """Map trial id and step to a custom scheduler's last reasons; {} for other schedulers."""
    if not isinstance(study.scheduler, UserScheduler):
        return {}
    return events.scheduler_reasons(txn, study_id=study.id)


def list_rungs(database: Database, study: Study, *, limit: int) -> list[ListedRung]:
    """Read the last `limit` rungs that have entries, in ascending order of bracket and step."""
    with database.begin(write=False, single=True) as txn:
        return rung_listing.list_rungs(
            txn,
            study_id=study.id,
            mode=study.objective.mode,
            limit=limit,
            has_cutoffs=not study.scheduler.closes_rungs,
        )


def list_checkpoints(database: Database, study: Study, *, limit: int) -> list[ListedCheckpoint]:
    """List the kept checkpoints of a study's newest `limit` trials, ordered by trial and save."""
    with database.begin(write=False, snapshot=True) as txn:
        newest = checkpoint_listing.newest_trials(txn, study_id=study.id, limit=limit)
        return checkpoint_listing.list_checkpoints(txn, trial_ids=newest)


def list_checkpoints_of(database: Database, study: Study, number: int) -> list[ListedCheckpoint]:
    """List the kept checkpoints of a trial in the order of the saves."""
    with database.begin(write=False, snapshot=True) as txn:
        trial = existing_trial(txn, study, number)
        return checkpoint_listing.list_checkpoints(txn, trial_ids=[trial.id])


def _limit_reached(txn: Txn, study: Study, trial: TrialRow) -> str | None:
    if trial.reason is not Reason.BUDGET_SPENT or trial.ended_at is None:
        return None
    return events.limit_reached(txn, study_id=study.id, until=trial.ended_at)


def _rule_met(txn: Txn, study: Study, trial: TrialRow) -> str | None:
    if trial.reason is not Reason.RULE_STOPPED or not custom_rules(study.rules):
        return None
    return events.rule_met(txn, study_id=study.id, trial_id=trial.id)


def trial_attempts(database: Database, study: Study, number: int) -> list[AttemptDetails]:
    """Read the attempts of a trial, oldest first."""
    with database.begin(write=False) as txn:
        return attempts.of_trial(txn, trial_id=existing_trial(txn, study, number).id)


def trial_spans(txn: Txn, study: Study, trial: TrialRow) -> list[results.Span]:
    """Find the spans of a trial's live results, up to the last step in the trial's row."""
    through = trial.summary.last_step or 0
    return results.spans(txn, study_id=study.id, trial_id=trial.id, through=through)
