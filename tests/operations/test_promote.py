"""A free worker promotes the trial that ASHA chooses. A trial is promoted only once from a rung."""

import json
import math
import threading
from contextlib import closing
from pathlib import Path

import pytest
from harness.arrange import (
    Run,
    SimulatedWorker,
    change,
    new_request,
    new_study,
    recover_after_expiry,
    rows,
    states_of,
    token,
    trial_of,
)

from studydb.db import connect
from studydb.domain.life.decisions import Action, DecidedBy
from studydb.domain.life.states import Reason, State, Status
from studydb.domain.objective import Objective
from studydb.lease.acquire import Acquirer
from studydb.operations import control
from studydb.operations.claim import claim
from studydb.operations.enqueue import enqueue
from studydb.operations.promote import NextStep, ask_scheduler, promote
from studydb.operations.study_progress import read_progress
from studydb.schedulers import ASHA
from studydb.store import progress, promotions

CASES = json.loads((Path(__file__).parents[1] / "data" / "syne_tune_promotion.json").read_text())

PROMOTION = ASHA(max_t=9, reduction_factor=3, type="promotion", end_game=0)


def promotes(database, study, claimant):
    return promote(database, study, claimant) is NextStep.CLAIM


def study_of(database, num_trials=20, scheduler=PROMOTION, **options):
    return new_study(database, scheduler=scheduler, num_trials=num_trials, **options)


@pytest.fixture
def study(database):
    return study_of(database)


def waiting(database):
    """The numbers of the trials that wait at a rung."""
    found = rows(
        database,
        "SELECT number FROM trial JOIN rung_entry ON trial_id = trial.id "
        f"WHERE waiting = {'true' if database.postgresql else '1'} ORDER BY number",
    )
    return [number for (number,) in found]


# --- which trials are promoted


@pytest.mark.sampled(8)
@pytest.mark.row("E4")
@pytest.mark.parametrize("case", CASES[::16], ids=range(len(CASES[::16])))
def test_database_promotes_the_trials_that_syne_tune_promoted(database, case):
    study = study_of(
        database,
        scheduler=ASHA(**case["options"], type="promotion", end_game=0),
        objective=Objective("loss", case["mode"]),
        num_trials=None,
    )
    worker, running = SimulatedWorker(database, study), {}

    for number, *reported in case["events"]:
        if not reported:
            promotes(database, study, worker.claimant())
            running[number] = worker.acquire()
            assert running[number].lease.number == number
        else:
            milestone, value = reported
            answer = running[number].report(value, first=milestone)
            stops = milestone == study.scheduler.max_t
            assert answer.verdict.action is (Action.STOP if stops else Action.PAUSE)
            running.pop(number).finish(outcome=Reason.PREEMPTED)


def test_best_trial_that_waits_is_promoted_first_and_the_second_best_next(database, study, worker):
    worker.wait_at_the_rung(0.5, 0.2, 0.4, 0.3, 0.6, 0.7)

    promoted = []
    while promotes(database, study, worker.claimant()):
        promoted.append(worker.claim().lease.number)

    assert promoted == [1, 3]
    assert waiting(database) == [0, 2, 4, 5]
    event = rows(database, "SELECT actor, data FROM event WHERE kind = 'promoted' ORDER BY id")
    assert [actor for actor, _ in event] == ["scheduler"] * 2
    assert states_of(database, study).count(State.PAUSED) == 4


def test_promoted_trial_without_a_checkpoint_passes_its_rung_and_pauses_at_the_next(
    database, study, worker
):
    worker.wait_at_the_rung(0.2, 0.9)
    promotes(database, study, worker.claimant())
    run = worker.claim()

    again = run.report(0.9)  # step 1 once more, with a worse value
    assert again.verdict is None
    assert again.next_decision_step == 3
    run.pause(0.1, 0.1)

    assert waiting(database) == [0, 1]
    entries = "SELECT rung.step, value FROM rung_entry JOIN rung ON rung.id = rung_id WHERE "
    first = rows(database, "SELECT id FROM trial WHERE number = 0")[0][0]
    assert rows(database, f"{entries} trial_id = {first} ORDER BY 1") == [(1, 0.2), (3, 0.1)]


