"""Create, load and delete studies; a `Study` is a handle that reads, controls and runs a study."""

from studydb.study.creation import create_study
from studydb.study.handle import Study
from studydb.study.loading import delete_study, load_study

__all__ = ["Study", "create_study", "delete_study", "load_study"]
