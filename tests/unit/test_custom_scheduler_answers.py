"""
The plan and the answers of a custom scheduler are checked before they are used.

Other tests are about the views that the scheduler reads, and about the decision steps, rungs and
brackets that follow from the plan.
"""

import json
import math
from dataclasses import dataclass

import msgspec
import numpy as np
import pytest

from studydb import CustomScheduler
from studydb.domain.custom_scheduler import (
    JUDGE,
    NEXT_WORK,
    JudgeView,
    Question,
    SchedulerPlan,
    WorkView,
)
from studydb.domain.deciding import DecisionFailed
from studydb.domain.errors import InvalidSpec, TrainableError
from studydb.domain.life.decisions import Action, Decision, Entry, Exploit, RungKey
from studydb.domain.life.states import Reason
from studydb.domain.scheduling import Close, Idle, Ranked, Report, RungView, WaitingTrial
from studydb.schedulers.user_scheduler import UserScheduler
from studydb.trainables.custom_schedulers import (
    JudgeAnswer,
    WorkAnswer,
    ask_judge,
    ask_next_work,
    read_decision,
    read_work,
)

KEY = RungKey(0, 2)
PLAN = SchedulerPlan(milestones=(2, 4), max_t=9, resumes=True)
RUNG = {"n": 2, "cutoff": 0.5, "entered": False, "n_entries": 3, "is_closed": False}
RUNG |= {"closed_cutoff": None}
JUDGED = {
    "report": {"step": 2, "score": 0.4, "is_nan": False, "bracket": 0, "trial_id": 7, "seed": 1},
    "key": KEY,
    "rung": RUNG,
    "best": [(5, 0.1), (6, math.inf)],
    "reads_best": 2,
    "mean": None,
    "best_score": 0.4,
}
WORK = {
    "next_draw": 3,
    "may_start": False,
    "rungs": [(KEY, RUNG, (7, 0.4)), ((1, 2), {**RUNG, "is_closed": True}, None)],
    "others": [((0, 4), {**RUNG, "n": 0, "n_entries": 0})],
    "underway": [[1, 3], []],
}
JUDGE_QUESTION = Question(JUDGE, json.dumps(JUDGED))
WORK_QUESTION = Question(NEXT_WORK, json.dumps(WORK))


class Answering:
    """A scheduler that answers every question with the object `answer`."""

    def __init__(self, answer):
        self.answer = answer

    def judge(self, _report, _view):
        return self.answer

    def next_work(self, _view):
        return self.answer


def decided(answer, plan=PLAN):
    plain = ask_judge(Answering(answer), {"text": JUDGE_QUESTION.text})
    wire = msgspec.msgpack.decode(msgspec.msgpack.encode(plain), type=JudgeAnswer)
    return read_decision(JUDGE_QUESTION, wire, plan)


def worked(answer):
    plain = ask_next_work(Answering(answer), {"text": WORK_QUESTION.text})
    wire = msgspec.msgpack.decode(msgspec.msgpack.encode(plain), type=WorkAnswer)
    return read_work(WORK_QUESTION, wire)


@pytest.mark.parametrize(
    ("answer", "decision"),
    [
        (Decision(), Decision()),
        (Decision(Action.STOP), Decision(Action.STOP, Reason.EARLY_STOPPED)),
        (Decision(Action.STOP, Reason.COMPLETED), Decision(Action.STOP, Reason.COMPLETED)),
        (
            Decision(Action.PAUSE, entry=Entry((0, 2), np.float32(0.5), waits=True), cutoff=1),
            Decision(Action.PAUSE, Reason.PAUSED, Entry(KEY, 0.5, waits=True), 1.0),
        ),
        (Decision(entry=Entry(KEY, math.inf)), Decision(entry=Entry(KEY, math.inf))),
        # A rung's cutoff is NaN if infinite scores leave its quantile undefined. `judge` may return
        # this cutoff; it is then stored as None.
        (Decision(cutoff=math.nan), Decision()),
    ],
)
def test_valid_decision_without_a_reason_gets_the_default_reason_of_its_action(answer, decision):
    assert decided(answer) == decision


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (Decision(entry=Entry(RungKey(1, 2), 0.5)), r"in the rung \(1, 2\), but it is at"),
        (Decision(entry=Entry(RungKey(0, 10**30), 0.5)), r"but it is at \(0, 2\)"),
        (Decision(entry=Entry(KEY, math.nan)), "the score NaN"),
        (Decision(Action.PAUSE), "answered PAUSE with waits=False"),
        (Decision(Action.PAUSE, entry=Entry(KEY, 0.5)), "answered PAUSE with waits=False"),
        (Decision(entry=Entry(KEY, 0.5, waits=True)), "answered CONTINUE with waits=True"),
        (Decision(Action.STOP, Reason.FAILED), "answered STOP with the reason FAILED"),
        (Decision(Action.CONTINUE, Reason.COMPLETED), "answered CONTINUE with the reason"),
        (Decision(Action.EXPLOIT), r"asked for an exploit \(action EXPLOIT\)"),
        (Decision(exploit=Exploit(1, 2, {})), r"asked for an exploit \(action CONTINUE\)"),
    ],
)
def test_decision_that_cannot_be_carried_out_is_refused(answer, why):
    with pytest.raises(DecisionFailed, match=why):
        decided(answer)


