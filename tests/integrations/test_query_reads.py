"""`studydb query` runs statements that read, and no others, even if the login is a superuser."""

import pytest
from harness import arrange


@pytest.fixture
def study(database):
    return arrange.new_study(database, name="digits")


ON_BOTH = [
    "SELECT 1; COMMIT; BEGIN READ WRITE; UPDATE study SET name = 'x'; COMMIT",
    "SELECT 1; UPDATE study SET name = 'x'",
    "COMMIT; BEGIN READ WRITE; UPDATE study SET name = 'x'; COMMIT",
    "SET TRANSACTION READ WRITE; UPDATE study SET name = 'x'",
    "SET SESSION CHARACTERISTICS AS TRANSACTION READ WRITE",
    "BEGIN",
    "  /* SELECT */ UPDATE study SET name = 'x'",
    " -- SELECT\nUPDATE study SET name = 'x'",
    "(UPDATE study SET name = 'x')",
    "WITH gone AS (SELECT 1) UPDATE study SET name = 'x'",
    "WITH gone AS (SELECT 1) DELETE FROM study",
    "REPLACE INTO study SELECT * FROM study",
    "VACUUM",
    "DROP VIEW v_trial",
]
ON_POSTGRESQL = [
    "SET SESSION default_transaction_read_only = off",
    "WITH gone AS (UPDATE study SET name = 'x' RETURNING 1) SELECT * FROM gone",
    "EXPLAIN ANALYZE UPDATE study SET name = 'x'",
    "SELECT set_config('transaction_read_only', 'off', false)",
    "SELECT * INTO stolen FROM study",
    "SELECT * FROM study FOR UPDATE",
    "SELECT nextval('study_id_seq')",
    "COPY study TO PROGRAM 'cat > {folder}/stolen'",
    "COPY (SELECT 1) TO '{folder}/stolen'",
    "DO $$ BEGIN UPDATE study SET name = 'x'; END $$",
    "CALL anything()",
    "PREPARE it AS UPDATE study SET name = 'x'",
    "LOCK TABLE study",
    "TABLE study; DELETE FROM study",
    "SHOW ALL; DELETE FROM study",
    "VALUES (1); DELETE FROM study",
    "/* /* */ SELECT */ COPY (SELECT 1) TO PROGRAM 'touch {folder}/stolen'",
    " --\rCOPY (SELECT 1) TO PROGRAM 'touch {folder}/stolen' /*\nSELECT */",
]
ON_SQLITE = [
    "ATTACH '{folder}/stolen' AS other",
    "VACUUM INTO '{folder}/stolen'",
    "PRAGMA query_only = OFF",
    "PRAGMA journal_mode = DELETE",
]


ON_ONE = [("postgresql", sql) for sql in ON_POSTGRESQL] + [("sqlite", sql) for sql in ON_SQLITE]


@pytest.mark.parametrize(
    ("storage_url", "sql"),
    [(dialect, sql) for dialect in ("sqlite", "postgresql") for sql in ON_BOTH] + ON_ONE,
    indirect=["storage_url"],
)
def test_query_refuses_statements_that_could_write(console, database, study, tmp_path, sql):
    before = arrange.dump(database)
    folder = tmp_path / "folder"
    folder.mkdir()
    folder.chmod(0o777)

    ran = console("query", sql.format(folder=folder), code=2)

    assert "only reads" in ran.error or "The database refuses the query" in ran.error
    assert arrange.dump(database) == before
    assert list(folder.iterdir()) == []


READS = [
    "SELECT study AS name FROM v_study",
    " select name FROM study ;",
    " -- whose\nSELECT name FROM study",
    "/* whose */ SELECT name FROM study",
    "WITH them AS (SELECT name FROM study) SELECT * FROM them",
    "SELECT name FROM study WHERE name <> 'a;b'",
]


@pytest.mark.parametrize("sql", READS)
def test_query_prints_the_rows_of_a_reading_statement(console, study, sql):
    assert console("query", sql).lines == ["name", "digits"]


@pytest.mark.each_database
def test_query_accepts_explain_values_show_and_table(console, database, study):
    for sql in ("EXPLAIN SELECT * FROM study", "VALUES (1), (2)"):
        assert len(console("query", sql).lines) > 1
    if database.postgresql:
        assert console("query", "SHOW transaction_read_only").lines[1].strip() == "on"
        assert console("query", "(SELECT 1 AS a) UNION (SELECT 1)").lines == ["a", "1"]
        assert console("query", "TABLE studydb_version").lines[0] == "version_num"