@pytest.mark.row("E4")
def test_each_bracket_has_its_own_rungs(database):
    study = study_of(database, scheduler=ASHA(27, 1, 3, brackets=3, type="promotion"))
    worker = SimulatedWorker(database, study)

    brackets = {}
    for _ in range(20):
        run = worker.ask()
        brackets[run.lease.number] = run.lease.bracket
        due = run.claimed.next_decision_step
        assert due == 3**run.lease.bracket
        run.pause(0.5, first=due)

    expected = [study.scheduler.bracket_of(seed=study.seed, draw=draw) for draw in range(20)]
    assert list(brackets.values()) == expected
    assert len(set(expected)) > 1
    entered = rows(
        database,
        "SELECT trial.number, rung.bracket, trial.bracket FROM rung_entry "
        "JOIN rung ON rung.id = rung_id JOIN trial ON trial.id = trial_id ORDER BY 1",
    )
    assert entered == [(number, one, one) for number, one in brackets.items()]


# --- who may promote, and when


def test_trial_with_a_verdict_to_pause_is_not_promoted_before_it_has_paused(
    database, study, worker
):
    worker.wait_at_the_rung(0.9)
    run = worker.ask()
    run.report(0.1)

    assert not promotes(database, study, worker.claimant())
    run.finish(outcome=Reason.PREEMPTED)
    assert promotes(database, study, worker.claimant())


def test_duplicate_request_promotes_no_second_trial(database, study, worker):
    worker.wait_at_the_rung(0.1, 0.2, 0.3, 0.4, 0.5, 0.6)
    claimant = worker.claimant()

    assert promotes(database, study, claimant)
    assert worker.claim().lease.number == 0
    assert promotes(database, study, claimant)

    assert states_of(database, study).count(State.PENDING) == 0
    assert promotes(database, study, worker.claimant(token()))
    assert worker.claim().lease.number == 1


def test_workers_that_promote_at_the_same_moment_promote_different_trials(storage_url, database):
    study = study_of(database, num_trials=60)
    SimulatedWorker(database, study).wait_at_the_rung(*(k / 60 for k in range(60)))
    start, promoted = threading.Barrier(8), []

    def work():
        worker = SimulatedWorker(database, study)
        start.wait()
        while len(promoted) < 20:
            promotes(database, study, worker.claimant())
            if (run := worker.claim()) is not None:
                promoted.append(run.lease.number)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(promoted) == list(range(20))
    assert waiting(database) == list(range(20, 60))
    assert read_progress(database, study).counts.running == 20


def test_paused_study_promotes_nothing_until_it_is_resumed(database, study, worker):
    worker.wait_at_the_rung(0.1, 0.9)
    control.set_status(database, study, Status.PAUSED, new_request())

    assert not promotes(database, study, worker.claimant())
    control.set_status(database, study, Status.RUNNING, new_request())
    assert states_of(database, study) == [State.PAUSED, State.PAUSED]
    assert promotes(database, study, worker.claimant())


def test_scheduler_that_does_not_promote_reads_no_rungs(database):
    study = study_of(database, scheduler=ASHA(9, 1, 3))
    seen = []
    database.observer = seen.append

    assert not promotes(database, study, SimulatedWorker(database, study).claimant())
    assert not any("rung" in sql for sql in seen)


def test_nothing_is_promoted_while_max_concurrent_trials_run_or_a_trial_is_pending(database):
    study = study_of(database, max_concurrent=1)
    worker = SimulatedWorker(database, study)
    worker.wait_at_the_rung(0.1, 0.2, 0.3, 0.4, 0.5, 0.6)
    run = worker.ask()

    assert not promotes(database, study, worker.claimant())
    run.finish(0.9, outcome=Reason.PREEMPTED)
    assert promotes(database, study, worker.claimant())
    assert promote(database, study, worker.claimant()) is NextStep.CLAIM  # trial 0 is still PENDING

    assert states_of(database, study).count(State.PENDING) == 1


def test_late_promotion_does_nothing_if_the_trial_has_left_the_rung(database, study, worker):
    worker.wait_at_the_rung(0.1, 0.9)
    with database.begin(write=False) as txn:
        late = ask_scheduler(txn, study).work
    promotes(database, study, worker.claimant())
    worker.claim().pause(0.1, first=3)

    with database.begin() as txn:
        assert not promotions.promote(txn, study_id=study.id, chosen=late)

    assert states_of(database, study) == [State.PAUSED, State.PAUSED]
    assert waiting(database) == [0, 1]


