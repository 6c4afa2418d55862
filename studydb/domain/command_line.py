"""
The command line of a trial: a list of items in which placeholders stand for parameters.

`{lr}` is the value of the parameter `lr`, and `{model.width}` that of `model/width`. `{{` and `}}`
are braces. Four names do not stand for a parameter:

- an item `{args}` becomes two items for each parameter and constant: `--lr`, `0.1`;
- an item `{args_hydra}` becomes one item for each parameter and constant: `lr=0.1`, in the grammar
  of Hydra's overrides;
- `{config}` is the path of a JSON file with the nested config;
- `{checkpoint_dir}` is a directory. What an attempt saves there is also in the directory that the
  trial's next attempt gets, as scripts for Syne Tune expect.

The forms in which a W&B sweep file writes its `command`, such as `${args}`, are understood, too:
https://docs.wandb.ai/models/sweeps/define-sweep-configuration.
"""

import itertools
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec import Struct

from studydb.domain.errors import InvalidSpec
from studydb.domain.text.display import shortened
from studydb.domain.text.suggestions import did_you_mean

if TYPE_CHECKING:
    from studydb.domain.space.search_space import Space

ARGS, ARGS_HYDRA, CONFIG, CHECKPOINT_DIR = "args", "args_hydra", "config", "checkpoint_dir"

_WHOLE_ITEM = (ARGS, ARGS_HYDRA)
"""Placeholders that become several items; an item with one of them must contain nothing else."""

_RESERVED = (*_WHOLE_ITEM, CONFIG, CHECKPOINT_DIR)

_TOKEN = re.compile(
    r"\$\{(?P<sweep>[^{}]*)\}|(?P<brace>\{\{|\}\})|\{(?P<name>[^{}]*)\}|(?P<wrong>[{}])"
)

_HYDRA_PLAIN = re.compile(r"[\w./@+-]+")
"""Texts that Hydra's grammar of overrides reads without quotes."""


class Paths(Struct, frozen=True):
    """The config file, checkpoint directory and environment of an attempt, for a command line."""

    config: str
    checkpoint_dir: str
    environment: Mapping[str, str]


@dataclass(frozen=True)
class CommandLine:
    """The items of a command line, with placeholders; the first item is the program."""

    items: tuple[str, ...]

    @classmethod
    def read(cls, items: Sequence[str]) -> "CommandLine":
        """
        Check the form of a command line.

        Raises:
            InvalidSpec: The list or its first item is empty, an item is no text or contains a NUL,
                a brace or placeholder is wrong, a placeholder would choose the program or become
                part of a script that is run, or the command uses `env -S`.
        """
        if isinstance(items, str):
            raise InvalidSpec(
                f"The command {items!r} is one text; give a list, such as "
                "['./train', '--lr', '{lr}']. studydb runs no shell."
            )
        if not all(isinstance(item, str) for item in items):
            raise InvalidSpec(f"The command {items!r} is not a list of texts; name a program.")
        if not items or not items[0]:
            raise InvalidSpec("The command names no program; begin it with one, as in ./train.")
        for item in items:
            if "\0" in item:
                raise InvalidSpec(f"The command's item {item!r} contains a NUL byte.")
            for token in _TOKEN.finditer(item):
                _check_token(token, item)
        _check_program(items)
        _check_code(items)
        return cls(tuple(items))

    def check(self, space: "Space") -> None:
        """
        Check that every placeholder is known, and that every parameter reaches the command.

        A command that names no parameter is accepted, because it can read `$STUDYDB_CONFIG`.

        Raises:
            InvalidSpec: A name is unknown; the command names some parameters but not all, and has
                no placeholder for all of them; or a placeholder of studydb that the command names
                is also the name of a parameter.
        """
        known = {_dotted(path): path for path in space.leaves}
        named = set(self._names())
        for name in _RESERVED:
            if name in known and name in named:
                raise InvalidSpec(
                    f"In a command, {{{name}}} is a placeholder of studydb, but the study also has "
                    f"a parameter {name!r}, so {{{name}}} is ambiguous. Give the parameter another "
                    "name, or pass all parameters in another way, such as ${args} or "
                    "$STUDYDB_CONFIG."
                )
        for name in sorted(named - known.keys() - set(_RESERVED)):
            raise InvalidSpec(
                f"The command names {{{name}}}, and the study has no such parameter."
                f"{did_you_mean(name, [*known, *_RESERVED])} Write {{{{ and }}}} for braces."
            )
        sampled = [name for name, path in known.items() if path in space.parameters]
        left_out = [name for name in sampled if name not in named]
        if left_out and named & set(sampled) and not self._passes_all():
            raise InvalidSpec(
                f"The command names some parameters, but not {', '.join(left_out)}, which would "
                "have no effect. Name all of them, or give {args} or {config}."
            )

    def expand(self, by_path: Mapping[str, Any], paths: Paths) -> list[str]:
        """
        Replace the placeholders.

        Args:
            by_path: The values of parameters and constants, by path ("model/width"), in the order
                of the space.

        Raises:
            InvalidSpec: A parameter that the command names has no value in this trial.
        """
        values = {_dotted(path): value for path, value in by_path.items()}
        return [one for item in self.items for one in _expanded(item, values, paths)]

    @property
    def names_checkpoint_dir(self) -> bool:
        """Whether the command names `{checkpoint_dir}`, whose files the next attempt finds."""
        return CHECKPOINT_DIR in set(self._names())

    def _names(self) -> Iterator[str]:
        for item in self.items:
            for token in _TOKEN.finditer(item):
                if token["name"] is not None:
                    yield token["name"]

    def _passes_all(self) -> bool:
        sweep = {token["sweep"] for item in self.items for token in _TOKEN.finditer(item)}
        return bool(set(self._names()) & {ARGS, ARGS_HYDRA, CONFIG} or sweep & _SWEEP_ITEMS.keys())


