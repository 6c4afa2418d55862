-- studydb/operations/recover.py recover: Wake trials whose back-off is over, mark expired
--   leases, and recover lost trials. Imported by studydb/lease/acquire.py,
--   studydb/lease/loop.py, studydb/study/loading.py, studydb/worker/supervisor.py.

BEGIN;

-- studydb/store/sweeps.py wake: Mark PENDING trials as ready once their back-off has passed.
WITH waited AS MATERIALIZED (
    SELECT trial.id AS id
    FROM trial
    WHERE trial.study_id = :study
        AND trial.state = 'PENDING'
        AND NOT trial.ready
        AND trial.ready_at <= coalesce(CAST(:now AS timestamptz), clock_timestamp())
    ORDER BY trial.id + 0
    LIMIT 100
    FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE trial
SET ready=true,
    ready_at=NULL
WHERE trial.id IN (SELECT waited.id FROM waited)
    AND trial.state = 'PENDING'
RETURNING trial.id;
-- Plan:
--   Update on trial
--     CTE waited
--       ->  Limit
--             ->  LockRows
--                   ->  Sort
--                         Sort Key: ((trial_1.id + $3))
--                         ->  Bitmap Heap Scan on trial trial_1
--                               Recheck Cond: ((study_id = $1) AND (state = 'PENDING'::text) AND (NOT ready))
--                               Filter: (ready_at <= COALESCE($2, clock_timestamp()))
--                               ->  Bitmap Index Scan on trial_backoff
--                                     Index Cond: (study_id = $1)
--     ->  Nested Loop
--           ->  HashAggregate
--                 Group Key: waited.id
--                 ->  CTE Scan on waited
--           ->  Index Scan using trial_pkey on trial
--                 Index Cond: (id = waited.id)
--                 Filter: (state = ($7)::text)

-- studydb/store/sweeps.py suspect: Mark trials whose lease has expired; any write of their
--   holder clears the mark.
WITH expired AS MATERIALIZED (
    SELECT trial.id AS id
    FROM trial
    WHERE trial.study_id = :study
        AND trial.state = 'RUNNING'
        AND trial.lease_expires_at < coalesce(CAST(:now AS timestamptz), clock_timestamp())
        AND trial.suspect_at IS NULL
    ORDER BY trial.id + 0
    LIMIT 100
    FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE trial
SET suspect_at=coalesce(CAST(:now AS timestamptz), clock_timestamp())
WHERE trial.id IN (SELECT expired.id FROM expired)
    AND trial.state = 'RUNNING'
RETURNING trial.id;
-- Plan:
--   Update on trial
--     CTE expired
--       ->  Limit
--             ->  LockRows
--                   ->  Sort
--                         Sort Key: ((trial_1.id + $3))
--                         ->  Index Scan using trial_running on trial trial_1
--                               Index Cond: (study_id = $1)
--                               Filter: ((suspect_at IS NULL) AND (state = 'RUNNING'::text) AND (lease_expires_at < COALESCE($2, clock_timestamp())))
--     ->  Nested Loop
--           ->  HashAggregate
--                 Group Key: expired.id
--                 ->  CTE Scan on expired
--           ->  Index Scan using trial_pkey on trial
--                 Index Cond: (id = expired.id)
--                 Filter: (state = ($5)::text)

-- studydb/store/sweeps.py unpause: If the study is RUNNING again, make the trials PENDING that
--   were paused with the study.
WITH paused AS MATERIALIZED (
    SELECT trial.id AS id
    FROM trial
    WHERE trial.study_id = :study
        AND trial.state = 'PAUSED'
        AND trial.paused_by = 'study'
        AND (SELECT study.status FROM study WHERE study.id = :study) = 'RUNNING'
    ORDER BY trial.id + 0
    LIMIT 100
    FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE trial
SET state='PENDING',
    ready=true,
    ready_at=NULL,
    paused_by=NULL
WHERE trial.id IN (SELECT paused.id FROM paused)
    AND trial.state = 'PAUSED'
RETURNING trial.id;
-- Plan:
--   Update on trial
--     CTE paused
--       ->  Limit
--             InitPlan 1
--               ->  Index Scan using study_pkey on study
--                     Index Cond: (id = $1)
--             ->  LockRows
--                   ->  Sort
--                         Sort Key: ((trial_1.id + $3))
--                         ->  Result
--                               One-Time Filter: ((InitPlan 1).col1 = ($2)::text)
--                               ->  Index Scan using trial_paused_by_study on trial trial_1
--                                     Index Cond: (study_id = $1)
--                                     Filter: ((state = 'PAUSED'::text) AND (paused_by = 'study'::text))
--     ->  Nested Loop
--           ->  HashAggregate
--                 Group Key: paused.id
--                 ->  CTE Scan on paused
--           ->  Index Scan using trial_pkey on trial
--                 Index Cond: (id = paused.id)
--                 Filter: (state = ($9)::text)

-- studydb/store/sweeps.py lost: Find leases that have been suspect for a renewal period or
--   longer.
SELECT trial.id, trial.study_id, trial.number, trial.bracket, trial.attempt, trial.token,
    trial.lease_s
FROM trial
WHERE trial.study_id = :study
    AND trial.state = 'RUNNING'
    AND trial.lease_expires_at < coalesce(CAST(:now AS timestamptz), clock_timestamp())
    AND trial.suspect_at IS NOT NULL
    AND (trial.suspect_at + make_interval(secs => trial.lease_s * 0.2222222222222222)) <=
        coalesce(CAST(:now AS timestamptz), clock_timestamp())
ORDER BY trial.id + 0
LIMIT 100;
-- Plan:
--   Limit
--     ->  Sort
--           Sort Key: ((id + $4))
--           ->  Index Scan using trial_running on trial
--                 Index Cond: (study_id = $1)
--                 Filter: ((suspect_at IS NOT NULL) AND (lease_expires_at < COALESCE($2, clock_timestamp())) AND ((suspect_at + make_interval(0, 0, 0, 0, 0, 0, (lease_s * $3))) <= COALESCE($2, clock_timestamp())))

COMMIT;
