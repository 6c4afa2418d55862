"""Reports of a command: lines of its output, and calls of `report` in a Python command."""

import json
import math
import threading

import numpy as np
import pytest

from studydb import report_client
from studydb.child import command_connection
from studydb.domain.errors import CheckpointError, InvalidReport, InvalidSpec
from studydb.domain.metrics import STEP
from studydb.trainables.command_reports import (
    LINE_BYTES,
    CommandReport,
    ReportLines,
    ReportPattern,
    read_json,
)


def reports(*pieces, pattern=None, metric="loss", is_stderr=False):
    found = None if pattern is None else ReportPattern(pattern)
    lines = ReportLines(found, metric, is_stderr=is_stderr)
    return [report for piece in pieces for report in lines.feed(piece)] + list(lines.end())


@pytest.mark.parametrize(
    "line",
    [
        b'[studydb] {"step": 3, "error": 0.5}\n',
        b'12:00 INFO [studydb] {"error": 0.5, "step": 3} and more\n',
        b'[studydb]{"training_iteration": 3, "error": 0.5}',
        b'[tune-metric]: {"step": 3, "error": 0.5, "st_worker_time": 7}\r\n',
    ],
)
def test_marked_line_is_a_report(line):
    assert reports(b"noise\n", line) == [CommandReport({"training_iteration": 3, "error": 0.5})]


def test_report_is_found_however_the_output_is_split_into_pieces():
    text = b'a\n[studydb] {"error": 1}\nb\n[studydb] {"error": 2, "checkpoint": true}\n'

    found = reports(*(text[at : at + 1] for at in range(len(text))))

    assert found == [CommandReport({"error": 1}), CommandReport({"error": 2}, checkpoint=True)]


def test_infinite_values_and_nan_are_numbers():
    (report,) = reports(b'[studydb] {"a": Infinity, "b": -Infinity, "c": NaN}')

    assert (report.metrics["a"], report.metrics["b"]) == (math.inf, -math.inf)
    assert math.isnan(report.metrics["c"])


@pytest.mark.parametrize(
    "line",
    [b"[studydb] error=0.1\n", b"[studydb] {'error': 1}\n", b"[studydb]\n", b"[studydb] [1]\n"],
)
def test_marked_line_without_a_json_object_is_refused(line):
    with pytest.raises(InvalidReport, match="JSON"):
        reports(line)


def test_checkpoint_that_is_neither_true_nor_a_path_is_refused():
    with pytest.raises(InvalidReport, match="true, or a directory's path"):
        reports(b'[studydb] {"error": 1, "checkpoint": 3}\n')


def test_line_that_is_too_long_is_skipped():
    long = b"x" * (LINE_BYTES + 1)
    found = reports(long[:1000], long[1000:], long, b'"[studydb]"\n[studydb] {"error": 2}\n')

    assert found == [CommandReport({"error": 2})]


@pytest.mark.parametrize("mark", [b"[studydb]", b"[tune-metric]:"])
def test_marked_line_that_is_too_long_is_refused(mark):
    lines = ReportLines()
    long = b'[studydb] {"error": 1}\n%s {"error": 1, "text": "' % mark + b"x" * LINE_BYTES
    found = lines.feed(long)

    assert next(found) == CommandReport({"error": 1})
    with pytest.raises(InvalidReport, match=r"more than 1048576 bytes .*the limit of a report"):
        next(found)
    assert list(lines.feed(b'"}\n[studydb] {"error": 2}\n')) == [CommandReport({"error": 2})]


def test_pattern_reads_named_groups_as_metrics():
    found = reports(
        b"epoch 1\nepoch 2 loss=1.5e-3 acc=\n", pattern=r"epoch (?P<step>\d+) loss=(?P<loss>\S+)"
    )

    assert found == [CommandReport({"training_iteration": 2, "loss": 0.0015})]


@pytest.mark.parametrize(
    ("metric", "group"), [("val/loss", "val_loss"), ("acc@5", "acc_5"), ("5 acc", "_5_acc")]
)
def test_group_for_a_metric_whose_name_is_no_identifier_has_underscores(metric, group):
    pattern = rf"val=(?P<{group}>\S+) (?P<other_x>\S+)"

    ReportPattern(pattern).check(metric)

    assert reports(b"val=1 2\n", pattern=pattern, metric=metric) == [
        CommandReport({metric: 1, "other_x": 2})
    ]
    with pytest.raises(InvalidSpec, match=rf"\(\?P<{group}>…\)"):
        ReportPattern(r"(?P<val>\S+)").check(metric)


BAR = r"loss: (?P<loss>\S+)"


@pytest.mark.parametrize(
    "output",
    [
        b"\r 1/5 loss: 0.8\r 2/5 loss: 0.7\n",
        b"1/5 loss: 0.8\r2/5 loss: 0.7\r\n",  # Windows
        b"1/5 loss: 0.8\r2/5 loss: 0.7\r      \r\n",  # the bar was cleared
        b"1/5 loss: 0.8\r2/5 loss: 0.7",
        b'[studydb] {"loss": 0.7}\r\n',
        b'loss: 0.8\r[studydb] {"loss": 0.7}\n',
    ],
)
def test_pattern_reads_the_last_text_of_a_line_that_is_overwritten(output):
    for pieces in ([output], [output[at : at + 1] for at in range(len(output))]):
        assert reports(*pieces, pattern=BAR) == [CommandReport({"loss": 0.7})]


