"""The settings of our PostgreSQL sessions: timeouts, isolation, plans without scans of tables."""

import math
from collections.abc import Mapping
from typing import Any

from sqlalchemy.engine import URL

CONNECT_TIMEOUT_S = 10
LOCK_TIMEOUT_S = 10
STATEMENT_TIMEOUT_S = 60
IDLE_IN_TRANSACTION_TIMEOUT_S = 10
"""
A client that freezes in a transaction, while the server waits for its next statement, keeps its row
locks for at most this many seconds.
"""

LONGEST_SILENCE_S = STATEMENT_TIMEOUT_S + 15
"""
The longest wait for an answer by default, in seconds. `statement_timeout` ends a statement earlier,
but it does not end a COMMIT that waits for a synchronous standby.
"""

TRANSACTION_TIMEOUT_S = 120
"""
How many seconds a transaction may last, on PostgreSQL 17 or later. If a client freezes while it
sends, the server does not count it as idle. So the timeout for idle clients would not end the
client's transaction.
"""

_TRANSACTION_TIMEOUT_SINCE = 170000
"""The first server version with `transaction_timeout`."""

_TIMEOUTS_MS = {
    "lock_timeout": LOCK_TIMEOUT_S * 1000,
    "statement_timeout": STATEMENT_TIMEOUT_S * 1000,
    "idle_in_transaction_session_timeout": IDLE_IN_TRANSACTION_TIMEOUT_S * 1000,
}

_TEXTS = {"DateStyle": "ISO", "extra_float_digits": "1", "array_nulls": "on"}
"""
How values are written as texts. A database or a login may have other settings, with which the
driver could not read a time, numbers would be rounded, and an array could not hold NULL.
"""

_INDEX_ONLY = {"enable_seqscan": "off", "plan_cache_mode": "force_generic_plan"}
"""
Keep the planner from scanning whole tables; all statements of studydb can use an index. A plan that
scans a table because the table is small would still be used after the table has grown. Without
these settings, a study of 1,900 trials read 9 million rows.
"""


def for_ever() -> float:
    """Return infinity: the longest silence during a migration, which can take hours."""
    return math.inf


def connect_arguments(url: URL, *, pooler: bool, read_only: bool) -> dict[str, Any]:
    """
    Return the arguments of psycopg's `connect`.

    Args:
        pooler: Whether we connect through a pooler. If so, each transaction makes the settings: its
            BEGIN sets the isolation, and the query of `set_for_transaction` sets the others.
    """
    arguments: dict[str, Any] = {
        "connect_timeout": CONNECT_TIMEOUT_S,
        "application_name": "studydb",
        "client_encoding": "UTF8",  # overrides PGCLIENTENCODING and the role's setting
        "tcp_user_timeout": CONNECT_TIMEOUT_S * 1000,
        "keepalives_idle": 30,
    }
    if not read_only and "target_session_attrs" not in url.query:
        # After a failover, skip the standby. "read-write" would exclude roles whose transactions
        # are read-only by default.
        arguments["target_session_attrs"] = "primary"
    if pooler:
        return arguments | {"prepare_threshold": None}
    settings = _TIMEOUTS_MS | _TEXTS | {"default_transaction_isolation": r"read\ committed"}
    settings |= {"default_transaction_read_only": "on"} if read_only else _INDEX_ONLY
    given = str(url.query.get("options", ""))
    ours = " ".join(f"-c {name}={value}" for name, value in settings.items())
    return arguments | {"options": f"{ours} {given}".strip()}


def set_for_session(server_version: int, url: URL) -> str:
    """
    Return a query that makes the settings of a session that `connect_arguments` cannot make.

    COMMIT waits for the disk, although a database or a login may be set to the opposite, unless the
    options in the URL say so, too. A setting that also waits for a standby stays.
    """
    settings: dict[str, str] = {}
    options = str(url.query.get("options", "")).lower().replace("-", "_")
    if "synchronous_commit" not in options:
        settings["synchronous_commit"] = _WAITS_FOR_DISK
    if server_version >= _TRANSACTION_TIMEOUT_SINCE:
        settings["transaction_timeout"] = f"'{int(TRANSACTION_TIMEOUT_S * 1000)}'"
    return _set_config(settings, is_local=False)


def set_for_transaction(server_version: int, *, read_only: bool) -> str:
    """Return a query that makes the settings of a transaction behind a pooler, except isolation."""
    settings: dict[str, int | str] = {**_TIMEOUTS_MS, **_TEXTS}
    if server_version >= _TRANSACTION_TIMEOUT_SINCE:
        settings["transaction_timeout"] = int(TRANSACTION_TIMEOUT_S * 1000)
    settings |= {"transaction_read_only": "on"} if read_only else _INDEX_ONLY
    quoted = {name: f"'{value}'" for name, value in settings.items()}
    return _set_config(quoted | {"synchronous_commit": _WAITS_FOR_DISK}, is_local=True)


_WAITS_FOR_DISK = "coalesce(nullif(current_setting('synchronous_commit'), 'off'), 'on')"


def _set_config(settings: Mapping[str, str], *, is_local: bool) -> str:
    """Return a query that makes settings; each value is an SQL expression."""
    local = str(is_local).lower()
    calls = (f"set_config('{name}', {value}, {local})" for name, value in settings.items())
    return f"SELECT {', '.join(calls)}"
