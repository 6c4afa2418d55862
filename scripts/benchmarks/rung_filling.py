"""
Studies whose rungs have up to a million entries, made by SQL.

Each trial is better at a rung than all earlier trials, so that the rung's cut (see
domain/quantile.py) is known without a decision for each entry. The studies of loading.py have the
same order, but their trials have ten results, and the trials made here have one.
"""

import math
from collections.abc import Sequence
from typing import Any

from harness import postgres

from benchmarks import loading, ours
from studydb.domain.life.decisions import RungKey
from studydb.domain.scheduling import Scheduler

FIRST_WORKER = 1_000
"""Workers that register get ids above this number; `running.fill` writes lower worker ids."""

_TRIALS = """
    INSERT INTO trial (
        id, uuid, study_id, number, state, reason, paused_by, params, config, params_hash,
        space_version, origin, draw, counted, priority, ready, resource_class, bracket, attempt,
        failures, losses, flush_no, checkpoint_step, n_results, last_step, last_value, best_value,
        best_step, best_score, rank_score, created_at, started_at, ended_at)
    SELECT n + 1, gen_random_uuid(), 1, n,
        CASE WHEN waits THEN 'PAUSED' ELSE 'TERMINATED' END,
        CASE WHEN NOT waits THEN 'COMPLETED' END, CASE WHEN waits THEN 'scheduler' END,
        '{"lr": 0.1, "width": 8, "momentum": 0.5}', '{"lr": 0.1, "width": 8, "momentum": 0.5}',
        md5(n::text), 1, 'searcher', n, true, 0, false, '', 0, 1, 0, 0, 1, 0, 1, %(step)s,
        value, value, %(step)s, value, value, clock_timestamp(), clock_timestamp(),
        CASE WHEN NOT waits THEN clock_timestamp() END
    FROM (SELECT n, n < %(waiting)s AS waits, 1.2 - n / %(trials)s::double precision AS value
        FROM generate_series(0, %(trials)s - 1) AS n) AS numbered"""

_ATTEMPTS = """
    INSERT INTO attempt (trial_id, attempt, study_id, token, worker_id, config, start_step,
        live_through, flush_no, reason, started_at, ended_at)
    SELECT id, 1, 1, gen_random_uuid(), 1, config, 1, 1::bigint << 62, 1, 'PREEMPTED', created_at,
        created_at
    FROM trial"""

_RESULTS = """
    INSERT INTO result (study_id, trial_id, attempt, step, value, metrics, time_total_s,
        reported_at)
    SELECT 1, id, 1, last_step, best_value, '{"accuracy": 0.5}', 1.0, created_at FROM trial"""

_MEANS = """
    INSERT INTO running_mean (trial_id, study_id, step, n_results, total)
    SELECT id, 1, last_step, 1, best_value FROM trial"""

_RUNG = """
    INSERT INTO rung (study_id, bracket, step, quantile, n_entries, n_ranked, cut_rank, cut_score,
        cut_trial_id)
    SELECT 1, %(bracket)s, %(at)s, %(quantile)s, %(trials)s, %(trials)s, %(rank)s, best_score, id
    FROM trial WHERE number = %(rank)s
    ON CONFLICT (study_id, bracket, step) DO UPDATE SET n_entries = %(trials)s,
        n_ranked = %(trials)s, cut_rank = %(rank)s, cut_score = excluded.cut_score,
        cut_trial_id = excluded.cut_trial_id
    RETURNING id"""

_ENTRIES = """
    INSERT INTO rung_entry (rung_id, trial_id, attempt, step, value, score, ranked, ordinal, action,
        recorded_at, waiting)
    SELECT %(rung)s, id, 1, %(at)s, best_value, best_score, true, number, 'CONTINUE', created_at,
        CASE WHEN state = 'PAUSED' THEN true END
    FROM trial"""

_COUNT = (
    "UPDATE study SET next_number = %(trials)s, next_draw = %(trials)s, n_counted = %(trials)s",
    """UPDATE counter SET paused = %(waiting)s, terminated = %(trials)s - %(waiting)s
        WHERE shard = 0""",
    "SELECT setval(pg_get_serial_sequence('trial', 'id'), %(trials)s)",
    "SELECT setval(pg_get_serial_sequence('worker', 'id'), %(first_worker)s)",
)


def load(
    url: str, scheduler: Scheduler, *, trials: int, waiting: int, rungs: Sequence[RungKey]
) -> None:
    """
    Create a study without a budget, and `trials` trials that have entered each of the rungs.

    The database must have studydb's tables, all of them empty.

    Args:
        waiting: How many trials are PAUSED at the rungs: those with the worst values. The other
            trials are COMPLETED.
    """
    ours.create(url, scheduler=scheduler)
    binds: dict[str, Any] = {
        "trials": trials,
        "waiting": waiting,
        "step": rungs[0].step,
        "first_worker": FIRST_WORKER,
    }
    with postgres.connect(url) as connection:
        for statement in (_TRIALS, _ATTEMPTS, _RESULTS):
            connection.execute(statement, binds)
        if scheduler.mean_from is not None:
            connection.execute(_MEANS)
        for key in rungs:
            quantile = scheduler.rung_spec(key).quantile
            at = {"bracket": key.bracket, "at": key.step, "quantile": quantile}
            at["rank"] = math.floor((trials - 1) * quantile)
            made = connection.execute(_RUNG, binds | at).fetchone()
            assert made is not None
            connection.execute(_ENTRIES, at | {"rung": made[0]})
        for statement in _COUNT:
            connection.execute(statement, binds)
    loading.settle(url)
