"""
Search spaces: the parameters that a study samples, and how samples become a configuration.

A space is a nested dict of distributions and constants. A parameter's path joins the keys by "/":
{"model": {"width": randint(1, 4)}} has the parameter "model/width".
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from studydb.domain.canonical import (
    MAX_DEPTH,
    canonical_json,
    is_number,
    params_hash,
    plain,
)
from studydb.domain.errors import InvalidSpec
from studydb.domain.space.distributions import (
    choice,
    lograndint,
    loguniform,
    quniform,
    randint,
    uniform,
)
from studydb.domain.space.domains import Choice, Domain, Enumerable, Real
from studydb.domain.space.exact_arithmetic import as_float
from studydb.domain.space.leaves import Written, constant, leaf_json, walk
from studydb.domain.text.display import shortened
from studydb.domain.text.suggestions import did_you_mean

__all__ = [
    "Domain",
    "Enumerable",
    "Space",
    "canonical_json",
    "choice",
    "constant",
    "lograndint",
    "loguniform",
    "params_hash",
    "quniform",
    "randint",
    "uniform",
]

NO_DICT = "(no dict)"
"""The path that `flatten` gives to params that are not a dict."""

MAX_CONFIG_BYTES = 16 << 20
"""The limit for a space and for a trial's params, because each claim and child gets a copy."""

ORDER = "$order"
"""The JSON key that lists the paths in the user's order, because jsonb does not keep that order."""


