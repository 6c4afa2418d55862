-- studydb/operations/renew.py renew: Renew leases; store people's requests, and the limits that
--   are reached, as verdicts. Imported by studydb/lease/heartbeat.py,
--   studydb/study/simulated_worker.py.

BEGIN;

-- studydb/store/leases.py renew: Renew leases. The rows of their trials are locked by ascending
--   id.
WITH mine AS MATERIALIZED (
    SELECT trial.id AS id
    FROM trial
    WHERE trial.id = ANY(:ids)
        AND trial.token = ANY(:tokens)
        AND trial.state = 'RUNNING'
    ORDER BY trial.id + 0
    FOR NO KEY UPDATE
)
UPDATE trial
SET lease_expires_at=(coalesce(CAST(:now AS timestamptz), clock_timestamp()) +
    make_interval(secs => trial.lease_s)),
    suspect_at=NULL
WHERE trial.id IN (SELECT mine.id FROM mine)
RETURNING trial.token, trial.request, trial.invalidated_at, trial.verdict, trial.verdict_reason,
    trial.verdict_by, coalesce(trial.request_now, (
    SELECT study.stopped_at_once
    FROM study
    WHERE study.id = trial.study_id
)) AS request_now, (
    SELECT CASE WHEN (study.paused_by IN ('guard', 'rule', 'scheduler', 'requests')) THEN
        'RUNNING' WHEN (study.paused_by = 'limit') THEN 'SPENT' ELSE study.status END
    FROM study
    WHERE study.id = trial.study_id
) AS status;
-- Plan:
--   Update on trial
--     CTE mine
--       ->  LockRows
--             ->  Sort
--                   Sort Key: ((trial_1.id + $4))
--                   ->  Index Scan using trial_pkey on trial trial_1
--                         Index Cond: (id = ANY ($1))
--                         Filter: ((state = ($3)::text) AND (token = ANY ($2)))
--     ->  Nested Loop
--           ->  HashAggregate
--                 Group Key: mine.id
--                 ->  CTE Scan on mine
--           ->  Index Scan using trial_pkey on trial
--                 Index Cond: (id = mine.id)
--     SubPlan 2
--       ->  Index Scan using study_pkey on study
--             Index Cond: (id = trial.study_id)
--     SubPlan 3
--       ->  Index Scan using study_pkey on study study_1
--             Index Cond: (id = trial.study_id)

-- studydb/store/workers.py mark_alive: Record that a worker is alive now, and read what a
--   person requests of the worker.
UPDATE worker
SET seen_at=coalesce(CAST(:now AS timestamptz), clock_timestamp())
WHERE worker.id = :worker
RETURNING worker.request;
-- Plan:
--   Update on worker
--     ->  Index Scan using worker_pkey on worker
--           Index Cond: (id = $2)

COMMIT;
