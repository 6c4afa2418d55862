"""A custom stop rule's decision takes effect in the transaction that stores the results."""

import math
from dataclasses import replace

import pytest
from harness.arrange import (
    SimulatedWorker,
    dump,
    new_request,
    new_study,
    recover_after_expiry,
    rows,
)
from msgspec import structs

from studydb.domain.deciding import DecisionFailed, NotAsked
from studydb.domain.errors import LeaseLost, NotAllowed, StorageBusy
from studydb.domain.life.custom_rule import CustomRule, RuleDecision, RuleFailure
from studydb.domain.life.decisions import Action, DecidedBy, Verdict
from studydb.domain.life.rules import read_rules
from studydb.domain.life.states import Reason, State, Status
from studydb.domain.metrics import Result
from studydb.lease import held as held_module
from studydb.lease.held import HeldAttempt
from studydb.operations import control
from studydb.operations.failing import describe_failure
from studydb.operations.finish import finish
from studydb.operations.reads import trial_details
from studydb.operations.study_progress import read_progress
from studydb.schedulers import ASHA

BY_RULE = Verdict(Action.STOP, Reason.RULE_STOPPED, DecidedBy.RULE)
RULE = CustomRule("my_rules:TooSlow", {"limit": 3})
FAILURE = RuleFailure(2, "the stop rule my_rules:TooSlow(limit=3) has not decided: why", "a trace")


def under(database, *rules, **overrides):
    return SimulatedWorker(database, new_study(database, rules=rules or (RULE,), **overrides))


def events(database, kind):
    return rows(database, f"SELECT attempt, actor, data FROM event WHERE kind = '{kind}'")


def stopping_at(step, why="too slow"):
    return RuleDecision(step, str(RULE), why)


def judged(run, *values, ruled, **more):
    return structs.replace(run.batch(*values, **more), ruled=ruled)


def test_result_at_which_a_rule_stops_the_trial_is_the_last_that_is_stored(database):
    run = under(database).take()

    answer = run.send(judged(run, 0.5, 0.4, 0.3, ruled=stopping_at(2)))

    assert answer.verdict == BY_RULE
    assert run.trial().summary.n_results == 2
    assert run.report(0.2).verdict == BY_RULE
    assert run.finish(outcome=Reason.PREEMPTED).reason is Reason.RULE_STOPPED
    assert run.trial().summary.n_results == 2
    ((attempt, actor, data),) = events(database, "stop rule met")
    assert (attempt, actor) == (1, "rule")
    assert "too slow" in str(data)


@pytest.mark.parametrize("outcome", [Reason.COMPLETED, Reason.PREEMPTED, Reason.LOST])
def test_last_batch_of_an_attempt_may_stop_the_trial(database, outcome):
    worker = under(database)
    run = worker.take()

    ending = run_finish(run, 0.5, ruled=stopping_at(1), outcome=outcome)

    assert (ending.state, ending.reason) == (State.TERMINATED, Reason.RULE_STOPPED)
    assert len(events(database, "stop rule met")) == 1
    shown = trial_details(database, worker.study, run.lease.number)
    assert shown.rule_met == "my_rules:TooSlow(limit=3): too slow"


def run_finish(run, *values, ruled, outcome):
    return finish(
        run.worker.database,
        run.worker.study,
        lease=run.lease,
        outcome=outcome,
        batch=judged(run, *values, ruled=ruled),
        tally=run.tally,
    )


def test_recovery_carries_out_what_a_rule_has_decided(database, clock):
    worker = under(database)
    run = worker.take()
    run.send(judged(run, 0.5, ruled=stopping_at(1)))

    recover_after_expiry(clock, database, worker.study)

    assert run.trial().reason is Reason.RULE_STOPPED


def test_decision_of_an_attempt_that_has_lost_its_trial_changes_nothing(database, clock):
    worker = under(database)
    run = worker.take()
    recover_after_expiry(clock, database, worker.study)
    again = worker.take()
    before = dump(database)

    for ruled in (stopping_at(1), RuleDecision(failure=structs.replace(FAILURE, step=1))):
        with pytest.raises(LeaseLost):
            run.send(judged(run, 0.5, ruled=ruled))

    assert dump(database) == before
    assert again.report(0.5).verdict is None


def test_earlier_result_decides_and_at_the_same_result_the_rule_comes_before_the_scheduler(
    database,
):
    scheduler = ASHA(max_t=2, grace_period=1)
    first = under(database, scheduler=scheduler).take()
    second = under(database, scheduler=scheduler).take()

    assert first.send(judged(first, 0.5, 0.4, ruled=stopping_at(2))).verdict == BY_RULE
    answer = second.send(judged(second, 0.5, 0.4, 0.3, ruled=stopping_at(3)))
    assert answer.verdict.by is DecidedBy.SCHEDULER
    assert len(events(database, "stop rule met")) == 1


