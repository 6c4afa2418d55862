"""Functions and files keep within the limits of length in CONTRIBUTING.md."""

import ast
import functools
import statistics
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]

MEDIAN_LINES = 10
NINE_IN_TEN_LINES = 30
FUNCTION_LINES = 70
FILE_LINES = 600


def test_functions_of_the_package_are_short():
    lengths = sorted(length for length, _ in functions(package_files()))

    assert statistics.median(lengths) <= MEDIAN_LINES
    assert lengths[len(lengths) * 9 // 10] <= NINE_IN_TEN_LINES


def test_no_function_is_longer_than_70_lines():
    long = [name for length, name in functions(python_files()) if length > FUNCTION_LINES]

    assert long == []


def test_no_file_is_longer_than_600_lines():
    long = [str(path) for path in python_files() if len(lines(path)) > FILE_LINES]

    assert long == []


def functions(paths: Iterable[Path]) -> Iterator[tuple[int, str]]:
    """Yield the length in lines (with docstring) and the location of each function and method."""
    for path in paths:
        for lineno, end_lineno, name in spans(path):
            yield end_lineno - lineno + 1, f"{path}:{lineno} {name}"


@functools.cache
def spans(path: Path) -> list[tuple[int, int, str]]:
    """The first line, the last line and the name of every function and method of a file."""
    return [
        (node.lineno, node.end_lineno, node.name)
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]


def package_files() -> list[Path]:
    return sorted((ROOT / "studydb").rglob("*.py"))


def python_files() -> list[Path]:
    scripts = [path for path in (ROOT / "scripts").iterdir() if is_python(path) and not path.suffix]
    folders = (ROOT / "tests", ROOT / "alembic", ROOT / "scripts")
    return [
        *package_files(),
        *scripts,
        *(path for folder in folders for path in sorted(folder.rglob("*.py"))),
    ]


def is_python(path: Path) -> bool:
    if path.suffix == ".py":
        return True
    first_line = next(iter(lines(path)), "") if path.is_file() and not path.suffix else ""
    return first_line.startswith("#!") and "python" in first_line


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines()
