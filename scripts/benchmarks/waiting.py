"""Fills a study with PENDING trials, for the benchmarks of clients that claim."""

from harness import postgres

FILL = """
    WITH numbered AS (
        UPDATE study SET next_number = next_number + %(n)s, n_counted = n_counted + %(n)s
        WHERE id = 1 RETURNING next_number - %(n)s AS first
    ), counted AS (
        UPDATE counter SET pending = pending + %(n)s WHERE study_id = 1 AND shard = 0
    )
    INSERT INTO trial (
        uuid, study_id, number, state, params, config, params_hash, space_version, origin,
        counted, priority, ready, ready_at, resource_class, bracket, attempt, failures, losses,
        flush_no, checkpoint_step, n_results, created_at)
    SELECT gen_random_uuid(), 1, first + offs, 'PENDING',
        '{"lr": 0.1, "width": 8, "momentum": 0.5}', '{"lr": 0.1, "width": 8, "momentum": 0.5}',
        md5(offs::text), 1, 'enqueued', true,
        0, %(ready)s, CASE WHEN NOT %(ready)s THEN clock_timestamp() + interval '1 day' END,
        CASE WHEN %(shapes)s > 0 THEN 'cpus=' || offs %% greatest(%(shapes)s, 1) + 1 ELSE '' END,
        0, 0, 0, 0, 0, 0, 0, clock_timestamp()
    FROM numbered, generate_series(0, %(n)s - 1) AS offs"""

CLASSES = """
    INSERT INTO resource_class (study_id, name, request)
    SELECT 1, CASE WHEN n > 0 THEN 'cpus=' || n ELSE '' END, CASE WHEN n > 0
        THEN jsonb_build_object('cpus', n) ELSE '{}' END
    FROM generate_series(0, %s) AS n ON CONFLICT DO NOTHING"""

WAITING = "SELECT count(*) FROM trial WHERE study_id = 1 AND state = 'PENDING' AND ready = %s"


def fill(url: str, n: int, *, ready: bool = True, shapes: int = 0) -> None:
    """
    Add PENDING trials until there are `n` with this value of `ready`, and vacuum the table.

    With `shapes`, the study's resource classes are added, too.

    Args:
        ready: Whether the trials can be claimed; if not, they back off until tomorrow.
        shapes: How many different requests for resources the new trials have; 0 if they have none.
    """
    with postgres.connect(url) as connection:
        (there,) = connection.execute(WAITING, [ready]).fetchone() or (0,)
        if there < n:
            connection.execute(FILL, {"n": int(n - there), "ready": ready, "shapes": shapes})
        if shapes:
            connection.execute(CLASSES, [shapes])
        connection.execute("VACUUM (ANALYZE) trial")
