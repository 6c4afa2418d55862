"""Ask a study's custom stop rules about the results of an attempt, before they are stored."""

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Self

from msgspec import structs

from studydb.domain.deciding import DecisionFailed, NotAsked
from studydb.domain.errors import NotAllowed
from studydb.domain.failures import bounded
from studydb.domain.life.custom_rule import (
    LONGEST_WHY,
    CustomRule,
    RuleDecision,
    RuleFailure,
    TrialView,
    result_view,
)
from studydb.domain.life.rules import custom_rules
from studydb.domain.metrics import Result
from studydb.domain.records import Batch, Claim, Study

AskRule = Callable[[int, TrialView, Callable[[], bool]], bool | str]
"""
Asks a custom rule, and returns its answer.

The arguments are the rule's position among the study's custom rules, what the rule reads, and a
function that tells whether the trial is to end anyway. The call may raise DecisionFailed or
NotAsked. It takes a few seconds at most, but longer if the code must be imported first, or while
other threads ask.
"""

ReadResults = Callable[[int, int], list[Result]]
"""Reads the trial's last live results before a step; the second argument limits their number."""


class RuleJudge:
    """
    Asks the custom rules of a study about each result of one attempt, in order.

    A rule reads the trial's live results. The attempt's own results are kept here once they are
    stored; those of earlier attempts are read when the attempt reports for the first time. So the
    answers do not depend on the division into flushes, nor on the process that trains.
    """

    def __init__(
        self,
        study: Study,
        ask: AskRule,
        *,
        number: int,
        config: Mapping[str, Any],
        is_first: bool = True,
        is_ending: Callable[[], bool] = lambda: False,
    ) -> None:
        """
        Prepare to ask the rules of a study that has one or more custom rules.

        Args:
            number, config: The number and the config of the trial.
            is_first: Whether this is the trial's first attempt. A first attempt has no earlier
                results that must be read.
            is_ending: Tells whether the trial is to end anyway; if so, no rule's answer is awaited.
        """
        self._rules, self._ask, self._is_ending = custom_rules(study.rules), ask, is_ending
        self._objective, self._number, self._config = study.objective, number, dict(config)
        self._most = max(rule.reads for rule in self._rules)
        self._stored: deque[Result] | None = deque(maxlen=self._most) if is_first else None
        self._judged: tuple[Batch, Batch] | None = None

    @classmethod
    def of(
        cls, study: Study, claim: Claim, ask: AskRule | None, is_ending: Callable[[], bool]
    ) -> Self | None:
        """Make the judge of an attempt; None if the study has no custom rules."""
        if not custom_rules(study.rules):
            return None
        if ask is None:
            raise NotAllowed(
                f"Study {study.name!r} has a stop rule in the user's own code, and this process "
                "cannot ask it. Run the study by `studydb worker`, study.run() or study.ask()."
            )
        number, is_first = claim.lease.number, claim.lease.attempt == 1
        return cls(
            study,
            ask,
            number=number,
            config=claim.config,
            is_first=is_first,
            is_ending=is_ending,
        )

    def judged(self, batch: Batch, read: ReadResults) -> Batch:
        """
        Return the batch with the rules' decision; a second call with this batch asks no rule again.

        Raises:
            Exception: Any exception that `read` raises.
        """
        if not batch.results:
            return batch
        if self._judged is None or self._judged[0] is not batch:
            if self._stored is None:
                self._stored = deque(read(batch.results[0].step, self._most), self._most)
            ruled = self._decide(deque(self._stored, self._most), batch.results)
            self._judged = batch, structs.replace(batch, ruled=ruled)
        return self._judged[1]

    def stored(self, batch: Batch) -> None:
        """Keep the results of a batch that is stored: later results are judged with them."""
        if self._stored is not None:
            self._stored.extend(batch.results)
        self._judged = None

    def _decide(self, recent: deque[Result], batch: Iterable[Result]) -> RuleDecision | None:
        failure: RuleFailure | None = None
        for result in batch:
            recent.append(result)
            for position, rule in enumerate(self._rules):
                try:
                    met = self._ask(position, self._view(rule, recent), self._is_ending)
                except NotAsked:
                    return _without_stop(failure)
                except DecisionFailed as error:
                    why = f"the stop rule {rule} has not decided: {error}"
                    failure = failure or RuleFailure(result.step, why, error.traceback)
                    continue
                if met:
                    why = bounded(met, LONGEST_WHY) if isinstance(met, str) else ""
                    return RuleDecision(result.step, str(rule), why, failure)
        return _without_stop(failure)

    def _view(self, rule: CustomRule, recent: deque[Result]) -> TrialView:
        metric = self._objective.metric
        results = [result_view(each, metric) for each in list(recent)[-rule.reads :]]
        return TrialView(self._number, self._config, metric, str(self._objective.mode), results)


def _without_stop(failure: RuleFailure | None) -> RuleDecision | None:
    return None if failure is None else RuleDecision(failure=failure)
