-- studydb/operations/promote.py promote: Ask the scheduler for work until it names a trial or
--   has no more work. Imported by studydb/lease/acquire.py,
--   studydb/operations/study_progress.py.

BEGIN;

-- studydb/store/events.py data_of: Read the data of the event with this token; empty if there
--   is no such event.
SELECT event.data
FROM event
WHERE event.token = :by_token;
-- Plan:
--   Index Scan using event_token_key on event
--     Index Cond: (token = ($1)::text)

COMMIT;

BEGIN;

-- studydb/store/promotions.py Queues.__init__: Read the rungs that are not over, each with its
--   best waiting trial, without locks.
SELECT rung.bracket, rung.step, rung.quantile, rung.n_entries, rung.n_ranked, rung.closed_at,
    rung.closed_cutoff, rung.closed_ordinal, rung.cut_rank, rung.cut_score, rung.cut_trial_id, (
    SELECT rung_entry.trial_id
    FROM rung_entry
    WHERE rung_entry.rung_id = rung.id
        AND rung.closed_at IS NOT NULL
        AND rung_entry.waiting
        AND (rung_entry.score, rung_entry.ordinal) > (rung.closed_cutoff, rung.closed_ordinal)
        AND (
            SELECT trial.study_id = :study AND trial.state = 'PAUSED' AND trial.paused_by =
                'scheduler'
            FROM trial
            WHERE trial.id = rung_entry.trial_id
        )
    ORDER BY rung_entry.score, rung_entry.ordinal
    LIMIT 1
) IS NOT NULL AS any_to_give_up, (
    SELECT rung_entry.trial_id
    FROM rung_entry
    WHERE rung_entry.rung_id = rung.id
        AND rung_entry.waiting
        AND rung.closed_at IS NOT NULL
    ORDER BY rung_entry.score, rung_entry.ordinal
    LIMIT 1
) AS waiting_id, (
    SELECT rung_entry.score
    FROM rung_entry
    WHERE rung_entry.rung_id = rung.id
        AND rung_entry.ranked
        AND (rung_entry.score, rung_entry.trial_id) < (rung.cut_score, rung.cut_trial_id)
    ORDER BY rung_entry.score DESC, rung_entry.trial_id DESC
    LIMIT 1
) AS better, (
    SELECT rung_entry.trial_id
    FROM rung_entry
    WHERE rung_entry.rung_id = rung.id
        AND rung_entry.waiting
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
) AS best_id, (
    SELECT rung_entry.score
    FROM rung_entry
    WHERE rung_entry.rung_id = rung.id
        AND rung_entry.waiting
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
) AS best_score
FROM rung
WHERE rung.study_id = :study
    AND NOT rung.is_over;
-- Plan:
--   Index Scan using rung_live on rung
--     Index Cond: (study_id = $1)
--     SubPlan 2
--       ->  Limit
--             ->  Result
--                   One-Time Filter: (rung.closed_at IS NOT NULL)
--                   ->  Index Scan using rung_entry_waiting on rung_entry
--                         Index Cond: ((rung_id = rung.id) AND (ROW(score, ordinal) > ROW(rung.closed_cutoff, rung.closed_ordinal)))
--                         Filter: (SubPlan 1)
--                         SubPlan 1
--                           ->  Index Scan using trial_pkey on trial
--                                 Index Cond: (id = rung_entry.trial_id)
--     SubPlan 3
--       ->  Limit
--             ->  Result
--                   One-Time Filter: (rung.closed_at IS NOT NULL)
--                   ->  Index Scan using rung_entry_waiting on rung_entry rung_entry_1
--                         Index Cond: (rung_id = rung.id)
--     SubPlan 4
--       ->  Limit
--             ->  Index Only Scan Backward using rung_entry_rank on rung_entry rung_entry_2
--                   Index Cond: ((rung_id = rung.id) AND (ROW(score, trial_id) < ROW(rung.cut_score, rung.cut_trial_id)))
--     SubPlan 6
--       ->  Limit
--             ->  Index Scan using rung_entry_waiting on rung_entry rung_entry_3
--                   Index Cond: ((rung_id = rung.id) AND (ROW(score, ordinal) <= ROW(COALESCE(rung.closed_cutoff, $7), COALESCE(rung.closed_ordinal, $8))))
--                   Filter: (SubPlan 5)
--                   SubPlan 5
--                     ->  Index Scan using trial_pkey on trial trial_1
--                           Index Cond: (id = rung_entry_3.trial_id)
--     SubPlan 8
--       ->  Limit
--             ->  Index Scan using rung_entry_waiting on rung_entry rung_entry_4
--                   Index Cond: ((rung_id = rung.id) AND (ROW(score, ordinal) <= ROW(COALESCE(rung.closed_cutoff, $7), COALESCE(rung.closed_ordinal, $8))))
--                   Filter: (SubPlan 7)
--                   SubPlan 7
--                     ->  Index Scan using trial_pkey on trial trial_2
--                           Index Cond: (id = rung_entry_4.trial_id)

