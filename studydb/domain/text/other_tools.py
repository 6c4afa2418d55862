"""
A table that tells, for other tools' words, what to write in studydb; errors quote this table.

Most of these errors are about unknown names, such as attributes, keywords, commands, options and
specs. Remove a word from the table when the package `studydb` gets a public name or a module of
that spelling.
"""

from collections.abc import Callable, Iterable, Iterator
from difflib import get_close_matches
from functools import wraps
from inspect import signature
from typing import ParamSpec, TypeVar, Unpack, get_args, get_origin, get_type_hints

from studydb.domain.text.suggestions import did_you_mean

P = ParamSpec("P")
R = TypeVar("R")

_MISSPELT = 0.9
"""Two names at least this similar are taken for misspellings of each other: "metrics", "metric"."""

_WORDS_BY_TRANSLATION = {
    # searchers
    'searcher=OptunaSearch("TPESampler"), RandomSearch() or GridSearch()': (
        "tpe tpesampler tpesearch gp gpsampler bohb tunebohb cmaes cmaessampler bayesopt "
        "bayesoptsearch bayesianoptimization hyperopt hyperoptsearch optunasampler "
        "axsearch quasirandom qmcsampler sampler samplers search_alg suggest auto randomsampler "
        "gridsampler basicvariantgenerator concurrencylimiter"
    ),
    # schedulers
    "scheduler=ASHA(max_t=…), HyperBand(max_t=…), MedianStopping(), OneEpoch(i, top_k, max_t), "
    "FIFO() or a subclass of studydb.CustomScheduler": (
        "pbt populationbasedtraining pb2 pruner pruners percentilepruner pbtreplay"
    ),
    "HyperBand(max_t=27, reduction_factor=3)": "hyperbandscheduler hyperbandpruner",
    "MedianStopping(grace_period=1, min_samples=3)": "medianstoppingrule medianpruner",
    "ASHA(max_t=27, grace_period=1, reduction_factor=4)": (
        "ashascheduler asynchyperbandscheduler successivehalvingpruner"
    ),
    "FIFO()": "fifoscheduler nopruner",
    "reduction_factor": "eta",
    "grace_period": "min_resource",
    "max_t": "max_resource",
    "the metric `training_iteration`, which is always the number of the step": "time_attr",
    # budgets, storage, objective
    "num_trials=N of create_study (`--num-trials N`): the trials of all workers together": (
        "num_samples n_trials max_trials max_num_trials_started samples trials"
    ),
    "max_concurrent=N of create_study, or study.run(workers=N)": (
        "n_jobs n_workers max_concurrent_trials num_workers concurrency"
    ),
    'metric="loss", mode="min" of create_study': (
        "direction directions objective maximize minimize metric mode"
    ),
    "storage=URL, `--storage URL`, or $STUDYDB_STORAGE": (
        "storage_path local_dir storage_url database url"
    ),
    "the first argument of create_study and load_study: the study's name": "study_name",
    "a study: create_study, `studydb create NAME`": "experiment exp",
    "searcher=RandomSearch(seed=0)": "seed random_state",
    "load_if_exists=True of create_study, or load_study(NAME)": "resume restore exist_ok exists_ok",
    "create_study(…), then study.run(workers=2)": "tuner",
    "max_failures=N of create_study: exceptions that a trial survives": (
        "catch max_retries failureconfig failure_config"
    ),
    "poll study.status, or use a loop of your own with study.ask(); there are no callbacks yet": (
        "callbacks hooks"
    ),
    "time_limit_s=SECONDS of create_study (`--time-limit 2h`), from the first worker's start": (
        "timeout time_budget_s max_wallclock_time timeoutstopper wallclock_limit"
    ),
    "trial_time_limit_s=SECONDS of create_study (`--trial-time-limit 10m`)": (
        "trial_timeout max_trial_time trial_walltime_limit"
    ),
    "cost_limit=('usd', 50) of create_study (`--cost-limit usd<=50`)": "max_cost cost_attr",
    "stop=[studydb.Plateau(metric)] of create_study": (
        "trialplateaustopper experimentplateaustopper early_stop earlystopping"
    ),
    "stop={metric: bound} of create_study, or 'metric>=bound'": (
        "maximumiterationstopper stop_criterion stopping_criterion"
    ),
    "stop=[my_rules.TooSlow(limit=3)] of create_study; TooSlow is a subclass of studydb.StopRule": (
        "stopper functionstopper combinedstopper"
    ),
    "resources={'gpus': 1} of create_study, `--resources gpus=1`": (
        "gpus resources_per_trial with_resources gpu cpus cpu memory_gb"
    ),
    (
        "space={'lr': studydb.loguniform(1e-4, 1)} of create_study, "
        "`--param 'lr=loguniform(1e-4, 1)'`; trial.config in a trainable"
    ): "param params param_space search_space config_space parameters",
    "the second argument of create_study: the trainable": (
        "fn func function train_fn run_fn training_function"
    ),
    # what a study does
    "study.run(workers=2) in Python, `studydb worker --study NAME` in a shell": (
        "run fit optimize start launch minimise maximise agent"
    ),
    "study.enqueue({'lr': 0.1}), `studydb enqueue NAME lr=0.1`: a trial of your choice": (
        "points_to_evaluate enqueue_trial evaluated_rewards add"
    ),
    "study.enqueue(params) runs a trial; a trial that was run elsewhere cannot be added yet": (
        "add_trial"
    ),
    "trial.report({'loss': value}), then trial.finish(), of the trial that study.ask() gave": (
        "tell"
    ),
    "study.trials, study.trials_dataframe(), `studydb trials NAME`": (
        "get_trials best_trials get_best_result get_dataframe results dataframe"
    ),
    "study.best_params": "best_config get_best_config",
    "study.best_value, study.best_trial": "best_result",
    "study.trials_dataframe() and study.results_dataframe() return pandas frames to plot": "plot",
    "study.wait(), or study.run(workers=1), which return when the study is done": "wait",
    # what a trial does
    'report({"loss": 1.0}): all metrics in one dict': (
        "loss error accuracy acc value score metrics log"
    ),
    'report({"loss": 1.0, "training_iteration": 5}); by default the steps are 1, 2, 3, …': (
        "step epoch iteration iter training_iteration"
    ),
    "a scheduler; if it stops the trial, report() raises TrialStopped in a trainable, and returns "
    "False in a loop of your own": ("should_prune prune trialpruned"),
    "trial.checkpoint, which is None or has .to_dict(), .path and .step": (
        "get_checkpoint load_checkpoint checkpoint_dir"
    ),
    "checkpoint.path, which is the path of the directory": "as_directory to_directory",
    "report(metrics, checkpoint=a dict or the path of a directory)": "save save_checkpoint",
    "trial.config in a trainable, trial.params in a loop of your own": (
        "hyperparameters get_config get_parameters parameter"
    ),
    "trial.number and trial.attempt in a trainable f(config, trial)": "get_context",
    "report(metrics): metrics may be texts and lists, too": "set_user_attr",
    # distributions
    "choice([…]) with searcher=GridSearch()": "grid_search gridsearchdistribution",
    "uniform(low, high), loguniform(low, high) or quniform(low, high, q)": (
        "suggest_float floatdistribution"
    ),
    "uniform(low, high)": "suggest_uniform",
    "loguniform(low, high)": (
        "suggest_loguniform log_uniform log_uniform_values qloguniform q_log_uniform"
    ),
    "loguniform(1 - high, 1 - low): let the trainable compute 1 - value": "reverse_log_uniform",
    "quniform(low, high, q)": "suggest_discrete_uniform q_uniform finrange",
    "randint(low, high) or lograndint(low, high), both ends included": (
        "suggest_int intdistribution"
    ),
    "randint(low, high), both ends included": "int_uniform uniform_int",
    "choice(list(range(low, high + 1, q)))": "qrandint",
    "lograndint(low, high)": "qlograndint",
    "choice([…])": "suggest_categorical categoricaldistribution categorical ordinal logfinrange",
    "uniform(low, high): there is no normal distribution yet": "normal randn qrandn",
    "loguniform(low, high): there is no normal distribution yet": "lognormal",
    "a constant, or a value that the trainable computes from its config": "sample_from",
    "the same names without `tune.`: studydb.uniform, loguniform, randint, choice": "tune",
    "the same names without `hp.`: studydb.uniform, loguniform, randint, choice": "hp",
    "studydb.uniform, loguniform, quniform, randint, lograndint, choice": "distributions",
    # commands
    "`studydb studies`, or `studydb trials NAME`": "ls list",
    "`studydb create NAME …`; `studydb db upgrade` makes the tables on PostgreSQL": "init",
    "`studydb create NAME …`": "new",
    "`studydb delete NAME --yes`": "rm remove",
    "`studydb rename OLD NEW`": "mv",
    "`studydb workers`": "ps",
    "`studydb status NAME`": "top",
    "`studydb show NAME`": "info describe",
    "`studydb stop NAME [NUMBER]`": "cancel",
    "`studydb stop NAME [NUMBER]`, or `studydb drain WORKER`": "kill",
    "`studydb logs NAME NUMBER`": "cat",
    "`studydb logs NAME NUMBER -f`": "tail",
    "`studydb query SQL`": "sql",
    "`studydb db upgrade`": "migrate upgrade",
    "`studydb status NAME`, again and again: `watch studydb status NAME`": "dashboard watch web",
    "`studydb trials NAME --format csv`, or study.trials_dataframe()": "export",
}

