"""What an attempt's row says about the code that the attempt ran."""

import hashlib
import os

import pytest

from studydb.domain.trainable import Trainable, TrainableKind
from studydb.trainables import provenance


def described(name, *workdirs, kind=TrainableKind.IMPORT, source=None):
    made = Trainable("uuid", kind, name, "/recorded", "3.11", source=source)
    return provenance(made, [str(workdir) for workdir in workdirs])


def sha256(data):
    return hashlib.sha256(data).hexdigest()


def test_imported_function_has_the_digest_of_the_current_file_of_its_module(tmp_path):
    file = tmp_path / "digits.py"
    file.write_bytes(b"first")
    first = described("digits:train", tmp_path)
    file.write_bytes(b"other")
    os.utime(file, (1, 1))

    assert first == {
        "kind": "import",
        "name": "digits:train",
        "uuid": "uuid",
        "sha256": sha256(b"first"),
    }
    assert described("digits:train", tmp_path)["sha256"] == sha256(b"other")


def test_module_is_looked_for_in_each_directory_in_order_and_may_be_a_package(tmp_path):
    package = tmp_path / "second" / "models" / "deep"
    package.mkdir(parents=True)
    (tmp_path / "first").mkdir()
    (package / "__init__.py").write_bytes(b"package")
    (package.parent / "flat.py").write_bytes(b"module")
    workdirs = (tmp_path / "first", tmp_path / "second")

    assert described("models.deep:train", *workdirs)["sha256"] == sha256(b"package")
    assert described("models.flat:Net.train", *workdirs)["sha256"] == sha256(b"module")


@pytest.mark.parametrize("name", ["installed:train", "folder:train", "no\0such:train", ":", ""])
def test_module_that_is_in_no_working_directory_has_no_digest(tmp_path, name):
    (tmp_path / "folder.py").mkdir()

    assert described(name, tmp_path) == {"kind": "import", "name": name, "uuid": "uuid"}


@pytest.mark.parametrize("kind", [TrainableKind.PICKLE, TrainableKind.COMMAND])
def test_code_that_the_study_keeps_has_the_digest_of_its_source(tmp_path, kind):
    (tmp_path / "train.py").write_bytes(b"not this")

    assert described("train", tmp_path, kind=kind, source=b"code")["sha256"] == sha256(b"code")
