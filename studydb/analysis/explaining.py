"""Say in a sentence why a trial ended, waits or was promoted."""

import math

from studydb.analysis.definition import rule_text
from studydb.domain.failures import short_type
from studydb.domain.life.decisions import Action, DecidedBy
from studydb.domain.life.rules import first_hit
from studydb.domain.life.states import Reason, State
from studydb.domain.listed_rows import MOST_COUNTED, Judgement, LastDecision
from studydb.domain.metrics import Result
from studydb.domain.records import Study, TrialRow
from studydb.domain.text.display import counted, duration_text, value_text
from studydb.operations.reads import TrialDetails
from studydb.schedulers import UserScheduler


def explain_state(study: Study, details: TrialDetails) -> str | None:  # noqa: PLR0911  one line per reason
    """Explain why a trial ended, waits or was promoted; None if there is nothing to explain."""
    if decision := _last_decision(details):
        return explain_decision(study, decision)
    match details.trial.reason:
        case Reason.RULE_STOPPED if details.last_result is not None:
            return _explain_rule(study, details.last_result, details.rule_met)
        case Reason.TIMED_OUT:
            return _explain_time(study, details.trial)
        case Reason.BUDGET_SPENT:
            return f"the study was stopped: {details.limit_reached or 'a limit was reached'}"
        case Reason.COMPLETED if details.attempts:
            return _explain_completion(details)
        case Reason.FAILED | Reason.LOST if details.attempts:
            return _explain_failures(details)
    return None


def _last_decision(details: TrialDetails) -> LastDecision | None:
    """Find the scheduler's decision that led to a trial's state; None if no decision led to it."""
    trial, judged = details.trial, details.judgements
    if trial.state in (State.PENDING, State.RUNNING):
        judged = [one for one in judged if one.promoted_at is not None]
    elif not (
        trial.reason in (Reason.EARLY_STOPPED, Reason.GIVEN_UP)
        or trial.paused_by == DecidedBy.SCHEDULER
    ):
        return None
    return LastDecision(trial.number, trial.state, trial.reason, judged[-1]) if judged else None


def explain_decision(study: Study, decision: LastDecision) -> str | None:
    """
    Explain why the scheduler has stopped, paused, promoted or given up a trial.

    Returns:
        None if the trial was ended or paused by a later report, which entered no rung.
    """
    judged = decision.judged
    if decision.reason is Reason.EARLY_STOPPED:
        return _explain_stop(study, judged)
    if decision.state is State.PAUSED and not study.scheduler.resumes:
        why = _explain_stop(study, judged)
        return why and f"{why}; the trial is paused until a person resumes it"
    said = f"{_report_text(study, judged)}{_rank_text(judged)}{_quote(study, judged)}"
    if decision.reason is Reason.GIVEN_UP:
        return f"{said}; the rung closed without keeping this trial"
    if decision.state is State.PAUSED:
        return f"{said}; {_wait_text(study, judged)}"
    return f"{said}; the scheduler has promoted the trial"


def _explain_stop(study: Study, judged: Judgement) -> str | None:
    if judged.action == Action.CONTINUE:  # ended or paused by a later report, which entered no rung
        return None
    reported = _report_text(study, judged)
    if judged.why is not None:
        return f"{reported}{_rank_text(judged)}{_quote(study, judged)}"
    if math.isnan(judged.value):
        return f"{reported}, which counts as the worst value"
    if judged.cutoff is not None:
        worse = f"worse than the cutoff {value_text(judged.cutoff)} of the earlier trials"
        return f"{reported}, {worse}{_rank_text(judged)}"
    if isinstance(study.scheduler, UserScheduler):
        return (
            f"{reported}{_rank_text(judged)}; the scheduler {study.scheduler} has stopped the trial"
        )
    return f"{reported}; the rung had closed before, and had kept no trial"


def _wait_text(study: Study, judged: Judgement) -> str:
    """Say what a trial waits for at its rung."""
    if judged.kept:
        return "the rung has kept the trial, and a free worker resumes it"
    if judged.kept is False:
        return "the rung closed without keeping this trial, and a free worker ends it"
    if study.scheduler.closes_rungs:
        return "the trial waits there until the rung closes and keeps the best trials"
    if isinstance(study.scheduler, UserScheduler):
        return "the trial waits there until the scheduler promotes it or closes the rung"
    return "the trial waits there until its rank suffices for a promotion"


def _quote(study: Study, judged: Judgement) -> str:
    """Quote the reason that the user's scheduler gave; return an empty text if it gave none."""
    return "" if judged.why is None else f"; {study.scheduler}: {judged.why.rstrip('.')}"


def _report_text(study: Study, judged: Judgement) -> str:
    bracket = f" of bracket {judged.bracket}" if judged.bracket else ""
    return f"{study.objective} at rung {judged.rung}{bracket} was {value_text(judged.value)}"


def _rank_text(judged: Judgement) -> str:
    """Write the trial's present rank at the rung; return an empty text if it has no rank."""
    if judged.rank is None:
        return ""
    if judged.rank > MOST_COUNTED:
        return f"; more than {MOST_COUNTED:,} trials are better there now"
    return f"; the trial now has rank {judged.rank} of {judged.n_ranked} there"


def _explain_rule(study: Study, last: Result, rule_met: str | None) -> str | None:
    if rule_met is not None:
        return f"step {last.step} met the rule {rule_met}"
    hit = first_hit(study.rules, [last], 1, objective=study.objective)
    if hit is None:  # a rule that compares several results was met; guess the first such rule
        hit = next((rule for rule in study.rules if rule.needs_history), None)
    return None if hit is None else f"step {last.step} met the rule {rule_text(hit)}"


def _explain_time(study: Study, trial: TrialRow) -> str | None:
    if trial.running_s is None or study.trial_time_limit_s is None:
        return None
    ran, limit = map(duration_text, (trial.running_s, study.trial_time_limit_s))
    return f"the trial ran for {ran}; trial_time_limit_s is {limit}"


def _explain_completion(details: TrialDetails) -> str | None:
    if details.attempts[-1].verdict_by != DecidedBy.TRIAL:
        return None
    return f"the report at step {details.trial.summary.last_step} said done=True"


def _explain_failures(details: TrialDetails) -> str:
    trial, newest = details.trial, details.attempts[-1]
    lost = counted(trial.losses, "lost attempt")
    spent = f"{counted(trial.failures, 'failure')}, {lost}"
    if newest.error_type is None:
        return spent
    message = f": {newest.error_message}" if newest.error_message else ""
    return f"{spent}; {short_type(newest.error_type)}{message}"
