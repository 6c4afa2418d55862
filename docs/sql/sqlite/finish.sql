-- studydb/operations/finish.py finish: End an attempt and move its trial to its next state.
--   Imported by studydb/lease/held.py.

BEGIN;

-- studydb/store/single_statement.py finish: Store an attempt's last batch and complete its
--   trial, in a study without `max_concurrent`.
UPDATE trial
SET state='TERMINATED',
    reason=:to_reason,
    ready=0,
    ready_at=NULL,
    request=NULL,
    verdict=NULL,
    verdict_reason=NULL,
    verdict_by=NULL,
    paused_by=NULL,
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
    time_total_s=coalesce(:to_time_total_s, trial.time_total_s),
    metric_summary=:to_metrics,
    ended_at=:now,
    request_now=NULL
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
    AND trial.source_checkpoint_id IS NULL
RETURNING failures, losses;

-- studydb/store/single_statement.py finish
INSERT INTO result (study_id, trial_id, attempt, step, value, metrics, time_total_s,
    reported_at)
VALUES (?, ?, ?, ?, ?, ?, ?, ?);

-- studydb/store/single_statement.py finish
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

-- studydb/store/single_statement.py finish
UPDATE counter
SET pending=(counter.pending + 0),
    running=(counter.running + :by_running),
    paused=(counter.paused + 0),
    terminated=(counter.terminated + :by_terminated),
    error=(counter.error + 0)
WHERE counter.study_id = :study
    AND counter.shard = :shard_no;

COMMIT;
