"""The plan of each frequent statement uses an index, however large the tables are."""

import re
from datetime import UTC, datetime
from functools import partial
from types import SimpleNamespace

import pytest
from harness.arrange import LEASE_S, LOSS, new_study, process, token
from harness.filled_study import ENTRIES, explain_postgresql, explain_sqlite, filled_study

from studydb.db import Txn
from studydb.domain.life.states import Mode, Origin, State
from studydb.domain.metrics import Result, Summary
from studydb.domain.quantile import Cut
from studydb.domain.records import QUEUE_START, Batch, Claimant, Lease, Proposal
from studydb.domain.scheduling import TrialCanBeClaimed
from studydb.store import (
    attempts,
    checkpoint_listing,
    checkpoints,
    claims,
    clones,
    closings,
    history,
    leases,
    means,
    notes,
    overview,
    pins,
    progress,
    promotions,
    proposals,
    proposer,
    quotas,
    ranking,
    resource_classes,
    results,
    rung_listing,
    rungs,
    set_aside,
    single_statement,
    spending,
    sweeps,
    trials,
    uploads,
    view_rows,
)

NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def study(database):
    return filled_study(database)


KEY = r"pkey|INTEGER PRIMARY KEY|USING PRIMARY KEY|autoindex|_key"

TRIAL_KEY = r"trial_pkey|SEARCH trial USING INTEGER PRIMARY KEY"
"""
This pattern matches only the key of `trial`. A fence also reads `study` by its key, but a read of
`study` must not make the test pass.
"""

PROPOSAL_KEY = r"proposal_pkey|SEARCH proposal USING (COVERING )?INDEX sqlite_autoindex_proposal"

TRIAL_NUMBER = r"trial_study_id_number_key|trial USING INDEX sqlite_autoindex_trial_2 \(study_id=\?"
"""The index of trials by study and number."""

FULL_SCAN = r"(Seq Scan on|SCAN) (trial|tag|attempt|result|rung_entry|proposal|other)\b(?! USING)"

SORT = r"Sort Key|TEMP B-TREE"

WITHOUT_SORT = (
    "claim",
    "claim with max_concurrent",
    "look",
    "signs",
    "progress",
    "due",
    "neighbours",
    "list",
    "some names",
    "newest ends",
    "fence",
    "promotion",
    "best of a rung",
    "later trials",
    "signs of the next draw",
    "mean time of trials",
)
"""Statements that read the first rows of an index; a sort would read all rows."""

