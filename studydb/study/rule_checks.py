"""Check and sign the custom stop rules that a study is created with."""

import dataclasses
import tempfile
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from uuid import uuid4

from studydb.child.job import TrainableImport
from studydb.domain.deciding import DecisionFailed
from studydb.domain.errors import TrainableError
from studydb.domain.life.custom_rule import CustomRule
from studydb.domain.life.rules import Rule
from studydb.domain.records import Trainable
from studydb.settings import load_keyring
from studydb.trainables import sign
from studydb.trainables.custom_rules import describe_rule
from studydb.worker.rule_code import RuleProcess


def described_rules(
    rules: Sequence[Rule], *, workdir: Path
) -> tuple[tuple[Rule, ...], tuple[Trainable, ...]]:
    """
    Make the custom rules once, in a process like the worker's, and describe their code.

    Args:
        workdir: The directory that workers search for the code after their own.

    Returns:
        The rules, with the number of results that each custom rule reads; and the unsigned code.

    Raises:
        TrainableError: A rule cannot be imported or made.
    """
    checked: list[Rule] = []
    found: list[Trainable] = []
    for rule in rules:
        if not isinstance(rule, CustomRule):
            checked.append(rule)
            continue
        code = describe_rule(rule, workdir=workdir)
        checked.append(dataclasses.replace(rule, reads=_declared_reads(rule, code)))
        found.append(code)
    return tuple(checked), tuple(found)


def _declared_reads(rule: CustomRule, code: Trainable) -> int:
    to_import = TrainableImport(str(uuid4()), code, True, (code.workdir,))
    with (
        tempfile.TemporaryDirectory(prefix="studydb-", ignore_cleanup_errors=True) as folder,
        closing(RuleProcess([to_import], Path(folder))) as process,
    ):
        try:
            (reads,) = process.decider.reads()
        except DecisionFailed as error:
            why = str(error).rstrip(".")
            raise TrainableError(
                f"The stop rule {rule} cannot be used: {why}. Correct it, and create the study."
            ) from None
    return reads


def signed_rules(code: Sequence[Trainable], study_uuid: str) -> tuple[Trainable, ...]:
    """Sign the code of rules for a study with the user's key."""
    keyring = load_keyring()
    return tuple(sign(each, study_uuid, keyring) for each in code)