def _check_program(items: Sequence[str]) -> None:
    """
    Refuse a program that a placeholder chooses, except `${env}` and `${interpreter}`.

    The rows of parameters are not signed. If a parameter chose the program, every person who may
    write rows could run any program. After `env` come options, assignments and then the program, so
    all of these are checked.
    """
    for item in items[: _program_place(items) + 1]:
        tokens = [token for token in _TOKEN.finditer(item) if token["brace"] is None]
        if any(token["sweep"] not in _SWEEP_TEXTS for token in tokens):
            raise InvalidSpec(
                f"The command's item {item!r} has a placeholder, and is the program or stands "
                "before it. Name the program itself, and write parameters after it."
            )


class _Interpreter(NamedTuple):
    """
    A program that runs code which its command line contains.

    Attributes:
        code_options: The letters of the options after which code follows.
        with_argument: The options whose argument is the next item. Such an option may stand in one
            item with other options, for example `o` in `-eo`.
    """

    code_options: str
    with_argument: re.Pattern[str]


_SHELL = _Interpreter("c", re.compile(r"[-+](?!-)\w*[oO]\w*|--?(rcfile|init-file)"))
_INTERPRETERS = {
    **dict.fromkeys(("sh", "ash", "bash", "csh", "dash", "fish", "ksh", "mksh", "rbash"), _SHELL),
    **dict.fromkeys(("tcsh", "zsh"), _SHELL),
    "python": _Interpreter("c", re.compile(r"-\w*[WX]")),
    "perl": _Interpreter("eE", re.compile(r"-[IMm]")),
    "ruby": _Interpreter("e", re.compile(r"-[Ir]")),
    "node": _Interpreter("ep", re.compile(r"-r|--require|--import")),
    "php": _Interpreter("rBRE", re.compile(r"-[cdz]")),
    "lua": _Interpreter("e", re.compile(r"-l")),
    "julia": _Interpreter("eE", re.compile(r"-[JLpt]")),
    "Rscript": _Interpreter("e", re.compile(r"-g")),
}
_VERSION = re.compile(r"-?\d[\d.]*$")
_SPLITS_A_TEXT = re.compile(r"--s|-[^-uC]*S")  # `env` also accepts --split and -iS
_ENV_OPTIONS_WITH_ARGUMENT = ("-u", "--unset", "-C", "--chdir")