def test_entry_of_another_studys_trial_is_not_promoted(database):
    study, other = study_of(database), study_of(database)
    SimulatedWorker(database, other).wait_at_the_rung(0.9)
    worker = SimulatedWorker(database, study)
    worker.wait_at_the_rung(0.5, 0.6)
    rung = f"(SELECT id FROM rung WHERE study_id = {study.id} AND step = 1)"
    change(database, f"UPDATE rung_entry SET rung_id = {rung}, score = 0.1 WHERE trial_id = 1")

    assert promotes(database, study, worker.claimant())

    assert states_of(database, other) == [State.PAUSED]
    assert worker.claim().lease.number == 0


def test_trial_with_an_infinite_value_is_not_promoted(database, study, worker):
    worker.wait_at_the_rung(math.inf, math.inf, math.inf)

    assert not promotes(database, study, worker.claimant())


# --- what people, failures and losses do to a trial that waits


def test_trial_paused_by_a_person_is_promoted_only_after_the_person_resumes_it(
    database, study, worker
):
    worker.wait_at_the_rung(0.1, 0.9)
    control.pause(database, study, [0], new_request())

    assert not promotes(database, study, worker.claimant())
    control.resume(database, study, [0], new_request())

    assert states_of(database, study) == [State.PAUSED, State.PAUSED]
    assert promotes(database, study, worker.claimant())
    assert worker.claim().lease.number == 0


def test_resuming_a_trial_that_no_person_has_paused_runs_it_without_a_promotion(database, study):
    SimulatedWorker(database, study).wait_at_the_rung(0.1, 0.9)

    control.resume(database, study, [1], new_request())

    assert states_of(database, study) == [State.PAUSED, State.PENDING]
    assert waiting(database) == [0]


@pytest.mark.row("A13")
def test_stopped_trial_no_longer_waits_and_the_next_best_trial_is_promoted(database, study, worker):
    worker.wait_at_the_rung(0.1, 0.2, 0.8, 0.9, 0.95, 0.99)
    control.stop(database, study, [0], new_request())

    assert promotes(database, study, worker.claimant())

    assert worker.claim().lease.number == 1
    assert waiting(database) == [2, 3, 4, 5]


def test_trial_waits_at_the_rung_if_its_attempt_is_lost_after_a_verdict_to_pause(
    database, clock, study, worker
):
    worker.wait_at_the_rung(0.9)
    run = worker.ask()
    run.report(0.1)

    recover_after_expiry(clock, database, study)

    row = trial_of(database, study, 1)
    assert (row.state, row.paused_by) == (State.PAUSED, DecidedBy.SCHEDULER)
    assert promotes(database, study, SimulatedWorker(database, study).claimant())


@pytest.mark.parametrize(
    ("outcome", "reason"),
    [(Reason.PREEMPTED, Reason.CANCELLED), (Reason.COMPLETED, Reason.COMPLETED)],
)
def test_trial_that_ends_instead_of_pausing_waits_at_no_rung(database, study, outcome, reason):
    run = SimulatedWorker(database, study).ask()
    run.report(0.1)
    control.stop(database, study, [0], new_request())

    run.finish(outcome=outcome)

    assert trial_of(database, study, 0).reason is reason
    assert waiting(database) == []


def test_promoted_trial_that_fails_is_retried_without_another_promotion(database):
    study = study_of(database, max_failures=1)
    worker = SimulatedWorker(database, study)
    worker.wait_at_the_rung(0.1, 0.9)
    promotes(database, study, worker.claimant())

    worker.claim().finish(outcome=Reason.FAILED)

    change(database, "UPDATE trial SET ready = (1 = 1) WHERE number = 0")
    assert worker.claim().lease.number == 0
    assert waiting(database) == [1]


# --- progress, and the order of claims, promotions and asks


def test_study_is_finished_only_when_no_trial_is_to_be_promoted(database):
    study = study_of(database, num_trials=3)
    worker = SimulatedWorker(database, study)
    worker.wait_at_the_rung(0.1, 0.5, 0.9)

    assert read_progress(database, study).status is Status.RUNNING
    assert read_progress(database, study).can_claim
    assert promotes(database, study, worker.claimant())
    worker.claim().pause(0.1, first=3)

    assert read_progress(database, study).status is Status.FINISHED
    assert not read_progress(database, study).can_claim


def test_study_is_not_finished_if_a_trial_is_promoted_while_the_progress_is_read(
    database, storage_url, monkeypatch
):
    study = study_of(database, num_trials=2)
    worker = SimulatedWorker(database, study)
    worker.wait_at_the_rung(0.1, 0.9)
    read = progress.read

    def read_then_promote(txn, **given):
        found = read(txn, **given)
        monkeypatch.setattr(progress, "read", read)
        with closing(connect(storage_url)) as other:
            assert promotes(other, study, worker.claimant())
        return found

    monkeypatch.setattr(progress, "read", read_then_promote)

    assert read_progress(database, study).status is Status.RUNNING
    assert progress.read is read


