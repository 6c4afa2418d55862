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
    AND trial.state = 'RUNNING'
FOR NO KEY UPDATE OF trial;
-- Plan:
--   LockRows
--     ->  Index Scan using trial_pkey on trial
--           Index Cond: (id = $3)
--           Filter: ((attempt = $4) AND (token = ($5)::text) AND (state = ($6)::text))
--           SubPlan 1
--             ->  Index Scan using study_pkey on study
--                   Index Cond: (id = trial.study_id)

-- studydb/store/checkpoints.py insert: Insert the row of a checkpoint that an attempt saved, or
--   a person uploaded (attempt 0).
INSERT INTO checkpoint (uuid, study_id, trial_id, attempt, step, kind, url, digest, size_bytes,
    key_id, mac, data, pins, created_at)
VALUES (:uuid, :study_id, :trial_id, :attempt, :step, :kind, :url, :digest, :size_bytes,
    :key_id, :mac, :data, 0, coalesce(CAST(:now AS timestamptz), clock_timestamp()))
RETURNING checkpoint.id, (
    SELECT study.checkpoint_bytes IS NOT NULL
    FROM study
    WHERE study.id = :study_id
) AS is_counted;
-- Plan:
--   Insert on checkpoint
--     InitPlan 1
--       ->  Index Scan using study_pkey on study
--             Index Cond: (id = $2)
--     ->  Result

-- studydb/store/checkpoints.py set_to_restore: Store which checkpoint the next attempt of a
--   held trial restores, and reset `suspect_at`.
UPDATE trial
SET losses=:to_losses,
    suspect_at=NULL,
    checkpoint_id=:to_checkpoint,
    checkpoint_step=:to_step
WHERE trial.id = :trial;
-- Plan:
--   Update on trial
--     ->  Index Scan using trial_pkey on trial
--           Index Cond: (id = $5)

-- studydb/store/checkpoints.py expire: Mark a trial's checkpoints as removed, except pinned
--   checkpoints and the newest two.
UPDATE checkpoint
SET data=NULL,
    removed_at=coalesce(CAST(:now AS timestamptz), clock_timestamp())
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
RETURNING checkpoint.id, checkpoint.uuid, checkpoint.trial_id, checkpoint.attempt,
    checkpoint.step, checkpoint.kind, checkpoint.url, checkpoint.digest, checkpoint.size_bytes,
    checkpoint.key_id, checkpoint.mac;
-- Plan:
--   Update on checkpoint
--     InitPlan 1
--       ->  Aggregate
--             ->  Index Scan using ix_checkpoint_trial_id on checkpoint other
--                   Index Cond: (trial_id = $3)
--                   Filter: ((removed_at IS NULL) AND (id < $4))
--     ->  Index Scan using ix_checkpoint_trial_id on checkpoint
--           Index Cond: (trial_id = $3)
--           Filter: ((removed_at IS NULL) AND (id < (InitPlan 1).col1) AND (pins = $5))

COMMIT;
