"""Functions that each change one setting of a study, or the request for resources of trials."""

from studydb.operations.change_settings import Changes, change_settings


def set_resources(database, study, asked, numbers, request):
    changes = Changes(resources=asked, of_trials=numbers)
    change_settings(database, study, changes, request)


def set_retention(database, study, keep, request):
    change_settings(database, study, Changes(keep=keep), request)


def set_limits(database, study, limits, request):
    change_settings(database, study, Changes(limits=limits), request)


def relocate(database, study, url, request):
    change_settings(database, study, Changes(checkpoints=url), request)


def revise(database, study, trainable, request):
    change_settings(database, study, Changes(trainable=trainable), request)
