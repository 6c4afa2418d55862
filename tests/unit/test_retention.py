"""`Keep` chooses which checkpoints of a trial expire; it is read from its text or its JSON."""

import math

import pytest

import studydb
from studydb.domain.errors import InvalidSpec
from studydb.domain.life.retention import Keep, SavedState, read_keep
from studydb.domain.life.states import Mode
from studydb.domain.objective import Objective
from studydb.domain.sizes import size_of, size_word

LOSS = Objective("loss", Mode.MIN)


def kept(keep, *values, objective=LOSS, steps=None):
    saved = [
        SavedState(10 + index, step, value)
        for index, (step, value) in enumerate(
            zip(steps or range(1, len(values) + 1), values, strict=True)
        )
    ]
    expired = keep.expired(saved, objective)
    return [one.step for one in saved if one.id not in expired]


@pytest.mark.parametrize("last", [1, 2])
def test_newest_two_are_kept_even_with_last_1(last):
    assert kept(Keep(last=last), 1, 2, 3, 4) == [3, 4]
    assert kept(Keep(last=last), 1) == [1]


def test_newest_n_are_kept():
    assert kept(Keep(last=3), 1, 2, 3, 4, 5) == [3, 4, 5]
    assert kept(Keep(last=9), 1, 2) == [1, 2]


def test_best_n_are_kept_in_the_direction_of_the_mode():
    values = (0.5, 0.1, 0.9, 0.2, 0.6, 0.7)

    assert kept(Keep(best=2), *values) == [2, 4, 5, 6]
    assert kept(Keep(best=2), *values, objective=Objective("loss", Mode.MAX)) == [3, 5, 6]


def test_nan_and_missing_values_are_never_best_and_the_earliest_of_equal_values_is_best():
    values = (math.nan, None, math.inf, 0.5, 0.5, 0.5, 0.6, 0.7)

    assert kept(Keep(best=1), *values) == [4, 7, 8]
    assert kept(Keep(best=9), *values) == [3, 4, 5, 6, 7, 8]


def test_option_every_keeps_checkpoints_at_multiples_of_its_value():
    assert kept(Keep(every=3), *range(10)) == [3, 6, 9, 10]
    assert kept(Keep(every=10), *[0.5] * 5, steps=[7, 10, 20, 25, 28]) == [10, 20, 25, 28]


def test_a_checkpoint_is_kept_if_any_option_keeps_it():
    assert kept(Keep(last=3, best=1, every=4), *range(9)) == [1, 4, 7, 8, 9]


@pytest.mark.parametrize("text", ["last=3, best=1, every=10", "Keep(last=3, best=1, every=10)"])
def test_keep_is_read_from_its_text_and_its_json(text):
    keep = studydb.Keep(last=3, best=1, every=10)

    assert read_keep("keep", text) == read_keep("keep", keep.to_json()) == keep
    assert str(keep) == "last=3, best=1, every=10"
    assert str(Keep()) == "last=1"
    assert Keep(last=2).keeps_newest_only
    assert not any(each.keeps_newest_only for each in (Keep(3), Keep(best=1), Keep(every=9)))


@pytest.mark.parametrize("size_bytes", [0, 1023, 10 << 40, 10**15 + 1, 2**63 - 1])
def test_text_of_a_size_is_read_as_the_same_size(size_bytes):
    assert size_of(size_word(size_bytes)) == size_bytes


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("quota=9999999999999999999T", "is not a size"),
        ("last=0", "Keep.last is 0; it must be an integer of 1 or more."),
        ("best=-1", "Keep.best is -1"),
        ("every=0", "Keep.every is 0"),
        ("newest=3", "newest"),
        ("last=1.5", "Keep.last is 1.5; it must be an integer"),
        (3, "keep is 3; give studydb.Keep"),
        (None, "keep is None; give studydb.Keep"),
    ],
)
def test_wrong_values_are_refused(given, message):
    with pytest.raises(InvalidSpec, match=message.replace("(", r"\(")):
        read_keep("keep", given)
