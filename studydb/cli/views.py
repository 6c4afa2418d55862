"""`views`: views of one study with a column per parameter and metric, for SQL."""

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
    Make two views of NAME, of its trials and its results, with a column per parameter and metric.

    The views always show the current rows; run this again to add columns for new metrics. The
    columns are named as in the frames.
    """
    from studydb.analysis.wide import make_wide_views
    from studydb.operations.wide_views import drop_views

    with opened_study(storage, name) as study:
        if drop:
            gone = drop_views(study.database, study.record)
            click.echo(f"Study {name!r}: {_dropped(gone) if gone else 'it has no views'}.")
            return
        made, gone = make_wide_views(study.database, study.record)
        again = storage.again(study.storage)
    click.echo(f"Study {name!r}: made {' and '.join(view.name for view in made)}.")
    if gone:
        click.echo(f"{_dropped(gone).capitalize()}, from before it was renamed.")
    queries = [shlex.quote(f"SELECT * FROM {view.name}") for view in made]  # noqa: S608  to be typed
    print_next(*(f"studydb query {query}{again}" for query in queries))


def _dropped(names: list[str]) -> str:
    return f"dropped {' and '.join(names)}"
