-- studydb/operations/ask.py ask: Make a trial from the searcher's next draw, and start its
--   first attempt. Imported by studydb/lease/acquire.py.

-- studydb/store/proposals.py ask: Make a trial of the next draw's proposal, and its first
--   attempt; PostgreSQL only.
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
        AND (
            SELECT CASE WHEN pg_try_advisory_xact_lock(1937012068, CAST(:study % 2147483648 AS
                INTEGER)) THEN true WHEN (set_config('lock_timeout', '2000', true) IS NOT NULL)
                THEN pg_advisory_xact_lock(1937012068, CAST(:study % 2147483648 AS INTEGER)) IS
                NOT NULL END
        )
        AND coalesce(study.points ? CAST(study.next_draw / 64 AS TEXT), false)
    RETURNING study.next_number - 1 AS number, study.next_draw - 1 AS draw, study.points #>
        ARRAY[CAST((study.next_draw - 1) / 64 AS TEXT), CAST((study.next_draw - 1) % 64 AS
        TEXT)] AS point
),
made AS (
    INSERT INTO trial (uuid, study_id, number, params, params_hash, space_version, origin,
        parent_id, draw, counted, priority, bracket, ready, resource_class, failures, losses,
        flush_no, checkpoint_step, n_results, created_at, worker_id, token, lease_s,
        lease_expires_at, suspect_at, state, attempt, started_at)
    SELECT :uuid, :study_id, drawn.number AS number, drawn.point -> 'params', drawn.point ->>
        'hash', :space_version, :origin, :parent_id, drawn.draw AS draw, :counted, :priority,
        coalesce(CAST(drawn.point ->> 'bracket' AS INTEGER), 0) AS coalesce_1, true, '', 0, 0,
        0, 0, 0, coalesce(CAST(:now AS timestamptz), clock_timestamp()), :to_worker, :to_token,
        :to_lease_s, (coalesce(CAST(:now AS timestamptz), clock_timestamp()) +
        make_interval(secs => :to_lease_s)), NULL, 'RUNNING', 1, coalesce(CAST(:now AS
        timestamptz), clock_timestamp())
    FROM drawn
    RETURNING trial.id, trial.uuid, trial.number, trial.priority, trial.bracket, trial.attempt,
        trial.params, trial.checkpoint_id, trial.time_total_s
),
begun AS (
    INSERT INTO attempt (trial_id, attempt, study_id, token, worker_id, config, restored_id,
        start_step, live_through, flush_no, started_at)
    SELECT made.id AS id, :attempt, :study_id, :token, :worker_id, :constants || made.params,
        :restored_id, :start_step, 4611686018427387904, 0, coalesce(CAST(:now AS timestamptz),
        clock_timestamp())
    FROM made
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
        AND (EXISTS (SELECT drawn.draw FROM drawn))
)
SELECT made.id, made.uuid, made.number, made.priority, made.bracket, made.attempt, made.params,
    made.checkpoint_id, made.time_total_s, drawn.draw
FROM made
JOIN drawn ON true
WHERE set_config('synchronous_commit', 'off', true) = 'off';
-- Plan:
--   Nested Loop
--     Join Filter: (set_config('synchronous_commit'::text, 'off'::text, true) = 'off'::text)
--     CTE drawn
--       ->  Update on study
--             InitPlan 1
--               ->  Result
--             ->  Result
--                   One-Time Filter: (InitPlan 1).col1
--                   ->  Index Scan using study_pkey on study
--                         Index Cond: (id = $1)
--                         Filter: (((num_trials IS NULL) OR (n_counted < num_trials)) AND ((num_draws IS NULL) OR (next_draw < num_draws)) AND ((max_concurrent IS NULL) OR (n_running < max_concurrent)) AND (status = 'RUNNING'::text) AND COALESCE((points ? ((next_draw / '64'::bigint))::text), false))
--     CTE made
--       ->  Insert on trial
--             ->  Subquery Scan on "*SELECT*"
--                   ->  CTE Scan on drawn drawn_1
--     CTE begun
--       ->  Insert on attempt
--             ->  Subquery Scan on "*SELECT*_1"
--                   ->  CTE Scan on made made_1
--     CTE counted
--       ->  Update on counter
--             InitPlan 5
--               ->  CTE Scan on drawn drawn_2
--             ->  Result
--                   One-Time Filter: (InitPlan 5).col1
--                   ->  Index Scan using counter_pkey on counter
--                         Index Cond: ((study_id = $1) AND (shard = $24))
--     ->  CTE Scan on made
--     ->  CTE Scan on drawn
