"""Makes docs/sql: the SQL of hot operations and of two commands, with PostgreSQL's plans."""

import io
import re
import textwrap
from collections.abc import Iterator, Mapping
from contextlib import redirect_stdout
from datetime import UTC, datetime
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any

import grimp
import sqlalchemy as sa

from harness import duplicate_requests, postgres
from harness.arrange import SimulatedWorker, new_study, process
from harness.duplicate_requests import Arranged, Call
from harness.filled_study import filled_study, generic_plan
from harness.sent_statements import Sender, Sent, path_of, recorded
from harness.sql_layout import WIDTH, layout
from studydb.cli import console
from studydb.db import Database, Prepared
from studydb.db.metadata import METADATA
from studydb.db.schema import trial
from studydb.operations.recover import recover, recover_host
from studydb.operations.renew import is_requested
from studydb.operations.study_progress import read_progress, read_signs

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "sql"

_long_ago = sa.bindparam("long_ago", type_=trial.c.suspect_at.type)
_LOSE = Prepared(
    sa.update(trial)
    .where(trial.c.id == sa.bindparam("lost"))
    .values(lease_expires_at=_long_ago, suspect_at=_long_ago)
)


def _looking(database: Database) -> Call:
    study = new_study(database)
    return lambda over: (read_signs(over, study), read_progress(over, study))


def _looking_for_requests(database: Database) -> Call:
    run = SimulatedWorker(database, new_study(database)).take()
    return lambda over: is_requested(over, held=[run.lease], worker_id=run.worker.id)


def _sweeping(database: Database) -> Call:
    """A sweep that finds a lost trial, whatever the clock shows."""
    study = new_study(database)
    run = SimulatedWorker(database, study).take()
    with database.begin() as txn:
        txn.run(_LOSE, lost=run.lease.trial_id, long_ago=datetime(2000, 1, 1, tzinfo=UTC))
    return lambda over: recover(over, study)


def _recovering(database: Database) -> Call:
    study = new_study(database)
    SimulatedWorker(database, study).take().report(0.5)
    return lambda over: recover_host(over, study, process=process(), is_alive=lambda _: False)


def _command(*words: str) -> Arranged:
    """A studydb command on a study that has one result."""

    def arrange(database: Database) -> Call:
        study = new_study(database)
        SimulatedWorker(database, study).take().finish(0.5)
        storage = database.secret_url.set(drivername=database.secret_url.get_backend_name())
        url = storage.render_as_string(hide_password=False)
        command, *options = words
        return lambda _: _run(command, study.name, *options, "--storage", url)

    return arrange


def _run(*words: str) -> None:
    with redirect_stdout(io.StringIO()):
        assert console.run(words) == 0


SENT_AGAIN = (
    *("claim", "claim_from_a_checkpoint", "claim_with_max_concurrent", "claim_what_fits"),
    "promote",
    *("ask", "ask_for_the_first_trial"),
    *("report", "report_at_a_rung", "finish_at_rungs", "renew", "save"),
)
"""Operations that are printed under the names that duplicate_requests.py gives them."""

OPERATIONS: Mapping[str, Arranged] = {
    **{name: duplicate_requests.OPERATIONS[name] for name in SENT_AGAIN},
    "finish": duplicate_requests.OPERATIONS["finish_in_a_single_statement"],
    "look": _looking,
    "look_for_requests": _looking_for_requests,
    "sweep": _sweeping,
    "recover": _recovering,
    "command_status": _command("status"),
    "command_trials_by_best": _command("trials", "--sort", "best", "--limit", "5"),
}


def files(postgresql: Database, sqlite: Database) -> dict[str, str]:
    """Return the text of each file by its path in docs/sql; both databases must be without rows."""
    _settle(postgresql)
    made = {}
    for name, arrange in OPERATIONS.items():
        for database in (postgresql, sqlite):
            call = arrange(database)
            with recorded() as sent:
                call(database)
            folder = "postgresql" if database is postgresql else "sqlite"
            made[f"{folder}/{name}.sql"] = _page(database, sent)
    return made


