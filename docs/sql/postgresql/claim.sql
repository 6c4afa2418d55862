-- studydb/operations/claim.py claim: Claim the first PENDING trial of a study. Imported by
--   studydb/lease/acquire.py, studydb/operations/ask.py.

-- studydb/store/single_statement.py claim: Claim a trial and start its attempt; only on
--   PostgreSQL, and for a space without nesting.
WITH first AS (
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
        trial.params, trial.checkpoint_id, trial.time_total_s
),
begun AS (
    INSERT INTO attempt (trial_id, attempt, study_id, token, worker_id, config, restored_id,
        start_step, live_through, flush_no, started_at)
    SELECT (SELECT first.id FROM first), (SELECT first.attempt FROM first), :study_id, :token,
        :worker_id, :constants || CASE WHEN jsonb_typeof((SELECT first.params FROM first)) =
        'object' THEN (SELECT first.params FROM first) ELSE '{}' END, (SELECT
        first.checkpoint_id FROM first), coalesce((
        SELECT checkpoint.step
        FROM checkpoint
        WHERE checkpoint.id = (SELECT first.checkpoint_id FROM first)
    ), 0) + 1, 4611686018427387904, 0, coalesce(CAST(:now AS timestamptz), clock_timestamp())
    WHERE EXISTS (SELECT FROM first)
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
        AND EXISTS (SELECT FROM first)
)
SELECT *
FROM first
WHERE set_config('synchronous_commit', 'off', true) = 'off';
-- Plan:
--   CTE Scan on first
--     Filter: (set_config('synchronous_commit'::text, 'off'::text, true) = 'off'::text)
--     CTE first
--       ->  Update on trial trial_1
--             CTE runnable
--               ->  Limit
--                     InitPlan 1
--                       ->  Index Scan using study_pkey on study
--                             Index Cond: (id = $1)
--                     ->  LockRows
--                           ->  Result
--                                 One-Time Filter: ((InitPlan 1).col1 = 'RUNNING'::text)
--                                 ->  Index Scan using trial_claim on trial
--                                       Index Cond: ((study_id = $1) AND (resource_class = ($4)::text) AND (ROW(priority, number) > ROW($2, $3)))
--                                       Filter: (ready AND (state = 'PENDING'::text))
--             InitPlan 3
--               ->  CTE Scan on runnable
--             ->  Index Scan using trial_pkey on trial trial_1
--                   Index Cond: (id = (InitPlan 3).col1)
--                   Filter: (state = ($9)::text)
--     CTE begun
--       ->  Insert on attempt
--             ->  Subquery Scan on "*SELECT*"
--                   ->  Result
--                         One-Time Filter: (InitPlan 12).col1
--                         InitPlan 5
--                           ->  CTE Scan on first first_1
--                         InitPlan 6
--                           ->  CTE Scan on first first_2
--                         InitPlan 7
--                           ->  CTE Scan on first first_3
--                         InitPlan 8
--                           ->  CTE Scan on first first_4
--                         InitPlan 9
--                           ->  CTE Scan on first first_5
--                         InitPlan 11
--                           ->  Index Scan using checkpoint_pkey on checkpoint
--                                 Index Cond: (id = (InitPlan 10).col1)
--                                 InitPlan 10
--                                   ->  CTE Scan on first first_6
--                         InitPlan 12
--                           ->  CTE Scan on first first_7
--     CTE counted
--       ->  Update on counter
--             InitPlan 14
--               ->  CTE Scan on first first_8
--             ->  Result
--                   One-Time Filter: (InitPlan 14).col1
--                   ->  Index Scan using counter_pkey on counter
--                         Index Cond: ((study_id = $1) AND (shard = $19))
