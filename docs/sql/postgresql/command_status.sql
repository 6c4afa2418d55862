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

-- studydb/operations/overview.py read_overview: Read an overview of a study; its cost does not
--   grow with the study.

BEGIN;

-- studydb/store/view_rows.py study: Find the study's row of `v_study`.
SELECT v_study.study, v_study.status, v_study.metric, v_study.mode, v_study.num_trials,
    v_study.max_concurrent, v_study.pending, v_study.running, v_study.paused,
    v_study.terminated, v_study.error, v_study.created_at
FROM v_study
WHERE v_study.study = (SELECT study.name FROM study WHERE study.id = :study);
-- Plan:
--   Nested Loop
--     Join Filter: (s.id = counter.study_id)
--     InitPlan 1
--       ->  Index Scan using study_pkey on study
--             Index Cond: (id = $1)
--     ->  Index Scan using study_name_key on study s
--           Index Cond: (name = (InitPlan 1).col1)
--     ->  GroupAggregate
--           Group Key: counter.study_id
--           ->  Index Scan using counter_pkey on counter

-- studydb/store/overview.py recent_ends: Count how the newest trials ended, and find their
--   earliest start and their latest end.
SELECT count(*) AS count_1, count(anon_1.ended_at) AS count_2, count(CASE WHEN (anon_1.reason =
    'COMPLETED') THEN 1 END) AS count_3, count(CASE WHEN (anon_1.reason = 'EARLY_STOPPED' OR
    anon_1.reason = 'RULE_STOPPED') THEN 1 END) AS count_4, count(CASE WHEN (anon_1.reason =
    'GIVEN_UP') THEN 1 END) AS count_5, count(CASE WHEN (anon_1.reason = 'CANCELLED') THEN 1
    END) AS count_6, count(CASE WHEN (anon_1.reason = 'BUDGET_SPENT' OR anon_1.reason =
    'TIMED_OUT') THEN 1 END) AS count_7, count(CASE WHEN (anon_1.reason = 'INVALIDATED') THEN 1
    END) AS count_8, min(anon_1.started_at) AS min_1, max(anon_1.ended_at) AS max_1
FROM (
    SELECT trial.reason AS reason, trial.started_at AS started_at, trial.ended_at AS ended_at
    FROM trial
    WHERE trial.study_id = :study
    ORDER BY trial.number DESC
    LIMIT :limit
) AS anon_1;
-- Plan:
--   Aggregate
--     ->  Limit
--           ->  Index Scan Backward using trial_study_id_number_key on trial
--                 Index Cond: (study_id = $15)

-- studydb/store/checkpoint_listing.py newest_trials: Read the ids of a study's newest trials.
SELECT trial.id
FROM trial
WHERE trial.study_id = :study
ORDER BY trial.number DESC
LIMIT :limit;
-- Plan:
--   Limit
--     ->  Index Scan Backward using trial_study_id_number_key on trial
--           Index Cond: (study_id = $1)

