"""The database below all SQL: schema, engine, dialect, codecs, faults, migrations."""

from studydb.db.chain import Chain
from studydb.db.engine import Database, connect
from studydb.db.statement import Prepared
from studydb.db.transaction import Txn

__all__ = ["Chain", "Database", "Prepared", "Txn", "connect"]
