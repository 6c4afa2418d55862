"""
A decision of a custom scheduler is stored only if the rung is still as the user's code saw it.

If the scheduler does not decide, the study pauses. A decision that pauses a trial can also change
the trial's resources.
"""

import threading
from dataclasses import dataclass, replace

import pytest
from fleet.trainables.scheduling import Cup
from harness.arrange import (
    SimulatedWorker,
    new_request,
    new_study,
    recover_after_expiry,
    rows,
    unchanged_rows,
)
from harness.asked_scheduler import asked, described, failing

import studydb
from studydb.domain.deciding import DecisionFailed, DecisionNeeded, NotAsked
from studydb.domain.errors import InvalidSpec, LeaseLost, NotAllowed, StorageBusy
from studydb.domain.life.decisions import Action, Decision, Entry, RungKey
from studydb.domain.life.states import Reason, State, Status
from studydb.domain.resources import Resources
from studydb.lease import scheduler_judge
from studydb.lease.held import HeldAttempt
from studydb.lease.scheduler_judge import SchedulerJudge
from studydb.operations import control
from studydb.operations.enqueue import enqueue
from studydb.operations.finish import finish
from studydb.operations.report import report
from studydb.operations.study_progress import read_progress
from studydb.store import resource_classes

RUNG = RungKey(0, 2)


@dataclass(frozen=True)
class StopWorse(studydb.CustomScheduler):
    """Stop a trial that is worse than the best earlier entry; call `Hook` before each answer."""

    max_t: int = 9
    milestones: tuple = (2, 4)
    reads_best = 1

    def judge(self, report, view):
        Hook.call()
        best = view.best(view.key, 1)
        worse = bool(best) and report.score > best[0].score
        return Decision(
            Action.STOP if worse else Action.CONTINUE, entry=Entry(view.key, report.score)
        )


class Hook:
    """Calls `act` once, while the user's code decides; a test sets `act`."""

    act = None

    @classmethod
    def call(cls):
        act, cls.act = cls.act, None
        if act is not None:
            act()


def worker_under(database, scheduler=None, **overrides):
    made = asked(scheduler or StopWorse())
    return SimulatedWorker(database, new_study(database, scheduler=made, **overrides))


def entries(database, study):
    return rows(
        database,
        "SELECT e.score, e.action FROM rung_entry e JOIN rung r ON r.id = e.rung_id "
        f"WHERE r.study_id = {study.id} ORDER BY e.ordinal",
    )


def test_decision_on_a_rung_that_another_trial_has_entered_meanwhile_is_not_stored(database):
    worker = worker_under(database)
    first, second = worker.take(), worker.take()
    first.report(0.9)
    second.report(0.9)
    Hook.act = lambda: second.report(0.1)

    # At first the scheduler sees an empty rung, and would let the trial go on.
    answer = first.report(0.5)

    assert answer.verdict.reason is Reason.EARLY_STOPPED
    assert entries(database, worker.study) == [(0.1, "CONTINUE"), (0.5, "STOP")]


def test_transaction_without_the_answer_of_the_scheduler_stores_nothing(database):
    study = new_study(database, scheduler=described(StopWorse()))
    run = SimulatedWorker(database, study).take()
    batch = run.batch(0.5, 0.4)

    with unchanged_rows(database), pytest.raises(DecisionNeeded) as needed:
        report(database, study, lease=run.lease, batch=batch)
    with unchanged_rows(database), pytest.raises(DecisionNeeded):
        finish(database, study, lease=run.lease, outcome=Reason.COMPLETED, batch=batch)

    assert needed.value.step == 2


def test_scheduler_is_asked_about_each_decision_step_of_a_batch_in_turn(database):
    worker = worker_under(database)
    run = worker.take()

    answer = run.report(0.5, 0.4, 0.3, 0.2)

    assert answer.verdict is None
    assert entries(database, worker.study) == [(0.4, "CONTINUE"), (0.2, "CONTINUE")]
    other = worker.take()
    assert other.report(0.9, 0.8, 0.7, 0.6).verdict.reason is Reason.EARLY_STOPPED
    assert other.trial().summary.last_step == 2


