"""The plans of the hot statements on many trials: each goes through the index made for it."""

import re
from datetime import UTC, datetime
from types import SimpleNamespace

import pytest
from harness.arrange import LEASE_S, SimulatedWorker, enqueued, new_study, process, token

from studydb.domain.life.states import Mode
from studydb.domain.metrics import Result, Summary
from studydb.domain.quantile import Cut
from studydb.domain.records import Batch, Lease
from studydb.domain.space.search_space import Space
from studydb.schedulers import ASHA
from studydb.searchers import RandomSearch
from studydb.store import at_once, attempts, leases, proposals, results, rungs, sweeps, trials

NOW = datetime(2026, 1, 1, tzinfo=UTC)

MANY = 5000
ENTRIES = 3000

TRIAL = """
    INSERT INTO trial (uuid, study_id, number, state, reason, params, params_hash, space_version,
        origin, draw, counted, priority, ready, resource_class, bracket, attempt, failures, losses,
        flush_no, checkpoint_step, n_results, best_value, best_score, rank_score, created_at, ended_at)
    SELECT '{kind}0000-0000-4000-8000-' || substr(CAST(1000000000000 + n AS text), 2), {study}, n + {first}, '{state}', {reason}, '{{}}', 'h', 1,
        'searcher', n + {first}, {true}, 0, {ready}, '', 0, 1, 0, 0,
        0, 0, 1, n, n, n, {now}, {ended}
    FROM {numbers}
"""
ENDED = {"state": "TERMINATED", "reason": "'COMPLETED'", "ended": "{now}"}
ENDED |= {"ready": "{false}", "first": "1000", "kind": "eded"}
WAITING = {
    "state": "PENDING",
    "reason": "NULL",
    "ended": "NULL",
    "ready": "{true}",
    "first": "90000",
    "kind": "aaaa",
}
ENTRY = """
    INSERT INTO rung_entry (rung_id, trial_id, attempt, step, value, score, ranked, ordinal, action,
        recorded_at)
    SELECT (SELECT min(id) FROM rung WHERE study_id = {study}), n + 100000, 1, 1, n, n, {true}, n,
        'CONTINUE', {now}
    FROM {numbers}
"""
ATTEMPT = """
    INSERT INTO attempt (trial_id, attempt, study_id, token, config, start_step, live_through,
        flush_no, started_at)
    SELECT id, 1, {study}, 't' || id, '{{}}', 1, 9, 0, {now} FROM trial WHERE study_id = {study}
"""
RESULT = """
    INSERT INTO result (study_id, trial_id, attempt, step, value, reported_at)
    SELECT {study}, n, 1, 1, n, {now} FROM {numbers}
"""
POSTGRESQL = {
    "true": "true",
    "false": "false",
    "now": "now()",
    "numbers": "generate_series(1, {most}) n",
}
SQLITE = {
    "true": "1",
    "false": "0",
    "now": "'2026-01-01 00:00:00.000'",
    "numbers": "(WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c LIMIT {most}) SELECT n FROM c)",
}


def fill(database, study, statement, most, **more):
    spelling = POSTGRESQL if database.postgresql else SQLITE
    given = {
        "study": study.id,
        "numbers": spelling["numbers"].format(most=most),
        **{name: word.format(**spelling) for name, word in more.items()},
    }
    with database.begin() as txn:
        txn.raw(statement.format(**spelling | given))


@pytest.fixture
def study(database):
    """Thousands of trials that have ended, as many that wait, and three of each other kind."""
    study = new_study(database, scheduler=ASHA(max_t=9, reduction_factor=3), num_trials=None)
    fill(database, study, TRIAL, MANY, **ENDED)
    fill(database, study, TRIAL, MANY, **WAITING)
    fill(database, study, ATTEMPT, MANY)
    fill(database, study, ENTRY, ENTRIES)
    fill(database, study, RESULT, MANY)
    worker = SimulatedWorker(database, study)
    for _ in range(3):
        worker.ask()
    for _ in range(3):
        enqueued(database, study)
    with database.begin() as txn:
        txn.raw("ANALYZE")
    return study


KEY = r"pkey|INTEGER PRIMARY KEY|USING PRIMARY KEY|autoindex|_key"

TRIAL_KEY = r"trial_pkey|SEARCH trial USING INTEGER PRIMARY KEY"
"""Not the study's, of which a fence reads the status."""

FROM_END_TO_END = r"(Seq Scan on|SCAN) (trial|attempt|result|rung_entry)\b(?! USING)"

SORT = r"Sort Key|TEMP B-TREE"

SORTED = ("claim", "claim at once", "look", "neighbours", "list", "fence")
"""They take the first rows of an index; a sort would read all of them."""

