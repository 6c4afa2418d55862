"""
What supervisor and child say to each other, after the job itself (see job.py).

```
child → supervisor                                   supervisor → child
report   a result, a checkpoint's record, or both    answer   to a report or flush that has an id
flush    have everything safe                        stop     a verdict stands, unasked
end      how it ended; the last one                  lost     the lease is gone, unasked
```
A report with an id waits for its answer, which may come only when the result and the checkpoint's
row are safe; one without is buffered. The supervisor trusts none of it: `read_from_child` checks.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, TypeVar, assert_never

from studydb.artifacts import INLINE, digest_of
from studydb.child.channel import Frame, FrameError
from studydb.domain.decisions import Action, Verdict
from studydb.domain.metrics import Result
from studydb.domain.records import Failure
from studydb.domain.states import Reason

_T = TypeVar("_T")

_DIGEST = re.compile(r"[0-9a-f]{64}")
_UUID = re.compile(r"[0-9a-f-]{36}")


class End(StrEnum):
    """How the user's code ended."""

    COMPLETED = "completed"
    FAILED = "failed"
    STOPPED = "stopped"
    """A verdict stood."""
    PREEMPTED = "preempted"
    """SIGTERM came and it left at its next report."""
    LOST = "lost"
    """The trial was no longer its own."""
    UNRESTORABLE = "unrestorable"
    """It did not begin: the bytes of its checkpoint are missing or corrupt."""
    UNPREPARED = "unprepared"
    """It did not begin, for a reason of this host's: no such module, a full disk, no store."""


@dataclass(frozen=True, slots=True)
class Saved:
    """
    The record of a checkpoint whose bytes are safe, or come along.

    Attributes:
        kind: "dict" or "directory".
        url: Where the bytes are; "inline:" when they come along.
        data: The bytes, if inline.
    """

    uuid: str
    kind: str
    url: str
    digest: str
    size_bytes: int
    step: int
    data: bytes | None = None


@dataclass(frozen=True, slots=True)
class Reported:
    """
    One step of the user's code.

    Attributes:
        id: To be named by the answer; None when none is waited for.
        result: None when only a last checkpoint is saved, after a verdict.
        saved: A checkpoint to record with it.
        artifact_error: Why the checkpoint that the user gave could not be stored.
    """

    id: int | None
    result: Result | None
    saved: Saved | None = None
    artifact_error: str | None = None


@dataclass(frozen=True, slots=True)
class FlushAsked:
    """The child waits until everything before is safe."""

    id: int


@dataclass(frozen=True, slots=True)
class Ended:
    """The user's code has ended, and the process will; `failure` says why if it failed."""

    end: End
    failure: Failure | None = None


@dataclass(frozen=True, slots=True)
class Answered:
    """The answer to the report or flush of that id; everything up to it is safe unless lost."""

    id: int
    verdict: Verdict | None = None
    next_decision_step: int | None = None
    lost: bool = False


@dataclass(frozen=True, slots=True)
class StopNotice:
    """A verdict stands; the next report is to raise it."""

    verdict: Verdict


@dataclass(frozen=True, slots=True)
class LostNotice:
    """The trial is somebody else's; the next report is to raise it."""


FromChild = Reported | FlushAsked | Ended
FromSupervisor = Answered | StopNotice | LostNotice


def write(message: FromChild | FromSupervisor) -> Frame:
    """Write a message of either side."""
    match message:
        case Reported():
            return _write_reported(message)
        case FlushAsked(id=number):
            return Frame({"type": "flush", "id": number})
        case Ended(end=end, failure=failure):
            return Frame({"type": "end", "end": end, "failure": failure and asdict(failure)})
        case Answered():
            verdict = _verdict_json(message.verdict)
            return Frame({"type": "answer", **asdict(message), "verdict": verdict})
        case StopNotice(verdict=verdict):
            return Frame({"type": "stop", "verdict": _verdict_json(verdict)})
        case LostNotice():
            return Frame({"type": "lost"})
    assert_never(message)


def _write_reported(message: Reported) -> Frame:
    header: dict[str, Any] = {"type": "report", "id": message.id}
    payload = b""
    if (result := message.result) is not None:
        step_and_values = [result.step, result.value, dict(result.metrics), result.time_total_s]
        header["result"] = step_and_values
    if message.saved is not None:
        header["saved"] = {**asdict(message.saved), "data": None}
        payload = message.saved.data or b""
    if message.artifact_error is not None:
        header["artifact_error"] = message.artifact_error
    return Frame(header, payload)