-- studydb/store/progress.py read: Read a study's progress in one statement, so that no trial
--   moves between two reads.
SELECT study.status, study.status = 'RUNNING' AND (study.num_trials IS NULL OR study.n_counted <
    study.num_trials) AND (study.num_draws IS NULL OR study.next_draw < study.num_draws) AS
    open, study.max_concurrent IS NULL OR study.n_running < study.max_concurrent AS has_room,
    coalesce(study.n_counted >= study.num_trials OR study.next_draw >= study.num_draws, false)
    AS spent, study.num_trials, study.n_counted, study.num_draws, study.next_draw,
    study.paused_by, study.pause_reason, counts.pending, counts.running, counts.paused,
    counts.terminated, counts.error, (
    SELECT trial.id
    FROM trial
    WHERE trial.study_id = :study
        AND trial.state = 'PENDING'
        AND trial.ready
    ORDER BY trial.resource_class, trial.priority, trial.number
    LIMIT 1
) IS NOT NULL AS has_runnable, (
    SELECT trial.ready_at
    FROM trial
    WHERE trial.study_id = :study
        AND trial.state = 'PENDING'
        AND NOT trial.ready
    ORDER BY trial.ready_at
    LIMIT 1
) <= coalesce(CAST(:now AS timestamptz), clock_timestamp()) AS has_waited, (
    SELECT trial.id
    FROM trial
    WHERE trial.study_id = :study
        AND trial.state = 'PAUSED'
        AND trial.paused_by = 'study'
    LIMIT 1
) IS NOT NULL AS is_resuming
FROM study
JOIN (
    SELECT coalesce(sum(counter.pending), 0) AS pending, coalesce(sum(counter.running), 0) AS
        running, coalesce(sum(counter.paused), 0) AS paused, coalesce(sum(counter.terminated),
        0) AS terminated, coalesce(sum(counter.error), 0) AS error
    FROM counter
    WHERE counter.study_id = :study
) AS counts ON true
WHERE study.id = :study;
-- Plan:
--   Nested Loop
--     InitPlan 1
--       ->  Limit
--             ->  Index Scan using trial_claim on trial
--                   Index Cond: (study_id = $2)
--     InitPlan 2
--       ->  Limit
--             ->  Index Only Scan using trial_backoff on trial trial_1
--                   Index Cond: (study_id = $2)
--     InitPlan 3
--       ->  Limit
--             ->  Index Scan using trial_paused_by_study on trial trial_2
--                   Index Cond: (study_id = $2)
--     ->  Index Scan using study_pkey on study
--           Index Cond: (id = $2)
--     ->  Aggregate
--           ->  Bitmap Heap Scan on counter
--                 Recheck Cond: (study_id = $2)
--                 ->  Bitmap Index Scan on counter_pkey
--                       Index Cond: (study_id = $2)

-- studydb/store/ranking.py best: Read the best `limit` trials of a study that have a rank, best
--   first.
SELECT trial.id, trial.uuid, trial.study_id, trial.number, trial.name, trial.state,
    trial.reason, trial.params, trial.params_hash, trial.space_version, trial.origin,
    trial.parent_id, trial.draw, trial.counted, trial.priority, trial.ready, trial.ready_at,
    trial.resource_class, trial.resources, trial.bracket, trial.request, trial.verdict,
    trial.verdict_reason, trial.verdict_by, trial.paused_by, trial.attempt, trial.failures,
    trial.losses, trial.token, trial.flush_no, trial.worker_id, trial.lease_s,
    trial.lease_expires_at, trial.suspect_at, trial.checkpoint_id, trial.checkpoint_step,
    trial.n_results, trial.last_step, trial.last_value, trial.best_value, trial.best_step,
    trial.best_score, trial.rank_score, trial.time_total_s, trial.metric_summary,
    trial.invalidated_at, trial.created_at, trial.started_at, trial.ended_at, trial.config,
    trial.source_checkpoint_id, trial.generation, trial.replicate_of, trial.is_unique,
    trial.feasible, trial.cost, trial.running_s, trial.running_until, trial.changed,
    trial.request_now, trial.has_tags, ARRAY(
    SELECT tag.key AS text
    FROM tag
    WHERE tag.study_id = trial.study_id
        AND tag.trial_id = trial.id
) AS tags, (
    SELECT parent.number
    FROM trial AS parent
    WHERE parent.id = trial.parent_id
) AS parent
FROM trial
WHERE trial.study_id = :study
    AND trial.rank_score IS NOT NULL
    AND trial.state != 'RUNNING'
ORDER BY trial.rank_score, trial.number
LIMIT :limit;
-- Plan:
--   Limit
--     ->  Index Scan using trial_rank on trial
--           Index Cond: (study_id = $1)
--           Filter: (state <> ($2)::text)
--           SubPlan 1
--             ->  Index Only Scan using tag_key on tag
--                   Index Cond: ((study_id = trial.study_id) AND (trial_id = trial.id))
--           SubPlan 2
--             ->  Index Scan using trial_pkey on trial parent
--                   Index Cond: (id = trial.parent_id)

