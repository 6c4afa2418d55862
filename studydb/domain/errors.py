"""
What can go wrong; the class says what the caller should do.

```
StudydbError                     exit code 1 on the command line
├── UsageError (ValueError)      exit code 2: the call is wrong, correct it
│   ├── InvalidSpec              a space, scheduler, searcher or rule cannot be understood
│   ├── InvalidReport            metrics that cannot be stored; the trial fails
│   ├── InvalidData              a value that the database cannot hold; the trial fails
│   └── InvalidName              a study or metric name outside the rules
├── NotFound (LookupError)       nothing by that name or number
│   ├── UnknownStudy
│   └── UnknownTrial
├── StudyExists                  choose another name or load the study
├── BudgetSpent                  extend the study
├── NoResults                    nothing to be best of yet
├── NotAllowed                   the trial or study is in a state that forbids it
├── StudyFailed                  exit code 3: correct the trainable, then resume or create anew
├── LeaseLost                    discard the local run
├── StorageError                 look at the database, not at the call
│   ├── StorageMissing           create it
│   ├── StorageTransient         make the same call again: it may have succeeded
│   │   ├── StorageUnreachable   start it, or correct the URL; what was buffered is kept
│   │   └── StorageBusy          a deadlock, a lock not had in time, a full disk
│   ├── StorageReadOnly          give the right to write
│   ├── SchemaTooOld             `studydb db upgrade`
│   └── SchemaTooNew             upgrade studydb
├── HostError                    this machine lacks processes, files, disk: raise the limit
├── TrainableError               the user's function cannot be found or called
│   └── Untrusted                sign it or allow it
└── CheckpointError              bytes are missing, corrupt or cannot be written
TrialStopped (BaseException)     return: a verdict stands (no bare `except` swallows it)
StudyDiffers (UserWarning)       a study goes on as it was created, not as it was asked for now
```
"""


class StudydbError(Exception):
    """The root of what studydb raises; `exit_code` is the command line's."""

    exit_code = 1


class UsageError(StudydbError, ValueError):
    """The call is wrong; nothing was written."""

    exit_code = 2


class InvalidSpec(UsageError):
    """A space, scheduler, searcher or rule that cannot be understood."""


class InvalidReport(UsageError):
    """Metrics that cannot be stored: no study metric, not a number, a step that does not rise."""


class InvalidData(UsageError):
    """A value that the database cannot hold: a text with a NUL, a number too large."""


class InvalidName(UsageError):
    """A study or metric name outside the rules."""


class NotFound(StudydbError, LookupError):
    """Nothing by that name or number."""


class UnknownStudy(NotFound):
    """No study of that name in this database."""


class UnknownTrial(NotFound):
    """No trial of that number in this study."""


class StudyExists(StudydbError):
    """The name is taken."""


class BudgetSpent(StudydbError):
    """`num_trials` trials exist; `extend` makes room."""


class NoResults(StudydbError):
    """No trial of the study has a value yet."""


class NotAllowed(StudydbError):
    """The trial or study is in a state that forbids the request."""


class StudyFailed(StudydbError):
    """The study is over, or has paused itself, and no trial has completed."""

    exit_code = 3


class LeaseLost(StudydbError):
    """
    The attempt no longer holds its trial; discard the local run.

    Attributes:
        number: The trial's number within its study.
        attempt: The attempt that was refused.
    """

    def __init__(self, *, number: int, attempt: int) -> None:
        """Name the trial and the attempt that was refused."""
        self.number, self.attempt = number, attempt
        super().__init__(
            f"Trial {number} is no longer held by attempt {attempt}. "
            "It ended, or its lease ran out and another worker has it; discard the local run."
        )


class StorageError(StudydbError):
    """The database, not the call, needs attention."""


class StorageMissing(StorageError):
    """There is no such database, or it holds no studydb schema."""


class StorageTransient(StorageError):
    """A fault that passes; make the same call again, which may have succeeded already."""


class StorageUnreachable(StorageTransient):
    """The database does not answer."""


class StorageBusy(StorageTransient):
    """A deadlock, a lock that was not had in time, no free connection, a full disk."""


class StorageDenied(StorageError):
    """The login lacks a right that this takes."""


class StorageReadOnly(StorageError):
    """The database can be read but not written."""


class SchemaTooOld(StorageError):
    """The schema is older than this studydb."""


class SchemaTooNew(StorageError):
    """The schema is newer than this studydb."""


class HostError(StudydbError):
    """This machine lacks what a worker needs: processes, open files, room on a disk."""


class TrainableError(StudydbError):
    """The user's function cannot be found or called."""


class Untrusted(TrainableError):
    """What the study names was not signed by a key of this user's."""


class CheckpointError(StudydbError):
    """A checkpoint's bytes are missing, corrupt or cannot be written."""


class TrialStopped(BaseException):
    """A verdict stands: clean up and return. No Exception, so that `except` lets it by."""


class StudyDiffers(UserWarning):
    """A study goes on as it was created, though other limits or specs were asked for."""
