"""What a trial asks for, what a worker offers, and what the trials of one worker use now."""

import re
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import floor, inf, isfinite
from typing import Any

from msgspec import Struct, field, structs

from studydb.domain.arguments import count
from studydb.domain.errors import InvalidSpec
from studydb.domain.text.names import check_tags
from studydb.domain.text.suggestions import did_you_mean

CPUS, GPUS, MEMORY_GB = "cpus", "gpus", "memory_gb"
KNOWN = (CPUS, GPUS, MEMORY_GB)
"""The resources that studydb defines; people define all others, such as licences."""

MOST_NAMES = 16
"""The most resources that one request or one worker may name."""

MOST_AMOUNT = 1e9

DECIMALS = 6
"""Amounts are rounded to this many decimals, so that sums of them are exact: 0.1 + 0.2 is 0.3."""

NOTHING = "nothing"
"""The text of a request for nothing."""

OF_STUDY = ""
"""
The name of the resource class of trials that have no request; they ask for what the study asks for.
The name of any other resource class is the text of its request.
"""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,39}")
_OTHER_WORDS = {
    **dict.fromkeys(("cpu", "num_cpus", "ncpus"), CPUS),
    **dict.fromkeys(("gpu", "num_gpus", "ngpus", "device", "devices"), GPUS),
    **dict.fromkeys(("memory", "mem", "ram", "memory_gib", "mem_gb", "ram_gb"), MEMORY_GB),
}


class Resources(Struct, frozen=True):
    """
    A request for resources: what one trial holds while it runs.

    Attributes:
        gpus: A whole number, or a fraction below 1 for trials that share a GPU.
        memory_gb: In units of 10^9 bytes.
        custom: Amounts above 0 by name, such as licences.
    """

    cpus: float = 0.0
    gpus: float = 0.0
    memory_gb: float = 0.0
    custom: Mapping[str, float] = field(default_factory=dict)

    @property
    def amounts(self) -> dict[str, float]:
        """All amounts above 0 by name: the known resources first, then the custom ones."""
        known = {name: getattr(self, name) for name in KNOWN}
        named = known | dict(sorted(self.custom.items()))
        return {name: amount for name, amount in named.items() if amount}

    def plus(self, other: "Resources") -> "Resources":
        """Add the amounts of another request."""
        total = Counter(self.amounts)
        total.update(other.amounts)
        amounts = {name: round(amount, DECIMALS) for name, amount in total.items()}
        known = {name: amounts.pop(name, 0.0) for name in KNOWN}
        return Resources(**known, custom=amounts)

    def to_json(self) -> dict[str, float]:
        """Return the amounts as they are stored, by name."""
        return self.amounts

    def is_close(self, other: "Resources") -> bool:
        """Whether the amounts differ by one unit of the last decimal at most, as in 2/3."""
        mine, others = self.amounts, other.amounts
        return mine.keys() == others.keys() and all(
            round(abs(mine[name] - others[name]), DECIMALS) <= 10**-DECIMALS for name in mine
        )

    def __str__(self) -> str:
        return amounts_text(self.amounts) or NOTHING

    def __hash__(self) -> int:
        return hash(str(self))


def amounts_text(amounts: Mapping[str, float]) -> str:
    """Write amounts by name: "cpus=1, gpus=0.5"; an amount without a limit is left out."""
    finite = {name: amount for name, amount in amounts.items() if isfinite(amount)}
    return ", ".join(f"{name}={_number_text(amount)}" for name, amount in finite.items())


def _number_text(amount: float) -> str:
    return str(int(amount)) if amount == int(amount) else f"{amount:.{DECIMALS}f}".rstrip("0")


