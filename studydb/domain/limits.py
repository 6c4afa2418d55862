"""The limits of a study: what its trials may spend together, and how long a trial may run."""

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypedDict

from msgspec import Struct

from studydb.domain.arguments import count_or_none
from studydb.domain.canonical import LARGEST_DOUBLE, is_number
from studydb.domain.errors import InvalidSpec
from studydb.domain.metrics import STEPS_END, Result, value_of
from studydb.domain.objective import Objective
from studydb.domain.text.display import duration_text
from studydb.domain.text.names import check_metric_name

_UNITS_S = {"": 1, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}
_DURATION = re.compile(r"\s*(?P<number>\d+(\.\d*)?|\.\d+)\s*(?P<unit>[a-z]*)\s*")
_DIGITS = 30
"""The most digits of a number in a text: `int` raises ValueError for thousands of digits."""
_COST = re.compile(r"\s*(?P<metric>[^<>=]+?)\s*<=\s*(?P<most>\S+)\s*")


class CostLimit(NamedTuple):
    """The most that the values of a metric may add up to; each report gives an increment."""

    metric: str
    most: float

    def __str__(self) -> str:
        return f"{self.metric}<={self.most:g}"


class LimitOptions(TypedDict, total=False):
    """
    The arguments of `create_study` and `Study.set` that limit a study.

    In `create_study`, None means no limit; `Study.set` cannot remove a limit.

    The study stops itself at each limit except `trial_time_limit_s`, which stops only the trial. A
    time is a number of seconds or a text, such as "90s", "10m" or "2h".

    Attributes:
        cost_limit: A metric and the most that its values may add up to over all reports, such as
            ("usd", 50) or "usd<=50". Each report gives an increment.
        max_steps: The most reports of all trials together; a step trained again counts again.
        total_time_limit_s: The most running time of all attempts together.
        time_limit_s: The most time since the study's first worker started; pauses count.
        trial_time_limit_s: The most running time of one trial, over its attempts.
    """

    cost_limit: tuple[str, float] | str | None
    max_steps: int | None
    total_time_limit_s: float | str | None
    time_limit_s: float | str | None
    trial_time_limit_s: float | str | None


class Spending(NamedTuple):
    """What trials have spent: their cost, their results, and their running time."""

    cost: float = 0.0
    steps: int = 0
    time_s: float = 0.0

    def plus(self, more: "Spending") -> "Spending":
        return Spending(self.cost + more.cost, self.steps + more.steps, self.time_s + more.time_s)


