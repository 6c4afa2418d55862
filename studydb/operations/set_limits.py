"""Change the limits of a study."""

from collections.abc import Mapping
from typing import Any

from studydb.db import Txn
from studydb.domain.errors import NotAllowed
from studydb.domain.life.event_kinds import EventKind
from studydb.domain.limits import CostLimit, Limits
from studydb.domain.records import Request, Study
from studydb.store import events, studies


def set_limits(txn: Txn, study: Study, limits: Mapping[str, Any], request: Request) -> None:
    """
    Change limits that the study has; running trials obey them from their next flush or renewal on.

    Args:
        limits: Values by name, which `read_settings` has checked.

    Raises:
        NotAllowed: A limit is given that the study was created without; or a limit is given as
            None, which would remove it; or the cost limit is given in another metric. The
            transaction must be rolled back.
    """
    kind = EventKind.LIMITS_SET
    events.append_request(txn, study_id=study.id, kind=kind, request=request, data=dict(limits))
    settings = studies.locked_settings(txn, study_id=study.id)
    present = Limits.of(settings)
    for name, value in limits.items():
        _check(study, name, getattr(present, name), value)
    studies.store_settings(txn, study_id=study.id, settings={**settings, **limits})


def _check(study: Study, name: str, old: Any, new: Any) -> None:
    if old is None:
        raise NotAllowed(
            f"Study {study.name!r} was created without {name}, so its workers neither count nor "
            f"check it. Create a study with {name}."
        )
    if new is None:
        raise NotAllowed(f"The limit {name} of study {study.name!r} can be changed, not removed.")
    if isinstance(old, CostLimit) and old.metric != new.metric:
        raise NotAllowed(
            f"The cost of study {study.name!r} is counted in {old.metric!r}, not in "
            f"{new.metric!r}; write cost_limit={old.metric}<={new.most!r}."
        )
