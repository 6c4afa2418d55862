"""
The messages that a child and its worker exchange after the job (see job.py).

```
child → worker                                       worker → child
began    the user's function starts now              answer   to any message that has an id
report   a result, a checkpoint's outcome, or both   stop     a verdict, or its withdrawal
flush    asks to store all earlier reports           lost     the lease is lost
upload   asks to record that an upload begins        preempt  the worker is stopping
end      how the code ended (the last message)       next     run another attempt, on a new channel
```
The child waits for the answer to a message with an id. The worker answers a report once its result
and the checkpoint's row are stored. The worker buffers the result of a report without an id. The
worker does not trust the child: `read_from_child` checks each message. Names in the code call the
worker "supervisor".
"""

import math
from enum import StrEnum

from msgspec import Struct, msgpack, structs

from studydb.artifacts import INLINE, digest_of
from studydb.artifacts.checkpoint_records import Count, Saved, Upload
from studydb.child.channel import Frame, FrameError, decode
from studydb.domain.failures import MESSAGE_BYTES, Failure, bounded, bounded_failure
from studydb.domain.life.decisions import Verdict
from studydb.domain.metrics import Result


class End(StrEnum):
    """How the user's code ended, or why it did not start."""

    COMPLETED = "completed"
    FAILED = "failed"
    STOPPED = "stopped"
    """The code ended because of a verdict."""
    PREEMPTED = "preempted"
    """The code ended because of a signal such as SIGTERM."""
    GIVEN_BACK = "given back"
    """
    A command was ended by SIGINT or SIGTERM, exited with a code that asks for another attempt, or
    could not be started on this host.
    """
    LOST = "lost"
    """The code ended because the attempt no longer held its trial."""
    UNRESTORABLE = "unrestorable"
    """The code did not start: the bytes of the checkpoint are missing or corrupt."""
    UNPREPARED = "unprepared"
    """The code could not start on this host; for example, a module, disk space or the store is
    missing."""
    NOT_REUSED = "not reused"
    """A process that has run an earlier trial declines this trial; another process must run it."""


class Reported(Struct, frozen=True, tag="report"):
    """
    The result of a step, the outcome of saving a checkpoint, or both.

    Attributes:
        id: The id that the answer repeats; None if the child does not wait for an answer.
        result: The metrics; None if the message is only about a checkpoint.
        saved: The record of a checkpoint whose bytes are stored, or come with this message.
        artifact_error: Why the user's checkpoint could not be stored.
    """

    id: Count | None
    result: Result | None
    saved: Saved | None = None
    artifact_error: str | None = None


class Began(Struct, frozen=True, tag="began"):
    """
    The user's function starts; `at_s` is the time by the host's monotonic clock.

    Attributes:
        warm_with_devices: Whether the trainable allows trials that hold devices to start warm.
    """

    at_s: float
    warm_with_devices: bool = False


class FlushAsked(Struct, frozen=True, tag="flush"):
    """The child waits until all earlier reports are stored."""

    id: Count


class UploadAsked(Struct, frozen=True, tag="upload"):
    """The child waits until the row of an upload is stored, or until it must use another store."""

    id: Count
    upload: Upload


class Ended(Struct, frozen=True, tag="end"):
    """The user's code has ended. Its process ends next, or waits for another attempt."""

    end: End
    failure: Failure | None = None
    config_unread: bool = False
    """Whether the config is not empty and the code certainly never read it."""
    later: bool = False
    """Whether a trial that was given back waits before its next attempt."""
    kept: bool = False
    """Whether the process waits for another attempt."""
    not_kept: str | None = None
    """Why the process of a class with `reset_config` does not wait for another attempt."""
    handles_sigterm: bool = False
    """Whether the user's code handles SIGTERM itself, and may have ended because of it."""


class Answered(Struct, frozen=True, tag="answer"):
    """
    The worker has handled the message with this id.

    If `lost` is False, the worker has stored what the message asks to store, with four exceptions:
    a result that a verdict refuses, a checkpoint that the study's quota refuses, and the row of an
    upload if the study's folder in the store cannot be made, or if `store` is not None.

    Attributes:
        store: The URL of the store in which the child must save from now on; the child asks again
            for an upload to this store. None if the store stays the same. It changes only if the
            previous store is a directory without the study's folder, and the study has another
            store now.
    """

    id: int
    verdict: Verdict | None = None
    next_decision_step: int | None = None
    lost: bool = False
    store: str | None = None


class StopNotice(Struct, frozen=True, tag="stop"):
    """The next report must raise TrialStopped for `verdict`; None withdraws an earlier verdict."""

    verdict: Verdict | None


class LostNotice(Struct, frozen=True, tag="lost"):
    """The attempt no longer holds its trial; the next report must raise LeaseLost."""


class PreemptNotice(Struct, frozen=True, tag="preempt"):
    """The worker is stopping; the next report must raise TrialStopped."""


class NextAttempt(Struct, frozen=True, tag="next"):
    """The process runs another attempt: with this message come its channel, stdout and stderr."""


FromChild = Reported | FlushAsked | UploadAsked | Ended | Began
FromSupervisor = Answered | StopNotice | LostNotice | PreemptNotice | NextAttempt

_encode = msgpack.Encoder().encode
_from_child: msgpack.Decoder[FromChild] = msgpack.Decoder(FromChild)
_from_supervisor: msgpack.Decoder[FromSupervisor] = msgpack.Decoder(FromSupervisor)


def write(message: FromChild | FromSupervisor) -> Frame:
    """Encode a message; the frame's payload is the bytes of an inline checkpoint, if any."""
    if not isinstance(message, Reported) or message.saved is None or message.saved.data is None:
        return Frame(_encode(message))
    saved = structs.replace(message.saved, data=None)
    return Frame(_encode(structs.replace(message, saved=saved)), message.saved.data)


def read_from_child(frame: Frame) -> FromChild:
    """
    Decode and check a child's message; its texts are cut to the limits of an attempt's row.

    Raises:
        FrameError: The frame is not a message of a child.
    """
    try:
        return _checked(_from_child.decode(frame.header), frame.payload)
    except FrameError:
        raise
    except Exception as cause:  # a decoder may raise anything for hostile bytes
        why = f"{type(cause).__name__}: {cause}"
        text = f"The trial's process sent a frame that is not a message: {why}."
        raise FrameError(text) from cause


def _checked(message: FromChild, payload: bytes) -> FromChild:
    match message:
        case Reported(result=Result(time_total_s=float(time_s))) if not 0 <= time_s < math.inf:
            raise FrameError(f"The trial's process sent a time of {time_s} s.")
        case Reported(saved=None, artifact_error=None):  # nearly all messages
            return message
        case Reported(saved=saved, artifact_error=error):
            return structs.replace(
                message,
                saved=saved and _with_bytes(saved, payload),
                artifact_error=error and bounded(error, MESSAGE_BYTES),
            )
        case Ended(failure=failure, not_kept=why):
            return structs.replace(
                message,
                failure=failure and bounded_failure(failure),
                not_kept=why and bounded(why, MESSAGE_BYTES),
            )
    return message


def _with_bytes(saved: Saved, payload: bytes) -> Saved:
    if saved.url != INLINE:
        return structs.replace(saved, data=None)
    if digest_of(payload) != saved.digest:
        raise FrameError("The trial's process sent a checkpoint that differs from its digest.")
    return structs.replace(saved, data=payload)


def read_from_supervisor(frame: Frame) -> FromSupervisor:
    """Decode a message of the worker, or raise FrameError."""
    return decode(_from_supervisor, frame, sender="supervisor")
