"""Stop rules in user code: how they are written, read, stored, made and asked."""

import math
from dataclasses import dataclass

import numpy as np
import pytest

from studydb import InvalidSpec, StopRule, TrainableError, TrialView
from studydb.domain.life.custom_rule import CustomRule
from studydb.domain.life.rules import RuleWatch, custom_rules, read_rules, rule_from_json
from studydb.domain.life.states import Mode
from studydb.domain.metrics import Result
from studydb.domain.objective import Objective
from studydb.domain.trainable import Trainable, TrainableKind, TrainableRole
from studydb.trainables.custom_rules import ask_rule, make_rule, options_of, view_arguments

LOSS = Objective("loss", Mode.MIN)


@dataclass(frozen=True)
class Slow(StopRule):
    limit: float = 3
    names: tuple[str, ...] = ("a",)

    def should_stop(self, trial):
        return len(trial.results) > self.limit


class NoDataclass(StopRule):
    pass


HERE = f"{__name__}:Slow"


@pytest.mark.parametrize(
    ("stop", "rule"),
    [
        ("my_rules:TooSlow(limit=3)", CustomRule("my_rules:TooSlow", {"limit": 3})),
        (" a.b:C.D ( x = [1, two] ) ", CustomRule("a.b:C.D", {"x": [1, "two"]})),
        ("my_rules:TooSlow", CustomRule("my_rules:TooSlow")),
        ("my_rules:TooSlow()", CustomRule("my_rules:TooSlow")),
        ("m:C(text='loss>=3')", CustomRule("m:C", {"text": "loss>=3"})),
        (Slow(limit=np.float64(2)), CustomRule(HERE, {"limit": 2.0, "names": ["a"]})),
    ],
)
def test_rule_is_read_from_a_text_or_an_object_and_kept_in_json(stop, rule):
    assert read_rules(stop) == (rule,)
    assert read_rules(["loss>=3", stop])[1] == rule
    assert rule_from_json(rule.to_json()) == rule
    assert read_rules(str(rule)) == (rule,)
    assert custom_rules(read_rules(["loss>=3", stop])) == [rule]


@pytest.mark.parametrize(
    ("stop", "message"),
    [
        ("my_rules:TooSlow(3)", "has no name; write for example"),
        ("my_rules:TooSlow(limit=f(3))", "is itself a call; give plain values"),
        ("my_rules:TooSlow(limit=3", "expected ',' or '\\)'"),
        ("my_rules:TooSlow(limit=nan)", "a finite number"),
        (f"m:C(x='{'x' * 70_000}')", "more than 64 KiB. Keep large data in a file"),
        (Slow, "The stop rule Slow is not an object of a dataclass"),
        ([Slow], "give an object, such as TooSlow\\(limit=3\\)"),
        (NoDataclass(), "Write @dataclass\\(frozen=True\\) before its class"),
        (Slow(limit=math.nan), "The option 'limit' of the stop rule .*:Slow is nan"),
        (Slow(limit=object()), "'limit' of the stop rule .* is an object, which JSON cannot hold"),
        ("my_rules:3", "derives from studydb.StopRule"),
    ],
)
def test_wrong_rule_is_refused(stop, message):
    with pytest.raises(InvalidSpec, match=message):
        read_rules(stop)


def test_rule_that_workers_cannot_import_is_refused(monkeypatch):
    @dataclass(frozen=True)
    class Local(StopRule):
        pass

    with pytest.raises(InvalidSpec, match="Move its class to the top level of a module"):
        read_rules(Local())
    monkeypatch.setattr(Slow, "__module__", "__main__")
    with pytest.raises(InvalidSpec, match="is defined in __main__"):
        read_rules(Slow())


def test_each_result_may_end_the_trial_if_the_study_has_a_custom_rule():
    watch = RuleWatch(read_rules("my_rules:TooSlow()"), LOSS)

    assert all(watch.may_hit(Result(step, 0.5, {})) for step in (1, 2))


def code(source=b"{}", path=HERE):
    kind, role = TrainableKind.IMPORT, TrainableRole.RULE
    return Trainable("u", kind, path, "/", "3.11", source, role=role)


def view(*values):
    results = [{"loss": value, "training_iteration": n} for n, value in enumerate(values, 1)]
    return view_arguments(TrialView(7, {"lr": 0.5}, "loss", "min", results))


def test_rule_is_made_with_its_options_and_asked():
    rule = make_rule(code(b'{"limit": 1}'), Slow)

    assert rule == Slow(limit=1)
    assert ask_rule(rule, view(0.5)) is False
    assert ask_rule(rule, view(0.5, 0.4)) is True


@pytest.mark.parametrize(
    ("answer", "kept"),
    [(True, True), (np.bool_(False), False), (" why ", " why "), ("x" * 600, None)],
)
def test_answer_is_a_bool_or_a_reason_of_bounded_length(answer, kept):
    class Rule(StopRule):
        def should_stop(self, _trial):
            return answer

    given = ask_rule(Rule(), view(0.5))

    assert type(given) in (bool, str)
    assert given == kept if kept is not None else len(given) <= 500


@pytest.mark.parametrize("answer", [None, 1, 0.0, "", "  ", [True], np.array([True]), b"yes"])
def test_answer_that_is_neither_a_bool_nor_a_reason_is_refused(answer):
    class Rule(StopRule):
        def should_stop(self, _trial):
            return answer

    with pytest.raises(TrainableError, match="return False to go on, True or a reason in words"):
        ask_rule(Rule(), view(0.5))


@pytest.mark.parametrize("reads", [0, -1, 1001, "20", 2.5, True, None])
def test_wrong_number_of_reads_is_refused(reads):
    class Rule(Slow):
        pass

    Rule.reads = reads

    with pytest.raises(TrainableError, match="must be an integer from 1 to 1000"):
        make_rule(code(), Rule)


@pytest.mark.parametrize(
    "loaded", [3, math, object, len, Slow(), type("C", (), {"should_stop": 1})]
)
def test_object_that_is_no_rule_is_refused(loaded):
    with pytest.raises(TrainableError, match=r"is not a class with a method should_stop\(trial\)"):
        make_rule(code(), loaded)


def test_rule_that_only_inherits_the_method_of_the_base_class_is_refused():
    with pytest.raises(TrainableError, match=r"does not define should_stop\(trial\)"):
        make_rule(code(), NoDataclass)


@pytest.mark.parametrize(
    "source", [None, b"", b"[1]", b"\xff", b"[" * 100_000, b"x", b'{"x": NaN}']
)
def test_unreadable_options_match_no_rule(source):
    assert options_of(code(source)) is None
    assert not CustomRule(HERE).is_made_by(HERE, options_of(code(source)))
