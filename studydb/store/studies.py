"""Studies: a study's row, its space, its budget, and its status."""

from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from msgspec import Struct

from studydb.db import Prepared, Txn
from studydb.db.dialect import is_listed, now
from studydb.db.schema import search_space, study, trainable, worker
from studydb.db.statement import Row
from studydb.domain.arguments import LARGEST
from studydb.domain.errors import UnknownStudy
from studydb.domain.life.decisions import DecidedBy
from studydb.domain.life.retention import Keep, read_keep
from studydb.domain.life.rules import Rule, custom_rules, rule_from_json
from studydb.domain.life.states import Mode, Status
from studydb.domain.objective import Objective
from studydb.domain.records import NewStudy, Study
from studydb.domain.resource_function import Requested, ResourceFunction
from studydb.domain.scheduling import Scheduler
from studydb.domain.space.search_space import Space
from studydb.domain.study_spec import DEFAULTS, read_settings
from studydb.domain.trainable import Trainable, TrainableRole
from studydb.schedulers import UserScheduler
from studydb.schedulers import read as read_scheduler
from studydb.searchers import read as read_searcher
from studydb.store import trainables
from studydb.store.trials import STATUS_FOR_RUNNING_TRIALS

OPEN = sa.and_(
    study.c.status == Status.RUNNING,
    sa.or_(study.c.num_trials.is_(None), study.c.n_counted < study.c.num_trials),
)
HAS_DRAWS = sa.or_(study.c.num_draws.is_(None), study.c.next_draw < study.c.num_draws)
HAS_ROOM = sa.or_(study.c.max_concurrent.is_(None), study.c.n_running < study.c.max_concurrent)
_SPENT = sa.or_(study.c.n_counted >= study.c.num_trials, study.c.next_draw >= study.c.num_draws)
_IN_COLUMNS = [name for name in DEFAULTS if name in study.c]
_IN_JSON = [name for name in DEFAULTS if name not in study.c]
"""Settings that no query filters by. They are keys of the JSON column `settings`."""

_HALF_DELETED = "half_deleted"
"""A key of `settings`; it is True if a deletion has removed the study's files."""

_FORMER = "former_checkpoints"
"""A key of `settings`: the stores that the study had before; see `Study`."""

_SOURCES = "source_studies"
"""A key of `settings`: the ids of the studies from whose checkpoints trials of the study began."""

THIS = study.c.id == sa.bindparam("study")

_GIVEN = (
    *("uuid", "name", "metric", "mode", "seed", "scheduler", "searcher", "rules", "num_draws"),
    *("checkpoints", "created_by", "checkpoint_bytes", "settings", *_IN_COLUMNS),
)
_INSERT = Prepared(
    sa.insert(study)
    .values({name: sa.bindparam(name) for name in _GIVEN})
    .values(status=Status.RUNNING, space_version=1, created_at=now())
    .returning(study.c.id)
)
_INSERT_SPACE = Prepared(
    sa.insert(search_space)
    .values({name: sa.bindparam(name) for name in ("study_id", "space")})
    .values(version=1, created_at=now())
)
_spec = sa.select(
    *(column for column in study.c if column is not study.c.points), search_space.c.space
).join(
    search_space,
    sa.and_(search_space.c.study_id == study.c.id, search_space.c.version == study.c.space_version),
)
_BY_NAME = Prepared(_spec.where(study.c.name == sa.bindparam("by_name")))
_BY_ID = Prepared(_spec.where(THIS))

_ADMIT = Prepared(
    sa.update(study)
    .where(THIS, sa.or_(study.c.num_trials.is_(None), study.c.n_counted < study.c.num_trials))
    .values(next_number=study.c.next_number + 1, n_counted=study.c.n_counted + 1)
    .returning((study.c.next_number - 1).label("number"))
)

_NUMBER_CLONES = Prepared(
    sa.update(study)
    .where(THIS)
    .values(next_number=study.c.next_number + sa.bindparam("by", type_=sa.BigInteger))
    .returning((study.c.next_number - sa.bindparam("by", type_=sa.BigInteger)).label("number"))
)