def read_resources(name: str, value: Any) -> Resources:
    """
    Read a request: a `Resources`, a dict such as {"gpus": 1}, or a text such as "gpus=1".

    None is a request for nothing.

    Args:
        name: The name of the value in errors.

    Raises:
        InvalidSpec: See `read_amounts`; or `gpus` is above 1 and not a whole number.
    """
    if isinstance(value, Resources):
        value = value.amounts
    amounts = read_amounts(name, {} if value is None else value)
    gpus = amounts.get(GPUS, 0.0)
    if gpus > 1 and gpus != int(gpus):
        raise InvalidSpec(
            f"{name} asks for {_number_text(gpus)} gpus; a trial gets whole GPUs, or a part of "
            "one: give a whole number, or a fraction below 1."
        )
    known = {each: amounts.pop(each, 0.0) for each in KNOWN}
    return Resources(**known, custom={each: amount for each, amount in amounts.items() if amount})


def read_require(name: str, value: Any) -> tuple[str, ...]:
    """Read the tags that a study requires of its workers; None means no tags."""
    return check_tags(() if value is None else value, name=name)


def read_resources_or_none(name: str, value: Any) -> Resources | None:
    """Read a request as `read_resources` does, but return None for None."""
    return None if value is None else read_resources(name, value)


def read_amounts(name: str, value: Any) -> dict[str, float]:
    """
    Read amounts of resources by name, from a mapping or from a text such as "gpus=1, licence=2".

    Raises:
        InvalidSpec: The value is neither, it has more than 16 names, a name is not allowed or
            occurs twice, or an amount is not a number from 0 to 1e9.
    """
    given = _split(name, value) if isinstance(value, str) else value
    if not isinstance(given, Mapping):
        raise InvalidSpec(
            f"{name} is {value!r}; give amounts by name, such as {{'gpus': 1}} or 'gpus=1'."
        )
    if len(given) > MOST_NAMES:
        raise InvalidSpec(f"{name} names {len(given)} resources; at most {MOST_NAMES} are allowed.")
    return {_checked_name(name, each): _amount(name, each, given[each]) for each in given}


def _split(name: str, text: str) -> dict[str, str]:
    if text.strip() in ("", NOTHING):
        return {}
    given: dict[str, str] = {}
    for part in text.split(","):
        key, sign, amount = (piece.strip() for piece in part.partition("="))
        if not (key and sign and amount):
            raise InvalidSpec(
                f"{name} is {text!r}, and {part.strip()!r} is not NAME=AMOUNT; write for example "
                "'gpus=1, licence=2'."
            )
        if key in given:
            raise InvalidSpec(f"{name} gives {key!r} twice; give it once.")
        given[key] = amount
    return given


def _checked_name(name: str, each: Any) -> str:
    if not isinstance(each, str) or not _NAME.fullmatch(each):
        raise InvalidSpec(
            f"{name} names the resource {each!r}; a name has up to 40 letters, digits, '_', '-' "
            "and '.', and begins with a letter or '_'."
        )
    meant = _OTHER_WORDS.get(each.casefold())
    if meant is None and each.casefold() in KNOWN and each not in KNOWN:
        meant = each.casefold()
    if meant is not None:
        raise InvalidSpec(f"{name} names the resource {each!r}; the name is {meant!r}.")
    if each == NOTHING:
        raise InvalidSpec(
            f"{name} names the resource {each!r}, which means no resources; take another name."
        )
    return each


def _amount(name: str, each: str, value: Any) -> float:
    try:
        # Round down, so that six trials with 1/6 GPU each fit on one GPU. First round to three more
        # decimals, because 0.7 + 0.1 is 0.7999999999999999.
        scaled = inf if isinstance(value, bool) else round(float(value) * 10**DECIMALS, 3)
        amount = floor(scaled) / float(10**DECIMALS)
    except (TypeError, ValueError, OverflowError):
        amount = inf
    if not 0 <= amount <= MOST_AMOUNT:  # also refuses NaN
        raise InvalidSpec(
            f"{name} gives {each} as {value!r}; it must be a number from 0 to {MOST_AMOUNT:g}."
        )
    return amount


