"""Which schema this studydb needs; known without loading Alembic, checked at every connect."""

HEAD = "0005"
TABLE = "studydb_version"
REVISIONS = ("0001", "0002", "0003", "0004", "0005")
"""Every revision in order; a database with another one is newer than this studydb."""

ADVISORY_LOCK = 0x73747564_79646201
"""
Held on PostgreSQL while the schema is changed. Any number would do; it must never change.
"""