ENTER = (
    sa.update(study)
    .where(THIS, study.c.status == Status.RUNNING, HAS_ROOM)
    .values(n_running=study.c.n_running + 1)
    .returning(study.c.id)
)
"""
Counts one more RUNNING trial. Returns no row if `max_concurrent` trials are RUNNING already, or if
the study was paused or stopped while the statement waited for the study's row.
"""

_LEAVE = Prepared(
    sa.update(study)
    .where(THIS)
    .values(n_running=study.c.n_running - sa.bindparam("by", type_=sa.Integer))
)

HAS_BUDGET = sa.and_(OPEN, HAS_DRAWS)
IS_SPENT = sa.func.coalesce(_SPENT, sa.false())

BUDGET = (
    study.c.status,
    HAS_BUDGET.label("open"),
    HAS_ROOM.label("has_room"),
    IS_SPENT.label("spent"),
    study.c.num_trials,
    study.c.n_counted,
    study.c.num_draws,
    study.c.next_draw,
    study.c.paused_by,
    study.c.pause_reason,
)
"""The columns from which `budget_of` makes a `Budget`."""

_BUDGET = Prepared(sa.select(*BUDGET).where(THIS))

_SET_STATUS = Prepared(
    sa.update(study)
    .where(THIS)
    .values(
        status=sa.bindparam("to_status"),
        paused_by=sa.bindparam("by_whom"),
        pause_reason=None,
        stopped_at_once=sa.bindparam("now", type_=sa.Boolean),
        # A failed deletion is given up; a new deletion calls `mark_deleting` after `set_status`.
        deleting_at=None,
        # With the old values, a study that a rule has stopped would stop again at its next result.
        best_values=sa.case(
            (study.c.paused_by == DecidedBy.LIMIT, sa.null()), else_=study.c.best_values
        ),
    )
)

_PAUSE_ITSELF = Prepared(
    sa.update(study)
    .where(THIS, study.c.status == Status.RUNNING)
    .values(
        status=Status.PAUSED, paused_by=sa.bindparam("by_whom"), pause_reason=sa.bindparam("why")
    )
    .returning(study.c.id)
)

_EXTEND = Prepared(
    sa.update(study)
    .where(THIS, study.c.num_trials <= LARGEST - sa.bindparam("by", type_=sa.BigInteger))
    .values(num_trials=study.c.num_trials + sa.bindparam("by", type_=sa.BigInteger))
    .returning(study.c.num_trials)
)

_places = sa.select(study.c.checkpoints, study.c.settings).where(THIS)
_LOCKED_PLACES = Prepared(_places.with_for_update(key_share=True))
_STORES = Prepared(
    sa.select(study.c.uuid, study.c.checkpoints, study.c.settings).where(
        is_listed(study.c.id, "ids")
    )
)

_has_trainable = sa.exists().where(
    trainable.c.uuid == sa.bindparam("known_trainable"), trainable.c.study_id == study.c.id
)
_CHANGEABLE = Prepared(_places.add_columns(_has_trainable.label("has_trainable")))

_RELOCATE = Prepared(
    sa.update(study)
    .where(THIS)
    .values(checkpoints=sa.bindparam("to_store"), settings=sa.bindparam("to_settings"))
)

_LOCK_UNDELETED = Prepared(
    sa.select(study.c.id).where(THIS, study.c.deleting_at.is_(None)).with_for_update(key_share=True)
)

_STORE_SETTINGS = Prepared(
    sa.update(study).where(THIS).values(settings=sa.bindparam("to_settings"))
)

_started_at = (
    sa.select(worker.c.started_at).where(worker.c.id == sa.bindparam("worker")).scalar_subquery()
)
_START = Prepared(
    sa.update(study).where(THIS, study.c.started_at.is_(None)).values(started_at=_started_at)
)

_RENAME = Prepared(sa.update(study).where(THIS).values(name=sa.bindparam("to_name")))

