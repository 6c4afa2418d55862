"""The user's handle on a study: create, load, read, control, run and delete it."""

from studydb.study.creation import create_study
from studydb.study.handle import Study
from studydb.study.loading import delete_study, load_study

__all__ = ["Study", "create_study", "delete_study", "load_study"]
