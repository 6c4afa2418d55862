"""Create a study, or continue the study of the same name."""

import dataclasses
import os
import secrets
import shlex
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Unpack
from uuid import uuid4

from studydb.analysis.definition import differences, space_lines
from studydb.db import Database
from studydb.domain.arguments import flag
from studydb.domain.custom_scheduler import CustomScheduler
from studydb.domain.errors import (
    InvalidName,
    InvalidSpec,
    StorageDenied,
    StorageReadOnly,
    StudyDiffers,
    StudyExists,
    UnknownStudy,
    UsageError,
)
from studydb.domain.life.ending import LOSSES_AT_STEP, MAX_LOSSES
from studydb.domain.life.rules import StopRules, read_rules
from studydb.domain.limits import LIMITS
from studydb.domain.metrics import DONE, STEP
from studydb.domain.objective import Objective
from studydb.domain.records import NewStudy, Request
from studydb.domain.records import Study as Record
from studydb.domain.scheduling import Scheduler
from studydb.domain.searching import Searcher
from studydb.domain.space.search_space import Space
from studydb.domain.study_spec import DEFAULTS, MoreOptions, StudySpec, read_settings
from studydb.domain.text.names import check_new_study_name
from studydb.domain.text.other_tools import suggesting_keywords
from studydb.domain.trainable import Trainable, TrainableKind
from studydb.domain.user_warnings import warn_user
from studydb.lease.study_folders import make_study_folder
from studydb.operations.change_settings import Changes, change_settings
from studydb.operations.create import create, load, name_taken
from studydb.schedulers import FIFO
from studydb.searchers import RandomSearch
from studydb.settings import load_keyring
from studydb.study import checking
from studydb.study.code import Code, described, remove_objects, signed
from studydb.study.handle import Study
from studydb.study.request_checks import default_resources, described_function
from studydb.study.rule_checks import described_rules, described_scheduler, signed_rules
from studydb.study.storage import (
    closed_on_error,
    open_database,
    read_patiently,
    whoami,
    write_patiently,
)
from studydb.trainables import WithParameters, signed_payload

_STORED_NOTHING = (StudyExists, StorageDenied, StorageReadOnly, UsageError)
"""Errors of `create` after which the new study is not stored; after others, it may be stored."""


@suggesting_keywords
def create_study(
    name: str,
    trainable: Code | None,
    *,
    metric: str,
    mode: str,
    space: Mapping[str, Any] | None = None,
    num_trials: int | None = None,
    max_concurrent: int | None = None,
    scheduler: Scheduler | CustomScheduler | str | None = None,
    searcher: Searcher | None = None,
    stop: StopRules | None = None,
    max_failures: int = 0,
    max_losses: int | None = None,
    checkpoints: str | os.PathLike[str] | None = None,
    guard: bool = True,
    storage: str | None = None,
    load_if_exists: bool = False,
    workdir: str | Path | None = None,
    **more: Unpack[MoreOptions],
) -> Study:
    """
    Create a study; an SQLite database is made when missing.

    Args:
        trainable: A function, class, "module:name" or command; None if you run trials by `ask`.
        metric: The metric that trials are compared by; nested names are joined by "/".
        space: A nested dict of distributions and constants.
        num_trials: The most trials to make; None for no limit (a grid ends after its last point).
        max_concurrent: How many trials may run at a time, over all workers.
        scheduler: A scheduler such as ASHA(max_t=27); or your own `CustomScheduler`, or its path
            such as "my_rules:Heats(max_t=9)". None for `FIFO`, which stops no trial.
        stop: Rules such as ["loss>=3", "my_rules:TooSlow(limit=3)"]; {"loss": 3} means ["loss>=3"].
        max_failures: How many exceptions a trial survives; -1 for no limit.
        max_losses: How many deaths without an exception a trial survives between two checkpoints.
            With None, a trial survives 10 such deaths, but not 3 in a row at the same step.
        checkpoints: The URL or path of the store of checkpoints; None for the database's default.
        guard: Whether the study pauses itself if 5 trials fail alike before any trial has reported.
        storage: The database's URL; None for $STUDYDB_STORAGE or, without it, sqlite:///studydb.db.
        load_if_exists: Whether to continue a study of this name. Metric, mode, space and the
            trainable's name must agree. An edited trainable replaces one that your key signed. A
            StudyDiffers warning names other arguments that differ.
        workdir: A directory that workers search after their own; None for the current directory.
        more: Options for limits, failures, checkpoints and resources; see `MoreOptions`.

    Raises:
        StudyExists: The name is taken; with `load_if_exists`, by a study that does not agree.
        UsageError, TrainableError: An argument or your code is wrong; no study was created.
        CheckpointError: The store cannot keep the objects that are bound to your code.
        StorageError: The database cannot be used.
    """
    check_new_study_name(name)
    spec = StudySpec(
        objective=_objective(metric, mode),
        space=Space.read(space),
        scheduler=checking.scheduler(scheduler),
        searcher=checking.searcher(searcher),
        rules=read_rules(stop),
        checkpoints=checking.store_url(checkpoints),
        **_limits_of_losses(max_losses),
        **read_settings(
            num_trials=num_trials,
            max_concurrent=max_concurrent,
            max_failures=max_failures,
            guard=guard,
            **more,
        ),
    )
    new = _new_study(name, spec, trainable, workdir)
    return _opened(storage, new, trainable, load_if_exists=load_if_exists)