def _check_code(items: Sequence[str]) -> None:
    """
    Refuse `env -S`, and a placeholder where an interpreter reads code or a script's name.

    An item after the program may equal an interpreter's name by chance. So it counts as an
    interpreter only if one of the options that follow it introduces code, for example `-c`.
    """
    program = _program_place(items)
    if any(map(_SPLITS_A_TEXT.match, items[:program])):
        raise InvalidSpec(
            "The command splits a text by env -S, so that parameters could become code. Give each "
            "word as an item of the command."
        )
    for place, item in enumerate(items):
        name = "python" if item == "${interpreter}" else item.rpartition("/")[2]
        interpreter = _INTERPRETERS.get(_VERSION.sub("", name))
        after = items[place + 1 :]
        if interpreter is not None and (place == program or _reads_code(after, interpreter)):
            _check_script(after, interpreter)


def _program_place(items: Sequence[str]) -> int:
    """
    Return the place of the program, which may follow `env` with options and assignments.

    Without a program, return the number of items.
    """
    if items[0] != "${env}" and items[0].rpartition("/")[2] != "env":
        return 0
    for place, (before, item) in enumerate(pairwise(items), 1):
        is_argument = before in _ENV_OPTIONS_WITH_ARGUMENT
        if "=" not in item and not item.startswith("-") and not is_argument:
            return place
    return len(items)


def _reads_code(items: Sequence[str], interpreter: _Interpreter) -> bool:
    options = itertools.takewhile(lambda item: re.match(r"[-+](?!-)", item), items)
    return any(set(option) & set(interpreter.code_options) for option in options)


def _check_script(items: Sequence[str], interpreter: _Interpreter) -> None:
    """
    Refuse a placeholder in an interpreter's options, in a script, or in the name of its file.

    The placeholder's text could be run as code.

    Args:
        items: What follows the interpreter: options, and a file's name or, after `-c`, the script.
    """
    for before, item in pairwise(["", *items]):
        if found := next(filter(_is_of_parameters, _TOKEN.finditer(item)), None):
            cure = "read it in the script as an argument"
            if interpreter is _SHELL:
                cure = "write \"$1\" there, and give the parameter as an item: sh -c '…' sh {lr}"
            raise InvalidSpec(
                f"The script {item!r} contains a placeholder, {shortened(found[0], 40)}, whose "
                f"text would be run as code; {cure}. Write {{{{ and }}}} for braces."
            )
        is_option = item.startswith(("-", "+"))
        if not is_option and not interpreter.with_argument.fullmatch(before):
            return  # the items after the script or the file are arguments


def _is_of_parameters(token: re.Match[str]) -> bool:
    sweep = token["sweep"]
    if sweep is None:
        return token["name"] is not None
    return sweep not in _SWEEP_TEXTS and not sweep.startswith("envvar:")


def _check_token(token: re.Match[str], item: str) -> None:
    if token["wrong"] is not None:
        raise InvalidSpec(
            f"The command's item {item!r} has a single brace; write {{{{ or }}}} for a brace, "
            "and {name} for a parameter."
        )
    name, sweep = token["name"], token["sweep"]
    if name in _WHOLE_ITEM and item != token[0]:
        raise InvalidSpec(
            f"The command's item {item!r} holds more than {token[0]}, which becomes several items; "
            f"make {token[0]} a separate item."
        )
    if sweep is None or sweep.startswith("envvar:") or sweep in _SWEEP_TEXTS:
        return
    if sweep not in _SWEEP_ITEMS:
        raise InvalidSpec(
            f"The command's item {item!r} has {token[0]}, which is none of W&B's forms."
            f"{did_you_mean(sweep, [*_SWEEP_ITEMS, *_SWEEP_TEXTS])}"
        )
    if item != token[0]:
        raise InvalidSpec(
            f"The command's item {item!r} holds more than {token[0]}; make {token[0]} a separate "
            "item."
        )


def _dotted(path: str) -> str:
    return path.replace("/", ".")


