"""The schema that this studydb needs. Every connection checks it without loading Alembic."""

HEAD = "0005"
TABLE = "studydb_version"
REVISIONS = ("0001", "0002", "0003", "0004", "0005")
"""Every known revision in order. A database with another revision is newer than this studydb."""

ADVISORY_LOCK = 0x73747564_79646201
"""
The key of the advisory lock that is held on PostgreSQL while the schema is changed. Any number
would do, but it must never change.
"""
