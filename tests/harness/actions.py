"""
Operations on a study as actions, which can be run on a database and on a model of the study.

An action keeps its token, uuid or flush number, so its second run sends a duplicate request.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any

from msgspec import structs

from harness import model_checkpoints, model_uploads
from harness.arrange import new_checkpoint, new_request, process, register_worker, results, token
from harness.asked_scheduler import sent
from harness.model import Model, run_to_end
from harness.model_clones import discard as model_discard
from harness.model_clones import retry as model_retry
from harness.model_pins import pin as model_pin
from harness.model_pins import unpin as model_unpin
from harness.model_rows import ModelAttempt
from harness.offers import Offer, capacity_of
from harness.settings_requests import set_limits, set_resources
from harness.start_actions import StartActions, row_of, url_of
from harness.study_action import StudyAction
from studydb.db import Database
from studydb.domain.checkpoint import Checkpoint, CheckpointKind
from studydb.domain.errors import StudydbError
from studydb.domain.failures import Failure
from studydb.domain.life.ending import GIVEN_BACK, TRY_LATER, Ending
from studydb.domain.life.states import Reason, Status
from studydb.domain.metrics import Result, Summary
from studydb.domain.records import Batch, Claim, Claimant, Lease, Study
from studydb.domain.resources import read_resources
from studydb.domain.tally import Tally
from studydb.operations import control
from studydb.operations.ask import ask
from studydb.operations.checkpoints import delete_rows, mark_corrupt
from studydb.operations.claim import claim
from studydb.operations.discard import discard
from studydb.operations.drain import drain, find_worker
from studydb.operations.finish import finish
from studydb.operations.invalidate import invalidate
from studydb.operations.pin import pin, unpin
from studydb.operations.promote import promote
from studydb.operations.record_event import record_event
from studydb.operations.recover import recover, recover_host
from studydb.operations.register import leave
from studydb.operations.renew import renew
from studydb.operations.report import report
from studydb.operations.retry import retry
from studydb.operations.save import save
from studydb.operations.uploads import abandoned_uploads, begin_upload, delete_upload
from studydb.store import events


@dataclass(frozen=True)
class RegisteredWorker:
    """
    A registered process: the id of its row, its uuid, its pid, and its lease in seconds.

    Attributes:
        offer: The resources that the process offers; None if it takes trials whatever they ask for.
    """

    id: int
    uuid: str
    pid: int
    lease_s: float
    offer: Offer | None = None


@dataclass
class ClaimedAttempt:
    """What a worker knows of an attempt that it has claimed, whether or not the lease is lost."""

    worker: RegisteredWorker
    claimed: Claim
    restored: Checkpoint | None
    flush_no: int = 0
    after_step: int = 0
    summary: Summary | None = None
    stored: dict[int, tuple[Result, ...]] = field(default_factory=dict)
    has_flushed: bool = False
    has_saved: bool = False
    begun: list[Checkpoint] = field(default_factory=list)

    @property
    def lease(self) -> Lease:
        return self.claimed.lease

    def batch(
        self, values: Sequence[float], *, first: int | None = None, done: bool = False
    ) -> Batch:
        """Return the next batch; the attempt counts the batch as sent."""
        rows = results(*values, first=first or self.after_step + 1, done=done)
        batch = Batch(self.flush_no + 1, rows, self.after_step, self.summary)
        self.flush_no = batch.flush_no
        if rows:
            self.has_flushed, self.after_step = True, rows[-1].step
        return batch


def outcome_of(call: Callable[[], Any]) -> Any:
    """A call's answer, or the class of the StudydbError that the call raises."""
    try:
        return call()
    except StudydbError as refusal:
        return type(refusal)


