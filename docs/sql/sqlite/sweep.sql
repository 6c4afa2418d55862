-- studydb/operations/recover.py recover: Wake trials whose back-off is over, mark expired
--   leases, and recover lost trials. Imported by studydb/lease/acquire.py,
--   studydb/lease/loop.py, studydb/study/loading.py, studydb/worker/supervisor.py.

BEGIN;

-- studydb/store/sweeps.py any_due: Tell, without a lock, whether `wake`, `suspect`, `unpause`
--   or `lost` may find a trial.
SELECT coalesce((
    SELECT trial.ready_at
    FROM trial
    WHERE trial.study_id = :study
        AND trial.state = 'PENDING'
        AND trial.ready = 0
    ORDER BY trial.ready_at
    LIMIT 1
    OFFSET 0
) <= :now, 0) = 1 OR (
    SELECT trial.id
    FROM trial
    WHERE trial.study_id = :study
        AND trial.state = 'RUNNING'
        AND trial.lease_expires_at < :now
    LIMIT 1
    OFFSET 0
) IS NOT NULL OR (
    SELECT trial.id
    FROM trial
    WHERE trial.study_id = :study
        AND trial.state = 'PAUSED'
        AND trial.paused_by = 'study'
        AND (SELECT study.status FROM study WHERE study.id = :study) = 'RUNNING'
    LIMIT 1
    OFFSET 0
) IS NOT NULL AS is_due;

ROLLBACK;
