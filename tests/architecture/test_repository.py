"""What a fresh clone, a wheel and an sdist contain."""

import os
import re
import subprocess
import sys
import tomllib
import zipfile
from collections import Counter, defaultdict
from pathlib import Path

import pytest
from hatchling.builders.sdist import SdistBuilder
from hatchling.builders.wheel import WheelBuilder
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]

PACKAGE_INDEX = re.compile(r"--(?:extra-)?index-url|://[^\s)\"']*/simple\b")
ONE_MACHINE = re.compile(r"(?<![\w.~$}*])/(?:home|root|Users|work)/\w")


def repository_files() -> list[Path]:
    """All files except those that git ignores; without `.git`, all but hidden top-level entries."""
    if not (ROOT / ".git").exists():
        shown = [path for path in ROOT.iterdir() if not path.name.startswith(".")]
        return [path for top in shown for path in [top, *top.rglob("*")] if path.is_file()]
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    paths = {ROOT / name for name in listed.stdout.split("\0") if name}
    return sorted(path for path in paths if path.is_file())


@pytest.mark.parametrize(
    "pattern", [PACKAGE_INDEX, ONE_MACHINE], ids=["package index", "one machine"]
)
def test_no_file_names_a_package_index_or_a_path_of_one_machine(pattern):
    found = [
        f"{path.relative_to(ROOT)}: {match[0]}"
        for path in repository_files()
        for match in pattern.finditer(path.read_text(errors="replace"))
    ]

    assert found == []


def test_no_two_test_files_share_a_name():
    names = Counter(path.name for path in (ROOT / "tests").rglob("test_*.py"))

    assert [name for name, count in names.items() if count > 1] == []


def test_file_names_of_the_package_are_unique_except_in_cli_operations_and_store():
    layers = {"cli", "operations", "store"}
    packages = defaultdict(list)
    for path in (ROOT / "studydb").rglob("*.py"):
        if not path.name.startswith("__"):
            packages[path.name].append(str(path.parent.relative_to(ROOT / "studydb")))

    shared = {name: sorted(using) for name, using in packages.items() if len(using) > 1}
    assert {name: using for name, using in shared.items() if not layers.issuperset(using)} == {}


def test_every_file_with_tests_has_a_name_that_pytest_collects():
    helpers = {"conftest.py", "__init__.py"}
    with_tests = [
        path.name
        for path in (ROOT / "tests").rglob("*.py")
        if path.name not in helpers and re.search(r"^def test_", path.read_text(), re.MULTILINE)
    ]

    assert [name for name in with_tests if not name.startswith("test_")] == []


def test_constraints_pin_every_dependency_to_an_allowed_version():
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = dict(line.split("==") for line in lines if not line.startswith("#"))
    pinned = {canonicalize_name(name): version for name, version in pins.items()}

    for requirement in declared_requirements():
        assert requirement.specifier.contains(pinned[canonicalize_name(requirement.name)])


def declared_requirements() -> list[Requirement]:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())
    project = declared["project"]
    groups = [
        declared["build-system"]["requires"],
        project["dependencies"],
        *project["optional-dependencies"].values(),
    ]
    return [Requirement(text) for group in groups for text in group]


@pytest.mark.parametrize("name", ["scripts/quickstart", "scripts/test", "scripts/check", ".ci/run"])
def test_script_is_executable_and_stops_at_the_first_failure(name):
    script = ROOT / name

    parsed = subprocess.run(["bash", "-n", script], check=False)

    assert parsed.returncode == 0
    assert os.access(script, os.X_OK)
    assert "\nset -euo pipefail\n" in script.read_text()


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    return Path(next(WheelBuilder(str(ROOT)).build(directory=str(folder), versions=["standard"])))


def test_wheel_contains_only_package_migrations_and_licence(wheel):
    names = zipfile.ZipFile(wheel).namelist()

    assert {"studydb/__main__.py", "studydb/py.typed", "studydb/_alembic/env.py"} <= set(names)
    assert any(re.fullmatch(r"studydb/_alembic/versions/\d{4}_\w+\.py", name) for name in names)
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert {re.sub(r"-.*", "", name.split("/")[0]) for name in names} == {"studydb"}


@pytest.mark.slow
def test_wheel_makes_a_database_without_the_repository(wheel, tmp_path):
    installed = tmp_path / "installed"
    zipfile.ZipFile(wheel).extractall(installed)
    code = (
        "import studydb; from studydb.db import migrate; print(studydb.__file__);"
        "migrate.upgrade('sqlite:///fresh.db'); migrate.check('sqlite:///fresh.db')"
    )

    ran = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(installed)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert ran.returncode == 0, ran.stderr
    assert Path(ran.stdout.strip()).is_relative_to(installed)


def test_sdist_contains_the_sources_of_a_wheel_and_all_documents(tmp_path):
    built = Path(next(SdistBuilder(str(ROOT)).build(directory=str(tmp_path))))

    listed = subprocess.run(["tar", "tzf", built], capture_output=True, text=True, check=True)
    names = {name.partition("/")[2] for name in listed.stdout.splitlines()}

    documents = {
        path.relative_to(ROOT).as_posix() for path in repository_files() if path.suffix == ".md"
    }
    assert {"alembic/env.py", "studydb/__main__.py", "pyproject.toml", "LICENSE"} <= names
    assert {"CONTRIBUTING.md", "docs/glossary.md"} <= documents <= names
