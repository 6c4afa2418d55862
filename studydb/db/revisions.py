"""
The revisions of the schema, the table with the database's revision, and the lock for changes.

The revisions are listed here so that `check_schema` need not load Alembic.
"""

HEAD = "0017"
TABLE = "studydb_version"
REVISIONS = (
    "0001",
    "0002",
    "0003",
    "0004",
    "0005",
    "0007",
    "0008",
    "0009",
    "0010",
    "0011",
    "0012",
    "0013",
    "0015",
    "0016",
    "0017",
)
"""
Every known revision in order. A database with another revision counts as newer than this studydb,
also a database with revision 0006, which was withdrawn.
"""

ADVISORY_LOCK = 0x73747564_79646201
"""
The key of PostgreSQL's advisory lock for changes of the schema. The number is arbitrary, but must
never change.
"""
