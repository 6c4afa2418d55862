"""`studydb try`: run one trial of a study in this process, and store nothing."""

import secrets
import socket
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

from studydb.artifacts import INLINE, Stores
from studydb.child import run as child
from studydb.child.channel import Channel
from studydb.child.job import Job, TrainableImport
from studydb.child.messages import Answered, Reported, read_from_child, write
from studydb.child.running_trial import RunningTrial, current
from studydb.child.seeding import seed
from studydb.domain.errors import NotAllowed, TrainableError, TrialStopped
from studydb.domain.life.decisions import Action, DecidedBy, Verdict
from studydb.domain.life.rules import custom_rules, first_hit, longest_history
from studydb.domain.life.states import Reason
from studydb.domain.metrics import Result
from studydb.domain.records import Batch, Study
from studydb.lease.rule_judge import RuleJudge
from studydb.searchers import RandomSearch
from studydb.settings import load_keyring
from studydb.temporary import TemporaryDirectory
from studydb.trainables import Trust, call, check_trusted
from studydb.worker.rule_code import RuleProcess, asking, trusted_rules

OnReport = Callable[[Result, bool], None]
"""The function that gets each result, and whether its report has saved a checkpoint."""


def try_trainable(
    study: Study,
    params: Mapping[str, Any],
    *,
    workdir: Path,
    stores: Stores,
    on_start: Callable[[Mapping[str, Any]], None],
    on_report: OnReport,
) -> None:
    """
    Run the study's trainable once, in this process; store nothing, and ask no scheduler.

    Args:
        params: Values of parameters; missing values are drawn at random from the space.
        workdir: The directory that this process enters, and searches first for the trainable.
        stores: The study's stores, for the objects that are bound to the trainable.
        on_start: Is called with the trial's parameters, given and drawn, before the trial begins.

    Raises:
        NotAllowed: The study has no trainable, or the code of a custom stop rule is missing.
        Untrusted: See `check_trusted`.
        InvalidSpec: See `Space.check_params`.
        TrainableError: The trainable cannot be loaded, or a custom rule gives no answer.
        BaseException: What the user's code, `on_start` or `on_report` raises.
    """
    if study.trainable is None:
        raise NotAllowed(
            f"Study {study.name!r} has no trainable; your own program runs its trials."
        )
    drawn_seed = secrets.randbelow(2**31)
    completed = _completed(study, params, seed=drawn_seed)
    config = study.space.config(completed)
    trust = check_trusted(study.trainable, study.uuid, load_keyring())
    workdirs = (str(workdir), study.trainable.workdir)
    to_import = TrainableImport(
        study.uuid, study.trainable, trust is Trust.SIGNED, workdirs, stores
    )
    with (
        TemporaryDirectory() as scratch,
        _judging(study, config, Path(scratch)) as judge,
    ):
        on_start(completed)
        job = Job(
            to_import=to_import,
            trial_uuid=str(uuid4()),
            number=0,
            attempt=1,
            config=config,
            seed=drawn_seed,
            objective=study.objective,
            scratch=scratch,
            store=INLINE,
            study_name=study.name,
            rules=tuple(rule.to_json() for rule in study.rules),
        )
        ours, theirs = socket.socketpair()
        errors: list[Exception] = []
        worker, channel = Channel(ours), Channel(theirs)
        to_answer = (worker, _Rules(study, judge), on_report, errors)
        answers = threading.Thread(target=_answer, args=to_answer, name="studydb-try", daemon=True)
        answers.start()
        try:
            _run(job, channel)
        finally:
            channel.close()
            answers.join()
            worker.close()
    if errors:
        raise errors[0]


def _completed(study: Study, params: Mapping[str, Any], *, seed: int) -> dict[str, Any]:
    given = study.space.check_params(params)
    drawn = RandomSearch().propose(study.space, seed=seed, draw=0)
    return study.space.complete(given, drawn)


def _run(job: Job, channel: Channel) -> None:
    child.prepare(job.to_import)
    trial = RunningTrial(job, channel, None)
    with current(trial):
        function = child.import_trainable(job.to_import)
        seed(job.seed)
        with suppress(TrialStopped):  # by a stop rule, or a report with `done=True`
            trial.finish(call(function, trial.given_config, trial))


@contextmanager
def _judging(study: Study, config: Mapping[str, Any], folder: Path) -> Iterator[RuleJudge | None]:
    """Yield a judge that asks the custom stop rules in a child process; None without such rules."""
    if not custom_rules(study.rules):
        yield None
        return
    with closing(RuleProcess(trusted_rules(study, load_keyring()), folder / "rules")) as process:
        yield RuleJudge(study, asking(process.decider), number=0, config=config)


class _Rules:
    """Tells which results meet a stop rule of the study."""

    def __init__(self, study: Study, judge: RuleJudge | None) -> None:
        self._study, self._judge = study, judge
        self._recent: deque[Result] = deque(maxlen=longest_history(study.rules))
        self._n_results = 0

    def are_met(self, result: Result) -> bool:
        """Whether the trial's next result meets a rule; TrainableError if a rule cannot decide."""
        self._recent.append(result)
        self._n_results += 1
        recent, objective = tuple(self._recent), self._study.objective
        if first_hit(self._study.rules, recent, self._n_results, objective=objective):
            return True
        if self._judge is None:
            return False
        batch = Batch(self._n_results, (result,))
        ruled = self._judge.judged(batch, lambda _before, _limit: []).ruled
        self._judge.stored(batch)
        if ruled is not None and ruled.failure is not None:
            raise TrainableError(f"At step {result.step}, {ruled.failure.why}")
        return ruled is not None


def _answer(channel: Channel, rules: _Rules, on_report: OnReport, errors: list[Exception]) -> None:
    """Answer a trial as a worker does: pass its reports on, and stop it by the study's rules."""
    try:
        _answer_all(channel, rules, on_report, errors)
    except EOFError:
        pass
    except Exception as error:  # noqa: BLE001  such as a closed stdout; raised in the main thread
        errors.append(error)
    finally:
        channel.close()


def _answer_all(
    channel: Channel, rules: _Rules, on_report: OnReport, errors: list[Exception]
) -> None:
    verdict: Verdict | None = None
    while (frame := channel.receive()) is not None:
        message = read_from_child(frame)
        if isinstance(message, Reported) and message.result is not None:
            on_report(message.result, message.saved is not None)
            try:
                is_met = rules.are_met(message.result)
            except TrainableError as error:
                errors.append(error)
                is_met = True
            if is_met:
                verdict = Verdict(Action.STOP, Reason.RULE_STOPPED, DecidedBy.RULE)
        if (number := getattr(message, "id", None)) is not None:
            channel.send(write(Answered(number, verdict)))