@dataclass(frozen=True)
class Talkative(StopWorse):
    """Give a reason (`why`) with each decision, even with a decision to go on."""

    def judge(self, report, view):
        return replace(super().judge(report, view), why=f"step {report.step}")


def test_why_is_recorded_once_for_a_decision_to_stop_and_never_for_a_decision_to_go_on(database):
    worker = worker_under(database, Talkative())
    first, second = worker.take(), worker.take()
    first.report(0.5, 0.4)
    batch = second.batch(0.9, 0.8)

    for _ in range(2):
        assert second.send(batch).verdict.reason is Reason.EARLY_STOPPED

    said = rows(database, "SELECT trial_id, data FROM event WHERE kind = 'judged'")
    assert [row[0] for row in said] == [second.lease.trial_id]
    assert "step 2" in str(said[0][1])
    assert first.report(0.3, 0.2, 0.1, done=True).verdict.reason is Reason.COMPLETED
    assert len(rows(database, "SELECT id FROM event WHERE kind = 'judged'")) == 1


@dataclass(frozen=True)
class Growing(Cup):
    """A trial that pauses at its Nth rung asks for N GPUs, or for `gpus` if that is not None."""

    gpus: object = None

    def judge(self, report, view):
        decision = super().judge(report, view)
        asked = (
            {"gpus": 1 + self.milestones.index(view.key.step)} if self.gpus is None else self.gpus
        )
        return replace(decision, resources=asked)


def classes(database, study):
    select = f"SELECT resource_class FROM trial WHERE study_id = {study.id} ORDER BY number"
    return [row[0] for row in rows(database, select)]


@pytest.mark.parametrize("is_buffered", [False, True])
def test_decision_that_pauses_a_trial_changes_what_the_trial_asks_for(database, is_buffered):
    worker = worker_under(database, Growing())
    run = worker.take()

    for _ in range(2):  # the reply of the first send is lost
        if is_buffered:
            run.finish(0.5, 0.4)
        else:
            assert run.send(run.batch(0.5, 0.4)).verdict.action is Action.PAUSE

    assert classes(database, worker.study) == ["gpus=1"]
    told = rows(database, "SELECT actor FROM event WHERE kind = 'resources set'")
    assert told == [("scheduler",)]
    with database.begin(write=False) as txn:
        known = resource_classes.read(txn, study_id=worker.study.id)
    assert known == {"": Resources(), "gpus=1": Resources(gpus=1)}


@pytest.mark.parametrize("wrong", [{"gpus": -1}, {"gpus": "many"}, {"gpus": 1.5}, 3])
def test_decision_with_resources_that_no_trial_can_ask_for_is_refused(database, wrong):
    run = worker_under(database, Growing(gpus=wrong)).take()

    with pytest.raises(InvalidSpec, match="resources of a decision"):
        run.report(0.5, 0.4)


@dataclass(frozen=True)
class Greedy(StopWorse):
    """Ask for a GPU with each decision, although no decision pauses the trial."""

    def judge(self, report, view):
        return replace(super().judge(report, view), resources={"gpus": 1})


def test_decision_to_go_on_cannot_change_resources(database):
    worker = worker_under(database, Greedy())

    assert worker.take().report(0.5, 0.4).verdict is None

    assert "only a trial that pauses" in read_progress(database, worker.study).pause_reason
    assert classes(database, worker.study) == [""]