class Limits(Struct, frozen=True, kw_only=True):
    """
    The limits of a study; None for no limit.

    Attributes:
        max_steps: The most results of all attempts; steps that are trained again count again.
        total_time_limit_s: The most running time of all attempts together.
        time_limit_s: The most seconds since the study's first worker started; pauses count.
        trial_time_limit_s: The most running time of one trial, over its attempts.
    """

    cost_limit: CostLimit | None = None
    max_steps: int | None = None
    total_time_limit_s: float | None = None
    time_limit_s: float | None = None
    trial_time_limit_s: float | None = None

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> "Limits":
        """Read the limits among the settings of a study's row."""
        given = {name: settings.get(name) for name in LIMITS}
        return cls(**{name: READERS[name](name, value) for name, value in given.items()})

    @property
    def count_spending(self) -> bool:
        """Whether the study keeps the sum of what its trials spend."""
        return (self.cost_limit, self.max_steps, self.total_time_limit_s) != (None, None, None)

    @property
    def count_time(self) -> bool:
        """Whether the running time of each trial is stored."""
        return (self.total_time_limit_s, self.trial_time_limit_s) != (None, None)

    @property
    def end_study(self) -> bool:
        """Whether a limit can end the study."""
        return self.count_spending or self.time_limit_s is not None

    @property
    def exist(self) -> bool:
        return self != Limits()

    @property
    def shortest_s(self) -> float:
        """The shortest of the limits that are times; infinity without one."""
        times = (self.total_time_limit_s, self.time_limit_s, self.trial_time_limit_s)
        return min((each for each in times if each is not None), default=math.inf)

    def cost_of(self, results: Sequence[Result], objective: Objective) -> float:
        """Add up the increments of the cost metric; only positive, finite numbers count."""
        if self.cost_limit is None:
            return 0.0
        metric = self.cost_limit.metric
        increments = (value_of(result, metric, objective) for result in results)
        return math.fsum(each for each in increments if is_number(each) and 0 < each < math.inf)

    def reached(self, spent: Spending, *, age_s: float) -> str | None:
        """
        Say which limit of the study is reached; if several are, the one whose field comes first.

        Args:
            age_s: Seconds since the study's first worker started.

        Returns:
            A text such as "cost_limit is reached (50.2 of 50 usd)"; None if no limit is reached.
        """
        texts = (
            f"{name} is reached ({self._use_text(name, used, limit)})"
            for name, used, limit in self._uses(spent, age_s)
            if limit is not None and used >= limit
        )
        return next(texts, None)

    def share(self, spent: Spending, *, age_s: float) -> float:
        """
        Return the used share of the study's most used limit, from 0 to 1.

        The share is 0 if the study has no limit; `trial_time_limit_s` does not count.

        Args:
            age_s: Seconds since the study's first worker started.
        """
        uses = self._uses(spent, age_s)
        shares = (used / limit for _, used, limit in uses if limit is not None)
        return min(1.0, max(shares, default=0.0))

    def described(self, spent: Spending, *, age_s: float) -> list[str]:
        """
        Describe what each limit allows and what is used: "50.2 of 80 usd".

        `trial_time_limit_s` is left out.
        """
        return [
            self._use_text(name, used, limit)
            for name, used, limit in self._uses(spent, age_s)
            if limit is not None
        ]

    def _uses(self, spent: Spending, age_s: float) -> Iterable[tuple[str, float, float | None]]:
        most = None if self.cost_limit is None else self.cost_limit.most
        # Ten costs of 0.1 add up to 0.9999999999999999, which must reach a limit of 1.
        yield "cost_limit", float(f"{spent.cost:.12g}"), most
        yield "max_steps", spent.steps, self.max_steps
        yield "total_time_limit_s", spent.time_s, self.total_time_limit_s
        yield "time_limit_s", age_s, self.time_limit_s

    def _use_text(self, name: str, used: float, limit: float) -> str:
        match name:
            case "cost_limit":
                assert self.cost_limit is not None
                return f"{used:.6g} of {limit:g} {self.cost_limit.metric}"
            case "max_steps":
                return f"{used:g} of {limit:g} steps"
            case "time_limit_s":
                return (
                    f"{duration_text(used)} of {duration_text(limit)} "
                    "since the first worker started"
                )
        return f"{duration_text(used)} of {duration_text(limit)} of training"


LIMITS = Limits.__struct_fields__


def read_duration(name: str, value: Any) -> float | None:
    """
    Read a time: seconds, or a text such as "90s", "10m", "2h" or "1d"; None for no limit.

    Raises:
        InvalidSpec: The value is not a time above 0.
    """
    if value is None:
        return None
    seconds = value
    if isinstance(value, str) and (found := _DURATION.fullmatch(value.lower())):
        seconds = float(found["number"]) * _UNITS_S.get(found["unit"], math.nan)
    if is_number(seconds) and 0 < seconds <= LARGEST_DOUBLE:
        return float(seconds)
    raise InvalidSpec(
        f"{name} is {value!r}; it must be a number of seconds above 0, or a text such as '90s', "
        "'10m' or '2h'."
    )


def read_cost_limit(name: str, value: Any) -> CostLimit | None:
    """
    Read ("usd", 50) or "usd<=50"; None for no limit.

    Raises:
        InvalidSpec: The value is neither, or the number is infinite or not above 0.
        InvalidName: The metric's name breaks a rule for names.
    """
    if value is None:
        return None
    pair = value
    if isinstance(value, str):
        found = _COST.fullmatch(value)
        pair = (found["metric"], found["most"]) if found else ()
    if isinstance(pair, tuple | list) and len(pair) == 2:  # noqa: PLR2004  metric and number
        metric, most = pair[0], _number(pair[1])
        check_metric_name(metric)
        if 0 < most < math.inf:
            return CostLimit(metric, most)
    raise InvalidSpec(
        f"{name} is {value!r}; give a metric and a number above 0, such as ('usd', 50) or "
        "'usd<=50'."
    )


def _number(value: Any) -> float:
    try:
        return math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        return math.nan


def read_max_steps(name: str, value: Any) -> int | None:
    """Read a number of results below 2**62, or its digits as text; None for no limit."""
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= _DIGITS:
        value = int(value)
    most = count_or_none(name, value, least=1)
    if most is not None and most >= STEPS_END:
        raise InvalidSpec(f"{name} is an integer of more than 62 bits; leave it out for no limit.")
    return most


READERS: dict[str, Callable[[str, Any], Any]] = {
    "cost_limit": read_cost_limit,
    "max_steps": read_max_steps,
    "total_time_limit_s": read_duration,
    "time_limit_s": read_duration,
    "trial_time_limit_s": read_duration,
}
"""The function for each limit: it gets the limit's name and value, and returns a checked value."""
