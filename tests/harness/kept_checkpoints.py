"""Read the checkpoints (rows, files) and live results of a study that is alone in its database."""

from pathlib import Path

from harness.arrange import rows
from studydb import Study


def files_below(folder: Path | str) -> list[Path]:
    return [path for path in Path(folder).rglob("*") if path.is_file()]


def n_checkpoints(study: Study) -> int:
    """The number of checkpoints' rows in the database, removed checkpoints included."""
    return int(rows(study.database, "SELECT count(*) FROM checkpoint")[0][0])


def saved_steps(study: Study, number: int = 0) -> list[int]:
    """The steps of a trial's checkpoints that are kept."""
    sql = (
        "SELECT step FROM checkpoint JOIN trial ON trial.id = trial_id "
        f"WHERE removed_at IS NULL AND number = {number} ORDER BY checkpoint.id"
    )
    return [step for (step,) in rows(study.database, sql)]


def live_steps(study: Study, number: int = 0) -> list[int]:
    """The steps of a trial's live results."""
    frame = study.results_dataframe()
    return [row.step for row in frame.itertuples() if row.number == number]
