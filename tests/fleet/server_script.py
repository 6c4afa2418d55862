"""The first lines of a script that starts trials of `mine:train` by a fork server of its own."""

BEGIN = """
import sys, time
from pathlib import Path
from studydb.child.job import Job, TrainableImport
from studydb.domain.trainable import Trainable
from studydb.domain.life.states import Mode
from studydb.domain.objective import Objective
from studydb.worker.fork_server_client import ForkServer
from studydb.worker.attempt_output import OutputPump
from studydb.worker.templates import Templates
directory, how = sys.argv[1:]
to_import = TrainableImport(
    's', Trainable('u', 'import', 'mine:train', directory, '3.11'), True, (directory,))
def new_job(number):
    return Job(to_import, 't', number, 1, {}, 0, Objective('loss', Mode.MIN), directory, 'inline:')
"""
"""The script's arguments are the directory of the module `mine`, and a word, `how`."""