-- studydb/store/ranking.py best
SELECT trial.id, trial.uuid, trial.study_id, trial.number, trial.name, trial.state,
    trial.reason, trial.params, trial.params_hash, trial.space_version, trial.origin,
    trial.parent_id, trial.draw, trial.counted, trial.priority, trial.ready, trial.ready_at,
    trial.resource_class, trial.resources, trial.bracket, trial.request, trial.verdict,
    trial.verdict_reason, trial.verdict_by, trial.paused_by, trial.attempt, trial.failures,
    trial.losses, trial.token, trial.flush_no, trial.worker_id, trial.lease_s,
    trial.lease_expires_at, trial.suspect_at, trial.checkpoint_id, trial.checkpoint_step,
    trial.n_results, trial.last_step, trial.last_value, trial.best_value, trial.best_step,
    trial.best_score, trial.rank_score, trial.time_total_s, trial.metric_summary,
    trial.invalidated_at, trial.created_at, trial.started_at, trial.ended_at, trial.config,
    trial.source_checkpoint_id, trial.generation, trial.replicate_of, trial.is_unique,
    trial.feasible, trial.cost, trial.running_s, trial.running_until, trial.changed,
    trial.request_now, trial.has_tags, ARRAY(
    SELECT tag.key AS text
    FROM tag
    WHERE tag.study_id = trial.study_id
        AND tag.trial_id = trial.id
) AS tags, (
    SELECT parent.number
    FROM trial AS parent
    WHERE parent.id = trial.parent_id
) AS parent
FROM trial
WHERE trial.study_id = :study
    AND trial.state = 'RUNNING'
    AND trial.best_value IS NOT NULL
    AND trial.best_value != nan
    AND trial.invalidated_at IS NULL
ORDER BY trial.best_score, trial.number
LIMIT :limit;
-- Plan:
--   Limit
--     ->  Result
--           ->  Sort
--                 Sort Key: trial.best_score, trial.number
--                 ->  Index Scan using trial_running on trial
--                       Index Cond: (study_id = $1)
--                       Filter: ((best_value IS NOT NULL) AND (invalidated_at IS NULL) AND (best_value <> $2))
--           SubPlan 1
--             ->  Index Only Scan using tag_key on tag
--                   Index Cond: ((study_id = trial.study_id) AND (trial_id = trial.id))
--           SubPlan 2
--             ->  Index Scan using trial_pkey on trial parent
--                   Index Cond: (id = trial.parent_id)

-- studydb/store/overview.py unfinished: Read the numbers of some unfinished trials, by state.
SELECT trial.number
FROM trial
WHERE trial.study_id = :study
    AND trial.state = 'RUNNING'
ORDER BY trial.number + 0
LIMIT :limit;
-- Plan:
--   Limit
--     ->  Sort
--           Sort Key: ((number + $2))
--           ->  Index Scan using trial_running on trial
--                 Index Cond: (study_id = $1)

-- studydb/store/overview.py unfinished
SELECT trial.number
FROM trial
WHERE trial.study_id = :study
    AND trial.state = 'PENDING'
    AND trial.ready
ORDER BY trial.resource_class, trial.priority, trial.number
LIMIT :limit;
-- Plan:
--   Limit
--     ->  Index Only Scan using trial_claim on trial
--           Index Cond: (study_id = $1)

-- studydb/store/overview.py unfinished
SELECT trial.number
FROM trial
WHERE trial.study_id = :study
    AND trial.state = 'PENDING'
    AND NOT trial.ready
ORDER BY trial.ready_at
LIMIT :limit;
-- Plan:
--   Limit
--     ->  Index Scan using trial_backoff on trial
--           Index Cond: (study_id = $1)

-- studydb/store/overview.py unfinished
SELECT trial.number
FROM trial
WHERE trial.study_id = :study
    AND trial.state = 'PAUSED'
LIMIT :limit;
-- Plan:
--   Limit
--     ->  Index Scan using trial_paused on trial
--           Index Cond: (study_id = $1)

