"""`query`: run one statement of SQL that only reads."""

from collections.abc import Sequence

import click

from studydb.cli.opening import opened
from studydb.cli.options import Storage, format_option, storage_option
from studydb.cli.printing import print_rows


@click.command()
@click.argument("sql", metavar="SQL")
@format_option
@storage_option
def query(*, sql: str, form: str, storage: Storage) -> None:
    """
    Run a SELECT on the database, read-only, and print its rows.

    New versions of studydb keep the columns of v_study, v_trial, v_result, v_attempt, v_checkpoint
    and v_worker.
    """
    from studydb.operations.query import run_query

    with opened(storage, read_only=True) as database:
        columns, rows = run_query(database, sql)
    print_rows(_distinct(columns), rows, form=form)


def _distinct(columns: Sequence[str]) -> list[str]:
    """Append a number to repeated names, because a JSON object holds each name once."""
    names: list[str] = []
    for column in columns:
        name, n = column, 1
        while name in names or (n > 1 and name in columns):
            n += 1
            name = f"{column}_{n}"
        names.append(name)
    return names
