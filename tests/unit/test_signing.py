"""The signature of a checkpoint is valid for one kind, trial, attempt, step and digest only."""

import uuid
from pathlib import Path

import pytest
from msgspec import structs

from studydb.artifacts import is_signed
from studydb.artifacts.signing import checkpoint_payload
from studydb.domain.checkpoint import Checkpoint
from studydb.settings import Key, Keyring, frame

STUDY, TRIAL = "8f0e6d5c-2a51-4c9e-9d57-3c1f0a6b7e21", "1b7c4f9a-6d3e-4b0a-8f25-90e1d2c3b4a5"
RING = Keyring((Key(b"k" * 32),), Path("keys"))
ROW = Checkpoint(str(uuid.uuid4()), 1, 1, 2, "dict", "inline:", "d", 1)


def test_signature_covers_kind_trial_attempt_step_and_digest():
    other = {"attempt": 2, "step": 3, "digest": "e", "kind": "directory"}
    rows = [ROW, *(structs.replace(ROW, **{name: other[name]}) for name in other)]

    payloads = {checkpoint_payload(row, trial_uuid=TRIAL) for row in rows}

    assert len(payloads | {checkpoint_payload(ROW, trial_uuid=STUDY)}) == len(rows) + 1


def signed_checkpoint(payload, *, kind):
    key_id, mac = RING.sign(payload)
    return structs.replace(ROW, kind=kind, key_id=key_id, mac=mac)


@pytest.mark.parametrize("kind", ["dict", "directory"])
def test_signature_is_valid_for_one_kind_of_checkpoint_only(kind):
    payload = checkpoint_payload(structs.replace(ROW, kind=kind), trial_uuid=TRIAL)
    row = signed_checkpoint(payload, kind=kind)

    assert is_signed(RING, row, trial_uuid=TRIAL)
    for other in {"dict", "directory", "Dict", ""} - {kind}:
        assert not is_signed(RING, structs.replace(row, kind=other), trial_uuid=TRIAL)


def test_signature_of_an_earlier_version_is_valid_for_dicts_only():
    payload = frame("studydb checkpoint 1", TRIAL, "1", "2", "d")

    assert is_signed(RING, signed_checkpoint(payload, kind="dict"), trial_uuid=TRIAL)
    assert not is_signed(RING, signed_checkpoint(payload, kind="dict"), trial_uuid=STUDY)
    assert not is_signed(RING, signed_checkpoint(payload, kind="directory"), trial_uuid=TRIAL)
    assert not is_signed(RING, signed_checkpoint(payload, kind=""), trial_uuid=TRIAL)
