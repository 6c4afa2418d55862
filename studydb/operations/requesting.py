"""Ask a study's resource function what trials need, and store its answers with the proposals."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from time import monotonic
from typing import Any, TypeVar

from msgspec import structs

from studydb.db import Database, Txn
from studydb.domain.deciding import DecisionFailed, NotAsked
from studydb.domain.errors import InvalidSpec, NotAllowed, StorageBusy
from studydb.domain.records import Proposal, Study
from studydb.domain.resource_function import (
    Answers,
    RequestNeeded,
    ResourceFunction,
    config_key,
)
from studydb.domain.resources import Resources
from studydb.operations.guard import pause_after_requests
from studydb.store import proposals, resource_classes, studies

ASKING_S = 0.5
"""
For how long one call asks the function about further draws, after the first answer. A slow function
must not delay the trial that the worker is to run next.
"""

TRIES = 8
"""The most times that `with_answers` calls `send`, which fails while the config has no answer."""

Answered = TypeVar("Answered")


def ask_function(study: Study, config: Mapping[str, Any]) -> Resources:
    """
    Ask a study's resource function what a trial with this config needs.

    Raises:
        DecisionFailed: The function has not said what the trial needs.
        NotAsked: This process is stopping.
        NotAllowed: This process cannot ask the function.
    """
    function = study.resources
    assert isinstance(function, ResourceFunction)
    if function.ask is None:
        raise NotAllowed(
            f"The trials of study {study.name!r} need what the function {function} says, and this "
            "process cannot ask it. Run the study by `studydb worker`, study.run() or study.ask()."
        )
    return function.ask(config)


def with_requests(
    study: Study, computed: Iterable[tuple[int, Proposal]]
) -> Iterator[tuple[int, Proposal]]:
    """
    Add to each proposal what its trial asks for, if the study has a resource function.

    If the function fails for a proposal after the first, that proposal and those after it are left
    out. The call that begins with that proposal raises the failure. After `ASKING_S` the remaining
    proposals are left out.

    Raises:
        DecisionFailed, NotAsked: The function has not said what the first proposal needs.
    """
    if not study.asks_by_config:
        yield from computed
        return
    ends_at_s = None
    for draw, one in computed:
        try:
            request = ask_function(study, one.config)
        except (DecisionFailed, NotAsked):
            if ends_at_s is None:
                raise
            return
        yield draw, structs.replace(one, request=request)
        ends_at_s = ends_at_s or monotonic() + ASKING_S
        if monotonic() >= ends_at_s:
            return


def store_proposals(txn: Txn, study: Study, proposed: Mapping[int, Proposal]) -> None:
    """
    Store proposals with their resource classes.

    A study has at most 64 resource classes. The first proposal that needs one more class is not
    stored, nor are the proposals after it.

    Raises:
        DecisionFailed: Not even the first draw can be stored.
    """
    if study.asks_by_config:
        proposed = _of_known_classes(txn, study, proposed)
    proposals.store(txn, study_id=study.id, proposed=proposed)


def _of_known_classes(
    txn: Txn, study: Study, proposed: Mapping[int, Proposal]
) -> Mapping[int, Proposal]:
    known = set(resource_classes.read(txn, study_id=study.id))
    if {one.resource_class for one in proposed.values()} - known:
        studies.lock(txn, study_id=study.id)
    stored: dict[int, Proposal] = {}
    for draw, one in sorted(proposed.items()):
        if one.request is not None and one.resource_class not in known:
            try:
                known.add(resource_classes.add(txn, study_id=study.id, asked=one.request))
            except InvalidSpec as error:
                if not stored:
                    raise DecisionFailed(str(error)) from None
                break
        stored[draw] = one
    return stored


def pause_unrequested(database: Database, study: Study, error: DecisionFailed) -> None:
    """Pause a RUNNING study: a trial's request for resources is unknown or cannot be stored."""
    why = f"the resource function {study.resources} has not said what a trial needs: {error}"
    with database.begin() as txn:
        pause_after_requests(txn, study, why, traceback=error.traceback)


def with_answers(
    study: Study,
    send: Callable[[Answers], Answered],
    *,
    ask: Callable[[Study, Mapping[str, Any]], Resources] = ask_function,
    answers: Answers | None = None,
) -> Answered:
    """
    Call `send`; while it lacks an answer of the resource function, ask the function and call again.

    The transaction of `send` knows the trial's config only under a lock, and the function must not
    be asked while the lock is held.

    Raises:
        DecisionFailed, NotAsked: The function has not said what a trial needs; nothing was written.
        NotAllowed: This process cannot ask the function; nothing was written.
        StorageBusy: Each of `TRIES` transactions has found a config without an answer.
    """
    known = dict(answers or {})
    for _ in range(TRIES):
        try:
            return send(known)
        except RequestNeeded as needed:
            known[config_key(needed.config)] = ask(study, needed.config)
    raise StorageBusy(
        f"{TRIES} times, other processes have added trials while the resource function "
        f"{study.resources} was asked about this trial. Nothing was stored; send the request again."
    )
