"""The settings of our PostgreSQL sessions: timeouts, plans by index only, isolation."""

from typing import Any

from sqlalchemy.engine import URL

CONNECT_TIMEOUT_S = 10
LOCK_TIMEOUT_S = 10
STATEMENT_TIMEOUT_S = 60
IDLE_IN_TRANSACTION_TIMEOUT_S = 10
"""A client that freezes in a transaction keeps its row locks no longer than this."""

LONGEST_SILENCE_S = STATEMENT_TIMEOUT_S + 15
"""
No statement of ours takes longer. A COMMIT can: statement_timeout does not hold for it, and it
waits for a synchronous standby without a bound.
"""

TRANSACTION_TIMEOUT_S = 120
"""For a client that freezes while it sends, which the server does not count as idle."""

_TRANSACTION_TIMEOUT_SINCE = 170000
"""PostgreSQL 17 is the first to have `transaction_timeout`."""

_TIMEOUTS_MS = {
    "lock_timeout": LOCK_TIMEOUT_S * 1000,
    "statement_timeout": STATEMENT_TIMEOUT_S * 1000,
    "idle_in_transaction_session_timeout": IDLE_IN_TRANSACTION_TIMEOUT_S * 1000,
}

_INDEX_ONLY = {"enable_seqscan": "off", "plan_cache_mode": "force_generic_plan"}
"""
Every statement of ours has its index. A plan that was made while a table was small scans the table,
and is kept while the table grows: 1,900 trials read 9 million rows that way.
"""


def connect_arguments(url: URL, *, pooler: bool, read_only: bool) -> dict[str, Any]:
    """The arguments of psycopg's `connect`; `pooler` sets each transaction instead of a session."""
    arguments: dict[str, Any] = {
        "connect_timeout": CONNECT_TIMEOUT_S,
        "application_name": "studydb",
        "client_encoding": "UTF8",  # whatever PGCLIENTENCODING or the role's setting says
        "tcp_user_timeout": CONNECT_TIMEOUT_S * 1000,
        "keepalives_idle": 30,
    }
    if not read_only and "target_session_attrs" not in url.query:
        # After a failover, not the standby; "read-write" would shut out roles that only read.
        arguments["target_session_attrs"] = "primary"
    if pooler:
        return arguments | {"prepare_threshold": None}
    settings = _TIMEOUTS_MS | {"default_transaction_isolation": r"read\ committed"}
    settings |= {"default_transaction_read_only": "on"} if read_only else _INDEX_ONLY
    given = str(url.query.get("options", ""))
    ours = " ".join(f"-c {name}={value}" for name, value in settings.items())
    return arguments | {"options": f"{ours} {given}".strip()}


def set_for_session(server_version: int) -> str | None:
    """A statement that sets what no connection argument may set: older servers would refuse it."""
    if server_version < _TRANSACTION_TIMEOUT_SINCE:
        return None
    return f"SET transaction_timeout = {int(TRANSACTION_TIMEOUT_S * 1000)}"


def set_for_transaction(server_version: int, *, read_only: bool) -> str:
    """A query that sets a transaction behind a pooler, whose sessions keep no settings."""
    settings: dict[str, int | str] = _TIMEOUTS_MS | _INDEX_ONLY
    if server_version >= _TRANSACTION_TIMEOUT_SINCE:
        settings["transaction_timeout"] = int(TRANSACTION_TIMEOUT_S * 1000)
    if read_only:
        settings["transaction_read_only"] = "on"
    calls = (f"set_config('{name}', '{value}', true)" for name, value in settings.items())
    return f"SELECT {', '.join(calls)}"
