"""Command trainables: a program in any language, described in a row like a function."""

import json
import os
import shlex
import shutil
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct, structs

from studydb.domain.command_line import CommandLine
from studydb.domain.errors import InvalidSpec, TrainableError
from studydb.domain.trainable import Trainable, TrainableForm, TrainableKind
from studydb.trainables.command_reports import ReportPattern
from studydb.trainables.describing import PYTHON_VERSION
from studydb.trainables.interpreter import refuse_windows_line_ends

if TYPE_CHECKING:
    from studydb.domain.space.search_space import Space


@dataclass(frozen=True, slots=True)
class Command:
    """
    A program that trains one trial: `Command(["./train", "--lr", "{lr}"])`.

    Attributes:
        items: The command line as a list; see `studydb.domain.command_line` for the placeholders.
        report_regex: A regular expression whose named groups are metrics, for programs that print
            their metrics in a form that studydb does not know. The group `val_loss` stands for the
            study's metric `val/loss`.
        report_file: A file to which the program appends a JSON object for each report. In its path,
            `{trial}` is the trial's number and `{study}` the study's name; a relative path begins
            at the working directory.
    """

    items: Sequence[str]
    report_regex: str | None = None
    report_file: str | None = None

    def check(self, space: "Space", *, metric: str, workdir: Path) -> None:
        """
        Check the command before a study is created with it, or is changed to run it.

        Raises:
            InvalidSpec: A placeholder, `report_regex` or `report_file` is wrong.
            TrainableError: The program is not found here, may not be executed, or is a script with
                Windows line ends.
        """
        CommandLine.read(self.items).check(space)
        if self.report_regex is not None:
            ReportPattern(self.report_regex).check(metric)
        if self.report_file is not None and "{trial}" not in self.report_file:
            raise InvalidSpec(
                f"--report-file {self.report_file!r} is one file for all trials; put {{trial}}, "
                "the trial's number, into its path."
            )
        _find_program(self.items[0], workdir)

    def describe(self, space: "Space", *, workdir: Path) -> Trainable:
        """Return the trainable that the database will store, without a signature (see `sign`)."""
        source = {
            "items": list(self.items),
            "report_regex": self.report_regex,
            "report_file": self.report_file,
            "paths": list(space.leaves),
            "files": _files_in(workdir, self.items),
        }
        return Trainable(
            uuid=str(uuid.uuid4()),
            kind=TrainableKind.COMMAND,
            name=shlex.join(self.items),
            workdir=str(workdir),
            python_version=PYTHON_VERSION,
            source=json.dumps(source).encode(),
            form=TrainableForm.COMMAND,
        )


class StoredCommand(Struct, frozen=True):
    """
    A command as a worker reads it from a row.

    Attributes:
        paths: The paths of the study's parameters and constants, such as "model/width".
        files: The items that were relative paths of files when the command was described.
        directory: The working directory. `read` takes the first directory that has all `files`;
            `run_in` replaces it.
    """

    line: CommandLine
    pattern: ReportPattern | None
    report_file: str | None
    paths: frozenset[str]
    files: frozenset[str]
    directory: str

    @classmethod
    def read(cls, trainable: Trainable, workdirs: Sequence[str]) -> "StoredCommand":
        """
        Read a trainable that `check_trusted` has accepted.

        Args:
            workdirs: The directories in which the command may run, in order of preference.

        Raises:
            TrainableError: No directory of `workdirs` has the command's files; or the program is
                not found, may not be executed, or is a script with Windows line ends; or the row is
                wrong.
        """
        try:
            source = json.loads(trainable.source or b"")
            line = CommandLine.read(source["items"])
            directory = _directory_with(source["files"], workdirs)
            _find_program(source["items"][0], Path(directory))
            regex = source["report_regex"]
            return cls(
                line=line,
                pattern=None if regex is None else ReportPattern(regex),
                report_file=source["report_file"],
                paths=frozenset(source["paths"]),
                files=frozenset(source["files"]),
                directory=directory,
            )
        except (ValueError, TypeError, KeyError, InvalidSpec) as cause:
            raise TrainableError(
                f"The command {trainable.name!r} cannot be read: {cause}. "
                "It may come from a newer studydb; upgrade studydb on this worker."
            ) from cause

    def run_in(self, directory: Path) -> "StoredCommand":
        """Return the command for another working directory, with the full paths of its files."""
        program, *rest = self.line.items
        items = [self._full(program) if "/" in program else program, *map(self._full, rest)]
        return structs.replace(self, line=CommandLine(tuple(items)), directory=str(directory))

    def _full(self, item: str) -> str:
        if item not in self.files:
            return item
        return str(Path(self.directory, item)).replace("{", "{{").replace("}", "}}")

    def flatten(self, config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
        """Turn a nested config into values by path; a dict that is a value stays a dict."""
        values: dict[str, Any] = {}
        for key, value in config.items():
            path = f"{prefix}{key}"
            if isinstance(value, Mapping) and value and path not in self.paths:
                values |= self.flatten(value, f"{path}/")
            else:
                values[path] = value
        return values


def _find_program(program: str, workdir: Path) -> None:
    """
    Check that the program exists, may be executed and has no Windows line ends.

    A `${…}` of W&B that stands for the program is not checked.
    """
    if program.startswith("${"):
        return
    if "/" in program:
        path = workdir / program
        if not path.is_file():
            raise TrainableError(
                f"There is no program {program!r} in {workdir}. Correct the path, or work in the "
                "directory that has the program."
            )
        if not os.access(path, os.X_OK):
            raise TrainableError(
                f"{path} may not be executed. Allow it (chmod +x {shlex.quote(program)}), or name "
                "its interpreter, such as python or sh, first."
            )
        refuse_windows_line_ends(path)
    elif shutil.which(program) is None:
        here = f" Did you mean ./{program}?" if (workdir / program).is_file() else ""
        raise TrainableError(
            f"There is no program {program!r} on PATH.{here or ' Install it, or write its path.'}"
        )


def _files_in(workdir: Path, items: Sequence[str]) -> list[str]:
    """List the items that are relative paths of files in the working directory."""
    # An item, such as the text of a script, may be too long for a path; `Path.is_file` would raise.
    return [
        item
        for item in items
        if "{" not in item and not item.startswith(("/", "-")) and os.path.isfile(workdir / item)  # noqa: PTH113
    ]


def _directory_with(files: Sequence[Any], workdirs: Sequence[str]) -> str:
    for directory in workdirs:
        if all((Path(directory) / file).is_file() for file in files):
            return directory
    raise TrainableError(
        f"The command needs the files {', '.join(map(str, files))}, but no working directory has "
        f"all of them: {', '.join(workdirs)}. Start the worker with --workdir naming a directory "
        "that has them."
    )
