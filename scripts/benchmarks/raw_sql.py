"""
Handwritten PostgreSQL statements of the raw contenders; they write the same rows as studydb.

Many statements are used twice: as one of a transaction's statements, and as a part of a single
statement. The placeholders `{drawn}`, `{made}` and `{held}` stand for binds in a transaction's
statements (`…_ALONE`), and for another CTE in a single statement.
"""

COUNT_IN = """
    UPDATE counter SET running = running + 1
    WHERE study_id = %(study)s AND shard = %(shard)s"""

COUNT_OUT = """
    UPDATE counter SET running = running - 1, terminated = terminated + 1
    WHERE study_id = %(study)s AND shard = %(shard)s"""

DRAW = """
    UPDATE study
    SET next_number = next_number + 1, next_draw = next_draw + 1, n_counted = n_counted + 1
    WHERE id = %(study)s AND status = 'RUNNING' AND (num_trials IS NULL OR n_counted < num_trials)
    RETURNING next_number - 1 AS number, next_draw - 1 AS draw"""

INSERT_TRIAL = """
    INSERT INTO trial (
        uuid, study_id, number, state, params, config, params_hash, space_version, origin, draw,
        counted, priority, ready, resource_class, bracket, attempt, failures, losses, token,
        flush_no, worker_id, lease_s, lease_expires_at, checkpoint_step, n_results, created_at,
        started_at)
    SELECT %(uuid)s, %(study)s, drawn.number, 'RUNNING', %(params)s::jsonb, %(params)s::jsonb,
        %(params_hash)s, 1, 'searcher', drawn.draw, true, 0, true, '', 0, 1, 0, 0, %(token)s, 0,
        %(worker)s, 90,
        clock_timestamp() + interval '90 s', 0, 0, clock_timestamp(), clock_timestamp()
    FROM {drawn}
    RETURNING id"""

INSERT_ATTEMPT = """
    INSERT INTO attempt (trial_id, attempt, study_id, token, worker_id, config, start_step,
        live_through, flush_no, started_at)
    SELECT made.id, made.attempt, %(study)s, %(token)s, %(worker)s, made.config, 1, 1::bigint << 62,
        0, clock_timestamp()
    FROM {made}"""

HOLD = """
    SELECT id, attempt, flush_no, verdict, request, n_results, last_step, best_score FROM trial
    WHERE id = %(trial)s AND attempt = 1 AND token = %(token)s AND state = 'RUNNING'
    FOR NO KEY UPDATE"""

INSERT_RESULT = """
    INSERT INTO result (study_id, trial_id, attempt, step, value, time_total_s, reported_at)
    SELECT %(study)s, held.id, 1, %(step)s, %(value)s, %(time)s, clock_timestamp() FROM {held}"""

INSERT_RESULTS = """
    INSERT INTO result (study_id, trial_id, attempt, step, value, time_total_s, reported_at)
    SELECT %(study)s, held.id, 1, rows.*, clock_timestamp()
    FROM {held}, unnest(%(steps)s::bigint[], %(values)s::float8[], %(times)s::float8[]) AS rows"""

_SUMMARY = """n_results = %(n)s, last_step = %(step)s, last_value = %(value)s,
        best_value = %(value)s, best_step = %(step)s, best_score = %(value)s,
        time_total_s = %(time)s"""

RECORD = f"""
    UPDATE trial SET {_SUMMARY}, flush_no = %(flush)s, suspect_at = NULL,
        lease_expires_at = clock_timestamp() + make_interval(secs => lease_s)
    WHERE id = {{held}}"""

END_TRIAL = f"""
    UPDATE trial SET {_SUMMARY}, state = 'TERMINATED', reason = 'COMPLETED', ready = false,
        rank_score = %(value)s, metric_summary = %(summary)s::jsonb, ended_at = clock_timestamp(),
        token = NULL, worker_id = NULL, lease_s = NULL, lease_expires_at = NULL, suspect_at = NULL
    WHERE id = {{held}} AND state = 'RUNNING'"""

END_ATTEMPT = """
    UPDATE attempt SET flush_no = %(flush)s, reason = 'COMPLETED', ended_at = clock_timestamp()
    WHERE trial_id = {held} AND attempt = 1 AND ended_at IS NULL"""

_BOUND_TRIAL = "(VALUES (%(trial)s::bigint)) AS held (id)"

