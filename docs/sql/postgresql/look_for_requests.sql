-- studydb/operations/renew.py is_requested: Tell, by a single statement without locks, whether
--   a renewal would return a new request. Imported by studydb/lease/heartbeat.py,
--   studydb/study/simulated_worker.py.

-- studydb/store/leases.py requests: Read what people request of trials and of the worker that
--   holds them, without a lock.
SELECT trial.token, trial.request, trial.invalidated_at, trial.verdict, trial.verdict_reason,
    trial.verdict_by, coalesce(trial.request_now, (
    SELECT study.stopped_at_once
    FROM study
    WHERE study.id = trial.study_id
)) AS request_now, (
    SELECT CASE WHEN (study.paused_by IN ('guard', 'rule', 'scheduler', 'requests')) THEN
        'RUNNING' WHEN (study.paused_by = 'limit') THEN 'SPENT' ELSE study.status END
    FROM study
    WHERE study.id = trial.study_id
) AS status, (SELECT worker.request FROM worker WHERE worker.id = :worker) AS worker_request
FROM trial
WHERE trial.id = ANY(:ids)
    AND trial.token = ANY(:tokens);
-- Plan:
--   Index Scan using trial_pkey on trial
--     Index Cond: (id = ANY ($4))
--     Filter: (token = ANY ($5))
--     InitPlan 3
--       ->  Index Scan using worker_pkey on worker
--             Index Cond: (id = $3)
--     SubPlan 1
--       ->  Index Scan using study_pkey on study
--             Index Cond: (id = trial.study_id)
--     SubPlan 2
--       ->  Index Scan using study_pkey on study study_1
--             Index Cond: (id = trial.study_id)