-- studydb/store/rung_listing.py last_decisions: Read the scheduler's last decisions to stop,
--   pause, promote or give up a trial, newest first.
SELECT trial.id, trial.number, trial.state, trial.reason, trial.paused_by, trial.ended_at, (
    SELECT rung_entry.rung_id
    FROM rung_entry
    WHERE rung_entry.rung_id = (
        SELECT rung.id
        FROM rung
        WHERE rung.study_id = trial.study_id
            AND rung.bracket = trial.bracket
            AND rung.step <= trial.last_step
        ORDER BY rung.step DESC
        LIMIT 1
    )
        AND rung_entry.trial_id = trial.id
) AS rung_id, (
    SELECT rung_entry.recorded_at
    FROM rung_entry
    WHERE rung_entry.rung_id = (
        SELECT rung.id
        FROM rung
        WHERE rung.study_id = trial.study_id
            AND rung.bracket = trial.bracket
            AND rung.step <= trial.last_step
        ORDER BY rung.step DESC
        LIMIT 1
    )
        AND rung_entry.trial_id = trial.id
) AS recorded_at, (
    SELECT rung_entry.promoted_at
    FROM rung_entry
    WHERE rung_entry.rung_id = (
        SELECT rung.id
        FROM rung
        WHERE rung.study_id = trial.study_id
            AND rung.bracket = trial.bracket
            AND rung.step <= trial.last_step
        ORDER BY rung.step DESC
        LIMIT 1
    )
        AND rung_entry.trial_id = trial.id
) AS promoted_at
FROM trial
WHERE trial.study_id = :study
ORDER BY trial.number DESC
LIMIT 100;
-- Plan:
--   Limit
--     ->  Index Scan Backward using trial_study_id_number_key on trial
--           Index Cond: (study_id = $2)
--           SubPlan 2
--             ->  Index Only Scan using rung_entry_pkey on rung_entry
--                   Index Cond: ((rung_id = (InitPlan 1).col1) AND (trial_id = trial.id))
--                   InitPlan 1
--                     ->  Limit
--                           ->  Index Scan Backward using rung_study_id_bracket_step_key on rung
--                                 Index Cond: ((study_id = trial.study_id) AND (bracket = trial.bracket) AND (step <= trial.last_step))
--           SubPlan 4
--             ->  Index Scan using rung_entry_pkey on rung_entry rung_entry_1
--                   Index Cond: ((rung_id = (InitPlan 3).col1) AND (trial_id = trial.id))
--                   InitPlan 3
--                     ->  Limit
--                           ->  Index Scan Backward using rung_study_id_bracket_step_key on rung rung_1
--                                 Index Cond: ((study_id = trial.study_id) AND (bracket = trial.bracket) AND (step <= trial.last_step))
--           SubPlan 6
--             ->  Index Scan using rung_entry_pkey on rung_entry rung_entry_2
--                   Index Cond: ((rung_id = (InitPlan 5).col1) AND (trial_id = trial.id))
--                   InitPlan 5
--                     ->  Limit
--                           ->  Index Scan Backward using rung_study_id_bracket_step_key on rung rung_2
--                                 Index Cond: ((study_id = trial.study_id) AND (bracket = trial.bracket) AND (step <= trial.last_step))

-- studydb/store/events.py promoted: Find the ids of the trials whose promotion is among a
--   study's newest 100 events.
SELECT anon_1.trial_id
FROM (
    SELECT event.id AS id, event.trial_id AS trial_id, event.attempt AS attempt, event.kind AS
        kind, event.actor AS actor, event.data AS data, event.at AS at
    FROM event
    WHERE event.study_id = :study
    ORDER BY event.id DESC
    LIMIT 100
) AS anon_1
WHERE anon_1.kind = 'promoted';
-- Plan:
--   Subquery Scan on anon_1
--     Filter: (anon_1.kind = ($3)::text)
--     ->  Limit
--           ->  Index Scan Backward using event_study on event
--                 Index Cond: (study_id = $1)

-- studydb/store/view_rows.py workers: Read rows of `v_worker`, newest first, each with the
--   worker's `lease_s` and process.
SELECT v_worker.worker, v_worker.study, v_worker.host, v_worker.pid, v_worker.slots,
    v_worker.running, v_worker.request, v_worker.version, v_worker.started_at, v_worker.seen_at,
    v_worker.ended_at, v_worker.resources, v_worker.uses, v_worker.tags, v_worker.reserved_for,
    worker.lease_s, worker.boot_id, worker.pid_namespace, worker.started
