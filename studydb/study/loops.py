"""Open a user's own loop around `study.ask()`; a child process runs the study's custom code."""

from studydb.db import Database
from studydb.domain.records import Study
from studydb.domain.resources import UNLIMITED, Capacity
from studydb.lease.loop import OwnLoop
from studydb.study.running import full_url
from studydb.worker.rule_code import RuleProcess, asking, with_asked_code


def open_loop(
    database: Database,
    study: Study,
    *,
    capacity: Capacity = UNLIMITED,
    deadline: float | None = None,
) -> OwnLoop:
    """
    Register this process as a worker that runs trials itself, and begin its heartbeat.

    Args:
        capacity: What the process has for its trials; by default every trial fits.
        deadline: When to give up registering, as a time of the monotonic clock.

    Raises:
        TimeoutError: The database did not answer before the deadline.
        NotAllowed, Untrusted: The study's custom code (rules, scheduler, resource function) may not
            run here.
        StorageError: The database cannot be used.
    """
    rules = RuleProcess.of(database, study)
    if rules is None:
        return OwnLoop(full_url(database), study, capacity=capacity, deadline=deadline)
    try:
        asked = with_asked_code(study, rules.decider)
        return OwnLoop(
            full_url(database),
            asked,
            ask_rule=asking(rules.decider),
            capacity=capacity,
            at_close=rules.close,
            deadline=deadline,
        )
    except BaseException:
        rules.close()
        raise
