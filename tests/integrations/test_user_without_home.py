"""A user without a home directory and without an entry in the password file, as in many a container."""

import os
import subprocess
import sys

import pytest
from fleet.workers import TRAINABLES

KEY = "ab" * 32

HOMELESS = """
import pwd, sys
def unknown(*_):
    raise KeyError("getpwuid(): uid not found")
pwd.getpwuid = pwd.getpwnam = unknown
from studydb.__main__ import main
main(sys.argv[1:])
"""


@pytest.fixture
def studydb_as_homeless(storage_url, tmp_path):
    def run(*arguments, **environment):
        kept = {name: value for name, value in os.environ.items() if name != "HOME"}
        return subprocess.run(
            [sys.executable, "-c", HOMELESS, *arguments],
            capture_output=True,
            check=False,
            cwd=tmp_path,
            env=kept
            | {"STUDYDB_STORAGE": storage_url, "PYTHONPATH": str(TRAINABLES)}
            | environment,
            text=True,
        )

    return run


CREATE = (
    *("create", "plain", "--trainable", "obedient:one_step", "--metric", "loss", "--mode", "min"),
    *("--param", "x=uniform(0, 1)", "--num-trials", "2"),
)


def test_every_command_works_with_a_key_in_the_environment(studydb_as_homeless, tmp_path):
    for arguments in (
        CREATE,
        ("enqueue", "plain", "x=0.5"),
        ("worker", "--study", "plain"),
        ("status", "plain"),
        ("studies",),
        ("trials", "plain"),
        ("best", "plain"),
        ("show", "plain", "0"),
        ("results", "plain", "0"),
        ("logs", "plain", "0"),
        ("workers",),
        ("pause", "plain"),
        ("resume", "plain"),
        ("extend", "plain", "--trials", "1"),
        ("query", "SELECT 1"),
        ("db", "check"),
        ("delete", "plain", "--yes"),
    ):
        answer = studydb_as_homeless(
            *arguments, STUDYDB_SIGNING_KEY=KEY, XDG_STATE_HOME=str(tmp_path)
        )
        assert answer.returncode == 0, (arguments, answer.stderr)
        assert "Traceback" not in answer.stderr


def test_error_without_a_key_names_its_environment_variable(studydb_as_homeless):
    answer = studydb_as_homeless(*CREATE)

    assert answer.returncode == 2
    assert "STUDYDB_SIGNING_KEY" in answer.stderr
    assert "Traceback" not in answer.stderr


@pytest.mark.parametrize("storage_url", ["postgresql"], indirect=True)
def test_worker_without_a_folder_for_output_is_refused_before_it_claims_a_trial(
    studydb_as_homeless,
):
    assert studydb_as_homeless(*CREATE, STUDYDB_SIGNING_KEY=KEY).returncode == 0

    answer = studydb_as_homeless("worker", "--study", "plain", STUDYDB_SIGNING_KEY=KEY)

    assert answer.returncode == 2
    assert "XDG_STATE_HOME" in answer.stderr
    assert "Traceback" not in answer.stderr


@pytest.mark.parametrize("storage_url", ["sqlite"], indirect=True)
def test_tilde_in_a_url_without_a_home_is_a_usage_error(studydb_as_homeless):
    for url in ("sqlite:///~/studies.db", "sqlite:///~stranger/studies.db"):
        answer = studydb_as_homeless("studies", "--storage", url)

        assert answer.returncode == 2
        assert "Traceback" not in answer.stderr
