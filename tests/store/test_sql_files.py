"""The statements and plans in docs/sql are those of this commit."""

import os
from contextlib import closing

import pytest
from harness import sql_files
from harness.postgres import DSN_VARIABLE
from harness.sql_layout import layout

from studydb.db import connect


@pytest.mark.slow
@pytest.mark.row("A4")
def test_statements_and_plans_in_docs_sql_are_up_to_date(postgres_url, sqlite_url):
    with closing(connect(postgres_url)) as postgresql, closing(connect(sqlite_url)) as sqlite:
        made = sql_files.files(postgresql, sqlite)

    # Other versions of PostgreSQL make other plans: compare plans only on the suite's own server.
    outdated = sql_files.differing(made, plans=DSN_VARIABLE not in os.environ)

    assert outdated == [], "Run scripts/sql, which rewrites docs/sql, and commit the difference."


def test_layout_puts_each_clause_and_condition_on_a_line_and_keeps_short_subqueries_whole():
    sql = "UPDATE t SET a=1, b='x, y' WHERE t.id = (SELECT u.id FROM u) AND t.a IS DISTINCT FROM 2"

    assert layout(sql) == (
        "UPDATE t\n"
        "SET a=1,\n"
        "    b='x, y'\n"
        "WHERE t.id = (SELECT u.id FROM u)\n"
        "    AND t.a IS DISTINCT FROM 2;"
    )
