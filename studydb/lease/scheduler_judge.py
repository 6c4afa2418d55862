"""Ask a custom scheduler between two sends of a batch, while no transaction is open."""

from collections import Counter
from collections.abc import Callable
from typing import Self, TypeVar

from msgspec import structs

from studydb.domain.custom_scheduler import AskScheduler, Question
from studydb.domain.deciding import DecisionFailed, DecisionNeeded, NotAsked, Undecided
from studydb.domain.errors import NotAllowed, StorageBusy
from studydb.domain.life.decisions import Decision
from studydb.domain.records import Batch, Study
from studydb.schedulers import UserScheduler

TRIES = 8
"""
The most times that the scheduler is asked about one result in one `send`. After that, the batch
waits and is sent again, as in an outage.

The scheduler is asked again if another trial has entered the rung while the scheduler decided. If
several trials report at a rung at the same time, each round of answers lets at least one trial
enter.
"""

Answered = TypeVar("Answered")


class SchedulerJudge:
    """
    Sends the batches of one attempt, and asks the scheduler for the decisions that they need.

    The batch's transaction locks the rungs and computes the question, with all that the scheduler
    may read. If the batch has no answer to exactly this question, the transaction is rolled back
    and the scheduler is asked. So a decision is not stored if its rung has changed meanwhile, and
    no lock is held while the user's code runs.

    Attributes:
        has_dropped: Whether results were dropped; if so, later results must be dropped, too.
    """

    def __init__(self, name: str, ask: AskScheduler) -> None:
        """
        Prepare to ask a scheduler.

        Args:
            name: The scheduler as text, for messages.
        """
        self._name, self._ask, self.has_dropped = name, ask, False
        self._answers: dict[Question, Decision | Undecided] = {}

    @classmethod
    def of(cls, study: Study) -> Self | None:
        """Make the judge of a study; None if the study's scheduler is one of studydb's own."""
        scheduler = study.scheduler
        if not isinstance(scheduler, UserScheduler):
            return None
        if scheduler.ask is None:
            raise NotAllowed(
                f"Study {study.name!r} has a scheduler in the user's own code, and this process "
                "cannot ask it. Run the study by `studydb worker`, study.run() or study.ask()."
            )
        return cls(str(scheduler), scheduler.ask)

    def send(
        self, call: Callable[[Batch], Answered], batch: Batch, *, may_shorten: bool = False
    ) -> Answered:
        """
        Send a batch until its transaction has all the decisions that it needs.

        Args:
            may_shorten: What to do if a result cannot be judged, because this process is stopping.
                True drops this result and all later ones; the next attempt then trains their steps
                again. False raises StorageBusy.

        Raises:
            StorageBusy: The rung has changed `TRIES` times while the scheduler decided, or this
                process is stopping; the batch may be sent again.
        """
        n_asked = Counter[int]()
        while True:
            try:
                return call(structs.replace(batch, answers=dict(self._answers)))
            except DecisionNeeded as needed:
                question, step = needed.question, needed.step
            n_asked[step] += 1
            if n_asked[step] > TRIES:
                raise StorageBusy(
                    f"The scheduler {self._name} has judged step {step} {TRIES} times, and each "
                    "time another trial entered the rung before the decision was stored. The "
                    "results are kept, and are sent again."
                )
            try:
                self._answers[question] = self._answer(question)
            except NotAsked:
                if not may_shorten:
                    raise StorageBusy(
                        f"This process is stopping, so the scheduler {self._name} was not asked."
                    ) from None
                known = tuple(result for result in batch.results if result.step < step)
                batch, self.has_dropped = structs.replace(batch, results=known), True

    def stored(self) -> None:
        """Forget the answers: the batch that needed them is stored."""
        self._answers.clear()

    def _answer(self, question: Question) -> Decision | Undecided:
        try:
            return self._ask(question)  # type: ignore[return-value]  # the question is `JUDGE`
        except DecisionFailed as error:
            why = f"the scheduler {self._name} has not decided: {error}"
            return Undecided(why, error.traceback)
