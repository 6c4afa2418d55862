"""
A search for a serial order of transactions that gives the answers and rows of concurrent actions.

`explaining_order` tries every order on a copy of the model, until one gives the same answers and
the same rows. `SerialOutcomes` runs the orders on a database, for calls that no model covers.
"""

import copy
import functools
import itertools
import json
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any

from harness.expected_rows import expected_rows
from harness.model import Model
from harness.snapshot import Snapshot
from harness.study_action import StudyAction
from studydb.domain.errors import StudydbError
from studydb.domain.life.states import State

Numbers = frozenset[int]

MOST_LOCKED = 2
"""
The search assumes that a sweep skips at most this many trials when the sweep begins, and at most
this many when it ends attempts; other calls have locked the skipped trials.
"""


class SerialOutcomes:
    """
    The outcomes of a few calls in each serial order; an order is run when it is first needed.

    Args:
        run: Makes the calls in the order of the given positions, and returns their outcome.
    """

    def __init__(self, n_calls: int, run: Callable[[tuple[int, ...]], Any]) -> None:
        self._orders = list(itertools.permutations(range(n_calls)))
        self._run = functools.cache(run)

    def explain(self, outcome: Any, schedule: Sequence[str]) -> tuple[int, ...] | None:
        """
        Return a serial order that has this outcome, or None.

        The order in which the calls have sent their last statements is tried first.
        """
        last = {line.partition(":")[0]: position for position, line in enumerate(schedule)}
        likely = tuple(sorted(self._orders[0], key=lambda place: last.get(str(place), -1)))
        orders = (likely, *self._orders)
        return next((order for order in orders if self._run(order) == outcome), None)


def explaining_order(
    model: Model, actions: Sequence[StudyAction], answers: Sequence[Any], shown: Snapshot
) -> tuple[int, ...] | None:
    """
    Return an order of turns that gives `answers` and the rows in `shown`; None if there is none.

    A turn is one step of an action, such as one of its transactions. In an order, each turn is
    given by the position of its action in `actions`.
    """
    expected = unordered(shown)
    for skipped, skipped_later in _locked_by_others(model, actions):
        for order in _orders(model, actions):
            tried = copy.deepcopy(model)
            tried.picks = _picks(actions, answers)
            turns = [_turns(action, tried, skipped, skipped_later) for action in actions]
            if _run(turns, order) == list(answers) and (
                unordered(expected_rows(tried)) == expected
            ):
                return order
    return None


def unordered(shown: Snapshot) -> Snapshot:
    """Return a snapshot without params, with events, checkpoints, uploads and workers sorted."""
    rows = {
        name: sorted(shown[name], key=lambda row: json.dumps(row, sort_keys=True, default=str))
        for name in ("events", "checkpoints", "uploads", "workers")
    }
    trials = {
        number: {name: value for name, value in trial.items() if name != "params"}
        for number, trial in shown["trials"].items()
    }
    return shown | rows | {"trials": trials}


def _run(turns: Sequence[Generator[None, None, Any]], order: Sequence[int]) -> list[Any]:
    answers: list[Any] = [None] * len(turns)
    for place in order:
        try:
            next(turns[place])
        except StopIteration as end:
            answers[place] = end.value if end.value is not None else answers[place]
        except StudydbError as refusal:
            answers[place] = type(refusal)
    return answers


def _turns(
    action: StudyAction, model: Model, skipped: Numbers, skipped_later: Numbers
) -> Generator[None, None, Any]:
    if action.turns is not None:
        return action.turns(model, skipped, skipped_later)
    return _one_turn(action, model)


def _one_turn(action: StudyAction, model: Model) -> Generator[None, None, Any]:
    return action.expect(model)
    yield  # makes this function a generator


def _orders(model: Model, actions: Sequence[StudyAction]) -> Iterator[tuple[int, ...]]:
    """
    All orders of turns.

    An action has one turn. An action whose `turns` is set has further turns: as many as there are
    RUNNING trials or uploads, whichever are more.
    """
    running = sum(trial.state is State.RUNNING for trial in model.trials)
    most = max(running, len(model.uploads)) + 1
    return _merged([most if action.turns else 1 for action in actions])


def _merged(turns: Sequence[int]) -> Iterator[tuple[int, ...]]:
    if not any(turns):
        yield ()
    for place, n in enumerate(turns):
        if n:
            rest = [*turns[:place], n - 1, *turns[place + 1 :]]
            yield from ((place, *order) for order in _merged(rest))


def _locked_by_others(
    model: Model, actions: Sequence[StudyAction]
) -> Iterator[tuple[Numbers, Numbers]]:
    """Pairs of `skipped` and `skipped_later` for `recover_in_turns`, fewest trials first."""
    if not any(action.turns for action in actions):
        return iter([(frozenset(), frozenset())])
    held = [trial.number for trial in model.trials if trial.held]
    swept = [one.number for one in model.trials if one.held or one.ready_at or one.paused_by]
    pairs = itertools.product(_few(swept), _few(held))
    return iter(sorted(pairs, key=lambda pair: sum(map(len, pair))))


def _few(numbers: Sequence[int]) -> list[Numbers]:
    return [
        frozenset(some)
        for n in range(MOST_LOCKED + 1)
        for some in itertools.combinations(numbers, n)
    ]


def _picks(actions: Sequence[StudyAction], answers: Sequence[Any]) -> dict[str, int | None]:
    """By token, the number of the trial that each claim took; None if it found no trial."""
    return {
        action.token: getattr(answer, "number", None)
        for action, answer in zip(actions, answers, strict=True)
        if action.name == "claim" and action.token
    }
