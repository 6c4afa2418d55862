-- studydb/db/connecting.py connect: Connect to a database; check the file and the schema.

BEGIN;

-- studydb/db/connecting.py connect
SELECT version_num
FROM studydb_version;
-- Plan:
--   Index Only Scan using studydb_version_pkc on studydb_version

COMMIT;

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
-- Plan:
--   Nested Loop
--     Join Filter: ((study.id = search_space.study_id) AND (search_space.version = study.space_version))
--     ->  Index Scan using study_name_key on study
--           Index Cond: (name = ($1)::text)
--     ->  Index Scan using search_space_pkey on search_space

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
-- Plan:
--   Nested Loop Left Join
--     Join Filter: (signature.trainable_id = trainable.id)
--     ->  Index Scan using trainable_pkey on trainable
--           Filter: ((study_id = $1) AND (role = ($2)::text))
--     ->  Index Scan using signature_pkey on signature

COMMIT;

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
LIMIT 5;
-- Plan:
--   Limit
--     ->  Index Scan using trial_rank on trial
--           Index Cond: (study_id = $1)
--           Filter: (state <> ($2)::text)

-- studydb/store/ranking.py numbers
SELECT trial.best_score, trial.number
FROM trial
WHERE trial.study_id = :study
    AND trial.state = 'RUNNING'
    AND trial.best_value IS NOT NULL
    AND trial.best_value != nan
    AND trial.invalidated_at IS NULL
ORDER BY trial.best_score, trial.number
LIMIT 5;
-- Plan:
--   Limit
--     ->  Sort
--           Sort Key: best_score, number
--           ->  Index Scan using trial_running on trial
--                 Index Cond: (study_id = $1)
--                 Filter: ((best_value IS NOT NULL) AND (invalidated_at IS NULL) AND (best_value <> $2))

-- studydb/store/ranking.py numbers
SELECT trial.number
FROM trial
WHERE trial.study_id = :study
    AND (trial.best_value IS NULL OR trial.best_value = nan OR trial.invalidated_at IS NOT NULL)
ORDER BY trial.number
LIMIT 4;
-- Plan:
--   Limit
--     ->  Index Scan using trial_study_id_number_key on trial
--           Index Cond: (study_id = $1)
--           Filter: ((best_value IS NULL) OR (best_value = $2) OR (invalidated_at IS NOT NULL))

-- studydb/store/view_rows.py trials_numbered: Read the rows of `v_trial` with these numbers, in
--   no particular order.
SELECT v_trial.study, v_trial.number, v_trial.state, v_trial.reason, v_trial.params,
    v_trial.value, v_trial.best_value, v_trial.best_step, v_trial.last_step, v_trial.attempt,
    v_trial.failures, v_trial.losses, v_trial.started_at, v_trial.ended_at, v_trial.duration_s,
    v_trial.name, v_trial.tags, v_trial.changed, v_trial.parent, v_trial.invalidated_at,
    v_trial.resources
FROM v_trial
WHERE v_trial.study = (SELECT study.name FROM study WHERE study.id = :study)
    AND v_trial.number = ANY(:numbers)
ORDER BY v_trial.number;
-- Plan:
--   Sort
--     Sort Key: t.number
--     InitPlan 1
--       ->  Index Scan using study_pkey on study
--             Index Cond: (id = $1)
--     ->  Nested Loop
--           ->  Index Scan using study_name_key on study s
--                 Index Cond: (name = (InitPlan 1).col1)
--           ->  Index Scan using trial_study_id_number_key on trial t
--                 Index Cond: ((study_id = s.id) AND (number = ANY ($2)))
--           SubPlan 2
--             ->  Aggregate
--                   ->  Index Scan using attempt_pkey on attempt a
--                         Index Cond: (trial_id = t.id)
--           SubPlan 3
--             ->  Aggregate
--                   ->  Index Only Scan using tag_key on tag g
--                         Index Cond: ((study_id = t.study_id) AND (trial_id = t.id))
--           SubPlan 4
--             ->  Index Scan using trial_pkey on trial p
--                   Index Cond: (id = t.parent_id)
--           SubPlan 5
--             ->  Index Scan using resource_class_pkey on resource_class c
--                   Index Cond: ((study_id = t.study_id) AND (name = t.resource_class))

COMMIT;
