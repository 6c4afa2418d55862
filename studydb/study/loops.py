"""Opening an own loop, with the process that its custom stop rules run in."""

from studydb.db import Database
from studydb.domain.records import Study
from studydb.lease.loop import OwnLoop
from studydb.study.running import full_url
from studydb.worker.rule_code import RuleProcess, asking


def open_loop(database: Database, study: Study) -> OwnLoop:
    """
    Register this process as a worker that runs trials itself.

    Raises:
        NotAllowed, Untrusted: The code of a custom stop rule may not run here.
        StorageError: The database cannot be used.
    """
    rules = RuleProcess.of(database, study)
    if rules is None:
        return OwnLoop(full_url(database), study)
    try:
        return OwnLoop(
            full_url(database), study, ask_rule=asking(rules.decider), at_close=rules.close
        )
    except BaseException:
        rules.close()
        raise
