"""Find out whether the PostgreSQL role of this process only reads."""

import sqlalchemy as sa

from studydb.db import Prepared, Txn

_SETTING = sa.func.current_setting("default_transaction_read_only")
_WHO = Prepared(
    sa.select(
        sa.func.current_user().label("name"),
        sa.and_(_SETTING == "on", sa.not_(sa.func.pg_is_in_recovery())).label("only_reads"),
    )
)


def read_only_role(txn: Txn) -> str | None:
    """
    Read the name of the role if its transactions are read-only by default; else return None.

    On a standby the answer is always None: there the server refuses all writes, whatever the role.
    """
    row = txn.first(_WHO)
    return row.name if row is not None and row.only_reads else None
