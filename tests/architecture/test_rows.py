"""The rows of tests/rows.md and the markers of the tests agree."""

import ast
import sys
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

sys.path.append(str(ROOT / "scripts"))

from capabilities import table  # noqa: E402  found by the line above

ROWS = table.rows_of_repository()


def test_ids_of_rows_are_unique():
    ids = Counter(row.id for row in ROWS)

    assert [id_ for id_, n in ids.items() if n > 1] == []


def test_every_row_names_the_tests_that_have_its_marker_and_no_other_tests():
    assert table.differences(ROWS, table.marks_of_repository()) == []


def test_every_row_with_tests_has_a_test_in_the_default_suite():
    nightly = {
        f"{path.relative_to(ROOT / 'tests').as_posix()}::{function.name}"
        for path in (ROOT / "tests").rglob("test_*.py")
        for function in ast.walk(ast.parse(path.read_text()))
        if isinstance(function, ast.FunctionDef)
        and "pytest.mark.nightly" in map(ast.unparse, function.decorator_list)
    }

    assert [row.id for row in ROWS if row.tests and {*row.tests} <= nightly] == []
    assert nightly


SOURCE = """
@pytest.mark.row("A1", "C7")
@pytest.mark.parametrize("n", [1, 2])
def test_marked(n): ...

def test_plain(): ...

@pytest.mark.row("A2")
class TestGroup: ...
"""

TABLE = """
Prose.

| id | behaviour | subject | tests |
|---|---|---|---|
| A1 | One. | spine | `a/test_b.py::test_marked`, `a/test_b.py::test_plain` |
| A2 | Two. | page | - |
| A3 | Three. | page | `a/test_b.py::test_gone` |
"""


def test_differences_name_missing_tests_missing_markers_and_markers_without_a_row():
    marks = table.read_marks({"a/test_b.py": SOURCE})

    assert table.differences(table.read(TABLE), marks) == [
        "A1 names a/test_b.py::test_plain, which lacks the marker A1",
        "A3 names a/test_b.py::test_gone, which does not exist",
        "a/test_b.py::TestGroup has the marker A2, but that row does not name the test",
        "a/test_b.py::test_marked has the marker C7, but that row does not name the test",
    ]


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("| A1 | One. | spine |", "3 cells"),
        ("| first | One. | spine | - |", "no id"),
        ("| A1 | | spine | - |", "1 to 160 characters"),
        (f"| A1 | {'x' * 161} | spine | - |", "1 to 160 characters"),
        ("| A1 | One. | engine | - |", "write one of spine, trainables"),
        ("| A1 | One. | spine | test_a.py |", "in backticks"),
        ("| A1 | One. | spine | |", "in backticks"),
        (f"| A1 | One. | spine | {', '.join(['`a.py::test_b`'] * 4)} |", "1 to 3 tests"),
    ],
)
def test_line_that_is_no_row_is_refused(line, complaint):
    with pytest.raises(ValueError, match=complaint):
        table.read(f"| id |\n|---|\n{line}\n")


def test_id_that_is_not_a_literal_text_is_refused():
    with pytest.raises(ValueError, match="write ids as texts"):
        table.read_marks({"test_a.py": "@pytest.mark.row(ID)\ndef test_b(): ..."})