LEASE = Lease(1, 1, 0, 0, 1, "token", LEASE_S)
CUT = Cut(n=ENTRIES, rank=ENTRIES // 2, entry=(ENTRIES / 2, 100_000 + ENTRIES // 2))

RUNG = rungs.Rung(1, 0.5, ENTRIES, CUT)

OF_EACH_TRIAL = (
    "claim",
    "claim with max_concurrent",
    "ask",
    "store a proposal",
    "skip a duplicate",
    "fence",
    "report in a single statement",
    "finish in a single statement",
    "renew",
    "requests",
    "signs",
    "earlier send",
)
"""
Statements of `HOT` that one connection runs often. The connection may plan such a statement while
the tables are empty and keep this plan, so the plan must suit large tables, too.
"""

BATCH = Batch(1, (Result(1, 0.5, {}),), 0, Summary())


STUDY = SimpleNamespace(id=1, max_concurrent=None)


def claim(txn):
    single_statement.claim(txn, Claimant(1, token()), study=STUDY, after_position=QUEUE_START)


def claim_with_max_concurrent(txn):
    study = SimpleNamespace(id=1, max_concurrent=9)
    single_statement.claim(txn, Claimant(1, token()), study=study, after_position=QUEUE_START)


def ask(txn):
    proposals.ask(txn, Claimant(1, token()), study_id=1, if_nothing_waits=True)


def store_proposal(txn):
    one = Proposal({}, {}, Origin.SEARCHER, bracket=0, space_version=1)
    proposals.store(txn, study_id=1, proposed={10**6: one})


REPORTED = {"lease": LEASE, "batch": BATCH, "summary": Summary()}


def finish_in_single_statement(txn):
    single_statement.finish(txn, **REPORTED, metric_summary=None, verdict=None, process=None)


def best_listed(txn):
    view_rows.best_trials(txn, study_id=1, limit=3)


HOT = {
    "claim": (claim, "trial_claim"),
    "claim with max_concurrent": (claim_with_max_concurrent, "trial_claim"),
    "clones of a trial": (
        lambda txn: clones.of_trial(txn, study_id=1, trial_id=1),
        "trial_parent",
    ),
    "invalidated trials": (lambda txn: history.invalid(txn, study_id=1), "trial_invalidated"),
    "notes on a trial": (
        lambda txn: notes.newest(txn, study_id=1, trial_id=1, limit=9),
        "note_trial",
    ),
    "abandoned uploads": (
        lambda txn: uploads.abandoned(txn, study_id=1),
        "ix_upload_study_id",
    ),
    "pins of a trial": (lambda txn: pins.release(txn, trial_ids=[1]), "pin_trial"),
    "pins of people": (lambda txn: pins.of_people(txn, trial_id=1), "ix_checkpoint_trial_id"),
    "pins to remove": (
        lambda txn: pins.remove(txn, checkpoint_ids=[1, 2]),
        "ix_pin_checkpoint_id",
    ),
    "checkpoints that may go": (
        lambda txn: quotas.oldest(txn, study_id=1, after_id=5),
        "checkpoint_kept",
    ),
    "removed checkpoints": (
        lambda txn: checkpoints.removed(txn, trial_ids=[1, 2]),
        "ix_checkpoint_trial_id",
    ),
    "trials without config": (
        lambda txn: claims.without_config(txn, study_id=1, resource_class="gpus=1", limit=9),
        "trial_claim",
    ),
    "signs": (
        lambda txn: progress.signs(txn, study_id=1, worker_id=1),
        "(?s)(?=.*trial_running)(?=.*trial_backoff).*trial_claim",
    ),
    "progress": (
        lambda txn: progress.read(txn, study_id=1),
        "(?s)(?=.*trial_paused_by_study)(?=.*trial_backoff).*trial_claim",
    ),
    "limits": (lambda txn: spending.read(txn, study_id=1), KEY),
    "look": (lambda txn: claims.any_runnable(txn, study_id=1), "trial_claim"),
    "due": (
        lambda txn: sweeps.any_due(txn, study_id=1),
        "(?s)(?=.*trial_running)(?=.*trial_paused_by_study).*trial_backoff",
    ),
    "awaited": (lambda txn: sweeps.any_awaited(txn, study_id=1, worker_id=1), "trial_running"),
    "reason of a pin": (lambda txn: pins.reason_of(txn, trial_id=1), "pin_trial"),
    "requests": (lambda txn: leases.requests(txn, leases=[LEASE], worker_id=1), TRIAL_KEY),
    "discard": (lambda txn: checkpoints.discard(txn, trial_id=1), "ix_checkpoint_trial_id"),
    "checkpoints of a trial": (
        lambda txn: checkpoint_listing.of_trial(txn, trial_id=1),
        "ix_checkpoint_trial_id",
    ),
    "checkpoints of a study": (
        lambda txn: checkpoint_listing.list_checkpoints(txn, trial_ids=[1, 2]),
        "ix_checkpoint_trial_id",
    ),
    "sizes of checkpoints": (
        lambda txn: checkpoint_listing.sizes(txn, trial_ids=[1, 2]),
        "ix_checkpoint_trial_id",
    ),
    "suspect": (lambda txn: sweeps.suspect(txn, study_id=1), "trial_running"),
    "lost": (lambda txn: sweeps.lost(txn, study_id=1), "trial_running"),
    "of host": (lambda txn: sweeps.of_host(txn, study_id=1, process=process()), "trial_running"),
    "wake": (lambda txn: sweeps.wake(txn, study_id=1), "trial_backoff"),
    "unpause": (lambda txn: sweeps.unpause(txn, study_id=1), "trial_paused"),
    "neighbours": (
        lambda txn: rungs.query_neighbours(txn, rung=RUNG, trial_id=5)(),
        "rung_entry_rank",
    ),
    "queues of requests": (
        lambda txn: resource_classes.queues(txn, study_id=1, after_position=QUEUE_START, depth=4),
        "(?s)(?=.*resource_class_(pkey|1)|.*autoindex_resource_class).*trial_claim",
    ),
    "look for what fits": (
        lambda txn: claims.any_runnable(txn, study_id=1, fits=["", "gpus=1"]),
        "trial_claim",
    ),
    "signs of what fits": (
        lambda txn: progress.signs(txn, study_id=1, worker_id=1, fits=["", "gpus=1"]),
        "(?s)(?=.*trial_running)(?=.*trial_backoff).*trial_claim",
    ),
    "progress of what fits": (
        lambda txn: progress.read(txn, study_id=1, fits=["", "gpus=1"]),
        "(?s)(?=.*trial_paused_by_study)(?=.*trial_backoff).*trial_claim",
    ),
    "signs of the next draw": (
        lambda txn: progress.signs(txn, study_id=1, worker_id=1, fits=["", "g"], with_next=True),
        "(?s)(?=.*trial_running)(?=.*trial_backoff).*trial_claim",
    ),
    "progress of the next draw": (
        lambda txn: progress.read(txn, study_id=1, fits=["", "gpus=1"], count_to=1000),
        "(?s)(?=.*trial_paused_by_study)(?=.*trial_backoff).*trial_claim",
    ),
    "take a draw for others": (
        lambda txn: set_aside.take_draw(txn, study_id=1, draw=1, most=1000),
        f"(?s)(?=.*({PROPOSAL_KEY})).*trial_claim",
    ),
    "full class": (
        lambda txn: set_aside.full_class(txn, study_id=1, most=1000),
        f"(?s)(?=.*({PROPOSAL_KEY})).*trial_claim",
    ),
    "promotion of what fits": (
        lambda txn: promotions.Queues(txn, study_id=1, fits=["", "gpus=1"]),
        "rung_entry_waiting",
    ),
    "underway elsewhere": (
        lambda txn: txn.all(
            promotions._UNDERWAY_ELSEWHERE, study=1, elsewhere=["", "gpus=1"], most=1001
        ),
        "(?s)(?=.*rung_entry_waiting).*trial_claim",
    ),
    "devices of an attempt": (
        lambda txn: attempts.set_devices(txn, lease=LEASE, names=["a"]),
        "token",
    ),
    "promotion": (lambda txn: promotions.Queues(txn, study_id=1), "rung_entry_waiting"),
    "underway": (
        lambda txn: promotions.underway(txn, study_id=1),
        "(?s)(?=.*trial_running)(?=.*trial_paused_by_study).*trial_backoff",
    ),
    "cut": (lambda txn: closings.close(txn, rung=RUNG, keep=9), "rung_entry_waiting"),
    "given up": (
        lambda txn: closings.lock_given_up(txn, study_id=1, rungs=[1, 2]),
        "rung_entry_waiting",
    ),
    "waits no more": (lambda txn: closings.leave(txn, trial=closings.GivenUp(5, 1, 1)), KEY),
    "rungs over": (lambda txn: closings.end_rungs(txn, rungs=[1, 2]), "rung_entry_waiting"),
    "listed rungs": (
        lambda txn: rung_listing.list_rungs(
            txn, study_id=1, mode=Mode.MIN, limit=9, has_cutoffs=True
        ),
        "rung_entry_rank",
    ),
    "judgements": (
        lambda txn: rung_listing.judgements(txn, study_id=1, trial_id=5, mode=Mode.MIN, reasons={}),
        "rung_entry_rank",
    ),
    "last decisions": (
        lambda txn: rung_listing.last_decisions(
            txn, study_id=1, mode=Mode.MIN, limit=5, reasons={}
        ),
        TRIAL_NUMBER,
    ),
    "best of a rung": (lambda txn: rungs.best(txn, rung=RUNG, n=9), "rung_entry_rank"),
    "mean": (lambda txn: means.read(txn, lease=LEASE, first=1), KEY),
    "best": (lambda txn: ranking.best(txn, study_id=1, limit=3), "trial_rank"),
    "trials --sort best": (best_listed, "trial_rank"),
    "fence": (lambda txn: leases.hold(txn, lease=LEASE), TRIAL_KEY),
    "report in a single statement": (
        lambda txn: single_statement.report(txn, **REPORTED),
        TRIAL_KEY,
    ),
    "finish in a single statement": (finish_in_single_statement, TRIAL_KEY),
    "ask": (ask, PROPOSAL_KEY),
    "next draw": (
        lambda txn: proposals.next_of(txn, study_id=1, if_nothing_waits=True),
        PROPOSAL_KEY,
    ),
    "store a proposal": (store_proposal, PROPOSAL_KEY),
    "look for a proposal": (
        lambda txn: proposer.look(txn, study_id=1, token="t", if_nothing_waits=True),
        PROPOSAL_KEY,
    ),
    "take the proposer's lease": (
        lambda txn: proposer.take(txn, study_id=1, token="t", worker_id=1, lease_s=8.0),
        PROPOSAL_KEY,
    ),
    "first draw without a proposal": (lambda txn: proposer.outlook(txn, study_id=1), PROPOSAL_KEY),
    "known params": (
        lambda txn: proposer.known_hashes(txn, study_id=1, from_draw=5, hashes=["h", "i"]),
        rf"(?s)(?=.*({PROPOSAL_KEY})).*trial_params",
    ),
    "unfinished trials": (
        lambda txn: history.listed(txn, study_id=1, objective=LOSS, numbers=[5, 900]),
        TRIAL_NUMBER,
    ),
    "later trials": (
        lambda txn: history.later(txn, study_id=1, objective=LOSS, after_number=5, limit=9),
        TRIAL_NUMBER,
    ),
    "mean time of trials": (
        lambda txn: history.mean_time_s(txn, study_id=1, n_trials=64),
        TRIAL_NUMBER,
    ),
    "skip a duplicate": (
        lambda txn: proposals.skip_duplicate(txn, study_id=1),
        rf"(?s)(?=.*({PROPOSAL_KEY})).*(trial_unique_params|trial_params)",
    ),
    "trial by name": (lambda txn: trials.named(txn, study_id=1, name="x"), "trial_name"),
    "some names": (lambda txn: trials.some_names(txn, study_id=1, limit=9), "trial_name"),
    "trials --tag": (
        lambda txn: view_rows.trials(txn, study_id=1, tag="y", limit=9),
        "tag_key",
    ),
    "trials --sort best --tag": (
        lambda txn: ranking.numbers(txn, study_id=1, tag="y", limit=9),
        "tag_key",
    ),
    "renew": (lambda txn: leases.renew(txn, leases=[LEASE]), TRIAL_KEY),
    "page": (lambda txn: results.page(txn, results.Span(1, 7, 1, 0, 9), limit=5), KEY),
    "newest ends": (lambda txn: overview.recent_ends(txn, study_id=1, n_trials=5000), KEY),
    "newest values without a rank": (lambda txn: ranking.unranked(txn, study_id=1), KEY),
    "given back": (
        lambda txn: overview.given_back(txn, study_id=1, numbers=[5, 900]),
        TRIAL_NUMBER,
    ),
    "last": (lambda txn: results.last(txn, [results.Span(1, 7, 1, 0, 9)]), KEY),
    "list": (lambda txn: trials.listing(txn, study_id=1, limit=10), KEY),
    "earlier send": (lambda txn: attempts.by_token(txn, token=token()), KEY),
    "how far attempts came": (lambda txn: attempts.reached(txn, lease=LEASE, limit=3), KEY),
}


def plans(database, call):
    """Return the database's plan of each statement of a call, as text."""
    explained = []
    with database.begin() as txn:
        execute = txn._execute

        def execute_explained(compiled, params, *cursor):
            bound = compiled.bind({"now": NOW} | params)
            spell = explain_postgresql if txn.postgresql else explain_sqlite
            explained.append(spell(txn._cursor.connection.cursor(), compiled.sql, bound))
            return execute(compiled, params, *cursor)

        txn._execute = execute_explained
        call(txn)
        txn.abandon()
    assert explained
    return explained


def is_good(name, statements):
    plan, index = "\n".join(statements), HOT[name][1]
    bad = [FULL_SCAN, *([SORT] if name in WITHOUT_SORT else [])]
    return re.search(index, plan) is not None and not any(re.search(one, plan) for one in bad)


@pytest.mark.slow
@pytest.mark.row("A4")
def test_every_frequent_statement_uses_its_index(database, study):
    found = {name: plans(database, call) for name, (call, _) in HOT.items()}

    assert {name: plan for name, plan in found.items() if not is_good(name, plan)} == {}


def test_enqueued_trials_are_not_read_to_tell_a_scheduler_which_trials_are_underway(
    database, study, monkeypatch
):
    n_read = 0

    def counted(txn, *given, **binds):
        nonlocal n_read
        found = read(txn, *given, **binds)
        n_read += len(found)
        return found

    with database.begin(write=False) as txn:
        view = promotions.Queues(txn, study_id=study.id)
        read = Txn.all
        monkeypatch.setattr(Txn, "all", counted)

        with pytest.raises(TrialCanBeClaimed):
            view.underway(0)
        running = promotions.underway(txn, study_id=study.id)

    assert running.steps == {0: [0, 0, 0]}
    assert n_read == 1 + 3


@pytest.mark.parametrize("read", [promotions.Queues, closings.lock_closed])
def test_entries_that_wait_are_read_by_the_index_of_waiting_entries_and_not_by_the_primary_key(
    database, study, read
):
    true = "true" if database.postgresql else "1"
    with database.begin() as txn:
        # These rows make a plan by the primary key cheap: all entries wait, and the
        # primary key is the only index whose order is that of the rows in the table.
        txn.raw(f"UPDATE rung_entry SET waiting = {true}, score = (ordinal * 7919) % 3001")
        txn.raw("ANALYZE")

    (plan,) = plans(database, partial(read, study_id=study.id))

    of_entries = r"rung_entry_pkey|sqlite_autoindex_rung_entry|trial_pkey on trial\b.*\n.*Merge"
    assert "rung_entry_waiting" in plan
    assert not re.search(of_entries, plan), plan


def test_limits_are_read_from_the_row_of_the_study_alone(database, study):
    (plan,) = plans(database, partial(spending.read, study_id=study.id, lock=True))

    assert re.search(KEY, plan)
    assert "worker" not in plan


@pytest.mark.parametrize("name", OF_EACH_TRIAL)
def test_plan_made_for_empty_tables_uses_the_index_that_large_tables_need(database, name):
    new_study(database)

    plan = plans(database, HOT[name][0])

    assert is_good(name, plan), plan


def test_last_trial_that_a_closing_rung_keeps_is_found_without_a_sort(database, study):
    last_kept, *_ = plans(database, HOT["cut"][0])

    assert "rung_entry_waiting" in last_kept
    assert re.search(TRIAL_KEY, last_kept)
    assert not re.search(SORT, last_kept), last_kept


@pytest.mark.parametrize("state", [None, State.TERMINATED])
def test_best_trials_are_read_in_the_order_of_their_index_without_a_sort(database, study, state):
    call = partial(ranking.numbers, study_id=study.id, state=state, limit=3)

    plan, *_ = plans(database, call)

    assert "trial_rank" in plan
    assert not re.search(SORT, plan), plan
