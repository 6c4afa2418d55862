"""The code of a study's custom stop rules: which of it may run here, and how it is asked."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Self

from studydb.child.job import TrainableImport
from studydb.db import Database
from studydb.domain.deciding import DecisionFailed
from studydb.domain.errors import NotAllowed
from studydb.domain.life.custom_rule import CustomRule, TrialView
from studydb.domain.life.rules import custom_rules
from studydb.domain.records import Study, Trainable
from studydb.lease.rule_judge import AskRule
from studydb.settings import Keyring, load_keyring
from studydb.trainables import Trust, check_trusted
from studydb.trainables.custom_rules import METHOD, options_of, view_arguments
from studydb.worker.attempt_output import OutputPump
from studydb.worker.decider_client import Decider
from studydb.worker.fork_server_client import ForkServer
from studydb.worker.worker_options import WorkerOptions

DIRECTORY = "decider"
"""The folder, among a study's logs, for what the code that decides prints."""


def trusted_rules(
    study: Study, keyring: Keyring, options: WorkerOptions | None = None
) -> list[TrainableImport]:
    """
    Check that the code of a study's custom stop rules may run here, and describe its import.

    Args:
        options: The directory to search before the study's, and the values of `--allow-import`;
            None for the current directory, and for signed rules alone.

    Returns:
        The code in the order of `custom_rules(study.rules)`.

    Raises:
        NotAllowed: The study names a rule without the code for it.
        Untrusted: See `check_trusted`.
    """
    own = str((options and options.workdir) or Path.cwd())
    allow_imports = options.allow_imports if options else ()
    imports = []
    for rule in custom_rules(study.rules):
        code = _code_of(study, rule)
        trust = check_trusted(code, study.uuid, keyring, allow_imports)
        signed = trust is Trust.SIGNED
        workdirs = (own, code.workdir) if signed else (own,)
        imports.append(TrainableImport(study.uuid, code, signed, workdirs))
    return imports


def _code_of(study: Study, rule: CustomRule) -> Trainable:
    for code in study.rule_code:
        if rule.is_made_by(code.name, options_of(code)):
            return code
    raise NotAllowed(
        f"Study {study.name!r} has the stop rule {rule}, but not its code. studydb stores no such "
        "study: find out who wrote to the database, and create the study again."
    )


def asking(decider: Decider, *, say: Callable[[str], None] = lambda _: None) -> AskRule:
    """
    Make the function that asks a study's custom stop rules in a child process.

    Args:
        say: Prints why a rule has not decided; the same cause is printed once.
    """
    said: set[str] = set()

    def ask(position: int, view: TrialView, is_moot: Callable[[], bool]) -> bool | str:
        try:
            answer: bool | str = decider.decide(
                position, METHOD, view_arguments(view), bool | str, is_moot=is_moot
            )
        except DecisionFailed as error:
            if (why := str(error)) not in said:
                said.add(why)
                say(f"a stop rule has not decided, so the study pauses itself: {why}")
            raise
        return answer

    return ask


@contextmanager
def rule_asker(
    imports: list[TrainableImport],
    forkserver: ForkServer,
    pump: OutputPump,
    *,
    log_root: Path,
    options: WorkerOptions,
    is_stopping: Callable[[], bool],
) -> Iterator[AskRule | None]:
    """Make the function by which a worker's slots ask the rules; None without custom rules."""
    decider = Decider(
        forkserver, pump, objects=imports, directory=log_root / DIRECTORY, is_stopping=is_stopping
    )
    with closing(decider):
        yield asking(decider, say=options.say) if imports else None


class RuleProcess:
    """
    The process that custom stop rules run in, for a program that is no worker.

    Its fork server is started when a rule is first asked.
    """

    def __init__(self, imports: list[TrainableImport], directory: Path) -> None:
        self._opened = ExitStack()
        pump = OutputPump()
        self._opened.callback(pump.close)
        forkserver = ForkServer()
        self._opened.callback(forkserver.close)
        self.decider = Decider(forkserver, pump, objects=imports, directory=directory)
        self._opened.callback(self.decider.close)

    @classmethod
    def of(cls, database: Database, study: Study) -> Self | None:
        """
        Make the process of a study's rules; None if the study has no custom rules.

        Raises:
            NotAllowed, Untrusted: See `trusted_rules`.
        """
        if not custom_rules(study.rules):
            return None
        imports = trusted_rules(study, load_keyring())
        return cls(imports, database.locations.log_root(study) / DIRECTORY)

    def close(self) -> None:
        """End the process."""
        self._opened.close()
