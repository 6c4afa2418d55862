-- studydb/operations/recover.py recover: Mark expired leases, and end lost attempts. Imported
--   by studydb/lease/acquire.py, studydb/lease/loop.py, studydb/lease/own_worker.py,
--   studydb/study/loading.py, studydb/study/simulated_run.py, studydb/worker/supervisor.py.

-- studydb/store/sweeps.py any_due: Tell, without a lock, whether `wake`, `suspect`, `unpause`
--   or `lost` may find a trial.
SELECT (
    SELECT trial.ready_at
    FROM trial
    WHERE trial.study_id = :study
        AND trial.state = 'PENDING'
        AND NOT trial.ready
    ORDER BY trial.ready_at
    LIMIT 1
) <= coalesce(CAST(:now AS timestamptz), clock_timestamp()) OR (
    SELECT trial.id
    FROM trial
    WHERE trial.study_id = :study
        AND trial.state = 'RUNNING'
        AND trial.lease_expires_at < coalesce(CAST(:now AS timestamptz), clock_timestamp())
    LIMIT 1
) IS NOT NULL OR (
    SELECT trial.id
    FROM trial
    WHERE trial.study_id = :study
        AND trial.state = 'PAUSED'
        AND trial.paused_by = 'study'
        AND (SELECT study.status FROM study WHERE study.id = :study) = 'RUNNING'
    LIMIT 1
) IS NOT NULL AS is_due;
-- Plan:
--   Result
--     InitPlan 1
--       ->  Limit
--             ->  Index Only Scan using trial_backoff on trial
--                   Index Cond: (study_id = $1)
--     InitPlan 2
--       ->  Limit
--             ->  Index Scan using trial_running on trial trial_1
--                   Index Cond: (study_id = $1)
--                   Filter: (lease_expires_at < COALESCE($3, clock_timestamp()))
--     InitPlan 4
--       ->  Limit
--             InitPlan 3
--               ->  Index Scan using study_pkey on study
--                     Index Cond: (id = $1)
--             ->  Result
--                   One-Time Filter: ((InitPlan 3).col1 = ($5)::text)
--                   ->  Index Scan using trial_paused_by_study on trial trial_2
--                         Index Cond: (study_id = $1)

BEGIN;