class Capacity(Struct, frozen=True):
    """
    What a worker offers to its trials, or the part of the offer that is free.

    Attributes:
        cpus, memory_gb: Amounts; infinite where the worker has no limit.
        cards: Which part of each GPU is offered or free: 1.0 for a whole card. A request for less
            than one GPU must fit on one card. A request for n GPUs takes n cards that no other
            trial uses.
        custom: Amounts by name. A worker has nothing of a resource that it does not name.
        tags: Words that studies may require of their workers, such as "a100".
        is_unlimited: Whether every request fits. This is so in an own loop (`study.ask`) that was
            given no capacity.
    """

    cpus: float = inf
    cards: tuple[float, ...] = ()
    memory_gb: float = inf
    custom: Mapping[str, float] = field(default_factory=dict)
    tags: frozenset[str] = frozenset()
    is_unlimited: bool = False

    @property
    def gpus(self) -> float:
        """The sum of the parts of all cards."""
        return inf if self.is_unlimited else round(sum(self.cards), DECIMALS)

    @property
    def amounts(self) -> dict[str, float]:
        """All amounts by name, also those that are 0."""
        known = {name: getattr(self, name) for name in KNOWN}
        return known | dict(sorted(self.custom.items()))

    def fits(self, asked: Resources) -> bool:
        """Tell whether a request fits into these amounts."""
        return self.is_unlimited or (
            asked.cpus <= self.cpus
            and asked.memory_gb <= self.memory_gb
            and all(amount <= self.custom.get(name, 0.0) for name, amount in asked.custom.items())
            and self.cards_for(asked.gpus) is not None
        )

    def cards_for(self, gpus: float) -> tuple[int, ...] | None:
        """Choose cards for a request; see `choose_cards`."""
        return choose_cards(self.cards, gpus)

    def lacks(self, required: Iterable[str]) -> list[str]:
        """Return the tags that a study requires and this worker lacks, in alphabetical order."""
        return [] if self.is_unlimited else sorted(set(required) - self.tags)

    def minus(self, asked: Resources) -> "Capacity":
        """
        Return what is free after a trial has taken what it asks for.

        Raises:
            ValueError: The request does not fit.
        """
        if self.is_unlimited:
            return self
        chosen = self.cards_for(asked.gpus)
        if chosen is None or not self.fits(asked):
            raise ValueError(f"{asked} does not fit into {self}")
        cards = without_cards(self.cards, chosen, asked.gpus)
        custom = {
            name: round(amount - asked.custom.get(name, 0.0), DECIMALS)
            for name, amount in self.custom.items()
        }
        return structs.replace(
            self,
            cpus=round(self.cpus - asked.cpus, DECIMALS),
            memory_gb=round(self.memory_gb - asked.memory_gb, DECIMALS),
            cards=cards,
            custom=custom,
        )

    def to_json(self) -> dict[str, Any]:
        """Return what the worker's row stores; an amount without a limit is left out."""
        finite = {name: amount for name, amount in self.amounts.items() if isfinite(amount)}
        more: dict[str, Any] = {"tags": sorted(self.tags)} if self.tags else {}
        if self.is_unlimited:
            more["unlimited"] = True
        return {"amounts": finite, **more}

    @classmethod
    def from_json(cls, stored: Mapping[str, Any] | None) -> "Capacity":
        """Read what `to_json` has returned; an own loop without a capacity stores None."""
        if stored is None or stored.get("unlimited"):
            return UNLIMITED
        amounts = dict(stored.get("amounts", {}))
        return cls(
            cpus=amounts.pop(CPUS, inf),
            cards=whole_cards(amounts.pop(GPUS, 0)),
            memory_gb=amounts.pop(MEMORY_GB, inf),
            custom=amounts,
            tags=frozenset(stored.get("tags", ())),
        )

    def __str__(self) -> str:
        if self.is_unlimited:
            return "no limit"
        shown = {name: amount for name, amount in self.amounts.items() if amount}
        parts = [amounts_text(shown), *(f"tag {tag}" for tag in sorted(self.tags))]
        return ", ".join(part for part in parts if part) or NOTHING