_EXISTS = Prepared(sa.select(study.c.id).where(THIS))

_LOCK = Prepared(sa.select(study.c.id).where(THIS).with_for_update(key_share=True))

_LOCKED_STATUS = Prepared(
    sa.select(study.c.status, STATUS_FOR_RUNNING_TRIALS.label("for_running_trials"))
    .where(THIS)
    .with_for_update(key_share=True)
)

_NAMES = Prepared(sa.select(study.c.name).order_by(study.c.id))

UNDECIDED = (DecidedBy.RULE, DecidedBy.SCHEDULER, DecidedBy.REQUESTS)
"""
The values of `paused_by` of a study that was paused because a custom rule, a custom scheduler or a
resource function gave no answer.
"""

BY_ITSELF = (DecidedBy.GUARD, DecidedBy.FAIL_FAST, *UNDECIDED)
"""The values of `paused_by` of a study that has paused itself."""

DELETED = "The study was deleted meanwhile. `studydb studies` lists the studies that exist."
"""The message of UnknownStudy for a study that the caller has found before."""


class Budget(Struct, frozen=True):
    """
    What a study's limits allow now.

    Attributes:
        status: The stored status; FINISHED is never stored.
        allows_new: Whether the study is RUNNING and `is_spent` is false.
        has_room: Whether `max_concurrent` lets one more trial run.
        is_spent: Whether `num_trials` or the searcher's `num_draws` is reached.
        next_draw: The draw of the next trial that an ask makes.
        n_counted: How many trials count toward `num_trials`: all trials except clones.
        num_draws: How many draws there are at most: the size of a grid, or the number of points
            that a model has found; None for no limit.
        pause_reason: Why the study has paused itself; None if it has not.
        paused_by: Which of `BY_ITSELF` has paused the study; None if it has not paused itself.
        keeps_workers: Whether the study has paused itself for a reason in `UNDECIDED`, so that its
            workers wait instead of ending.
        limit_reached: The limit or stop rule that has stopped the study; None if none has.
    """

    status: Status
    allows_new: bool
    has_room: bool
    is_spent: bool
    next_draw: int
    num_trials: int | None
    n_counted: int
    num_draws: int | None
    pause_reason: str | None
    paused_by: DecidedBy | None
    keeps_workers: bool
    limit_reached: str | None

    @property
    def n_to_make(self) -> int | None:
        """How many more new trials `num_trials` and `num_draws` allow; None without these."""
        limits = ((self.num_trials, self.n_counted), (self.num_draws, self.next_draw))
        return min((max(0, most - made) for most, made in limits if most is not None), default=None)


class Changeable(Struct, frozen=True):
    """
    What an attempt reads again, because `studydb set` can change it in a running study.

    Attributes:
        checkpoints: The store of new checkpoints; None for the default store.
        former_checkpoints: See `Study`.
        source_ids: The studies from whose checkpoints trials of the study began.
        keep: Which checkpoints are kept.
        has_trainable: Whether the study still has the trainable that the reader knows.
    """

    checkpoints: str | None
    former_checkpoints: tuple[str | None, ...]
    source_ids: tuple[int, ...]
    keep: Keep
    has_trainable: bool


def insert(txn: Txn, *, new: NewStudy) -> int:
    """
    Insert a study with version 1 of its space.

    Raises:
        Duplicate: The name is taken.
    """
    settings = new.settings_json()
    row = txn.all(
        _INSERT,
        uuid=new.uuid,
        name=new.name,
        metric=new.objective.metric,
        mode=new.objective.mode,
        seed=new.seed,
        scheduler=new.scheduler.to_json(),
        searcher=None if new.searcher is None else new.searcher.to_json(),
        rules=[rule.to_json() for rule in new.rules],
        num_draws=new.num_draws,
        checkpoints=new.checkpoints,
        created_by=new.created_by,
        checkpoint_bytes=None if new.keep.quota is None else 0,
        **{name: settings[name] for name in _IN_COLUMNS},
        settings={name: settings[name] for name in _IN_JSON},
    )[0]
    txn.run(_INSERT_SPACE, study_id=row.id, space=new.space.to_json())
    return int(row.id)


