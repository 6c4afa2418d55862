"""
Whether what rivals have done together could have been done one after another.

Every order of their transactions is tried on copies of the model, until one gives the answers that
the rivals were given and leaves the rows that they have left.
"""

import copy
import itertools
from collections.abc import Generator, Iterator, Sequence
from typing import Any

from harness.actions import Deed
from harness.expected_rows import likeness
from harness.model import Model
from harness.snapshot import Picture
from studydb.domain.errors import StudydbError
from studydb.domain.life.states import State

Numbers = frozenset[int]

MOST_LOCKED = 2
"""Trials that rivals hold at a time, as far as orders are sought."""


def explaining_order(
    model: Model, deeds: Sequence[Deed], answers: Sequence[Any], shown: Picture
) -> tuple[int, ...] | None:
    """The first order found that explains answers and rows, as places in `deeds`; None if none."""
    wanted = unordered(shown)
    for passed, left in _locked_by_rivals(model, deeds):
        for order in _orders(model, deeds):
            rehearsed = copy.deepcopy(model)
            rehearsed.picks = _picks(deeds, answers)
            turns = [_turns(deed, rehearsed, passed, left) for deed in deeds]
            if _rehearse(turns, order) == list(answers) and (
                unordered(likeness(rehearsed)) == wanted
            ):
                return order
    return None


def unordered(shown: Picture) -> Picture:
    """A picture without the order of what happened at once."""
    rows = {
        name: sorted(shown[name], key=lambda row: sorted(map(str, row.items())))
        for name in ("events", "checkpoints", "workers")
    }
    trials = {
        number: {name: value for name, value in trial.items() if name != "params"}
        for number, trial in shown["trials"].items()
    }
    return shown | rows | {"trials": trials}


def _rehearse(turns: Sequence[Generator[None, None, Any]], order: Sequence[int]) -> list[Any]:
    answers: list[Any] = [None] * len(turns)
    for place in order:
        try:
            next(turns[place])
        except StopIteration as end:
            answers[place] = end.value if end.value is not None else answers[place]
        except StudydbError as refusal:
            answers[place] = type(refusal)
    return answers


def _turns(deed: Deed, model: Model, passed: Numbers, left: Numbers) -> Generator[None, None, Any]:
    if deed.turns is not None:
        return deed.turns(model, passed, left)
    return _one_turn(deed, model)


def _one_turn(deed: Deed, model: Model) -> Generator[None, None, Any]:
    return deed.expect(model)
    yield  # a generator all the same


def _orders(model: Model, deeds: Sequence[Deed]) -> Iterator[tuple[int, ...]]:
    """All orders of the deeds' transactions: one each, but a recovery a sweep and one per trial."""
    running = sum(trial.state is State.RUNNING for trial in model.trials)
    return _merged([running + 1 if deed.turns else 1 for deed in deeds])


def _merged(turns: Sequence[int]) -> Iterator[tuple[int, ...]]:
    if not any(turns):
        yield ()
    for place, n in enumerate(turns):
        if n:
            rest = [*turns[:place], n - 1, *turns[place + 1 :]]
            yield from ((place, *order) for order in _merged(rest))


def _locked_by_rivals(model: Model, deeds: Sequence[Deed]) -> Iterator[tuple[Numbers, Numbers]]:
    """Which trials a recovery may have left alone because a rival was at work on them."""
    if not any(deed.turns for deed in deeds):
        return iter([(frozenset(), frozenset())])
    swept = [one.number for one in model.trials if one.held or one.ready_at or one.paused_by]
    taken = [one.number for one in model.trials if one.held]
    pairs = itertools.product(_few(swept), _few(taken))
    return iter(sorted(pairs, key=lambda pair: sum(map(len, pair))))


def _few(numbers: Sequence[int]) -> list[Numbers]:
    return [
        frozenset(some)
        for n in range(MOST_LOCKED + 1)
        for some in itertools.combinations(numbers, n)
    ]


def _picks(deeds: Sequence[Deed], answers: Sequence[Any]) -> dict[str, int | None]:
    """What each claim took: SKIP LOCKED may have let it pass over the first."""
    return {
        deed.token: getattr(answer, "number", None)
        for deed, answer in zip(deeds, answers, strict=True)
        if deed.name == "claim" and deed.token
    }