def choose_cards(parts: Sequence[float], gpus: float) -> tuple[int, ...] | None:
    """
    Choose cards for a request, and return their positions; None if the request does not fit.

    A fraction gets the card with the smallest free part that is enough, so that whole cards stay
    free. All code that gives cards to trials calls this function, because a worker's ledger and the
    code that locks the cards must choose by the same rule.

    Args:
        parts: Which part of each card is free.
    """
    if gpus < 1:
        enough = [(part, at) for at, part in enumerate(parts) if part >= gpus]
        return () if gpus == 0 else (min(enough)[1],) if enough else None
    whole = [at for at, part in enumerate(parts) if part >= 1]
    return tuple(whole[: int(gpus)]) if len(whole) >= gpus else None


def without_cards(parts: Sequence[float], chosen: Sequence[int], gpus: float) -> tuple[float, ...]:
    """Return which part of each card stays free if a trial takes `gpus` on the chosen cards."""
    part = min(gpus, 1.0)
    return tuple(
        round(free - part, DECIMALS) if at in chosen else free for at, free in enumerate(parts)
    )


UNLIMITED = Capacity(is_unlimited=True)
"""The capacity of an own loop that is given no capacity: every request fits."""


MOST_GPUS = 1024
"""The most GPUs that a worker can offer: an offer has an item per GPU, and must stay small."""


def whole_cards(n: float) -> tuple[float, ...]:
    """Return `n` whole cards, but at most `MOST_GPUS`."""
    return (1.0,) * int(min(n, MOST_GPUS))


def read_capacity(
    *,
    cpus: float | None = None,
    gpus: int = 0,
    memory_gb: float | None = None,
    custom: Mapping[str, Any] | str | None = None,
    tags: Iterable[str] = (),
) -> Capacity:
    """
    Check what a worker is to offer.

    Args:
        cpus, memory_gb: None for no limit.
        custom: Amounts of other resources by name; None for no such resources.

    Raises:
        InvalidSpec: See `read_amounts`; or `custom` names one of `KNOWN`, or there are more than
            `MOST_GPUS` GPUs.
        InvalidName: A tag breaks a rule for tags.
    """
    more = read_amounts("--resource", {} if custom is None else custom)
    if taken := [name for name in KNOWN if name in more]:
        raise InvalidSpec(
            f"--resource gives {taken[0]!r}; give it by the option --{taken[0].replace('_', '-')}."
        )
    if count("gpus", gpus, least=0) > MOST_GPUS:
        raise InvalidSpec(f"gpus is {gpus}, but a process can offer {MOST_GPUS} at most.")
    return Capacity(
        cpus=inf if cpus is None else _amount("--cpus", CPUS, cpus),
        cards=whole_cards(gpus),
        memory_gb=inf if memory_gb is None else _amount("--memory-gb", MEMORY_GB, memory_gb),
        custom=more,
        tags=frozenset(check_tags(tags)),
    )


def nearest_offer(asked: Resources, offers: Iterable[Capacity]) -> Capacity | None:
    """
    Return the offer that is too small in the fewest resources of a request; None without offers.

    Of several such offers, return the one with the most GPUs, then CPUs, then memory.
    """
    return max(
        offers,
        key=lambda one: (-len(_lacking(asked, one)), one.gpus, one.cpus, one.memory_gb),
        default=None,
    )


def _lacking(asked: Resources, offer: Capacity) -> list[str]:
    has = offer.amounts
    return [name for name, amount in asked.amounts.items() if amount > has.get(name, 0.0)]


def misspelling_hint(asked: Resources, offers: Iterable[Capacity]) -> str:
    """Suggest names for a requested resource that no worker offers; "" without a suggestion."""
    offered = {name for one in offers for name in one.amounts}
    unknown = [name for name in asked.amounts if name not in offered]
    return did_you_mean(unknown[0], offered) if unknown else ""