def test_study_that_ends_with_trials_waiting_at_rungs_has_not_failed(database):
    study = study_of(database, num_trials=3, max_failures=0)
    worker = SimulatedWorker(database, study)
    worker.wait_at_the_rung(0.1, 0.2)
    promotes(database, study, worker.claimant())
    worker.claim().pause(0.1, first=3)
    worker.ask().finish(outcome=Reason.FAILED)

    progress = read_progress(database, study)

    assert progress.status is Status.FINISHED
    assert not progress.has_failed


def test_own_loop_goes_on_while_another_process_runs_a_trial(database):
    study = study_of(database, num_trials=2)
    worker = SimulatedWorker(database, study)
    worker.wait_at_the_rung(0.5)
    worker.ask()

    progress = read_progress(database, study)

    assert not progress.is_exhausted(n_held=0)
    assert progress.is_exhausted(n_held=1)


def test_worker_promotes_again_if_another_worker_claims_the_promoted_trial(database, monkeypatch):
    study = study_of(database, num_trials=6)
    worker, rival = SimulatedWorker(database, study), SimulatedWorker(database, study)
    worker.wait_at_the_rung(0.1, 0.2, 0.3, 0.4, 0.5, 0.6)
    acquirer = Acquirer(database, study, worker_id=worker.id, lease_s=60.0)
    promoting = acquirer._promote

    def promote_then_lose(*, again):
        monkeypatch.setattr(acquirer, "_promote", promoting)
        assert promoting(again=again)
        assert rival.claim().lease.number == 0
        return True

    monkeypatch.setattr(acquirer, "_promote", promote_then_lose)

    assert acquirer.acquire() is None
    assert acquirer.acquire().lease.number == 1


def test_acquirer_claims_an_enqueued_trial_before_the_next_promotion(database):
    study = study_of(database, num_trials=9)
    worker = SimulatedWorker(database, study)
    worker.wait_at_the_rung(0.1, 0.2, 0.5, 0.7, 0.8, 0.9)
    acquirer = Acquirer(database, study, worker_id=worker.id, lease_s=60.0)
    assert acquirer.acquire().lease.number == 0
    enqueue(database, study, {}, new_request())
    enqueue(database, study, {}, new_request())

    acquired = [acquirer.acquire() for _ in range(4)]

    assert [claim.lease.number for claim in acquired] == [6, 7, 1, 8]


def test_trial_that_was_given_back_is_claimed_if_the_scheduler_has_no_work(database):
    study = study_of(database, num_trials=3)
    worker = SimulatedWorker(database, study)
    worker.wait_at_the_rung(0.1, 0.2, 0.3)
    acquirer = Acquirer(database, study, worker_id=worker.id, lease_s=60.0)
    promoted = acquirer.acquire()

    Run(worker, promoted).finish(outcome=Reason.PREEMPTED)

    assert acquirer.acquire().lease.number == promoted.lease.number == 0


def test_claim_that_is_sent_again_comes_before_a_promotion(database):
    study = study_of(database, num_trials=9)
    worker = SimulatedWorker(database, study)
    worker.wait_at_the_rung(0.1, 0.2, 0.5, 0.7, 0.8, 0.9)
    acquirer = Acquirer(database, study, worker_id=worker.id, lease_s=60.0)
    assert acquirer.acquire().lease.number == 0
    number = enqueue(database, study, {}, new_request())
    acquirer._claimant = acquirer._new_claimant()  # each search has its own token
    sent = claim(database, study, acquirer._claimant)
    acquirer.send_again()  # as if the reply to the claim had been lost

    again = acquirer.acquire()

    assert sent.lease.number == number
    assert again.lease == sent.lease
    assert trial_of(database, study, 1).state is State.PAUSED


@pytest.mark.row("A3", "A7")
def test_acquirer_claims_pending_trials_then_promotes_then_makes_new_trials(database):
    study = study_of(database, num_trials=5)
    worker = SimulatedWorker(database, study)
    worker.wait_at_the_rung(0.1, 0.5, 0.9)
    enqueue(database, study, {}, new_request())
    acquirer = Acquirer(database, study, worker_id=worker.id, lease_s=60.0)

    acquired = [acquirer.acquire() for _ in range(4)]

    assert [claim and claim.lease.number for claim in acquired] == [3, 0, 4, None]
