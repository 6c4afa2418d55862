"""
Promises about a study's rows that hold after every transaction; each query finds violations.

`ended_rows` reads the rows of ended trials, to find out whether a later transaction changes them.
"""

from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa

from studydb.db import Database, Prepared
from studydb.domain.records import Study

PROMISES = {
    "a RUNNING trial has one open attempt, with the trial's attempt number, token and worker": """
        SELECT t.number FROM trial t WHERE t.study_id = {study} AND t.state = 'RUNNING' AND
            (SELECT count(*) FROM attempt a WHERE a.trial_id = t.id AND a.ended_at IS NULL
                AND a.attempt = t.attempt AND a.token = t.token AND a.worker_id = t.worker_id) <> 1
    """,
    "an open attempt is the current attempt of a RUNNING trial": """
        SELECT t.number, a.attempt FROM attempt a JOIN trial t ON t.id = a.trial_id
        WHERE t.study_id = {study} AND a.ended_at IS NULL
            AND NOT (t.state = 'RUNNING' AND t.attempt = a.attempt)
    """,
    "attempts are numbered from 1 to the trial's current attempt": """
        SELECT t.number FROM trial t WHERE t.study_id = {study} AND
            (t.attempt <> (SELECT count(*) FROM attempt a WHERE a.trial_id = t.id) OR
             t.attempt <> (SELECT coalesce(max(attempt), 0) FROM attempt a WHERE a.trial_id = t.id))
    """,
    "trials are numbered from 0, and n_counted is the number of trials that are marked counted": """
        SELECT s.next_number, s.n_counted FROM study s WHERE s.id = {study} AND
            (s.next_number <> (SELECT count(*) FROM trial t WHERE t.study_id = s.id) OR
             s.n_counted <> (SELECT count(*) FROM trial t WHERE t.study_id = s.id AND t.counted) OR
             s.next_number - 1 <>
                (SELECT coalesce(max(number), -1) FROM trial t WHERE t.study_id = s.id))
    """,
    "n_counted is at most num_trials": """
        SELECT n_counted FROM study WHERE id = {study} AND n_counted > num_trials
    """,
    "if max_concurrent is set, n_running counts the RUNNING trials, and is not above it": """
        SELECT s.n_running, r.n FROM study s,
            (SELECT count(*) AS n FROM trial WHERE study_id = {study} AND state = 'RUNNING') r
        WHERE s.id = {study} AND s.max_concurrent IS NOT NULL
            AND (r.n > s.max_concurrent OR r.n <> s.n_running)
    """,
    "counters equal a count of the rows": """
        SELECT * FROM
            (SELECT sum(pending) AS pending, sum(running) AS running, sum(paused) AS paused,
                sum(terminated) AS terminated, sum(error) AS error
             FROM counter WHERE study_id = {study}) stored,
            (SELECT
                coalesce(sum(CASE state WHEN 'PENDING' THEN 1 ELSE 0 END), 0) AS pending,
                coalesce(sum(CASE state WHEN 'RUNNING' THEN 1 ELSE 0 END), 0) AS running,
                coalesce(sum(CASE state WHEN 'PAUSED' THEN 1 ELSE 0 END), 0) AS paused,
                coalesce(sum(CASE state WHEN 'TERMINATED' THEN 1 ELSE 0 END), 0) AS terminated,
                coalesce(sum(CASE state WHEN 'ERROR' THEN 1 ELSE 0 END), 0) AS error
             FROM trial WHERE study_id = {study}) counted
        WHERE stored.pending <> counted.pending OR stored.running <> counted.running
            OR stored.paused <> counted.paused OR stored.terminated <> counted.terminated
            OR stored.error <> counted.error
    """,
    "no step of a trial has two live rows": """
        SELECT t.number, r.step FROM result r
            JOIN attempt a ON a.trial_id = r.trial_id AND a.attempt = r.attempt
            JOIN trial t ON t.id = r.trial_id
        WHERE r.study_id = {study} AND r.step <= a.live_through
        GROUP BY t.number, r.step HAVING count(*) <> 1
    """,
    "a trial's summary has the number and the last step of its live rows": """
        SELECT t.number, t.n_results, t.last_step FROM trial t WHERE t.study_id = {study} AND
            (t.n_results <> (SELECT count(*) FROM result r JOIN attempt a
                ON a.trial_id = r.trial_id AND a.attempt = r.attempt
                WHERE r.study_id = t.study_id AND r.trial_id = t.id AND r.step <= a.live_through)
             OR coalesce(t.last_step, 0) <> (SELECT coalesce(max(r.step), 0) FROM result r
                JOIN attempt a ON a.trial_id = r.trial_id AND a.attempt = r.attempt
                WHERE r.study_id = t.study_id AND r.trial_id = t.id AND r.step <= a.live_through))
    """,
    "a trial's last and best values are those of its live rows": """
        SELECT t.number FROM trial t WHERE t.study_id = {study} AND t.n_results > 0 AND
            (SELECT count(*) FROM result r JOIN attempt a
                ON a.trial_id = r.trial_id AND a.attempt = r.attempt
                WHERE r.study_id = t.study_id AND r.trial_id = t.id AND r.step <= a.live_through
                    AND ((r.step = t.last_step AND r.value = t.last_value) OR
                         (r.step = t.best_step AND r.value = t.best_value)))
            <> CASE WHEN t.last_step = t.best_step THEN 1 ELSE 2 END
    """,
    "a rung counts its entries, which are numbered from 0 in order of arrival": """
        SELECT g.step FROM rung g WHERE g.study_id = {study} AND
            (g.n_entries <> (SELECT count(*) FROM rung_entry e WHERE e.rung_id = g.id) OR
             g.n_entries <> (SELECT coalesce(max(ordinal) + 1, 0) FROM rung_entry e
                WHERE e.rung_id = g.id) OR
             g.n_entries <> (SELECT count(DISTINCT ordinal) FROM rung_entry e
                WHERE e.rung_id = g.id) OR
             g.n_ranked <> (SELECT count(*) FROM rung_entry e WHERE e.rung_id = g.id AND e.ranked))
    """,
    "a rung's cut_rank is the number of entries that are worse than its cut": """
        SELECT g.step FROM rung g WHERE g.study_id = {study} AND g.n_ranked > 0 AND
            (g.cut_trial_id IS NULL OR g.cut_rank <> (SELECT count(*) FROM rung_entry e
                WHERE e.rung_id = g.id AND e.ranked AND (e.score > g.cut_score OR
                    (e.score = g.cut_score AND e.trial_id > g.cut_trial_id))))
    """,
    "no rung entry of an invalidated trial ranks": """
        SELECT t.number FROM rung_entry e JOIN trial t ON t.id = e.trial_id
        WHERE t.study_id = {study} AND t.invalidated_at IS NOT NULL AND e.ranked
    """,
    "no ended or PENDING trial waits at a rung, and no trial waits where it was promoted": """
        SELECT t.number FROM rung_entry e JOIN trial t ON t.id = e.trial_id
        WHERE t.study_id = {study} AND e.waiting AND
            (t.state IN ('TERMINATED', 'ERROR', 'PENDING') OR e.promoted_at IS NOT NULL)
    """,
    "a trial waits at one rung at most": """
        SELECT t.number FROM rung_entry e JOIN trial t ON t.id = e.trial_id
        WHERE t.study_id = {study} AND e.waiting GROUP BY t.number HAVING count(*) > 1
    """,
    "no trial waits at a rung that is over": """
        SELECT g.step FROM rung g JOIN rung_entry e ON e.rung_id = g.id
        WHERE g.study_id = {study} AND g.is_over AND e.waiting
    """,
    "a trial's checkpoint is its source checkpoint, or one of its own, kept or corrupt": """
        SELECT t.number FROM trial t WHERE t.study_id = {study} AND t.checkpoint_id IS NOT NULL AND
            coalesce(t.source_checkpoint_id, 0) <> t.checkpoint_id AND
            NOT EXISTS (SELECT 1 FROM checkpoint c WHERE c.id = t.checkpoint_id
                AND c.trial_id = t.id AND (c.removed_at IS NULL OR c.corrupt_at IS NOT NULL))
    """,
    "a trial that has not ended has a pin on its source checkpoint": """
        SELECT t.number FROM trial t WHERE t.study_id = {study} AND t.ended_at IS NULL AND
            t.source_checkpoint_id IS NOT NULL AND
            NOT EXISTS (SELECT 1 FROM pin p WHERE p.checkpoint_id = t.source_checkpoint_id
                AND p.trial_id = t.id)
    """,
    "a checkpoint's `pins` is the number of its pins": """
        SELECT c.uuid, c.pins FROM checkpoint c WHERE c.study_id = {study} AND
            c.pins <> (SELECT count(*) FROM pin p WHERE p.checkpoint_id = c.id)
    """,
    "a trial that has tags is marked by has_tags": """
        SELECT t.number FROM trial t JOIN tag g ON g.trial_id = t.id
        WHERE t.study_id = {study} AND t.has_tags IS NOT true
    """,
    "a trial has at most one clone that has not ended": """
        SELECT t.parent_id FROM trial t WHERE t.study_id = {study} AND t.ended_at IS NULL
            AND t.parent_id IS NOT NULL GROUP BY t.parent_id HAVING count(*) > 1
    """,
    "the last attempt of a trial that a scheduler or rule stopped has a verdict": """
        SELECT t.number FROM trial t JOIN attempt a ON a.trial_id = t.id AND a.attempt = t.attempt
        WHERE t.study_id = {study} AND t.state = 'TERMINATED'
            AND t.reason IN ('EARLY_STOPPED', 'RULE_STOPPED') AND a.verdict IS NULL
    """,
    "a trial that has reported done=True is COMPLETED, without a further attempt": """
        SELECT t.number FROM attempt a JOIN trial t ON t.id = a.trial_id
        WHERE t.study_id = {study} AND a.verdict_by = 'trial'
            AND NOT (t.state = 'TERMINATED' AND t.reason = 'COMPLETED' AND t.attempt = a.attempt)
    """,
}

