"""`studydb.report`, `config` and `checkpoint` in a Python program that a trial's command runs."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from studydb import report_client
from studydb.artifacts.checkpoint_files import CheckpointLike, Restored, pickled
from studydb.domain import errors
from studydb.domain.errors import InvalidReport, LeaseLost, StudydbError, TrialStopped, UsageError
from studydb.domain.metrics import STEP, plain_metrics

_DICT = "studydb-checkpoint.pkl"
"""The file that holds the pickle of a dict, in a checkpoint's directory."""


def report(metrics: Mapping[str, Any], checkpoint: CheckpointLike | None) -> None:
    """
    Report for the trial whose command started this process; see `RunningTrial.report`.

    Raises:
        InvalidReport, TrialStopped, LeaseLost: See `RunningTrial.report`.
        CheckpointError: The dict cannot be pickled, or the trial's process refuses the directory.
        UsageError: The trial's process does not answer, or has ended.
    """
    message = plain_metrics(metrics)
    if "step" in message:  # a metric of this name, as in a function; not the step of the report
        message.setdefault(STEP, None)
    if isinstance(checkpoint, Mapping):
        target = Path(os.environ["STUDYDB_SAVE"], _DICT)
        target.write_bytes(pickled(checkpoint))
        message["checkpoint"] = True
    elif checkpoint is not None:
        message["checkpoint"] = str(Path(checkpoint).absolute())
    try:
        answer = report_client.exchange(json.dumps(message))
    except report_client.NoRunner as error:
        raise UsageError(str(error)) from None
    if "error" in answer:
        kind = getattr(errors, answer.get("type", ""), InvalidReport)
        raise (
            kind(answer["error"])
            if issubclass(kind, StudydbError)
            else InvalidReport(answer["error"])
        )
    if not answer["go"]:
        number, attempt = (int(os.environ[f"STUDYDB_{name}"]) for name in ("TRIAL", "ATTEMPT"))
        if answer.get("why") == "lost":
            raise LeaseLost(number=number, attempt=attempt)
        raise TrialStopped(f"Trial {number} ends: {answer.get('why')}.")


def config() -> dict[str, Any]:
    """Read the trial's config."""
    found: dict[str, Any] = json.loads(Path(os.environ["STUDYDB_CONFIG"]).read_bytes())
    return found


def checkpoint() -> Restored | None:
    """Return the checkpoint to start from; None to start from scratch."""
    path = os.environ.get("STUDYDB_CHECKPOINT")
    if not path:
        return None
    step = int(os.environ["STUDYDB_STEP"])
    file = Path(path, _DICT)
    if file.is_file():
        return Restored(step, data=file.read_bytes())
    return Restored(step, path=Path(path))
