"""The rules for names of studies and metrics."""

from studydb.domain.errors import InvalidName
from studydb.domain.text.display import shortened, with_article

LONGEST_NAME = 200
"""The limit for a name, in characters."""

_SHOWN = 40


def check_study_name(name: object) -> str:
    """
    Check a study's name, which is used in URLs, paths and command lines.

    Raises:
        InvalidName: The name is not a text of 1 to 200 printable characters, contains a "/", or
            begins or ends with a space.
    """
    text = _check_text(name, "study")
    if "/" in text:
        raise InvalidName(f"The study name {_shown(text)} holds a '/'; use '-' or '.' instead.")
    return text


def check_metric_name(name: object) -> str:
    """
    Check the name of a study's metric; nested names are joined by "/".

    Raises:
        InvalidName: The name is not a text of 1 to 200 printable characters, begins or ends with a
            space, or contains a quote or backslash, which a JSON path in SQL cannot contain.
    """
    text = _check_text(name, "metric")
    for character in "\"'\\":
        if character in text:
            raise InvalidName(f"The metric name {_shown(text)} holds a {character}; leave it out.")
    return text


def _check_text(name: object, noun: str) -> str:
    if not isinstance(name, str):
        raise InvalidName(
            f"The {noun} name is {name!r}, {with_article(type(name).__name__)}; give a text."
        )
    if not name:
        raise InvalidName(f"The {noun} name is empty; give it 1 to {LONGEST_NAME} characters.")
    if len(name) > LONGEST_NAME:
        raise InvalidName(
            f"The {noun} name {_shown(name)} has {len(name)} characters; "
            f"at most {LONGEST_NAME} are allowed."
        )
    if not name.isprintable():
        raise InvalidName(
            f"The {noun} name {_shown(name)} holds a character that cannot be printed; remove it."
        )
    if name != name.strip():
        raise InvalidName(f"The {noun} name {_shown(name)} begins or ends with a space; remove it.")
    return name


def _shown(name: str) -> str:
    return repr(shortened(name, _SHOWN))
