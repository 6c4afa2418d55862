"""The job: the first message on an attempt's channel, which tells a process what to run."""

import json
from collections.abc import Mapping
from functools import partial
from typing import Any

from msgspec import Struct, field, msgpack, structs

from studydb.artifacts import INLINE, INLINE_LIMIT_BYTES, Stores
from studydb.artifacts.checkpoint_records import Restore
from studydb.child.channel import Frame, FrameError
from studydb.domain.objective import Objective
from studydb.domain.trainable import Trainable


class TrainableImport(Struct, frozen=True):
    """
    The trainable that a process imports, and what the import needs.

    Attributes:
        study_uuid: The study's UUID, which seeds the random generators for the import.
        trainable: The trainable; the worker has checked that it is trusted.
        signed: True if a key of this user signed the trainable. False if only `--allow-import`
            permits the trainable: then the function must be defined in the package of the module
            that the import path names.
        workdirs: The directories to search for the trainable: the worker's working directory, which
            the process enters before the import, and, if `signed`, the study's working
            directory.
        stores: The study's stores, for the objects that are bound to the trainable.
        environment: Variables that the process sets before the import, such as those of the visible
            devices. A process that has imported the trainable runs only attempts with the same
            variables.
        holds_devices: Whether the attempt holds devices; for a template, whether the attempts that
            are forked from it hold devices.
    """

    study_uuid: str
    trainable: Trainable
    signed: bool
    workdirs: tuple[str, ...]
    stores: Stores = field(default_factory=partial(Stores, INLINE))
    environment: dict[str, str] = field(default_factory=dict)
    holds_devices: bool = False


class Job(Struct, frozen=True):
    """
    One attempt of a trial, as the attempt's process receives it.

    Attributes:
        config: The first argument of the user's function.
        scratch: A directory on this host for this attempt; the worker removes it at the end.
        name, tags: The name and the tags that the trial had when it was claimed.
        directory: The directory that the trial keeps on this host; made when it is first used. If
            this path is "", a directory in `scratch` is used instead.
        runs_in_directory: Whether `directory` is the working directory of the user's code.
        study_name: The study's name, for the environment of a command.
        grace_s: How long a command that is asked to end may take before it is killed.
        store: The URL of the store for checkpoints, or "inline:".
        time_total_s: Seconds of training that earlier attempts have reported.
        rules: The study's stop rules in their stored form; after a report that may hit a rule, the
            trial waits for the worker's answer.
        next_decision_step: Reports at this step or later wait for the worker's answer; None if
            the scheduler judges no further report.
        last_step: The step at which the scheduler completes a trial; None if there is no such step.
        may_keep: Whether the process may wait for another attempt after this attempt.
        cache_bytes: The limit of this host's cache of remote checkpoints; 0 for no cache.
        memory_bytes: The limit of the attempt's memory; None for no limit.
        cgroup: The folder of the cgroup with this limit; the process enters the cgroup. None to
            limit each process of the attempt instead.
    """

    to_import: TrainableImport
    trial_uuid: str
    number: int
    attempt: int
    config: Mapping[str, Any]
    seed: int
    objective: Objective
    scratch: str
    store: str
    name: str | None = None
    tags: tuple[str, ...] = ()
    directory: str = ""
    runs_in_directory: bool = False
    study_name: str = ""
    grace_s: float = 30.0
    inline_limit_bytes: int = INLINE_LIMIT_BYTES
    rules: tuple[dict[str, Any], ...] = ()
    restore: Restore | None = None
    time_total_s: float = 0.0
    next_decision_step: int | None = None
    last_step: int | None = None
    may_keep: bool = False
    cache_bytes: int = 0
    memory_bytes: int | None = None
    cgroup: str | None = None

    @property
    def start_step(self) -> int:
        """The restored checkpoint's step, else 0. By default the first report is one step later."""
        return 0 if self.restore is None else self.restore.step

    def with_scratch(self, scratch: str) -> "Job":
        """Copy the job, with the scratch directory of the process that will run it."""
        return structs.replace(self, scratch=scratch)

    def with_source(self, source: bytes | None, **others: Any) -> "Job":
        """Copy the job; replace the trainable's source and the fields `others`; drop signatures."""
        trainable = structs.replace(self.to_import.trainable, source=source, signatures={})
        return structs.replace(
            self, to_import=structs.replace(self.to_import, trainable=trainable), **others
        )


class _Bulk(Struct, frozen=True):
    config: bytes  # JSON, because MessagePack's integers have at most 64 bits
    source: bytes | None
    checkpoint: bytes | None


_read_job = msgpack.Decoder(Job).decode
_read_bulk = msgpack.Decoder(_Bulk).decode


def write_job(job: Job) -> Frame:
    """Encode a job; config, source and checkpoint are in the payload."""
    restore = job.restore
    small = job.with_source(
        None, config={}, restore=restore and structs.replace(restore, data=None)
    )
    bulk = _Bulk(
        json.dumps(job.config, separators=(",", ":")).encode(),
        job.to_import.trainable.source,
        restore.data if restore else None,
    )
    return Frame(msgpack.encode(small), msgpack.encode(bulk))


def read_job(frame: Frame) -> Job:
    """Decode a job, or raise FrameError."""
    try:
        job, bulk = _read_job(frame.header), _read_bulk(frame.payload)
        return job.with_source(
            bulk.source,
            config=json.loads(bulk.config),
            restore=job.restore and structs.replace(job.restore, data=bulk.checkpoint),
        )
    except ValueError as cause:
        raise FrameError(f"The job cannot be read: {cause!r}.") from cause