LEASE = Lease(1, 1, 0, 0, 1, "token", LEASE_S)
CUT = Cut(n=ENTRIES, rank=ENTRIES // 2, entry=(ENTRIES / 2, 100_000 + ENTRIES // 2))

OF_EACH_TRIAL = (
    "claim",
    "claim at once",
    "draw",
    "ask at once",
    "fence",
    "report at once",
    "finish at once",
    "renew",
    "ghost",
)
"""What runs before the server has statistics; sweeps are seldom, and planned anew once it has."""

BATCH = Batch(1, (Result(1, 0.5, {}),), 0, Summary())


def claim_at_once(txn):
    study = SimpleNamespace(id=1, space=Space.read({}))
    at_once.claim(txn, study=study, worker_id=1, token=token(), lease_s=LEASE_S, beyond=leases.HEAD)


def ask_at_once(txn):
    if txn.postgresql:
        study = SimpleNamespace(
            id=1, space=Space.read({}), space_version=1, searcher=RandomSearch()
        )
        proposals.ask(
            txn, study=study, worker_id=1, token=token(), lease_s=LEASE_S, if_nothing_waits=True
        )
    else:
        proposals.take(txn, study_id=1, if_nothing_waits=True)


def report_at_once(txn):
    at_once.report(txn, lease=LEASE, batch=BATCH, summary=Summary())


def finish_at_once(txn):
    at_once.finish(txn, lease=LEASE, batch=BATCH, summary=Summary(), metric_summary=None, log=None)


HOT = {
    "claim": (
        lambda txn: leases.claim(txn, study_id=1, worker_id=1, token=token(), lease_s=LEASE_S),
        "trial_claim",
    ),
    "look": (lambda txn: leases.any_runnable(txn, study_id=1), "trial_claim"),
    "suspect": (lambda txn: sweeps.suspect(txn, study_id=1), "trial_running"),
    "lost": (lambda txn: sweeps.lost(txn, study_id=1), "trial_running"),
    "of host": (lambda txn: sweeps.of_host(txn, study_id=1, process=process()), "trial_running"),
    "wake": (lambda txn: sweeps.wake(txn, study_id=1), "trial_backoff"),
    "unpause": (lambda txn: sweeps.unpause(txn, study_id=1), "trial_paused"),
    "neighbours": (
        lambda txn: rungs.neighbours(txn, rung=rungs.Rung(1, 1, 0.5, ENTRIES, CUT), trial_id=5),
        "rung_entry_rank",
    ),
    "best": (lambda txn: trials.best(txn, study_id=1, mode=Mode.MIN, most=3), "trial_rank"),
    "fence": (lambda txn: leases.hold(txn, lease=LEASE), TRIAL_KEY),
    "claim at once": (claim_at_once, "trial_claim"),
    "report at once": (report_at_once, TRIAL_KEY),
    "finish at once": (finish_at_once, TRIAL_KEY),
    "draw": (lambda txn: proposals.take(txn, study_id=1, if_nothing_waits=True), "trial_claim"),
    "ask at once": (ask_at_once, "trial_claim"),
    "renew": (lambda txn: leases.renew(txn, leases=[LEASE]), TRIAL_KEY),
    "page": (lambda txn: results.page(txn, results.Span(1, 7, 1, 0, 9), most=5), KEY),
    "last": (lambda txn: results.last(txn, [results.Span(1, 7, 1, 0, 9)]), KEY),
    "list": (lambda txn: trials.listing(txn, study_id=1, limit=10, offset=0), KEY),
    "ghost": (lambda txn: attempts.by_token(txn, token=token()), KEY),
    "how far attempts came": (lambda txn: attempts.reached(txn, lease=LEASE, most=3), KEY),
}


def plans(database, call):
    """What the database would do for each statement of a call, as text."""
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
    return "\n".join(explained)


def explain_sqlite(cursor, sql, bound):
    return "\n".join(row[-1] for row in cursor.execute(f"EXPLAIN QUERY PLAN {sql}", bound))


def explain_postgresql(cursor, sql, bound):
    """The plan for these values, and the one that a prepared statement comes to after a while."""
    names = list(dict.fromkeys(re.findall(r"%\((\w+)\)s", sql)))
    numbered = re.sub(r"%\((\w+)\)s", lambda name: f"${names.index(name[1]) + 1}", sql).replace(
        "%%", "%"
    )
    nothing = f"({', '.join(['NULL'] * len(names))})" if names else ""
    lines = cursor.execute(f"EXPLAIN {sql}", bound).fetchall()
    cursor.execute("SET LOCAL plan_cache_mode = force_generic_plan")
    cursor.execute(f"PREPARE generic AS {numbered}")
    lines += cursor.execute(f"EXPLAIN EXECUTE generic{nothing}").fetchall()
    cursor.execute("DEALLOCATE generic")
    return "\n".join(row[0] for row in lines)


def is_good(name, plan):
    index = HOT[name][1]
    bad = [FROM_END_TO_END, *([SORT] if name in SORTED else [])]
    return re.search(index, plan) is not None and not any(re.search(one, plan) for one in bad)


def test_every_hot_statement_goes_through_its_index(database, study):
    found = {name: plans(database, call) for name, (call, _) in HOT.items()}

    assert {name: plan for name, plan in found.items() if not is_good(name, plan)} == {}


@pytest.mark.parametrize("name", OF_EACH_TRIAL)
def test_plan_that_was_made_for_empty_tables_is_that_for_large_ones(database, name):
    new_study(database)

    plan = plans(database, HOT[name][0])

    assert is_good(name, plan), plan
