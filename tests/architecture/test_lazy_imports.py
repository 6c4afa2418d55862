"""
Neither `import studydb` nor a package without SQL loads SQLAlchemy or a database driver.

`studydb report` loads little besides its client. All public names of studydb can be imported.
"""

import ast
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from threading import Thread

import pytest

import studydb

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


def test_creating_a_study_on_sqlite_loads_no_psycopg(sqlite_url):
    loaded = run(
        "import json, studydb, sys;"
        "studydb.create_study('s', None, metric='m', mode='min', num_trials=1, space={}, storage=sys.argv[1]);"
        "print(json.dumps(sorted(sys.modules)))",
        sqlite_url,
    )

    assert "sqlalchemy" in packages(loaded)
    assert "psycopg" not in packages(loaded)


def test_every_public_name_of_studydb_is_imported_for_type_checkers():
    tree = ast.parse((ROOT / "studydb" / "__init__.py").read_text())
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]

    imported = {alias.asname for node in imports for alias in node.names}

    assert set(studydb.__all__) - {"Trial"} <= imported  # Trial is another name of RunningTrial


def test_every_public_name_of_studydb_exists():
    missing = run(
        "import json, studydb;"
        "print(json.dumps([n for n in studydb.__all__ if not hasattr(studydb, n)]))"
    )

    assert missing == []


REPORT = """
import sys
before = set(sys.modules)
from studydb.__main__ import main
try:
    main(["report", "error=0.1", "--step", "3", "--save"])
except SystemExit as end:
    assert end.code == 0, end.code
loaded = sorted(set(sys.modules) - before)
import json
print(json.dumps(loaded))
"""


def test_report_command_loads_nothing_but_its_client_and_sockets(tmp_path):
    path = str(tmp_path / "socket")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        Thread(target=accept_report, args=[listener], daemon=True).start()

        loaded = run(REPORT, STUDYDB_SOCKET=path)

    studydb = {"studydb", "studydb.__main__", "studydb.report_client", "studydb.version"}
    assert set(loaded) == studydb | {"_socket", "gc"}


def accept_report(listener):
    client, _ = listener.accept()
    with client:
        client.recv(4096)
        client.sendall(json.dumps({"go": True}).encode() + b"\n")


def run(code: str, *arguments: str, **environment: str) -> list[str]:
    interpreter = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert interpreter.returncode == 0, interpreter.stderr
    return json.loads(interpreter.stdout)


def packages(modules: list[str]) -> set[str]:
    return {name.partition(".")[0] for name in modules}
