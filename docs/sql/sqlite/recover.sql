-- studydb/operations/recover.py recover_host: Recover the trials of dead processes of this
--   host, without waiting until their leases expire. Imported by studydb/lease/acquire.py,
--   studydb/lease/loop.py, studydb/lease/own_worker.py, studydb/study/loading.py,
--   studydb/study/simulated_run.py, studydb/worker/supervisor.py.

BEGIN;

-- studydb/store/sweeps.py of_host: Find the leases whose holders have the boot id and pid
--   namespace of `process`.
SELECT trial.id, trial.study_id, trial.number, trial.bracket, trial.attempt, trial.token,
    trial.lease_s, worker.host, worker.boot_id, worker.pid_namespace, worker.pid, worker.started
FROM trial
JOIN worker ON worker.id = trial.worker_id
WHERE trial.study_id = :study
    AND trial.state = 'RUNNING'
    AND worker.boot_id = :of_boot
    AND worker.pid_namespace = :of_namespace
ORDER BY trial.id + 0;

ROLLBACK;

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
    AND trial.state = 'RUNNING';

-- studydb/store/leases.py end: Move a held trial to the state of `ending`, and end its lease.
UPDATE trial
SET state='PENDING',
    reason=NULL,
    ready=(:delay_s <= 0),
    ready_at=strftime('%Y-%m-%d %H:%M:%f', :now, (:delay_s) || ' seconds'),
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
    rank_score=CASE WHEN (trial.invalidated_at IS NULL) THEN CAST(:to_rank_score AS DOUBLE) END,
    time_total_s=:to_time_total_s,
    metric_summary=:to_metrics,
    ended_at=NULL,
    request_now=NULL
WHERE trial.id = :trial
    AND trial.state IN ('PAUSED', 'RUNNING') = 1;

-- studydb/store/attempts.py end: Store an attempt's end, and `flush_no`, by which a duplicate
--   request is recognized.
UPDATE attempt
SET flush_no=:to_flush_no,
    ended_at=:now,
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

-- studydb/store/events.py append: Append one event.
INSERT INTO event (study_id, trial_id, attempt, worker_id, kind, actor, data, token, at)
VALUES (:study_id, :trial_id, :attempt, :worker_id, :kind, :actor, :data, :token, :now);

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

COMMIT;
