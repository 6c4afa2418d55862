"""Say in a sentence why a trial ended, or what it waits for."""

from studydb.analysis.definition import rule_text
from studydb.domain.life.decisions import Action, DecidedBy
from studydb.domain.life.rules import first_hit
from studydb.domain.life.states import Reason, State
from studydb.domain.listed_rows import MOST_COUNTED, Judgement
from studydb.domain.metrics import Result
from studydb.domain.records import Study, TrialRow
from studydb.domain.text.display import counted, duration_text, value_text
from studydb.operations.reads import TrialDetails


def explain_state(study: Study, details: TrialDetails) -> str | None:  # noqa: PLR0911  one line per reason
    """Explain why a trial ended or waits; None if its state and reason need no explanation."""
    if details.trial.paused_by == DecidedBy.SCHEDULER and details.judgements:
        return _explain_pause(study, details.judgements[-1])
    if details.trial.state in (State.PENDING, State.RUNNING):
        return _explain_promotion(study, details)
    match details.trial.reason:
        case Reason.GIVEN_UP if details.judgements:
            judged = details.judgements[-1]
            return f"{_reported(study, judged)}{_ranked(judged)}; the rung kept better trials"
        case Reason.EARLY_STOPPED if details.judgements:
            return _explain_judgement(study, details.judgements[-1])
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


def _explain_pause(study: Study, judged: Judgement) -> str | None:
    if study.scheduler.resumes:
        reported = f"{_reported(study, judged)}{_ranked(judged)}"
        return f"{reported}; the trial waits there until a free worker promotes it"
    why = _explain_judgement(study, judged)
    return why and f"{why}; the trial is paused until a person resumes it"


def _explain_judgement(study: Study, judged: Judgement) -> str | None:
    if judged.action == Action.CONTINUE:  # the report that ended the trial entered no rung
        return None
    reported = _reported(study, judged)
    if judged.cutoff is None:
        return f"{reported}, which counts as the worst value"
    worse = f"worse than the cutoff {value_text(judged.cutoff)} of the earlier trials"
    return f"{reported}, {worse}{_ranked(judged)}"


def _explain_promotion(study: Study, details: TrialDetails) -> str | None:
    """Say from which rung a trial that goes on was promoted; None if it was not promoted."""
    promoted = [one for one in details.judgements if one.promoted_at is not None]
    if not promoted:
        return None
    judged = promoted[-1]
    return f"{_reported(study, judged)}{_ranked(judged)}; the scheduler has promoted the trial"


def _reported(study: Study, judged: Judgement) -> str:
    bracket = f" of bracket {judged.bracket}" if judged.bracket else ""
    return f"{study.objective} at rung {judged.rung}{bracket} was {value_text(judged.value)}"


def _ranked(judged: Judgement) -> str:
    """Return the trial's rank at the rung as it is now; nothing without a rank."""
    if judged.rank is None:
        return ""
    if judged.rank > MOST_COUNTED:
        return f", with more than {MOST_COUNTED:,} better trials there now"
    return f", rank {judged.rank} of {judged.n_ranked} there now"


def _explain_rule(study: Study, last: Result, rule_met: str | None) -> str | None:
    if rule_met is not None:
        return f"step {last.step} met the rule {rule_met}"
    hit = first_hit(study.rules, [last], 1, objective=study.objective)
    if hit is None:  # a rule that compares several results
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
    losses = f"{trial.losses} {'loss' if trial.losses == 1 else 'losses'}"
    spent = f"{counted(trial.failures, 'failure')}, {losses}"
    if newest.error_type is None:
        return spent
    return f"{spent}; {newest.error_type}: {newest.error_message}"