INSERT_TRIAL_ALONE = INSERT_TRIAL.format(
    drawn="(VALUES (%(number)s::bigint, %(draw)s::bigint)) AS drawn (number, draw)"
)
INSERT_ATTEMPT_ALONE = INSERT_ATTEMPT.format(
    made="(VALUES (%(trial)s::bigint, 1, %(params)s::jsonb)) AS made (id, attempt, config)"
)
INSERT_RESULT_ALONE = INSERT_RESULT.format(held=_BOUND_TRIAL)
RECORD_ALONE = RECORD.format(held="%(trial)s")
END_TRIAL_ALONE = END_TRIAL.format(held="%(trial)s")
END_ATTEMPT_ALONE = END_ATTEMPT.format(held="%(trial)s")

_HELD = f"held AS MATERIALIZED ({HOLD})"
_HELD_ID = "(SELECT id FROM held)"

START = f"""
WITH drawn AS ({DRAW}), made AS ({INSERT_TRIAL.format(drawn="drawn")}, attempt, config),
    begun AS ({INSERT_ATTEMPT.format(made="made")}), counted AS ({COUNT_IN})
SELECT id FROM made"""

REPORT = f"""
WITH {_HELD}, stored AS ({INSERT_RESULT.format(held="held")}) {RECORD.format(held=_HELD_ID)}"""

REPORT_MANY = f"""
WITH {_HELD}, stored AS ({INSERT_RESULTS.format(held="held")}) {RECORD.format(held=_HELD_ID)}"""

_END = f"""ended AS ({END_TRIAL.format(held=_HELD_ID)}),
    closed AS ({END_ATTEMPT.format(held=_HELD_ID)}), counted AS ({COUNT_OUT})"""

FINISH = f"""
WITH {_HELD}, {_END} SELECT count(*) FROM held"""

REPORT_AND_FINISH = f"""
WITH {_HELD}, stored AS ({INSERT_RESULTS.format(held="held")}), {_END} SELECT count(*) FROM held"""

CLAIM = f"""
WITH runnable AS MATERIALIZED (
    SELECT id FROM trial
    WHERE study_id = %(study)s AND state = 'PENDING' AND ready AND resource_class = ''
    ORDER BY priority, number LIMIT 1 FOR NO KEY UPDATE SKIP LOCKED
), made AS (
    UPDATE trial SET state = 'RUNNING', attempt = attempt + 1, token = %(token)s, flush_no = 0,
        worker_id = %(worker)s, lease_s = 90, suspect_at = NULL,
        lease_expires_at = clock_timestamp() + interval '90 s',
        started_at = coalesce(started_at, clock_timestamp())
    WHERE id = (SELECT id FROM runnable) AND state = 'PENDING'
    RETURNING id, attempt, params, config
), begun AS ({INSERT_ATTEMPT.format(made="made")}), counted AS (
    UPDATE counter SET pending = pending - 1, running = running + 1
    WHERE study_id = %(study)s AND shard = %(shard)s
)
SELECT id, params FROM made"""

LOCK_RUNG = """
    SELECT id, n_entries, n_ranked, cut_rank, cut_score, cut_trial_id, quantile FROM rung
    WHERE study_id = %(study)s AND bracket = 0 AND step = %(step)s FOR NO KEY UPDATE"""

_BESIDE = """
    SELECT score, trial_id FROM rung_entry
    WHERE rung_id = %(rung)s AND ranked AND (score, trial_id) {side} (%(score)s, %(cut)s)
    ORDER BY score {order}, trial_id {order} LIMIT 1"""

HOLD_BESIDE_CUT = f"""
WITH {_HELD}
SELECT worse.score, worse.trial_id, better.score, better.trial_id FROM held
LEFT JOIN LATERAL ({_BESIDE.format(side=">", order="ASC")}) AS worse ON true
LEFT JOIN LATERAL ({_BESIDE.format(side="<", order="DESC")}) AS better ON true"""

DECIDE = f"""
WITH stored AS ({INSERT_RESULT_ALONE}), entered AS (
    INSERT INTO rung_entry (rung_id, trial_id, attempt, step, value, score, ranked, ordinal,
        action, cutoff, recorded_at)
    VALUES (%(rung)s, %(trial)s, 1, %(step)s, %(value)s, %(value)s, true, %(ordinal)s,
        %(action)s, %(cutoff)s, clock_timestamp())
), moved AS (
    UPDATE rung SET n_entries = n_entries + 1, n_ranked = %(to_n)s, cut_rank = %(to_rank)s,
        cut_score = %(to_score)s, cut_trial_id = %(to_trial)s
    WHERE id = %(rung)s
)
UPDATE trial SET {_SUMMARY}, flush_no = %(flush)s, suspect_at = NULL, verdict = %(verdict)s,
    verdict_reason = %(reason)s, verdict_by = %(by)s,
    lease_expires_at = clock_timestamp() + make_interval(secs => lease_s)
WHERE id = %(trial)s"""
