"""Trainables: describe a function, class or command in a row, sign it, load it and call it."""

from studydb.trainables.bound_parameters import StoredParameter, WithParameters, with_parameters
from studydb.trainables.calling import call, check_signature, returned_metrics
from studydb.trainables.classes import (
    EXPORT_ATTRIBUTE,
    ClassRun,
    NotReset,
    Trainable,
    can_reset,
    export_of_class,
)
from studydb.trainables.command import Command
from studydb.trainables.command_run import CommandFailed, GivenBack, ProcessLost
from studydb.trainables.config_use import ignores_config
from studydb.trainables.describing import describe, describe_with_parameters
from studydb.trainables.finding import check_python, code_in_import, load
from studydb.trainables.provenance import provenance
from studydb.trainables.trust import Trust, check_trusted, sign, signed_payload

__all__ = [
    "EXPORT_ATTRIBUTE",
    "ClassRun",
    "Command",
    "CommandFailed",
    "GivenBack",
    "NotReset",
    "ProcessLost",
    "StoredParameter",
    "Trainable",
    "Trust",
    "WithParameters",
    "call",
    "can_reset",
    "check_python",
    "check_signature",
    "check_trusted",
    "code_in_import",
    "describe",
    "describe_with_parameters",
    "export_of_class",
    "ignores_config",
    "load",
    "provenance",
    "returned_metrics",
    "sign",
    "signed_payload",
    "with_parameters",
]