def _expanded(item: str, values: Mapping[str, Any], paths: Paths) -> list[str]:
    if item == f"{{{ARGS}}}":
        return [one for name, value in values.items() for one in (f"--{name}", as_text(value))]
    if item == f"{{{ARGS_HYDRA}}}":
        return [f"{name}={_in_hydra(value)}" for name, value in values.items()]
    whole = _TOKEN.fullmatch(item)
    if whole is not None and whole["sweep"] in _SWEEP_ITEMS:
        return _SWEEP_ITEMS[whole["sweep"]](values, paths)
    return [_TOKEN.sub(lambda token: _text_of(token, values, paths), item)]


def _text_of(token: re.Match[str], values: Mapping[str, Any], paths: Paths) -> str:
    if token["brace"] is not None:
        return token["brace"][0]
    if (sweep := token["sweep"]) is not None:
        if sweep.startswith("envvar:"):
            return paths.environment.get(sweep.removeprefix("envvar:"), "")
        return _SWEEP_TEXTS[sweep]
    name = token["name"]
    if name == CONFIG:
        return paths.config
    if name == CHECKPOINT_DIR:
        return paths.checkpoint_dir
    if name not in values:
        raise InvalidSpec(
            f"The command names {{{name}}}, which this trial's config lacks; use {{args}} or "
            "{config} for parameters that not every trial has."
        )
    return as_text(values[name])


def as_text(value: Any) -> str:
    """Write a value as an argument: a text as it is, a number by `repr`, other values as JSON."""
    if isinstance(value, str):
        return value
    if isinstance(value, int | float) and not isinstance(value, bool):
        return repr(value)
    return json.dumps(value, ensure_ascii=False)


def _in_hydra(value: Any) -> str:
    """Write a value in Hydra's grammar: https://hydra.cc/docs/advanced/override_grammar/basic/."""
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{_in_hydra(k)}:{_in_hydra(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(_in_hydra, value)) + "]"
    if not isinstance(value, str) or (_HYDRA_PLAIN.fullmatch(value) and not _is_literal(value)):
        return as_text(value)
    quoted = re.sub(r"(\\*)'", r"\1\1\\'", value)  # backslashes escape only before a quote
    tail = len(quoted) - len(quoted.rstrip("\\"))
    return f"'{quoted}{quoted[len(quoted) - tail :]}'"


def _is_literal(text: str) -> bool:
    """Whether Hydra would read a text without quotes as a number, a boolean or null."""
    if text.lower() in ("true", "false", "null", "nan", "inf"):
        return True
    try:
        float(text)
    except ValueError:
        return False
    return True


def _each(form: str) -> Callable[[Mapping[str, Any], Paths], list[str]]:
    return lambda values, _: [form.format(k=name, v=value) for name, value in values.items()]


def _flags(values: Mapping[str, Any], _: Paths) -> list[str]:
    """Write True as `--k`, leave out False, and write other values as `--k=v`."""
    given = {name: value for name, value in values.items() if value is not False}
    return [f"--{k}" if v is True else f"--{k}={v}" for k, v in given.items()]


def _pairs(values: Mapping[str, Any], _: Paths) -> list[str]:
    return [one for name, value in values.items() for one in (f"--{name}", f"{value}")]


_SWEEP_ITEMS: dict[str, Callable[[Mapping[str, Any], Paths], list[str]]] = {
    "args": _each("--{k}={v}"),
    "args_no_equals": _pairs,
    "args_no_hyphens": _each("{k}={v}"),
    "args_no_boolean_flags": _flags,
    "args_json": lambda values, _: [json.dumps(dict(values))],
    "args_json_file": lambda _, paths: [paths.config],
    "args_append_hydra": _each("+{k}={v}"),
    "args_override_hydra": _each("++{k}={v}"),
}
"""W&B's forms that pass all parameters; values are written by Python's `str`, or as JSON."""

_SWEEP_TEXTS = {"env": "/usr/bin/env", "interpreter": "python"}
"""
W&B's other forms, except `${envvar:NAME}`. The form `${program}` is replaced when the sweep file is
read.
"""
