"""Connections, transactions, schema, column types, errors of drivers, and migrations."""

from studydb.db.chain import Chain
from studydb.db.connecting import connect
from studydb.db.database import Database
from studydb.db.sessions import LONGEST_SILENCE_S
from studydb.db.statement import Prepared
from studydb.db.transaction import Txn

__all__ = ["LONGEST_SILENCE_S", "Chain", "Database", "Prepared", "Txn", "connect"]
