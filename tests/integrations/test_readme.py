"""Run the code blocks of four sections of the README, section by section."""

import os
import re
import shlex
import sys
from contextlib import closing
from pathlib import Path
from subprocess import DEVNULL

import pytest
from fleet.preloaded import run_studydb
from harness import arrange, postgres
from harness.commands import run_command

from studydb.db import connect

README = Path(__file__).parents[2] / "README.md"
NOT_RUN = ("pip install", "studydb hello")
"""Lines that begin with these words are not run: pip needs the network, `hello` has other tests."""

N_TRIALS = 6
"""A study of 30 trials in the README has this number of trials here."""

SCP = """#!/bin/sh
# scp -p first:FROM TO: copy from $FIRST_HOME, a folder that stands for the first machine.
exec cp -p "$FIRST_HOME/${2#first:}" "$3"
"""


def blocks(title):
    """Return language and text of a section's code blocks, except the blocks of output (`text`)."""
    section = README.read_text().partition(f"## {title}\n")[2].partition("\n## ")[0]
    found = re.findall(r"^```(\w+)\n(.*?)^```", section, re.MULTILINE | re.DOTALL)
    assert found, title
    return [(language, text) for language, text in found if language != "text"]


def fewer_trials(text):
    return re.sub(r"(num.trials.)30\b", rf"\g<1>{N_TRIALS}", text)


class Newcomer:
    """A person who types code blocks in one folder; exported variables stay set."""

    def __init__(self, folder, *, server=None, **environment):
        self.folder, self.server = folder, server
        folder.mkdir(exist_ok=True)
        places = [Path(sys.executable).parent, postgres._wheel_binaries(), os.environ["PATH"]]
        self.environment = {
            **os.environ,
            "HOME": str(folder),
            "PATH": os.pathsep.join(map(str, places)),
            **environment,
        }

    def follow(self, title):
        """Run the blocks of a section and return what each block printed."""
        return [self.do(kind, text) for kind, text in blocks(title)]

    def do(self, kind, text, *, code=0):
        """
        Run a block of shell, whose lines must all exit with `code`; return what they printed.

        A block of Python is written to the file that its first line names. If the block creates a
        study, the file is run.
        """
        if kind == "python":
            name = text.partition("\n")[0].removeprefix("# ")
            (self.folder / name).write_text(fewer_trials(text))
            if "create_study" not in text:
                return ""
            text = f"python {name}"
        if self.server is not None:
            text = re.sub(r"(postgresql://\w+@)dbhost(/\w+)", rf"\1\2?host={self.server}", text)
        lines = fewer_trials(text).replace("\\\n", " ").splitlines()
        printed = [self.type(line, code) for line in lines if not line.startswith(NOT_RUN)]
        return "".join(printed)

    def type(self, line, code):
        run = self.studydb if re.fullmatch(r"studydb [^|$]+", line) else self.bash
        exit_code, printed = run(line)
        assert exit_code == code, f"{line}\n{printed}"
        assert "Traceback" not in printed
        self.environment |= dict(re.findall(r"^export (\w+)=(\S+)", line))
        return printed

    def bash(self, line):
        command = ["bash", "-euo", "pipefail", "-c", line]
        ran = run_command(command, cwd=self.folder, env=self.environment, stdin=DEVNULL)
        return ran.returncode, ran.stdout + ran.stderr

    def studydb(self, line):
        """Run a studydb command in a fork of a process that has imported studydb."""
        arguments = shlex.split(line, comments=True)[1:]
        return run_studydb(arguments, cwd=self.folder, environment=self.environment)


def terminated_by_study(url):
    with closing(connect(url)) as database:
        return dict(arrange.rows(database, "SELECT study, terminated FROM v_study"))


@pytest.mark.slow
def test_readme_commands_for_one_machine_and_for_an_own_loop_succeed(tmp_path):
    newcomer = Newcomer(tmp_path)

    printed = "\n".join(newcomer.follow("Five minutes") + newcomer.follow("A loop of your own"))

    assert "study 'more' is FINISHED: 16 TERMINATED" in printed
    assert "made v_trial_more and v_result_more" in printed
    url = f"sqlite:///{tmp_path}/studydb.db"
    assert terminated_by_study(url) == {"digits": 6, "more": 16, "mine": 20}


def login(url, name):
    return re.sub(r"//\w+@", f"//{name}@", url)