def test_earlier_result_that_meets_a_threshold_decides_instead_of_the_custom_rule(database):
    run = under(database, *read_rules(["loss>=3"]), RULE).take()

    assert run.send(judged(run, 5.0, 0.4, ruled=stopping_at(2))).verdict == BY_RULE

    assert run.trial().summary.n_results == 1
    assert events(database, "stop rule met") == []


def test_stop_by_a_rule_takes_precedence_over_done_in_the_same_report(database):
    run = under(database).take()

    answer = run.send(judged(run, 0.5, ruled=stopping_at(1), done=True))

    assert answer.verdict == BY_RULE


def test_decision_that_is_sent_again_is_stored_once(database):
    run = under(database).take()
    stop = judged(run, 0.5, ruled=stopping_at(1))

    verdicts = [run.send(stop).verdict, run.send(structs.replace(stop, ruled=None)).verdict]

    assert verdicts == [BY_RULE, BY_RULE]
    assert len(events(database, "stop rule met")) == 1


@pytest.mark.parametrize("max_steps", [None, 100])
def test_rule_that_fails_pauses_the_study_and_the_running_trials_go_on(database, max_steps):
    worker = under(database, max_steps=max_steps)
    run, other = worker.take(), worker.take()

    answer = run.send(judged(run, 0.5, 0.4, ruled=RuleDecision(failure=FAILURE)))

    progress = read_progress(database, worker.study)
    assert answer.verdict is None
    assert progress.status is Status.PAUSED
    assert progress.pause_reason == f"on trial 0 at step 2, {FAILURE.why}"
    assert (progress.is_done, progress.has_failed) == (False, False)
    assert worker.acquire() is None
    assert list(worker.renew(run, other).held.values()) == [None, None]
    assert other.report(0.4).verdict is None
    assert run.finish(0.3).reason is Reason.COMPLETED
    assert other.finish(0.3).reason is Reason.COMPLETED


def test_resumed_study_is_paused_again_by_the_next_failure(database):
    worker = under(database)
    run = worker.take()
    failed = RuleDecision(failure=FAILURE)
    run.send(judged(run, 0.5, 0.4, ruled=failed))
    run.send(judged(run, 0.4, ruled=RuleDecision(failure=structs.replace(FAILURE, step=3))))
    assert len(events(database, "study paused")) == 1

    control.set_status(database, worker.study, Status.RUNNING, new_request())
    resumed = read_progress(database, worker.study)
    run.send(judged(run, 0.4, ruled=RuleDecision(failure=structs.replace(FAILURE, step=4))))

    assert (resumed.status, resumed.pause_reason) == (Status.RUNNING, None)
    assert read_progress(database, worker.study).status is Status.PAUSED
    assert len(events(database, "study paused")) == 2


def test_pause_by_a_person_stays_when_a_rule_fails(database):
    worker = under(database)
    run = worker.take()
    control.set_status(database, worker.study, Status.PAUSED, new_request())

    answer = run.send(judged(run, 0.5, 0.4, ruled=RuleDecision(failure=FAILURE)))

    assert answer.verdict.by is DecidedBy.STUDY
    assert read_progress(database, worker.study).pause_reason is None


def test_failure_in_the_last_batch_pauses_the_study_and_not_the_trial(database):
    worker = under(database)
    run = worker.take()

    ending = run_finish(
        run, 0.5, 0.4, ruled=RuleDecision(failure=FAILURE), outcome=Reason.COMPLETED
    )

    assert ending.reason is Reason.COMPLETED
    assert read_progress(database, worker.study).pause_reason.endswith(FAILURE.why)


def test_study_that_a_rule_failure_has_paused_counts_as_failed_once_all_its_trials_have_ended(
    database,
):
    worker = under(database, num_trials=1)
    run = worker.take()
    run_finish(run, 0.5, 0.4, ruled=RuleDecision(failure=FAILURE), outcome=Reason.COMPLETED)

    progress = read_progress(database, worker.study)

    assert (progress.is_done, progress.has_failed) == (True, True)
    text = describe_failure(database, worker.study, progress)
    assert "has paused itself: on trial 0 at step 2, the stop rule my_rules:TooSlow" in text
    assert "--no-guard" not in text


def test_rule_failure_at_a_dropped_result_does_not_pause_the_study(database):
    run = under(database, *read_rules(["loss>=3"]), RULE).take()

    run.send(judged(run, 5.0, 0.4, ruled=RuleDecision(failure=FAILURE)))

    assert read_progress(database, run.worker.study).status is Status.RUNNING


class Asked:
    """
    Stands in for the study's custom rules: `at_3` is the answer if the last step read is 3.

    An answer that is an exception is raised; at a step without an answer, the answer is False.
    `read` lists, for each call, the rule's position, the trial's number and the steps that it read.
    """

    def __init__(self, **answers):
        self.answers = {int(step.removeprefix("at_")): answer for step, answer in answers.items()}
        self.read = []

    def __call__(self, position, view, _is_moot):
        steps = [each["training_iteration"] for each in view.results]
        self.read.append((position, view.number, steps))
        answer = self.answers.get(steps[-1], False)
        if isinstance(answer, Exception):
            raise answer
        return answer