class ActionFactory(StartActions):
    """Makes the actions on one study, and keeps the attempts that workers have claimed."""

    def __init__(self, study: Study) -> None:
        super().__init__(study)
        self.attempts: list[ClaimedAttempt] = []
        self.uptime_s: Callable[[], float] = float

    # --- processes

    def register(
        self,
        pid: int,
        lease_s: float,
        into: Callable[[RegisteredWorker], None],
        offers: Mapping[str, float] | None = None,
    ) -> StudyAction:
        uuid = token()
        made: list[RegisteredWorker] = []

        def act(database: Database) -> None:
            capacity = None if offers is None else capacity_of(offers)
            worker_id = register_worker(
                database,
                self.study,
                uuid=uuid,
                of=process(pid),
                lease_s=lease_s,
                capacity=capacity,
            )
            if not made:
                offer = capacity and Offer(self.study, worker_id, capacity, self.uptime_s)
                made.append(RegisteredWorker(worker_id, uuid, pid, lease_s, offer))
            into(made[0])

        return StudyAction(
            "register",
            act,
            lambda model: model.register(uuid=uuid, pid=pid, lease_s=lease_s, offers=offers),
        )

    def leave(self, worker: RegisteredWorker) -> StudyAction:
        return StudyAction(
            "leave",
            lambda database: leave(database, worker_id=worker.id),
            lambda model: model.leave(worker.uuid),
        )

    def renew(self, worker: RegisteredWorker) -> StudyAction:
        held = [attempt.lease for attempt in self.attempts if attempt.worker is worker][-8:]
        tokens = [lease.token for lease in held]

        def act(database: Database) -> Any:
            answer = renew(database, self.study, worker_id=worker.id, held=held).held
            for lease in held:
                if worker.offer is not None and lease.token not in answer:
                    worker.offer.release(lease)
            return answer

        def expect(model: Model) -> Any:
            answer = model.renew(worker.uuid, tokens)
            for lost in set(tokens) - set(answer):
                model.resources.release(worker.uuid, lost)
            return answer

        return StudyAction("renew", act, expect)

    # --- claims

    def claim(self, worker: RegisteredWorker) -> StudyAction:
        def call(database: Database, claimant: Claimant) -> Claim | None:
            if worker.offer is None:
                return claim(database, self.study, claimant)
            return worker.offer.claim(database, claimant)

        return self._acquire("claim", call, worker)

    def ask(self, worker: RegisteredWorker) -> StudyAction:
        def call(database: Database, claimant: Claimant) -> Claim | None:
            if worker.offer is None:
                return ask(database, self.study, claimant)
            return worker.offer.ask(database, claimant)

        return self._acquire("ask", call, worker)

    def promote(self, worker: RegisteredWorker) -> StudyAction:
        claimant = Claimant(worker.id, token(), worker.lease_s)

        def act(database: Database) -> bool:
            """
            Call `promote`; tell whether this request promoted a trial.

            The answer CLAIM is no proof: `promote` also returns CLAIM if a trial can be claimed.
            """
            fits = worker.offer and worker.offer.names(database)
            promote(database, self.study, claimant, fits=fits)
            with database.begin(write=False) as txn:
                return bool(events.data_of(txn, token=claimant.token))

        return StudyAction(
            "promote", act, lambda model: model.promote(worker.uuid, token=claimant.token)
        )

    def _acquire(
        self,
        name: str,
        call: Callable[[Database, Claimant], Claim | None],
        worker: RegisteredWorker,
    ) -> StudyAction:
        once = token()
        claimant = Claimant(worker.id, once, worker.lease_s)

        def act(database: Database) -> Any:
            claimed = call(database, claimant)
            if claimed is not None and all(
                attempt.lease.token != once for attempt in self.attempts
            ):
                after = claimed.checkpoint.step if claimed.checkpoint else 0
                known = Summary() if claimed.lease.attempt == 1 else None
                self.attempts.append(
                    ClaimedAttempt(worker, claimed, claimed.checkpoint, after_step=after)
                )
                self.attempts[-1].summary = known
            return claimed and _claim_of_database(claimed)

        def expect(model: Model) -> Any:
            attempt = getattr(model, name)(worker.uuid, token=once)
            return attempt and _claim_of_model(model, attempt)

        return StudyAction(name, act, expect, token=once)

    # --- attempts

    def report(
        self,
        attempt: ClaimedAttempt,
        values: Sequence[float],
        *,
        first: int | None = None,
        done: bool = False,
    ) -> StudyAction:
        batch = attempt.batch(values, first=first, done=done)

        def act(database: Database) -> Any:
            before = attempt.summary
            call = partial(report, database, self.study, lease=attempt.lease)
            answer = sent(self.study, lambda whole: call(batch=whole), batch)
            attempt.summary = answer.summary
            if before is not None and answer.summary is not None:
                n_stored = answer.summary.n_results - before.n_results
                attempt.stored.setdefault(batch.flush_no, batch.results[:n_stored])
            return answer.verdict, answer.next_decision_step

        return StudyAction(
            "report", act, lambda model: model.report(attempt.lease.token, **_sent(batch))
        )

    def finish(
        self,
        attempt: ClaimedAttempt,
        values: Sequence[float],
        outcome: Reason,
        failure: Failure | None = None,
        *,
        done: bool = False,
    ) -> StudyAction:
        batch = attempt.batch(values, done=done)
        given: Any = {"lease": attempt.lease, "outcome": outcome, "failure": failure}

        def act(database: Database) -> Ending | None:
            tally = Tally(self.study.objective.metric).add(
                result
                for number, stored in sorted(attempt.stored.items())
                if number < batch.flush_no
                for result in stored
            )
            given["tally"] = tally if attempt.lease.attempt == 1 else None
            call = partial(finish, database, self.study, **given)
            try:
                return sent(self.study, lambda whole: call(batch=whole), batch)
            finally:
                if attempt.worker.offer is not None:
                    attempt.worker.offer.release(attempt.lease)

        def expect(model: Model) -> Ending | None:
            token = attempt.lease.token
            try:
                return model.finish(token, outcome, **_sent(batch), failure=failure)
            finally:
                model.resources.release(attempt.worker.uuid, token)

        name = f"finish {outcome}" if failure is None else f"give_back {failure.type}"
        return StudyAction(name, act, expect)

    def give_back(
        self, attempt: ClaimedAttempt, values: Sequence[float], *, later: bool
    ) -> StudyAction:
        """End an attempt like a command that exits with 130 or 143, or with 75 if `later`."""
        kind = TRY_LATER if later else GIVEN_BACK
        return self.finish(attempt, values, Reason.PREEMPTED, Failure(kind, "exited"))

    def save(
        self, attempt: ClaimedAttempt, *, step_offset: int = 0, size_bytes: int = 3
    ) -> StudyAction:
        step = max(1, attempt.after_step + step_offset)
        new = structs.replace(new_checkpoint(attempt.lease, step=step), size_bytes=size_bytes)
        return self._saving("save", attempt, new, b"abc", model_checkpoints.save)

    def _saving(
        self,
        name: str,
        attempt: ClaimedAttempt,
        new: Checkpoint,
        data: bytes | None,
        of_model: Callable[..., list[str]],
    ) -> StudyAction:
        attempt.has_saved = True
        keep, objective, lease = self.keep, self.study.objective, attempt.lease

        def act(database: Database) -> list[str]:
            given: Any = {"checkpoint": new, "data": data, "keep": keep, "objective": objective}
            return sorted(one.uuid for one in save(database, lease=lease, **given))

        def expect(model: Model) -> list[str]:
            row = row_of(new, lease.number, has_data=data is not None)
            return sorted(of_model(model, lease.token, new=row, keep=keep))

        return StudyAction(name, act, expect)

    def begin_upload(self, attempt: ClaimedAttempt) -> StudyAction:
        """Record that the bytes of the attempt's next checkpoint will be written."""
        begun = new_checkpoint(attempt.lease, step=max(1, attempt.after_step))
        attempt.begun.append(begun)
        return StudyAction(
            "begin_upload",
            lambda database: begin_upload(
                database, lease=attempt.lease, uuid=begun.uuid, url=url_of(begun.uuid)
            ),
            lambda model: model_uploads.begin_upload(model, attempt.lease.token, uuid=begun.uuid),
        )

    def save_upload(self, attempt: ClaimedAttempt, begun: Checkpoint) -> StudyAction:
        """Record the checkpoint of an upload that has begun."""
        stored = structs.replace(begun, url=url_of(begun.uuid))
        return self._saving("save_upload", attempt, stored, None, model_uploads.save_upload)

    def mark_corrupt(
        self, attempt: ClaimedAttempt, bad: Checkpoint, *, is_verified: bool = True
    ) -> StudyAction:
        given = {"is_verified": is_verified}

        def act(database: Database) -> str | None:
            before = mark_corrupt(database, lease=attempt.lease, checkpoint=bad, **given)
            if not attempt.has_flushed:
                attempt.restored, attempt.after_step = before, before.step if before else 0
            return before.uuid if before else None

        return StudyAction(
            "mark_corrupt",
            act,
            lambda model: model_checkpoints.mark_corrupt(
                model, attempt.lease.token, uuid=bad.uuid, **given
            ),
        )

    def record_event(self, attempt: ClaimedAttempt) -> StudyAction:
        once, kind = token(), "disk full"
        return StudyAction(
            "record_event",
            lambda database: record_event(
                database, lease=attempt.lease, kind=kind, data={}, token=once
            ),
            lambda model: model.record_event(attempt.lease.token, kind, once=once),
        )

    # --- sweeps

    def recover(self) -> StudyAction:
        return StudyAction(
            "recover",
            lambda database: recover(database, self.study),
            Model.recover,
            Model.recover_in_turns,
        )

    def recover_host(self, dead: frozenset[int]) -> StudyAction:
        def act(database: Database) -> int:
            return recover_host(
                database,
                self.study,
                process=process(),
                is_alive=lambda holder: holder.pid not in dead,
            )

        return StudyAction(
            "recover host",
            act,
            lambda model: model.recover_host(dead),
            lambda model, _, skipped_later: model.recover_host_in_turns(dead, skipped_later),
        )

    def collect(self) -> StudyAction:
        """Delete the rows of uploads that no process will finish."""

        def act(database: Database) -> list[tuple[str, bool]]:
            found = abandoned_uploads(database, self.study)
            for one in found:
                delete_upload(database, upload_id=one.id)
            return sorted((one.uuid, one.is_stored) for one in found)

        return StudyAction(
            "collect",
            act,
            lambda model: run_to_end(model_uploads.collect_in_turns(model)),
            lambda model, *_: model_uploads.collect_in_turns(model),
        )

    def delete_removed(self) -> StudyAction:
        def act(database: Database) -> None:
            with database.begin(write=False) as txn:
                _, rows = txn.raw(
                    f"SELECT id FROM checkpoint WHERE study_id = {self.study.id} "
                    "AND removed_at IS NOT NULL AND corrupt_at IS NULL"
                )
            delete_rows(database, removed=[_stub(row[0]) for row in rows])

        return StudyAction("delete_removed", act, model_checkpoints.delete_removed)

    # --- people

    def set_resources(self, asks: str, numbers: Sequence[int]) -> StudyAction:
        """Change what trials ask for; if `numbers` is empty, change what the study asks for."""
        request, asked = new_request(), read_resources("asks", asks)
        return StudyAction(
            f"set_resources{'' if numbers else '_of_study'} {asks} {numbers}",
            lambda database: set_resources(database, self.study, asked, numbers, request),
            lambda model: model.resources.set(asks, list(numbers), request),
        )

    def resume_changed(self, numbers: Sequence[int], **changes: float) -> StudyAction:
        """Resume trials with other values of parameters."""
        request = new_request()
        return StudyAction(
            f"changed {numbers}",
            lambda database: control.resume(
                database, self.study, numbers, request, changes=changes
            ),
            lambda model: model.steer("resumed", list(numbers), request, changes),
        )

    def retry(self, numbers: Sequence[int], *, from_scratch: bool) -> StudyAction:
        request = new_request()
        return StudyAction(
            f"retry {numbers}",
            lambda database: retry(
                database, self.study, numbers, request, from_scratch=from_scratch
            ),
            lambda model: model_retry(model, list(numbers), request, from_scratch=from_scratch),
        )

    def invalidate(self, numbers: Sequence[int], *, undo: bool) -> StudyAction:
        request, given = new_request(), {"reason": "wrong labels", "undo": undo}
        return StudyAction(
            f"{'reinstate' if undo else 'invalidate'} {numbers}",
            lambda database: invalidate(database, self.study, numbers, request, **given),
            lambda model: model.invalidate(list(numbers), request, **given),
        )

    def steer(self, kind: str, numbers: Sequence[int]) -> StudyAction:
        """Pause, resume or stop trials; `kind` is "paused", "resumed" or "stopped"."""
        operations = {"paused": control.pause, "resumed": control.resume, "stopped": control.stop}
        request = new_request()
        return StudyAction(
            f"{kind} {numbers}",
            lambda database: operations[kind](database, self.study, numbers, request),
            lambda model: model.steer(kind, list(numbers), request),
        )

    def set_status(self, status: Status) -> StudyAction:
        request = new_request()
        return StudyAction(
            f"study {status}",
            lambda database: control.set_status(database, self.study, status, request),
            lambda model: model.set_status(status, request),
            lambda model, skipped, _: model.set_status_in_turns(status, request, skipped),
        )

    def extend(self, *, by: int) -> StudyAction:
        request = new_request()
        return StudyAction(
            "extend",
            lambda database: control.extend(database, self.study, request, n_more=by),
            lambda model: model.extend(request, by=by),
        )

    def drain(self, worker: RegisteredWorker) -> StudyAction:
        request = new_request()
        return StudyAction(
            "drain",
            lambda database: drain(database, find_worker(database, worker.uuid), request),
            lambda model: model.drain(worker.uuid, request),
        )

    def discard(self, number: int) -> StudyAction:
        request = new_request()

        def act(database: Database) -> list[str]:
            removed = discard(database, self.study, number, request)
            return sorted(one.uuid for one in removed)

        return StudyAction("discard", act, lambda model: model_discard(model, number, request))

    def pin(self, number: int, *, remove: bool = False) -> StudyAction:
        request = new_request()
        operation, of_model = (unpin, model_unpin) if remove else (pin, model_pin)
        return StudyAction(
            "unpin" if remove else "pin",
            lambda database: operation(database, self.study, number, request),
            lambda model: of_model(model, number, request),
        )

    def set_limits(self, limits: dict[str, Any]) -> StudyAction:
        request = new_request()
        return StudyAction(
            "set_limits",
            lambda database: set_limits(database, self.study, limits, request),
            lambda model: model.set_limits(request, limits),
        )