def _opened(
    storage: str | None, new: NewStudy, code: Code | None, *, load_if_exists: bool
) -> Study:
    continues = flag("load_if_exists", load_if_exists)
    database = open_database(storage, make=True)
    with closed_on_error(database):
        record = _create(database, new, code, load_if_exists=continues)
        _warn_of_differences(record, new)
        return Study(database, record)


def _limits_of_losses(asked: int | None) -> dict[str, Any]:
    """Read the limit of losses; the default also limits losses in a row at the same step."""
    if asked is None:
        return {"max_losses": MAX_LOSSES, "losses_at_step": LOSSES_AT_STEP}
    return read_settings(max_losses=asked)


def _new_study(
    name: str,
    spec: StudySpec,
    code: Code | None,
    workdir: str | Path | None,
) -> NewStudy:
    place = checking.working_directory(workdir)
    trainable = None if code is None else described(code, spec, workdir=place)
    _check_end(spec, trainable)
    rules, rule_code = described_rules(spec.rules, workdir=place)
    scheduler, scheduler_code = described_scheduler(spec.scheduler, workdir=place)
    resources = spec.resources
    if resources is None:
        resources = default_resources(code, trainable, workdir=place)
    spec = dataclasses.replace(spec, rules=rules, scheduler=scheduler, resources=resources)
    if spec.searcher is not None:
        spec.searcher.check(spec.space, [spec.objective])
    seed = None if spec.searcher is None else spec.searcher.seed
    return NewStudy(
        uuid=str(uuid4()),
        name=name,
        seed=secrets.randbelow(2**31) if seed is None else seed,
        trainable=trainable,
        created_by=whoami(),
        rule_code=rule_code,
        scheduler_code=scheduler_code,
        request_code=described_function(resources, spec.space, workdir=place),
        **{each.name: getattr(spec, each.name) for each in dataclasses.fields(spec)},
    )


def _check_end(spec: StudySpec, trainable: Trainable | None) -> None:
    """
    Refuse a study that would run one configuration without end, or would never resume a trial.

    Without a trainable, an empty space is allowed: the user's program then chooses what it runs.
    """
    space = spec.space
    is_endless = spec.num_draws is None and spec.num_trials is None and not spec.limits.end_study
    if is_endless and spec.scheduler.needs_budget:
        raise InvalidSpec(
            f"{type(spec.scheduler).__name__} lets no trial go on before num_trials trials are "
            "made or a part of a limit is spent, and the study has neither num_trials nor a limit. "
            "Give num_trials, or a limit such as max_steps or time_limit_s."
        )
    if space.parameters or not is_endless or (trainable is None and not space.constants):
        return
    what = f"only constants ({', '.join(space.constants)})" if space.constants else "nothing"
    raise InvalidSpec(
        f"The space holds {what}, and there is no budget: the same trial would be made "
        "again and again. Give num_trials, or a distribution to sample from, such as "
        "lr=loguniform(1e-4, 1)."
    )


