-- studydb/operations/recover.py recover: Wake trials whose back-off is over, mark expired
--   leases, and recover lost trials. Imported by studydb/lease/acquire.py,
--   studydb/lease/loop.py, studydb/study/loading.py, studydb/worker/supervisor.py.

-- studydb/store/sweeps.py any_due: Tell, without a lock, whether `wake`, `suspect`, `unpause`
--   or `lost` may find a trial.
SELECT coalesce((
    SELECT trial.ready_at
    FROM trial
    WHERE trial.study_id = :study
        AND trial.state = 'PENDING'
        AND NOT trial.ready
    ORDER BY trial.ready_at
    LIMIT 1
) <= coalesce(CAST(:now AS timestamptz), clock_timestamp()), false) OR (
    SELECT trial.id
    FROM trial
    WHERE trial.study_id = :study
        AND trial.state = 'RUNNING'
        AND trial.lease_expires_at < coalesce(CAST(:now AS timestamptz), clock_timestamp())
    LIMIT 1
) IS NOT NULL OR (
    SELECT trial.id
    FROM trial
    WHERE trial.study_id = :study
        AND trial.state = 'PAUSED'
        AND trial.paused_by = 'study'
        AND (SELECT study.status FROM study WHERE study.id = :study) = 'RUNNING'
    LIMIT 1
) IS NOT NULL AS is_due;
-- Plan:
--   Result
--     InitPlan 1
--       ->  Limit
--             ->  Index Only Scan using trial_backoff on trial
--                   Index Cond: (study_id = $1)
--     InitPlan 2
--       ->  Limit
--             ->  Index Scan using trial_running on trial trial_1
--                   Index Cond: (study_id = $1)
--                   Filter: (lease_expires_at < COALESCE($3, clock_timestamp()))
--     InitPlan 4
--       ->  Limit
--             InitPlan 3
--               ->  Index Scan using study_pkey on study
--                     Index Cond: (id = $1)
--             ->  Result
--                   One-Time Filter: ((InitPlan 3).col1 = ($5)::text)
--                   ->  Index Scan using trial_paused_by_study on trial trial_2
--                         Index Cond: (study_id = $1)