def read_from_child(frame: Frame) -> FromChild:
    """
    Read what a child sent, believing nothing.

    Raises:
        FrameError: It is none of the child's messages.
    """
    try:
        return _READ_FROM_CHILD[frame.header["type"]](frame)
    except (KeyError, TypeError, ValueError) as cause:
        raise FrameError(f"A child sent what is no message: {cause!r}.") from cause


def read_from_supervisor(frame: Frame) -> FromSupervisor:
    """
    Read what the supervisor sent.

    Raises:
        FrameError: It is none of the supervisor's messages.
    """
    header = frame.header
    try:
        if header["type"] == "answer":
            return Answered(
                header["id"],
                _read_verdict(header["verdict"]),
                header["next_decision_step"],
                header["lost"],
            )
        if header["type"] == "stop" and (verdict := _read_verdict(header["verdict"])):
            return StopNotice(verdict)
        if header["type"] == "lost":
            return LostNotice()
    except (KeyError, TypeError, ValueError) as cause:
        raise FrameError(f"The supervisor sent what is no message: {cause!r}.") from cause
    raise FrameError(f"The supervisor sent a {header['type']!r}.")


def _read_reported(frame: Frame) -> Reported:
    header = frame.header
    result, saved, error = (header.get(key) for key in ("result", "saved", "artifact_error"))
    return Reported(
        id=_optional(int, header.get("id")),
        result=None if result is None else _read_result(*result),
        saved=None if saved is None else _read_saved(saved, frame.payload),
        artifact_error=_optional(str, error),
    )


def _read_result(step: Any, value: Any, metrics: Any, time_total_s: Any) -> Result:
    if not isinstance(metrics, dict):
        raise FrameError("metrics are no object")
    return Result(
        step=_typed(int, step),
        value=float(value),
        metrics=metrics,
        time_total_s=None if time_total_s is None else float(time_total_s),
    )


def _read_saved(header: Mapping[str, Any], payload: bytes) -> Saved:
    saved = Saved(
        uuid=_matching(_UUID, header["uuid"]),
        kind=_typed(str, header["kind"]),
        url=_typed(str, header["url"]),
        digest=_matching(_DIGEST, header["digest"]),
        size_bytes=_typed(int, header["size_bytes"]),
        step=_typed(int, header["step"]),
        data=payload if header["url"] == INLINE else None,
    )
    if saved.kind not in {"dict", "directory"} or saved.size_bytes < 0 or saved.step < 0:
        raise FrameError("a checkpoint of no kind, size or step")
    if saved.data is not None and digest_of(saved.data) != saved.digest:
        raise FrameError("a checkpoint that differs from its digest")
    return saved


def _read_flush(frame: Frame) -> FlushAsked:
    return FlushAsked(_typed(int, frame.header["id"]))


def _read_ended(frame: Frame) -> Ended:
    end, failure = End(frame.header["end"]), frame.header["failure"]
    if failure is None:
        return Ended(end)
    texts = (_typed(str, failure[key]) for key in ("type", "message", "traceback"))
    return Ended(end, Failure(*texts))


_READ_FROM_CHILD: Mapping[str, Callable[[Frame], FromChild]] = {
    "report": _read_reported,
    "flush": _read_flush,
    "end": _read_ended,
}


def _verdict_json(verdict: Verdict | None) -> dict[str, str] | None:
    return None if verdict is None else {key: str(text) for key, text in asdict(verdict).items()}


def _read_verdict(header: Mapping[str, str] | None) -> Verdict | None:
    if header is None:
        return None
    return Verdict(Action(header["action"]), Reason(header["reason"]), header["by"])


def _typed(kind: type[_T], value: Any) -> _T:
    if not isinstance(value, kind) or isinstance(value, bool):
        raise FrameError(f"{value!r} is no {kind.__name__}")
    return value


def _optional(kind: type[_T], value: Any) -> _T | None:
    return None if value is None else _typed(kind, value)


def _matching(pattern: re.Pattern[str], value: Any) -> str:
    if pattern.fullmatch(_typed(str, value)) is None:
        raise FrameError(f"{value!r} does not match {pattern.pattern}")
    return str(value)
