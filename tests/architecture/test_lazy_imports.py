"""Trial processes load neither SQLAlchemy nor a database driver, and `import studydb` is light."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

DATABASE = {"sqlalchemy", "psycopg", "alembic"}

IMPORT_ALL = """
import importlib, json, pkgutil, sys
package = importlib.import_module(sys.argv[1])
for module in pkgutil.walk_packages(getattr(package, "__path__", []), package.__name__ + "."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
print(json.dumps(sorted(sys.modules)))
"""


@pytest.mark.parametrize(
    "package", ["domain", "settings", "searchers", "schedulers", "trainables", "artifacts", "child"]
)
def test_package_without_sql_loads_no_database_package(package):
    loaded = run(IMPORT_ALL, f"studydb.{package}")

    assert f"studydb.{package}" in loaded
    assert packages(loaded) & DATABASE == set()


def test_importing_studydb_loads_no_database_package():
    loaded = run("import json, studydb, sys; print(json.dumps(sorted(sys.modules)))")

    assert packages(loaded) & DATABASE == set()


def test_study_in_a_file_loads_no_psycopg(sqlite_url):
    loaded = run(
        "import json, studydb, sys;"
        "studydb.create_study('s', None, metric='m', mode='min', num_trials=1, space={}, storage=sys.argv[1]);"
        "print(json.dumps(sorted(sys.modules)))",
        sqlite_url,
    )

    assert "sqlalchemy" in packages(loaded)
    assert "psycopg" not in packages(loaded)


def test_every_public_name_of_studydb_exists():
    missing = run(
        "import json, studydb;"
        "print(json.dumps([n for n in studydb.__all__ if not hasattr(studydb, n)]))"
    )

    assert missing == []


def run(code: str, *arguments: str) -> list[str]:
    interpreter = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert interpreter.returncode == 0, interpreter.stderr
    return json.loads(interpreter.stdout)


def packages(modules: list[str]) -> set[str]:
    return {name.partition(".")[0] for name in modules}
