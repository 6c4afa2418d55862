"""`completion`: print the lines that let a shell complete commands and options."""

import click
from click.shell_completion import get_completion_class

PROGRAM, VARIABLE = "studydb", "_STUDYDB_COMPLETE"


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(*, shell: str) -> None:
    """
    Print the lines that let SHELL complete commands and options.

    \b
    bash, in ~/.bashrc:                   eval "$(studydb completion bash)"
    zsh, in ~/.zshrc after compinit:      eval "$(studydb completion zsh)"
    fish:  studydb completion fish > ~/.config/fish/completions/studydb.fish
    """  # noqa: D301  \b tells click to keep the line breaks
    completion_class = get_completion_class(shell)
    assert completion_class is not None
    root = click.get_current_context().find_root().command
    click.echo(completion_class(root, {}, PROGRAM, VARIABLE).source())
