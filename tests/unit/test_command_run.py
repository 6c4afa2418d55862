"""What happens to a command's trial if this host cannot prepare the command."""

from types import SimpleNamespace

import pytest

from studydb.domain.given_directory import GivenDirectory, UnmadeDirectory
from studydb.trainables import command_files
from studydb.trainables.command_reports import CommandReport
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


@pytest.mark.parametrize("target", ["a removed file", "link"])
def test_link_to_nothing_in_checkpoint_dir_is_an_error_of_the_checkpoint(tmp_path, target):
    """`link` leads to itself."""
    trial = SimpleNamespace(scratch=tmp_path, checkpoint=None)
    with command_files.CommandFiles(trial, {}, keeps=True) as files:
        (files.checkpoint_dir / "weights").write_text("1")
        link = files.checkpoint_dir / "link"
        link.symlink_to(target)

        with files.taken(CommandReport({"error": 1}), is_answered=False) as unmade:
            assert isinstance(unmade, UnmadeDirectory)
            assert "/checkpoint_dir/link cannot be copied: " in unmade.error
        link.unlink()
        with files.taken(CommandReport({"error": 1}), is_answered=False) as made:
            assert isinstance(made, GivenDirectory)
            assert [path.name for path in made.path.iterdir()] == ["weights"]


def folder(opened, path):
    """A folder for the socket that is in `opened` until it is removed."""
    opened.append(path)
    return SimpleNamespace(path=path, remove=lambda: opened.remove(path))
