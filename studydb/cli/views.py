"""`views`: make SQL views of one study, with a column per parameter and metric."""

import shlex

import click

from studydb.cli.opening import opened_study
from studydb.cli.options import Storage, storage_option, study_argument
from studydb.cli.printing import print_next


@click.command()
@study_argument
@click.option("--drop", is_flag=True, help="Drop the views instead.")
@storage_option
def views(*, name: str, drop: bool, storage: Storage) -> None:
    """
    Make a view of the trials of NAME, and one of its results; parameters and metrics are columns.

    The views always show the current rows. Run this command again to add columns for new metrics.
    Columns have the same names as in Python's study.trials_dataframe() and results_dataframe().
    """
    from studydb.analysis.wide import make_wide_views
    from studydb.operations.wide_views import drop_views
    from studydb.study.storage import read_patiently, write_patiently

    with opened_study(storage, name) as study:
        database, record = study.database, study.record
        if drop:
            dropped = write_patiently(database, lambda: drop_views(database, record))
            click.echo(f"Study {name!r}: {_dropped(dropped) if dropped else 'it has no views'}.")
            return
        made, dropped = read_patiently(lambda: make_wide_views(database, record))
        suffix = storage.command_suffix(study.storage)
    click.echo(f"Study {name!r}: made {' and '.join(view.name for view in made)}.")
    if dropped:
        click.echo(f"{_dropped(dropped).capitalize()}, made before the study was renamed.")
    queries = [shlex.quote(f"SELECT * FROM {view.name}") for view in made]  # noqa: S608  only printed
    print_next(*(f"studydb query {query}{suffix}" for query in queries))


def _dropped(names: list[str]) -> str:
    return f"dropped {' and '.join(names)}"
