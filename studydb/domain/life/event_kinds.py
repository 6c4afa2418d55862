"""The values of the columns `event.kind` and `event.actor`."""

from enum import StrEnum


class EventKind(StrEnum):
    """
    What happened to a trial, a worker or a study.

    FAILED and LOST are ends of attempts. The kinds from PAUSED to REINSTATED are people's requests
    about trials. The kinds that begin with STUDY are changes of the study's status.

    - REVISED: a person has changed the study's trainable.
    - CONFIG_NOT_READ: the trainable never reads its config, so the parameters have no effect.
    - QUOTA_REACHED: older checkpoints were removed, because a new checkpoint would have exceeded
      the quota.
    - SCHEDULER_IDLE: a custom scheduler has no work left.
    - JUDGED: a custom scheduler has said why it stops or pauses a trial.
    """

    CREATED = "created"
    EXTENDED = "extended"
    RENAMED = "renamed"
    REVISED = "revised"
    CHECKPOINTS_SET = "checkpoints set"
    LIMITS_SET = "limits set"
    RETENTION_SET = "retention set"
    RESOURCES_SET = "resources set"
    ENQUEUED = "enqueued"
    PAUSED = "paused"
    RESUMED = "resumed"
    STOPPED = "stopped"
    RETRIED = "retried"
    INVALIDATED = "invalidated"
    REINSTATED = "reinstated"
    CHECKPOINTS_DISCARDED = "checkpoints discarded"
    PINNED = "pinned"
    UNPINNED = "unpinned"
    NOTED = "noted"
    TAGGED = "tagged"
    STUDY_RUNNING = "study running"
    STUDY_PAUSED = "study paused"
    STUDY_STOPPED = "study stopped"
    PROMOTED = "promoted"
    RUNG_CLOSED = "rung closed"
    DRAINED = "drained"
    FAILED = "failed"
    LOST = "lost"
    CHECKPOINT_FAILED = "checkpoint failed"
    CHECKPOINT_CORRUPT = "checkpoint corrupt"
    QUOTA_REACHED = "quota reached"
    CONFIG_NOT_READ = "config not read"
    SCHEDULER_IDLE = "scheduler idle"
    JUDGED = "judged"
    RULE_MET = "stop rule met"
    RULE_NOT_COMPARED = "stop rule not compared"
    RECOVERY_FAILED = "recovery failed"
    MODEL_FAILED = "model failed"


class Actor(StrEnum):
    """
    Values of `event.actor` for events that no person caused; a person is stored as user@host.

    LIMIT also stands for a stop rule that stops the whole study. RULE stands for a custom rule: the
    rule has stopped a trial, or the study was paused because the rule did not decide.
    """

    WORKER = "worker"
    SWEEP = "sweep"
    GUARD = "guard"
    FAIL_FAST = "fail_fast"
    LIMIT = "limit"
    RULE = "rule"
    SCHEDULER = "scheduler"
    RESOURCE_FUNCTION = "requests"
