"""
Conditions that a table's rows must fulfil.

On SQLite they are CHECK constraints. PostgreSQL would parse those in every statement that writes to
the table: that took a twentieth of a flush. There a trigger has the conditions. It runs only for
statements that insert a row or set a column that a condition names, which neither reports nor
renewals do.
"""

from string import Formatter

import sqlalchemy as sa


def guard(table: sa.Table, **checks: str) -> None:
    """
    Let the database refuse rows that violate a condition.

    On PostgreSQL `table.info` gets the name of the trigger's function.

    Args:
        checks: SQL conditions by the name that a violation reports; NULL fulfils a condition.
            Columns stand in braces: "({state} = 'RUNNING') = ({token} IS NOT NULL)".
    """
    named = (part[1] for text in checks.values() for part in Formatter().parse(text))
    columns = dict.fromkeys(name for name in named if name)
    for name, text in checks.items():
        plain = sa.CheckConstraint(text.format(**{column: column for column in columns}), name=name)
        table.append_constraint(plain.ddl_if(dialect="sqlite"))
    table.info["function"] = function = f"{table.name}_check()"
    trigger = (
        f"CREATE TRIGGER {table.name}_check BEFORE INSERT OR UPDATE OF {', '.join(columns)} "
        f"ON {table.name} FOR EACH ROW EXECUTE FUNCTION {function}"
    )
    for moment, statement in (
        ("after_create", _function(table.name, [*columns], checks)),
        ("after_create", trigger),
        ("after_drop", f"DROP FUNCTION {function}"),
    ):
        ddl = sa.DDL(statement)  # type: ignore[no-untyped-call]
        sa.event.listen(table, moment, ddl.execute_if(dialect="postgresql"))


def _function(table: str, columns: list[str], checks: dict[str, str]) -> str:
    """
    Make the SQL of a trigger's function, which raises what a CHECK constraint raises.

    Its search path keeps a role from replacing the operators that it uses.
    """
    new = {name: f"NEW.{name}" for name in columns}
    cases = " ".join(
        f"WHEN NOT ({text.format(**new)}) THEN '{table}_{name}_check'"
        for name, text in checks.items()
    )
    return (
        f"CREATE FUNCTION {table}_check() RETURNS trigger LANGUAGE plpgsql "
        "SET search_path = pg_catalog, pg_temp AS $$ "
        f"DECLARE violated text := CASE {cases} END; "
        "BEGIN IF violated IS NULL THEN RETURN NEW; END IF; "
        "RAISE check_violation USING CONSTRAINT = violated, TABLE = TG_TABLE_NAME, "
        "SCHEMA = TG_TABLE_SCHEMA, MESSAGE = 'new row for relation \"' || TG_TABLE_NAME || "
        "'\" violates check constraint \"' || violated || '\"'; END $$"
    )
