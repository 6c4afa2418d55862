"""`note` and `tag`: say what you know about a study and its trials."""

import itertools
import shlex
from collections.abc import Sequence

import click

from studydb.cli.control import subject
from studydb.cli.opening import opened_study
from studydb.cli.options import Spec, Storage, TrialWord, storage_option, study_argument
from studydb.domain.errors import UsageError
from studydb.domain.text.names import check_note, check_tags


@click.command()
@study_argument
@click.argument("words", metavar="[TRIAL] TEXT", type=Spec(), nargs=-1, required=True)
@storage_option
def note(*, name: str, words: Sequence[str], storage: Storage) -> None:
    """
    Add a note to study NAME, or to TRIAL of it; `status` and `show` print the notes.

    Quote a TEXT of several words.
    """
    *named, text = words
    if len(named) > 1:
        raise UsageError("Quote the text of the note: studydb note NAME 3 'a text'.")
    trials = [TrialWord().convert(word, None, None) for word in named]
    if not named and _is_number(text):
        raise UsageError(
            f"Write the note after the trial: studydb note {shlex.quote(name)} {text} 'a text'."
        )
    check_note(text)
    with opened_study(storage, name) as study:
        study.note(text, trial=trials[0] if trials else None)
    click.echo(f"{subject(name, trials)}: noted.")


@click.command()
@study_argument
@click.argument("words", metavar="TRIAL... TAG...", type=Spec(), nargs=-1, required=True)
@click.option("--remove", is_flag=True, help="Remove the tags.")
@storage_option
def tag(*, name: str, words: Sequence[str], remove: bool, storage: Storage) -> None:
    """
    Add tags to trials of NAME. Each TRIAL is a number; the first may also be a trial's name.

    `studydb trials NAME --tag TAG` lists the trials with a tag.
    """
    first, *others = words
    numbers = list(itertools.takewhile(_is_number, others))
    tags = others[len(numbers) :]
    if not tags:
        raise UsageError("Give tags after the trials: studydb tag NAME 3 4 baseline.")
    trials = [TrialWord().convert(word, None, None) for word in (first, *numbers)]
    check_tags(tags)
    with opened_study(storage, name) as study:
        study.tag(*trials, **{"remove" if remove else "add": tags})
    did = "no longer tagged" if remove else "tagged"
    click.echo(f"{subject(name, trials)}: {did} {', '.join(tags)}.")


def _is_number(word: str) -> bool:
    return word.isascii() and word.isdigit()
