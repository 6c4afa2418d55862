-- studydb/operations/ask.py ask: Make a trial from the searcher's next draw, and start its
--   first attempt. Imported by studydb/lease/acquire.py, studydb/operations/leave_draw.py.

BEGIN;

-- studydb/store/proposals.py ask: Make a trial from the next draw's proposal, and start the
--   trial's first attempt.
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
    AND coalesce((
        SELECT 1
        FROM proposal
        WHERE proposal.study_id = study.id
            AND proposal.draw = study.next_draw
    ), 0) = 1
RETURNING next_number - 1 AS number, next_draw - 1 AS draw;

COMMIT;

BEGIN;

-- studydb/store/proposals.py next_of: Read the next draw without a lock.
SELECT study.next_draw, (
    SELECT proposal.resource_class
    FROM proposal
    WHERE proposal.study_id = study.id
        AND proposal.draw = study.next_draw
) AS resource_class
FROM study
WHERE study.id = :study
    AND study.status = 'RUNNING'
    AND (study.num_trials IS NULL OR study.n_counted < study.num_trials)
    AND (study.num_draws IS NULL OR study.next_draw < study.num_draws)
    AND (study.max_concurrent IS NULL OR study.n_running < study.max_concurrent);

-- studydb/store/proposer.py outlook: Read the first draw without a proposal; exact if this
--   transaction locks the study's row.
SELECT (
    SELECT coalesce(max(proposal.draw) + 1, study.next_draw) AS coalesce_1
    FROM proposal
    WHERE proposal.study_id = study.id
        AND proposal.draw >= study.next_draw
) AS draw, study.next_draw, study.num_draws, study.num_trials, study.n_counted
FROM study
WHERE study.id = :study;

ROLLBACK;

BEGIN;

-- studydb/store/proposals.py store: Store proposals by draw; a draw that has a proposal keeps
--   it.
SELECT study.id
FROM study
WHERE study.id = :study;

-- studydb/store/proposals.py store
INSERT INTO proposal (study_id, draw, params, params_hash, config, origin, space_version,
    bracket, is_unique, resource_class, proposed_at)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING;

-- studydb/store/proposals.py store
DELETE FROM proposal
WHERE proposal.study_id = :study
    AND proposal.draw < (SELECT study.next_draw FROM study WHERE study.id = :study)
    AND proposal.draw >= (SELECT study.next_draw FROM study WHERE study.id = :study) - 1024;

-- studydb/store/proposals.py store
DELETE FROM proposal
WHERE proposal.study_id = :study
    AND proposal.draw < (SELECT study.next_draw FROM study WHERE study.id = :study)
    AND proposal.draw < (
        SELECT min(proposal.draw) AS min_1
        FROM proposal
        WHERE proposal.study_id = :study
    ) + 1024;

COMMIT;

BEGIN;

-- studydb/store/proposals.py ask: Make a trial from the next draw's proposal, and start the
--   trial's first attempt.
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
    AND coalesce((
        SELECT 1
        FROM proposal
        WHERE proposal.study_id = study.id
            AND proposal.draw = study.next_draw
    ), 0) = 1
RETURNING next_number - 1 AS number, next_draw - 1 AS draw;

-- studydb/store/proposals.py ask
INSERT INTO trial (uuid, study_id, number, params, params_hash, config, is_unique,
    space_version, origin, parent_id, draw, counted, priority, bracket, ready, resource_class,
    failures, losses, flush_no, checkpoint_step, n_results, created_at, worker_id, token,
    lease_s, lease_expires_at, suspect_at, state, attempt, started_at)
SELECT :uuid, :study_id, :drawn_number, proposal.params, proposal.params_hash, proposal.config,
    proposal.is_unique, proposal.space_version, proposal.origin, :parent_id, proposal.draw,
    :counted, :priority, proposal.bracket, 1, proposal.resource_class, 0, 0, 0, 0, 0, :now,
    :to_worker, :to_token, :to_lease_s, strftime('%Y-%m-%d %H:%M:%f', :now, (:to_lease_s) ||
    ' seconds'), NULL, 'RUNNING', 1, :now
FROM proposal
WHERE proposal.study_id = :study
    AND proposal.draw = :drawn_draw
RETURNING id, uuid, number, priority, bracket, attempt, name, params, config, draw,
    checkpoint_id, time_total_s, has_tags, resource_class;

-- studydb/store/proposals.py ask
INSERT INTO attempt (trial_id, attempt, study_id, token, worker_id, config, restored_id,
    start_step, live_through, flush_no, started_at)
SELECT :main_id, :attempt, :study_id, :token, :worker_id, CASE WHEN json_type(:main_config) =
    'object' THEN :main_config ELSE '{}' END, :restored_id, :start_step, 4611686018427387904, 0,
    :now;

-- studydb/store/proposals.py ask
UPDATE counter
SET pending=(counter.pending + 0),
    running=(counter.running + :by_running),
    paused=(counter.paused + 0),
    terminated=(counter.terminated + 0),
    error=(counter.error + 0)
WHERE counter.study_id = :study
    AND counter.shard = :shard_no;

COMMIT;

BEGIN;

-- studydb/store/proposer.py outlook: Read the first draw without a proposal; exact if this
--   transaction locks the study's row.
SELECT (
    SELECT coalesce(max(proposal.draw) + 1, study.next_draw) AS coalesce_1
    FROM proposal
    WHERE proposal.study_id = study.id
        AND proposal.draw >= study.next_draw
) AS draw, study.next_draw, study.num_draws, study.num_trials, study.n_counted
FROM study
WHERE study.id = :study;

ROLLBACK;
