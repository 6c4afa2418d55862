"""`studydb try`: run one trial of a study in this process, and store nothing."""

import secrets
import socket
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

from studydb.artifacts import INLINE, Stores
from studydb.child import run as child
from studydb.child.channel import Channel
from studydb.child.job import Job, TrainableImport
from studydb.child.messages import Answered, Reported, read_from_child, write
from studydb.child.running_trial import RunningTrial, current
from studydb.domain.errors import NotAllowed, TrialStopped
from studydb.domain.life.decisions import Action, DecidedBy, Verdict
from studydb.domain.life.rules import first_hit, longest_history
from studydb.domain.life.states import Reason
from studydb.domain.metrics import Result
from studydb.domain.records import Study
from studydb.searchers import RandomSearch
from studydb.settings import load_keyring
from studydb.trainables import Trust, call, check_trusted

ON_REPORT = Callable[[Result, bool], None]
"""Is called with each result, and with whether its report has saved a checkpoint."""


def try_trainable(
    study: Study, params: Mapping[str, Any], *, workdir: Path, stores: Stores, on_report: ON_REPORT
) -> None:
    """
    Run the study's trainable once, in this process; nothing is stored, and no scheduler judges.

    Args:
        params: Values of parameters; missing ones are drawn at random from the space.
        stores: The study's stores, for the objects that are bound to the trainable.

    Raises:
        NotAllowed: The study has no trainable.
        Untrusted: See `check_trusted`.
        InvalidSpec: See `Space.check_params`.
        BaseException: What the user's code raises.
    """
    if study.trainable is None:
        raise NotAllowed(
            f"Study {study.name!r} has no trainable; your own program runs its trials."
        )
    given = study.space.check_params(params)
    seed = secrets.randbelow(2**31)
    drawn = RandomSearch().propose(study.space, seed=seed, draw=0)
    config = study.space.config(study.space.complete(given, drawn))
    trust = check_trusted(study.trainable, study.uuid, load_keyring())
    workdirs = (str(workdir), study.trainable.workdir)
    to_import = TrainableImport(
        study.uuid, study.trainable, trust is Trust.SIGNED, workdirs, stores
    )
    with tempfile.TemporaryDirectory(prefix="studydb-", ignore_cleanup_errors=True) as scratch:
        job = Job(
            to_import=to_import,
            trial_uuid=str(uuid4()),
            number=0,
            attempt=1,
            config=config,
            seed=seed,
            objective=study.objective,
            scratch=scratch,
            store=INLINE,
            study_name=study.name,
            rules=tuple(rule.to_json() for rule in study.rules),
        )
        ours, theirs = socket.socketpair()
        errors: list[Exception] = []
        worker, channel = Channel(ours), Channel(theirs)
        answers = threading.Thread(
            target=_answer, args=(worker, study, on_report, errors), name="studydb-try", daemon=True
        )
        answers.start()
        try:
            child.prepare(to_import)
            trial = RunningTrial(job, channel, None)
            with current(trial):
                function = child.import_trainable(to_import)
                with suppress(TrialStopped):  # a rule has stopped the trial, or it is done
                    trial.finish(call(function, trial.given_config, trial))
        finally:
            channel.close()
            answers.join()
            worker.close()
    if errors:
        raise errors[0]


def _answer(channel: Channel, study: Study, on_report: ON_REPORT, errors: list[Exception]) -> None:
    """Take the place of a worker: pass the reports on, and stop the trial by the study's rules."""
    try:
        _answer_all(channel, study, on_report)
    except EOFError:
        pass
    except Exception as error:  # noqa: BLE001  such as a closed stdout; raised in the main thread
        errors.append(error)
    finally:
        channel.close()


def _answer_all(channel: Channel, study: Study, on_report: ON_REPORT) -> None:
    verdict: Verdict | None = None
    recent: deque[Result] = deque(maxlen=longest_history(study.rules))
    n_results = 0
    while (frame := channel.receive()) is not None:
        message = read_from_child(frame)
        if isinstance(message, Reported) and message.result is not None:
            on_report(message.result, message.saved is not None)
            recent.append(message.result)
            n_results += 1
            if first_hit(study.rules, tuple(recent), n_results, objective=study.objective):
                verdict = Verdict(Action.STOP, Reason.RULE_STOPPED, DecidedBy.RULE)
        if (number := getattr(message, "id", None)) is not None:
            channel.send(write(Answered(number, verdict)))
