"""The database below all SQL: schema, engine, dialect, codecs, faults, migrations."""

from studydb.db.chain import Chain
from studydb.db.engine import LONGEST_SILENCE_S, Database, connect
from studydb.db.statement import Prepared
from studydb.db.transaction import Txn

__all__ = ["LONGEST_SILENCE_S", "Chain", "Database", "Prepared", "Txn", "connect"]
