"""If two people replace a study's code at the same time, only the later code remains."""

from uuid import uuid4

from harness.arrange import new_request, new_study, rows, run_together
from harness.concurrent import held_at, is_waiting_for_a_lock
from harness.settings_requests import revise

from studydb.db.transaction_block import TransactionBlock
from studydb.domain.trainable import Trainable, TrainableKind
from studydb.operations.create import load


def described(name):
    signatures = {"key": "mac"}
    return Trainable(str(uuid4()), TrainableKind.IMPORT, name, "/nowhere", "3.11", None, signatures)


def test_of_two_concurrent_changes_of_the_code_only_the_later_one_remains(
    connections, postgres_url
):
    slow, fresh = connections
    study = new_study(slow, trainable=described("first:train"))

    with held_at(TransactionBlock, "_end") as (arrived, go):

        def change_later():
            assert arrived.wait(20.0)
            revise(fresh, study, described("third:train"), new_request())

        def let_go():
            assert arrived.wait(20.0)
            assert is_waiting_for_a_lock(postgres_url)
            go.set()

        run_together(
            [
                lambda: revise(slow, study, described("second:train"), new_request()),
                change_later,
                let_go,
            ]
        )

    assert rows(fresh, "SELECT name FROM trainable") == [("third:train",)]
    assert rows(fresh, "SELECT count(*) FROM signature") == [(1,)]
    assert load(fresh, study.name).trainable.signatures == {"key": "mac"}