def without_plans(text: str) -> str:
    """A file's text without the plans, which differ between versions of PostgreSQL."""
    return re.sub(r"^-- Plan:\n(--   .*\n)+\n?", "", text, flags=re.MULTILINE)


def _settle(database: Database) -> None:
    """Fill the tables; switch autovacuum off, because a run of it would change the plans."""
    filled_study(database)
    with database.begin() as txn:
        for table in METADATA.sorted_tables:
            txn.run_text(f"ALTER TABLE {table.name} SET (autovacuum_enabled = off)")


def _page(database: Database, sent: list[Sent]) -> str:
    operations = {one.operation for one in sent}
    before = Sent("")
    parts = []
    for one, _ in groupby(sent):
        if one.operation != before.operation:
            callers = _callers(one.operation) if len(operations) == 1 else ""
            parts.append(_comment(f"{one.operation}: {one.operation.summary}{callers}"))
        parts.append("\n".join(_part(database, one, before)))
        before = one
    return "\n\n".join(parts) + "\n"


def _callers(operation: Sender) -> str:
    importers = sorted(_imports().find_modules_that_directly_import(operation.module))
    return f" Imported by {', '.join(path_of(module) for module in importers)}."


@cache
def _imports() -> grimp.ImportGraph:
    return grimp.build_graph("studydb", cache_dir=None)


def _part(database: Database, one: Sent, before: Sent) -> Iterator[str]:
    if one.sql in ("BEGIN", "COMMIT", "ROLLBACK"):
        yield f"{one.sql};"
        return
    yield _comment(
        str(one.store) if one.store == before.store else f"{one.store}: {one.store.summary}"
    )
    yield layout(_spelt(one))
    if database.postgresql:
        yield "-- Plan:"
        yield from (f"--   {line}" for line in _plan(database, one.sql))


def _comment(text: str) -> str:
    return textwrap.fill(text, WIDTH, initial_indent="-- ", subsequent_indent="--   ")


def _plan(database: Database, sql: str) -> list[str]:
    url = database.secret_url.render_as_string(hide_password=False)
    with postgres.connect(url) as connection, connection.transaction():
        cursor = connection.cursor()
        cursor.execute("SET LOCAL enable_seqscan = off")
        return generic_plan(cursor, sql, ["COSTS OFF"])


_CAST = r"::(?:TIMESTAMP WITH TIME ZONE|DOUBLE PRECISION|\w+)(?:\[\])?"
_BIND = re.compile(rf"%\((\w+)\)s(?:{_CAST})?")
_CONSTANT = re.compile(rf"(NULL|true|false|\b\d+|'[^']*'){_CAST}")
_SQLITE_BIND = re.compile(r"(?<![\w:'%]):(\w+)")


def _spelt(one: Sent) -> str:
    """Spell constants as values, other binds as `:name`; drop casts of both, and unused aliases."""
    constants = dict(one.constants)

    def spelt(found: re.Match[str]) -> str:
        name = found[1]
        return _literal(constants[name]) if name in constants else f":{name}"

    sql = _SQLITE_BIND.sub(spelt, _BIND.sub(spelt, one.sql).replace("%%", "%"))
    sql = _CONSTANT.sub(r"\1", sql)
    return re.sub(r" AS (anon_\d+)", lambda name: name[0] if f"{name[1]}." in sql else "", sql)


def _literal(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "NULL", True: "true", False: "false"}[value]
    return f"'{value}'" if isinstance(value, str) else str(value)


def differing(made: Mapping[str, str], *, plans: bool = True) -> list[str]:
    """Paths of files that are missing or out of date, or whose operation no longer exists."""
    found = {str(path.relative_to(FOLDER)): path.read_text() for path in FOLDER.glob("*/*.sql")}
    read = str if plans else without_plans
    paths = sorted(made.keys() | found.keys())
    return [path for path in paths if read(made.get(path, "")) != read(found.get(path, ""))]


def write(made: Mapping[str, str]) -> None:
    for path in differing(made):
        file = FOLDER / path
        if path in made:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(made[path])
        else:
            file.unlink()
