"""
Get proposals from a searcher's model: fit it, or wait for the process that fits it.

One process at a time fits the model of a study, under the proposer's lease. A process that asks for
a trial and finds neither a proposal nor a holder of the lease takes the lease, fits the model, and
stores the next points. Meanwhile other processes that ask for a trial look for the points every
0.05 to 0.25 s. They wait for a tenth of the mean time of a trial, but for at least 1 s and at most
60 s. Then they take a point by index, and the origin of its trial is "by index". So a single worker
gets every point from the model, as long as the model proposes new points, and hundreds of workers
never wait for long.

A proposed trial has params that no other trial has, except in the last case below. A point that
the study has is dropped, and the model is asked again with other random numbers, a few times. For
each point that is still missing, a few points by index are tried. If the study has these, too, the
next step depends on the space:

- A space with finitely many points is searched in an order that depends on the seed, and the first
  point that the study lacks is taken. If the study has every point, it makes no further trials, as
  after a grid's end.
- In a space with floats such a search might never end. The last of the tried points by index is
  taken, although the study has it. So two trials may have the same params (`is_unique` is False).
"""

import random
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from enum import Enum
from functools import partial
from math import inf
from time import monotonic
from uuid import uuid4

from studydb.db import Database
from studydb.domain.deciding import DecisionFailed, NotAsked
from studydb.domain.errors import StorageTransient, StudydbError
from studydb.domain.life.states import Origin
from studydb.domain.records import Study, renewal_s
from studydb.domain.resource_function import Answers, config_key
from studydb.domain.searching import HistorySearcher, Model
from studydb.domain.space.finite_points import finite_points
from studydb.domain.space.search_space import params_hash
from studydb.lease.trial_history import History
from studydb.operations import proposer
from studydb.operations.history import read_hashes
from studydb.operations.proposer import Assignment, Point
from studydb.operations.record_event import record_model_failure
from studydb.operations.requesting import ask_function, pause_unrequested, with_answers
from studydb.processes import is_alive

PROPOSER_LEASE_S = 8.0
"""
If the holder of the lease dies, another process fits the model after this time. A process on the
holder's host may notice the death earlier.
"""

POLL_S = (0.05, 0.25)
"""The shortest and the longest wait between two looks for a proposal, in seconds."""

LEAST_WAIT_S, LONGEST_WAIT_S = 1.0, 60.0
WAIT_PER_TRIAL_S = 0.1

TRIES = 4
"""The most calls of the model in one fit; the most points by index for each missing point."""

_SALT = 2**64
"""
Each further try adds this number to the draw, and gets other random numbers from the sum. The draws
of trials are smaller than this number.
"""

RENEWAL_RETRY_S = 0.5

FAILURE_EVENT_S = 60.0
"""A process records at most one failure of its model in this many seconds."""


class Step(Enum):
    """What a process that wants a new trial does next."""

    ASK = "ask: the next draw has a proposal"
    WAIT = "wait, and look again"
    NOTHING = "no trial can be made now"


