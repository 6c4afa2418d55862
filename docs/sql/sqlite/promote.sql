-- studydb/operations/promote.py promote: Ask the scheduler for work until it names a trial or
--   has no more work. Imported by studydb/lease/acquire.py,
--   studydb/operations/study_progress.py.

BEGIN;

-- studydb/store/events.py data_of: Read the data of the event with this token; empty if there
--   is no such event.
SELECT event.data
FROM event
WHERE event.token = :by_token;

ROLLBACK;

BEGIN;

-- studydb/store/promotions.py Queues.__init__: Read the rungs that are not over, each with its
--   best waiting trial, without locks.
SELECT rung.bracket, rung.step, rung.quantile, rung.n_entries, rung.n_ranked, rung.closed_at,
    rung.closed_cutoff, rung.closed_ordinal, rung.cut_rank, rung.cut_score, rung.cut_trial_id, (
    SELECT rung_entry.trial_id
    FROM rung_entry
    WHERE rung_entry.rung_id = rung.id
        AND rung.closed_at IS NOT NULL
        AND rung_entry.waiting = 1
        AND (rung_entry.score, rung_entry.ordinal) > (rung.closed_cutoff, rung.closed_ordinal)
        AND (
            SELECT trial.study_id = :study AND trial.state = 'PAUSED' AND trial.paused_by =
                'scheduler'
            FROM trial
            WHERE trial.id = rung_entry.trial_id
        )
    ORDER BY rung_entry.score, rung_entry.ordinal
    LIMIT 1
    OFFSET 0
) IS NOT NULL AS any_to_give_up, (
    SELECT rung_entry.trial_id
    FROM rung_entry
    WHERE rung_entry.rung_id = rung.id
        AND rung_entry.waiting = 1
        AND rung.closed_at IS NOT NULL
    ORDER BY rung_entry.score, rung_entry.ordinal
    LIMIT 1
    OFFSET 0
) AS waiting_id, (
    SELECT rung_entry.score
    FROM rung_entry
    WHERE rung_entry.rung_id = rung.id
        AND rung_entry.ranked = 1
        AND (rung_entry.score, rung_entry.trial_id) < (rung.cut_score, rung.cut_trial_id)
    ORDER BY rung_entry.score DESC, rung_entry.trial_id DESC
    LIMIT 1
    OFFSET 0
) AS better, (
    SELECT rung_entry.trial_id
    FROM rung_entry
    WHERE rung_entry.rung_id = rung.id
        AND rung_entry.waiting = 1
        AND (rung_entry.score, rung_entry.ordinal) <= (coalesce(rung.closed_cutoff, inf),
            coalesce(rung.closed_ordinal, 4611686018427387904))
        AND (
            SELECT trial.study_id = :study AND trial.state = 'PAUSED' AND trial.paused_by =
                'scheduler'
            FROM trial
            WHERE trial.id = rung_entry.trial_id
        )
    ORDER BY rung_entry.score, rung_entry.ordinal
    LIMIT 1
    OFFSET 0
) AS best_id, (
    SELECT rung_entry.score
    FROM rung_entry
    WHERE rung_entry.rung_id = rung.id
        AND rung_entry.waiting = 1
        AND (rung_entry.score, rung_entry.ordinal) <= (coalesce(rung.closed_cutoff, inf),
            coalesce(rung.closed_ordinal, 4611686018427387904))
        AND (
            SELECT trial.study_id = :study AND trial.state = 'PAUSED' AND trial.paused_by =
                'scheduler'
            FROM trial
            WHERE trial.id = rung_entry.trial_id
        )
    ORDER BY rung_entry.score, rung_entry.ordinal
    LIMIT 1
    OFFSET 0
) AS best_score
FROM rung
WHERE rung.study_id = :study
    AND rung.is_over = 0;

ROLLBACK;

BEGIN;

-- studydb/store/promotions.py promote: Move a waiting trial to PENDING.
UPDATE trial
SET state='PENDING',
    ready=1,
    ready_at=NULL,
    paused_by=NULL
WHERE trial.id = :trial
    AND trial.study_id = :study
    AND trial.state = 'PAUSED'
    AND trial.paused_by = 'scheduler'
    AND (EXISTS (
        SELECT *
        FROM rung_entry
        WHERE rung_entry.rung_id = (
            SELECT rung.id
            FROM rung
            WHERE rung.study_id = :study
                AND rung.bracket = :of_bracket
                AND rung.step = :at_step
        )
            AND rung_entry.trial_id = :trial
            AND coalesce(rung_entry.waiting, 0) = 1
    ))
    AND (EXISTS (
        SELECT *
        FROM study
        WHERE study.id = :study
            AND study.status = 'RUNNING'
            AND (study.max_concurrent IS NULL OR study.n_running < study.max_concurrent)
    ))
    AND NOT (EXISTS (
        SELECT *
        FROM trial
        WHERE trial.study_id = :study
            AND trial.state = 'PENDING'
            AND trial.ready = 1
            AND trial.resource_class = ''
    ))
RETURNING id;

-- studydb/store/promotions.py promote
UPDATE rung_entry
SET waiting=0,
    promoted_at=:now
WHERE rung_entry.rung_id = (
    SELECT rung.id
    FROM rung
    WHERE rung.study_id = :study
        AND rung.bracket = :of_bracket
        AND rung.step = :at_step
)
    AND rung_entry.trial_id = :trial;

-- studydb/store/events.py append: Append one event.
INSERT INTO event (study_id, trial_id, attempt, worker_id, kind, actor, data, token, at)
VALUES (:study_id, :trial_id, :attempt, :worker_id, :kind, :actor, :data, :token, :now);

-- studydb/store/counters.py move: Move `n` trials between the counts of two states. A
--   transaction locks the shard's row last.
UPDATE counter
SET pending=(counter.pending + :by_pending),
    running=(counter.running + 0),
    paused=(counter.paused + :by_paused),
    terminated=(counter.terminated + 0),
    error=(counter.error + 0)
WHERE counter.study_id = :study
    AND counter.shard = :shard_no;

COMMIT;
