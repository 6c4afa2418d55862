"""
The words of other tools, and what to write in studydb instead.

All errors for an unknown name use this table: attributes of the package, of studies and of trials,
keywords, commands, options, specs. A word that becomes a name of studydb is removed from the table.
"""

from collections.abc import Callable, Iterable
from difflib import get_close_matches
from functools import wraps
from inspect import signature
from typing import ParamSpec, TypeVar

from studydb.domain.text.suggestions import did_you_mean

P = ParamSpec("P")
R = TypeVar("R")

_MISSPELT = 0.9
"""Two names of this similarity are taken for misspellings of each other: "metrics", "metric"."""

_SEARCHERS = "searcher=RandomSearch() or GridSearch(); models such as TPE are not there yet"
_SCHEDULERS = "scheduler=ASHA(max_t=…) or FIFO(); there is no other yet"
_METRIC = 'metric="loss", mode="min" of create_study'
_SPACE = (
    "space={'lr': studydb.loguniform(1e-4, 1)} of create_study, "
    "`--param 'lr=loguniform(1e-4, 1)'`; trial.config in a trainable"
)
_RUN = "study.run(workers=2) in Python, `studydb worker --study NAME` in a shell"
_BUDGET = "num_trials=N of create_study (`--num-trials N`): it counts over all workers"
_CONCURRENT = "max_concurrent=N of create_study, or study.run(workers=N)"
_ENQUEUE = "study.enqueue({'lr': 0.1}), `studydb enqueue NAME lr=0.1`: a trial of your choice"
_METRICS = 'report({"loss": 1.0}): all metrics in one dict'
_STEP = 'report({"loss": 1.0, "training_iteration": 5}); without it steps count 1, 2, 3'
_CHECKPOINT = "report(metrics, checkpoint=a dict or the path of a directory)"
_RESTORED = "trial.checkpoint, None or with .to_dict(), .path and .step"
_PARAMS = "trial.config in a trainable, trial.params in a loop of your own"
_STORAGE = "storage=URL, `--storage URL`, or $STUDYDB_STORAGE"
_PRUNE = "a scheduler: report() raises TrialStopped where it stops the trial"
_RECORDS = "study.trials, study.trials_dataframe(), `studydb trials NAME`"

