-- studydb/operations/renew.py renew: Renew leases; store people's requests, and the limits that
--   are reached, as verdicts. Imported by studydb/lease/heartbeat.py,
--   studydb/study/simulated_worker.py.

BEGIN;

-- studydb/store/leases.py renew: Renew leases. The rows of their trials are locked by ascending
--   id.
WITH mine AS MATERIALIZED (
    SELECT trial.id AS id
    FROM trial
    WHERE trial.id IN (SELECT value FROM json_each(:ids))
        AND trial.token IN (SELECT value FROM json_each(:tokens))
        AND trial.state = 'RUNNING'
    ORDER BY trial.id + 0
)
UPDATE trial
SET lease_expires_at=strftime('%Y-%m-%d %H:%M:%f', :now, (trial.lease_s) || ' seconds'),
    suspect_at=NULL
WHERE trial.id IN (SELECT mine.id FROM mine)
RETURNING token, request, invalidated_at, verdict, verdict_reason, verdict_by,
    coalesce(request_now, (SELECT study.stopped_at_once FROM study WHERE id = study_id)) AS
    request_now, (
    SELECT CASE WHEN (study.paused_by IN ('guard', 'rule', 'scheduler', 'requests')) THEN
        'RUNNING' WHEN (study.paused_by = 'limit') THEN 'SPENT' ELSE study.status END
    FROM study
    WHERE id = study_id
) AS status;

-- studydb/store/workers.py mark_alive: Record that a worker is alive now, and read what a
--   person requests of the worker.
UPDATE worker
SET seen_at=:now
WHERE worker.id = :worker
RETURNING request;

COMMIT;