def test_pause_by_a_scheduler_that_does_not_declare_resumes_is_refused():
    with pytest.raises(DecisionFailed, match="set resumes = True"):
        decided(
            Decision(Action.PAUSE, entry=Entry(KEY, 0.5, waits=True)), SchedulerPlan(interval=1)
        )


@pytest.mark.parametrize("answer", [None, True, "STOP", Action.STOP, {"action": "STOP"}])
def test_answer_that_is_neither_a_decision_nor_work_is_refused(answer):
    with pytest.raises(TrainableError, match=r"return a studydb\.Decision"):
        decided(answer)
    with pytest.raises(TrainableError, match="return a trial of view"):
        worked(answer)


@pytest.mark.parametrize(
    "plain",
    [
        {},
        {"action": "JUMP", "reason": None, "entry": None, "cutoff": None, "exploits": False},
        {"action": "STOP", "reason": "why", "entry": None, "cutoff": None, "exploits": False},
        {"action": "STOP", "reason": None, "entry": [], "cutoff": None, "exploits": False},
        {"action": "STOP", "reason": None, "entry": None, "cutoff": "1", "exploits": False},
        {"action": "STOP", "reason": None, "entry": None, "cutoff": None, "exploits": 1},
        {
            "action": "STOP",
            "reason": None,
            "entry": None,
            "cutoff": None,
            "exploits": False,
            "x": 1,
        },
    ],
)
def test_answer_of_a_process_that_does_not_speak_the_protocol_is_refused(plain):
    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.decode(msgspec.msgpack.encode(plain), type=JudgeAnswer)


@pytest.mark.parametrize(
    ("answer", "work"),
    [
        (WaitingTrial(KEY, 7, 0.4), WaitingTrial(KEY, 7, 0.4)),
        (WaitingTrial(KEY, 7, 99.0), WaitingTrial(KEY, 7, 0.4)),
        (Close((0, 2), np.int64(3)), Close(KEY, 3)),
        (Close(KEY, 10**30), Close(KEY, 2**63 - 1)),
        (Idle.START_NEW, Idle.START_NEW),
    ],
)
def test_valid_work_is_accepted_with_the_score_that_the_view_showed(answer, work):
    assert worked(answer) == work


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (WaitingTrial(KEY, 8, 0.4), "is not the best of those that wait"),
        (WaitingTrial(RungKey(1, 2), 7, 0.4), "is not the best of those that wait"),
        (Close(KEY, -1), "keeps -1 trials"),
        (Close(KEY, -(10**30)), "keeps -9223372036854775808 trials"),
        (Close(RungKey(0, 10**30), 1), "which does not exist"),
        (WaitingTrial(KEY, 10**30, 0.4), "is not the best of those that wait"),
        (Close(RungKey(0, 3), 1), r"\(0, 3\), which does not exist: .* close a rung of view.rungs"),
    ],
)
def test_work_that_no_worker_can_do_is_refused(answer, why):
    with pytest.raises(DecisionFailed, match=why):
        worked(answer)


@pytest.mark.parametrize("plain", [{}, {"trial_id": 7}, {"idle": "wait", "keep": 1}])
def test_work_of_a_process_that_does_not_speak_the_protocol_is_refused(plain):
    wire = msgspec.msgpack.decode(msgspec.msgpack.encode(plain), type=WorkAnswer)

    with pytest.raises(DecisionFailed, match="gave an answer that is neither a trial"):
        read_work(WORK_QUESTION, wire)


@pytest.mark.parametrize("key", [RungKey(1, 2), RungKey(0, 4)])
def test_scheduler_that_closes_a_closed_or_empty_rung_waits(key):
    assert worked(Close(key, 1)) is Idle.WAIT


def test_views_show_the_data_of_their_question_and_refuse_to_show_other_data():
    judged, work = JudgeView(JUDGED), WorkView(json.loads(WORK_QUESTION.text))

    assert judged.report == Report(2, 0.4, False, 0, 7, 1)
    assert judged.rung() == judged.rung(KEY) == RungView(2, 0.5, False, 3)
    assert judged.best(KEY, 1) == [Ranked(5, 0.1)]
    assert judged.best_score() == 0.4
    with pytest.raises(InvalidSpec, match="its reads_best is 2"):
        judged.best(KEY, 3)
    with pytest.raises(InvalidSpec, match="set reads_mean = True"):
        judged.mean()
    with pytest.raises(InvalidSpec, match=r"it may read \(0, 2\)"):
        judged.rung(RungKey(0, 4))
    assert work.rungs() == [KEY, RungKey(1, 2)]
    assert work.best_waiting(KEY) == WaitingTrial(KEY, 7, 0.4)
    assert work.underway(0) == [1, 3]
    assert not work.underway(5)
    assert work.rung(RungKey(0, 4)).n_entries == 0
    with pytest.raises(InvalidSpec, match=r"\(0, 3\), which is not in view.rungs"):
        work.rung(RungKey(0, 3))


