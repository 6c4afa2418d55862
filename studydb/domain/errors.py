"""
The errors of studydb; the class of an error says what the caller can do.

```
StudydbError                     exit code 1 on the command line
├── UsageError (ValueError)      exit code 2: the call is wrong, correct it
│   ├── InvalidSpec              an argument is wrong, such as a space, scheduler, rule or number
│   ├── InvalidReport            metrics that cannot be stored; the trial fails
│   ├── InvalidData              a value that the database cannot hold; the trial fails
│   └── InvalidName              a name, a tag or a note that breaks a rule
├── NotFound (LookupError)       what the call names does not exist
│   ├── UnknownStudy
│   └── UnknownTrial
├── StudyExists                  choose another name or load the study
├── TrialExists                  choose another name for the trial
├── BudgetSpent                  extend the study
├── NoResults                    no trial has a value yet
├── NotAllowed                   the state of a trial, study or database forbids the call
├── StudyFailed                  exit code 3: correct the code, then resume or create a new study
├── LeaseLost                    discard the local run
├── StorageError                 look at the database, not at the call
│   ├── StorageMissing           create the database or its tables
│   ├── StorageTransient         make the same call again: it may have succeeded
│   │   ├── StorageUnreachable   start the database, or correct the URL; buffered results are kept
│   │   └── StorageBusy          a deadlock, a lock held too long, no free connection, a full disk
│   ├── StorageDenied            log in with the right that the message names
│   ├── StorageReadOnly          open the database for writing
│   ├── SchemaTooOld             `studydb db upgrade`
│   └── SchemaTooNew             upgrade studydb
├── HostError                    this machine lacks what the message names: provide it
├── TrainableError               the user's code cannot be found or called
│   └── Untrusted                sign the function, or allow imports of its module
└── CheckpointError              a checkpoint is missing, damaged, or cannot be saved or read
TrialStopped (BaseException)     return from the function: the trial is stopped or paused
StudyDiffers (UserWarning)       the loaded study differs from what create_study was given
```
"""


class StudydbError(Exception):
    """The base of all errors of studydb; the command line exits with `exit_code`."""

    exit_code = 1


class UsageError(StudydbError, ValueError):
    """The call is wrong; nothing was written."""

    exit_code = 2


class InvalidSpec(UsageError):
    """An argument that is wrong: a space, scheduler, searcher or rule, a setting or a number."""


class InvalidReport(UsageError):
    """A report that cannot be stored, for example because it lacks the study's metric."""


class InvalidData(UsageError):
    """A value that the database cannot hold: a text with a NUL, a number too large."""


class InvalidName(UsageError):
    """A name of a study, trial or metric, a tag or a note, that breaks a rule."""


class NotFound(StudydbError, LookupError):
    """What the call names does not exist, for example a study, a worker or a checkpoint."""


class UnknownStudy(NotFound):
    """This database has no study of that name."""


class UnknownTrial(NotFound):
    """This study has no trial of that number or name."""


class StudyExists(StudydbError):
    """A study of that name exists."""


class TrialExists(StudydbError):
    """The study has a trial of that name."""


class BudgetSpent(StudydbError):
    """The study has `num_trials` trials; `extend` allows more."""


class NoResults(StudydbError):
    """No trial has a value yet; NaN and the values of invalidated trials do not count."""


class NotAllowed(StudydbError):
    """The state of the trial, the study or the database forbids the call."""


class StudyFailed(StudydbError):
    """The study has paused itself, or it has ended with errors and without a successful trial."""

    exit_code = 3


class LeaseLost(StudydbError):
    """
    The attempt no longer holds its trial; discard the local run.

    Attributes:
        number: The trial's number within its study.
        attempt: The number of the attempt whose write was refused.
    """

    def __init__(self, *, number: int, attempt: int) -> None:
        self.number, self.attempt = number, attempt
        super().__init__(
            f"Trial {number} is no longer held by attempt {attempt}. The trial has ended, or "
            "the lease ran out and another worker may have the trial; discard the local run."
        )


class StorageError(StudydbError):
    """The database has a problem; the call is correct."""


class StorageMissing(StorageError):
    """There is no such database, it cannot be opened, or it has no studydb schema."""


class StorageTransient(StorageError):
    """A temporary fault. Make the same call again; it may have succeeded already."""


class StorageUnreachable(StorageTransient):
    """The database does not answer."""


class StorageBusy(StorageTransient):
    """A deadlock, a lock that others hold too long, no free connection, a full disk."""


class StorageDenied(StorageError):
    """The login lacks a right that the call needs."""


class StorageReadOnly(StorageError):
    """The database can be read but not written."""


class SchemaTooOld(StorageError):
    """The schema is older than this studydb."""


class SchemaTooNew(StorageError):
    """The schema is newer than this studydb."""


class HostError(StudydbError):
    """This machine lacks what a worker needs, such as processes, open files or disk space."""


class TrainableError(StudydbError):
    """The user's code (a function, a class or a program) cannot be found or called."""


class Untrusted(TrainableError):
    """No key of this user has signed the code, and no option of the worker allows its import."""


class CheckpointError(StudydbError):
    """A checkpoint is missing, damaged, or cannot be saved, read or removed."""


class TrialStopped(BaseException):
    """The trial is stopped or paused: clean up and return. `except Exception` does not catch it."""


class StudyDiffers(UserWarning):
    """The loaded study has other specs or settings than `create_study` was given."""
