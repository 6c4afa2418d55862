-- studydb/operations/ask.py ask: Make a trial from the searcher's next draw, and start its
--   first attempt. Imported by studydb/lease/acquire.py.

BEGIN;

-- studydb/store/proposals.py take: Take a number and a draw for a new trial that is RUNNING
--   from the start.
UPDATE study
SET next_number=(study.next_number + 1),
    next_draw=(study.next_draw + 1),
    n_counted=(study.n_counted + 1),
    n_running=CASE WHEN (study.max_concurrent IS NULL) THEN study.n_running ELSE study.n_running
        + 1 END
WHERE study.id = :study
    AND study.status = 'RUNNING'
    AND (study.num_trials IS NULL OR study.n_counted < study.num_trials)
    AND (study.num_draws IS NULL OR study.next_draw < study.num_draws)
    AND (study.max_concurrent IS NULL OR study.n_running < study.max_concurrent)
RETURNING study.next_number - 1 AS number, study.next_draw - 1 AS draw;
-- Plan:
--   Update on study
--     ->  Index Scan using study_pkey on study
--           Index Cond: (id = $5)
--           Filter: (((num_trials IS NULL) OR (n_counted < num_trials)) AND ((num_draws IS NULL) OR (next_draw < num_draws)) AND ((max_concurrent IS NULL) OR (n_running < max_concurrent)) AND (status = ($6)::text))

-- studydb/store/single_statement.py begin: Insert a RUNNING trial with its first attempt.
WITH first AS (
    INSERT INTO trial (uuid, study_id, number, state, params, params_hash, space_version,
        origin, parent_id, draw, counted, priority, ready, resource_class, bracket, attempt,
        failures, losses, token, flush_no, worker_id, lease_s, lease_expires_at, suspect_at,
        checkpoint_step, n_results, created_at, started_at)
    VALUES (:uuid, :study_id, :number, 'RUNNING', :params, :params_hash, :space_version,
        :origin, :parent_id, :draw, :counted, :priority, true, '', :bracket, 1, 0, 0, :to_token,
        0, :to_worker, :to_lease_s, (coalesce(CAST(:now AS timestamptz), clock_timestamp()) +
        make_interval(secs => :to_lease_s)), NULL, 0, 0, coalesce(CAST(:now AS timestamptz),
        clock_timestamp()), coalesce(CAST(:now AS timestamptz), clock_timestamp()))
    RETURNING trial.id, trial.uuid, trial.number, trial.priority, trial.bracket, trial.attempt,
        trial.params, trial.checkpoint_id, trial.time_total_s
),
begun AS (
    INSERT INTO attempt (trial_id, attempt, study_id, token, worker_id, config, restored_id,
        start_step, live_through, flush_no, started_at)
    SELECT (SELECT first.id FROM first), :attempt, :study_id, :token, :worker_id, :config,
        :restored_id, :start_step, 4611686018427387904, 0, coalesce(CAST(:now AS timestamptz),
        clock_timestamp())
    WHERE EXISTS (SELECT FROM first)
),
counted AS (
    UPDATE counter
    SET pending=(counter.pending + 0),
        running=(counter.running + :by_running),
        paused=(counter.paused + 0),
        terminated=(counter.terminated + 0),
        error=(counter.error + 0)
    WHERE counter.study_id = :study
        AND counter.shard = :shard_no
        AND EXISTS (SELECT FROM first)
)
SELECT *
FROM first
WHERE set_config('synchronous_commit', 'off', true) = 'off';
-- Plan:
--   CTE Scan on first
--     Filter: (set_config('synchronous_commit'::text, 'off'::text, true) = 'off'::text)
--     CTE first
--       ->  Insert on trial
--             ->  Result
--     CTE begun
--       ->  Insert on attempt
--             ->  Subquery Scan on "*SELECT*"
--                   ->  Result
--                         One-Time Filter: (InitPlan 3).col1
--                         InitPlan 2
--                           ->  CTE Scan on first first_1
--                         InitPlan 3
--                           ->  CTE Scan on first first_2
--     CTE counted
--       ->  Update on counter
--             InitPlan 5
--               ->  CTE Scan on first first_3
--             ->  Result
--                   One-Time Filter: (InitPlan 5).col1
--                   ->  Index Scan using counter_pkey on counter
--                         Index Cond: ((study_id = $28) AND (shard = $29))

COMMIT;