@pytest.fixture
def machines(tmp_path):
    """An administrator of a new server, and two machines that can connect to the server."""
    # This fixture uses a new server, because all databases of a server share their roles.
    with postgres.PostgresServer() as server:
        at = {"server": str(server.directory)}
        (tmp_path / "bin").mkdir()
        (tmp_path / "bin" / "scp").write_text(SCP)
        (tmp_path / "bin" / "scp").chmod(0o755)
        admin = Newcomer(tmp_path / "admin", PGHOST=at["server"], PGUSER="postgres")
        first = Newcomer(tmp_path / "first", **at)
        second = Newcomer(tmp_path / "second", **at, FIRST_HOME=str(first.folder))
        path = os.pathsep.join((str(tmp_path / "bin"), second.environment["PATH"]))
        second.environment["PATH"] = path
        for machine in (first, second):
            machine.do(*blocks("Five minutes")[1])
        yield admin, first, second


@pytest.mark.nightly
def test_readme_commands_for_a_second_machine_for_roles_and_for_backup_succeed(machines):
    admin, first, second = machines
    create, upgrade, copy_key, roles, work, look = blocks("The second machine")
    dump, restore, *_sqlite = blocks("Backup and restore")

    admin.do(*create)
    first.do(*upgrade)
    assert "study 'digits' is FINISHED: 6 TERMINATED" in second.do(*copy_key)
    first.do(*roles)
    first.do(*roles)  # people run the script again after each upgrade
    first.do("sh", "studydb extend digits --trials 1")
    assert "study 'digits' is FINISHED: 7 TERMINATED" in second.do(*work)
    viewer = Newcomer(second.folder, server=second.server)
    assert "(5 rows)" in viewer.do(*look)
    first.do(*dump)
    url = first.environment["STUDYDB_STORAGE"]
    first.do(*restore)

    restored = first.environment["STUDYDB_STORAGE"]
    assert "/restored?" in restored
    for name in ("me", "ann", "bob"):
        for database in (url, restored):
            assert terminated_by_study(login(database, name)) == {"digits": 7}
    with postgres.connect(login(restored, "bob")) as connection:
        limits = [
            connection.execute(f"SHOW {name}").fetchone()[0]
            for name in ("default_transaction_read_only", "statement_timeout")
        ]
    assert limits == ["on", "1min"]
    first.environment["STUDYDB_STORAGE"] = url
    check_that_the_backup_can_be_restored_into_the_old_database(first, second, restore)
    check_that_an_error_names_the_role_that_has_the_missing_right(first, second)


def check_that_the_backup_can_be_restored_into_the_old_database(first, second, restore):
    first.do("sh", "studydb delete digits --yes")

    old = "\n".join(restore[1].splitlines()[2:])
    first.do("sh", old.replace("pg_restore ", "pg_restore --clean --if-exists "))

    first.do("sh", "studydb extend digits --trials 1")
    assert "study 'digits' is FINISHED: 8 TERMINATED" in second.do(
        "sh", "studydb worker --study digits"
    )


def check_that_an_error_names_the_role_that_has_the_missing_right(first, second):
    url = first.environment["STUDYDB_STORAGE"]
    refusals = {
        "owner": [
            ("bob", "studydb pause digits"),
            ("ann", "studydb extend digits --trials 1"),
            ("ann", "studydb delete digits --yes"),
            ("ann", "studydb create x --metric m --mode min --num-trials 1"),
        ],
        "worker": [("bob", "studydb worker --study digits")],
    }
    for role, lines in refusals.items():
        for name, line in lines:
            second.environment["STUDYDB_STORAGE"] = login(url, name)
            printed = second.do("sh", line, code=1)
            assert f"Log in as a member of studydb_{role}" in printed
            assert len(printed.splitlines()) == 1

    first.do("sh", "studydb db downgrade 0003 --yes")
    second.environment["STUDYDB_STORAGE"] = login(url, "ann")
    assert "Log in as a member of studydb_owner" in second.do("sh", "studydb db upgrade", code=1)


def test_copy_of_an_sqlite_file_in_use_is_complete_and_can_be_restored(tmp_path, sqlite_url):
    database = connect(sqlite_url)
    study = arrange.new_study(database, name="digits")
    newcomer = Newcomer(tmp_path)
    _dump, _restore, copy, put_back = blocks("Backup and restore")

    newcomer.do(*copy)
    assert terminated_by_study(f"sqlite:///{tmp_path}/copy.db") == {"digits": 0}
    arrange.SimulatedWorker(database, study).ask().finish(0.5)
    database.close()
    assert terminated_by_study(sqlite_url) == {"digits": 1}
    newcomer.do(*put_back)

    assert terminated_by_study(sqlite_url) == {"digits": 0}
