"""What happens to a command's trial if this host cannot prepare the command."""

from types import SimpleNamespace

import pytest

from studydb.trainables import command_files
from studydb.trainables.command_run import CommandTrainable, GivenBack


@pytest.mark.parametrize("harm", ["no scratch directory", "a file in the place of the socket"])
@pytest.mark.parametrize("name", ["scratch", "s" * 120])
def test_trial_is_given_back_if_the_files_of_its_command_cannot_be_made(
    tmp_path, monkeypatch, harm, name
):
    """As on a full disk."""
    stored = SimpleNamespace(line=SimpleNamespace(names_checkpoint_dir=False))
    scratch, opened = tmp_path / name, []
    monkeypatch.setattr(command_files, "TemporaryDirectory", lambda **_: folder(opened, tmp_path))
    if harm != "no scratch directory":
        scratch.mkdir()
        (scratch / "socket").touch()
        (tmp_path / "socket").touch()

    with pytest.raises(GivenBack, match="This host cannot make the command's files now") as raised:
        CommandTrainable(stored)({}, SimpleNamespace(scratch=scratch, checkpoint=None))

    assert raised.value.later
    assert opened == []


def folder(opened, path):
    """A folder for the socket that is in `opened` until it is removed."""
    opened.append(path)
    return SimpleNamespace(path=path, remove=lambda: opened.remove(path))
