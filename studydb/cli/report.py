"""`report`: report metrics from a trial's command, or from a program that it has started."""

from collections.abc import Sequence

import click

from studydb import report_client


@click.command()
@click.argument("metrics", nargs=-1, required=True, metavar="METRIC=VALUE…")
@click.option("--step", type=int, metavar="N", help="The step.  [default: the last step + 1]")
@click.option("--save", is_flag=True, help="Store $STUDYDB_SAVE as this step's checkpoint.")
def report(metrics: Sequence[str], step: int | None, *, save: bool) -> int:
    """
    Report the metrics of one step from a trial's command, or from a program that it has started.

    Exit codes: 0: go on; 10: end now (the file $STUDYDB_STOP says why); 11: end, because the lease
    is lost; 2: the report is wrong; 1: there is no trial, or the trial's process does not answer.
    """
    words = [*metrics, *([] if step is None else ["--step", str(step)]), *["--save"] * save]
    return report_client.main(words)
