-- studydb/operations/renew.py is_requested: Tell, by a single statement without locks, whether
--   a renewal would change a verdict. Imported by studydb/lease/heartbeat.py.

BEGIN;

-- studydb/store/leases.py requests: Read what people request of trials, without a lock; leases
--   that were lost are left out.
SELECT trial.token, trial.request, trial.invalidated_at, trial.verdict, trial.verdict_reason,
    trial.verdict_by, coalesce(trial.request_now, (
    SELECT study.stopped_at_once
    FROM study
    WHERE study.id = trial.study_id
)) AS request_now, (
    SELECT CASE WHEN (study.paused_by = 'guard') THEN 'RUNNING' WHEN (study.paused_by = 'rule')
        THEN 'RUNNING' WHEN (study.paused_by = 'scheduler') THEN 'RUNNING' WHEN (study.paused_by
        = 'limit') THEN 'SPENT' ELSE study.status END
    FROM study
    WHERE study.id = trial.study_id
) AS status
FROM trial
WHERE trial.id IN (SELECT value FROM json_each(:ids))
    AND trial.token IN (SELECT value FROM json_each(:tokens));

ROLLBACK;
