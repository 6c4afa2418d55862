"""RUNNING trials without results, for clients that report and do not claim."""

from collections import deque
from typing import Any

from harness import postgres

from studydb.domain.records import Lease

FILL = """
    WITH wanted AS (
        SELECT worker, row_number() OVER () AS place
        FROM generate_series(1, %(workers)s) AS worker
        CROSS JOIN LATERAL generate_series(1, %(each)s - (
            SELECT count(*) FROM trial
            WHERE study_id = 1 AND state = 'RUNNING' AND n_results = 0 AND worker_id = worker
        )) AS missing
    ), numbered AS (
        UPDATE study SET next_number = next_number + (SELECT count(*) FROM wanted),
            n_counted = n_counted + (SELECT count(*) FROM wanted)
        WHERE id = 1 RETURNING next_number - (SELECT count(*) FROM wanted) AS first
    ), counted AS (
        UPDATE counter SET running = running + (SELECT count(*) FROM wanted)
        WHERE study_id = 1 AND shard = 0
    ), made AS (
        INSERT INTO trial (
            uuid, study_id, number, state, params, params_hash, space_version, origin, counted,
            priority, ready, resource_class, bracket, attempt, failures, losses, token, flush_no,
            worker_id, lease_s, lease_expires_at, checkpoint_step, n_results, created_at,
            started_at)
        SELECT gen_random_uuid(), 1, first + place - 1, 'RUNNING',
            '{"lr": 0.1, "width": 8, "momentum": 0.5}', md5(place::text), 1, 'enqueued', true,
            0, true, '', 0, 1, 0, 0, gen_random_uuid(), 0,
            worker, 3600, clock_timestamp() + interval '1 h', 0, 0,
            clock_timestamp(), clock_timestamp()
        FROM numbered, wanted
        RETURNING id, token, worker_id, params
    )
    INSERT INTO attempt (trial_id, attempt, study_id, token, worker_id, config, start_step,
        live_through, flush_no, started_at)
    SELECT id, 1, 1, token, worker_id, params, 1, 1::bigint << 62, 0, clock_timestamp() FROM made"""

TAKE = """
    SELECT id, number, token FROM trial
    WHERE study_id = 1 AND state = 'RUNNING' AND n_results = 0 AND worker_id = %(worker)s
        AND id > %(after)s
    ORDER BY id LIMIT 200"""


def fill(url: str, *, workers: int, per_worker: int) -> None:
    """Make RUNNING trials until each worker (1 to `workers`) has `per_worker` without results."""
    with postgres.connect(url) as connection:
        connection.execute(FILL, {"workers": workers, "each": per_worker})
        connection.execute("VACUUM (ANALYZE) trial")


class Leases:
    """The leases of one worker on RUNNING trials without results, ordered by trial id."""

    def __init__(self, connection: Any, *, worker_id: int) -> None:
        self._connection, self._worker_id = connection, worker_id
        self._leases: deque[Lease] = deque()
        self._after = 0

    def take(self) -> Lease:
        if not self._leases:
            at = {"worker": self._worker_id, "after": self._after}
            for id_, number, token in self._connection.execute(TAKE, at).fetchall():
                self._leases.append(Lease(1, id_, number, 0, 1, token, worker_id=self._worker_id))
            if not self._leases:
                raise RuntimeError("No trial without results is left.")
            self._after = self._leases[-1].trial_id
        return self._leases.popleft()
