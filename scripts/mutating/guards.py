"""The guards of scripts/guards/*.toml, and how each is removed from the code."""

import ast
import re
import textwrap
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]

LAST_FILES = (
    "test_lost_replies.py",
    "test_reporting.py",
    "test_superseded_results.py",
    "test_control.py",
    "test_recovery.py",
    "test_state_moves.py",
    "test_study_machine.py",
    "test_interleavings.py",
)
"""Test files that run last, if no test fails in the files that the guard names."""

_TOKEN = re.compile(r"\w+|[^\w\s]")
_GAP = r"(?:\s|\#.*\n)"
"""White space or a comment."""

_CLOSING = frozenset(")]}")


@dataclass(frozen=True)
class Patch:
    """
    A change to one file.

    Attributes:
        path: The file, from the root of the checkout.
        function: The function, method (`Class.method`), class or constant to change; empty for the
            whole file.
        old: The code to replace, which must occur once. White space and comments between the words
            of the code, and a comma before a closing bracket, are ignored.
        new: The code that replaces `old`.
    """

    path: str
    function: str
    old: str
    new: str

    def location(self) -> str:
        return f"{self.path}, {self.function or 'the whole file'}"

    def matches(self, source: str) -> list[tuple[int, int]]:
        """Where the old code begins and ends, for each occurrence in the definition to change."""
        pattern = _pattern(self.old)
        return [
            match.span()
            for begin, end in _definitions(source, self.function)
            for match in pattern.finditer(source, begin, end)
        ]

    def apply(self, source: str) -> str:
        """
        Replace the old code in the file's source.

        Raises:
            ValueError: The old code does not occur exactly once in the definition to change.
        """
        found = self.matches(source)
        if len(found) != 1:
            raise ValueError(
                f"{self.location()}: the code to replace occurs {len(found)} times, not once."
            )
        begin, end = found[0]
        line = source[source.rfind("\n", 0, begin) + 1 :]
        indent = line[: len(line) - len(line.lstrip())]
        new = textwrap.indent(textwrap.dedent(self.new).strip(), indent).removeprefix(indent)
        return source[:begin] + new + source[end:]


@dataclass(frozen=True)
class Guard:
    """
    A guard, and how to remove it.

    Attributes:
        promise: The name, without `.toml`, of the file that has the guard's entry.
        patches: The changes that remove the guard, in order.
        tests: What fails without the guard: test files, or single tests as `file.py::name`.
    """

    name: str
    promise: str
    patches: tuple[Patch, ...]
    tests: tuple[str, ...]

    def tests_in_order(self) -> list[str]:
        """The tests in the order of the runs: the named tests, their whole files, `LAST_FILES`."""
        return paths([*self.tests, *(test.partition("::")[0] for test in self.tests), *LAST_FILES])


def read() -> list[Guard]:
    return [
        guard
        for path in sorted((ROOT / "scripts" / "guards").glob("*.toml"))
        for guard in _read(path)
    ]


def paths(tests: Iterable[str]) -> list[str]:
    """
    The pytest ids of tests and test files, with the files' paths from the root; each id once.

    Raises:
        ValueError: A test names a file that does not exist.
    """
    found = {path.name: path for path in (ROOT / "tests").rglob("test_*.py")}
    return list(dict.fromkeys(_path(test, found) for test in tests))


def _path(test: str, found: Mapping[str, Path]) -> str:
    file, separator, name = test.partition("::")
    if Path(file).name not in found:
        raise ValueError(f"There is no test file {file}.")
    return f"{found[Path(file).name].relative_to(ROOT)}{separator}{name}"


def _read(path: Path) -> Iterator[Guard]:
    for entry in tomllib.loads(path.read_text())["guard"]:
        patches = (entry, *entry.get("also", ()))
        yield Guard(entry["name"], path.stem, tuple(map(_patch, patches)), tuple(entry["tests"]))


def _patch(entry: dict[str, Any]) -> Patch:
    return Patch(entry["path"], entry.get("function", ""), entry["old"], entry.get("new", ""))


def _definitions(source: str, name: str) -> list[tuple[int, int]]:
    """
    Where each definition of a name begins and ends; an overloaded function has several.

    For an empty name, the whole source is the definition.
    """
    if not name:
        return [(0, len(source))]
    starts = [0, *accumulate(map(len, source.splitlines(keepends=True)))]
    return [
        (starts[_first_line(node) - 1], starts[node.end_lineno or 0])
        for node in _named(_parsed(source), name.split("."))
    ]


@lru_cache(maxsize=500)  # many guards are in the same file
def _parsed(source: str) -> ast.Module:
    return ast.parse(source)


def _first_line(node: ast.stmt) -> int:
    decorators = getattr(node, "decorator_list", [])
    return min([node.lineno, *(decorator.lineno for decorator in decorators)])


def _named(node: ast.AST, parts: list[str]) -> Iterator[ast.stmt]:
    for child in _statements(node):
        if parts[0] in _names(child):
            yield from _named(child, parts[1:]) if parts[1:] else [child]


def _statements(node: ast.AST) -> Iterator[ast.stmt]:
    """
    The statements of a block, and those inside its `if`, `try` and `with` statements.

    Statements inside loops, `match` statements and `except` clauses are left out.
    """
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt):
            yield child
            if isinstance(child, ast.If | ast.Try | ast.With):
                yield from _statements(child)


def _names(node: ast.stmt) -> set[str]:
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            return {node.name}
        case ast.Assign():
            targets = node.targets
        case ast.AnnAssign():
            targets = [node.target]
        case _:
            return set()
    return {name.id for one in targets for name in ast.walk(one) if isinstance(name, ast.Name)}


def _pattern(text: str) -> re.Pattern[str]:
    """A pattern that matches a piece of code, whatever its white space and comments are."""
    tokens = _TOKEN.findall(text)
    pieces = [re.escape(tokens[0])]
    for before, token in pairwise(tokens):
        if before == "," and token in _CLOSING:
            pieces.pop()
        if token in _CLOSING:
            pieces.append(f"{_GAP}*(?:,{_GAP}*)?")
        else:
            pieces.append(f"{_GAP}+" if _is_word(before) and _is_word(token) else f"{_GAP}*")
        pieces.append(re.escape(token))
    begin, end = (r"\b" if _is_word(tokens[place]) else "" for place in (0, -1))
    return re.compile(begin + "".join(pieces) + end)


def _is_word(token: str) -> bool:
    return token[0].isalnum() or token[0] == "_"