@dataclass(frozen=True)
class Space:
    """
    A checked search space; build it with `Space.read`.

    Attributes:
        leaves: Domains and constants by path ("model/width"), in the user's order.
        parameters: The domains among the leaves, which are sampled.
        constants: The other leaves, which every configuration receives unchanged.
    """

    leaves: Mapping[str, Any]
    parameters: Mapping[str, Domain] = field(init=False, compare=False, repr=False)
    constants: Mapping[str, Any] = field(init=False, compare=False, repr=False)
    _keys: Mapping[str, tuple[list[str], str]] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        domains = {path: leaf for path, leaf in self.leaves.items() if isinstance(leaf, Domain)}
        constants = {path: leaf for path, leaf in self.leaves.items() if path not in domains}
        object.__setattr__(self, "parameters", domains)
        object.__setattr__(self, "constants", constants)
        object.__setattr__(self, "_keys", {path: _keys_of(path) for path in self.leaves})

    @classmethod
    def read(
        cls, mapping: "Mapping[str, Any] | Space | None", *, written: Written = Written.IN_PYTHON
    ) -> "Space":
        """
        Read a user's nested dict of distributions and constants.

        A bare list is refused: `choice` samples from a list, `constant` gives a list to every
        trial. A text or dict that looks like a distribution, but is none, is refused, too.

        Args:
            mapping: The dict, a space, or None for a space without parameters.
            written: Where the dict comes from; in a file, {"$": kind, …} is a distribution.

        Raises:
            InvalidSpec: `mapping` is not a dict, the space is too large, or a name or a leaf is
                refused; the message names the leaf's path.
        """
        if isinstance(mapping, Space):
            return mapping
        tree = {} if mapping is None else _as_mapping(mapping)
        space = cls(dict(walk(tree, written=written)))
        _check_size({path: leaf_json(leaf) for path, leaf in space.leaves.items()})
        return space

    @classmethod
    def from_json(cls, spec: Mapping[str, Any]) -> "Space":
        """
        Read the form that `to_json` writes, in the recorded order.

        Raises:
            InvalidSpec: A name, a distribution, a constant or the recorded order is wrong.
        """
        tree = dict(_as_mapping(spec))
        order = _read_order(tree.pop(ORDER, []))
        leaves = dict(walk(tree, written=Written.STORED))
        return cls({path: leaves[path] for path in order if path in leaves} | leaves)

    def to_json(self) -> dict[str, Any]:
        """
        Write the space as a dict for JSON, nested as the user's dict.

        A constant is unchanged, a distribution is {"$": "uniform", "lower": 0.0, …}, and "$order"
        lists the paths if there are several.
        """
        tree = self.nest({path: leaf_json(leaf) for path, leaf in self.leaves.items()})
        return tree | {ORDER: list(self.leaves)} if len(self.leaves) > 1 else tree

    def nest(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """
        Turn {"model/width": 3} into {"model": {"width": 3}}, in the order of the space.

        Unknown paths come last. Of the paths "a" and "a/b" only the later one is kept.
        """
        in_order = filter(values.__contains__, self.leaves)
        unknown = () if values.keys() <= self._keys.keys() else values
        tree: dict[str, Any] = {}
        for path in (*in_order, *unknown):
            parents, last = self._keys.get(path) or _keys_of(path)
            node = tree
            for key in parents:
                below = node.get(key)
                node[key] = node = below if isinstance(below, dict) else {}
            node[last] = values[path]
        return tree

    def flatten(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """
        Turn {"model": {"width": 3}} into {"model/width": 3}: the reverse of `nest`.

        A dict that is a value of a `choice` stays a dict, and a key "model/width" stays as it is.
        """
        if not isinstance(params, Mapping):  # a row that another program wrote
            return {NO_DICT: params}
        if params.keys() <= self.leaves.keys():
            return dict(params)
        values: dict[str, Any] = {}
        self._flatten(params, "", values)
        return values

    def _flatten(self, params: Mapping[str, Any], prefix: str, values: dict[str, Any]) -> None:
        for key, value in params.items():
            path = f"{prefix}{key}"
            # The check for dict comes first, because the check for Mapping takes longer.
            is_node = isinstance(value, dict) or isinstance(value, Mapping)  # noqa: SIM101
            if is_node and value and path not in self.leaves and path.count("/") <= MAX_DEPTH:
                self._flatten(value, f"{path}/", values)
            else:
                values[path] = value

    def restore_floats(self, params: Any) -> Any:
        """
        Make floats of the integers in stored params or in a stored config, where domains say so.

        PostgreSQL returns 1e16 as an integer. Integers outside their domain stay integers. If there
        is nothing to convert, this method returns the given object, because each claim calls it.
        """
        if not (self._reals and isinstance(params, Mapping)):
            return params
        values = self.flatten(params)
        floats = self._floats_for(values)
        return self.nest(values | floats) if floats else params

    def restore_floats_by_path(self, values: Any) -> Any:
        """Do what `restore_floats` does for values by path, such as those of `flatten`."""
        floats = self._floats_for(values) if isinstance(values, Mapping) else None
        return {**values, **floats} if floats else values

    def _floats_for(self, values: Mapping[str, Any]) -> dict[str, float]:
        return {
            path: domain.cast(value)
            for path, domain in self._reals.items()
            if type(value := values.get(path)) is int and domain.contains(value)
        }

    @cached_property
    def _reals(self) -> Mapping[str, Real]:
        return {path: each for path, each in self.parameters.items() if isinstance(each, Real)}

    def config(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """
        Merge params with the constants into the config that a trainable receives.

        A constant replaces a param of the same name, so that no program can change a constant by
        writing rows. Numbers get their domain's type, because a database may return 1e16 as an
        integer. This method does not check the params; `misfit` does.
        """
        values = self.flatten(params)
        for path, domain in self.parameters.items():
            if path in values and domain.contains(values[path]):
                values[path] = domain.cast(values[path])
        return self._with_constants(values)

    def _with_constants(self, values: Mapping[str, Any]) -> dict[str, Any]:
        fixed = {path: plain(value, subject=path) for path, value in self.constants.items()}
        return self.nest({**values, **fixed})

    def misfit(self, params: Any, *, noun: str = "params") -> str | None:
        """
        Return why params do not fit this space; None if they fit.

        Params fit if they name exactly the parameters of the space, and each value is in the
        parameter's domain. The check is for params that another program may have written: params in
        rows, and params of recorded curves.

        Args:
            noun: The word for the params in the message.
        """
        if not isinstance(params, Mapping):
            return f"The {noun} are not a dict, but {_shown(params)}."
        try:
            values = self.flatten(params)
            domains = self.parameters
            if values.keys() == domains.keys() and all(
                domain.contains(values[path]) for path, domain in domains.items()
            ):
                return None
            self.check_params(params)
        except (InvalidSpec, ValueError, RecursionError) as error:
            return shortened(str(error), 500)
        surplus = sorted(values.keys() - domains.keys())
        missing = sorted(domains.keys() - values.keys())
        found = [f"have {path!r}" for path in surplus] + [f"lack {path!r}" for path in missing]
        return shortened(f"The {noun} {', '.join(found)}.", 500)

    def check_row(self, params: Any, config: Any) -> tuple[dict[str, Any], str | None]:
        """
        Check the params and the config of a trial's row, which another program may have written.

        A parameter's value in the config may differ from its value in `params`, because a person
        can change the config; the changed value must be in the parameter's domain. The config must
        have the constants of the space.

        Returns:
            If the row fits: the config that an attempt receives, and None. If the row does not fit:
            {}, and the reason.
        """
        misfit = self.misfit(params)
        if misfit is None:
            values = self.flatten(params)
            cast = {path: each.cast(values[path]) for path, each in self.parameters.items()}
            made = self._with_constants(cast)
            if config == made and not self._mixes_booleans:  # the usual case
                return made, None
            misfit = self._misfit_of_config(config)
        return (
            ({}, misfit)
            if misfit is not None
            else (self.config(self._without_constants(config)), None)
        )

    @cached_property
    def _mixes_booleans(self) -> bool:
        """Whether Python may take two different values of a parameter for equal."""
        return any(
            isinstance(domain, Choice) and domain.mixes_booleans
            for domain in self.parameters.values()
        )

    def _without_constants(self, config: Mapping[str, Any]) -> dict[str, Any]:
        values = self.flatten(config)
        return {path: value for path, value in values.items() if path not in self.constants}

    def _misfit_of_config(self, config: Any) -> str | None:
        noun = "values in the config"
        if not isinstance(config, Mapping):
            return self.misfit(config, noun=noun)
        values = self.flatten(config)
        for path, fixed in self.constants.items():
            if path not in values:
                return shortened(f"The config lacks the constant {path!r}.", 500)
            if not _is_same(values[path], fixed):
                return (
                    f"{shortened(path, 100)!r} is the constant {_shown(fixed)} in this study, but "
                    f"{_shown(values[path])} in the trial's config."
                )
        return self.misfit(self._without_constants(config), noun=noun)

    def check_params(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """
        Check params that a person enqueues, and give each value its domain's type.

        Args:
            params: Values, nested or by path. Parameters can be missing (see `complete`).
                Constants may be given, too, with exactly the values that the space gives them.

        Returns:
            Nested params without constants.

        Raises:
            InvalidSpec: The params are not a dict or are too large, a name is unknown, a value is
                outside its domain or JSON cannot hold it, or a constant has another value.
        """
        if not isinstance(params, Mapping):
            raise InvalidSpec(
                f"Params are {type(params).__name__}, not a dict; give names and values."
            )
        values = {
            path: plain(value, subject=f"Parameter {path!r}")
            for path, value in self.flatten(params).items()
        }
        kept = {
            path: value for path, value in values.items() if not self._repeats_constant(path, value)
        }
        _check_size(values)
        return self.nest({path: self._check_value(path, value) for path, value in kept.items()})

    def _repeats_constant(self, path: str, value: Any) -> bool:
        if path not in self.constants:
            return False
        if canonical_json(value) != canonical_json(self.constants[path]):
            raise InvalidSpec(
                f"{path!r} is the constant {self.constants[path]!r} in this study, not {value!r}; "
                "leave it out."
            )
        return True

    def _check_value(self, path: str, value: Any) -> Any:
        domain = self.parameters.get(path)
        if domain is None:
            known = ", ".join(map(repr, self.parameters)) or "none"
            raise InvalidSpec(
                f"There is no parameter {path!r} in this study; it has {known}."
                + did_you_mean(path, self.parameters)
            )
        if not domain.contains(value):
            raise InvalidSpec(
                f"Parameter {path!r} is {value!r}, which is not in {shortened(str(domain), 200)}; "
                "give a value that is."
            )
        return domain.cast(value)

    def change(
        self, params: Mapping[str, Any], config: Any, changes: Mapping[str, Any]
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """
        Give some parameters of a trial other values.

        Args:
            config: The config of the trial's row; None if the row has none.
            changes: The new values, in a form that `check_params` reads.

        Returns:
            The changed config, and the values of the config that differ from `params`, by path.

        Raises:
            InvalidSpec: A name is unknown, a value is outside its domain, or the row of the trial
                does not fit this space.
        """
        checked = self.flatten(self.check_params(changes))
        made, misfit = self.check_row(params, self.config(params) if config is None else config)
        if misfit is not None:
            raise InvalidSpec(f"The trial's row does not fit the space: {misfit}")
        values = self._without_constants(made) | checked
        sampled = self._without_constants(self.config(params))
        changed = {
            path: value
            for path, value in values.items()
            if canonical_json(value) != canonical_json(sampled[path])  # Python takes True for 1
        }
        return self.config(self.nest(values)), changed

    def complete(self, params: Mapping[str, Any], drawn: Mapping[str, Any]) -> dict[str, Any]:
        """Add the parameters that enqueued params lack, with the values that a searcher drew."""
        return self.nest(self.flatten(drawn) | self.flatten(params))


def _keys_of(path: str) -> tuple[list[str], str]:
    *parents, last = path.split("/")
    return parents, last


def _shown(value: Any) -> str:
    try:
        return shortened(repr(value), 200)
    except RecursionError:
        return "a value with too many levels"


def _is_same(value: Any, constant: Any) -> bool:
    """Compare a value with a constant; a database may return 1e300 as the integer 10**300."""
    if is_number(value) and is_number(constant):
        return value == constant or as_float(value) == float(constant)
    if isinstance(constant, Mapping):
        is_alike = isinstance(value, Mapping) and value.keys() == constant.keys()
        return is_alike and all(_is_same(value[key], one) for key, one in constant.items())
    if isinstance(constant, list | tuple):
        is_alike = isinstance(value, list) and len(value) == len(constant)
        return is_alike and all(map(_is_same, value, constant))
    return type(value) is type(constant) and bool(value == constant)


def _as_mapping(mapping: Any) -> Mapping[str, Any]:
    if not isinstance(mapping, Mapping):
        raise InvalidSpec(
            f"The space is {mapping!r}, which is not a dict; give names and distributions, as in "
            "{'lr': loguniform(1e-4, 1.0)}."
        )
    return mapping


def _read_order(order: Any) -> list[str]:
    if not (isinstance(order, list) and all(isinstance(path, str) for path in order)):
        raise InvalidSpec(f"{ORDER!r} is {order!r}; it must be a list of the space's paths.")
    return order


def _check_size(leaves: Mapping[str, Any]) -> None:
    sizes = {path: len(canonical_json(leaf).encode()) for path, leaf in leaves.items()}
    if (total := sum(sizes.values())) > MAX_CONFIG_BYTES:
        largest = max(sizes, key=sizes.__getitem__)
        raise InvalidSpec(
            f"The values take {total:,} bytes as JSON; the limit is {MAX_CONFIG_BYTES:,} bytes. "
            f"The largest value is {largest!r} with {sizes[largest]:,} bytes. Give the path of a "
            "file, and load it in the trainable."
        )