class Proposer:
    """Gets proposals from a searcher's model, for the threads of one process."""

    def __init__(
        self, database: Database, study: Study, searcher: HistorySearcher, *, worker_id: int
    ) -> None:
        self._database, self._study, self._searcher = database, study, searcher
        self._worker_id = worker_id
        self._token = uuid4().hex
        self._history: History | None = None
        self._model: Model | None = None
        self._fitting = threading.Lock()
        self._waiting = threading.local()
        self._looked = (0, -LEAST_WAIT_S)
        self._recorded_s = -inf

    @classmethod
    def of(cls, database: Database, study: Study, *, worker_id: int) -> "Proposer | None":
        """Make the proposer of a study; None if its searcher has no model."""
        if not isinstance(study.searcher, HistorySearcher):
            return None
        return cls(database, study, study.searcher, worker_id=worker_id)

    @property
    def is_waiting(self) -> bool:
        """Whether this thread waits for a model that another thread or process fits."""
        return getattr(self._waiting, "until_s", None) is not None

    def poll_wait_s(self) -> float:
        """Return how long to sleep before the next look: at most until the wait ends."""
        left_s: float = self._waiting.until_s - monotonic()
        return max(0.0, min(random.uniform(*POLL_S), left_s))  # noqa: S311  jitter, no secret

    def reset(self) -> None:
        """End this thread's wait; call this when the thread has got a trial, or gives up."""
        self._waiting.until_s = None

    def advance(self, *, if_nothing_waits: bool, fits: Sequence[str] | None = None) -> Step:
        """
        Do what is needed for the next ask; this may take as long as a fit.

        Args:
            if_nothing_waits: If True, nothing is done while a trial can be claimed.
            fits: The resource classes whose trials the worker can start; None if every request
                fits.

        Raises:
            StorageTransient: Call again.
            InvalidSpec: The model cannot be made here, for example because a package is missing.
        """
        if self._has_just_looked():
            return Step.WAIT
        seen = proposer.look(
            self._database,
            self._study,
            token=self._token,
            if_nothing_waits=if_nothing_waits,
            fits=fits,
        )
        if seen is None:
            if not if_nothing_waits:
                self.reset()
            return Step.NOTHING
        if seen.is_proposed or (seen.is_free and self._fit_unless_busy()):
            return Step.ASK
        is_first_look = not self.is_waiting
        if is_first_look:
            self._waiting.until_s = monotonic() + self._longest_wait_s()
        is_over = monotonic() >= self._waiting.until_s
        if (is_first_look or is_over) and self._fit_if_holder_died():
            return Step.ASK
        if not is_over:
            self._looked = (threading.get_ident(), monotonic())
            return Step.WAIT
        return self._step_by_index(seen.draw)

    def _step_by_index(self, draw: int) -> Step:
        try:
            self._propose_by_index(draw)
        except (DecisionFailed, NotAsked) as error:
            self._pause(error)
            return Step.NOTHING
        return Step.ASK

    def prepare(
        self,
        if_nothing_waits: bool,  # noqa: FBT001  `ask` passes this value by position
        *,
        fits: Sequence[str] | None = None,
    ) -> bool:
        """Do what is needed for the next ask; return whether to ask."""
        return self.advance(if_nothing_waits=if_nothing_waits, fits=fits) is Step.ASK

    def _has_just_looked(self) -> bool:
        """Whether this thread waits, and another thread has just looked and found no proposal."""
        thread, at_s = self._looked
        now_s = monotonic()
        is_recent = thread != threading.get_ident() and now_s - at_s < POLL_S[0]
        return is_recent and self.is_waiting and now_s < self._waiting.until_s

    def _longest_wait_s(self) -> float:
        mean_s = proposer.mean_trial_s(self._database, self._study)
        return min(max(WAIT_PER_TRIAL_S * mean_s, LEAST_WAIT_S), LONGEST_WAIT_S)

    def _fit_if_holder_died(self) -> bool:
        is_dead = proposer.release_lease_of_dead(self._database, self._study, is_alive=is_alive)
        return is_dead and self._fit_unless_busy()

    def _fit_unless_busy(self) -> bool:
        """Fit the model, unless another thread, which shares this process's token, fits it."""
        if not self._fitting.acquire(blocking=False):
            return False
        try:
            return self._fit()
        finally:
            self._fitting.release()

    def _fit(self) -> bool:
        """
        Take the lease, ask the model, and store its points.

        Returns:
            False if the lease cannot be taken (see `store.proposer.take`), another process took it
            before the points were stored, or the first point's request for resources was not
            decided or cannot be stored.
        """
        if self._model is None:
            with self._recording_failure():
                self._observe()  # before the lease: imports and the first read can take seconds
        assigned = proposer.take_lease(
            self._database,
            self._study,
            token=self._token,
            worker_id=self._worker_id,
            lease_s=PROPOSER_LEASE_S,
        )
        if assigned is None:
            return False
        try:
            is_stored = self._choose_and_store(assigned)
        except StorageTransient:
            raise  # the next call sends the same token, and has the lease at once
        except (DecisionFailed, NotAsked) as error:
            proposer.release_lease(self._database, self._study, token=self._token)
            self._pause(error)
            is_stored = False
        except BaseException:
            with suppress(StudydbError):
                proposer.release_lease(self._database, self._study, token=self._token)
            raise
        self._token = uuid4().hex
        return is_stored

    def _choose_and_store(self, assigned: Assignment) -> bool:
        answers = Answers()
        with self._renewing():
            points = self._choose(assigned)
            n_asked = self._ask_about(points, answers)
        if points:
            return proposer.store_block(
                self._database, self._study, points[:n_asked], token=self._token, answers=answers
            )
        proposer.release_lease(self._database, self._study, token=self._token, no_point_left=True)
        return True

    def _ask_about(self, points: Sequence[Point], answers: Answers) -> int:
        """
        Ask the study's resource function, if there is one, what a trial with each point needs.

        Returns:
            The number of points before the first point that the function has not decided on.

        Raises:
            DecisionFailed, NotAsked: The function has not decided for the first point.
        """
        study = self._study
        for n_asked, point in enumerate(points if study.asks_by_config else ()):
            config = study.space.config(point.params)
            try:
                answers[config_key(config)] = ask_function(study, config)
            except (DecisionFailed, NotAsked):
                if n_asked == 0:
                    raise
                return n_asked
        return len(points)

    def _pause(self, error: DecisionFailed | NotAsked) -> None:
        if isinstance(error, DecisionFailed):
            pause_unrequested(self._database, self._study, error)

    @contextmanager
    def _renewing(self) -> Iterator[None]:
        """Renew the lease in a thread for the duration of the block."""
        ended = threading.Event()
        thread = threading.Thread(
            target=self._renew, args=(self._token, ended), name="studydb-proposer", daemon=True
        )
        thread.start()
        try:
            yield
        finally:
            ended.set()

    def _renew(self, token: str, ended: threading.Event) -> None:
        is_mine, wait_s = True, renewal_s(PROPOSER_LEASE_S)
        while is_mine and not ended.wait(wait_s):
            wait_s = renewal_s(PROPOSER_LEASE_S)
            try:
                is_mine = proposer.renew_lease(
                    self._database, self._study, token=token, lease_s=PROPOSER_LEASE_S
                )
            except StorageTransient:
                wait_s = RENEWAL_RETRY_S
            except Exception:  # noqa: BLE001  the lease expires; then the points are not stored
                return

    def _choose(self, assigned: Assignment) -> list[Point]:
        """Choose points: the model's and, if these are too few, points from `_new_points`."""
        points: list[Point] = []
        with self._recording_failure():
            points = self._points_of_model(assigned)
        if len(points) == assigned.n_points:
            return points
        taken = read_hashes(self._database, self._study) | {
            params_hash(point.params) for point in points
        }
        for draw in range(assigned.draw + len(points), assigned.draw + assigned.n_points):
            point = next(self._new_points(draw, taken), None)
            if point is None:
                break
            taken.add(params_hash(point.params))
            points.append(point)
        return points

    @contextmanager
    def _recording_failure(self) -> Iterator[None]:
        """Record an error of the model instead of raising it, and make a new model next time."""
        try:
            yield
        except StudydbError:
            raise
        except Exception as error:  # noqa: BLE001  the model is other people's code
            self._model = self._history = None
            if monotonic() - self._recorded_s < FAILURE_EVENT_S:
                return
            self._recorded_s = monotonic()
            record_model_failure(
                self._database,
                self._study,
                worker_id=self._worker_id,
                error=f"{type(error).__name__}: {error}",
                token=uuid4().hex,
            )

    def _points_of_model(self, assigned: Assignment) -> list[Point]:
        model, taken = self._observe()
        points: list[Point] = []
        for attempt in range(TRIES):
            draw = assigned.draw + attempt * _SALT
            for params in model.propose(assigned.n_points - len(points), draw=draw):
                if (key := params_hash(params)) not in taken:
                    taken.add(key)
                    points.append(Point(params, self._searcher.origin))
            if len(points) == assigned.n_points:
                break
        return points

    def _observe(self) -> tuple[Model, set[str]]:
        """Tell the model what has changed; return the model, and the hashes of trials' params."""
        changed = None if self._history is None else self._history.changes()
        if self._history is None or self._model is None or changed is None:
            self._history = History(self._database, self._study)
            self._model = self._searcher.model(
                self._study.space, seed=self._study.seed, objectives=[self._study.objective]
            )
            changed = self._history.changes()
        self._model.tell(changed or [])
        return self._model, set(self._history.hashes)

    def _new_points(self, draw: int, taken: set[str]) -> Iterator[Point]:
        """Yield points to try that do not come from the model; see this module's docstring."""
        last = None
        for point in self._points_by_index(draw):
            last = point
            if params_hash(point.params) not in taken:
                yield point
        space = finite_points(self._study.space)
        if space is None:
            assert last is not None
            yield last._replace(is_unique=False)
            return
        for params in space.in_order_of(self._study.seed):
            if params_hash(params) not in taken:
                yield Point(params, Origin.BY_INDEX)

    def _points_by_index(self, draw: int) -> Iterator[Point]:
        for attempt in range(TRIES):
            params = self._searcher.propose(
                self._study.space, seed=self._study.seed, draw=draw + attempt * _SALT
            )
            yield Point(params, Origin.BY_INDEX)

    def _propose_by_index(self, draw: int) -> None:
        """Store one point that does not come from the model; end the draws if none is left."""
        next(self._points_by_index(draw))  # imports numpy, before the study's row is locked
        if self._store_by_index(self._points_by_index, draw):
            return
        taken = read_hashes(self._database, self._study)
        if next(self._new_points(draw, taken), None) is None:
            proposer.end_draws(self._database, self._study)
            return
        self._store_by_index(lambda at: self._new_points(at, taken), draw)

    def _store_by_index(self, points_at: Callable[[int], Iterable[Point]], draw: int) -> bool:
        store = partial(proposer.store_by_index, self._database, self._study, points_at, draw=draw)
        return with_answers(self._study, lambda answers: store(answers=answers))