WORDS: dict[str, str] = {
    # searchers
    **dict.fromkeys(
        (
            *("tpe", "tpesampler", "tpesearch", "gp", "gpsampler", "bohb", "tunebohb", "cmaes"),
            *("cmaessampler", "bayesopt", "bayesoptsearch", "bayesianoptimization", "hyperopt"),
            *("hyperoptsearch", "optunasearch", "optunasampler", "axsearch", "quasirandom"),
            *("qmcsampler", "sampler", "samplers", "search_alg", "suggest", "auto"),
            *("randomsampler", "gridsampler", "basicvariantgenerator", "concurrencylimiter"),
        ),
        _SEARCHERS,
    ),
    # schedulers
    **dict.fromkeys(
        (
            *("pbt", "populationbasedtraining", "pb2", "hyperband", "hyperbandscheduler"),
            *("hyperbandpruner", "medianstopping", "medianstoppingrule", "medianpruner"),
            *("pruner", "pruners", "oneepoch", "percentilepruner", "pbtreplay"),
        ),
        _SCHEDULERS,
    ),
    **dict.fromkeys(
        ("ashascheduler", "asynchyperbandscheduler", "successivehalvingpruner"),
        "ASHA(max_t=27, grace_period=1, reduction_factor=4)",
    ),
    "fifoscheduler": "FIFO()",
    "nopruner": "FIFO()",
    "eta": "reduction_factor",
    "min_resource": "grace_period",
    "max_resource": "max_t",
    "time_attr": "the metric `training_iteration`: steps are counted by it",
    # budgets, storage, objective
    **dict.fromkeys(
        ("num_samples", "n_trials", "max_trials", "max_num_trials_started", "samples", "trials"),
        _BUDGET,
    ),
    **dict.fromkeys(
        ("n_jobs", "n_workers", "max_concurrent_trials", "num_workers", "concurrency"), _CONCURRENT
    ),
    **dict.fromkeys(("direction", "directions", "objective", "maximize", "minimize"), _METRIC),
    **dict.fromkeys(("storage_path", "local_dir", "storage_url", "database", "url"), _STORAGE),
    "study_name": "the first argument of create_study and load_study: the study's name",
    "experiment": "a study: create_study, `studydb create NAME`",
    "exp": "a study: create_study, `studydb create NAME`",
    "seed": "searcher=RandomSearch(seed=0)",
    "random_state": "searcher=RandomSearch(seed=0)",
    "resume": "load_if_exists=True of create_study, or load_study(NAME)",
    "restore": "load_if_exists=True of create_study, or load_study(NAME)",
    "tuner": "create_study(…), then study.run(workers=2)",
    "catch": "max_failures=N of create_study: exceptions that a trial survives",
    "max_retries": "max_failures=N of create_study: exceptions that a trial survives",
    "failureconfig": "max_failures=N of create_study: exceptions that a trial survives",
    "callbacks": "not there yet; poll study.status, or use a loop of your own with study.ask()",
    "hooks": "not there yet; poll study.status, or use a loop of your own with study.ask()",
    "timeout": "not there yet for a study; study.ask(timeout=…) waits no longer than that",
    **dict.fromkeys(
        ("resources", "gpus", "resources_per_trial", "with_resources", "gpu", "cpus"),
        "not there yet; start a worker per GPU, as in CUDA_VISIBLE_DEVICES=0 studydb worker …",
    ),
    **dict.fromkeys(
        ("param", "params", "param_space", "search_space", "config", "config_space", "parameters"),
        _SPACE,
    ),
    **dict.fromkeys(
        ("fn", "func", "function", "train_fn", "run_fn", "training_function"),
        "the second argument of create_study: the trainable",
    ),
    # what a study does
    **dict.fromkeys(
        ("run", "fit", "optimize", "start", "launch", "minimise", "maximise", "agent"), _RUN
    ),
    **dict.fromkeys(("points_to_evaluate", "enqueue_trial", "evaluated_rewards", "add"), _ENQUEUE),
    "add_trial": "not there yet for trials that were run elsewhere; study.enqueue(params) runs one",
    "tell": "trial.finish() of the trial that study.ask() gave",
    **dict.fromkeys(
        ("get_trials", "best_trials", "get_best_result", "get_dataframe", "results", "dataframe"),
        _RECORDS,
    ),
    "best_config": "study.best_params",
    "get_best_config": "study.best_params",
    "best_result": "study.best_value, study.best_trial",
    "plot": "not there yet; study.trials_dataframe() and study.results_dataframe() are for pandas",
    "wait": "study.run(workers=1), which returns when the study is done",
    # what a trial does
    **dict.fromkeys(("loss", "error", "accuracy", "acc", "value", "score", "metrics"), _METRICS),
    **dict.fromkeys(("step", "epoch", "iteration", "iter", "training_iteration"), _STEP),
    **dict.fromkeys(("should_prune", "prune", "trialpruned"), _PRUNE),
    **dict.fromkeys(("get_checkpoint", "load_checkpoint", "checkpoint_dir"), _RESTORED),
    **dict.fromkeys(("save", "save_checkpoint", "checkpoint"), _CHECKPOINT),
    **dict.fromkeys(("hyperparameters", "get_config", "get_parameters", "parameter"), _PARAMS),
    "get_context": "trial.number and trial.attempt of f(config, trial)",
    "set_user_attr": "report(metrics): metrics may be texts and lists, too",
    "log": 'report({"loss": 1.0}): all metrics in one dict',
    "trainable": "a function f(config) or f(config, trial): classes are not called yet",
    "command": "not there yet; call it from a function, with subprocess.run",
    # distributions
    "grid_search": "choice([…]) with searcher=GridSearch()",
    "gridsearchdistribution": "choice([…]) with searcher=GridSearch()",
    "suggest_float": "uniform(low, high), loguniform(low, high) or quniform(low, high, q)",
    "suggest_uniform": "uniform(low, high)",
    "suggest_loguniform": "loguniform(low, high)",
    "suggest_discrete_uniform": "quniform(low, high, q)",
    "suggest_int": "randint(low, high) or lograndint(low, high), both ends included",
    "suggest_categorical": "choice([…])",
    "floatdistribution": "uniform(low, high), loguniform(low, high) or quniform(low, high, q)",
    "intdistribution": "randint(low, high) or lograndint(low, high), both ends included",
    "categoricaldistribution": "choice([…])",
    "categorical": "choice([…])",
    "ordinal": "choice([…])",
    "log_uniform": "loguniform(low, high)",
    "log_uniform_values": "loguniform(low, high)",
    "reverse_log_uniform": "loguniform(low, high) of its complement",
    "q_uniform": "quniform(low, high, q)",
    "finrange": "quniform(low, high, q)",
    "logfinrange": "choice([…])",
    "int_uniform": "randint(low, high), both ends included",
    "uniform_int": "randint(low, high), both ends included",
    "qrandint": "choice(list(range(low, high + 1, q)))",
    "qlograndint": "lograndint(low, high)",
    "qloguniform": "loguniform(low, high)",
    "q_log_uniform": "loguniform(low, high)",
    "normal": "uniform(low, high): there is no normal distribution yet",
    "randn": "uniform(low, high): there is no normal distribution yet",
    "qrandn": "uniform(low, high): there is no normal distribution yet",
    "lognormal": "loguniform(low, high): there is no normal distribution yet",
    "sample_from": "a constant, or a value that the trainable computes from its config",
    "tune": "the same names without `tune.`: studydb.uniform, loguniform, randint, choice",
    "hp": "the same names without `hp.`: studydb.uniform, loguniform, randint, choice",
    "distributions": "studydb.uniform, loguniform, quniform, randint, lograndint, choice",
    # commands
    "ls": "`studydb studies`, or `studydb trials NAME`",
    "list": "`studydb studies`, or `studydb trials NAME`",
    "init": "`studydb create NAME …`; `studydb db upgrade` makes the tables on PostgreSQL",
    "new": "`studydb create NAME …`",
    "rm": "`studydb delete NAME --yes`",
    "remove": "`studydb delete NAME --yes`",
    "mv": "`studydb rename OLD NEW`",
    "ps": "`studydb workers`",
    "top": "`studydb status NAME`",
    "info": "`studydb show NAME`",
    "describe": "`studydb show NAME`",
    "cancel": "`studydb stop NAME [NUMBER]`",
    "kill": "`studydb stop NAME [NUMBER]`, or `studydb drain WORKER`",
    "cat": "`studydb logs NAME NUMBER`",
    "tail": "`studydb logs NAME NUMBER -f`",
    "sql": "`studydb query SQL`",
    "migrate": "`studydb db upgrade`",
    "upgrade": "`studydb db upgrade`",
    "dashboard": "`studydb status NAME`, again and again: `watch studydb status NAME`",
    "watch": "`studydb status NAME`, again and again: `watch studydb status NAME`",
    "web": "`studydb status NAME`, again and again: `watch studydb status NAME`",
    "export": "`studydb trials NAME --format csv`, or study.trials_dataframe()",
    "retry": "`studydb enqueue NAME k=v …`, with the parameters of the trial",
}
"""What to write in studydb, by the other tool's word in lower case, with "_" for "-"."""

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


def hint(name: str, known: Iterable[str] = ()) -> str:
    """Suggest the known name that was misspelt; else translate another tool's word."""
    folds = {other.casefold(): other for other in known}
    misspelt = get_close_matches(name.casefold(), folds, n=1, cutoff=_MISSPELT)
    if misspelt:
        return did_you_mean(name, [folds[misspelt[0]]])
    return in_studydb(name) or did_you_mean(name, folds.values())


def missing_attribute(owner: object, name: str) -> AttributeError:
    """Make the error for an attribute that an object of studydb does not have."""
    message = f"{type(owner).__name__!r} object has no attribute {name!r}"
    translation = in_studydb(name)
    if translation:
        message += f".{translation}"
    return AttributeError(message, name=name, obj=owner)  # the interpreter adds like names of obj


def answering_keywords(function: Callable[P, R]) -> Callable[P, R]:
    """Let the TypeError for an unknown keyword suggest the keyword of studydb."""
    takes = [name for name in signature(function).parameters if name != "self"]
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