def find(txn: Txn, *, name: str) -> Study | None:
    """Read a study with its specs; None if no study has that name."""
    row = txn.first(_BY_NAME, by_name=name)
    return None if row is None else _read(txn, row)


def reread(txn: Txn, *, study_id: int) -> Study:
    """Read a study by its id, because its name may change; raise UnknownStudy if it was deleted."""
    return _read(txn, existing(txn.first(_BY_ID, study=study_id)))


def _read(txn: Txn, row: Row) -> Study:
    stored = row.settings or {}
    given = {name: stored[name] for name in _IN_JSON if stored.get(name) is not None}
    rules = tuple(map(rule_from_json, row.rules))
    scheduler, settings = read_scheduler(row.scheduler), read_settings(**given)
    return Study(
        id=row.id,
        uuid=row.uuid,
        name=row.name,
        objective=Objective(row.metric, Mode(row.mode)),
        seed=row.seed,
        space=Space.from_json(row.space),
        space_version=row.space_version,
        scheduler=scheduler,
        searcher=read_searcher(row.searcher),
        rules=rules,
        rule_code=_rule_code(txn, row.id, rules),
        scheduler_code=_scheduler_code(txn, row.id, scheduler),
        request_code=_request_code(txn, row.id, settings.get("resources")),
        checkpoints=row.checkpoints,
        former_checkpoints=_former(stored),
        source_checkpoints=stores_of(txn, ids=_source_ids(stored)),
        trainable=trainables.newest(txn, study_id=row.id),
        status=Status(row.status),
        created_at=row.created_at,
        created_by=row.created_by or "",
        is_being_deleted=row.deleting_at is not None,
        is_half_deleted=stored.get(_HALF_DELETED, False),
        **{name: getattr(row, name) for name in _IN_COLUMNS},
        **settings,
    )


def _rule_code(txn: Txn, study_id: int, rules: Sequence[Rule]) -> tuple[Trainable, ...]:
    if not custom_rules(rules):
        return ()
    return trainables.with_role(txn, study_id=study_id, role=TrainableRole.RULE)


def _scheduler_code(txn: Txn, study_id: int, scheduler: Scheduler) -> Trainable | None:
    if not isinstance(scheduler, UserScheduler):
        return None
    return trainables.first(txn, study_id=study_id, role=TrainableRole.SCHEDULER)


def _request_code(txn: Txn, study_id: int, requested: Requested | None) -> Trainable | None:
    if not isinstance(requested, ResourceFunction):
        return None
    return trainables.first(txn, study_id=study_id, role=TrainableRole.RESOURCES)


def names(txn: Txn) -> list[str]:
    """Read the names of all studies, oldest first."""
    return [row.name for row in txn.all(_NAMES)]


def admit(txn: Txn, *, study_id: int) -> int | None:
    """Take a number for an enqueued trial; None if `num_trials` is reached or the study is gone."""
    row = txn.first(_ADMIT, study=study_id)
    return None if row is None else int(row.number)


def start(txn: Txn, *, study_id: int, worker_id: int) -> None:
    """Store the time at which the study's first worker started; later calls change nothing."""
    txn.run(_START, study=study_id, worker=worker_id)


def number_clones(txn: Txn, *, study_id: int, n: int) -> int:
    """Take `n` numbers for clones, which do not count for `num_trials`; return the first number."""
    return int(existing(txn.first(_NUMBER_CLONES, study=study_id, by=n)).number)


def leave(txn: Txn, *, study_id: int, n: int = 1) -> None:
    """Subtract `n` from `n_running`, which is kept only for studies with `max_concurrent`."""
    txn.run(_LEAVE, study=study_id, by=n)


def lock(txn: Txn, *, study_id: int) -> None:
    """Lock the study's row until the transaction ends."""
    txn.all(_LOCK, study=study_id)


