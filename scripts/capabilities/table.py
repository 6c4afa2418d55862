"""The rows of tests/rows.md, and the markers in which tests name their rows."""

import ast
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TESTS = ROOT / "tests"

SUBJECTS = (
    *("spine", "trainables", "control", "schedulers", "checkpoints", "resources", "search"),
    *("population based training", "logs and hooks", "page", "analysis"),
)
"""The parts of the product that own rows, in the order in which `scripts/rows` prints them."""

MARKER = "pytest.mark.row"
NO_TESTS = "-"
MOST_TESTS = 3
LONGEST_BEHAVIOUR = 160

_ID = re.compile(r"[A-Z]\d+")
_TEST = re.compile(r"`([\w/]+\.py::test_\w+)`")


@dataclass(frozen=True)
class Row:
    """
    A capability of the systems that studydb replaces.

    Attributes:
        behaviour: What a user of studydb sees.
        subject: The part of the product that owns the row; one of `SUBJECTS`.
        tests: The tests that together check the whole behaviour, as `folder/file.py::test_name`;
            empty if a part of the behaviour is not built or not tested.
    """

    id: str
    behaviour: str
    subject: str
    tests: tuple[str, ...]


def read(text: str) -> list[Row]:
    """
    Read the rows of a table; lines that do not begin with `|` are prose.

    The first two lines of the table are its head.

    Raises:
        ValueError: A line of the table does not have four cells, or one of its cells is wrong.
    """
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [_row(line) for line in lines[2:]]


def _row(line: str) -> Row:
    cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
    if len(cells) != 4:
        raise ValueError(
            f"{line!r} has {len(cells)} cells; a row has id, behaviour, subject, tests."
        )
    id_, behaviour, subject, tests = cells
    if not _ID.fullmatch(id_):
        raise ValueError(f"{id_!r} is no id; an id is a letter and a number, such as A1.")
    if not 0 < len(behaviour) <= LONGEST_BEHAVIOUR:
        raise ValueError(f"The behaviour of {id_} must have 1 to {LONGEST_BEHAVIOUR} characters.")
    if subject not in SUBJECTS:
        raise ValueError(f"{id_} has the subject {subject!r}; write one of {', '.join(SUBJECTS)}.")
    return Row(id_, behaviour, subject, _tests(id_, tests))


def _tests(id_: str, cell: str) -> tuple[str, ...]:
    if cell == NO_TESTS:
        return ()
    found = [_TEST.fullmatch(part.strip()) for part in cell.split(",")]
    tests = tuple(match[1] for match in found if match)
    if len(tests) < len(found) or len(tests) > MOST_TESTS:
        raise ValueError(
            f"The tests of {id_} are {cell!r}; write `{NO_TESTS}` or 1 to {MOST_TESTS} tests "
            "in backticks with commas between them, such as `operations/test_claim.py::test_name`."
        )
    return tests


def read_marks(sources: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    """
    Find all tests and test classes, each with the ids of its markers; () if it has no marker.

    Args:
        sources: The source of each test file by its path below tests/.

    Raises:
        ValueError: An id in a marker is not a literal text.
    """
    return {
        f"{path}::{node.name}": tuple(_ids(path, node))
        for path, source in sources.items()
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name.lower().startswith("test")
    }


def _ids(path: str, node: ast.FunctionDef | ast.ClassDef) -> Iterator[str]:
    for decorator in node.decorator_list:
        if not isinstance(decorator, ast.Call) or ast.unparse(decorator.func) != MARKER:
            continue
        for argument in decorator.args:
            if not isinstance(argument, ast.Constant) or not isinstance(argument.value, str):
                raise ValueError(  # noqa: TRY004  the text of the file is wrong
                    f'{path}: write ids as texts, as in @{MARKER}("A1").'
                )
            yield argument.value


def differences(rows: Iterable[Row], marks: Mapping[str, Sequence[str]]) -> list[str]:
    """
    List the tests that lack their row's marker or do not exist, and the markers whose row does not
    name the test.
    """
    named = {(row.id, test) for row in rows for test in row.tests}
    marked = {(id_, test) for test, ids in marks.items() for id_ in ids}
    missing = [
        f"{id_} names {test}, which "
        + (f"lacks the marker {id_}" if test in marks else "does not exist")
        for id_, test in sorted(named - marked)
    ]
    return missing + [
        f"{test} has the marker {id_}, but that row does not name the test"
        for id_, test in sorted(marked - named)
    ]


def rows_of_repository() -> list[Row]:
    return read((TESTS / "rows.md").read_text())


def marks_of_repository() -> dict[str, tuple[str, ...]]:
    files = sorted(TESTS.rglob("test_*.py"))
    return read_marks({str(file.relative_to(TESTS)): file.read_text() for file in files})
