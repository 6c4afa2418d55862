-- studydb/operations/claim.py claim: Claim a study's first PENDING trial, leaving out trials
--   with their own requests for resources. Imported by studydb/lease/acquire.py,
--   studydb/operations/ask.py, studydb/operations/claim_fitting.py.

-- studydb/store/single_statement.py claim: Give the first runnable trial (PENDING and ready) of
--   a study to a worker; start an attempt.
WITH runnable AS (
    SELECT trial.id, trial.config IS NOT NULL AS has_config
    FROM trial
    WHERE trial.study_id = :study
        AND trial.state = 'PENDING'
        AND trial.ready
        AND trial.resource_class = ''
        AND (SELECT study.status FROM study WHERE study.id = :study) = 'RUNNING'
        AND (trial.priority, trial.number) > (:after_priority, :after_number)
    ORDER BY trial.priority, trial.number
    LIMIT 1
    FOR NO KEY UPDATE SKIP LOCKED
),
entered AS (
    UPDATE study
    SET n_running=(study.n_running + 1)
    WHERE study.id = :study
        AND study.status = 'RUNNING'
        AND (study.max_concurrent IS NULL OR study.n_running < study.max_concurrent)
        AND (SELECT runnable.has_config FROM runnable)
    RETURNING study.id
),
main AS (
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
        AND EXISTS (SELECT FROM entered)
    RETURNING trial.id, trial.uuid, trial.number, trial.priority, trial.bracket, trial.attempt,
        trial.name, trial.params, trial.config, trial.draw, trial.checkpoint_id,
        trial.time_total_s, trial.has_tags, trial.resource_class
),
begun AS (
    INSERT INTO attempt (trial_id, attempt, study_id, token, worker_id, config, restored_id,
        start_step, live_through, flush_no, started_at)
    SELECT main.id, main.attempt AS main_1, :study_id, :token, :worker_id, CASE WHEN
        jsonb_typeof(main.config) = 'object' THEN main.config ELSE '{}' END, main.checkpoint_id
        AS main_2, coalesce((
        SELECT checkpoint.step
        FROM checkpoint
        WHERE checkpoint.id = main.checkpoint_id
    ), 0) + 1, 4611686018427387904, 0, coalesce(CAST(:now AS timestamptz), clock_timestamp())
    FROM main
),
counted AS (
    UPDATE counter
    SET pending=(counter.pending + :by_pending),
        running=(counter.running + :by_running),
        paused=(counter.paused + 0),
        terminated=(counter.terminated + 0),
        error=(counter.error + 0)
    WHERE counter.study_id = :study
        AND counter.shard = :shard_no
        AND EXISTS (SELECT FROM main)
)
SELECT *
FROM main
WHERE set_config('synchronous_commit', 'off', true) = 'off';
-- Plan:
--   CTE Scan on main
--     Filter: (set_config('synchronous_commit'::text, 'off'::text, true) = 'off'::text)
--     CTE runnable
--       ->  Limit
--             InitPlan 1
--               ->  Index Scan using study_pkey on study
--                     Index Cond: (id = $1)
--             ->  LockRows
--                   ->  Result
--                         One-Time Filter: ((InitPlan 1).col1 = 'RUNNING'::text)
--                         ->  Index Scan using trial_claim on trial
--                               Index Cond: ((study_id = $1) AND (resource_class = ($2)::text) AND (ROW(priority, number) > ROW($3, $4)))
--                               Filter: (ready AND (state = 'PENDING'::text))
--     CTE entered
--       ->  Update on study study_1
--             InitPlan 3
--               ->  CTE Scan on runnable
--             ->  Result
--                   One-Time Filter: (InitPlan 3).col1
--                   ->  Index Scan using study_pkey on study study_1
--                         Index Cond: (id = $1)
--                         Filter: (((max_concurrent IS NULL) OR (n_running < max_concurrent)) AND (status = 'RUNNING'::text))
--     CTE main
--       ->  Update on trial trial_1
--             InitPlan 5
--               ->  CTE Scan on runnable runnable_1
--             InitPlan 6
--               ->  CTE Scan on entered
--             ->  Result
--                   One-Time Filter: (InitPlan 6).col1
--                   ->  Index Scan using trial_pkey on trial trial_1
--                         Index Cond: (id = (InitPlan 5).col1)
--                         Filter: (state = ($9)::text)
--     CTE begun
--       ->  Insert on attempt
--             ->  Subquery Scan on "*SELECT*"
--                   ->  CTE Scan on main main_1
--                         SubPlan 8
--                           ->  Index Scan using checkpoint_pkey on checkpoint
--                                 Index Cond: (id = main_1.checkpoint_id)
--     CTE counted
--       ->  Update on counter
--             InitPlan 10
--               ->  CTE Scan on main main_2
--             ->  Result
--                   One-Time Filter: (InitPlan 10).col1
--                   ->  Index Scan using counter_pkey on counter
--                         Index Cond: ((study_id = $1) AND (shard = $18))