-- studydb/store/sweeps.py wake: Set `ready` of PENDING trials whose back-off is over, and count
--   these trials.
WITH waited AS MATERIALIZED (
    SELECT trial.id AS id
    FROM trial
    WHERE trial.study_id = :study
        AND trial.state = 'PENDING'
        AND NOT trial.ready
        AND trial.ready_at <= coalesce(CAST(:now AS timestamptz), clock_timestamp())
    ORDER BY trial.id + 0
    LIMIT 100
    FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE trial
SET ready=true,
    ready_at=NULL
WHERE trial.id IN (SELECT waited.id FROM waited)
    AND trial.state = 'PENDING'
RETURNING trial.id;
-- Plan:
--   Update on trial
--     CTE waited
--       ->  Limit
--             ->  LockRows
--                   ->  Sort
--                         Sort Key: ((trial_1.id + $3))
--                         ->  Bitmap Heap Scan on trial trial_1
--                               Recheck Cond: ((study_id = $1) AND (state = 'PENDING'::text) AND (NOT ready))
--                               Filter: (ready_at <= COALESCE($2, clock_timestamp()))
--                               ->  Bitmap Index Scan on trial_backoff
--                                     Index Cond: (study_id = $1)
--     ->  Nested Loop
--           ->  HashAggregate
--                 Group Key: waited.id
--                 ->  CTE Scan on waited
--           ->  Index Scan using trial_pkey on trial
--                 Index Cond: (id = waited.id)
--                 Filter: (state = ($7)::text)

-- studydb/store/sweeps.py suspect: Mark as suspects the trials whose leases have expired, and
--   count these trials.
WITH expired AS MATERIALIZED (
    SELECT trial.id AS id
    FROM trial
    WHERE trial.study_id = :study
        AND trial.state = 'RUNNING'
        AND trial.lease_expires_at < coalesce(CAST(:now AS timestamptz), clock_timestamp())
        AND trial.suspect_at IS NULL
    ORDER BY trial.id + 0
    LIMIT 100
    FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE trial
SET suspect_at=coalesce(CAST(:now AS timestamptz), clock_timestamp())
WHERE trial.id IN (SELECT expired.id FROM expired)
    AND trial.state = 'RUNNING'
RETURNING trial.id;
-- Plan:
--   Update on trial
--     CTE expired
--       ->  Limit
--             ->  LockRows
--                   ->  Sort
--                         Sort Key: ((trial_1.id + $3))
--                         ->  Index Scan using trial_running on trial trial_1
--                               Index Cond: (study_id = $1)
--                               Filter: ((suspect_at IS NULL) AND (state = 'RUNNING'::text) AND (lease_expires_at < COALESCE($2, clock_timestamp())))
--     ->  Nested Loop
--           ->  HashAggregate
--                 Group Key: expired.id
--                 ->  CTE Scan on expired
--           ->  Index Scan using trial_pkey on trial
--                 Index Cond: (id = expired.id)
--                 Filter: (state = ($5)::text)

-- studydb/store/sweeps.py unpause: If the study is RUNNING, move the trials that were paused
--   with it to PENDING; count them.
WITH paused AS MATERIALIZED (
    SELECT trial.id AS id
    FROM trial
    WHERE trial.study_id = :study
        AND trial.state = 'PAUSED'
        AND trial.paused_by = 'study'
        AND (SELECT study.status FROM study WHERE study.id = :study) = 'RUNNING'
    ORDER BY trial.id + 0
    LIMIT 100
    FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE trial
SET state='PENDING',
    ready=true,
    ready_at=NULL,
    paused_by=NULL
WHERE trial.id IN (SELECT paused.id FROM paused)
    AND trial.state = 'PAUSED'
RETURNING trial.id;
-- Plan:
--   Update on trial
--     CTE paused
--       ->  Limit
--             InitPlan 1
--               ->  Index Scan using study_pkey on study
--                     Index Cond: (id = $1)
--             ->  LockRows
--                   ->  Sort
--                         Sort Key: ((trial_1.id + $3))
--                         ->  Result
--                               One-Time Filter: ((InitPlan 1).col1 = ($2)::text)
--                               ->  Index Scan using trial_paused_by_study on trial trial_1
--                                     Index Cond: (study_id = $1)
--                                     Filter: ((state = 'PAUSED'::text) AND (paused_by = 'study'::text))
--     ->  Nested Loop
--           ->  HashAggregate
--                 Group Key: paused.id
--                 ->  CTE Scan on paused
--           ->  Index Scan using trial_pkey on trial
--                 Index Cond: (id = paused.id)
--                 Filter: (state = ($9)::text)

-- studydb/store/sweeps.py lost: Find up to 100 expired leases whose trials have been suspects
--   for a renewal period.
SELECT trial.id, trial.study_id, trial.number, trial.bracket, trial.attempt, trial.token,
    trial.lease_s
FROM trial
WHERE trial.study_id = :study
    AND trial.state = 'RUNNING'
    AND trial.lease_expires_at < coalesce(CAST(:now AS timestamptz), clock_timestamp())
    AND trial.suspect_at IS NOT NULL
    AND (trial.suspect_at + make_interval(secs => trial.lease_s * 0.2222222222222222)) <=
        coalesce(CAST(:now AS timestamptz), clock_timestamp())
ORDER BY trial.id + 0
LIMIT 100;
-- Plan:
--   Limit
--     ->  Sort
--           Sort Key: ((id + $4))
--           ->  Index Scan using trial_running on trial
--                 Index Cond: (study_id = $1)
--                 Filter: ((suspect_at IS NOT NULL) AND (lease_expires_at < COALESCE($2, clock_timestamp())) AND ((suspect_at + make_interval(0, 0, 0, 0, 0, 0, (lease_s * $3))) <= COALESCE($2, clock_timestamp())))

COMMIT;

BEGIN;

-- studydb/store/sweeps.py hold_lost: Lock the trial of a lost lease.
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
    AND trial.lease_expires_at < coalesce(CAST(:now AS timestamptz), clock_timestamp())
    AND trial.suspect_at IS NOT NULL
    AND (trial.suspect_at + make_interval(secs => trial.lease_s * 0.2222222222222222)) <=
        coalesce(CAST(:now AS timestamptz), clock_timestamp())
FOR NO KEY UPDATE OF trial SKIP LOCKED;
-- Plan:
--   LockRows
--     ->  Index Scan using trial_pkey on trial
--           Index Cond: (id = $3)
--           Filter: ((suspect_at IS NOT NULL) AND (attempt = $4) AND (token = ($5)::text) AND (state = ($6)::text) AND (lease_expires_at < COALESCE($7, clock_timestamp())) AND ((suspect_at + make_interval(0, 0, 0, 0, 0, 0, (lease_s * $8))) <= COALESCE($7, clock_timestamp())))
--           SubPlan 1
--             ->  Index Scan using study_pkey on study
--                   Index Cond: (id = trial.study_id)

-- studydb/store/leases.py end: Move a held trial to the state of `ending`, and end its lease.
UPDATE trial
SET state='PENDING',
    reason=NULL,
    ready=(:delay_s <= 0),
    ready_at=(coalesce(CAST(:now AS timestamptz), clock_timestamp()) + make_interval(secs =>
        :delay_s)),
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
    ended_at=NULL,
    request_now=NULL
WHERE trial.id = :trial
    AND trial.state IN ('PAUSED', 'RUNNING');
-- Plan:
--   Update on trial
--     ->  Index Scan using trial_pkey on trial
--           Index Cond: (id = $29)
--           Filter: (state = ANY ('{PAUSED,RUNNING}'::text[]))

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
    running=(counter.running + :by_running),
    paused=(counter.paused + 0),
    terminated=(counter.terminated + 0),
    error=(counter.error + 0)
WHERE counter.study_id = :study
    AND counter.shard = :shard_no;
-- Plan:
--   Update on counter
--     ->  Index Scan using counter_pkey on counter
--           Index Cond: ((study_id = $6) AND (shard = $7))

COMMIT;
