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
RETURNING next_number - 1 AS number, next_draw - 1 AS draw;

-- studydb/store/single_statement.py begin: Insert a RUNNING trial with its first attempt.
INSERT INTO trial (uuid, study_id, number, state, params, params_hash, space_version, origin,
    parent_id, draw, counted, priority, ready, resource_class, bracket, attempt, failures,
    losses, token, flush_no, worker_id, lease_s, lease_expires_at, suspect_at, checkpoint_step,
    n_results, created_at, started_at)
VALUES (:uuid, :study_id, :number, 'RUNNING', :params, :params_hash, :space_version, :origin,
    :parent_id, :draw, :counted, :priority, 1, '', :bracket, :attempt, 0, 0, :to_token, 0,
    :to_worker, :to_lease_s, strftime('%Y-%m-%d %H:%M:%f', :now, (:to_lease_s) || ' seconds'),
    NULL, 0, 0, :now, :now)
RETURNING id, uuid, number, priority, bracket, attempt, params, checkpoint_id, time_total_s;

-- studydb/store/single_statement.py begin
INSERT INTO attempt (trial_id, attempt, study_id, token, worker_id, config, restored_id,
    start_step, live_through, flush_no, started_at)
SELECT :first_id, :attempt, :study_id, :token, :worker_id, :config, :restored_id, :start_step,
    4611686018427387904, 0, :now;

-- studydb/store/single_statement.py begin
UPDATE counter
SET pending=(counter.pending + 0),
    running=(counter.running + :by_running),
    paused=(counter.paused + 0),
    terminated=(counter.terminated + 0),
    error=(counter.error + 0)
WHERE counter.study_id = :study
    AND counter.shard = :shard_no;

COMMIT;
