"""
CHECK constraints that cost little.

PostgreSQL parses the CHECKs of a table in every statement that writes to the table. To parse 14
CHECKs took a sixth of the server's work on a trial. The CHECKs of a domain are parsed once per
connection. So on PostgreSQL a table has one CHECK, which casts the row's values to a domain with
all conditions. On SQLite the table has a CHECK per condition.

A migration that changes a condition must also drop the table's CHECK and add it again; otherwise
PostgreSQL does not check the existing rows.
"""

from string import Formatter

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql


def add_checks(table: sa.Table, **checks: str) -> None:
    """
    Give a table its CHECK constraints.

    `table.info` gets the names of PostgreSQL's domain and of its row type.

    Args:
        checks: SQL conditions by name; a condition that is NULL counts as fulfilled.
            Columns are in braces: "({state} = 'RUNNING') = ({token} IS NOT NULL)".
    """
    named = (part[1] for text in checks.values() for part in Formatter().parse(text))
    columns = dict.fromkeys(name for name in named if name)
    for name, text in checks.items():
        plain = sa.CheckConstraint(text.format(**{column: column for column in columns}), name=name)
        table.append_constraint(plain.ddl_if(dialect="sqlite"))
    table.info |= {"type": f"{table.name}_facts", "domain": f"{table.name}_sound"}
    cast = sa.CheckConstraint(
        f"CAST(ROW({', '.join(columns)}) AS {table.info['domain']}) IS DISTINCT FROM NULL",
        name="facts",
    )
    table.append_constraint(cast.ddl_if(dialect="postgresql"))
    _make_domain(table, [*columns], checks)


def _make_domain(table: sa.Table, columns: list[str], checks: dict[str, str]) -> None:
    row_type, domain = table.info["type"], table.info["domain"]
    columns_sql = ", ".join(f"{name} {_sql_type(table.c[name])}" for name in columns)
    values = {name: f"(VALUE).{name}" for name in columns}
    conditions = " ".join(
        f"CONSTRAINT {table.name}_{name}_check CHECK ({text.format(**values)})"
        for name, text in checks.items()
    )
    for moment, statement in (
        ("before_create", f"CREATE TYPE {row_type} AS ({columns_sql})"),
        ("before_create", f"CREATE DOMAIN {domain} AS {row_type} {conditions}"),
        ("after_drop", f"DROP DOMAIN {domain}"),
        ("after_drop", f"DROP TYPE {row_type}"),
    ):
        ddl = sa.DDL(statement)  # type: ignore[no-untyped-call]
        sa.event.listen(table, moment, ddl.execute_if(dialect="postgresql"))


def _sql_type(column: sa.Column[object]) -> str:
    return column.type.compile(postgresql.dialect())  # type: ignore[no-untyped-call]