IF_TRIALS_RESUME = {
    "a trial that the scheduler has paused waits at a rung": """
        SELECT t.number FROM trial t WHERE t.study_id = {study} AND t.state = 'PAUSED'
            AND t.paused_by = 'scheduler' AND NOT EXISTS
                (SELECT 1 FROM rung_entry e WHERE e.trial_id = t.id AND e.waiting)
    """,
}
"""Promises if the scheduler resumes trials; a trial that breaks one would stay PAUSED for ever."""


def _any_broken(promises: Mapping[str, str]) -> Prepared:
    """Make one statement that finds the broken promises, at a tenth of the cost of all queries."""
    queries = (
        f"SELECT {place} AS place WHERE EXISTS ({sql.format(study=':study')})"
        for place, sql in enumerate(promises.values())
    )
    study = sa.bindparam("study", type_=sa.BigInteger)
    return Prepared(
        sa.text(" UNION ALL ".join(queries)).bindparams(study).columns(sa.column("place"))
    )


_ALL_PROMISES = PROMISES | IF_TRIALS_RESUME
_BROKEN, _BROKEN_IF_TRIALS_RESUME = _any_broken(PROMISES), _any_broken(_ALL_PROMISES)


def broken_promises(database: Database, study: Study) -> dict[str, list[Any]]:
    """The rows of a study that break a promise, by promise."""
    statement = _BROKEN_IF_TRIALS_RESUME if study.scheduler.resumes else _BROKEN
    with database.begin(write=False) as txn:
        broken = [list(_ALL_PROMISES)[row.place] for row in txn.all(statement, study=study.id)]
        return {
            promise: txn.raw(_ALL_PROMISES[promise].format(study=study.id))[1] for promise in broken
        }


CHANGED_LATER = ("invalidated_at", "rank_score", "checkpoint_id")


def ended_rows(database: Database, study: Study) -> dict[int, Any]:
    """
    For each ended trial, by number, read the columns that no action of a random walk changes.

    The columns of CHANGED_LATER are left out: an ended trial may be invalidated, its invalidation
    may be undone, and its checkpoints may be removed.
    """
    sql = f"SELECT * FROM trial WHERE study_id = {study.id} AND state IN ('TERMINATED', 'ERROR')"
    with database.begin(write=False) as txn:
        names, rows = txn.raw(sql)
    number = names.index("number")
    kept = [place for place, name in enumerate(names) if name not in CHANGED_LATER]
    return {row[number]: tuple(str(row[place]) for place in kept) for row in rows}
