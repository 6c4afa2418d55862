"""Uploads during the training, on a host that starts no further thread."""

import threading
from types import SimpleNamespace

from studydb.artifacts.checkpoint_records import Upload
from studydb.child.checkpoint_saves import CheckpointSaves
from studydb.child.messages import Answered


def test_checkpoint_is_sent_while_the_trial_waits_if_no_thread_can_be_started(
    tmp_path, monkeypatch
):
    sent = []
    saver = SimpleNamespace(
        is_remote=True,
        connect=lambda: None,
        begin=lambda **_: Upload("a UUID", "a URL"),
        save=lambda copy, **_: "the record of " + copy.decode(),
    )
    supervisor = SimpleNamespace(
        lost=False, next_id=lambda: 1, ask=lambda _: Answered(1), send=sent.append
    )
    destination = SimpleNamespace(saver=lambda **_: saver)
    saves = CheckpointSaves(destination, supervisor, tmp_path, inline_limit_bytes=0)

    def refuse(_):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)

    saves.store_during_training(b"a dict", step=3, is_given=False)
    saves.settle()

    assert [one.saved for one in sent] == ["the record of a dict"]
