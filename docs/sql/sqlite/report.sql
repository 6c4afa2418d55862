-- studydb/operations/report.py report: Store a batch and the decision on it in one transaction,
--   and renew the lease. Imported by studydb/lease/held.py.

BEGIN;

-- studydb/store/single_statement.py report: Store a batch of results, and renew the lease.
UPDATE trial
SET flush_no=:to_flush_no,
    lease_expires_at=strftime('%Y-%m-%d %H:%M:%f', :now, (trial.lease_s) || ' seconds'),
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
RETURNING id;

-- studydb/store/single_statement.py report
INSERT INTO result (study_id, trial_id, attempt, step, value, metrics, time_total_s,
    reported_at)
VALUES (?, ?, ?, ?, ?, ?, ?, ?);

COMMIT;
