-- studydb/operations/claim.py claim: Claim a study's first PENDING trial, leaving out trials
--   with their own requests for resources. Imported by studydb/lease/acquire.py,
--   studydb/operations/ask.py, studydb/operations/claim_fitting.py.

BEGIN;

-- studydb/store/single_statement.py claim: Give the first runnable trial (PENDING and ready) of
--   a study to a worker; start an attempt.
SELECT trial.id, trial.config IS NOT NULL AS has_config
FROM trial
WHERE trial.study_id = :study
    AND trial.state = 'PENDING'
    AND trial.ready = 1
    AND trial.resource_class = ''
    AND (SELECT study.status FROM study WHERE study.id = :study) = 'RUNNING'
    AND (trial.priority, trial.number) > (:after_priority, :after_number)
ORDER BY trial.priority, trial.number
LIMIT 1
OFFSET 0;

-- studydb/store/single_statement.py claim
UPDATE study
SET n_running=(study.n_running + 1)
WHERE study.id = :study
    AND study.status = 'RUNNING'
    AND (study.max_concurrent IS NULL OR study.n_running < study.max_concurrent)
    AND :runnable_has_config = 1
RETURNING id;

-- studydb/store/single_statement.py claim
UPDATE trial
SET state='RUNNING',
    attempt=(trial.attempt + 1),
    token=:to_token,
    flush_no=0,
    worker_id=:to_worker,
    lease_s=:to_lease_s,
    lease_expires_at=strftime('%Y-%m-%d %H:%M:%f', :now, (:to_lease_s) || ' seconds'),
    suspect_at=NULL,
    started_at=coalesce(trial.started_at, :now)
WHERE trial.id = :runnable_id
    AND trial.state = 'PENDING'
    AND true
RETURNING id, uuid, number, priority, bracket, attempt, name, params, config, draw,
    checkpoint_id, time_total_s, has_tags, resource_class;

-- studydb/store/single_statement.py claim
INSERT INTO attempt (trial_id, attempt, study_id, token, worker_id, config, restored_id,
    start_step, live_through, flush_no, started_at)
SELECT :main_id, :main_attempt AS main_1, :study_id, :token, :worker_id, CASE WHEN
    json_type(:main_config) = 'object' THEN :main_config ELSE '{}' END, :main_checkpoint_id AS
    main_2, coalesce((
    SELECT checkpoint.step
    FROM checkpoint
    WHERE checkpoint.id = :main_checkpoint_id
), 0) + 1, 4611686018427387904, 0, :now;

-- studydb/store/single_statement.py claim
UPDATE counter
SET pending=(counter.pending + :by_pending),
    running=(counter.running + :by_running),
    paused=(counter.paused + 0),
    terminated=(counter.terminated + 0),
    error=(counter.error + 0)
WHERE counter.study_id = :study
    AND counter.shard = :shard_no;

COMMIT;
