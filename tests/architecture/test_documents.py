"""In `TECHNICAL` documents, paths and names in backticks exist; in `PAGES`, link targets exist."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

TECHNICAL = (
    *("ARCHITECTURE.md", "CONTRIBUTING.md", "docs/extending.md", "docs/glossary.md"),
    "docs/schedulers.md",
    "docs/searchers.md",
    *("scripts/guards/README.md", "tests/README.md"),
)
PAGES = (*TECHNICAL, "README.md", "docs/views.md", "workers/README.md")

PATH = re.compile(r"(?:[\w.*-]+/)+[\w.*-]*|[\w-]+\.(?:py|md|toml|sql)")
NAME = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)?")
BEGINNINGS = ("", "studydb", "tests")
"""Folders in which paths begin: ARCHITECTURE.md omits `studydb/`, tests/README.md omits `tests/`."""

FOLDERS = [ROOT / name for name in ("alembic", "scripts", "studydb", "tests")]
CODE = [file for folder in FOLDERS for file in folder.rglob("*.py") if file != Path(__file__)]


def quoted(document):
    """Pair each text in backticks with the text in backticks directly before it, or with ""."""
    text = re.sub(r"^```.*?^```", "", (ROOT / document).read_text(), flags=re.MULTILINE | re.DOTALL)
    pieces = ["", "", *text.split("`")]  # text and code alternate
    triples = zip(pieces[1::2], pieces[2::2], pieces[3::2], strict=False)
    return [(before if gap.isspace() else "", code) for before, gap, code in triples]


def files(path):
    """Files that match a path, in which NAME, TABLE and NNNN stand for any name."""
    pattern = re.sub(r"\b(?:NAME|TABLE|NNNN\w*)\b", "*", path.rstrip("/"))
    if "/" not in path:
        return [*ROOT.glob(pattern), *(file for file in CODE if file.match(pattern))]
    return [file for folder in BEGINNINGS for file in (ROOT / folder).glob(pattern)]


@cache
def definitions(file):
    """Return the names of a file's classes, and all names that the file defines."""
    classes, found = set(), set()
    left = [ast.parse(file.read_text())]
    while left:
        node = left.pop()
        if isinstance(node, ast.ClassDef):
            classes.add(node.name)
        elif isinstance(node, ast.FunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.Name):
            found.add(node.id)
        elif isinstance(node, ast.Attribute):
            found.add(node.attr)
        left += (child for child in ast.iter_child_nodes(node) if may_define(child))
    return classes, classes | found


def may_define(node):
    """Whether a node may define names: it is no expression, or an expression that gets a value."""
    return not isinstance(node, ast.expr) or isinstance(getattr(node, "ctx", None), ast.Store)


def names(file):
    return definitions(file)[1]


@cache
def owners():
    """Return a dict from the name of each module and class to all names that its file defines."""
    found = {}
    for file in CODE:
        classes, defined = definitions(file)
        for owner in {file.stem} | classes:
            found.setdefault(owner, set()).update(defined)
    return found


def is_wrong(before, this):
    if PATH.fullmatch(this):
        return not files(this)
    if not NAME.fullmatch(this):
        return False  # a command, an expression, a text
    owner, _, name = this.rpartition(".")
    if owner in owners():
        return name not in owners()[owner]
    if PATH.fullmatch(before) and before.endswith(".py"):
        return not any(name in names(file) for file in files(before))
    is_ours = "_" in name.strip("_") or name.startswith("_")
    return not owner and is_ours and name not in words()


@cache
def words():
    """Return all words of the code."""
    texts = [file.read_text() for file in (*CODE, ROOT / "pyproject.toml")]
    return {word for text in texts for word in re.findall(r"\w+", text)}


@pytest.mark.parametrize("document", [name for name in TECHNICAL if (ROOT / name).exists()])
def test_paths_and_names_in_a_document_exist(document):
    assert [f"{before} {this}" for before, this in quoted(document) if is_wrong(before, this)] == []


@pytest.mark.parametrize("page", [name for name in PAGES if (ROOT / name).exists()])
def test_target_of_each_link_in_a_page_exists(page):
    links = re.findall(r"\]\(([^)#\s]*)(?:#([^)\s]*))?\)", (ROOT / page).read_text())
    ours = [(link, anchor) for link, anchor in links if "://" not in link]

    assert [link for link, anchor in ours if not target_exists(ROOT / page, link, anchor)] == []


def target_exists(page, link, anchor):
    target = (page.parent / link).resolve() if link else page
    if not anchor:
        return target.exists()
    titles = re.findall(r"^#+ (.*)$", target.read_text(), re.MULTILINE)
    return anchor in {re.sub(r"[^\w -]", "", title).lower().replace(" ", "-") for title in titles}


@pytest.mark.parametrize(
    ("before", "this", "wrong"),
    [
        ("", "db/schema.py", False),
        ("", "db/scheme.py", True),
        ("", "tests/operations/", False),
        ("", "scripts/guards/*.toml", False),
        ("", "scripts/guards/*.tom", True),
        ("", "quantile.cutoff", False),
        ("", "quantile.cutof", True),
        ("", "RunningTrial.report", False),
        ("domain/quantile.py", "insert", False),
        ("domain/quantile.py", "insertion", True),
        ("", "statement_that_is_not", True),
        ("", "SELECT", False),
        ("", "studydb worker --study NAME", False),
    ],
)
def test_check_finds_paths_and_names_that_do_not_exist(before, this, wrong):
    assert is_wrong(before, this) is wrong