def test_decision_that_needs_a_65th_resource_class_pauses_the_study_and_keeps_the_result(database):
    worker = worker_under(database, Growing(), num_trials=100)
    run = worker.take()
    # After this loop the study has 64 classes, the most allowed; one of them is the class "".
    for gpus in range(2, 2 + resource_classes.MOST - 1):
        enqueue(database, worker.study, {}, new_request(), resources=Resources(gpus=gpus))

    assert run.report(0.5, 0.4).verdict.action is Action.PAUSE

    assert classes(database, worker.study)[run.lease.number] == ""
    progress = read_progress(database, worker.study)
    assert progress.status is Status.PAUSED
    assert "one more" in progress.pause_reason
    assert run.trial().summary.last_step == 2


def test_batch_that_is_sent_again_gets_the_stored_answer_without_asking_the_scheduler(database):
    worker = worker_under(database)
    run = worker.take()
    batch = run.batch(0.5, 0.4)
    answer = run.send(batch)
    Hook.act = pytest.fail

    with unchanged_rows(database):
        assert run.send(batch) == answer

    Hook.act = None


def test_trial_that_has_entered_a_rung_is_not_judged_there_again(database, clock):
    worker = worker_under(database)
    run = worker.take()
    run.report(0.5, 0.4)
    recover_after_expiry(clock, database, worker.study)
    Hook.act = pytest.fail

    assert worker.take().report(0.9, 0.9).verdict is None

    Hook.act = None
    assert entries(database, worker.study) == [(0.4, "CONTINUE")]


def test_trial_completes_at_max_t_without_asking_the_scheduler(database):
    worker = worker_under(database, StopWorse(max_t=3, milestones=(2,)))
    run = worker.take()
    run.report(0.5, 0.4)
    Hook.act = pytest.fail

    assert run.report(0.3).verdict.reason is Reason.COMPLETED

    Hook.act = None


def test_attempt_that_has_lost_its_trial_does_not_ask_the_scheduler(database, clock):
    worker = worker_under(database)
    run = worker.take()
    recover_after_expiry(clock, database, worker.study)
    worker.take()
    Hook.act = pytest.fail

    with unchanged_rows(database), pytest.raises(LeaseLost):
        run.report(0.5, 0.4)

    Hook.act = None


@pytest.mark.parametrize("ends", [False, True])
def test_scheduler_that_does_not_decide_pauses_the_study_and_the_trial_goes_on(database, ends):
    worker = worker_under(database)
    run = worker.take()
    worker.study = failing(worker.study, DecisionFailed("it hangs", traceback="a trace"))

    if ends:
        assert run.finish(0.5, 0.4).reason is Reason.COMPLETED
    else:
        assert run.report(0.5, 0.4).verdict is None
        assert run.report(0.3).verdict is None  # RUNNING trials do not obey this pause

    progress = read_progress(database, worker.study)
    assert progress.status is Status.PAUSED
    assert progress.pause_reason.startswith(f"on trial {run.lease.number} at step 2, the scheduler")
    assert progress.pause_reason.endswith("has not decided: it hangs")
    assert progress.keeps_workers
    assert entries(database, worker.study) == []
    ((data,),) = rows(database, "SELECT data FROM event WHERE kind = 'study paused'")
    assert "a trace" in str(data)
    control.set_status(database, worker.study, Status.RUNNING, new_request())
    assert read_progress(database, worker.study).pause_reason is None


def test_report_raises_storage_busy_and_stores_nothing_if_the_rung_changes_at_each_try(
    database, monkeypatch
):
    monkeypatch.setattr(scheduler_judge, "TRIES", 3)
    worker = worker_under(database)
    run = worker.take()
    run.report(0.9)
    study, questions = worker.study, []

    def ask(question):
        questions.append(question)
        SimulatedWorker(database, study).take().report(0.9, 0.9)
        return Decision(entry=Entry(RUNG, 0.5))

    worker.study = replace(study, scheduler=study.scheduler.asked_by(ask))

    with pytest.raises(StorageBusy, match="has judged step 2 3 times, and each time another trial"):
        run.report(0.5)

    assert len(questions) == 3
    assert run.trial().summary.last_step == 1
    worker.study = study
    assert run.report(0.5).verdict is None


