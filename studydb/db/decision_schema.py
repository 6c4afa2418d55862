"""
The tables of schedulers and searchers, and the resource classes of trials.

See `studydb/db/schema.py` for the rules that hold for all tables.
"""

import sqlalchemy as sa

from studydb.db.checks import add_checks
from studydb.db.metadata import (
    METADATA,
    Id,
    one_of,
    partial_index,
    required,
    study_id_column,
    table_with_id,
)
from studydb.db.types import Json, Number, UtcDateTime
from studydb.domain.life.states import Origin

bracket = sa.Table(
    "bracket",
    METADATA,
    study_id_column(),
    required("number", sa.Integer),
    required("spec", Json),
    sa.PrimaryKeyConstraint("study_id", "number"),
)
"""Not used yet: a study's brackets, by number."""

rung = table_with_id(
    "rung",
    study_id_column(),
    required("bracket", sa.Integer),
    required("step", sa.BigInteger),
    required("quantile", sa.Double),
    required("n_entries", sa.BigInteger),
    required("n_ranked", sa.BigInteger),
    required("cut_rank", sa.BigInteger),
    sa.Column("cut_score", sa.Double),
    sa.Column("cut_trial_id", Id),
    sa.Column("n_planned", sa.BigInteger),
    required("n_ended", sa.BigInteger, server_default="0"),
    sa.Column("closed_at", UtcDateTime),
    sa.Column("closed_cutoff", sa.Double),
    sa.Column("closed_ordinal", sa.BigInteger),
    required("is_over", sa.Boolean, server_default=sa.false()),
    sa.UniqueConstraint("study_id", "bracket", "step"),
    partial_index(
        "rung_live",
        "study_id",
        "bracket",
        "step",
        where="NOT is_over",
        sqlite_where="is_over = 0",
    ),
)
"""
`n_ranked` counts the entries that have a rank: the value is not NaN, and the trial is neither
invalidated nor cloned. The quantile lies between two of these entries. `cut_score` and
`cut_trial_id` name the worse of the two; `cut_rank` is its rank, counted from the worst entry (0).
`closed_cutoff` and `closed_ordinal` are the score and the ordinal of the worst entry that was kept
when the rung closed; -Inf and -1 if none was kept. `is_over` is set if the rung is closed and no
trial waits there. `n_planned` and `n_ended` are not used: the scheduler, the draws and the trials
that run determine how many trials a rung waits for.
"""

rung_entry = sa.Table(
    "rung_entry",
    METADATA,
    required("rung_id", Id, autoincrement=False),
    required("trial_id", Id, autoincrement=False),
    required("attempt", sa.Integer),
    required("step", sa.BigInteger),
    required("value", Number),
    required("score", sa.Double),
    required("ranked", sa.Boolean),
    required("ordinal", sa.BigInteger),
    required("action", sa.Text),
    sa.Column("cutoff", sa.Double),
    required("recorded_at", UtcDateTime),
    sa.Column("waiting", sa.Boolean),
    sa.Column("promoted_at", UtcDateTime),
    sa.PrimaryKeyConstraint("rung_id", "trial_id"),
    partial_index(
        "rung_entry_rank", "rung_id", "score", "trial_id", where="ranked", sqlite_where="ranked = 1"
    ),
    partial_index(
        "rung_entry_waiting",
        "rung_id",
        "score",
        "ordinal",
        where="waiting",
        sqlite_where="waiting = 1",
    ),
)
"""
`ordinal` counts the rung's entries from 0 as they arrive. `cutoff` is the score with which the
scheduler compared `score`; NULL if there was none. `waiting` is true from the report that pauses
the trial at this rung until the trial is promoted, becomes PENDING by a person's request, or ends.
"""

running_mean = sa.Table(
    "running_mean",
    METADATA,
    required("trial_id", Id, autoincrement=False),
    required("study_id", Id, index=True),
    required("step", sa.BigInteger),
    required("n_results", sa.BigInteger),
    required("total", Number),
    sa.PrimaryKeyConstraint("trial_id"),
)
"""
`total` is the sum of a trial's live values up to `step`, and `n_results` is their number. Values
before the step `mean_from` of the study's scheduler do not count. Only trials of studies whose
scheduler compares means have rows.
"""

population = sa.Table(
    "population",
    METADATA,
    required("study_id", Id, autoincrement=False),
    required("generation", sa.Integer, autoincrement=False),
    required("trial_id", Id, autoincrement=False),
    required("score", sa.Double),
    sa.Column("checkpoint_id", Id),
    required("recorded_at", UtcDateTime),
    sa.PrimaryKeyConstraint("study_id", "generation", "trial_id"),
)
"""Not used yet: the score of a population's member after a generation, and its checkpoint."""

lineage = table_with_id(
    "lineage",
    required("study_id", Id),
    required("trial_id", Id),
    required("generation", sa.Integer),
    required("source_trial_id", Id),
    required("source_checkpoint_id", Id),
    required("config", Json),
    required("at", UtcDateTime),
    sa.Index("lineage_study", "study_id", "trial_id", "generation"),
)
"""Not used yet: the checkpoint and config with which a member of a population continued."""

proposal = sa.Table(
    "proposal",
    METADATA,
    required("study_id", Id, autoincrement=False),
    required("draw", sa.BigInteger, autoincrement=False),
    required("params", Json),
    required("params_hash", sa.Text),
    required("config", Json),
    required("origin", sa.Text),
    required("space_version", sa.Integer),
    required("bracket", sa.Integer),
    sa.Column("is_unique", sa.Boolean),
    required("proposed_at", UtcDateTime),
    required("resource_class", sa.Text, server_default=""),
    sa.PrimaryKeyConstraint("study_id", "draw"),
)
"""
What was computed ahead for a draw: all columns except `proposed_at` have the values that the
draw's trial will have in its columns of the same names.
"""

add_checks(proposal, **one_of("origin", Origin))

resource_class = sa.Table(
    "resource_class",
    METADATA,
    study_id_column(),
    required("name", sa.Text),
    required("request", Json),
    sa.PrimaryKeyConstraint("study_id", "name"),
)
"""
The distinct requests for resources in a study; `trial.resource_class` is the name of a trial's
request. The name "" stands for the study's request, which holds for trials without their own
request. Any other name is the request itself, written as text. A study without requests has no
rows.
"""
