"""One lock order: rungs, trials, a counter's shard, the study. PostgreSQL, two connections."""

import pytest
from arrange import PERSON, SimulatedWorker, dump, enqueued, new_study, rows, token
from rivals import PATIENCE_S, held_at, is_free, is_waiting_for_a_lock, kept_waiting

from studydb.db import connect
from studydb.domain.errors import StorageBusy
from studydb.operations import control
from studydb.schedulers import ASHA

SHARDS = "counter WHERE shard = "
