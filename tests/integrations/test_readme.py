"""What the README tells a newcomer to type is typed here, in the order of the page."""

import os
import re
import subprocess
import sys
from pathlib import Path

import arrange
import postgres

from studydb.db import connect

README = Path(__file__).parents[2] / "README.md"
URL = "postgresql://me@dbhost/studies"

NOT_HERE = ("pip install", "scp ", "studydb hello")
"""Lines that need the network or another machine; `hello` has tests of its own."""


def blocks(title):
    """The code blocks of one section: language and text."""
    section = README.read_text().partition(f"## {title}\n")[2].partition("\n## ")[0]
    found = re.findall(r"^```(\w+)\n(.*?)^```", section, re.MULTILINE | re.DOTALL)
    assert found, title
    return found


class Newcomer:
    """Types blocks into a shell of their own, in one folder, and keeps what was printed."""

    def __init__(self, folder, **environment):
        self.folder = folder
        places = [Path(sys.executable).parent, postgres._wheel_binaries(), os.environ["PATH"]]
        self.environment = {
            **os.environ,
            "HOME": str(folder),
            "PATH": os.pathsep.join(map(str, places)),
            **environment,
        }

    def follow(self, title, storage=URL):
        """Do what a section says; what it printed."""
        return [self.do(kind, text.replace(URL, storage)) for kind, text in blocks(title)]

    def do(self, kind, text):
        if kind == "python":
            name = text.partition("\n")[0].removeprefix("# ")
            (self.folder / name).write_text(text)
            if "create_study" not in text:
                return ""
            text = f"python {name}"
        lines = [line for line in text.splitlines() if not line.startswith(NOT_HERE)]
        ran = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", "\n".join(lines)],
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert ran.returncode == 0, f"{text}\n{ran.stdout}{ran.stderr}"
        assert "Traceback" not in ran.stderr, ran.stderr
        return ran.stdout + ran.stderr


def counts(url):
    database = connect(url)
    try:
        return dict(arrange.rows(database, "SELECT study, terminated FROM v_study"))
    finally:
        database.close()


def test_five_minutes_and_a_loop_of_ones_own(tmp_path):
    newcomer = Newcomer(tmp_path)

    told = "\n".join(newcomer.follow("Five minutes") + newcomer.follow("A loop of your own"))

    assert "study 'more' is FINISHED: 40 TERMINATED" in told
    assert "made v_trial_more and v_result_more" in told
    url = f"sqlite:///{tmp_path}/studydb.db"
    assert counts(url) == {"digits": 30, "more": 40, "mine": 20}


def test_second_machine_roles_and_a_backup(tmp_path):
    with postgres.PostgresServer() as server:  # its own: roles belong to a whole server
        url = postgres.create_database(server.url(), "studies")
        newcomer = Newcomer(
            tmp_path, PGHOST=str(server.directory), PGUSER="postgres", STUDYDB_STORAGE=url
        )
        newcomer.do(*blocks("Five minutes")[1])

        told = "\n".join(newcomer.follow("The second machine", url))
        (dump, _sqlite) = blocks("Backup and restore")
        newcomer.do(*dump)

        assert "study 'digits' is FINISHED: 30 TERMINATED" in told
        assert counts(url) == counts(url.replace("/studies?", "/restored?")) == {"digits": 30}
        for role in ("owner", "worker", "viewer"):
            found = counts(url.replace("postgres@", f"studydb_{role}@"))
            assert found == {"digits": 30}


def test_copy_of_a_file_is_whole(tmp_path, sqlite_url):
    database = connect(sqlite_url)
    arrange.new_study(database, name="digits")
    newcomer = Newcomer(tmp_path)

    newcomer.do(*blocks("Backup and restore")[1])

    assert counts(f"sqlite:///{tmp_path}/copy.db") == {"digits": 0}
    database.close()
