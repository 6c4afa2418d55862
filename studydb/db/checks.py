"""
CHECK constraints that cost little: what a row must not say, refused by the database itself.

PostgreSQL parses the CHECKs of a table anew in every statement that writes to it: with thirteen of
them that was a sixth of a trial's time. The checks of a domain it parses once per connection. So a
table has one CHECK, which casts the facts to a domain that has the rest; SQLite has them all.
"""

from string import Formatter

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql


def guard(table: sa.Table, **checks: str) -> None:
    """
    Give a table its CHECK constraints.

    Args:
        checks: SQL conditions by name, which the violation is reported by; NULL is no violation.
            Columns stand in braces: "({state} = 'RUNNING') = ({token} IS NOT NULL)".
    """
    named = (part[1] for text in checks.values() for part in Formatter().parse(text))
    columns = dict.fromkeys(name for name in named if name)
    for name, text in checks.items():
        plain = sa.CheckConstraint(text.format(**{column: column for column in columns}), name=name)
        table.append_constraint(plain.ddl_if(dialect="sqlite"))
    cast = sa.CheckConstraint(
        f"CAST(ROW({', '.join(columns)}) AS {table.name}_sound) IS DISTINCT FROM NULL", name="facts"
    )
    table.append_constraint(cast.ddl_if(dialect="postgresql"))
    _make_domain(table, [*columns], checks)


def _make_domain(table: sa.Table, columns: list[str], checks: dict[str, str]) -> None:
    kinds = ", ".join(f"{name} {_kind(table.c[name])}" for name in columns)
    values = {name: f"(VALUE).{name}" for name in columns}
    conditions = " ".join(
        f"CONSTRAINT {table.name}_{name}_check CHECK ({text.format(**values)})"
        for name, text in checks.items()
    )
    for moment, statement in (
        ("before_create", f"CREATE TYPE {table.name}_facts AS ({kinds})"),
        ("before_create", f"CREATE DOMAIN {table.name}_sound AS {table.name}_facts {conditions}"),
        ("after_drop", f"DROP DOMAIN {table.name}_sound"),
        ("after_drop", f"DROP TYPE {table.name}_facts"),
    ):
        ddl = sa.DDL(statement)  # type: ignore[no-untyped-call]
        sa.event.listen(table, moment, ddl.execute_if(dialect="postgresql"))


def _kind(column: sa.Column[object]) -> str:
    return column.type.compile(postgresql.dialect())  # type: ignore[no-untyped-call]
