"""The rules for names of studies, trials and metrics, and for tags."""

from collections.abc import Iterable

from studydb.domain.arguments import elements
from studydb.domain.errors import InvalidName
from studydb.domain.text.display import shortened, with_article

LONGEST_NAME = 200
"""The limit for a name, in characters."""

MOST_TAGS = 50
"""The most tags of a trial or a worker, and the most that a study can require."""

LONGEST_NOTE = 10_000
"""The limit for a note, in characters."""

_SHOWN = 40


def check_study_name(name: object) -> str:
    """
    Check a study's name, which is used in paths and command lines.

    Raises:
        InvalidName: The name is not a text of 1 to 200 printable characters, contains a "/", or
            begins or ends with a space.
    """
    return _without_slash(_check_text(name, "study name"), "study name")


def check_new_study_name(name: object) -> str:
    """
    Check the name that a study is to get.

    Raises:
        InvalidName: See `check_study_name`; or the name begins with "-".
    """
    return _without_dash(check_study_name(name), "study name")


def check_trial_name(name: object) -> str:
    """
    Check a trial's name, which commands take in place of the trial's number.

    Raises:
        InvalidName: The name breaks a rule for study names, begins with "-" as options do, or could
            be taken for a number.
    """
    noun = "trial name"
    text = _without_dash(_without_slash(_check_text(name, noun), noun), noun)
    if _is_number(text):
        raise InvalidName(
            f"The trial name {_shown(text)} could be taken for a trial's number; add a letter, "
            f"such as {shortened(f'trial-{text}', _SHOWN)!r}."
        )
    return text


def check_tags(tags: Iterable[object], *, name: str = "tags") -> tuple[str, ...]:
    """
    Check the tags of a trial or a worker, or those that a study requires of its workers.

    Args:
        name: The argument's name, for an error message.

    Returns:
        Each tag once, in alphabetical order.

    Raises:
        InvalidName: `tags` is a single text, or there are more than 50 tags; or a tag is not a text
            of 1 to 200 printable characters, begins or ends with a space, or contains a comma.
    """
    if isinstance(tags, str) or (given := elements(tags)) is None:
        raise InvalidName(f"{name} is {tags!r}; give a list of texts, such as ['baseline'].")
    checked = sorted({_check_text(tag, "tag") for tag in given})
    for tag in checked:
        if "," in tag:
            raise InvalidName(f"The tag {_shown(tag)} holds a ','; give each tag by itself.")
    if len(checked) > MOST_TAGS:
        raise InvalidName(f"There are {len(checked)} tags; at most {MOST_TAGS} are allowed.")
    return tuple(checked)


def check_note(text: object) -> str:
    """
    Check the text of a note, which may have several lines; return it without outer white space.

    Raises:
        InvalidName: The note is not a text of 1 to 10,000 characters, or is only white space.
    """
    if not isinstance(text, str) or not text.strip():
        raise InvalidName(f"The note is {text!r}; give a text.")
    if len(text) > LONGEST_NOTE:
        raise InvalidName(
            f"The note has {len(text):,} characters; at most {LONGEST_NOTE:,} are allowed."
        )
    return text.strip()


def check_metric_name(name: object) -> str:
    """
    Check the name of a metric of a study, rule or limit; nested names are joined by "/".

    Raises:
        InvalidName: The name is not a text of 1 to 200 printable characters, begins or ends with a
            space, or contains a quote or backslash, which a JSON path in SQL cannot contain.
    """
    text = _check_text(name, "metric name")
    for character in "\"'\\":
        if character in text:
            raise InvalidName(f"The metric name {_shown(text)} holds a {character}; leave it out.")
    return text


def _without_dash(text: str, noun: str) -> str:
    if text.startswith("-"):
        raise InvalidName(
            f"The {noun} {_shown(text)} begins with '-', as options do; begin with a letter."
        )
    return text


def _check_text(name: object, noun: str) -> str:
    if not isinstance(name, str):
        raise InvalidName(
            f"The {noun} is {name!r}, {with_article(type(name).__name__)}; give a text."
        )
    if not name:
        raise InvalidName(f"The {noun} is empty; give it 1 to {LONGEST_NAME} characters.")
    if len(name) > LONGEST_NAME:
        raise InvalidName(
            f"The {noun} {_shown(name)} has {len(name)} characters; "
            f"at most {LONGEST_NAME} are allowed."
        )
    if not name.isprintable():
        raise InvalidName(
            f"The {noun} {_shown(name)} holds a character that cannot be printed; remove it."
        )
    if name != name.strip():
        raise InvalidName(f"The {noun} {_shown(name)} begins or ends with a space; remove it.")
    return name


def _without_slash(text: str, noun: str) -> str:
    if "/" in text:
        raise InvalidName(f"The {noun} {_shown(text)} holds a '/'; use '-' or '.' instead.")
    return text


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _shown(name: str) -> str:
    return repr(shortened(name, _SHOWN))
