-- studydb/operations/finish.py finish: End an attempt and move its trial to its next state.
--   Imported by studydb/lease/held.py.

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

-- studydb/store/results.py append: Insert results of a trial that the caller has locked by
--   `leases.hold`.
INSERT INTO result (study_id, trial_id, attempt, step, value, metrics, time_total_s,
    reported_at)
SELECT :study_id, :trial_id, :attempt, rows.*, coalesce(:now, clock_timestamp())
FROM unnest(:step, :value, :metrics, :time_total_s) AS rows;
-- Plan:
--   Insert on result
--     ->  Subquery Scan on "*SELECT*"
--           ->  Function Scan on rows

-- studydb/store/results.py spans: Find the spans of a trial's live results, ordered by step.
SELECT attempt.attempt, attempt.live_through
FROM attempt
WHERE attempt.trial_id = :trial
    AND attempt.live_through > 0
ORDER BY attempt.attempt;
-- Plan:
--   Index Scan using attempt_pkey on attempt
--     Index Cond: (trial_id = $1)
--     Filter: (live_through > $2)

-- studydb/store/results.py page: Read the first `limit` rows of a span, ordered by step.
SELECT result.step, result.value, result.metrics, result.time_total_s, result.attempt,
    result.reported_at
FROM result
WHERE result.study_id = :study
    AND result.trial_id = :trial
    AND result.attempt = :no
    AND result.step > :after
    AND result.step <= :through
ORDER BY result.step
LIMIT :limit;
-- Plan:
--   Limit
--     ->  Index Scan using result_pkey on result
--           Index Cond: ((study_id = $1) AND (trial_id = $2) AND (attempt = $3) AND (step > $4) AND (step <= $5))

-- studydb/store/leases.py end: Move a held trial to the state of `ending`, and end its lease.
UPDATE trial
SET state='TERMINATED',
    reason=:to_reason,
    ready=false,
    ready_at=NULL,
    request=NULL,
    verdict=NULL,
    verdict_reason=NULL,
    verdict_by=NULL,
    paused_by=NULL,
    failures=:to_failures,
    losses=:to_losses,
    token=NULL,
    worker_id=NULL,
    lease_s=NULL,
    lease_expires_at=NULL,
    suspect_at=NULL,
    n_results=:to_n_results,
    last_step=:to_last_step,
    last_value=:to_last_value,
    best_value=:to_best_value,
    best_step=:to_best_step,
    best_score=:to_best_score,
    rank_score=CASE WHEN (trial.invalidated_at IS NULL) THEN CAST(:to_rank_score AS DOUBLE
        PRECISION) END,
    time_total_s=:to_time_total_s,
    metric_summary=:to_metrics,
    ended_at=coalesce(CAST(:now AS timestamptz), clock_timestamp()),
    request_now=NULL
WHERE trial.id = :trial
    AND trial.state IN ('PAUSED', 'PENDING', 'RUNNING');
-- Plan:
--   Update on trial
--     ->  Index Scan using trial_pkey on trial
--           Index Cond: (id = $28)
--           Filter: (state = ANY ('{PAUSED,PENDING,RUNNING}'::text[]))

-- studydb/store/attempts.py end: Store an attempt's end, and `flush_no`, by which a duplicate
--   request is recognized.
UPDATE attempt
SET flush_no=:to_flush_no,
    ended_at=coalesce(CAST(:now AS timestamptz), clock_timestamp()),
    reason=:to_reason,
    verdict=:to_verdict,
    verdict_reason=:to_verdict_reason,
    verdict_by=:to_verdict_by,
    error_type=:to_error_type,
    error_message=:to_error_message,
    traceback=:to_traceback,
    log_dir=:to_log_dir,
    log_tail=:to_log_tail,
    start=:to_start,
    start_s=:to_start_s,
    provenance=:to_provenance
WHERE attempt.trial_id = :trial
    AND attempt.attempt = :no
    AND attempt.ended_at IS NULL;
-- Plan:
--   Update on attempt
--     ->  Index Scan using attempt_pkey on attempt
--           Index Cond: ((trial_id = $15) AND (attempt = $16))
--           Filter: (ended_at IS NULL)

-- studydb/store/counters.py move: Move `n` trials between the counts of two states. A
--   transaction locks the shard's row last.
UPDATE counter
SET pending=(counter.pending + 0),
    running=(counter.running + :by_running),
    paused=(counter.paused + 0),
    terminated=(counter.terminated + :by_terminated),
    error=(counter.error + 0)
WHERE counter.study_id = :study
    AND counter.shard = :shard_no;
-- Plan:
--   Update on counter
--     ->  Index Scan using counter_pkey on counter
--           Index Cond: ((study_id = $6) AND (shard = $7))

COMMIT;
