"""What one trial holds of its worker's host: devices, and a limited amount of memory."""

from msgspec import Struct, structs

from studydb.child.job import Job, TrainableImport
from studydb.devices import NO_DEVICES, DeviceGrant, MemoryLimit
from studydb.domain.failures import Failure
from studydb.worker.children import ChildProcess

_DEVICE_ERROR_SUFFIX = "OutOfMemoryError"
"""The end of the name of the error that PyTorch, for example, raises if a device is full."""

_REFUSED_ALLOCATIONS = ("can't allocate memory", "cannot allocate memory")
"""Parts of the messages of PyTorch's allocator and of ENOMEM; the exceptions' types differ."""


class Holdings(Struct, frozen=True):
    """The devices of a trial, and the limit of its memory; None for no limit."""

    grant: DeviceGrant = NO_DEVICES
    memory: MemoryLimit | None = None

    @property
    def may_be_kept(self) -> bool:
        """
        Whether the trial's process may run another trial afterwards.

        A process that waits for another trial would keep its devices, and its cgroup would count
        the memory that the earlier trial has used.
        """
        return not self.grant.names and self.memory is None

    def show(self, to_import: TrainableImport) -> TrainableImport:
        """Add to an import the variables that show the trial its devices."""
        return structs.replace(
            to_import,
            environment=self.grant.environment(),
            holds_devices=bool(self.grant.names),
        )

    def limit(self, job: Job) -> Job:
        """Add the trial's memory limit to its job."""
        if self.memory is None:
            return job
        cgroup = self.memory.cgroup
        return structs.replace(
            job,
            memory_bytes=self.memory.size_bytes,
            cgroup=None if cgroup is None else str(cgroup),
        )

    def give_to(self, child: ChildProcess) -> None:
        """Record that a child's process and its descendants use the devices."""
        if self.grant.names:
            self.grant.run_by(child.process.pid)

    def why_killed(self) -> str | None:
        """Say that the kernel has killed the trial at its memory limit; None if it has not."""
        if self.memory is None or not self.memory.was_exceeded():
            return None
        return f"The trial was out of memory: {self.memory}."

    def explain(self, failure: Failure | None) -> Failure | None:
        """Add the trial's memory limit to a failure that says that the host had no memory."""
        if failure is None or self.memory is None or not _is_out_of_memory(failure):
            return failure
        return structs.replace(failure, message=f"{failure.message}\nOut of memory: {self.memory}.")

    def release(self) -> str | None:
        """
        Give everything back; call this after the trial's processes have ended.

        Returns:
            A line for the worker to print, if a process still uses a device; else None.
        """
        try:
            return self.grant.release()
        finally:
            if self.memory is not None:
                self.memory.close()


NOTHING_HELD = Holdings()


def _is_out_of_memory(failure: Failure) -> bool:
    """Whether the host, and not a device, had no memory for an allocation."""
    if failure.type.endswith(_DEVICE_ERROR_SUFFIX):
        return False
    message = failure.message.lower()
    return failure.type.endswith("MemoryError") or any(
        text in message for text in _REFUSED_ALLOCATIONS
    )
