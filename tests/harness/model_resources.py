"""
What the trials of a model ask for, and what the process of each worker keeps in memory.

Amounts are plain dicts. A trial gets a part of a GPU on the fullest card that has room, and whole
GPUs on the first cards that are free.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from harness.model_rows import ENDED, ModelAttempt, ModelTrial
from studydb.domain.errors import InvalidSpec, NotAllowed, UnknownTrial
from studydb.domain.life.states import State, Status
from studydb.domain.records import Request

if TYPE_CHECKING:
    from harness.model import Model

REQUESTS: dict[str, dict[str, float]] = {
    "nothing": {},
    "cpus=1": {"cpus": 1},
    "gpus=0.5": {"gpus": 0.5},
    "gpus=1": {"gpus": 1},
    "cpus=2, gpus=1": {"cpus": 2, "gpus": 1},
    "gpus=2": {"gpus": 2},
    "licence=1": {"licence": 1},
    "gpus=3": {"gpus": 3},
}
"""Requests for resources by their texts; no worker of a `RandomWalk` offers three GPUs."""

CLAIM_S = 2.5
"""
How far the clock of a worker with an offer advances at each claim. The claim then reads the queues
again, and scans the whole queue, because `READ_AGAIN_S` and `RESUME_SCAN_S` are shorter.
"""

RESERVE_AFTER_S = 10.0
RETRY_S = 5.0


class Passed(NamedTuple):
    """
    The trial that smaller trials pass: the first runnable one that the worker, if idle, could run.

    Attributes:
        since_s: When the worker first found that the trial does not fit beside the trials that
            the worker runs.
    """

    number: int
    asks: str
    since_s: float


@dataclass
class ModelOffer:
    """
    What a worker offers, and what is in its memory.

    Attributes:
        held: For the token of each attempt: the amounts that the attempt holds, and its cards.
        passed: The trial that smaller trials pass because it does not fit yet.
        is_reserved: Whether the worker keeps room for the passed trial. Such a worker starts trials
            of other classes only if they need no GPU and leave the room free.
        tried_s: When the worker last tried to reserve itself for the passed trial.
        claims_s: How far claims have advanced the worker's clock ahead of `uptime_s`.
    """

    amounts: Mapping[str, float]
    held: dict[str, tuple[dict[str, float], list[int]]] = field(default_factory=dict)
    passed: Passed | None = None
    is_reserved: bool = False
    tried_s: float | None = None
    claims_s: float = 0.0

    def fits(self, asked: Mapping[str, float], *, empty: bool = False) -> bool:
        held = [] if empty else list(self.held.values())
        used = {name: sum(one.get(name, 0) for one, _ in held) for name in asked}
        enough = all(
            used[name] + amount <= self.amounts.get(name, 0)
            for name, amount in asked.items()
            if name != "gpus"
        )
        return enough and self.cards(asked.get("gpus", 0), empty=empty) is not None

    def cards(self, gpus: float, *, empty: bool = False) -> list[int] | None:
        """The cards for a request of `gpus` GPUs; None if the request does not fit."""
        free = [1.0] * int(self.amounts.get("gpus", 0))
        for asked, cards in [] if empty else self.held.values():
            for card in cards:
                free[card] -= min(asked["gpus"], 1)
        assert all(0 <= part <= 1 for part in free), "a card is given twice"
        if gpus < 1:
            having = sorted((part, card) for card, part in enumerate(free) if part >= gpus > 0)
            return [] if gpus == 0 else [having[0][1]] if having else None
        whole = [card for card, part in enumerate(free) if part == 1]
        return whole[: int(gpus)] if len(whole) >= gpus else None


class ModelResources:
    """
    A study's requests for resources, by their texts, and the offers of its workers.

    Attributes:
        classes: Requests by text; "" is the study's request, for the trials that have none.
        most: How many classes the study may have.
        uptime_s: The monotonic clock of all workers.
    """

    def __init__(self, model: "Model", *, most: int = 64) -> None:
        self._model, self.most, self.uptime_s = model, most, 0.0
        asked = model.spec.resources
        self.classes = {} if asked is None else {"": dict(asked.to_json())}
        self.offers: dict[str, ModelOffer] = {}
        self.happened: Counter[str] = Counter()

    # --- what trials ask for

    def add(self, text: str | None) -> str:
        """Return the class of a trial's request; add the class if the study lacks it."""
        if text is None or text in self.classes:
            return text or ""
        if len(self.classes) >= self.most:
            raise InvalidSpec
        self.classes.setdefault("", {})
        self.classes[text] = REQUESTS[text]
        return text

    def set(self, text: str, numbers: list[int], request: Request) -> None:
        """Change what trials ask for; without numbers, what the study asks for."""
        if self._model._recorded(request.token):
            return
        numbers = sorted(set(numbers))
        trials = [self._waiting(number) for number in numbers]
        if numbers:
            self.add(text)
        else:
            self.classes[""] = REQUESTS[text]
        for trial in trials:
            trial.asks = text
        data = {"numbers": numbers, "resources": REQUESTS[text]}
        self._model._record_event("resources set", request.actor, token=request.token, data=data)

    def _waiting(self, number: int) -> ModelTrial:
        if number >= len(self._model.trials):
            raise UnknownTrial
        trial = self._model.trials[number]
        if trial.state in (*ENDED, State.RUNNING):
            raise NotAllowed
        return trial

    def carry_out(self, trial: ModelTrial, attempt: ModelAttempt) -> None:
        """Let a trial ask for what the scheduler has chosen when pausing the trial, if anything."""
        if trial.asks_next is None:
            return
        trial.asks, trial.asks_next = self.add(trial.asks_next), None
        data = {"numbers": [trial.number], "resources": REQUESTS[trial.asks]}
        self._model._record_event("resources set", "scheduler", attempt=attempt, data=data)

    # --- what workers may start

    def names(self, worker: str) -> list[str] | None:
        """
        The classes whose trials a worker may start now.

        None if the worker has no offer or the study has no classes; then any trial may start.
        """
        offer = self.offers.get(worker)
        if offer is None or not self.classes:
            return None
        fitting = [name for name, asked in self.classes.items() if offer.fits(asked)]
        if offer.passed is None or not offer.is_reserved:
            return fitting
        passed = offer.passed.asks
        return [name for name in fitting if name == passed or self._leaves(offer, name, passed)]

    def _leaves(self, offer: ModelOffer, name: str, passed: str) -> bool:
        """Whether a class asks for no GPU, and fits together with the passed trial's class."""
        asked, more = self.classes[name], self.classes[passed]
        both = {one: asked.get(one, 0) + more.get(one, 0) for one in (*asked, *more)}
        return not asked.get("gpus") and offer.fits(both)

    def startable(self, worker: str | None, trials: list[ModelTrial]) -> list[ModelTrial]:
        """The trials that a worker may start; all of them if no worker is named."""
        names = None if worker is None else self.names(worker)
        return [trial for trial in trials if names is None or trial.asks in names]

    def look(self, worker: str) -> None:
        """Find the passed trial before a claim; reserve the worker if the trial has waited long."""
        offer = self.offers.get(worker)
        if offer is None or not self.classes:
            return
        offer.claims_s += CLAIM_S
        if self._model.status is not Status.RUNNING or not self._model.has_room:
            return
        now_s = self.uptime_s + offer.claims_s
        first = next(
            (one for one in self._model.runnable if offer.fits(self.classes[one.asks], empty=True)),
            None,
        )
        if offer.passed is not None and (first is None or first.number != offer.passed.number):
            self._forget_passed(worker)
        if first is None:
            return
        if offer.passed is not None:
            offer.passed = offer.passed._replace(asks=first.asks)
        if not offer.fits(self.classes[first.asks]):
            offer.passed = offer.passed or Passed(first.number, first.asks, now_s)
            self._reserve(worker, offer, now_s)

    def started(self, attempt: ModelAttempt, trial: ModelTrial) -> bool:
        """Until `release`, hold what a trial asks for; return False if the trial does not fit."""
        offer = self.offers.get(attempt.worker.uuid)
        if offer is None or not self.classes or attempt.token in offer.held:
            return True
        asked = self.classes[trial.asks]
        if not offer.fits(asked):
            return False
        offer.held[attempt.token] = asked, offer.cards(asked.get("gpus", 0)) or []
        return True

    def claimed(self, worker: str, trial: ModelTrial) -> None:
        """Forget the passed trial and its reservation if the claimed trial is of the same class."""
        if self._model.runnable and trial is not self._model.runnable[0]:
            self.happened["a trial that fits passes another"] += 1
        offer = self.offers.get(worker)
        if offer is not None and offer.passed is not None and offer.passed.asks == trial.asks:
            self._forget_passed(worker)

    def release(self, worker: str, token: str) -> None:
        """Free what is held for an attempt, because its process has ended."""
        if worker in self.offers:
            self.offers[worker].held.pop(token, None)

    def _reserve(self, worker: str, offer: ModelOffer, now_s: float) -> None:
        assert offer.passed is not None
        is_early = now_s - offer.passed.since_s < RESERVE_AFTER_S
        was_tried = offer.tried_s is not None and now_s - offer.tried_s < RETRY_S
        if offer.is_reserved or is_early or was_tried:
            return
        offer.tried_s = now_s
        if not self._is_reserved_elsewhere(worker, offer.passed.number):
            offer.is_reserved = True
            self.happened["reserved"] += 1
            self._model.workers[worker].reserved_for = offer.passed.number

    def _is_reserved_elsewhere(self, worker: str, number: int) -> bool:
        others = (one for one in self._model.workers.values() if one.uuid != worker)
        return any(
            one.reserved_for == number
            and one.ended_at is None
            and one.seen_at + one.lease_s > self._model.now
            for one in others
        )

    def _forget_passed(self, worker: str) -> None:
        offer = self.offers[worker]
        offer.passed, offer.is_reserved, offer.tried_s = None, False, None
        self._model.workers[worker].reserved_for = None
