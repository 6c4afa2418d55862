-- studydb/operations/report.py report: Store a batch and the decision on it in one transaction,
--   and renew the lease. Imported by studydb/lease/held.py.

-- studydb/store/single_statement.py report: Store a batch of results, and renew the lease.
WITH main AS (
    UPDATE trial
    SET flush_no=:to_flush_no,
        lease_expires_at=(coalesce(CAST(:now AS timestamptz), clock_timestamp()) +
            make_interval(secs => trial.lease_s)),
        suspect_at=NULL,
        n_results=:to_n_results,
        last_step=:to_last_step,
        last_value=:to_last_value,
        best_value=:to_best_value,
        best_step=:to_best_step,
        best_score=:to_best_score,
        time_total_s=coalesce(:to_time_total_s, trial.time_total_s)
    WHERE trial.id = :trial
        AND trial.attempt = :held_attempt
        AND trial.token = :held_token
        AND trial.state = 'RUNNING'
        AND trial.flush_no < :to_flush_no
        AND trial.n_results = :n_before
        AND (trial.attempt = 1 OR trial.flush_no > 0)
        AND trial.verdict IS NULL
        AND trial.request IS NULL
        AND (
            SELECT study.status
            FROM study
            WHERE study.id = trial.study_id
        ) = 'RUNNING'
    RETURNING trial.id
),
stored AS (
    INSERT INTO result (study_id, trial_id, attempt, step, value, metrics, time_total_s,
        reported_at)
    SELECT :study_id, :trial_id, :attempt, rows.*, coalesce(:now, clock_timestamp())
    FROM unnest(:step, :value, :metrics, :time_total_s) AS rows
    WHERE EXISTS (SELECT FROM main)
)
SELECT *
FROM main;
-- Plan:
--   CTE Scan on main
--     CTE main
--       ->  Update on trial
--             ->  Index Scan using trial_pkey on trial
--                   Index Cond: (id = $10)
--                   Filter: ((verdict IS NULL) AND (request IS NULL) AND (flush_no < $1) AND (attempt = $11) AND (token = ($12)::text) AND (state = ($13)::text) AND (n_results = $14) AND ((attempt = 1) OR (flush_no > 0)) AND ((SubPlan 1) = 'RUNNING'::text))
--                   SubPlan 1
--                     ->  Index Scan using study_pkey on study
--                           Index Cond: (id = trial.study_id)
--     CTE stored
--       ->  Insert on result
--             ->  Subquery Scan on "*SELECT*"
--                   ->  Result
--                         One-Time Filter: (InitPlan 3).col1
--                         InitPlan 3
--                           ->  CTE Scan on main main_1
--                         ->  Function Scan on rows