WORDS: dict[str, str] = {
    word: translation
    for translation, words in _WORDS_BY_TRANSLATION.items()
    for word in words.split()
}
"""What to write in studydb, by another tool's word in lower case, with "_" in place of "-"."""

SAMPLES = frozenset(
    name
    for name, ours in WORDS.items()
    if ours.startswith(
        ("choice(", "uniform(", "loguniform(", "quniform(", "randint(", "lograndint(")
    )
) | {"sample_from"}
"""The words of other tools for distributions."""


def in_studydb(name: str) -> str:
    """
    Translate another tool's word, for the end of an error's message.

    Returns:
        " In studydb: …." with the leading space, or "" for a word that is not in the table.
    """
    ours = WORDS.get(name.strip("-").replace("-", "_").casefold())
    return "" if ours is None else f" In studydb: {ours}."


def _nearly_equal(name: str, folds: Iterable[str]) -> list[str]:
    return get_close_matches(name.casefold(), list(folds), n=1, cutoff=_MISSPELT)


def hint(name: str, known: Iterable[str] = ()) -> str:
    """
    Suggest a nearly equal known name; else translate the name; else suggest similar names.

    "timeout" is nearly equal to "timeout_s".
    """
    folds = {other.casefold(): other for other in known}
    with_unit = f"{name.casefold()}_s"
    misspelt = [with_unit] if with_unit in folds else _nearly_equal(name, folds)
    if misspelt:
        return did_you_mean(name, [folds[misspelt[0]]])
    return in_studydb(name) or did_you_mean(name, folds.values())


def missing_attribute(owner: object, name: str) -> AttributeError:
    """Make the AttributeError for an object of studydb; translate another tool's name."""
    message = f"{type(owner).__name__!r} object has no attribute {name!r}"
    if translation := in_studydb(name):
        message += f".{translation}"
    return AttributeError(message, name=name, obj=owner)  # Python suggests attributes of obj


def _arguments(function: Callable[..., object]) -> Iterator[str]:
    """Yield the names of a function's arguments, also of those that a TypedDict lists."""
    for name, parameter in signature(function).parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD and get_origin(parameter.annotation) is Unpack:
            (options,) = get_args(parameter.annotation)
            yield from get_type_hints(options)
        else:
            yield name


def suggesting_keywords(function: Callable[P, R]) -> Callable[P, R]:
    """Wrap a function so that its TypeError for an unknown keyword lists the known ones."""
    takes = [name for name in _arguments(function) if name != "self"]
    known = frozenset(takes)

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        if kwargs and not known.issuperset(kwargs):
            name = next(name for name in kwargs if name not in known)
            raise TypeError(
                f"{function.__name__}() has no argument {name!r}; it takes "
                f"{', '.join(takes) or 'none'}.{hint(name, takes)}"
            )
        return function(*args, **kwargs)

    return call
