-- studydb/operations/study_progress.py read_progress: Read a study's budget and counts, and
--   whether a trial can be claimed. Imported by studydb/lease/acquire.py,
--   studydb/operations/failing.py, studydb/operations/overview.py, studydb/study/handle.py,
--   studydb/study/running.py, studydb/worker/notices.py, studydb/worker/slot.py,
--   studydb/worker/supervisor.py.

BEGIN;

-- studydb/store/studies.py budget: Read what a study's limits allow now; raise UnknownStudy if
--   the study was deleted.
SELECT study.status, study.status = 'RUNNING' AND (study.num_trials IS NULL OR study.n_counted <
    study.num_trials) AND (study.num_draws IS NULL OR study.next_draw < study.num_draws) AS
    open, study.max_concurrent IS NULL OR study.n_running < study.max_concurrent AS has_room,
    coalesce(study.n_counted >= study.num_trials OR study.next_draw >= study.num_draws, 0) AS
    spent, study.num_trials, study.n_counted, study.next_draw, study.paused_by,
    study.pause_reason
FROM study
WHERE study.id = :study;

-- studydb/store/counters.py read_with_paused: Sum up the shards of a study; tell whether any
--   trial is PAUSED because its study was paused.
SELECT coalesce(sum(counter.pending), 0) AS pending, coalesce(sum(counter.running), 0) AS
    running, coalesce(sum(counter.paused), 0) AS paused, coalesce(sum(counter.terminated), 0) AS
    terminated, coalesce(sum(counter.error), 0) AS error, (
    SELECT trial.id
    FROM trial
    WHERE trial.study_id = :study
        AND trial.state = 'PAUSED'
        AND trial.paused_by = 'study'
    LIMIT 1
    OFFSET 0
)
FROM counter
WHERE counter.study_id = :study;

-- studydb/store/claims.py any_runnable: Tell, without a lock, whether a study of any status has
--   a PENDING trial that is ready.
SELECT trial.id
FROM trial
WHERE trial.study_id = :study
    AND trial.state = 'PENDING'
    AND trial.ready = 1
ORDER BY trial.resource_class, trial.priority, trial.number
LIMIT 1
OFFSET 0;

ROLLBACK;
