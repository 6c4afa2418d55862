"""Trials per second of a worker, computed from the times at which its attempts started."""

from fleet.workers import Fleet
from harness import postgres

STARTS = """
    SELECT extract(epoch FROM started_at)::float8
    FROM attempt
    WHERE worker_id = (SELECT max(id) FROM worker) AND reason = 'COMPLETED' AND start = %s
    ORDER BY started_at"""


def trials_per_s(fleet: Fleet, *, start: str, slots: int) -> float:
    """
    Return the trials per second of the last worker's completed attempts with this kind of start.

    The first such attempts, one per slot, start at about the same time, and are not counted. Each
    later attempt starts after another attempt has ended. The time runs from the moment when every
    slot has started its first attempt to the last start.
    """
    with postgres.connect(fleet.storage) as connection:
        starts_s = [row[0] for row in connection.execute(STARTS, (start,))]
    if len(starts_s) <= slots:
        raise RuntimeError(
            f"{len(starts_s)} attempts with start={start} have completed, and a rate needs more "
            f"than {slots}: raise --trials.\n{fleet.output()}"
        )
    return (len(starts_s) - slots) / (starts_s[-1] - starts_s[slots - 1])