FROM v_worker
JOIN worker ON worker.uuid = v_worker.worker
WHERE worker.study_id = :study
ORDER BY worker.id DESC
LIMIT :limit;
-- Plan:
--   Limit
--     ->  Nested Loop
--           ->  Index Scan Backward using worker_pkey on worker w
--                 Filter: (study_id = $1)
--           ->  Index Scan using study_pkey on study s
--                 Index Cond: (id = w.study_id)
--           SubPlan 1
--             ->  Aggregate
--                   ->  Index Scan using trial_running on trial t
--                         Index Cond: (study_id = w.study_id)
--                         Filter: (worker_id = w.id)
--           SubPlan 2
--             ->  Aggregate
--                   ->  GroupAggregate
--                         Group Key: e.key
--                         ->  Sort
--                               Sort Key: e.key
--                               ->  Nested Loop
--                                     ->  Nested Loop
--                                           Join Filter: (c.name = CASE WHEN (((t_1.resources ->> 'attempt'::text))::integer = t_1.attempt) THEN (t_1.resources ->> 'class'::text) ELSE t_1.resource_class END)
--                                           ->  Index Scan using trial_running on trial t_1
--                                                 Index Cond: (study_id = w.study_id)
--                                                 Filter: (worker_id = w.id)
--                                           ->  Index Scan using resource_class_pkey on resource_class c
--                                                 Index Cond: (study_id = w.study_id)
--                                     ->  Function Scan on jsonb_each_text e

-- studydb/db/transaction.py Txn.now: The time by the server's clock (on SQLite, this host's
--   clock) or by an injected clock.
SELECT coalesce(CAST(:now AS timestamptz), clock_timestamp()) AS now;
-- Plan:
--   Result

-- studydb/store/events.py problems: Read the newest event of each kind in `PROBLEMS`, newest
--   first, and count each kind.
SELECT event.kind, event.at, anon_1.times, trial.number, event.attempt, event.data
FROM event
JOIN (
    SELECT max(anon_2.id) AS newest, count(*) AS times
    FROM (
        SELECT event.id AS id, event.trial_id AS trial_id, event.attempt AS attempt, event.kind
            AS kind, event.actor AS actor, event.data AS data, event.at AS at
        FROM event
        WHERE event.study_id = :study
        ORDER BY event.id DESC
        LIMIT 2000
    ) AS anon_2
    WHERE anon_2.kind = 'checkpoint failed'
        OR anon_2.kind = 'checkpoint corrupt'
        OR anon_2.kind = 'config not read'
        OR anon_2.kind = 'stop rule not compared'
        OR anon_2.kind = 'recovery failed'
        OR anon_2.kind = 'model failed'
    GROUP BY anon_2.kind
) AS anon_1 ON event.id = anon_1.newest
LEFT OUTER JOIN trial ON trial.id = event.trial_id
ORDER BY event.id DESC;
-- Plan:
--   Sort
--     Sort Key: event.id DESC
--     ->  Nested Loop Left Join
--           ->  Nested Loop
--                 ->  GroupAggregate
--                       Group Key: anon_2.kind
--                       ->  Sort
--                             Sort Key: anon_2.kind
--                             ->  Subquery Scan on anon_2
--                                   Filter: ((anon_2.kind = ($3)::text) OR (anon_2.kind = ($4)::text) OR (anon_2.kind = ($5)::text) OR (anon_2.kind = ($6)::text) OR (anon_2.kind = ($7)::text) OR (anon_2.kind = ($8)::text))
--                                   ->  Limit
--                                         ->  Index Scan Backward using event_study on event event_1
--                                               Index Cond: (study_id = $1)
--                 ->  Index Scan using event_study on event
--                       Index Cond: (id = (max(anon_2.id)))
--           ->  Index Scan using trial_pkey on trial
--                 Index Cond: (id = event.trial_id)

-- studydb/store/events.py last_error: Find, in the newest events, the last attempt that failed,
--   or was lost with a known cause.
SELECT trial.number, anon_1.attempt, anon_1.data
FROM (
    SELECT event.id AS id, event.trial_id AS trial_id, event.attempt AS attempt, event.kind AS
        kind, event.actor AS actor, event.data AS data, event.at AS at
    FROM event
    WHERE event.study_id = :study
    ORDER BY event.id DESC
    LIMIT 2000
) AS anon_1
JOIN trial ON trial.id = anon_1.trial_id
WHERE (anon_1.kind = 'failed' OR anon_1.kind = 'lost')
    AND anon_1.data IS NOT NULL