COMMIT;

BEGIN;

-- studydb/store/promotions.py promote: Move a waiting trial to PENDING.
UPDATE trial
SET state='PENDING',
    ready=true,
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
            AND coalesce(rung_entry.waiting, false)
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
            AND trial.ready
            AND trial.resource_class = ''
    ))
RETURNING trial.id;
-- Plan:
--   Update on trial
--     InitPlan 2
--       ->  Index Scan using rung_entry_pkey on rung_entry
--             Index Cond: ((rung_id = (InitPlan 1).col1) AND (trial_id = $5))
--             Filter: COALESCE(waiting, false)
--             InitPlan 1
--               ->  Index Scan using rung_study_id_bracket_step_key on rung
--                     Index Cond: ((study_id = $6) AND (bracket = $9) AND (step = $10))
--     InitPlan 3
--       ->  Index Scan using study_pkey on study
--             Index Cond: (id = $6)
--             Filter: (((max_concurrent IS NULL) OR (n_running < max_concurrent)) AND (status = ($11)::text))
--     InitPlan 4
--       ->  Index Only Scan using trial_claim on trial trial_1
--             Index Cond: ((study_id = $6) AND (resource_class = ($12)::text))
--     ->  Result
--           One-Time Filter: ((InitPlan 2).col1 AND (InitPlan 3).col1 AND (NOT (InitPlan 4).col1))
--           ->  Index Scan using trial_pkey on trial
--                 Index Cond: (id = $5)
--                 Filter: ((study_id = $6) AND (state = ($7)::text) AND (paused_by = ($8)::text))

-- studydb/store/promotions.py promote
UPDATE rung_entry
SET waiting=false,
    promoted_at=coalesce(CAST(:now AS timestamptz), clock_timestamp())
WHERE rung_entry.rung_id = (
    SELECT rung.id
    FROM rung
    WHERE rung.study_id = :study
        AND rung.bracket = :of_bracket
        AND rung.step = :at_step
)
    AND rung_entry.trial_id = :trial;
-- Plan:
--   Update on rung_entry
--     InitPlan 1
--       ->  Index Scan using rung_study_id_bracket_step_key on rung
--             Index Cond: ((study_id = $3) AND (bracket = $4) AND (step = $5))
--     ->  Index Scan using rung_entry_pkey on rung_entry
--           Index Cond: ((rung_id = (InitPlan 1).col1) AND (trial_id = $6))

-- studydb/store/events.py append: Append one event.
INSERT INTO event (study_id, trial_id, attempt, worker_id, kind, actor, data, token, at)
VALUES (:study_id, :trial_id, :attempt, :worker_id, :kind, :actor, :data, :token,
    coalesce(CAST(:now AS timestamptz), clock_timestamp()))
RETURNING event.id;
-- Plan:
--   Insert on event
--     ->  Result

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
-- Plan:
--   Update on counter
--     ->  Index Scan using counter_pkey on counter
--           Index Cond: ((study_id = $6) AND (shard = $7))

COMMIT;