class _Held(Struct, frozen=True):
    """
    What one trial holds.

    Attributes:
        cards: The positions of the trial's cards.
        is_placed: Whether the trial has locked these cards. If so, the function `free_cards` of the
            `Ledger` does not return the trial's part of these cards as free.
    """

    asked: Resources
    cards: tuple[int, ...]
    is_placed: bool = False


class Ledger:
    """
    What the trials of one worker hold; the slots of the worker share the ledger.

    Args:
        free_cards: A function that returns, for each card, the part that no process of the host has
            locked; None instead of a function if only this process uses the cards.
    """

    def __init__(
        self, capacity: Capacity, free_cards: Callable[[], Sequence[float]] | None = None
    ) -> None:
        self.capacity, self._free_cards = capacity, free_cards
        self._free = capacity
        self._held: dict[object, _Held] = {}
        self._lock = threading.Lock()

    @property
    def free(self) -> Capacity:
        """The part of the capacity that no trial of this worker holds."""
        return self._free

    @property
    def shares_cards(self) -> bool:
        """Whether other processes may hold the cards of this worker."""
        return self._free_cards is not None

    def free_now(self) -> Capacity:
        """
        Return what this worker can give to a trial now.

        The result has the amounts that no trial of this worker holds, and of each card the part
        that no process of the host has locked. If a trial of this worker has not locked its cards
        yet, the cards that it would lock now are not free.
        """
        if self._free_cards is None or not self.capacity.cards:
            return self._free
        with self._lock:
            return self._free_by_locks(self._free_cards())

    @property
    def n_held(self) -> int:
        """How many trials are recorded by `hold`; a trial that asks for nothing counts, too."""
        return len(self._held)

    def held_by(self, holder: object) -> Resources | None:
        """Return what a trial holds; None if no request of this trial is recorded."""
        held = self._held.get(holder)
        return None if held is None else held.asked

    def hold(self, holder: object, asked: Resources) -> bool:
        """
        Record that a trial holds what it asks for.

        Args:
            holder: The key of the trial; `place` and `release` get the same key.

        Returns:
            False, without a change, if the request does not fit or the trial is recorded already.
        """
        with self._lock:
            free = self._free
            if self._free_cards is not None and asked.gpus:
                free = self._free_by_locks(self._free_cards())
            if holder in self._held or not free.fits(asked):
                return False
            self._held[holder] = _Held(asked, free.cards_for(asked.gpus) or ())
            self._free = self._left()
            return True

    def place(self, holder: object, cards: Sequence[int]) -> None:
        """
        Record which cards a trial has locked.

        The locked cards differ from those that `hold` chose if another process has locked a chosen
        card first.
        """
        with self._lock:
            if (held := self._held.get(holder)) is not None:
                self._held[holder] = structs.replace(held, cards=tuple(cards), is_placed=True)
                self._free = self._left()

    def release(self, holder: object) -> None:
        """Record that a trial holds nothing any more; a second call changes nothing."""
        with self._lock:
            if self._held.pop(holder, None) is not None:
                self._free = self._left()

    def _free_by_locks(self, parts: Sequence[float]) -> Capacity:
        for held in self._held.values():
            chosen = None if held.is_placed else choose_cards(parts, held.asked.gpus)
            parts = without_cards(parts, chosen or (), held.asked.gpus)
        return structs.replace(self._free, cards=tuple(parts))

    def _left(self) -> Capacity:
        if self.capacity.is_unlimited:
            return self.capacity
        cards, custom = self.capacity.cards, dict(self.capacity.custom)
        cpus, memory_gb = self.capacity.cpus, self.capacity.memory_gb
        for held in self._held.values():
            asked = held.asked
            cpus, memory_gb = cpus - asked.cpus, memory_gb - asked.memory_gb
            cards = without_cards(cards, held.cards, asked.gpus)
            for name, amount in asked.custom.items():
                custom[name] = round(custom[name] - amount, DECIMALS)
        return structs.replace(
            self.capacity,
            cpus=round(cpus, DECIMALS),
            memory_gb=round(memory_gb, DECIMALS),
            cards=cards,
            custom=custom,
        )