ORDER BY anon_1.id DESC
LIMIT 1;
-- Plan:
--   Limit
--     ->  Nested Loop
--           ->  Subquery Scan on anon_1
--                 Filter: ((anon_1.data IS NOT NULL) AND ((anon_1.kind = ($3)::text) OR (anon_1.kind = ($4)::text)))
--                 ->  Limit
--                       ->  Index Scan Backward using event_study on event
--                             Index Cond: (study_id = $1)
--           ->  Index Scan using trial_pkey on trial
--                 Index Cond: (id = anon_1.trial_id)

-- studydb/store/checkpoint_listing.py sizes: Sum up the sizes of kept checkpoints, by host and
--   by whether a person uploaded them.
SELECT worker.host, checkpoint.attempt = 0 AS is_uploaded, count(*) AS n,
    CAST(sum(checkpoint.size_bytes) AS BIGINT) AS size_bytes
FROM checkpoint
LEFT OUTER JOIN attempt ON attempt.trial_id = checkpoint.trial_id
    AND attempt.attempt = checkpoint.attempt
LEFT OUTER JOIN worker ON worker.id = attempt.worker_id
WHERE checkpoint.trial_id = ANY(:trials)
    AND checkpoint.removed_at IS NULL
GROUP BY worker.host, checkpoint.attempt = 0
ORDER BY size_bytes DESC, worker.host;
-- Plan:
--   Sort
--     Sort Key: ((sum(checkpoint.size_bytes))::bigint) DESC, worker.host
--     ->  GroupAggregate
--           Group Key: worker.host, ((checkpoint.attempt = 0))
--           ->  Sort
--                 Sort Key: worker.host, ((checkpoint.attempt = 0))
--                 ->  Nested Loop Left Join
--                       ->  Nested Loop Left Join
--                             ->  Index Scan using ix_checkpoint_trial_id on checkpoint
--                                   Index Cond: (trial_id = ANY ($1))
--                                   Filter: (removed_at IS NULL)
--                             ->  Index Scan using attempt_pkey on attempt
--                                   Index Cond: ((trial_id = checkpoint.trial_id) AND (attempt = checkpoint.attempt))
--                       ->  Index Scan using worker_pkey on worker
--                             Index Cond: (id = attempt.worker_id)

-- studydb/store/quotas.py read: Read a study's quota.
SELECT study.name, study.settings, study.checkpoint_bytes
FROM study
WHERE study.id = :study;
-- Plan:
--   Index Scan using study_pkey on study
--     Index Cond: (id = $1)

-- studydb/store/notes.py newest: Read the newest notes on a trial or, without `trial_id`, on
--   the study; oldest first.
SELECT note.at, note.author, note.text
FROM note
WHERE note.study_id = :study
    AND note.trial_id IS NULL
ORDER BY note.id + 0 DESC
LIMIT :limit;
-- Plan:
--   Limit
--     ->  Sort
--           Sort Key: ((id + $2)) DESC
--           ->  Index Scan using note_trial on note
--                 Index Cond: ((study_id = $1) AND (trial_id IS NULL))

-- studydb/store/resource_classes.py queues: Read, without locks, each class and its first
--   `depth` positions after `after_position`.
SELECT resource_class.name, resource_class.request, (
    SELECT study.status = 'RUNNING' AND (study.max_concurrent IS NULL OR study.n_running <
        study.max_concurrent)
    FROM study
    WHERE study.id = resource_class.study_id
) AS is_open, ARRAY(
    SELECT CAST(trial.priority AS TEXT) || ':' || CAST(trial.number AS TEXT) AS text
    FROM trial
    WHERE trial.study_id = resource_class.study_id
        AND trial.state = 'PENDING'
        AND trial.ready
        AND trial.resource_class = resource_class.name
        AND (trial.priority, trial.number) > (:after_priority, :after_number)
    ORDER BY trial.priority, trial.number
    LIMIT :depth
) AS positions
FROM resource_class
WHERE resource_class.study_id = :study;
-- Plan:
--   Index Scan using resource_class_pkey on resource_class
--     Index Cond: (study_id = $6)
--     SubPlan 1
--       ->  Index Scan using study_pkey on study
--             Index Cond: (id = resource_class.study_id)
--     SubPlan 2
--       ->  Limit
--             ->  Index Only Scan using trial_claim on trial
--                   Index Cond: ((study_id = resource_class.study_id) AND (resource_class = resource_class.name) AND (ROW(priority, number) > ROW($3, $4)))

COMMIT;
