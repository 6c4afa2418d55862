"""
studydb works for a user without a home and without a passwd entry, as in many containers.

The environment must give a signing key and, on PostgreSQL, a folder for the output of trials.
"""

import json
import os
import sys

import pytest
from fleet.workers import TRAINABLES
from harness.commands import run_command

KEY = "ab" * 32

HOMELESS = """
import json, pwd, sys
def unknown(*_):
    raise KeyError("getpwuid(): uid not found")
pwd.getpwuid = pwd.getpwnam = unknown
from studydb.__main__ import main
for arguments in json.loads(sys.argv[1]):
    try:
        main(arguments)
    except SystemExit as ended:
        if ended.code:
            print(arguments, file=sys.stderr)
            raise
"""


@pytest.fixture
def run_homeless(storage_url, tmp_path):
    def run(*commands, **environment):
        kept = {name: value for name, value in os.environ.items() if name != "HOME"}
        own = {"STUDYDB_STORAGE": storage_url, "PYTHONPATH": str(TRAINABLES)}
        command = [sys.executable, "-c", HOMELESS, json.dumps(commands)]
        ran = run_command(command, cwd=tmp_path, env=kept | own | environment)
        assert "Traceback" not in ran.stderr
        return ran

    return run


CREATE = (
    *("create", "plain", "--trainable", "obedient:one_step", "--metric", "loss", "--mode", "min"),
    *("--param", "x=uniform(0, 1)", "--num-trials", "2"),
)


@pytest.mark.nightly
def test_commands_work_with_a_key_in_the_environment(run_homeless, tmp_path):
    ran = run_homeless(
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
        STUDYDB_SIGNING_KEY=KEY,
        XDG_STATE_HOME=str(tmp_path),
    )

    assert ran.returncode == 0, ran.stderr


@pytest.mark.nightly
@pytest.mark.parametrize("storage_url", ["sqlite"], indirect=True)
def test_error_for_a_missing_key_names_the_environment_variable_that_takes_a_key(run_homeless):
    ran = run_homeless(CREATE)

    assert ran.returncode == 2
    assert "STUDYDB_SIGNING_KEY" in ran.stderr


@pytest.mark.nightly
@pytest.mark.parametrize("storage_url", ["postgresql"], indirect=True)
def test_worker_without_a_folder_for_output_is_refused_before_it_claims_a_trial(
    run_homeless,
):
    ran = run_homeless(CREATE, ("worker", "--study", "plain"), STUDYDB_SIGNING_KEY=KEY)

    assert ran.returncode == 2
    assert ran.stderr.endswith("['worker', '--study', 'plain']\n")
    assert "XDG_STATE_HOME" in ran.stderr
    listed = run_homeless(("trials", "plain", "--format", "json"), STUDYDB_SIGNING_KEY=KEY)
    assert json.loads(listed.stdout) == []


@pytest.mark.nightly
@pytest.mark.parametrize("storage_url", ["sqlite"], indirect=True)
def test_tilde_in_a_url_is_a_usage_error_for_a_user_without_a_home(run_homeless):
    for url in ("sqlite:///~/studies.db", "sqlite:///~stranger/studies.db"):
        ran = run_homeless(("studies", "--storage", url))

        assert ran.returncode == 2
