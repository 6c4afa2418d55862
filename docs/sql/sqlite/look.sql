-- studydb/operations/study_progress.py read_signs: Read, in a single statement, the signs that
--   show whether a study's progress may have changed.

BEGIN;

-- studydb/store/progress.py signs: Read what shows whether a study's progress may have changed;
--   the caller compares two reads.
SELECT study.status, study.paused_by, study.status = 'RUNNING' AND (study.num_trials IS NULL OR
    study.n_counted < study.num_trials) AND (study.num_draws IS NULL OR study.next_draw <
    study.num_draws) AS open, coalesce(study.n_counted >= study.num_trials OR study.next_draw >=
    study.num_draws, 0) AS spent, study.max_concurrent IS NULL OR study.n_running <
    study.max_concurrent AS has_room, (
    SELECT trial.id
    FROM trial
    WHERE trial.study_id = :study
        AND trial.state = 'PENDING'
        AND trial.ready = 1
    ORDER BY trial.resource_class, trial.priority, trial.number
    LIMIT 1
    OFFSET 0
) IS NOT NULL AS has_runnable, (
    SELECT trial.ready_at
    FROM trial
    WHERE trial.study_id = :study
        AND trial.state = 'PENDING'
        AND trial.ready = 0
    ORDER BY trial.ready_at
    LIMIT 1
    OFFSET 0
) <= :now AS has_waited, (
    SELECT trial.id
    FROM trial
    WHERE trial.study_id = :study
        AND trial.state = 'RUNNING'
    LIMIT 1
    OFFSET 0
) IS NOT NULL AS has_running, (SELECT worker.request FROM worker WHERE worker.id = :worker) AS
    request
FROM study
WHERE study.id = :study;

ROLLBACK;

-- studydb/operations/study_progress.py read_progress: Read a study's budget and counts, and
--   whether a trial can be claimed.

BEGIN;

-- studydb/store/progress.py read: Read a study's progress in one statement, so that no trial
--   moves between two reads.
SELECT study.status, study.status = 'RUNNING' AND (study.num_trials IS NULL OR study.n_counted <
    study.num_trials) AND (study.num_draws IS NULL OR study.next_draw < study.num_draws) AS
    open, study.max_concurrent IS NULL OR study.n_running < study.max_concurrent AS has_room,
    coalesce(study.n_counted >= study.num_trials OR study.next_draw >= study.num_draws, 0) AS
    spent, study.num_trials, study.n_counted, study.num_draws, study.next_draw, study.paused_by,
    study.pause_reason, counts.pending, counts.running, counts.paused, counts.terminated,
    counts.error, (
    SELECT trial.id
    FROM trial
    WHERE trial.study_id = :study
        AND trial.state = 'PENDING'
        AND trial.ready = 1
    ORDER BY trial.resource_class, trial.priority, trial.number
    LIMIT 1
    OFFSET 0
) IS NOT NULL AS has_runnable, (
    SELECT trial.ready_at
    FROM trial
    WHERE trial.study_id = :study
        AND trial.state = 'PENDING'
        AND trial.ready = 0
    ORDER BY trial.ready_at
    LIMIT 1
    OFFSET 0
) <= :now AS has_waited, (
    SELECT trial.id
    FROM trial
    WHERE trial.study_id = :study
        AND trial.state = 'PAUSED'
        AND trial.paused_by = 'study'
    LIMIT 1
    OFFSET 0
) IS NOT NULL AS is_resuming
FROM study
JOIN (
    SELECT coalesce(sum(counter.pending), 0) AS pending, coalesce(sum(counter.running), 0) AS
        running, coalesce(sum(counter.paused), 0) AS paused, coalesce(sum(counter.terminated),
        0) AS terminated, coalesce(sum(counter.error), 0) AS error
    FROM counter
    WHERE counter.study_id = :study
) AS counts ON 1 = 1
WHERE study.id = :study;

ROLLBACK;
