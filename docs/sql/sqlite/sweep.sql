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
        AND trial.ready = 0
        AND trial.ready_at <= :now
    ORDER BY trial.id + 0
    LIMIT 100
    OFFSET 0
)
UPDATE trial
SET ready=1,
    ready_at=NULL
WHERE trial.id IN (SELECT waited.id FROM waited)
    AND trial.state = 'PENDING'
RETURNING id;

-- studydb/store/sweeps.py suspect: Mark trials whose lease has expired; any write of their
--   holder clears the mark.
WITH expired AS MATERIALIZED (
    SELECT trial.id AS id
    FROM trial
    WHERE trial.study_id = :study
        AND trial.state = 'RUNNING'
        AND trial.lease_expires_at < :now
        AND trial.suspect_at IS NULL
    ORDER BY trial.id + 0
    LIMIT 100
    OFFSET 0
)
UPDATE trial
SET suspect_at=:now
WHERE trial.id IN (SELECT expired.id FROM expired)
    AND trial.state = 'RUNNING'
RETURNING id;

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
    OFFSET 0
)
UPDATE trial
SET state='PENDING',
    ready=1,
    ready_at=NULL,
    paused_by=NULL
WHERE trial.id IN (SELECT paused.id FROM paused)
    AND trial.state = 'PAUSED'
RETURNING id;

-- studydb/store/sweeps.py lost: Find leases that have been suspect for a renewal period or
--   longer.
SELECT trial.id, trial.study_id, trial.number, trial.bracket, trial.attempt, trial.token,
    trial.lease_s
FROM trial
WHERE trial.study_id = :study
    AND trial.state = 'RUNNING'
    AND trial.lease_expires_at < :now
    AND trial.suspect_at IS NOT NULL
    AND strftime('%Y-%m-%d %H:%M:%f', trial.suspect_at, (trial.lease_s * 0.2222222222222222) ||
        ' seconds') <= :now
ORDER BY trial.id + 0
LIMIT 100
OFFSET 0;

COMMIT;