@pytest.mark.parametrize(
    ("declared", "why"),
    [
        ({}, "needs milestones or an interval"),
        ({"milestones": (1,), "interval": 2}, "needs milestones or an interval, but not both"),
        ({"milestones": (3, 3)}, "ascending order, each once"),
        ({"milestones": (4, 2)}, "ascending order, each once"),
        ({"milestones": (0, 2)}, "integers from 1 on"),
        ({"milestones": (1.5,)}, "integers from 1 on"),
        ({"milestones": "12"}, "integers from 1 on"),
        ({"milestones": (2**63,)}, "integers from 1 on"),
        ({"milestones": tuple(range(1, 102))}, "all brackets together may have 100 rungs"),
        ({"milestones": (2, 9), "max_t": 9}, "each must be below max_t, which is 9"),
        ({"interval": 0}, "Its interval is 0"),
        ({"interval": 1, "max_t": "9"}, "Its max_t is '9'"),
        ({"interval": 1, "brackets": 0}, "Its brackets are 0"),
        ({"interval": 1, "brackets": 2, "weights": (1,)}, "0 or more for each bracket"),
        ({"interval": 1, "brackets": 2, "weights": (0, 0)}, "not all of them 0"),
        ({"interval": 1, "brackets": 2, "weights": (1, -1)}, "0 or more for each bracket"),
        ({"interval": 1, "quantile": 1.1}, "Its quantile is 1.1"),
        ({"interval": 1, "quantile": math.nan}, "Its quantile is nan"),
        ({"interval": 1, "reads_best": 101}, "Its reads_best is 101"),
        ({"interval": 1, "resumes": 1}, "Its resumes is 1"),
        ({"interval": 1, "reads_mean": None}, "Its reads_mean is None"),
    ],
)
def test_plan_that_makes_no_sense_is_refused(declared, why):
    with pytest.raises(InvalidSpec, match=why):
        SchedulerPlan.of(type("Declared", (), declared)())


@dataclass(frozen=True)
class WithProperty(CustomScheduler):
    steps: int = 3
    brackets = np.int64(2)
    weights = [1, 0.0]  # noqa: RUF012  as a user may write it

    @property
    def milestones(self):
        return [2**k for k in range(self.steps)]


def test_plan_is_read_from_fields_attributes_and_properties():
    plan = SchedulerPlan.of(WithProperty())

    assert (plan.milestones, plan.brackets, plan.weights) == ((1, 2, 4), 2, (1, 0.0))
    assert SchedulerPlan.from_json(json.loads(json.dumps(plan.to_json()))) == plan


@pytest.mark.parametrize(
    ("plan", "due", "rungs"),
    [
        (
            SchedulerPlan(milestones=(2, 5), max_t=7),
            [2, 2, 5, 5, 5, 7, 7, 8, 9],
            [None, None, 2, 2, 2, 5, 5, None, None],
        ),
        (
            SchedulerPlan(milestones=(2, 5)),
            [2, 2, 5, 5, 5, None, None, None, None],
            [None, None, 2, 2, 2, 5, 5, 5, 5],
        ),
        (
            SchedulerPlan(interval=3, max_t=7),
            [3, 3, 3, 6, 6, 6, 7, 8, 9],
            [None, None, None, 3, 3, 3, 6, None, None],
        ),
        (
            SchedulerPlan(interval=3),
            [3, 3, 3, 6, 6, 6, 9, 9, 9],
            [None, None, None, 3, 3, 3, 6, 6, 6],
        ),
    ],
)
def test_steps_of_decisions_and_rungs_follow_from_the_plan(plan, due, rungs):
    scheduler = UserScheduler("m:C", plan=plan)

    assert [scheduler.next_decision_step(1, step) for step in range(9)] == due
    assert [scheduler.locks(1, step) for step in range(9)] == [
        () if step is None else (RungKey(1, step),) for step in rungs
    ]


def test_brackets_are_drawn_by_their_weights():
    plan = SchedulerPlan(interval=1, brackets=3, weights=(1.0, 0.0, 3.0))
    scheduler = UserScheduler("m:C", plan=plan)

    drawn = [scheduler.bracket_of(seed=0, draw=draw) for draw in range(1000)]

    assert drawn.count(1) == 0
    assert 680 < drawn.count(2) < 820
    assert drawn == [scheduler.bracket_of(seed=0, draw=draw) for draw in range(1000)]