def check_exists(txn: Txn, *, study_id: int) -> None:
    """Raise UnknownStudy if the study was deleted."""
    existing(txn.first(_EXISTS, study=study_id))


def locked_status(txn: Txn, *, study_id: int) -> Status:
    """Lock the study's row and read its status; raise UnknownStudy if the study was deleted."""
    return Status(existing(txn.first(_LOCKED_STATUS, study=study_id)).status)


def locked_status_for_running_trials(txn: Txn, *, study_id: int) -> Status:
    """Lock the study's row and read `STATUS_FOR_RUNNING_TRIALS`; raise UnknownStudy if deleted."""
    return Status(existing(txn.first(_LOCKED_STATUS, study=study_id)).for_running_trials)


def budget(txn: Txn, *, study_id: int) -> Budget:
    """Read what a study's limits allow now; raise UnknownStudy if the study was deleted."""
    return budget_of(existing(txn.first(_BUDGET, study=study_id)))


def budget_of(row: Row) -> Budget:
    """Make a `Budget` from a row of the columns `BUDGET`."""
    return Budget(
        status=Status(row.status),
        allows_new=bool(row.open),
        has_room=bool(row.has_room),
        is_spent=bool(row.spent),
        next_draw=row.next_draw,
        num_trials=row.num_trials,
        n_counted=row.n_counted,
        num_draws=row.num_draws,
        pause_reason=row.pause_reason if row.paused_by in BY_ITSELF else None,
        paused_by=DecidedBy(row.paused_by) if row.paused_by in BY_ITSELF else None,
        keeps_workers=row.paused_by in UNDECIDED,
        limit_reached=row.pause_reason if row.paused_by == DecidedBy.LIMIT else None,
    )


def set_status(txn: Txn, *, study_id: int, status: Status, now: bool = False) -> None:
    """
    Store the status that a person requests, and forget why the study was paused before.

    A failed deletion of the study is given up. If a limit or a rule had stopped the study, the best
    values that are stored for its rules are forgotten.

    Args:
        now: Whether RUNNING trials are stopped without their workers' grace.
    """
    by = DecidedBy.PERSON if status is Status.PAUSED else None
    txn.run(_SET_STATUS, study=study_id, to_status=status, by_whom=by, now=now or None)


def pause_itself(txn: Txn, *, study_id: int, by: DecidedBy, why: str) -> bool:
    """Pause a study because its trials or the user's code failed; False if it is not RUNNING."""
    return txn.count(_PAUSE_ITSELF, study=study_id, by_whom=by, why=why) == 1


def extend(txn: Txn, *, study_id: int, n_more: int) -> int | None:
    """
    Add `n_more` to `num_trials`, and return the sum.

    Returns:
        None if the study has no `num_trials`, or the sum is above `LARGEST`; then nothing changes.
    """
    row = txn.first(_EXTEND, study=study_id, by=n_more)
    return None if row is None else int(row.num_trials)


def read_changeable(txn: Txn, *, study_id: int, trainable_uuid: str) -> Changeable:
    """
    Read what a person may have changed since the study was loaded.

    Args:
        trainable_uuid: The UUID of the trainable that the reader knows. The trainable's row is
            found by this UUID, because its column `study_id` has no index.

    Raises:
        UnknownStudy: The study was deleted.
    """
    row = existing(txn.first(_CHANGEABLE, study=study_id, known_trainable=trainable_uuid))
    stored = (row.settings or {}).get("keep") or DEFAULTS["keep"]
    keep = read_keep("keep", stored)
    return Changeable(
        row.checkpoints,
        former_checkpoints=_former(row.settings),
        source_ids=_source_ids(row.settings),
        keep=keep,
        has_trainable=bool(row.has_trainable),
    )


