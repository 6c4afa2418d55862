-- studydb/operations/save.py save: Record a checkpoint, which the trial's next attempt will
--   restore. Imported by studydb/lease/held.py.

BEGIN;

-- studydb/store/leases.py hold: Lock the trial if this attempt still holds it; else return
--   None.
SELECT trial.n_results, trial.last_step, trial.last_value, trial.best_value, trial.best_step,
    trial.best_score, trial.flush_no, trial.failures, trial.losses, trial.request,
    trial.invalidated_at, trial.verdict, trial.verdict_reason, trial.verdict_by,
    trial.checkpoint_id, trial.checkpoint_step, trial.source_checkpoint_id, trial.time_total_s,
    trial.worker_id, (
    SELECT CASE WHEN (study.paused_by IN ('guard', 'rule', 'scheduler', 'requests')) THEN
        'RUNNING' WHEN (study.paused_by = 'limit') THEN 'SPENT' ELSE study.status END
    FROM study
    WHERE study.id = trial.study_id
) AS status
FROM trial
WHERE trial.id = :trial
    AND trial.attempt = :held_attempt
    AND trial.token = :held_token
    AND trial.state = 'RUNNING';

-- studydb/store/checkpoints.py insert: Insert the row of a checkpoint that an attempt saved, or
--   a person uploaded (attempt 0).
INSERT INTO checkpoint (uuid, study_id, trial_id, attempt, step, kind, url, digest, size_bytes,
    key_id, mac, data, pins, created_at)
VALUES (:uuid, :study_id, :trial_id, :attempt, :step, :kind, :url, :digest, :size_bytes,
    :key_id, :mac, :data, 0, :now)
RETURNING id, (
    SELECT study.checkpoint_bytes IS NOT NULL
    FROM study
    WHERE id = :study_id
) AS is_counted;

-- studydb/store/checkpoints.py set_to_restore: Store which checkpoint the next attempt of a
--   held trial restores, and reset `suspect_at`.
UPDATE trial
SET losses=:to_losses,
    suspect_at=NULL,
    checkpoint_id=:to_checkpoint,
    checkpoint_step=:to_step
WHERE trial.id = :trial;

-- studydb/store/checkpoints.py expire: Mark a trial's checkpoints as removed, except pinned
--   checkpoints and the newest two.
UPDATE checkpoint
SET data=NULL,
    removed_at=:now
WHERE checkpoint.trial_id = :trial
    AND checkpoint.id < (
        SELECT max(other.id) AS max_1
        FROM checkpoint AS other
        WHERE other.trial_id = :trial
            AND other.id < :newest
            AND other.removed_at IS NULL
    )
    AND checkpoint.pins = 0
    AND checkpoint.removed_at IS NULL
RETURNING id, uuid, trial_id, attempt, step, kind, url, digest, size_bytes, key_id, mac;

COMMIT;
