-- studydb/operations/report.py report: Store a batch and the decision on it in one transaction,
--   and renew the lease. Imported by studydb/lease/held.py.

BEGIN;

-- studydb/store/rungs.py lock: Lock a rung. The lock order is: rungs by ascending key, then
--   trials.
SELECT rung.id, rung.study_id, rung.bracket, rung.step, rung.quantile, rung.n_entries,
    rung.n_ranked, rung.cut_rank, rung.cut_score, rung.cut_trial_id, rung.n_planned,
    rung.n_ended, rung.closed_at, rung.closed_cutoff, rung.closed_ordinal, rung.is_over
FROM rung
WHERE rung.study_id = :study
    AND rung.bracket = :of_bracket
    AND rung.step = :at_step
FOR NO KEY UPDATE;
-- Plan:
--   LockRows
--     ->  Index Scan using rung_study_id_bracket_step_key on rung
--           Index Cond: ((study_id = $1) AND (bracket = $2) AND (step = $3))

-- studydb/store/rungs.py query_neighbours: Query the entries beside the cut of a locked rung,
--   each by one look-up in the index.
SELECT 'worse' AS side, worse.score, worse.trial_id
FROM (
    SELECT rung_entry.score AS score, rung_entry.trial_id AS trial_id
    FROM rung_entry
    WHERE rung_entry.rung_id = :rung
        AND rung_entry.ranked
        AND (rung_entry.score, rung_entry.trial_id) > (:cut_score, :cut_trial)
    ORDER BY rung_entry.score ASC, rung_entry.trial_id ASC
    LIMIT 1
) AS worse
UNION ALL
SELECT 'better' AS side, better.score, better.trial_id
FROM (
    SELECT rung_entry.score AS score, rung_entry.trial_id AS trial_id
    FROM rung_entry
    WHERE rung_entry.rung_id = :rung
        AND rung_entry.ranked
        AND (rung_entry.score, rung_entry.trial_id) < (:cut_score, :cut_trial)
    ORDER BY rung_entry.score DESC, rung_entry.trial_id DESC
    LIMIT 1
) AS better
UNION ALL
SELECT 'own', rung_entry.score, rung_entry.trial_id
FROM rung_entry
WHERE rung_entry.rung_id = :rung
    AND rung_entry.trial_id = :trial;
-- Plan:
--   Append
--     ->  Subquery Scan on worse
--           ->  Limit
--                 ->  Index Only Scan using rung_entry_rank on rung_entry
--                       Index Cond: ((rung_id = $1) AND (ROW(score, trial_id) > ROW($2, $3)))
--     ->  Subquery Scan on better
--           ->  Limit
--                 ->  Index Only Scan Backward using rung_entry_rank on rung_entry rung_entry_1
--                       Index Cond: ((rung_id = $1) AND (ROW(score, trial_id) < ROW($2, $3)))
--     ->  Index Scan using rung_entry_pkey on rung_entry rung_entry_2
--           Index Cond: ((rung_id = $1) AND (trial_id = $6))

-- studydb/store/leases.py hold: Lock the trial if this attempt still holds it; else return
--   None.
SELECT trial.n_results, trial.last_step, trial.last_value, trial.best_value, trial.best_step,
    trial.best_score, trial.flush_no, trial.failures, trial.losses, trial.request,
    trial.invalidated_at, trial.verdict, trial.verdict_reason, trial.verdict_by,
    trial.checkpoint_id, trial.checkpoint_step, trial.source_checkpoint_id, trial.time_total_s,
    trial.worker_id, (
    SELECT CASE WHEN (study.paused_by IN ('guard', 'rule', 'scheduler', 'requests')) THEN
        'RUNNING' WHEN (study.paused_by = 'limit') THEN 'SPENT' ELSE study.status END
    FROM study
    WHERE study.id = trial.study_id
) AS status
FROM trial
WHERE trial.id = :trial
    AND trial.attempt = :held_attempt
    AND trial.token = :held_token
    AND trial.state = 'RUNNING'
FOR NO KEY UPDATE OF trial;
-- Plan:
--   LockRows
--     ->  Index Scan using trial_pkey on trial
--           Index Cond: (id = $3)
--           Filter: ((attempt = $4) AND (token = ($5)::text) AND (state = ($6)::text))
--           SubPlan 1
--             ->  Index Scan using study_pkey on study
--                   Index Cond: (id = trial.study_id)

-- studydb/store/rungs.py record: Record a judged result at a locked rung, and move the rung's
--   cut unless the value is NaN.
WITH main AS (
    UPDATE rung
    SET n_entries=(rung.n_entries + 1),
        n_ranked=:to_n,
        cut_rank=:to_rank,
        cut_score=:to_score,
        cut_trial_id=:to_trial
    WHERE rung.id = :rung
    RETURNING rung.id
),
entered AS (
    INSERT INTO rung_entry (trial_id, attempt, step, value, score, ranked, ordinal, action,
        cutoff, waiting, rung_id, recorded_at)
    SELECT :trial_id, :attempt, :step, :value, :score, :ranked, :ordinal, :action, :cutoff,
        :waiting, main.id, coalesce(CAST(:now AS timestamptz), clock_timestamp())
    FROM main
)
SELECT *
FROM main;
-- Plan:
--   CTE Scan on main
--     CTE main
--       ->  Update on rung
--             ->  Index Scan using rung_pkey on rung
--                   Index Cond: (id = $5)
--     CTE entered
--       ->  Insert on rung_entry
--             ->  Subquery Scan on "*SELECT*"
--                   ->  CTE Scan on main main_1

-- studydb/store/leases.py record: Store results of a held trial with its summary and verdict,
--   and renew its lease.
WITH main AS (
    UPDATE trial
    SET verdict=:to_verdict,
        verdict_reason=:to_verdict_reason,
        verdict_by=:to_verdict_by,
        flush_no=:to_flush_no,
        lease_expires_at=(coalesce(CAST(:now AS timestamptz), clock_timestamp()) +
            make_interval(secs => trial.lease_s)),
        suspect_at=NULL,
        n_results=:to_n_results,
        last_step=:to_last_step,
        last_value=:to_last_value,
        best_value=:to_best_value,
        best_step=:to_best_step,
        best_score=:to_best_score,
        time_total_s=:to_time_total_s
    WHERE trial.id = :trial
    RETURNING trial.id
),
stored AS (
    INSERT INTO result (study_id, trial_id, attempt, step, value, metrics, time_total_s,
        reported_at)
    SELECT :study_id, :trial_id, :attempt, :step, :value, :metrics, :time_total_s,
        coalesce(:now, clock_timestamp())
    FROM main
)
SELECT *
FROM main;
-- Plan:
--   CTE Scan on main
--     CTE main
--       ->  Update on trial
--             ->  Index Scan using trial_pkey on trial
--                   Index Cond: (id = $13)
--     CTE stored
--       ->  Insert on result
--             ->  Subquery Scan on "*SELECT*"
--                   ->  CTE Scan on main main_1

COMMIT;