def _create(
    database: Database, new: NewStudy, code: Code | None, *, load_if_exists: bool
) -> Record:
    found = _existing(database, new.name) if load_if_exists else None
    if found is None:
        try:
            return _created(database, new, code)
        except StudyExists:
            if not load_if_exists:
                raise
        found = read_patiently(lambda: load(database, new.name))
    _check_same_study(found, new)
    return found if code is None else _revised(database, found, new, code)


def _created(database: Database, new: NewStudy, code: Code | None) -> Record:
    """
    Store the code's bound objects, then the study.

    If an error shows that the study is not stored, the objects are removed.
    """
    if isinstance(code, WithParameters):
        _refuse_taken(database, new.name)
    store = database.locations.store_url(new.checkpoints)
    may_be_stored = False
    try:
        if code is not None:
            new = dataclasses.replace(new, trainable=_signed(new, code, new.uuid, store))
        if new.rule_code:
            new = dataclasses.replace(new, rule_code=signed_rules(new.rule_code, new.uuid))
        if new.scheduler_code is not None:
            (scheduler_code,) = signed_rules([new.scheduler_code], new.uuid)
            new = dataclasses.replace(new, scheduler_code=scheduler_code)
        if new.request_code is not None:
            (request_code,) = signed_rules([new.request_code], new.uuid)
            new = dataclasses.replace(new, request_code=request_code)
        may_be_stored = True
        return write_patiently(database, lambda: create(database, new))
    except BaseException as error:
        if not may_be_stored or isinstance(error, _STORED_NOTHING):
            remove_objects(code, study_uuid=new.uuid, store=store)
        raise


def _refuse_taken(database: Database, name: str) -> None:
    """Refuse a name that is taken, before objects are stored: storing them can take long."""
    if _existing(database, name) is not None:
        raise name_taken(name, url=database.url)


def _existing(database: Database, name: str) -> Record | None:
    try:
        return read_patiently(lambda: load(database, name))
    except UnknownStudy:
        return None


def _signed(
    new: NewStudy,
    code: Code,
    study_uuid: str,
    store: str,
    make_folder: Callable[[str], None] | None = None,
) -> Trainable:
    assert new.trainable is not None
    return signed(
        new.trainable,
        code,
        study_uuid=study_uuid,
        store=store,
        keyring=load_keyring(),
        make_folder=make_folder,
    )


def _objective(metric: Any, mode: Any) -> Objective:
    read = Objective.read(metric, mode)
    if read.metric in (STEP, DONE):
        raise InvalidName(
            f"In a report, the key {read.metric!r} is not a metric: {STEP} is the step, and {DONE} "
            "completes the trial. Report the study's metric under another name."
        )
    return read


