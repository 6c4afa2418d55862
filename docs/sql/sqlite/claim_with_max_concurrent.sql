-- studydb/operations/claim.py claim: Claim the first PENDING trial of a study. Imported by
--   studydb/lease/acquire.py, studydb/operations/ask.py.

BEGIN;

-- studydb/store/claims.py claim: Give the first runnable trial (PENDING and ready) of a study
--   to a worker.
WITH runnable AS MATERIALIZED (
    SELECT trial.id AS id
    FROM trial
    WHERE trial.study_id = :study
        AND (trial.priority, trial.number) > (:after_priority, :after_number)
        AND trial.state = 'PENDING'
        AND trial.ready = 1
        AND trial.resource_class = ''
        AND (SELECT study.status FROM study WHERE study.id = :study) = 'RUNNING'
    ORDER BY trial.priority, trial.number
    LIMIT 1
    OFFSET 0
)
UPDATE trial
SET state='RUNNING',
    attempt=(trial.attempt + 1),
    token=:to_token,
    flush_no=0,
    worker_id=:to_worker,
    lease_s=:to_lease_s,
    lease_expires_at=strftime('%Y-%m-%d %H:%M:%f', :now, (:to_lease_s) || ' seconds'),
    suspect_at=NULL,
    started_at=coalesce(trial.started_at, :now)
WHERE trial.id = (SELECT runnable.id FROM runnable)
    AND trial.state = 'PENDING'
RETURNING id, uuid, number, priority, bracket, attempt, params, checkpoint_id, time_total_s;

-- studydb/store/attempts.py insert: Insert the attempt of a claim.
INSERT INTO attempt (trial_id, attempt, study_id, token, worker_id, config, restored_id,
    start_step, live_through, flush_no, started_at)
SELECT :trial_id, :attempt, :study_id, :token, :worker_id, :config, :restored_id, :start_step,
    4611686018427387904, 0, :now;

-- studydb/store/studies.py enter: Count one more RUNNING trial; False if `max_concurrent`
--   trials are already RUNNING.
UPDATE study
SET n_running=(study.n_running + 1)
WHERE study.id = :study
    AND (study.max_concurrent IS NULL OR study.n_running < study.max_concurrent)
RETURNING id;

-- studydb/store/counters.py move: Count `n` trials that move between states. The shard is the
--   last row that a transaction locks.
UPDATE counter
SET pending=(counter.pending + :by_pending),
    running=(counter.running + :by_running),
    paused=(counter.paused + 0),
    terminated=(counter.terminated + 0),
    error=(counter.error + 0)
WHERE counter.study_id = :study
    AND counter.shard = :shard_no;

COMMIT;
