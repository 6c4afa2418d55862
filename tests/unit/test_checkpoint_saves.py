"""Uploads during the training, on a host that starts no further thread."""

import threading
from types import SimpleNamespace

from studydb.child.checkpoint_saves import CheckpointSaves


def test_checkpoint_is_sent_while_the_trial_waits_if_no_thread_can_be_started(
    tmp_path, monkeypatch
):
    sent = []
    saver = SimpleNamespace(
        is_remote=True,
        connect=lambda: None,
        begin=lambda **_: "an upload",
        save=lambda copy, **_: "the record of " + copy.decode(),
    )
    supervisor = SimpleNamespace(
        lost=False, next_id=lambda: 1, ask=lambda _: None, send=sent.append
    )
    saves = CheckpointSaves(saver, SimpleNamespace(end=lambda: None), supervisor, tmp_path)

    def refuse(_):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)

    saves.store_during_training(b"a dict", step=3, is_given=False)
    saves.settle()

    assert [one.saved for one in sent] == ["the record of a dict"]
