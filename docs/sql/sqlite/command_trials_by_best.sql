-- studydb/db/connecting.py connect: Connect to a database; check the file and the schema.

BEGIN;

-- studydb/db/connecting.py connect
SELECT version_num
FROM studydb_version;

ROLLBACK;

-- studydb/operations/create.py load: Find a study by its name, and read it with its specs.

BEGIN;

-- studydb/store/studies.py find: Read a study with its specs; None if no study has that name.
SELECT study.id, study.uuid, study.name, study.status, study.metric, study.mode, study.seed,
    study.space_version, study.scheduler, study.searcher, study.rules, study.num_trials,
    study.num_draws, study.max_concurrent, study.max_failures, study.max_losses,
    study.checkpoints, study.settings, study.next_number, study.next_draw, study.n_counted,
    study.n_running, study.created_by, study.created_at, study.paused_by, study.pause_reason,
    study.objectives, study.proposer_token, study.proposer_worker_id, study.proposer_expires_at,
    study.best_values, study.started_at, study.stopped_at_once, study.checkpoint_bytes,
    study.deleting_at, search_space.space
FROM study
JOIN search_space ON search_space.study_id = study.id
    AND search_space.version = study.space_version
WHERE study.name = :by_name;

-- studydb/store/trainables.py with_role: Read the user's code with this role, in the order of
--   its creation, with its signatures.
SELECT trainable.id, trainable.uuid, trainable.study_id, trainable.kind, trainable.name,
    trainable.workdir, trainable.python_version, trainable.source, trainable.created_at,
    trainable.role, trainable.form, signature.key_id, signature.mac
FROM trainable
LEFT OUTER JOIN signature ON signature.trainable_id = trainable.id
WHERE trainable.study_id = :study
    AND trainable.role = :of_role
ORDER BY trainable.id;

ROLLBACK;

-- studydb/operations/reads.py listed_trials: Read a study's rows of `v_trial`, ordered by
--   number, or by rank with unranked trials last.

BEGIN;

-- studydb/store/ranking.py numbers: Read the numbers of a study's trials, best first; then
--   trials without a rank, by number.
SELECT trial.best_score, trial.number
FROM trial
WHERE trial.study_id = :study
    AND trial.rank_score IS NOT NULL
    AND trial.state != 'RUNNING'
ORDER BY trial.rank_score, trial.number
LIMIT 5
OFFSET 0;

-- studydb/store/ranking.py numbers
SELECT trial.best_score, trial.number
FROM trial
WHERE trial.study_id = :study
    AND trial.state = 'RUNNING'
    AND trial.best_value IS NOT NULL
    AND trial.best_value != 'NaN'
    AND trial.invalidated_at IS NULL
ORDER BY trial.best_score, trial.number
LIMIT 5
OFFSET 0;

-- studydb/store/ranking.py numbers
SELECT trial.number
FROM trial
WHERE trial.study_id = :study
    AND (trial.best_value IS NULL OR trial.best_value = 'NaN' OR trial.invalidated_at IS NOT
        NULL)
ORDER BY trial.number
LIMIT 4
OFFSET 0;

-- studydb/store/view_rows.py trials_numbered: Read the rows of `v_trial` with these numbers, in
--   no particular order.
SELECT v_trial.study, v_trial.number, v_trial.state, v_trial.reason, v_trial.params,
    v_trial.value, v_trial.best_value, v_trial.best_step, v_trial.last_step, v_trial.attempt,
    v_trial.failures, v_trial.losses, v_trial.started_at, v_trial.ended_at, v_trial.duration_s,
    v_trial.name, v_trial.tags, v_trial.changed, v_trial.parent, v_trial.invalidated_at,
    v_trial.resources
FROM v_trial
WHERE v_trial.study = (SELECT study.name FROM study WHERE study.id = :study)
    AND v_trial.number IN (SELECT value FROM json_each(:numbers))
ORDER BY v_trial.number;

ROLLBACK;