def _warn_of_differences(found: Record, asked: NewStudy) -> None:
    if found.uuid == asked.uuid:
        return
    defaults = dataclasses.replace(
        asked, scheduler=FIFO(), searcher=RandomSearch(), rules=(), checkpoints=None, **DEFAULTS
    )
    differing = differences(found, asked, defaults)
    if not differing:
        return
    name = shlex.quote(found.name)
    cures = []
    more = (asked.num_trials or 0) - (found.num_trials or 0)
    if "num_trials" in differing and more > 0:
        cures.append(f"study.extend(num_trials={more}) or `studydb extend {name} --trials {more}`")
    if "checkpoints" in differing:
        url = shlex.quote(f"checkpoints={asked.checkpoints}")
        cures.append(f"study.set(checkpoints=…) or `studydb set {name} {url}`")
    settable = [name for name in LIMITS if getattr(found, name) is not None]
    if not (found.asks_by_config or asked.asks_by_config):
        settable.append("resources")
    changed = [name for name in (*settable, "keep") if name in differing]
    if changed:
        given = ", ".join(f"{each}=…" for each in changed)
        cures.append(f"study.set({given}) or `studydb set {name} {given.replace(', ', ' ')}`")
    if differing.keys() - {"num_trials", "checkpoints", *changed}:
        cures.append("create a study of another name for what cannot be changed")
    change = f" To change it: {'; '.join(cures)}." if cures else ""
    warn_user(
        f"Study {found.name!r} continues as it is: {', '.join(differing.values())}.{change}",
        StudyDiffers,
    )


def _check_same_study(found: Record, new: NewStudy) -> None:
    for what, old, asked in (
        ("metric", found.objective.metric, new.objective.metric),
        ("mode", found.objective.mode, new.objective.mode),
        ("space", *_differing_lines(found.space, new.space)),
    ):
        if old != asked:
            raise StudyExists(
                f"Study {found.name!r} exists with another {what}: {old}, not {asked}. Choose "
                f"another name, give the {what} of that study, or delete that study: "
                f"`studydb delete {shlex.quote(found.name)} --yes`."
            )
    before, given = (each.trainable and each.trainable.name for each in (found, new))
    if before == given:
        return
    if before is None:
        raise StudyExists(
            f"Study {found.name!r} exists without a trainable: your own program runs its trials, "
            f"through study.ask(). The trainable {given} was given. Choose another name, or give "
            "no trainable."
        )
    if new.trainable is None:
        raise StudyExists(
            f"Study {found.name!r} exists with the trainable {before}, and none was given. Choose "
            "another name, or give the trainable of that study."
        )
    raise StudyExists(
        f"Study {found.name!r} exists with another trainable: {before}, not {given}. Choose "
        "another name, or give the trainable of that study."
        f"{_how_to_replace(found, new.trainable)}"
    )


def _differing_lines(old: Space, asked: Space) -> tuple[str, str]:
    """Return the lines in which two spaces differ; all lines if one space has more lines."""
    if old == asked:
        return "", ""
    lines = [[" ".join(line.split()) for line in space_lines(space)] for space in (old, asked)]
    both = set(lines[0]) & set(lines[1]) if len(lines[0]) == len(lines[1]) else set()
    first, second = (", ".join(line for line in each if line not in both) for each in lines)
    return first or "no parameters", second or "no parameters"


def _how_to_replace(found: Record, asked: Trainable) -> str:
    command = f"studydb set {shlex.quote(found.name)}"
    ways = "study.set(trainable=…)"
    if asked.kind == TrainableKind.IMPORT:
        ways += f" or `{command} trainable={shlex.quote(asked.name)}`"
    elif asked.kind == TrainableKind.COMMAND:
        ways += f" or `{command} -- {asked.name}`"
    return f" To run the new trainable in that study: {ways}."


def _revised(database: Database, found: Record, new: NewStudy, code: Code) -> Record:
    """
    Replace code that was edited under the same name, if a key of this user signed the old code.

    The code that can differ is a pickled function or class, the objects that are bound to a
    function or class, or the options of a command. Another user's code stays, because that user's
    workers would refuse this user's signature.
    """
    old, keyring = found.trainable, load_keyring()
    if old is None or not keyring.verify(signed_payload(old, found.uuid), old.signatures):
        return found
    store = database.locations.store_url(found.checkpoints)
    asked = _signed(new, code, found.uuid, store, partial(make_study_folder, database, found))
    if (old.kind, old.source) == (asked.kind, asked.source):
        return found
    changes, request = Changes(trainable=asked), Request(uuid4().hex, whoami())
    write_patiently(database, lambda: change_settings(database, found, changes, request))
    return dataclasses.replace(found, trainable=asked)
