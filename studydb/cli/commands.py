"""The root command, and the list of its subcommands."""

from importlib import import_module
from keyword import iskeyword

import click

from studydb.domain.text.other_tools import hint
from studydb.version import __version__

COMMANDS = {
    "hello": ("hello", "Run a small study here: see that everything works."),
    "create": ("create", "Create a study."),
    "try": ("try_", "Run one trial here, in the foreground, and store nothing."),
    "worker": ("worker", "Run trials of a study until it is done."),
    "studies": ("status", "List the studies."),
    "status": ("status", "Show how a study is doing, and what to type next."),
    "trials": ("trials", "List a study's trials."),
    "show": ("show", "Show a study's definition, or a trial and why it ended."),
    "results": ("trials", "List one trial's results, step by step."),
    "best": ("trials", "Show a study's best trial."),
    "rungs": ("rungs", "List the rungs at which trials are compared."),
    "checkpoints": ("checkpoints", "List the checkpoints of a study or a trial."),
    "export-checkpoint": ("export_checkpoint", "Copy a trial's checkpoint to a folder."),
    "export-model": ("export_checkpoint", "Write a trial's model to a folder."),
    "pin": ("pin", "Keep a checkpoint until the pin is removed."),
    "gc": ("gc", "Delete checkpoints that are no longer kept, and what crashes have left."),
    "workers": ("workers", "List the workers."),
    "drain": ("drain", "End a worker; its trials go to other workers."),
    "logs": ("logs", "Print what a trial has printed."),
    "pause": ("control", "Pause trials, or a whole study."),
    "resume": ("control", "Resume trials, or a whole study."),
    "stop": ("control", "Stop trials, or a whole study."),
    "retry": ("retry", "Run ended trials again."),
    "invalidate": ("invalidate", "Leave trials with wrong values out of rankings and frames."),
    "note": ("annotate", "Add a note to a study or a trial."),
    "tag": ("annotate", "Add tags to trials, or remove tags."),
    "clone": ("clone", "Make a study with the definition of another study."),
    "enqueue": ("control", "Add a trial with given parameters."),
    "extend": ("control", "Add trials to a study's budget."),
    "set": ("set", "Change a study's code, limits, resources or checkpoint settings."),
    "rename": ("rename", "Give a study another name."),
    "delete": ("delete", "Delete a study with its trials, results and checkpoints."),
    "query": ("query", "Run a SELECT on the database, read-only."),
    "views": ("views", "Make views with a column per parameter and metric."),
    "db": ("db", "Make, upgrade and check the database's schema."),
    "report": ("report", "Report metrics, from within a command that a worker runs."),
    "completion": ("completion", "Print the lines that let a shell complete commands."),
}
"""Each command's file in this folder and its help line, in the order of the help."""


class LazyGroup(click.Group):
    """A group that imports a command's file only when that command is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  click's signature
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in COMMANDS:
            return None
        module = import_module(f"studydb.cli.{COMMANDS[cmd_name][0]}")
        name = cmd_name.replace("-", "_")
        command = getattr(module, f"{name}_" if iskeyword(name) else name)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the typed command, or suggest a command with a similar name."""
        name = args[0]
        if name not in COMMANDS and not name.startswith("-"):
            ctx.fail(f"There is no command {name!r}.{hint(name, COMMANDS)}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """List all commands without importing any."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in COMMANDS.items()])


@click.group(
    cls=LazyGroup,
    context_settings={
        "auto_envvar_prefix": "STUDYDB",
        "help_option_names": ["-h", "--help"],
        "max_content_width": 100,
        "show_default": True,
    },
)
@click.version_option(__version__, prog_name="studydb")
@click.option("--storage", metavar="URL", help="The database; the option may follow the command.")
def cli(storage: str | None) -> None:
    """
    A SQL-backed store for studies, with stateless workers.

    The database is --storage, else $STUDYDB_STORAGE, else sqlite:///studydb.db. Options can also
    be set by environment variables: STUDYDB_WORKER_SLOTS=4 is `studydb worker --slots 4`, and
    STUDYDB_FORMAT is --format of all commands.
    """