def _stub(row_id: int) -> Checkpoint:
    return Checkpoint("", 0, 0, 0, CheckpointKind.DICT, "inline:", "", 0, id=row_id)


def _sent(batch: Batch) -> dict[str, Any]:
    return {"flush_no": batch.flush_no, "after": batch.after_step, "results": batch.results}


def _claim_of_database(claimed: Claim) -> SimpleNamespace:
    lease, restored = claimed.lease, claimed.checkpoint
    return SimpleNamespace(
        number=lease.number,
        attempt=lease.attempt,
        token=lease.token,
        lease_s=lease.lease_s,
        checkpoint=restored and restored.uuid,
        next_decision_step=claimed.next_decision_step,
        time_total_s=claimed.time_total_s,
    )


def _claim_of_model(model: Model, attempt: ModelAttempt) -> SimpleNamespace:
    known = [*model.checkpoints, *model.foreign]
    restored = attempt.restored if attempt.restored in known else None
    trial = model.trials[attempt.number]
    step = restored.step if restored else 0
    return SimpleNamespace(
        number=attempt.number,
        attempt=attempt.no,
        token=attempt.token,
        lease_s=attempt.worker.lease_s,
        checkpoint=restored and restored.uuid,
        next_decision_step=model.judge.next_decision(trial.bracket, step),
        time_total_s=trial.time_total_s or 0.0,
    )
