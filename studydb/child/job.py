"""What a child is told to do: the first message on its channel."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from studydb.artifacts import INLINE_LIMIT_BYTES
from studydb.child.channel import Frame, FrameError
from studydb.domain.records import Trainable
from studydb.domain.rules import Threshold
from studydb.domain.states import Mode


@dataclass(frozen=True, slots=True)
class Restore:
    """
    A checkpoint to start from; of a dict, the supervisor has checked the signature.

    Attributes:
        kind: "dict" or "directory".
        url: The object's, or "inline:".
        step: The last step that it contains.
        data: The bytes, if inline.
    """

    kind: str
    url: str
    digest: str
    step: int
    data: bytes | None = None


@dataclass(frozen=True, slots=True)
class Job:
    """
    One attempt of one trial, as its process receives it.

    Attributes:
        config: What the user's function is called with.
        trainable: What to run; the supervisor has checked that it is trusted.
        signed: Whether by a signature; else it is only allowed, and found with more care.
        workdirs: The worker's working directory, where the child runs, then the recorded one.
            Only the first if the trainable is not signed: the second is.
        scratch: A directory of the attempt's own, on a disk of this host, that the supervisor
            removes after it.
        store: The URL of the store for checkpoints, or "inline:".
        time_total_s: Seconds of training that earlier attempts have reported.
        next_decision_step: The step from which a report waits for its answer; None for never.
    """

    study_uuid: str
    trial_uuid: str
    number: int
    attempt: int
    config: Mapping[str, Any]
    seed: int
    metric: str
    mode: Mode
    trainable: Trainable
    signed: bool
    workdirs: tuple[str, ...]
    scratch: str
    store: str
    inline_limit_bytes: int = INLINE_LIMIT_BYTES
    rules: tuple[Threshold, ...] = ()
    restore: Restore | None = None
    time_total_s: float = 0.0
    next_decision_step: int | None = None

    @property
    def start_step(self) -> int:
        """The step that the first report counts on from."""
        return 0 if self.restore is None else self.restore.step


def write_job(job: Job) -> Frame:
    """Write a job; the payload is the trainable's source, then an inline checkpoint's bytes."""
    header = asdict(job)
    header["type"] = "job"
    source = job.trainable.source or b""
    header["trainable"].update(source=len(source), signatures={})
    data = b""
    if job.restore is not None:
        data = job.restore.data or b""
        header["restore"]["data"] = job.restore.data is not None
    return Frame(header, source + data)


def read_job(frame: Frame) -> Job:
    """
    Read a job.

    Raises:
        FrameError: It is none.
    """
    header = dict(frame.header)
    try:
        if header.pop("type") != "job":
            raise FrameError("The first message is no job.")
        trainable, restore = dict(header.pop("trainable")), header.pop("restore")
        middle = trainable.pop("source")
        source, data = frame.payload[:middle] or None, frame.payload[middle:]
        if restore is not None:
            restore = Restore(**{**restore, "data": data if restore["data"] else None})
        return Job(
            mode=Mode(header.pop("mode")),
            workdirs=tuple(header.pop("workdirs")),
            rules=tuple(Threshold(**rule) for rule in header.pop("rules")),
            trainable=Trainable(**trainable, source=source),
            restore=restore,
            **header,
        )
    except (KeyError, TypeError, ValueError) as cause:
        raise FrameError(f"The job cannot be read: {cause!r}.") from cause