def relocate(txn: Txn, *, study_id: int, url: str) -> None:
    """
    Change the store of new checkpoints; the current store becomes a former store.

    Raises:
        UnknownStudy: The study was deleted.
    """
    row = existing(txn.first(_LOCKED_PLACES, study=study_id))
    past = (row.checkpoints, *_former(row.settings))
    former = [
        store
        for place, store in enumerate(past)
        if store not in past[:place] or store not in past[place + 1 :]
    ]
    settings = {**(row.settings or {}), _FORMER: former}
    txn.run(_RELOCATE, study=study_id, to_store=url, to_settings=settings)


def forget_stores(txn: Txn, *, study_id: int, failing: Sequence[str]) -> None:
    """Make the database a study's store, with former stores `failing`; or raise UnknownStudy."""
    settings = {**locked_settings(txn, study_id=study_id), _FORMER: list(failing)}
    txn.run(_RELOCATE, study=study_id, to_store="inline:", to_settings=settings)


def read_stores_of(txn: Txn, *, study_id: int, other_id: int) -> None:
    """
    Let the study `study_id` also read the stores that the study `other_id` has or reads.

    A new trial of `study_id` begins from a checkpoint of `other_id`. The trial must find the bytes
    of this checkpoint and, if it is corrupt, of an older one. The studies are stored, not their
    stores, because a person may move a store later. The caller has locked both studies.
    """
    settings = locked_settings(txn, study_id=study_id)
    others = (other_id, *_source_ids(locked_settings(txn, study_id=other_id)))
    known = _source_ids(settings)
    ids = [each for each in dict.fromkeys((*known, *others)) if each != study_id]
    if len(ids) > len(known):
        store_settings(txn, study_id=study_id, settings={**settings, _SOURCES: ids})


def stores_of(txn: Txn, *, ids: Sequence[int]) -> dict[str, tuple[str | None, ...]]:
    """Read the present and former stores of studies, by UUID; None stands for the default store."""
    rows = txn.all(_STORES, ids=list(ids)) if ids else []
    return {row.uuid: (row.checkpoints, *_former(row.settings)) for row in rows}


def lock_undeleted(txn: Txn, *, study_id: int) -> bool:
    """Lock a study's row; False if the study is being deleted, or was deleted."""
    return txn.first(_LOCK_UNDELETED, study=study_id) is not None


def locked_settings(txn: Txn, *, study_id: int) -> dict[str, Any]:
    """Lock the study's row and read its settings; raise UnknownStudy if the study was deleted."""
    return existing(txn.first(_LOCKED_PLACES, study=study_id)).settings or {}


def mark_half_deleted(txn: Txn, *, study_id: int) -> bool:
    """
    Store that the deletion of a study can no longer be cancelled.

    Returns:
        False if it was cancelled: a person has resumed, paused or stopped the study after
        `mark_deleting`.
    """
    settings = locked_settings(txn, study_id=study_id)
    if lock_undeleted(txn, study_id=study_id):
        return False
    store_settings(txn, study_id=study_id, settings={**settings, _HALF_DELETED: True})
    return True


def is_half_deleted(txn: Txn, *, study_id: int) -> bool:
    """Lock a study's row; tell whether the study can only be deleted."""
    return bool(locked_settings(txn, study_id=study_id).get(_HALF_DELETED, False))


def store_settings(txn: Txn, *, study_id: int, settings: Mapping[str, Any]) -> None:
    """Replace the settings of a study whose row the caller has locked."""
    txn.run(_STORE_SETTINGS, study=study_id, to_settings=dict(settings))


def existing(row: Row | None) -> Row:
    """Return the row of a study; raise UnknownStudy if the study was deleted."""
    if row is None:
        raise UnknownStudy(DELETED)
    return row


def _former(settings: Mapping[str, Any] | None) -> tuple[str | None, ...]:
    return tuple((settings or {}).get(_FORMER, ()))


def _source_ids(settings: Mapping[str, Any] | None) -> tuple[int, ...]:
    return tuple((settings or {}).get(_SOURCES, ()))


def rename(txn: Txn, *, study_id: int, name: str) -> None:
    """
    Change the name of a study.

    Raises:
        Duplicate: The name is taken.
    """
    txn.run(_RENAME, study=study_id, to_name=name)
