-- studydb/operations/ask.py ask: Make a trial from the searcher's next draw, and start its
--   first attempt. Imported by studydb/lease/acquire.py, studydb/operations/leave_draw.py.

-- studydb/store/proposals.py ask: Make a trial from the next draw's proposal, and start the
--   trial's first attempt.
WITH drawn AS (
    UPDATE study
    SET next_number=(study.next_number + 1),
        next_draw=(study.next_draw + 1),
        n_counted=(study.n_counted + 1),
        n_running=CASE WHEN (study.max_concurrent IS NULL) THEN study.n_running ELSE
            study.n_running + 1 END
    WHERE study.id = :study
        AND study.status = 'RUNNING'
        AND (study.num_trials IS NULL OR study.n_counted < study.num_trials)
        AND (study.num_draws IS NULL OR study.next_draw < study.num_draws)
        AND (study.max_concurrent IS NULL OR study.n_running < study.max_concurrent)
        AND CASE WHEN coalesce((
            SELECT true
            FROM proposal
            WHERE proposal.study_id = study.id
                AND proposal.draw = study.next_draw
        ), false) THEN (
            SELECT CASE WHEN pg_try_advisory_xact_lock(1937012068, CAST(:study % 2147483648 AS
                INTEGER)) THEN true WHEN (set_config('lock_timeout', '2000', true) IS NOT NULL)
                THEN pg_advisory_xact_lock(1937012068, CAST(:study % 2147483648 AS INTEGER)) IS
                NOT NULL END
        ) ELSE false END
    RETURNING study.next_number - 1 AS number, study.next_draw - 1 AS draw
),
main AS (
    INSERT INTO trial (uuid, study_id, number, params, params_hash, config, is_unique,
        space_version, origin, parent_id, draw, counted, priority, bracket, ready,
        resource_class, failures, losses, flush_no, checkpoint_step, n_results, created_at,
        worker_id, token, lease_s, lease_expires_at, suspect_at, state, attempt, started_at)
    SELECT :uuid, :study_id, (SELECT drawn.number FROM drawn), proposal.params,
        proposal.params_hash, proposal.config, proposal.is_unique, proposal.space_version,
        proposal.origin, :parent_id, proposal.draw, :counted, :priority, proposal.bracket, true,
        proposal.resource_class, 0, 0, 0, 0, 0, coalesce(CAST(:now AS timestamptz),
        clock_timestamp()), :to_worker, :to_token, :to_lease_s, (coalesce(CAST(:now AS
        timestamptz), clock_timestamp()) + make_interval(secs => :to_lease_s)), NULL, 'RUNNING',
        1, coalesce(CAST(:now AS timestamptz), clock_timestamp())
    FROM proposal
    WHERE proposal.study_id = :study
        AND proposal.draw = (SELECT drawn.draw FROM drawn)
    RETURNING trial.id, trial.uuid, trial.number, trial.priority, trial.bracket, trial.attempt,
        trial.name, trial.params, trial.config, trial.draw, trial.checkpoint_id,
        trial.time_total_s, trial.has_tags, trial.resource_class
),
begun AS (
    INSERT INTO attempt (trial_id, attempt, study_id, token, worker_id, config, restored_id,
        start_step, live_through, flush_no, started_at)
    SELECT main.id, :attempt, :study_id, :token, :worker_id, CASE WHEN jsonb_typeof(main.config)
        = 'object' THEN main.config ELSE '{}' END, :restored_id, :start_step,
        4611686018427387904, 0, coalesce(CAST(:now AS timestamptz), clock_timestamp())
    FROM main
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
        AND EXISTS (SELECT FROM main)
)
SELECT *
FROM main
WHERE set_config('synchronous_commit', 'off', true) = 'off';
-- Plan:
--   CTE Scan on main
--     Filter: (set_config('synchronous_commit'::text, 'off'::text, true) = 'off'::text)
--     CTE drawn
--       ->  Update on study
--             InitPlan 2
--               ->  Result
--             ->  Index Scan using study_pkey on study
--                   Index Cond: (id = $1)
--                   Filter: (((num_trials IS NULL) OR (n_counted < num_trials)) AND ((num_draws IS NULL) OR (next_draw < num_draws)) AND ((max_concurrent IS NULL) OR (n_running < max_concurrent)) AND (status = 'RUNNING'::text) AND CASE WHEN COALESCE((SubPlan 1), false) THEN (InitPlan 2).col1 ELSE false END)
--                   SubPlan 1
--                     ->  Index Only Scan using proposal_pkey on proposal
--                           Index Cond: ((study_id = study.id) AND (draw = study.next_draw))
--     CTE main
--       ->  Insert on trial
--             ->  Subquery Scan on "*SELECT*"
--                   ->  Index Scan using proposal_pkey on proposal proposal_1
--                         Index Cond: ((study_id = $1) AND (draw = (InitPlan 5).col1))
--                         InitPlan 4
--                           ->  CTE Scan on drawn
--                         InitPlan 5
--                           ->  CTE Scan on drawn drawn_1
--     CTE begun
--       ->  Insert on attempt
--             ->  Subquery Scan on "*SELECT*_1"
--                   ->  CTE Scan on main main_1
--     CTE counted
--       ->  Update on counter
--             InitPlan 8
--               ->  CTE Scan on main main_2
--             ->  Result
--                   One-Time Filter: (InitPlan 8).col1
--                   ->  Index Scan using counter_pkey on counter
--                         Index Cond: ((study_id = $1) AND (shard = $21))
