"""A program whose stdin, stdout or stderr is closed, such as a daemon, can start trials."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from fleet.server_script import BEGIN

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.parametrize("closed", ["0<&-", "2>&-", "1>&- 2>&-", "0<&- 1>&- 2>&-"])
@pytest.mark.parametrize("first", ["server", "pump"])
def test_fork_server_starts_children_in_a_program_with_closed_streams(tmp_path, closed, first):
    """The first sockets of such a program get the numbers of the closed streams."""
    (tmp_path / "mine.py").write_text(
        "import sys\n"
        "def train(config):\n"
        "    print('to stdout')\n"
        "    print('to stderr', file=sys.stderr)\n"
        "    return 1.0\n"
    )
    script = BEGIN + (
        "server = ForkServer()\n"
        "if how == 'pump':\n"
        "    pump = OutputPump()\n"
        "server.start()\n"
        "started = server.pid\n"
        "if how == 'server':\n"
        "    pump = OutputPump()\n"
        "output = pump.open(Path(directory))\n"
        "child = server.spawn(lambda: new_job(0), stdout=output.stdout, stderr=output.stderr)\n"
        "output.release()\n"
        "assert server.pid == started  # `spawn` starts another server if the first one died\n"
        "child.wait()\n"
        "output.finish()\n"
        "server.close()\n"
    )

    program = [sys.executable, "-c", script, str(tmp_path), first]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run(
        ["sh", "-c", f'"$@" {closed}', "sh", *program], env=environment, timeout=60, check=True
    )

    assert (tmp_path / "stdout").read_text() == "to stdout\n"
    assert (tmp_path / "stderr").read_text() == "to stderr\n"


@pytest.mark.slow
@pytest.mark.parametrize("closed", ["2>&-", "0<&- 1>&- 2>&-"])
def test_study_runs_in_a_program_with_closed_streams(tmp_path, closed):
    (tmp_path / "program.py").write_text(
        "import studydb\n"
        "def train(config):\n"
        "    return config['x']\n"
        "if __name__ == '__main__':\n"
        "    study = studydb.create_study(\n"
        "        's', train, space={'x': studydb.uniform(0, 1)}, metric='loss', mode='min',\n"
        "        num_trials=2, storage='sqlite:///s.db')\n"
        "    study.run(workers=1)\n"
        "    open('done', 'w').write(str(len(study.trials)))\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "HOME": str(tmp_path)}

    subprocess.run(
        ["sh", "-c", f'"$0" program.py {closed}', sys.executable],
        cwd=tmp_path,
        env=environment,
        timeout=60,
        check=True,
    )

    assert (tmp_path / "done").read_text() == "2"
