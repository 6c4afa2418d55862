"""The command line of scripts/bench."""

import click

from benchmarks.ask import ask
from benchmarks.burden import burden
from benchmarks.checkpoints import checkpoints
from benchmarks.claim import claim
from benchmarks.decide import decide
from benchmarks.frames import frames
from benchmarks.growth import growth
from benchmarks.idle import idle
from benchmarks.long import long
from benchmarks.loops import loops
from benchmarks.real import real
from benchmarks.report import report
from benchmarks.reuse import reuse
from benchmarks.schedulers import schedulers
from benchmarks.simulate import simulate
from benchmarks.start import start
from benchmarks.trial import trial
from benchmarks.worker import worker


@click.group(context_settings={"show_default": True, "max_content_width": 100})
def bench() -> None:
    """
    Measure studydb, raw SQL and other tools in turns within one run.

    A slice is a short measurement of one contender; a round has one slice of each contender.
    STUDYDB_TEST_DSN names the PostgreSQL server. Without this variable, the run starts a server.
    """


for command in (
    *(trial, claim, ask, report, decide, growth, burden),
    *(frames, worker, loops, idle, start, reuse, real, long, schedulers, simulate, checkpoints),
):
    bench.add_command(command)