def holding(run, ask):
    return HeldAttempt(run.worker.database, run.worker.study, run.claimed, ask_rule=ask)


def report(held, *steps, flush=True):
    for step in steps:
        assert held.add(Result(step, 1 / step, {"acc": math.nan}))
    if flush:
        held.flush()


def test_rule_is_asked_about_each_result_of_a_batch_in_order(database):
    run, ask = under(database).take(), Asked(at_3="enough")
    held = holding(run, ask)

    report(held, 1, 2, 3, 4)

    assert ask.read == [(0, 0, [1]), (0, 0, [1, 2]), (0, 0, [1, 2, 3])]
    assert held.verdict == BY_RULE
    assert run.trial().summary.n_results == 3


def test_rule_of_a_later_attempt_reads_live_results_of_earlier_ones(database, clock):
    worker = under(database, replace(RULE, reads=3))
    run = worker.take()
    run.report(0.9, 0.8, 0.7)
    run.save()
    run.report(0.6, 0.5)  # steps 4 and 5, which the next attempt trains again
    recover_after_expiry(clock, database, worker.study)
    again, ask = worker.take(), Asked()
    held = holding(again, ask)

    report(held, 4)
    report(held, 5)

    assert again.lease.attempt == 2
    assert ask.read == [(0, 0, [2, 3, 4]), (0, 0, [3, 4, 5])]


def test_each_rule_reads_as_many_results_as_it_declares(database):
    run = under(database, replace(RULE, reads=1), replace(RULE, reads=2)).take()
    ask = Asked()

    report(holding(run, ask), 1, 2, 3)

    assert ask.read[-2:] == [(0, 0, [3]), (1, 0, [2, 3])]


def test_failure_of_one_rule_does_not_keep_another_rule_from_stopping_the_trial(database):
    run = under(database, RULE, CustomRule("my_rules:Other")).take()

    def ask(position, _view, _is_moot):
        if position == 0:
            raise DecisionFailed("why")
        return "by the other"

    held = holding(run, ask)
    report(held, 1)

    assert held.verdict == BY_RULE
    progress = read_progress(database, run.worker.study)
    assert progress.pause_reason.endswith("my_rules:TooSlow(limit=3) has not decided: why")


def test_batch_is_judged_once_however_often_it_is_sent(database, monkeypatch):
    run, ask = under(database).take(), Asked()
    held = holding(run, ask)
    sends = iter([StorageBusy("busy"), None])
    send = held_module.report

    def busy_once(*arguments, **named):
        if (error := next(sends)) is not None:
            raise error
        return send(*arguments, **named)

    monkeypatch.setattr(held_module, "report", busy_once)
    report(held, 1, flush=False)
    with pytest.raises(StorageBusy):
        held.flush(patience_s=0.0)
    held.flush()

    assert ask.read == [(0, 0, [1])]


def test_rule_is_not_asked_about_results_that_are_dropped(database):
    run, ask = under(database).take(), Asked(at_1=True)
    held = holding(run, ask)
    report(held, 1)

    report(held, 2)
    held.end(Reason.PREEMPTED)

    assert len(ask.read) == 1
    assert run.trial().reason is Reason.RULE_STOPPED


def test_results_are_stored_without_a_decision_if_the_process_is_stopping(database):
    run, ask = under(database).take(), Asked(at_1=NotAsked(), at_2="late")
    held = holding(run, ask)

    report(held, 1)
    report(held, 2)

    assert ask.read == [(0, 0, [1]), (0, 0, [1, 2])]
    assert held.verdict == BY_RULE
    assert events(database, "study paused") == []


def test_last_results_are_judged_at_the_end_of_the_attempt(database):
    run, ask = under(database).take(), Asked(at_2="at the end")
    held = holding(run, ask)
    report(held, 1, 2, flush=False)

    ending = held.end(Reason.COMPLETED)

    assert ending.reason is Reason.RULE_STOPPED


@pytest.mark.parametrize("why", ["a\0b", "\ud800", "é" * 10_000])
def test_rule_stops_the_trial_whatever_characters_and_length_its_reason_has(database, why):
    run = under(database).take()
    held = holding(run, Asked(at_1=why))

    report(held, 1)

    assert held.verdict == BY_RULE
    assert len(events(database, "stop rule met")) == 1


def test_process_that_cannot_ask_custom_rules_runs_no_trial_of_a_study_that_has_such_rules(
    database,
):
    run = under(database).take()

    with pytest.raises(NotAllowed, match="a stop rule in the user's own code"):
        holding(run, None)


def test_attempt_begins_without_a_statement_if_the_study_has_no_custom_rules(database):
    run = under(database, *read_rules(["loss>=3"])).take()
    ask = Asked()
    seen = []
    database.observer = seen.append

    held = holding(run, ask)
    database.observer = None

    assert seen == []
    assert ask.read == []
    assert held.verdict is None
