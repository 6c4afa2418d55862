"""Functions and classes of a test module, as a study sends them to workers."""

import os
import sys
import uuid
from collections.abc import Callable
from typing import Any

import cloudpickle

from studydb.domain.trainable import Trainable, TrainableKind


def by_value(function: Callable[..., Any]) -> Trainable:
    """Pickle a function or class of a test by value, as a study does to send it to workers."""
    module = sys.modules[function.__module__]
    cloudpickle.register_pickle_by_value(module)
    try:
        source = cloudpickle.dumps(function)
    finally:
        cloudpickle.unregister_pickle_by_value(module)
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    name = function.__qualname__
    return Trainable(str(uuid.uuid4()), TrainableKind.PICKLE, name, os.sep, version, source)
