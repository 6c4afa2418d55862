"""Trials that run a program: reports, checkpoints, ends, and the examples of docs/commands.md."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from harness.turns import sqlite_alone

import studydb

storage_url = sqlite_alone

DOC = Path(__file__).parents[2] / "docs" / "commands.md"
CONSOLE = Path(sys.executable).parent / "studydb"


@pytest.fixture
def create(create_command):
    return create_command


def failure(stage):
    (attempt,) = stage.attempts()
    return attempt.error_message


@pytest.mark.row("C9")
def test_output_lines_that_contain_the_studydb_mark_are_results(stage, script, create):
    create(
        script("""echo '[studydb] {"error": 0.5}'; echo '[studydb] {"step": 4, "error": NaN}'""")
    )

    assert stage.run() == 0

    assert stage.trial().state == "TERMINATED"
    assert stage.steps() == [1, 4]


@pytest.mark.row("C9")
@pytest.mark.parametrize("text", ["a b", "it's", '"q"', "$HOME `x` *", "é\n#", "", "{x}", "-x"])
def test_text_value_arrives_unchanged_in_arguments_and_in_the_config(stage, create, here, text):
    (here / "echo.py").write_text(
        "import json, os, sys\n"
        "config = json.load(open(os.environ['STUDYDB_CONFIG'], encoding='utf-8'))\n"
        "same = sys.argv[1] == config['given']['text'] == json.loads(sys.argv[2])\n"
        "print('[studydb]', json.dumps({'error': 0 if same else 1}))\n"
    )
    space = {"given": {"text": text}, "json": studydb.constant(json.dumps(text))}

    create(sys.executable, "echo.py", "{given.text}", "{json}", space=space)

    assert stage.run() == 0
    assert stage.trial().last_value == 0


def test_environment_describes_the_trial_and_holds_no_credentials(
    stage, script, create, monkeypatch
):
    monkeypatch.setenv("STUDYDB_SIGNING_KEY", "ab" * 32)
    monkeypatch.setenv("PGPASSWORD", "secret")
    create(
        script(
            'env > "$1/env"; test -z "$(ls -A "$STUDYDB_SAVE")" && test ! -e "$STUDYDB_STOP" && '
            "studydb report error=1"
        ),
        "{folder}",
    )

    assert stage.run() == 0, stage.attempts()

    lines = (stage.folder / "env").read_text().splitlines()
    found = dict(line.partition("=")[::2] for line in lines)
    names = ("STUDY", "TRIAL", "ATTEMPT", "STEP", "SEED")
    assert [found[f"STUDYDB_{name}"] for name in names[:-1]] == ["staged", "0", "1", "0"]
    assert found["PYTHONUNBUFFERED"] == "1"
    assert found["STUDYDB_SEED"].isdigit()
    assert {
        "STUDYDB_CHECKPOINT",
        "STUDYDB_STORAGE",
        "STUDYDB_SIGNING_KEY",
        "PGPASSWORD",
    }.isdisjoint(found)


@pytest.mark.slow
def test_exit_code_of_studydb_report_tells_the_command_what_to_do(stage, script, create):
    create(
        script(
            'studydb report error=1 text=hello; echo "$?" >> "$1/codes"\n'
            'studydb report error=one; echo "$?" >> "$1/codes"\n'
            'studydb report error=9 done=no; echo "$?" >> "$1/codes"\n'
            'studydb report error=9 done=false flag=true; echo "$?" >> "$1/codes"\n'
            'studydb report error=1 error=2; echo "$?" >> "$1/codes"\n'
            'studydb report error 1; echo "$?" >> "$1/codes"\n'
            'studydb report error=1 --save; echo "$?" >> "$1/codes"\n'
            'studydb report error=0.1; echo "$?" >> "$1/codes"\n'
        ),
        "{folder}",
        stop=["error<=0.2"],
    )

    assert stage.run() == 0

    assert (stage.folder / "codes").read_text().split() == ["0", "2", "2", "0", "2", "2", "2", "10"]
    assert stage.steps() == [1, 2, 3]
    assert (stage.trial().state, stage.trial().reason) == ("TERMINATED", "RULE_STOPPED")


def test_report_outside_a_trial_ends_with_1_and_says_why(here):
    ran = subprocess.run(
        [CONSOLE, "report", "error=1"], cwd=here, capture_output=True, text=True, check=False
    )

    assert ran.returncode == 1
    assert ran.stderr.count("\n") == 1
    assert "for commands that a worker runs" in ran.stderr


@pytest.mark.slow
def test_killed_command_goes_on_from_its_checkpoint(stage, script, create):
    create(
        script(
            'echo "$STUDYDB_STEP $STUDYDB_ATTEMPT" >> "$1/starts"\n'
            '[ -z "$STUDYDB_CHECKPOINT" ] || cat "$STUDYDB_CHECKPOINT/state" >> "$1/states"\n'
            'echo half > "$STUDYDB_SAVE/state"; studydb report error=0.5 --step 3 --save\n'
            '[ "$STUDYDB_ATTEMPT" = 2 ] || kill -9 $$\n'
        ),
        "{folder}",
    )

    assert stage.run() == 0

    assert (stage.folder / "starts").read_text().split("\n")[:2] == ["0 1", "3 2"]
    assert (stage.folder / "states").read_text() == "half\n"
    assert [row.reason for row in stage.attempts()] == ["LOST", "COMPLETED"]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("exit 0", "without reporting 'error'"),
        ("echo to-stderr >&2; exit 3", "exited with code 3"),
        ("kill -SEGV $$", "was killed by SIGSEGV"),
        ("echo '[studydb] error=1'; sleep 60", "is not JSON"),
        (
            "printf '[studydb] {'; head -c 3000000 /dev/zero | tr '\\0' x",
            "more than 1048576 bytes (1 MiB), the limit of a report on stdout",
        ),
        ("""echo '[studydb] {"loss": 1}'; sleep 60""", "no 'error', the study's metric"),
        ("""echo '[studydb] {"error": 1, "checkpoint": true}'; sleep 60""", "SAVE is empty"),
        (
            """echo '[studydb] {"error": 1, "checkpoint": "/no/x"}'; sleep 60""",
            "cannot name a directory",
        ),
    ],
)
def test_error_message_says_why_a_command_failed(stage, script, create, body, words):
    create(script(body))

    stage.run()

    assert stage.trial().state == "ERROR"
    assert words in failure(stage)


def test_failure_shows_the_last_lines_of_the_output(stage, script, create):
    create(script("i=0; while [ $i -lt 30 ]; do i=$((i+1)); echo line $i; done; exit 1"))

    stage.run()

    (attempt,) = stage.attempts()
    assert attempt.traceback.splitlines() == [f"line {n}" for n in range(11, 31)]


def test_logs_show_the_output_of_a_failed_command_once(stage, script, create):
    create(script("echo to-stdout; echo to-stderr >&2; exit 3"))

    stage.run()

    assert sorted(stage.command("logs", "staged", "0").split()) == ["to-stderr", "to-stdout"]


@pytest.mark.slow
@pytest.mark.parametrize("code", [130, 143, 75])
def test_exit_code_130_143_or_75_gives_the_trial_back_without_a_failure_or_a_loss(
    stage, script, create, code
):
    create(script(f'studydb report error=1; [ "$STUDYDB_ATTEMPT" = 2 ] || exit {code}'))

    assert stage.run() == 0

    row = stage.trial()
    assert (row.state, row.failures, row.losses) == ("TERMINATED", 0, 0)
    assert [row.reason for row in stage.attempts()] == ["PREEMPTED", "COMPLETED"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["command", "function", "class"])
def test_preempt_signal_to_all_processes_releases_the_trial(stage, script, create, kind):
    match kind:
        case "command":
            loop = "trap 'exit 0' TERM; studydb report error=1; while :; do sleep 0.05; done"
            create(script(loop))
        case "function":
            stage.create("obedient:unhurried")
        case "class":
            stage.create("classes:InFiles", space={"gate_after": 1, "steps": 9})
    worker = stage.start(preempt_signal="USR1")
    stage.await_result()

    for process in worker.family():
        with suppress(psutil.NoSuchProcess):  # a `sleep` of the script may have ended
            process.send_signal(signal.SIGUSR1)
    if kind == "class":
        stage.open_gate("all")

    assert worker.exit_code(30.0) == 128 + signal.SIGUSR1
    stage.expect_released()


def test_save_directory_is_empty_again_when_a_report_is_answered(stage, script, create):
    create(
        script(
            'echo a > "$STUDYDB_SAVE/first"; studydb report error=1 --save\n'
            'ls -A "$STUDYDB_SAVE" > "$1/left"\n'
            'echo b > "$STUDYDB_SAVE/second"; studydb report error=1 --save\n'
        ),
        "{folder}",
    )

    assert stage.run() == 0, stage.attempts()

    assert (stage.folder / "left").read_text() == ""
    assert stage.trial().checkpoint_step == 2
    checkpoint = stage.study.trials[0].checkpoint
    assert [path.name for path in checkpoint.path.iterdir()] == ["second"]


def test_command_goes_on_if_this_host_cannot_make_its_next_save_directory(stage, script, create):
    create(
        script(
            'in_the_way=$(dirname "$STUDYDB_SAVE")/next-save; touch "$in_the_way"\n'
            'echo a > "$STUDYDB_SAVE/first"; studydb report error=1 --save || exit 5\n'
            'ls -A "$STUDYDB_SAVE" > "$1/left"; rm "$in_the_way"\n'
            "studydb report error=1 --save || exit 6\n"
        ),
        "{folder}",
    )
    worker = stage.start()

    assert worker.exit_code() == 0, stage.attempts()

    assert "This host could not make the directory of a checkpoint" in worker.output()
    assert (stage.folder / "left").read_text() == "first\n"
    assert stage.trial().checkpoint_step == 2


def test_twenty_thousand_lines_reach_the_log_and_no_report_is_lost(stage, create, here):
    (here / "loud.py").write_text(
        "import sys\n"
        "for step in range(1, 21):\n"
        "    sys.stdout.write('noise ' * 8 + '\\n' + 1000 * 'x\\n')\n"
        "    print('[studydb]', '{\"error\": %d}' % step)\n"
    )
    create(sys.executable, "loud.py")

    assert stage.run() == 0

    assert stage.steps() == list(range(1, 21))
    assert stage.command("logs", "staged", "0").count("\nx") >= 20_000


def test_command_that_closes_its_output_goes_on_reporting(stage, create, here):
    (here / "closing.py").write_text(
        "import os, studydb\nos.close(1)\nos.close(2)\n"
        "for step in range(3):\n    studydb.report({'error': step})\n"
    )
    create(sys.executable, "closing.py")

    assert stage.run() == 0
    assert stage.steps() == [1, 2, 3]


def write_client(here, text):
    (here / "client.py").write_text(
        "import json, os, socket, time\n"
        "def connect():\n"
        "    client = socket.socket(socket.AF_UNIX)\n"
        "    client.connect(os.environ['STUDYDB_SOCKET'])\n"
        "    return client\n" + text
    )
    return [sys.executable, "client.py"]


def test_reports_of_clients_that_do_not_wait_for_the_answer_are_stored(stage, create, here):
    create(
        *write_client(
            here,
            "client = connect()\n"
            'client.sendall(b\'{"error": 1}\\n{"error": 2}\\n\')\n'
            "client.close()\n"
            "for value in range(3, 13):\n"
            "    last = connect()\n"
            "    last.sendall(b'{\"error\": %d}' % value)\n"
            "os._exit(0)\n",
        )
    )

    assert stage.run() == 0, stage.attempts()
    assert stage.steps() == list(range(1, 13))


@pytest.mark.slow
def test_client_that_never_reads_does_not_block_the_trial(stage, create, here):
    create(
        *write_client(
            here,
            "client = connect()\n"
            "client.setblocking(False)\n"
            "try:\n"
            "    for _ in range(100_000):\n"
            "        client.send(b'{\"error\": 1}\\n')\n"
            "except OSError:\n"
            "    pass\n"
            'print(\'[studydb] {"error": 7, "step": 900000}\', flush=True)\n'
            "while not os.path.exists(os.environ['STUDYDB_STOP']):\n"
            "    time.sleep(0.02)\n",
        ),
        stop=["training_iteration>=900000"],
    )

    assert stage.run() == 0, stage.attempts()
    # Lines of the socket that are read after the line on stdout get higher steps.
    assert stage.trial().last_step >= 900_000


def test_next_report_saves_the_checkpoint_of_a_refused_report(stage, script, create):
    create(
        script(
            'echo a > "$STUDYDB_SAVE/state"\n'
            "studydb report eror=1 --save && exit 5\n"
            "studydb report error=1 --save || exit 6\n"
        )
    )

    assert stage.run() == 0, stage.attempts()
    assert stage.trial().checkpoint_step == 1


def test_done_completes_the_trial_and_later_reports_are_not_stored(stage, script, create):
    create(
        script(
            """echo '[studydb] {"error": 1, "done": true}'; trap '' TERM\n"""
            "studydb report error=2; studydb report error=3\n"
        )
    )

    assert stage.run() == 0
    assert stage.steps() == [1]
    assert stage.trial().reason == "COMPLETED"


@pytest.mark.nightly
@pytest.mark.parametrize(
    "line",
    [
        "studydb report error=1 done=true --save",
        """echo '[studydb] {"error": 1, "done": true, "checkpoint": true}'""",
    ],
)
def test_command_that_is_killed_after_it_said_done_is_completed(stage, script, create, line):
    trap = "trap '' TERM; touch \"$STUDYDB_SAVE/state\"; "
    create(script(f"{trap}{line}; while :; do sleep 0.05; done"))
    worker = stage.start()
    stage.await_trial(lambda row: row.checkpoint_step == 1)

    worker.end()

    assert stage.run() == 0
    assert [row.reason for row in stage.attempts()] == ["LOST"]
    assert stage.trial().reason == "COMPLETED"


def test_worker_without_the_program_gives_the_trial_back_and_says_why(stage, script, create, here):
    create(script("studydb report error=1"))
    (here / "train.sh").unlink()

    worker = stage.start()

    assert worker.exit_code(30.0) == 1
    assert "train.sh" in worker.output()
    stage.expect_released()


def test_trial_fails_if_the_interpreter_of_its_script_does_not_exist(stage, script, create, here):
    create(script("studydb report error=1"))
    (here / "train.sh").write_text("#!/no/such/shell -e\n")

    stage.run()

    assert stage.trial().state == "ERROR"
    assert "train.sh names the interpreter '/no/such/shell', which does not exist" in failure(stage)


def test_worker_whose_script_has_windows_line_ends_gives_the_trial_back_and_says_why(
    stage, script, create, here
):
    create(script("studydb report error=1"))
    (here / "train.sh").write_bytes(b"#!/bin/sh\r\necho\r\n")

    worker = stage.start()

    assert worker.exit_code(30.0) == 1
    assert "train.sh has Windows line ends" in worker.output()
    stage.expect_released()


@pytest.mark.slow
def test_lines_of_the_report_file_are_results(stage, script, create, here):
    (here / "out-0.jsonl").write_text('{"error": 7}\n')  # left by an earlier run
    line = 'echo "{\\"error\\": $step}" >> out-0.jsonl'
    create(script(f"for step in 1 2; do {line}; sleep 0.2; done"), file="out-{trial}.jsonl")

    assert stage.run() == 0
    assert stage.steps() == [1, 2]
    assert stage.trial().last_value == 2


def test_last_line_of_the_report_file_needs_no_newline(stage, script, create):
    create(script("""printf '{"error": 3}' > out-0"""), file="out-{trial}")

    assert stage.run() == 0
    assert stage.trial().last_value == 3


@pytest.mark.parametrize("line", ["error=9", '[studydb] {"er'])
def test_unfinished_last_line_of_a_killed_command_is_no_report(stage, script, create, line):
    body = (
        '[ "$STUDYDB_ATTEMPT" = 2 ] && { echo error=940; exit 0; }\n'
        f"echo error=950; printf '{line}' | tee out-0; kill -9 $$"
    )
    create(script(body), regex=r"error=(?P<error>\d+)", file="out-{trial}")

    assert stage.run() == 0
    assert [row.reason for row in stage.attempts()] == ["LOST", "COMPLETED"]
    assert stage.trial().best_value == 940


def test_lines_that_match_the_pattern_are_results(stage, script, create):
    pattern = r"epoch (?P<step>\d+) error=(?P<error>\S+)"
    create(script("echo start; echo 'epoch 9 error=0.25'"), regex=pattern)

    assert stage.run() == 0
    assert stage.steps() == [9]
    assert stage.trial().last_value == 0.25


def test_command_whose_output_never_matches_the_pattern_fails_with_advice_about_the_pattern(
    stage, script, create
):
    create(script("echo loss 0.25"), regex=r"error=(?P<error>\S+)")

    stage.run()

    assert "No line of its output matches --report-regex." in failure(stage)


def test_lines_on_stderr_that_match_the_pattern_are_results(stage, create, here):
    (here / "train.py").write_text(
        "import logging\n"
        "logging.basicConfig(level=logging.INFO)\n"
        "logging.info('error=0.5')\n"
        "logging.info('error=0.25')\n"
    )
    create(sys.executable, "train.py", regex=r"error=(?P<error>\S+)")

    assert stage.run() == 0
    assert stage.steps() == [1, 2]
    assert stage.trial().last_value == 0.25


def test_line_on_both_streams_is_one_result_and_the_output_says_so(stage, script, create):
    create(script("printf error=1; sleep 0.2; printf error=1 >&2"), regex=r"error=(?P<error>\S+)")

    assert stage.run() == 0
    assert stage.steps() == [1]
    assert "matches lines on stdout and on stderr" in stage.command("logs", "staged", "0")


def test_regex_group_with_an_underscore_stands_for_a_metric_with_a_slash(stage, script, here):
    command = studydb.Command([script("echo 'val 0.25'")], r"val (?P<val_loss>\S+)")
    stage.create(command, workdir=here, space={}, metric="val/loss")

    assert stage.run() == 0
    assert stage.trial().last_value == 0.25


@pytest.mark.nightly
def test_python_program_of_a_command_reports_like_a_function(stage, create, here):
    (here / "train.py").write_text(
        "import studydb\n"
        "saved = studydb.checkpoint()\n"
        "step = saved.to_dict()['step'] if saved else 0\n"
        "assert studydb.config() == {'x': 0.25, 'folder': studydb.config()['folder']}\n"
        "try:\n"
        "    studydb.report({'loss': 1})\n"
        "except studydb.InvalidReport as error:\n"
        "    assert \"no 'error'\" in str(error)\n"
        "while step < 4:\n"
        "    step += 1\n"
        "    studydb.report({'error': 1 / step}, checkpoint={'step': step})\n"
        "    if step == 2 and not saved:\n"
        "        import os, signal\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    create(sys.executable, "train.py")

    assert stage.run() == 0
    assert stage.steps() == [1, 2, 3, 4]
    assert [row.start_step for row in stage.attempts()][-1] == 3


def test_changed_command_is_not_run(stage, script, create):
    study = create(script('touch "$1/ran"; studydb report error=1'), "{folder}")
    with study.database.begin() as txn:
        txn.run_text(
            "UPDATE trainable SET source = CAST(replace(source, 'train', 'other') AS BLOB)"
        )

    worker = stage.start()

    assert worker.exit_code(30.0) == 1
    assert "was changed after it was signed" in worker.output()
    assert not (stage.folder / "ran").exists()


STEPS = 60

EXAMPLES = {
    "train.py": [sys.executable, "train.py", "--lr", "{lr}"],
    "train.sh": ["./train.sh", "{lr}"],
    "train.js": ["node", "train.js", "{lr}"],
    "train.c": ["./train", "{lr}"],
}


def example(name):
    """Find the code block of docs/commands.md whose first line (after any `#!`) names the file."""
    for block in re.findall(r"^```\w+\n(.*?)^```", DOC.read_text(), re.MULTILINE | re.DOTALL):
        if re.match(rf"(#!.*\n)?(#|//) {re.escape(name)}\b", block):
            return block
    raise AssertionError(name)


@pytest.mark.nightly
@pytest.mark.row("C9")
@pytest.mark.parametrize("name", EXAMPLES)
def test_example_of_the_documentation_trains_and_goes_on_after_a_kill(
    stage, create, here, name, monkeypatch
):
    if name == "train.js" and shutil.which("node") is None:
        pytest.skip("Node is not installed here")
    if name == "train.c" and shutil.which("cc") is None:
        pytest.skip("no C compiler is installed here")
    text = example(name)
    assert len(text.splitlines()) <= 16  # 15 lines, and the line that names the file
    # With ten steps the trial could end before the kill.
    (here / name).write_text(re.sub(r"\b10\b", str(STEPS), text))
    if name == "train.c":
        subprocess.run(["cc", "-o", here / "train", here / name], check=True)
    if name == "train.sh":
        (here / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{CONSOLE.parent}{os.pathsep}{os.environ['PATH']}")
    create(*EXAMPLES[name], space={"lr": studydb.choice([0.3])})
    first = stage.start()
    stage.await_trial(lambda row: row.checkpoint_step and row.checkpoint_step >= 2)
    first.end()

    assert stage.run() == 0

    assert stage.trial().state == "TERMINATED"
    assert stage.steps() == list(range(1, STEPS + 1))
    assert [row.reason for row in stage.attempts()] == ["LOST", "COMPLETED"]
    assert stage.trial().last_value == pytest.approx(0.7**STEPS, rel=1e-9)
