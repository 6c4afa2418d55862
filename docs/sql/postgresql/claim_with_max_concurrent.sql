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
        AND trial.ready
        AND trial.resource_class = ''
        AND (SELECT study.status FROM study WHERE study.id = :study) = 'RUNNING'
    ORDER BY trial.priority, trial.number
    LIMIT 1
    FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE trial
SET state='RUNNING',
    attempt=(trial.attempt + 1),
    token=:to_token,
    flush_no=0,
    worker_id=:to_worker,
    lease_s=:to_lease_s,
    lease_expires_at=(coalesce(CAST(:now AS timestamptz), clock_timestamp()) +
        make_interval(secs => :to_lease_s)),
    suspect_at=NULL,
    started_at=coalesce(trial.started_at, coalesce(CAST(:now AS timestamptz),
        clock_timestamp()))
WHERE trial.id = (SELECT runnable.id FROM runnable)
    AND trial.state = 'PENDING'
RETURNING trial.id, trial.uuid, trial.number, trial.priority, trial.bracket, trial.attempt,
    trial.params, trial.checkpoint_id, trial.time_total_s;
-- Plan:
--   Update on trial
--     CTE runnable
--       ->  Limit
--             InitPlan 1
--               ->  Index Scan using study_pkey on study
--                     Index Cond: (id = $1)
--             ->  LockRows
--                   ->  Result
--                         One-Time Filter: ((InitPlan 1).col1 = ($5)::text)
--                         ->  Index Scan using trial_claim on trial trial_1
--                               Index Cond: ((study_id = $1) AND (resource_class = ($4)::text) AND (ROW(priority, number) > ROW($2, $3)))
--                               Filter: (ready AND (state = 'PENDING'::text))
--     InitPlan 3
--       ->  CTE Scan on runnable
--     ->  Index Scan using trial_pkey on trial
--           Index Cond: (id = (InitPlan 3).col1)
--           Filter: (state = ($15)::text)

-- studydb/store/attempts.py insert: Insert the attempt of a claim.
INSERT INTO attempt (trial_id, attempt, study_id, token, worker_id, config, restored_id,
    start_step, live_through, flush_no, started_at)
SELECT :trial_id, :attempt, :study_id, :token, :worker_id, :config, :restored_id, :start_step,
    4611686018427387904, 0, coalesce(CAST(:now AS timestamptz), clock_timestamp());
-- Plan:
--   Insert on attempt
--     ->  Subquery Scan on "*SELECT*"
--           ->  Result

-- studydb/store/studies.py enter: Count one more RUNNING trial; False if `max_concurrent`
--   trials are already RUNNING.
UPDATE study
SET n_running=(study.n_running + 1)
WHERE study.id = :study
    AND (study.max_concurrent IS NULL OR study.n_running < study.max_concurrent)
RETURNING study.id;
-- Plan:
--   Update on study
--     ->  Index Scan using study_pkey on study
--           Index Cond: (id = $2)
--           Filter: ((max_concurrent IS NULL) OR (n_running < max_concurrent))

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
-- Plan:
--   Update on counter
--     ->  Index Scan using counter_pkey on counter
--           Index Cond: ((study_id = $6) AND (shard = $7))

COMMIT;