def test_marked_reports_that_a_carriage_return_separates_are_all_read():
    found = reports(b'bar\r[studydb] {"error": 1}\r[tune-metric]: {"error": 2}\nx\r')

    assert found == [CommandReport({"error": 1}), CommandReport({"error": 2})]


def test_progress_bar_may_be_longer_than_the_limit_of_a_line():
    lines = ReportLines(ReportPattern(BAR), "loss")
    piece = b"".join(b"\r%04d/9999 loss: 0.%04d" % (at, at) for at in range(1000))

    for _ in range(LINE_BYTES // len(piece) + 2):
        assert list(lines.feed(piece)) == []

    assert list(lines.feed(b"\n")) == [CommandReport({"loss": 0.0999})]


@pytest.mark.parametrize("pattern", ["(", r"loss=(\S+)", r"(?P<step>\d+)"])
def test_pattern_that_is_invalid_or_names_no_metric_is_refused(pattern):
    with pytest.raises(InvalidSpec, match="--report-regex"):
        ReportPattern(pattern)


def test_refusal_of_a_group_that_is_named_like_a_path_says_which_name_the_group_can_have():
    with pytest.raises(InvalidSpec, match="For a metric val/loss, call the group val_loss"):
        ReportPattern(r"(?P<val/loss>\S+)")


@pytest.mark.parametrize("pattern", [r"(?P<acc>\S+)", r"(?P<loss>\S+) (?P<checkpoint>\S+)"])
def test_pattern_must_have_a_group_for_the_metric_of_the_study_and_none_for_a_checkpoint(pattern):
    with pytest.raises(InvalidSpec, match="loss"):
        ReportPattern(pattern).check("loss")


def test_text_that_the_pattern_finds_must_be_a_number():
    with pytest.raises(InvalidReport, match="no number"):
        reports(b"loss=high\n", pattern=r"loss=(?P<loss>\S+)")


@pytest.mark.parametrize("is_stderr", [False, True])
def test_pattern_that_finds_a_step_of_0_says_that_steps_count_from_1(is_stderr):
    with pytest.raises(InvalidReport, match=r"step='0', but steps count from 1\. .*leave out"):
        reports(b"0: 1.5\n", pattern=r"(?P<step>\d+): (?P<loss>\S+)", is_stderr=is_stderr)


def test_on_stderr_only_lines_in_which_the_pattern_finds_a_number_are_reports():
    output = b'[studydb] {"loss": 1}\n  print(f"loss: {loss}")\nloss: 0.5\n[studydb] x\n'

    assert reports(output, pattern=BAR, is_stderr=True) == [CommandReport({"loss": 0.5})]
    assert reports(output, is_stderr=True) == []


def test_report_from_a_python_command_sends_numpy_values_as_json_numbers(
    monkeypatch,
):
    sent = []
    monkeypatch.setattr(
        report_client, "exchange", lambda it: sent.append(json.loads(it)) or {"go": True}
    )

    command_connection.report(
        {"error": np.float32(0.5), "deep": {"n": np.int64(3), "each": np.array([1, 2])}}, None
    )

    assert sent == [{"error": 0.5, "deep/n": 3, "deep/each": [1, 2]}]


@pytest.mark.parametrize(
    ("metrics", "step"),
    [({"step": 500}, {}), ({"step": 500, STEP: 3}, {STEP: 3}), ({STEP: 3}, {STEP: 3}), ({}, {})],
)
def test_metric_called_step_in_a_python_command_is_not_the_step_of_the_report(
    monkeypatch, metrics, step
):
    sent = []
    monkeypatch.setattr(report_client, "exchange", lambda it: sent.append(it) or {"go": True})

    command_connection.report({"error": 0.5} | metrics, None)

    (text,) = sent
    assert read_json(text.encode()) == CommandReport({"error": 0.5} | metrics | step)


@pytest.mark.parametrize(
    ("metrics", "words"),
    [
        ({"error": {1}}, "is a set"),
        ([1], r"report\(\) was given a list"),
        ({1: 1, "1": 2}, "two metrics with the name '1'"),
    ],
)
def test_wrong_report_from_a_python_command_raises_the_same_error_as_in_a_trainable_function(
    metrics, words
):
    with pytest.raises(InvalidReport, match=words):
        command_connection.report(metrics, None)


def test_unpicklable_checkpoint_from_a_python_command_raises_the_same_error_as_in_a_function(
    monkeypatch, tmp_path
):
    monkeypatch.setenv("STUDYDB_SAVE", str(tmp_path))

    with pytest.raises(CheckpointError, match="cannot be pickled"):
        command_connection.report({"error": 1}, {"lock": threading.Lock()})

    assert list(tmp_path.iterdir()) == []


def test_output_without_a_line_end_takes_time_in_proportion_to_its_length():
    lines, piece = ReportLines(), b"." * 1024
    joined = 0
    for _ in range(LINE_BYTES // len(piece)):
        assert list(lines.feed(piece)) == []
        joined += max(map(len, lines._rest))
    assert joined == LINE_BYTES  # no piece is joined with those before it


def test_pattern_is_ignored_on_a_stream_if_it_has_matched_the_other_stream():
    lines = ReportLines(ReportPattern(r"loss=(?P<loss>\S+)"), "loss")
    lines.ignores_pattern = True

    assert list(lines.feed(b'loss\n[studydb] {"loss": 2}\n')) == [CommandReport({"loss": 2})]
    assert not lines.has_ignored
    assert list(lines.feed(b"loss=1\n")) == []
    assert lines.has_ignored