def test_stopping_process_stores_only_the_results_before_the_first_step_that_was_not_judged(
    database,
):
    worker = worker_under(database)
    run = worker.take()
    study = failing(worker.study, NotAsked())
    held = HeldAttempt(database, study, run.claimed)
    for result in run.batch(0.5, 0.4, 0.3).results:
        held.add(result)

    with pytest.raises(StorageBusy, match="This process is stopping, so the scheduler"):
        held.flush(patience_s=0.0)
    ending = held.end(Reason.PREEMPTED)

    assert ending.state is State.PENDING
    assert run.trial().summary.last_step == 1
    assert entries(database, study) == []
    held.close()


def test_results_after_a_result_that_was_not_judged_are_dropped(database):
    """The third result, added after the failed flush, is dropped, because step 2 was not stored."""
    worker = worker_under(database)
    run = worker.take()
    held = HeldAttempt(database, failing(worker.study, NotAsked()), run.claimed)
    first, second, third = run.batch(0.5, 0.4, 0.3).results
    held.add(first)
    held.add(second)
    with pytest.raises(StorageBusy):
        held.flush(patience_s=0.0)
    held.add(third)

    held.end(Reason.PREEMPTED)

    assert run.trial().summary.last_step == 1
    held.close()


def test_process_that_cannot_ask_the_scheduler_refuses_the_trial(database):
    study = new_study(database, scheduler=described(StopWorse()))
    run = SimulatedWorker(database, study).take()

    with pytest.raises(NotAllowed, match="has a scheduler in the user's own code"):
        SchedulerJudge.of(study)
    with pytest.raises(NotAllowed):
        HeldAttempt(database, study, run.claimed)


def test_decisions_on_simultaneous_reports_fit_the_order_of_the_entries(database):
    """
    Each trial enters the rung once.

    On PostgreSQL, the scheduler has judged all four trials before any decision is stored.
    """
    worker = worker_under(database)
    runs = [worker.take() for _ in range(4)]
    for run in runs:
        run.report(0.9)
    together = threading.Barrier(4)
    inner = worker.study.scheduler.ask
    first = set()

    def ask(question):
        decision = inner(question)
        if threading.get_ident() not in first:
            first.add(threading.get_ident())
            together.wait(20)
        return decision

    worker.study = replace(worker.study, scheduler=worker.study.scheduler.asked_by(ask))
    if not database.postgresql:
        together = threading.Barrier(1)
    threads = [threading.Thread(target=runs[n].report, args=(0.5 + n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)

    found = entries(database, worker.study)
    assert sorted(score for score, _ in found) == [0.5, 1.5, 2.5, 3.5]
    best = float("inf")
    for score, action in found:  # entries in the order in which they were stored
        assert action == ("STOP" if score > best else "CONTINUE")
        best = min(best, score)


def test_answers_are_kept_until_the_batch_is_stored(database):
    """If a reply is lost, the batch is sent again, and the scheduler is not asked again."""
    worker = worker_under(database)
    run = worker.take()
    asked_for = []
    inner = worker.study.scheduler.ask

    def ask(question):
        asked_for.append(question)
        return inner(question)

    judge = SchedulerJudge("Cup()", ask)
    calls, known = [], []

    def call(batch):
        known.append(len(batch.answers))
        answer = report(database, worker.study, lease=run.lease, batch=batch)
        calls.append(answer)
        if len(calls) == 1:
            raise StorageBusy("the reply was lost")
        return answer

    batch = run.batch(0.5, 0.4)
    with pytest.raises(StorageBusy):
        judge.send(call, batch)
    assert judge.send(call, batch) == calls[0]

    assert len(asked_for) == 1
    judge.stored()
    judge.send(call, run.batch(0.3))
    assert known == [0, 1, 1, 0]  # how many of the scheduler's answers each send carried
